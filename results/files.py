"""JSON files, read with suspicion and written whole.

A file that a user names may be anything: a pipe that never ends, a device, 5,000-digit numbers, brackets nested a
million deep. Every reader of this project's own files comes through here, so that each of these is one clear error.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

from results.bounds import check_numbers
from results.codec import CodecError, from_jsonable

T = TypeVar("T")
MOST_BYTES = 256_000_000  # a record with every rank's spans is some 20 MB
FIRST_BYTES = 4096  # tell what a file is
FIRST_FIELD = re.compile(rb'\s*\{\s*(?:"(\w*)"\s*:|\})')
# What moves a terminal's cursor, changes its colours or the order of letters, or has no encoding.
UNSAFE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
UNSAFE_TEXT = re.compile(f"[{UNSAFE}]")
MAYBE_UNSAFE_JSON = re.compile(  # in the file's bytes, where it is escaped or UTF-8
    rb"\\[bfr]|\\u(?:00[01789]|d[89a-f]|20[0246])|\x7f|\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xaa-\xae]|\xe2\x81[\xa6-\xa9]",
    re.IGNORECASE,
)


def read_as(kind: type[T], path: Path) -> T:
    """The `kind` in a JSON file, its numbers within their bounds.

    Raises: FileNotFoundError; CodecError if there is none in it.
    """
    value = from_jsonable(kind, read_json(path, fields=field_names(kind)))
    check_numbers(value)
    return value


def field_names(kind: Any) -> tuple[str, ...]:
    """What the JSON of a `kind` may begin with."""
    return tuple(own.name for own in dataclasses.fields(kind))


def plain(text: str) -> str:
    """`text` as a terminal and a page can show it: control characters and lone surrogates as they are escaped."""
    return UNSAFE_TEXT.sub(lambda found: ascii(found[0])[1:-1], text)


def read_json(path: Path, *, most_bytes: int = MOST_BYTES, fields: Collection[str] = ()) -> Any:
    """The value in a JSON file, its texts `plain`. It must begin with one of `fields`, if there are any.

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
            begin = file.read(FIRST_BYTES)
            if fields:
                _check_begin(begin, fields)
            file.seek(0)
            content = file.read(most_bytes)
        value = parse_json(content)
        return _plain(value) if MAYBE_UNSAFE_JSON.search(content) else value
    finally:
        os.close(fd)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. NaN and ∞ are not JSON. Raises: CodecError."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:  # ValueError: also bad UTF-8, and integers of too many digits
        raise CodecError(f"not JSON ({error})") from error


def _check_begin(begin: bytes, fields: Collection[str]) -> None:
    found = FIRST_FIELD.match(begin)
    if found is None or (found[1] or b"").decode() not in {"", *fields}:
        raise CodecError(f"it begins with {begin[:40]!r}, and not with one of the fields {', '.join(fields)}")


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {plain(name): _plain(item) for name, item in value.items()} if isinstance(value, dict) else value


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
