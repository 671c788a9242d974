"""Processes of a test end with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from forks import Fork, end

from harness.problems.shared_memory import forked as fork


@pytest.fixture
def forked() -> Iterator[Fork]:
    """Run something in a process of its own, which ends with the test."""
    pids: list[int] = []

    def start(run: Callable[[], None]) -> int:
        pids.append(fork(run))
        return pids[-1]

    yield start
    for pid in pids:
        end(pid)
