"""Commands run one beside the other: their output in a file, their time told, nothing left behind when one fails.

A step runs under a leash, `python steps.py COMMAND…`, whose standard input is a pipe that only set-up holds: however
set-up ends, the pipe ends with it, and the leash kills the step with all its children.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

TAIL_LINES = 15


class SetupError(RuntimeError):
    """Set-up cannot go on; the message says why and what to do."""


class Step(NamedTuple):
    """A command under way, in a session of its own so that it can be ended with all its children."""

    title: str
    process: subprocess.Popen[bytes]
    log: Path
    began_s: float


def say(text: str) -> None:
    """One line to the user, at once."""
    print(f"set-up: {text}", flush=True)


def begin(title: str, command: list[str], folder: Path, env: dict[str, str] | None = None) -> Step:
    """Start `command` from the current folder with its output in `folder`."""
    log = folder / (title.split()[0].strip(",").lower() + ".log")
    say(f"{title} …")
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, __file__, *command],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
    return Step(title, process, log, time.monotonic())


def leash(command: list[str]) -> int:
    """Run a command until it ends, or until the other end of standard input is gone; returns its exit code."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_input, daemon=True).start()
    return process.wait()


def _end_with_input() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def finish(step: Step) -> None:
    """Wait for a step and tell its time; SetupError with the end of its output when it fails."""
    with step.process:  # leaving by an exception lets go of the leash
        code = step.process.wait()
    took_s = time.monotonic() - step.began_s
    if code != 0:
        raise SetupError(f"'{step.title}' failed with exit code {code} after {took_s:.0f} s:\n{tail(step.log)}")
    say(f"{step.title}: {took_s:.0f} s")


def run(title: str, command: list[str], folder: Path) -> None:
    """`begin`, then `finish`."""
    finish(begin(title, command, folder))


def end(step: Step) -> None:
    """Kill a step with all its children; harmless when it is over."""
    with step.process:
        pass  # leaving closes the pipe that the leash reads, and waits


def tail(log: Path) -> str:
    """The last lines of a step's output."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join("    " + line for line in lines[-TAIL_LINES:])


if __name__ == "__main__":
    sys.exit(leash(sys.argv[1:]))
