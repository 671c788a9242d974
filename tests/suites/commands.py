"""Command lines: in this process, and as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import psutil
from patience import patience_s

CHECKOUT = Path(__file__).resolve().parents[2]
MARK = "CROSSOVER_BENCH_TEST"
SHORT = ("--repeats", "1", "--steps", "2")
ONE_TRIAL = ("run", "quick", "--fabric", "native", "--strategy", "fixed-buckets", "--any-machine", *SHORT)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """What it told the user, with line breaks taken out."""
        return " ".join(self.err.split())


Command = Callable[..., Ended]


@dataclass(slots=True)
class Started:
    """A command line that runs in a process of its own; whatever it starts carries its mark."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *self.words],
            cwd=CHECKOUT,
            env={**os.environ, **self.environment, MARK: self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ended(self, timeout_s: float = patience_s(140.0)) -> Ended:
        """Wait for its end; kill it and all that it has started if that does not come."""
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            for process in self.alive():
                process.kill()
            raise
        return Ended(self.process.returncode, out, err)

    def alive(self) -> list[psutil.Process]:
        """Every living process with its mark."""
        return [process for process in psutil.process_iter() if self._has_marked(process.pid)]

    def _has_marked(self, pid: int) -> bool:
        try:
            # psutil reads all that a process has in its environment into a dictionary, in ten times the time
            return f"{MARK}={self.mark}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # it has ended, or is somebody else's
            return False

    def left(self, timeout_s: float = patience_s(40.0)) -> list[psutil.Process]:
        """Who is still alive after some time, ideally nobody at once: what ends with another process ends after it."""
        deadline_s = monotonic() + timeout_s
        while (left := self.alive()) and monotonic() < deadline_s:
            sleep(0.05)
        return left
