"""However a lab, a rank or a launcher ends, it is said which, and nothing is left."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from forked_ranks import FORK
from lab_tasks import ENDLESS, done, left_after, processes_with, ranks_of, scratch_of, spec_of, task
from patience import patience_s

from fabric.api import FabricSpec
from harness.lab.labs import Labs, OnEvent
from harness.lab.launch import LabHandle, LabLost
from harness.lab.messages import Answer, Ending, Event, Task

pytestmark = pytest.mark.slow


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
def test_a_killed_rank_is_named_and_a_lost_lab_is_an_error_that_takes_its_ranks_along(rank: int, kind: str) -> None:
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

        def __init__(self, fabric: FabricSpec, python: Sequence[str]) -> None:
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


def launch(told: Connection) -> None:
    """Says where its lab lives once ranks are training."""
    fabric = spec_of("native")
    with LabHandle(fabric) as lab:
        lab.ask(task(fabric, num_steps=ENDLESS), lambda event: event.kind == "step" and told.send(scratch_of(lab)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_launcher_that_is_ended_leaves_nothing(
    number: signal.Signals, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Natively: of an enclosed lab, `test_nothing_survives.py` kills the launcher."""
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))  # one that is killed leaves its folder
    heard, told = FORK.Pipe(duplex=False)
    launcher = FORK.Process(target=launch, args=(told,))
    launcher.start()
    try:
        told.close()
        own = heard.recv()
        assert Path(own).is_dir()
        assert len(processes_with(own)) >= 3
        assert launcher.pid is not None
        os.kill(launcher.pid, number)
        launcher.join(patience_s(60))
        assert launcher.exitcode is not None
    finally:
        launcher.kill()
    assert left_after(own) == []
    if number == signal.SIGINT:
        assert not Path(own).exists()
