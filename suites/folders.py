"""Folders that are written to: proved writable before anything else happens."""

from __future__ import annotations

import argparse
import fcntl
import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from results.files import followed, replacing


class FolderError(ValueError):
    """A folder that cannot be written; the message names it and the remedy."""


def named_path(text: str) -> Path:
    """The path in an option, for argparse; `Path` would read an empty text as the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("'' names nothing; name a path, or . for the current folder")
    return Path(text)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other runs out of `folder` while the body runs; however the process ends, the kernel lets go of it.

    Raises: FolderError if another run holds it.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderError(
                f"another run writes to {folder} now; wait for its end, or name another folder with --out"
            ) from None
        except OSError:  # some network file systems lock no folders: then nobody can tell
            pass
        yield
    finally:
        os.close(fd)


def prepare_folder(folder: Path) -> Path:
    """Make `folder`, prove that it can be written, and return it. Raises: FolderError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise FolderError(f"cannot write to {folder} ({error.strerror}); name another folder with --out") from error


def write_page(path: Path, text: str) -> None:
    """Write a page for others to read, whole or not at all. Raises: FolderError."""
    try:
        with replacing(path) as file:
            file.write(text.encode())
            os.fchmod(file.fileno(), 0o644)
    except OSError as error:
        raise FolderError(f"cannot write {path} ({error.strerror}); name another file with --out") from error


def prepare_file(path: Path) -> Path:
    """Make the folder of `path`, prove that a file can be put there, and return the path with its links followed.

    What is there stays. Raises: FolderError.
    """
    try:
        place = followed(path)
    except OSError as error:
        raise FolderError(f"cannot write {path} ({error.strerror}); name another file with --out") from error
    prepare_folder(place.parent)
    return place


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
