"""What all tests share: a cache of their own, reasons to skip, and a check that no process is left behind."""

from __future__ import annotations

import gc
import logging
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import cache
from importlib.util import find_spec
from logging.handlers import BufferingHandler
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from zlib import crc32

import psutil
import pytest
from hypothesis import HealthCheck, settings
from patience import patience_s
from preloaded import serving

from harness.garbage import lasting

if TYPE_CHECKING:
    from harness.bench import Bench
    from harness.lab.labs import Labs

GRACE_S = patience_s(3.0)
PRELOADED = pytest.StashKey[list[str]]()
# Before torch is imported, here and in what tests start: tensors are tiny, and other processes use the other cores.
os.environ["OMP_NUM_THREADS"] = "1"

# Examples are laws, not timings: a busy machine must not fail them, and the same ones run every time.
# Fifty of them: what an example of these laws takes is building plug-ins and models, and the same ones never find more.
settings.register_profile(
    "suite", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")
# A shell's background jobs inherit an ignored SIGINT, and so would every command that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
OPTIONAL_CAPABILITIES = {"namespaces without root", "congestion control reno"}


IMPORTING, SERVING = ExitStack(), ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    """Until all tests are collected, torch and theirs are imported: once for all of xdist's workers, which are forks of
    one process."""
    IMPORTING.enter_context(lasting())
    if hasattr(config, "workerinput"):
        return
    if workers := config.getoption("tx", None):
        folder = SERVING.enter_context(TemporaryDirectory())
        config.stash[PRELOADED] = command = SERVING.enter_context(serving(f"{folder}/socket"))
        config.option.tx = [f"{worker}//python={shlex.join(command)}" for worker in workers]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Workers of xdist start their tests' scripts as forks of the same process."""
    node.workerinput["preloaded"] = node.config.stash[PRELOADED]


def pytest_unconfigure() -> None:
    SERVING.close()


def pytest_collection_finish() -> None:
    """From here on garbage is looked for after 20,000 new objects, and not after 700: a hundredth of all tests' time
    went there."""
    IMPORTING.close()
    gc.set_threshold(20_000, 10, 10)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The limits of pytest-timeout are bounds against hanging too, so they follow the machine. Of several processes
    none shall work on a slow file alone at the end, so slow files come first; and all shall not wait at once, as tests
    of one room do, so files are mixed, alike in every process."""
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: (item.path not in slow, crc32(item.path.name.encode())))
    usual_s = float(config.getoption("timeout", None) or config.getini("timeout"))
    for item in items:
        marker = item.get_closest_marker("timeout")
        item.add_marker(pytest.mark.timeout(patience_s(marker.args[0] if marker else usual_s)), append=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("emulated") and (missing := missing_for_emulation()):
        pytest.skip(missing)
    if item.get_closest_marker("horovod") and find_spec("horovod") is None:
        pytest.skip("Horovod is not installed: run 'make doctor'")


@cache
def missing_for_emulation() -> str:
    """Why this kernel does not let us emulate a network; empty when it does."""
    from fabric.probe import capabilities

    first, *others = capabilities()  # the first is how this user enters namespaces
    needed = [first, *(other for other in others if other.name not in OPTIONAL_CAPABILITIES)]
    return "; ".join(f"{need.name}: {need.detail} ({need.remedy})" for need in needed if not need.ok)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for temporary files whose name is short enough for sockets below it, unlike `tmp_path`."""
    with TemporaryDirectory(prefix="cb-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests read and write a cache folder of their own, not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """What is logged meanwhile, from warnings on."""
    handler = BufferingHandler(1000)
    logging.getLogger().addHandler(handler)
    yield handler.buffer
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="session")
def labs(preloaded: list[str]) -> Iterator[Labs]:
    """For trials of real processes. Shared, since a lab takes longer to start than such a trial: who ends a lab, or
    changes what it inherits, starts one."""
    from listening import LabsOnLoopback  # and torch, which tests of the scheduler do without

    with closing(LabsOnLoopback(preloaded)) as shared:
        yield shared


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[list[str]]:
    """The words in front of a script's that spare it the import of torch."""
    if hasattr(pytestconfig, "workerinput"):
        yield pytestconfig.workerinput["preloaded"]
        return
    with serving(str(tmp_path_factory.mktemp("preloaded") / "socket")) as command:
        yield command


@pytest.fixture(scope="module")
def bench(labs: Labs) -> Bench:
    """On the shared labs, which it leaves open."""
    from harness.bench import Bench

    return Bench(labs)


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Whatever the tests have started is gone at the end (Python's own resource tracker stays until exit)."""
    yield
    _, alive = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=GRACE_S)
    left = [command for process in alive if "resource_tracker" not in (command := command_of(process))]
    assert not left, f"processes left behind: {left}"


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.NoSuchProcess:
        return "resource_tracker"
