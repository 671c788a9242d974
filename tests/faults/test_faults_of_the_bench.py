"""Every signal on every kind of process of `crossover-bench run`: nothing is left, and `--resume` completes."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from leftovers import SIGNALS, SOON_S, Marked, marked_run, networks_of, numbers, parent, state, torn, words

from fabric.enclosure import refusal

ROLES = {
    "emulated": ("bench", "supervisor", "unshare", "init", "lab", "rank"),
    "native": ("bench", "supervisor", "lab", "rank"),
}
CASES = [(fabric, role, number) for fabric, names in ROLES.items() for role in names for number in SIGNALS]


def short(tmp_path: Path) -> Path:
    """A test's folder for temporary files, whose name is short enough for sockets below it."""
    return Path(f"/tmp/cb-{crc32(str(tmp_path).encode()):08x}")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path) -> Iterator[None]:
    short(tmp_path).mkdir()
    yield
    shutil.rmtree(short(tmp_path))


def bench(
    marked: Marked, tmp_path: Path, *more: str, scratch: Path | None = None, descriptors: int | None = None
) -> subprocess.Popen[bytes]:
    """One short cell on two hosts (or what `--only` says), its records in a folder of this test. `scratch` is its
    TMPDIR, and `descriptors` how many files each of its processes may have open."""
    command = [sys.executable, "-m", "suites", "run", "quick", "--smoke", "--any-machine"]
    only = () if "--only" in more else ("--only", "real/resnet20-digits/fixed")
    environment = marked.environment | {"TMPDIR": str(scratch or short(tmp_path))}
    words = [*command, *only, "--out", str(tmp_path / "out"), *more]
    if descriptors is not None:
        words = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *words]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def children(pid: int) -> list[int]:
    return [other for other in numbers() if parent(other) == pid and state(other) not in "ZX"]


def chain(launcher: int, fabric: str) -> dict[str, int]:
    """Each kind of process by its role, once two ranks of a trial are there."""
    deadline_s = time.monotonic() + SOON_S
    while time.monotonic() < deadline_s:
        found, below = {}, launcher
        for role in ROLES[fabric]:
            found[role] = below
            down = sorted(pid for pid in children(below) if role != "lab" or "harness.lab" in words(pid))
            if role == "lab" and len(down) >= 2:
                return found | {"rank": down[0]}
            if not down:
                break
            below = down[0]
        time.sleep(0.02)
    raise AssertionError(f"no ranks under {launcher}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("fabric", "role", "number"), CASES, ids=lambda value: getattr(value, "name", value))
def test_nothing_is_left_and_resume_completes(fabric: str, role: str, number: signal.Signals, tmp_path: Path) -> None:
    if fabric == "emulated" and (reason := refusal()) is not None:
        pytest.skip(f"the kernel forbids the emulated fabric: {reason}")
    with marked_run() as marked:
        with bench(marked, tmp_path, "--fabric", fabric) as process:
            victim = chain(process.pid, fabric)[role]
            networks = marked.networks()
            assert bool(networks) is (fabric == "emulated")
            there = numbers()
            os.kill(victim, number)
            if number is signal.SIGSTOP:
                time.sleep(0.5)
                process.send_signal(signal.SIGKILL if role == "bench" else signal.SIGINT)
            process.communicate(timeout=4 * SOON_S)
        assert marked.wait_until_gone() == []
        # Not of whoever came later: the kernel gives the number of a network that is gone to the next one.
        assert not networks & networks_of(there)
        assert torn(tmp_path / "out") == []
        resume(marked, tmp_path, "--fabric", fabric)


def test_a_full_disk_under_the_records_is_told_in_one_line(tmp_path: Path) -> None:
    if os.geteuid() != 0 or refusal() is not None:
        pytest.skip("only root can mount a small disk here")
    out = tmp_path / "out"
    out.mkdir()
    run = [sys.executable, "-m", "suites", "run", "quick", "--smoke", "--fabric", "lockstep", "--out", str(out)]
    small = f'mount -t tmpfs -o size=8k none {out} && exec "$@"'
    with marked_run() as marked:
        command = ["unshare", "--mount", "sh", "-c", small, "sh", *run, "--only", "real/resnet20-digits/fixed"]
        done = subprocess.run(
            command, env=marked.environment, capture_output=True, text=True, timeout=2 * SOON_S, check=False
        )
        assert done.returncode == 2
        assert "No space left on device); make room" in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
        assert marked.wait_until_gone() == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("limit", [16, 32, 64, 128])
def test_few_descriptors_are_told_and_resume_completes(limit: int, tmp_path: Path) -> None:
    """Whatever asks in vain: the launcher, its lab or a rank. With enough of them all goes well."""
    with marked_run() as marked:
        with bench(marked, tmp_path, "--fabric", "native", descriptors=limit) as process:
            shown, _ = process.communicate(timeout=4 * SOON_S)
        text = shown.decode(errors="replace")
        assert process.returncode in (0, 1, 2), text[-2000:]
        assert 'Traceback (most recent call last):\n  File "<frozen runpy>' not in text
        assert process.returncode != 2 or "oo many open files" in text, text[-2000:]
        # gloo ends a rank by SIGABRT where it finds no descriptor in a thread of its own
        failed = [path for path in (tmp_path / "out").glob("*.json") if json.loads(path.read_text())["status"] != "ok"]
        assert (process.returncode == 1) is bool(failed)
        assert all(json.loads(path.read_text())["reason"] for path in failed)
        check_clean(marked, tmp_path)
        resume(marked, tmp_path, "--fabric", "native")


@pytest.mark.timeout(600)
def test_a_folder_for_temporary_files_that_is_too_long_for_sockets_is_not_used_for_them(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    chosen = ("--fabric", "native", "--only", "sharing/resnet20-digits+resnet20-digits/crossover")
    with marked_run() as marked:
        with bench(marked, tmp_path, *chosen, scratch=long) as process:
            shown, _ = process.communicate(timeout=4 * SOON_S)
        assert process.returncode == 0, shown.decode(errors="replace")[-2000:]
        assert list(long.iterdir()) == []
        check_clean(marked, tmp_path)


def check_clean(marked: Marked, tmp_path: Path) -> None:
    """No process, half record or scratch."""
    assert marked.wait_until_gone() == []
    assert torn(tmp_path / "out") == []
    assert not list(short(tmp_path).glob("crossover-bench-*"))


def resume(marked: Marked, tmp_path: Path, *more: str, scratch: Path | None = None) -> None:
    """The same run again, on a machine without the fault."""
    with bench(marked, tmp_path, *more, "--resume", scratch=scratch) as again:
        shown, _ = again.communicate(timeout=4 * SOON_S)
    assert again.returncode == 0, shown.decode(errors="replace")[-2000:]
    check_clean(marked, tmp_path)


LOCKSTEP = ("run", "quick", "--smoke", "--fabric", "lockstep", "--only", "real/resnet20-digits/fixed")


def test_a_name_that_no_disk_takes_is_told_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "suites", *LOCKSTEP, "--out", str(tmp_path / ("n" * 300))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * SOON_S, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("crossover-bench: cannot write to ")
    assert "Traceback" not in done.stderr


def test_a_closed_terminal_leaves_nothing(tmp_path: Path) -> None:
    """Whatever it writes afterwards fails with EIO; the kernel sends SIGHUP."""
    with marked_run() as marked:
        pid, terminal = pty.fork()
        if not pid:
            words = [sys.executable, "-m", "suites", *LOCKSTEP, "--out", str(tmp_path / "out")]
            os.execve(sys.executable, words, dict(marked.environment))
        os.read(terminal, 1)  # it has begun
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) != 0
        assert marked.wait_until_gone() == []
    assert torn(tmp_path / "out") == []
