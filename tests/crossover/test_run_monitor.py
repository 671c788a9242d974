"""What `crossover run` does of the arbiter's answers while its jobs run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from crossover.commands import run
from crossover.commands.run import RunMonitor
from crossover.errors import ArbiterLost
from crossover.settings import Settings
from crossover.tokens import Phase


def test_an_arbiter_that_is_slow_once_is_asked_again_to_let_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seats = (SimpleNamespace(job="a", phase=Phase.ABSENT), SimpleNamespace(job="b", phase=Phase.ABSENT))
    status = SimpleNamespace(tokens=(SimpleNamespace(seats=seats),))
    asked: list[str] = []

    def excuse(path: Path, job: str, *, limit_s: float) -> int:
        asked.append(job)
        if len(asked) == 1:
            raise ArbiterLost("no answer in time")
        return 1

    monkeypatch.setattr(run, "status_at", lambda path, limit_s: status)
    monkeypatch.setattr(run, "excuse", excuse)
    monkeypatch.setattr(run, "stalls", lambda status: ())
    said: list[str] = []
    monitor = RunMonitor(
        Settings(jobs=("a", "b")),
        str(tmp_path / "host.sock"),
        SimpleNamespace(say=said.append),  # type: ignore[arg-type]
        SimpleNamespace(observe=lambda status: None),  # type: ignore[arg-type]
    )
    monitor.ended.add("a")
    monitor.look()
    assert monitor.is_watching
    assert said == []
    monitor.look()
    assert asked == ["a", "a"]  # b has not ended
    assert said == ["crossover: a ended before it came: the others go on without it"]
