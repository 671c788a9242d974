"""Commands run one beside the other: their output in a file, their time told, nothing left behind when one fails.

A step runs under the supervisor of `crossover`, whose standard input is a pipe that only set-up holds: however set-up
ends, the pipe ends with it, and the supervisor kills the step with all its children.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

TAIL_LINES = 15
SUPERVISOR = Path(__file__).resolve().parents[1] / "crossover" / "supervisor.py"  # set-up has no packages yet


class SetupError(RuntimeError):
    """Set-up cannot go on; the message says why and what to do."""


class SetupStep(NamedTuple):
    """A command under way, in a session of its own so that it can be ended with all its children."""

    title: str
    process: subprocess.Popen[bytes]
    log: Path
    began_s: float


def say(text: str) -> None:
    """One line to the user, at once."""
    print(f"set-up: {text}", flush=True)


def begin(title: str, command: list[str], folder: Path, env: dict[str, str] | None = None) -> SetupStep:
    """Start `command` from the current folder with its output in `folder`."""
    log = folder / (title.split()[0].strip(",").lower() + ".log")
    say(f"{title} …")
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR), "--control", "--", *command],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
    return SetupStep(title, process, log, time.monotonic())


def finish(step: SetupStep) -> None:
    """Wait for a step and tell its time; SetupError with the end of its output when it fails."""
    with step.process:  # leaving by an exception lets go of the supervisor's pipe
        code = step.process.wait()
    took_s = time.monotonic() - step.began_s
    if code != 0:
        raise SetupError(f"'{step.title}' failed with exit code {code} after {took_s:.0f} s:\n{tail(step.log)}")
    say(f"{step.title}: {took_s:.0f} s")


def run(title: str, command: list[str], folder: Path) -> None:
    """`begin`, then `finish`."""
    finish(begin(title, command, folder))


def end(step: SetupStep) -> None:
    """Kill a step with all its children; harmless when it is over."""
    with step.process:
        pass  # leaving closes the pipe that the supervisor reads, and waits


def tail(log: Path) -> str:
    """The last lines of a step's output."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join("    " + line for line in lines[-TAIL_LINES:])
