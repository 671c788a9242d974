"""Two real Horovod jobs on two emulated hosts: alone, side by side, and in turns under `crossover run`.

    python benchmarks/horovod_pair.py [--repeats 5] [--steps 30] [--batch N] [--rate 200mbit] [--json FILE]

A repeat runs the job alone, two of it side by side from two arbitrary phases (naive), two of it in turns, and the job
alone again: its costs are the means of both, since machines drift. Gain is
Σ t/T with t a job's step alone and T its step in the common part of the run; predicted is Σt/T* from compute, messages
and step alone of the same repeat. Weights must not depend on the sharing.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crossover.theory import JobCost, predicted

HERE = Path(__file__).resolve().parent
WARM_UP = 4
PROBE_BATCH = 320
INSIDE = "CROSSOVER_BENCH_HOSTS"


@dataclass(frozen=True)
class Length:
    """How many steps of how many samples."""

    steps: int
    batch: int


def command(folder: Path, seed: int, length: Length) -> list[str]:
    """One job: a rank on every host of the cluster around."""
    folder.mkdir()
    options = [f"--steps={length.steps}", f"--batch={length.batch}", f"--seed={seed}", f"--out={folder}"]
    return [
        sys.executable,
        "-m",
        "harness.lab.horovod_hosts",
        "--",
        sys.executable,
        str(HERE / "horovod_job.py"),
        *options,
    ]


def balanced_batch() -> int:
    """The batch whose computation takes as long as the messages: machines differ threefold in speed."""
    with tempfile.TemporaryDirectory() as scratch:
        (ranks,) = alone(Path(scratch), Length(WARM_UP + 2, PROBE_BATCH))
    ratio = max(r["exchange_s"] for r in ranks) / max(r["compute_s"] for r in ranks)
    return max(16, round(PROBE_BATCH * ratio / 16) * 16)


def told(folder: Path) -> list[dict]:
    """What the ranks of a job reported."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


def step_s(jobs: Sequence[list[dict]]) -> list[float]:
    """Each job's mean step over the time in which all ran, on its slowest rank."""
    begin_s = max(rank["ends_s"][WARM_UP] for job in jobs for rank in job)
    end_s = min(rank["ends_s"][-1] for job in jobs for rank in job)
    means = []
    for job in jobs:
        steps = [
            [b - a for a, b in itertools.pairwise(rank["ends_s"]) if begin_s <= a and b <= end_s + 1e-9] for rank in job
        ]
        means.append(max(statistics.fmean(own) for own in steps))
    return means


def alone(folder: Path, length: Length) -> list[list[dict]]:
    """The first job with the hosts to itself."""
    subprocess.run(command(folder / "solo", 1, length), check=True)
    return [told(folder / "solo")]


def naive(folder: Path, length: Length, delay_s: float) -> list[list[dict]]:
    """Two jobs at once, the second one later by `delay_s`."""
    folders = [folder / name for name in "ab"]
    first = subprocess.Popen(command(folders[0], 1, length))
    time.sleep(delay_s)
    second = subprocess.Popen(command(folders[1], 2, length))
    if first.wait() or second.wait():
        raise RuntimeError("a naive job failed")
    return [told(own) for own in folders]


def in_turns(folder: Path, length: Length) -> list[list[dict]]:
    """Two jobs under `crossover run`."""
    folders = [folder / name for name in "ab"]
    jobs = [f"{own.name}={' '.join(command(own, seed, length))}" for seed, own in enumerate(folders, start=1)]
    subprocess.run([sys.executable, "-m", "crossover", "run", *jobs], check=True, stdout=subprocess.DEVNULL)
    return [told(own) for own in folders]


def repeat(length: Length, chance: random.Random) -> dict:
    """One interleaved repeat."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / name for name in ("before", "naive0", "naive1", "turns", "after")]
        for folder in folders:
            folder.mkdir()
        before = alone(folders[0], length)
        beside = [naive(folder, length, 1 + chance.random()) for folder in folders[1:3]]
        turns = in_turns(folders[3], length)
        after = alone(folders[4], length)
    solo = [*before, *after]
    solo_s = statistics.fmean(own for job in solo for own in step_s([job]))
    slowest = {
        name: statistics.fmean(max(r[name] for r in job) for job in solo) for name in ("compute_s", "exchange_s")
    }
    cost = JobCost(slowest["compute_s"], slowest["exchange_s"], solo_s)
    if turns[0][0]["weights"] != solo[0][0]["weights"] or any(job[0]["weights"] != job[1]["weights"] for job in turns):
        raise RuntimeError("weights depend on the sharing or on the rank, which they must not")
    gains = [sum(solo_s / own for own in step_s(jobs)) for jobs in (*beside, turns)]
    best = predicted([cost, cost])
    return {
        "compute_s": cost.compute_s,
        "communication_s": cost.communication_s,
        "solo_s": cost.solo_s,
        "predicted": best.gain,
        "naive": gains[:2],
        "crossover": gains[2],
        "share_of_predicted": gains[2] / best.gain,
        "share_of_predicted_gain": (gains[2] - 1) / (best.gain - 1),
    }


def main() -> int:
    """Command line; starts itself again inside a cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, help="samples per step (default: computation as long as the messages)")
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    if not os.environ.get(INSIDE):
        prefix = [sys.executable, "-m", "harness.hosted", "--hosts=2", f"--rate={given.rate}", "--"]
        again = [*prefix, sys.executable, __file__, *sys.argv[1:]]
        return subprocess.run(again, cwd=HERE.parent, env={**os.environ, "PYTHONPATH": str(HERE.parent)}).returncode
    length = Length(given.steps, given.batch or balanced_batch())
    print(f"{length.steps} steps of {length.batch} samples", flush=True)
    chance, rows = random.Random(1), []
    for number in range(given.repeats):
        rows.append(repeat(length, chance))
        print(number + 1, {name: _rounded(value) for name, value in rows[-1].items()}, flush=True)
    beside = sorted(gain for row in rows for gain in row["naive"])
    shares = sorted(row["share_of_predicted"] for row in rows)
    gains = sorted(row["crossover"] for row in rows)
    print(f"crossover {_spread(gains)}, naive {_spread(beside)} over {len(beside)} phases")
    print(f"crossover / predicted {_spread(shares)}, n = {len(rows)}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} [{values[0]:.3f}, {values[-1]:.3f}]"


def _rounded(value: float | list[float]) -> float | list[float]:
    return [round(own, 3) for own in value] if isinstance(value, list) else round(value, 3)


if __name__ == "__main__":
    sys.exit(main())
