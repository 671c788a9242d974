"""Folders that are written to: proved writable before anything else happens."""

from __future__ import annotations

import tempfile
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


def set_latest(folder: Path) -> None:
    """Have `latest` beside `folder` lead to it; atomic."""
    link = folder.with_name(".latest.part")
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    link.replace(folder.with_name("latest"))
