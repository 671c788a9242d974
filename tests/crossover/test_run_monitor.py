"""What `crossover run` does of the arbiter's answers while its jobs run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from crossover.commands import run
from crossover.commands.run import RunMonitor
from crossover.commands.waiting import Stall
from crossover.errors import ArbiterLost
from crossover.settings import Settings
from crossover.tokens import Phase


def watching(monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[RunMonitor, list[str]]:
    """A monitor of two jobs that have not come yet, and what it says."""
    seats = (SimpleNamespace(job="a", phase=Phase.ABSENT), SimpleNamespace(job="b", phase=Phase.ABSENT))
    status = SimpleNamespace(tokens=(SimpleNamespace(seats=seats),))
    monkeypatch.setattr(run, "status_at", lambda path, limit_s: status)
    said: list[str] = []
    monitor = RunMonitor(
        Settings(jobs=("a", "b")),
        str(folder / "host.sock"),
        SimpleNamespace(say=said.append),  # type: ignore[arg-type]
        SimpleNamespace(observe=lambda status: None),  # type: ignore[arg-type]
    )
    return monitor, said


def test_an_arbiter_that_is_slow_once_is_asked_again_to_let_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def excuse(path: Path, job: str, *, limit_s: float) -> int:
        asked.append(job)
        if len(asked) == 1:
            raise ArbiterLost("no answer in time")
        return 1

    monkeypatch.setattr(run, "excuse", excuse)
    monkeypatch.setattr(run, "stalls", lambda status: ())
    monitor, said = watching(monkeypatch, tmp_path)
    monitor.ended.add("a")
    monitor.look()
    assert said == []
    monitor.look()
    assert asked == ["a", "a"]  # b has not ended
    assert said == ["crossover: a has ended: the others go on without it"]


def test_what_cannot_be_seen_is_told_once_and_jobs_that_end_later_are_excused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stalls(status: object) -> list[Stall]:
        raise PermissionError("no look at /proc/7/stat")

    monkeypatch.setattr(run, "stalls", stalls)
    monkeypatch.setattr(run, "excuse", lambda path, job, *, limit_s: 1)
    monitor, said = watching(monkeypatch, tmp_path)
    for _ in range(2):
        monitor.look()
    assert said == ["crossover: not all turns are counted: no look at /proc/7/stat"]
    monitor.ended.add("a")
    monitor.look()
    assert said[1:] == ["crossover: a has ended: the others go on without it"]
