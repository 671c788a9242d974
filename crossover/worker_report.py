"""What a job's workers saw of their own model: bytes, workers of all hosts, and the times of its layers.

Where CROSSOVER_WORKER_REPORTS names a folder, every attachment of every worker writes its report there when it is
closed, as RANK-PROCESS-NUMBER.json. `crossover run --profile` reads the first worker's.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crossover.digests import write_numbered

WORKER_REPORTS = "CROSSOVER_WORKER_REPORTS"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReport:
    """A module with parameters of its own, as (name, shape) of those that get gradients; medians over the passes, and
    the distances between their quartiles."""

    name: str
    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    forward_s: float
    backward_s: float
    forward_spread_s: float
    backward_spread_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """One worker's model on its device, in bytes; 0 for unknown. `batch_size` and `sample` are of the last pass's first
    input. `layers` are in order of forward, empty where no pass was timed."""

    rank: int
    world: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    device: str
    precision: str
    batch_size: int
    sample: str
    num_passes: int
    layers: tuple[LayerReport, ...]

    @property
    def memory(self) -> dict[str, int]:
        """As a job's profile has it."""
        names = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes")
        return {name: getattr(self, name) for name in names}


def write_report(folder: str, report: WorkerReport) -> Path:
    """Write it; returns the file. Raises OSError where the folder cannot be written."""
    return write_numbered(folder, f"{report.rank}-{os.getpid()}", asdict(report))


def first_report(folder: Path) -> WorkerReport | None:
    """The report of the lowest rank in a folder, of its attachments the one with the most gradients; None without."""
    found = [_read(json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("*.json")]
    return min(found, key=lambda report: (report.rank, -report.gradients_bytes), default=None)


def layers_text(job: str, report: WorkerReport) -> str:
    """The layers as `crossover-bench predict --profile` reads them."""
    layers = [
        {**asdict(layer), "parameters": [{"name": name, "shape": list(shape)} for name, shape in layer.parameters]}
        for layer in report.layers
    ]
    text = {
        "network": job,
        "provenance": "recorded",
        "source": f"`crossover run --profile`: {report.num_passes} passes of the job alone, rank {report.rank} of "
        f"{report.world}, beside its own messages",
        "device": report.device,
        "precision": report.precision,
        "batch_size": report.batch_size,
        "sample": report.sample,
        "num_steps": report.num_passes,
        "layers": layers,
    }
    return json.dumps(text, indent=1, allow_nan=False) + "\n"


def _read(given: dict[str, Any]) -> WorkerReport:
    """What `write_report` wrote, by the same version."""
    return WorkerReport(**{**given, "layers": tuple(map(_read_layer, given["layers"]))})


def _read_layer(given: dict[str, Any]) -> LayerReport:
    shapes = tuple((name, tuple(shape)) for name, shape in given["parameters"])
    return LayerReport(**{**given, "parameters": shapes})
