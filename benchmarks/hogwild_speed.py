"""Hogwild! on sparse logistic regression: seconds of one worker over seconds of several, and their losses.

    python benchmarks/hogwild_speed.py [--workers 2] [--samples 20000] [--epochs 5] [--repeats 7]

Run it where the workers have a core each. Runs of one and of several workers take turns, and a repeat is a pair of
them with a seed of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics

from baselines.consistency.hogwild import Hogwild
from harness.problems.shared_memory import SparseSamples, train_shared


def main() -> None:
    """Time pairs and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    problem = SparseSamples.drawn(options.samples, num_features=10_000, num_nonzeros=10, seed=1)
    speed_ups, excesses, alone_s = [], [], []
    for repeat in range(options.repeats):
        runs = [
            train_shared(problem, Hogwild(), num_workers=workers, num_epochs=options.epochs, rate=0.5, seed=repeat)
            for workers in (1, options.workers)
        ]
        serial, parallel = runs
        alone_s.append(serial.seconds)
        speed_ups.append(serial.seconds / parallel.seconds)
        excesses.append(parallel.losses[-1] / serial.losses[-1] - 1)
    print(f"cores: {len(os.sched_getaffinity(0))}  workers: {options.workers}  n: {options.repeats}")
    print(f"one worker: median {statistics.median(alone_s):.2f} s")
    print(f"speed-up: median {statistics.median(speed_ups):.2f}, {min(speed_ups):.2f} to {max(speed_ups):.2f}")
    print(
        f"loss above the serial run's: at most {100 * max(excesses):+.2f} %, median {statistics.median(excesses):+.2%}"
    )


if __name__ == "__main__":
    main()
