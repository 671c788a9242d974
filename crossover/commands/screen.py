"""What `crossover run` shows: the jobs' lines under their names, and one line of progress below them on a terminal."""

import io
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TextIO

_COLOURS = (36, 33, 35, 32, 34, 31)  # cyan, yellow, magenta, green, blue, red
_ERASE_LINE = "\r\x1b[K"
_REDRAW_S = 1.0  # how often a job's own progress bar, which rewrites its line, is shown
_LONGEST_LINE = 65536


@dataclass(slots=True)
class LineSplitter:
    """Bytes in, whole lines out. A line that ends in a bare carriage return will be rewritten by the next one."""

    _rest: bytes = b""
    _shown_s: float = field(default=float("-inf"))

    def feed(self, data: bytes, now_s: float) -> list[str]:
        """The lines that are complete now; of those that were rewritten, at most one a second."""
        *whole, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n")
        lines = [_last_drawn(line) for line in whole]
        drawn, _, redrawn = self._rest[:-1].rpartition(b"\r")  # the last byte may be half of a line's end
        # a job may write for hours without an end of line
        if len(self._rest) > _LONGEST_LINE:
            lines.append(_last_drawn(self._rest))
            self._rest = b""
        elif drawn and now_s - self._shown_s >= _REDRAW_S:
            lines.append(_last_drawn(drawn))
            self._rest, self._shown_s = redrawn + self._rest[-1:], now_s
        return [line.decode("utf-8", "replace") for line in lines]

    def end(self) -> list[str]:
        """What came after the last line's end."""
        rest, self._rest = _last_drawn(self._rest), b""
        return [rest.decode("utf-8", "replace")] if rest else []


def _last_drawn(line: bytes) -> bytes:
    """What a terminal would still show of a line that was rewritten."""
    return next((part for part in reversed(line.split(b"\r")) if part.strip()), b"")


class Screen:
    """Prefixed lines on a stream; on a terminal in colour (unless NO_COLOR) and with a progress line.

    Jobs matter more than what is shown of them: a stream that takes no more (a closed terminal or pipe, a full disk)
    is given up with one line on standard error.
    """

    def __init__(self, stream: TextIO, names: Sequence[str]) -> None:
        self._stream: TextIO | None = stream
        self._is_terminal = stream.isatty()
        self._has_colour = self._is_terminal and not os.environ.get("NO_COLOR")
        width = max(map(len, names), default=0)
        self._prefixes = {
            name: self.paint(f"{name:<{width}} │", _COLOURS[index % len(_COLOURS)]) for index, name in enumerate(names)
        }
        self._progress = ""

    def job_line(self, name: str, line: str) -> None:
        """One line of a job's output."""
        self.say(f"{self._prefixes[name]} {line}".rstrip() + ("\x1b[0m" if self._has_colour and "\x1b" in line else ""))

    def say(self, text: str) -> None:
        """A line above the progress."""
        erase = _ERASE_LINE if self._progress else ""
        self._write(f"{erase}{text}\n{self._progress}")

    def show_progress(self, text: str) -> None:
        """Replace the progress line; nothing where the stream is no terminal."""
        if self._is_terminal:
            columns = shutil.get_terminal_size().columns
            cut = text if len(text) < columns else text[: columns - 2] + "…"
            self._progress = self.paint(cut, 2)
            self._write(_ERASE_LINE + self._progress)

    def end_progress(self) -> None:
        """Take the progress line away."""
        if self._progress:
            self._write(_ERASE_LINE)
            self._progress = ""

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            self._stream = None
            complain(f"standard output takes no more ({error}); the jobs go on")

    def paint(self, text: str, colour: int) -> str:
        """The text in an ANSI colour, where there is colour."""
        return f"\x1b[{colour}m{text}\x1b[0m" if self._has_colour else text


def open_standard_streams() -> None:
    """Make what is printed never an error: letters that the output's encoding lacks are replaced, and closed streams
    lead to nothing. Else the next files opened would take their numbers, and what is printed would land in a log or a
    socket."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", errors="replace"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def complain(text: str) -> None:
    """One line on standard error, where there is one that takes it."""
    with suppress(OSError, ValueError, AttributeError):  # closed, full, or never opened: there is nobody left to tell
        print(f"crossover: {text}", file=sys.stderr, flush=True)
