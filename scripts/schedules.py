"""Try many schedules of the virtual clock: .venv/bin/python -m scripts.schedules [NUMBER]

Each is a small cluster drawn by its seed: 1 to 6 workers, speeds, jitter, pauses, halts, slow links. A run asserts its
promise at every read, and fails where workers wait for each other.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from baselines.api import Consistency
from baselines.consistency.asp import Asp
from baselines.consistency.bsp import Bsp
from baselines.consistency.dynssp import DynSsp
from baselines.consistency.ssp import Ssp
from harness.asynchrony.cluster import Disturbances, Halt, VirtualCluster
from harness.asynchrony.virtual import VirtualRun

POLICIES: tuple[Consistency, ...] = (Bsp(), Asp(), Ssp(0), Ssp(1), Ssp(3), DynSsp(2), DynSsp(1, rule="constant"))
NOTHING = torch.zeros(1)


def drawn_cluster(rng: random.Random) -> VirtualCluster:
    """Unequal workers behind some link."""
    num_workers = rng.randint(1, 6)
    halts = tuple(
        Halt(worker=rng.randrange(num_workers), at_s=rng.uniform(0.0, 6.0), for_s=rng.choice((0.0, 1.0, 20.0)))
        for _ in range(rng.randint(0, 3))
    )
    return VirtualCluster(
        num_workers=num_workers,
        compute_s=1.0,
        alpha_s=rng.choice((0.0, 0.1, 1.0)),
        beta_s_per_byte=rng.choice((0.0, 0.05, 2.0)),
        disturbances=Disturbances(
            slowdowns=tuple(rng.choice((1.0, 1.0, 3.0, 30.0)) for _ in range(num_workers)),
            jitter=rng.choice((0.0, 0.5, 2.0)),
            pause_probability=rng.choice((0.0, 0.2)),
            pause_s=rng.choice((0.0, 5.0)),
            halts=halts,
            slow_links=tuple(rng.choice((1.0, 4.0)) for _ in range(num_workers)),
        ),
    )


def try_schedules(policy: Consistency, seeds: Iterable[int]) -> int:
    """How many schedules ended; all of them. Raises: DeadlockError, StaleReadError, ClockError for a defect."""
    num = 0
    for seed in seeds:
        rng = random.Random(seed)
        num_clocks = rng.randint(1, 6)
        run = VirtualRun(drawn_cluster(rng), policy, NOTHING, _no_gradient, num_clocks, num_bytes=1.0, seed=seed)
        for _ in run:
            pass
        if set(run.parameters.clocks) != {num_clocks}:
            raise AssertionError(f"{policy} with seed {seed} ends at clocks {run.parameters.clocks}")
        num += 1
    return num


def _no_gradient(worker: int, clock: int, values: Tensor) -> Tensor:
    return NOTHING


def main() -> int:
    """Split the number evenly over the policies."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    start_s, tried = time.monotonic(), 0
    for index, policy in enumerate(POLICIES):
        tried += try_schedules(policy, range(index, number, len(POLICIES)))
        print(f"{policy.card.name}: {tried} schedules in all, {time.monotonic() - start_s:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
