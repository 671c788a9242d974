"""Folders that are written to: proved writable before anything else happens."""

from __future__ import annotations

import itertools
import tempfile
from datetime import datetime
from pathlib import Path


class FolderError(ValueError):
    """A folder that cannot be written; the message names it and the remedy."""


def prepare_folder(folder: Path) -> Path:
    """Make `folder`, prove that it can be written, and return it. Raises: FolderError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise FolderError(f"cannot write to {folder} ({error.strerror}); name another folder with --out") from error


def new_folder(runs: Path) -> Path:
    """A folder of its own for a run that begins now, named by the time: two runs in one second get two.

    Raises: FolderError.
    """
    prepare_folder(runs)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        folder = runs / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("unreachable")


def set_latest(folder: Path) -> None:
    """Have `latest` beside `folder` lead to it; atomic, and whoever comes last wins. Raises: FolderError."""
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".latest-") as own:  # no other run has this name
            link = Path(own) / "latest"
            link.symlink_to(folder.name)
            link.replace(folder.with_name("latest"))
    except OSError as error:
        raise FolderError(f"cannot set {folder.with_name('latest')} ({error.strerror}); name a --out") from error
