"""What a run has left: processes by a token in their environment, files by their folder."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from patience import patience_s

TOKEN = "CROSSOVER_FAULT_TOKEN"
SOON_S = patience_s(60.0)  # a bound against hanging, not a speed: the machine may be busy
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGHUP, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Marked:
    """A run under test: every process that it starts, however deep, inherits the token."""

    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, TOKEN: self.token, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}

    def processes(self) -> list[int]:
        """Process ids of all who carry the token and live."""
        wanted = f"{TOKEN}={self.token}".encode()
        return [pid for pid in numbers() if wanted in read(pid, "environ").split(b"\0") and state(pid) not in "ZX"]

    def wait_until_gone(self) -> list[int]:
        """Those who are still there after a while; ideally none."""
        deadline_s = time.monotonic() + SOON_S
        while (left := self.processes()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return left

    def networks(self) -> set[str]:
        """The network namespaces that its processes are in, but for this test's own."""
        return networks_of(self.processes()) - {os.readlink("/proc/self/ns/net")}


def networks_of(pids: list[int]) -> set[str]:
    """The network namespaces of those who may be looked at."""
    found = set()
    for pid in pids:
        with suppress(OSError):  # ended, or another user's
            found.add(os.readlink(f"/proc/{pid}/ns/net"))
    return found


@contextmanager
def marked_run() -> Iterator[Marked]:
    """A token; whoever still carries it at the end is killed, so that a failed test harms no other."""
    marked = Marked()
    try:
        yield marked
    finally:
        for pid in marked.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def numbers() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read(pid: int, name: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def state(pid: int) -> str:
    fields = read(pid, "stat").rpartition(b")")[2].split()
    return fields[0].decode() if fields else "X"


def parent(pid: int) -> int:
    fields = read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def words(pid: int) -> str:
    return read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")


def torn(folder: Path) -> list[Path]:
    """Records that are not whole, and files that were on their way to be one."""
    found = [path for path in folder.rglob(".*") if path.name.endswith(".part")]
    for path in folder.rglob("*.json"):
        try:
            json.loads(path.read_text())
        except ValueError:
            found.append(path)
    return found
