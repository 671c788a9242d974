"""The example scripts, launched as their docstrings say, in turns with another job on each worker's device."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from patience import patience_s

from crossover import ArbiterLost, Participant, start
from crossover.attach import JOB, SETTINGS, SOCKET
from crossover.settings import Settings

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
OPTIONS = ["--steps", "6", "--accumulate", "2", "--clip", "0.5", "--halve-every", "2"]
DDP = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", "--no-python"], "examples/ddp_train.py"
HOROVOD = [str(BIN / "horovodrun"), "--gloo", "-np", "2"], "examples/horovod_train.py"
LIMIT_S = patience_s(110.0)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@contextmanager
def turns_of_another_job(path: Path) -> Iterator[list[int]]:
    """Job "b" takes a turn on both workers' devices whenever it may; how many it had, by device."""
    counts = [0, 0]

    def take_turns(device: int, mine: Participant) -> None:
        try:
            while True:
                with mine.turn():
                    counts[device] += 1
        except ArbiterLost:  # it is over
            pass

    with ExitStack() as stack:
        arbiter = stack.enter_context(start(path, ("a", "b")))
        for device in range(2):
            mine = Participant(path, "b", str(device))
            thread = threading.Thread(target=take_turns, args=(device, mine))
            stack.callback(mine.leave)
            stack.callback(thread.join)
            thread.start()
        stack.callback(arbiter.stop)
        yield counts


def run(preloaded: list[str], launcher: list[str], script: str, path: Path | None) -> dict[str, str]:
    """What the script prints, by its first word."""
    command = [*preloaded, *launcher, *preloaded, script, *OPTIONS]
    settings = Settings(jobs=("a", "b")).to_json()
    told = {} if path is None else {JOB: "a", SOCKET: str(path), SETTINGS: settings}
    environment = {**os.environ, **told, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = (line.rpartition(">:")[2].split() for line in done.stdout.splitlines())
    return {words[0]: words[1] for words in lines if len(words) == 2}


@pytest.fixture(scope="module")
def alone(preloaded: list[str]) -> dict[str, str]:
    return run(preloaded, *DDP, None)


def check(shared: dict[str, str], alone: dict[str, str], turns: list[int]) -> None:
    assert shared["sha256"] == alone["sha256"]
    assert shared["loss"] == alone["loss"]
    assert float(shared["steps/s"]) > 0
    assert min(turns) >= 12  # as many as the example's micro-batches


def test_the_ddp_example_in_turns_ends_with_the_weights_of_its_run_alone(
    preloaded: list[str], alone: dict[str, str], tmp_path: Path
) -> None:
    with turns_of_another_job(tmp_path / "host.sock") as turns:
        check(run(preloaded, *DDP, tmp_path / "host.sock"), alone, turns)


@pytest.mark.horovod
def test_the_horovod_example_in_turns_ends_with_the_same_weights(
    preloaded: list[str], alone: dict[str, str], tmp_path: Path
) -> None:
    with turns_of_another_job(tmp_path / "host.sock") as turns:
        check(run(preloaded, *HOROVOD, tmp_path / "host.sock"), alone, turns)
