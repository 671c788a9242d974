"""JSON files, read with suspicion and written whole.

A file that a user names may be anything: a pipe that never ends, a device, 5,000-digit numbers, brackets nested a
million deep. Every reader of this project's own files comes through here, so that each of these is one clear error.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from results.codec import CodecError

MOST_BYTES = 256_000_000  # a record with every rank's spans is some 20 MB


def read_json(path: Path, *, most_bytes: int = MOST_BYTES) -> Any:
    """The value in a JSON file.

    Raises: FileNotFoundError; CodecError if it is no regular file, larger than `most_bytes`, or not JSON.
    """
    fd = _open(path)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise CodecError(f"{path} is not a regular file")
        if found.st_size > most_bytes:
            raise CodecError(f"{path} has {found.st_size:,} bytes, more than the {most_bytes:,} that are read")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return parse_json(file.read(most_bytes))
    finally:
        os.close(fd)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. NaN and ∞ are not JSON. Raises: CodecError."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:  # ValueError: also bad UTF-8, and integers of too many digits
        raise CodecError(f"not JSON ({error})") from error


def write_json(path: Path, value: Any) -> None:
    """Write plain JSON to `path`, whole or not at all: what is there stays until the new text is on the disk.

    Raises: OSError where the folder cannot be made or written.
    """
    text = json.dumps(value, indent=1, allow_nan=False)
    with replacing(path) as file:
        file.write(text.encode() + b"\n")


def followed(path: Path) -> Path:
    """`path` with its links followed, for a file to be put there: a link's target is replaced, not the link.

    Raises: OSError if what is there is no regular file.
    """
    place = path.resolve()
    if place.exists() and not place.is_file():
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return place


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path`, or of what a link there leads to, once the body has ended well,
    and else is deleted.

    What is there stays until the new bytes are on the disk. Only the user may read it.
    Raises: OSError where the folder cannot be made or written, or something else than a regular file is there.
    """
    place = followed(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe without a writer would block
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise CodecError(f"{path} cannot be opened ({error})") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")
