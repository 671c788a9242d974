"""However a lab, a rank or a launcher ends, it is said which, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_tasks import ENDLESS, done, left_after, processes_with, ranks_of, scratch_of, spec_of, task
from patience import patience_s

from fabric.api import FabricSpec
from harness.lab.labs import Labs, OnEvent
from harness.lab.launch import CHECKOUT, LabHandle, LabLost
from harness.lab.messages import Answer, Ending, Event, Task

pytestmark = pytest.mark.slow

FABRICS = pytest.mark.parametrize("kind", ["native", pytest.param("emulated", marks=pytest.mark.emulated)])


def once_training(act: Callable[[], None]) -> Callable[[Event], None]:
    """Act on the second word about steps: ranks are in the midst of training."""
    heard: list[Event] = []

    def listen(event: Event) -> None:
        if event.kind == "step":
            heard.append(event)
            if len(heard) == 2:
                act()

    return listen


@pytest.mark.parametrize(("rank", "kind"), [(0, "native"), pytest.param(1, "emulated", marks=pytest.mark.emulated)])
def test_a_killed_rank_is_named_with_job_host_and_signal(rank: int, kind: str) -> None:
    fabric = spec_of(kind)
    with LabHandle(fabric) as lab:
        scratch = scratch_of(lab)
        listen = once_training(lambda: ranks_of(lab)[rank].kill())
        answer = lab.ask(task(fabric, num_steps=ENDLESS), listen)
        assert answer.ending is Ending.FAILED
        host = "localhost" if kind == "native" else f"host{rank}"
        assert f"job a rank {rank} on {host} was killed by signal 9 (SIGKILL) at or after step" in answer.reason
        assert len(processes_with(scratch)) <= 4, "only the lab and its enclosure go on"
        assert done(lab.ask(task(fabric, num_steps=2)))
    assert left_after(scratch) == []
    assert not Path(scratch).exists()


@FABRICS
def test_a_lost_lab_is_an_error_and_takes_its_ranks_along(kind: str) -> None:
    fabric = spec_of(kind)
    with LabHandle(fabric) as lab:
        scratch = scratch_of(lab)
        with pytest.raises(LabLost, match="without an answer"):
            lab.ask(task(fabric, num_steps=ENDLESS), once_training(lambda: os.kill(lab._process.pid, signal.SIGKILL)))
        assert not lab.is_running
        assert left_after(scratch) == []
        with pytest.raises(LabLost):
            lab.ask(task(fabric))
    assert not Path(scratch).exists()


def test_a_lost_lab_is_closed_before_another_one_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Lost:
        is_running = False

        def __init__(self, fabric: FabricSpec) -> None:
            happened.append("start")

        def ask(self, asked: Task, on_event: OnEvent) -> Answer:
            return Answer(ending=Ending.FAILED)

        def close(self) -> None:
            happened.append("close")

    monkeypatch.setattr("harness.lab.labs.LabHandle", Lost)
    labs = Labs()
    for _ in range(2):
        labs.ask(task(spec_of("native")), lambda event: None)
    assert happened == ["start", "close", "start"]
    labs.close()
    assert happened[3:] == ["close"]


def test_a_stopped_supervisor_delays_no_end() -> None:
    with LabHandle(spec_of("native")) as lab:
        scratch = scratch_of(lab)
        os.kill(lab._process.pid, signal.SIGSTOP)
    assert left_after(scratch) == []


# a launcher of its own, that says where its lab lives once ranks are training
LAUNCHER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what it puts behind it without one
from lab_tasks import ENDLESS, scratch_of, spec_of, task
from harness.lab.launch import LabHandle

fabric = spec_of(sys.argv[1])
with LabHandle(fabric) as lab:
    say = lambda event: event.kind == "step" and print(scratch_of(lab), flush=True)
    lab.ask(task(fabric, num_steps=ENDLESS), say)
"""


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("native", signal.SIGKILL),
        ("native", signal.SIGINT),
        pytest.param("emulated", signal.SIGKILL, marks=pytest.mark.emulated),
    ],
)
def test_a_launcher_that_is_ended_leaves_nothing(kind: str, number: signal.Signals, tmp_path: Path) -> None:
    path = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests"), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", LAUNCHER, kind]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=CHECKOUT
    ) as launcher:
        assert launcher.stdout is not None
        scratch = launcher.stdout.readline().strip()
        assert Path(scratch).is_dir()
        assert len(processes_with(scratch)) >= 3
        launcher.send_signal(number)
        launcher.communicate(timeout=patience_s(60))
    assert left_after(scratch) == []
    if number == signal.SIGINT:
        assert not Path(scratch).exists()
