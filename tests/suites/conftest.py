"""The command line as a function, and data of the user's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Command, Ended
from own_data import make_corpus, make_images
from single_thread import one_thread as one_thread

from suites.cli import main


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Run a command line in this process, in an empty folder, on a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str | Path) -> Ended:
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # argparse's own way
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for temporary files whose name is short: sockets below it may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="cb-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("text") / "corpus")
