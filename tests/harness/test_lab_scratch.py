"""A lab's folder: its owner is whoever holds its lock, and what a dead owner has left is deleted."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crossover.arbiter.listening import check_path
from fabric.api import FabricError, FabricKind, FabricSpec
from harness.doctor import check_sockets
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
def temporary(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Folders of this test alone."""
    monkeypatch.setenv("TMPDIR", str(scratch))
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


def test_what_is_no_labs_folder_is_left_alone(scratch: Path) -> None:
    (scratch / "crossover-bench-results").mkdir()
    (scratch / f"{PREFIX}file").write_text("")
    (scratch / "target").mkdir()
    (scratch / f"{PREFIX}link").symlink_to(scratch / "target")
    Scratch().remove()
    kept = {"crossover-bench-results", f"{PREFIX}file", "target", f"{PREFIX}link"}
    assert {path.name for path in scratch.iterdir()} == kept


def test_sockets_fit_into_a_folder_wherever_temporary_files_lie(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TMPDIR may be long under Slurm or CI; doctor says where the sockets lie instead."""
    long = scratch / ("x" * 60)
    long.mkdir()
    for folder, said in ((scratch, f"in {scratch}"), (long, f"TMPDIR={long} is too long")):
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        made = Scratch()
        path = Path(tempfile.mkdtemp(dir=made.path)) / "arbiter99"
        check_path(path)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
        assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
        (finding,) = check_sockets()
        assert finding.ok
        assert said in finding.detail
        made.remove()
        assert not made.path.exists()


def test_without_a_short_folder_the_variable_is_named(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(scratch / ("x" * 60)))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(FabricError, match=r"TMPDIR=.*xxx is too long for sockets, .* set TMPDIR to a short folder"):
        Scratch()
    (finding,) = check_sockets()
    assert not finding.ok


def test_owners_that_start_at_once_take_nothing_from_each_other() -> None:
    processes = [owner() for _ in range(4)]
    paths = [Path(process.stdout.readline().strip()) for process in processes if process.stdout is not None]
    assert len({path for path in paths if path.is_dir()}) == len(processes)
    for process in processes:
        process.communicate("")
    Scratch().remove()
    assert not any(path.exists() for path in paths)


def test_without_a_descriptor_no_folder_is_made_again_and_again(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert list(scratch.iterdir()) == []


def test_a_lab_that_cannot_be_started_leaves_no_folder(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        LabHandle(FabricSpec(kind=FabricKind.NATIVE, num_hosts=2, rate_bps=None))
    assert list(scratch.iterdir()) == []
