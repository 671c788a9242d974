"""Our fixed buckets against torch DDP with the same buckets: the ratio of step times, pair by pair.

    python benchmarks/ddp_pair.py [--network resnet20] [--mib 0.25 1] [--rate 200mbit 1gbit none] [--pairs 10]

Two emulated hosts, CPU, one trial after the other in turns, each pair in another order. A pair's ratio is that of the
medians of its trials' steps; what is printed is the geometric mean of n pairs with its 95 % interval (Student's t on
logarithms).
"""

from __future__ import annotations

import argparse
import math
import statistics

from scipy import stats

from fabric.api import FabricKind, FabricSpec
from fabric.rates import parse_rate
from harness.lab.launch import LabHandle
from harness.lab.messages import Ending, Task
from harness.trial import Job, Trial
from models.workload import WorkloadSpec

NUM_WARMUP = 5
MIB = 1024 * 1024


def step_s(lab: LabHandle, fabric: FabricSpec, job: Job, num_steps: int) -> float:
    """The median step of one trial, the slowest rank's. Raises: RuntimeError if it fails."""
    trial = Trial(
        suite="benchmark", cell="pair", jobs=(job,), fabric=fabric, num_warmup=NUM_WARMUP, num_steps=num_steps
    )
    answer = lab.ask(Task(trial=trial))
    if answer.ending is not Ending.DONE:
        raise RuntimeError(f"{job.system}: {answer.reason}")
    return max(statistics.median(rank.step_times_s[NUM_WARMUP:]) for rank in answer.ranks)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Step time of fixed buckets over torch DDP's.")
    parser.add_argument("--network", default="resnet20")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--mib", type=float, nargs="+", default=[25.0, 1.0, 0.25])
    parser.add_argument("--rate", nargs="+", default=["200mbit", "1gbit", "none"])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    workload = WorkloadSpec(network=given.network, batch_size=given.batch)
    for rate in given.rate:
        rate_bps = None if rate == "none" else parse_rate(rate)
        fabric = FabricSpec(kind=FabricKind.EMULATED, num_hosts=2, rate_bps=rate_bps)
        with LabHandle(fabric) as lab:
            for mib in given.mib:
                buckets = (
                    f"fixed-buckets(bucket_bytes={round(mib * MIB)}, first_bucket_bytes={round(min(mib, 1) * MIB)})"
                )
                ours = Job(name="a", workload=workload, strategy=buckets)
                ddp = Job(name="a", workload=workload, system=f"torch-ddp(bucket_mb={mib})")
                logs = []
                for pair in range(given.pairs):
                    order = (ours, ddp) if pair % 2 else (ddp, ours)
                    times_s = {job.system: step_s(lab, fabric, job, given.steps) for job in order}
                    logs.append(math.log(times_s[ours.system] / times_s[ddp.system]))
                half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
                low, mid, high = (math.exp(statistics.fmean(logs) + at * half) for at in (-1, 0, 1))
                said = f"{mid:.3f} [{low:.3f}, {high:.3f}]"
                print(f"{given.network} {rate:>8} {mib:5g} MiB  ratio {said}  n = {len(logs)}", flush=True)


if __name__ == "__main__":
    main()
