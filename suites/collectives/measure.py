"""Runs the rank programs of all libraries on emulated hosts, and says what their times come to.

Algorithm bandwidth is size over time. Bus bandwidth is what each link carried in one direction over time, which can be
held against the line: algorithm bandwidth times 2(P−1)/P for all-reduce, (P−1)/P for all-gather and all-to-all, 1 for
broadcast and point-to-point (nccl-tests, PERFORMANCE.md). α and β are fitted to all sizes by relative errors.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fabric.cluster import FabricError, FabricSpec
from harness.calibrate import LinkModel, fit_link
from harness.mpi.library import why_no_mpi
from suites.collectives.libraries import Operation
from suites.collectives.ranks import SECONDS

LIBRARIES = ("gloo", "mpi", "horovod", "nccl")
LARGE_BYTES = 25_000_000
HOSTED = (sys.executable, "-m", "fabric.hosted")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """One operation of a library at one size, over its rows; bandwidths are of the median, in bit/s."""

    library: str
    operation: Operation
    num_bytes: int
    median_s: float
    lowest_s: float
    highest_s: float
    algorithm_bps: float
    bus_bps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What all sizes of an operation come to; the share of the line is that of 25 MB (None: no line, or left out)."""

    library: str
    operation: Operation
    link: LinkModel
    share_of_line: float | None


def bus_factor(operation: Operation, num_ranks: int) -> float:
    """Bytes that the busiest link carries in one direction, over the size."""
    ring = (num_ranks - 1) / num_ranks
    return {
        Operation.ALL_REDUCE: 2 * ring,
        Operation.ALL_GATHER: ring,
        Operation.ALL_TO_ALL: ring,
        Operation.BROADCAST: 1.0,
        Operation.POINT_TO_POINT: 1.0,
    }[operation]


def why_not(library: str, num_hosts: int) -> str | None:
    """The reason and the remedy where a library cannot be measured here, or None."""
    if library == "mpi":
        return why_no_mpi()
    if library == "horovod" and importlib.util.find_spec("horovod") is None:
        return "Horovod is not installed; install a C++ compiler and cmake, then run make setup again"
    if library == "nccl":
        import torch

        num_gpus = torch.cuda.device_count()
        if num_gpus < num_hosts:
            return f"NCCL needs a GPU for each of {num_hosts} ranks, and there are {num_gpus}; run it where there are"
    return None


def run_library(library: str, spec: FabricSpec, seconds: float = SECONDS) -> Mapping[str, Any]:
    """What its ranks measured. Raises: FabricError if they ended badly, with what they said."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "timed.json"
        ranks = [sys.executable, "-m", "suites.collectives.ranks", library, str(out), str(seconds)]
        done = subprocess.run(command_line(library, spec, ranks), capture_output=True, text=True, check=False)
        if done.returncode != 0 or not out.exists():
            said = (done.stderr.strip() or done.stdout.strip())[-600:]
            raise FabricError(f"{library} on {spec.num_hosts} hosts ended with code {done.returncode}: {said}")
        told: Mapping[str, Any] = json.loads(out.read_text())
    return told


def command_line(library: str, spec: FabricSpec, ranks: Sequence[str]) -> list[str]:
    """What starts a rank on every host, as the library's own launcher would."""
    if library == "nccl":
        return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(spec.num_hosts), *ranks[1:]]
    rate = "none" if spec.rate_bps is None else f"{spec.rate_bps:.0f}bit"
    hosted = [*HOSTED, "--hosts", str(spec.num_hosts), "--rate", rate]
    launchers = {"mpi": "harness.mpi.launch", "horovod": "harness.lab.horovod_hosts"}
    if library in launchers:
        return [*hosted, "--", sys.executable, "-m", launchers[library], "--", *ranks]
    return [*hosted, "--everywhere", "--", *ranks]


def measured_of(told: Mapping[str, Any]) -> list[CollectiveTime]:
    """One value for each operation and size."""
    found = []
    for timed in told["timed"]:
        operation, times_s = Operation(timed["operation"]), timed["times_s"]
        algorithm_bps = timed["num_bytes"] * 8 / median(times_s)
        found.append(
            CollectiveTime(
                library=told["library"],
                operation=operation,
                num_bytes=timed["num_bytes"],
                median_s=median(times_s),
                lowest_s=min(times_s),
                highest_s=max(times_s),
                algorithm_bps=algorithm_bps,
                bus_bps=algorithm_bps * bus_factor(operation, told["num_ranks"]),
            )
        )
    return found


def fits_of(measured: Sequence[CollectiveTime], rate_bps: float | None) -> list[Fitted]:
    """α, β and the share of the line, by library and operation."""
    kinds = dict.fromkeys((own.library, own.operation) for own in measured)
    found = []
    for library, operation in kinds:
        rows = [own for own in measured if (own.library, own.operation) == (library, operation)]
        large = [own.bus_bps for own in rows if own.num_bytes == LARGE_BYTES]
        share = large[0] / rate_bps if large and rate_bps else None
        link = fit_link({own.num_bytes: own.median_s for own in rows})
        found.append(Fitted(library=library, operation=operation, link=link, share_of_line=share))
    return found
