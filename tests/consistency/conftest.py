"""Tensors here are tiny: one thread is faster than two. And processes of a test end with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from forks import Fork, end, fork


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
