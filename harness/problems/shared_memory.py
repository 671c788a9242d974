"""Hogwild! on sparse logistic regression: processes of one host that share the parameters' memory, without locks.

found = train_shared(problem, Hogwild(), num_workers=2, num_epochs=5, rate=0.5)
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from baselines.consistency.hogwild import Hogwild

Floats = NDArray[np.float64]


class SharedMemoryError(RuntimeError):
    """A worker's process has failed."""


@dataclass(frozen=True, slots=True)
class SparseSamples:
    """Samples with few features each: `columns` and `values` [samples, nonzeros], `labels` [samples] of −1 and 1."""

    columns: NDArray[np.int64]
    values: Floats
    labels: Floats
    num_features: int

    @classmethod
    def drawn(cls, num_samples: int, num_features: int, num_nonzeros: int, seed: int) -> SparseSamples:
        """Labels of a random linear rule, one in twenty of them wrong."""
        rng = np.random.default_rng(seed)
        columns = np.stack([rng.choice(num_features, num_nonzeros, replace=False) for _ in range(num_samples)])
        values = rng.standard_normal((num_samples, num_nonzeros)) / np.sqrt(num_nonzeros)
        rule = rng.standard_normal(num_features)
        labels = np.sign((rule[columns] * values).sum(1))
        labels[rng.random(num_samples) < 0.05] *= -1
        return cls(columns, values, labels, num_features)

    def loss(self, weights: Floats) -> float:
        """The mean logistic loss."""
        margins = self.labels * (weights[self.columns] * self.values).sum(1)
        return float(np.logaddexp(0.0, -margins).mean())


@dataclass(frozen=True, slots=True)
class SharedRun:
    """What training in shared memory gave: `losses` after each epoch, `seconds` without looking at them."""

    weights: Floats
    losses: tuple[float, ...]
    seconds: float


def train_shared(
    problem: SparseSamples, rule: Hogwild, *, num_workers: int, num_epochs: int, rate: float, seed: int = 0
) -> SharedRun:
    """Every worker goes over its part of the samples `num_epochs` times; they meet between two epochs.

    Raises: SharedMemoryError, ValueError.
    """
    if not 1 <= num_workers <= len(problem.labels):
        raise ValueError(f"num_workers is {num_workers}; use 1 or more, and no more than samples")
    memory = mmap.mmap(-1, problem.num_features * 8)  # shared with children, and gone with the last of them
    # A view, so children write into the parent's numbers without a message.
    weights: Floats = np.frombuffer(memory, dtype=np.float64)
    losses, seconds = [], 0.0
    # Processes per epoch: on a busy machine one worker could else be an epoch ahead of another.
    for epoch in range(num_epochs):
        start_s, step = perf_counter(), rate * rule.decay**epoch
        parts = [np.arange(own, len(problem.labels), num_workers) for own in range(num_workers)]
        dice = [np.random.default_rng((seed, epoch, own)) for own in range(num_workers)]
        pids = [
            forked(partial(_work, problem, weights, own.permutation(part), step))
            for own, part in zip(dice, parts, strict=True)
        ]
        # Meeting between epochs makes the step's decay the same for all workers.
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        if any(codes):
            raise SharedMemoryError(f"workers of epoch {epoch} ended with exit codes {codes}")
        seconds += perf_counter() - start_s
        losses.append(problem.loss(weights))
    return SharedRun(weights.copy(), tuple(losses), seconds)


def forked(run: Callable[[], None]) -> int:
    """The number of a process that runs this and nothing else; it exits with 1 if that raises."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        run()
        code = 0
    finally:
        # Past the test runner's or the suite's own clean-up, which is the parent's.
        os._exit(code)


def _work(problem: SparseSamples, weights: Floats, samples: NDArray[np.int64], step: float) -> None:
    for sample in samples:
        columns, values, label = problem.columns[sample], problem.values[sample], problem.labels[sample]
        margin = label * (weights[columns] @ values)
        weights[columns] += (step * label / (1.0 + np.exp(margin))) * values  # read, add, write: nobody is asked
