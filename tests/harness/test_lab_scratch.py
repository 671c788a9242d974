"""A lab's folder: its owner is whoever holds its lock, and what a dead owner has left is deleted."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fabric.api import FabricKind, FabricSpec
from harness.lab.launch import CHECKOUT, LabHandle
from harness.lab.scratch import PREFIX, Scratch

OWNER = """
import sys
from harness.lab.scratch import Scratch
scratch = Scratch()
print(scratch.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Folders of this test alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    tempfile.tempdir = None


def owner() -> subprocess.Popen[str]:
    """Another process that holds a folder until its input ends."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.Popen([sys.executable, "-c", OWNER], text=True, env=environment, **streams)


def test_a_live_owners_folder_is_left_alone_and_a_killed_ones_is_deleted() -> None:
    with owner() as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        mine = Scratch()
        assert theirs.is_dir()
        process.kill()
        process.wait()
        assert theirs.is_dir()
        other = Scratch()
        assert not theirs.exists()
        assert mine.path.is_dir()
    for scratch in (mine, other, other):
        scratch.remove()
    assert not mine.path.exists()


def test_what_is_no_labs_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "crossover-bench-results").mkdir()
    (tmp_path / f"{PREFIX}file").write_text("")
    (tmp_path / "target").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "target")
    Scratch().remove()
    kept = {"crossover-bench-results", f"{PREFIX}file", "target", f"{PREFIX}link"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_owners_that_start_at_once_take_nothing_from_each_other() -> None:
    processes = [owner() for _ in range(4)]
    paths = [Path(process.stdout.readline().strip()) for process in processes if process.stdout is not None]
    assert len({path for path in paths if path.is_dir()}) == len(processes)
    for process in processes:
        process.communicate("")
    Scratch().remove()
    assert not any(path.exists() for path in paths)


def test_without_a_descriptor_no_folder_is_made_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tempfile.gettempdir()  # looks whether it can write
    opened = os.open
    answers = iter([OSError(errno.EMFILE, "Too many open files")])

    def refuse_once(*given: Any, **more: Any) -> int:
        """A second try would go well, and leave the first one's folder."""
        for error in answers:
            raise error
        return opened(*given, **more)

    monkeypatch.setattr(os, "open", refuse_once)
    with pytest.raises(OSError, match="Too many open files"):
        Scratch()
    assert list(tmp_path.iterdir()) == []


def test_a_lab_that_cannot_be_started_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        LabHandle(FabricSpec(kind=FabricKind.NATIVE, num_hosts=2, rate_bps=None))
    assert list(tmp_path.iterdir()) == []
