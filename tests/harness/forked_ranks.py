"""Ranks that are forks of the tests' process: importing torch takes longer than all that they do."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn

from crossover.supervisor import die_with_parent

FORK = get_context("fork")


def forked(run: Callable[[int], object], num_ranks: int) -> list[tuple[int | None, Any]]:
    """By rank, the process's exit code and what `run(rank)` has returned; None where it has not."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])  # torch imports with its first optimizer what it has not before
    ranks, told = [], []
    try:
        for rank in range(num_ranks):
            reader, writer = FORK.Pipe(duplex=False)
            ranks.append(FORK.Process(target=_live, args=(os.getpid(), run, rank, writer)))
            ranks[-1].start()
            writer.close()  # so that a rank that dies is heard
            told.append(reader)
        answers = [_received(reader) for reader in told]
        for process in ranks:
            process.join()
    finally:
        for process in ranks:
            process.kill()
            process.join()
    return [(process.exitcode, answer) for process, answer in zip(ranks, answers, strict=True)]


def _live(parent: int, run: Callable[[int], object], rank: int, told: Connection) -> None:
    die_with_parent(parent)
    gc.freeze()  # what the tests have made is theirs
    warnings.resetwarnings()  # errors in tests
    told.send(run(rank))


def _received(reader: Connection) -> Any:
    with reader:
        try:
            return reader.recv()
        except EOFError:
            return None
