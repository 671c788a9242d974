"""Start the programs of lab_programs.py in enclosures, and see what is left of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from patience import patience_s

from crossover.supervisor import ending_with_me, supervised
from fabric.enclosure import enclosure, refusal

CHECKOUT = Path(__file__).parents[2]
PROGRAMS = str(Path(__file__).with_name("lab_programs.py"))


def skip_if_refused(*, rootless: bool | None) -> None:
    """Skip the calling test, with the kernel's reason, where labs cannot be enclosed."""
    if rootless is False and os.geteuid() != 0:
        pytest.skip("not root")
    reason = refusal(rootless=rootless)
    if reason is not None:
        pytest.skip(f"the kernel forbids the emulated fabric: {reason}")


def environment() -> dict[str, str]:
    """Return an environment in which a program finds the checkout's packages and what all tests share."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests")])}


def run_program(name: str, num_hosts: int, rate: str, *, rootless: bool | None = None) -> Any:
    """Run a program in a lab on the emulated fabric and return its result."""
    skip_if_refused(rootless=rootless)
    lab = [sys.executable, PROGRAMS, name, "emulated", str(num_hosts), rate]
    command = [*supervised(ending_with_me()), *enclosure(rootless=rootless), *supervised(), *lab]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=patience_s(120), env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def processes(token: str) -> dict[int, list[str]]:
    """Return the command line of every process that has `token` as an argument."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            arguments = _arguments(entry)
            if token in arguments:
                found[int(entry.name)] = arguments
    return found


def _arguments(entry: Path) -> list[str]:
    try:
        return entry.joinpath("cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []  # it ended after the listing


def networks_in_use() -> set[str]:
    """Return the network namespace of every process."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(os.readlink(entry / "ns" / "net"))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it ended after the listing, or it is another user's
    return found


def wait_until_unused(networks: set[str], timeout_s: float = patience_s(60.0)) -> set[str]:
    """Wait for the networks to have no process, and return those that have.

    A process that ends loses its command line some time before its namespaces.
    """
    deadline_s = time.monotonic() + timeout_s
    while (left := networks & networks_in_use()) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return left


def wait_until_gone(token: str, timeout_s: float = patience_s(60.0)) -> dict[int, list[str]]:
    """Wait for the processes with `token` to end, and return those that do not."""
    deadline_s = time.monotonic() + timeout_s
    while (left := processes(token)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return left
