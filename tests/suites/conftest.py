"""The command line as a function, and data of the user's own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from commands import Command, Ended
from own_data import make_corpus, make_images

from harness.lab.labs import OnEvent
from harness.lab.messages import Answer, Task
from suites.cli import main


class SharedLabs:
    """The labs that all tests share as a command's own, which stay open when it ends."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def ask(self, task: Task, on_event: OnEvent) -> Answer:
        """Have one task done; the first one starts a lab."""
        answer: Answer = self._request.getfixturevalue("labs").ask(task, on_event)
        return answer

    def close(self) -> None:
        """Nothing: tests to come ask them too."""


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Command:
    """Run a command line in this process, in an empty folder, on a wide terminal, with the labs that tests share."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("harness.bench.Labs", partial(SharedLabs, request))

    def run(*words: str | Path) -> Ended:
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # argparse's own way
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("text") / "corpus")
