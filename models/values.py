"""The values of a workload: what is asked for, what a step consumes, what training has come to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class WorkloadError(ValueError):
    """A workload that cannot be opened; the message names the value and the remedy."""


class Device(StrEnum):
    """Where a workload computes. REPLAY waits a recorded time for every layer."""

    CPU = "cpu"
    CUDA = "cuda"
    REPLAY = "replay"


class Batch(NamedTuple):
    """What one step consumes: `model(*inputs)` is compared with `targets`."""

    inputs: tuple[Tensor, ...]
    targets: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Mean loss and accuracy on the held-out part. For language models: over the tokens to be predicted."""

    loss: float
    accuracy: float
    num_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """What to train, on what data and device. Plain values: equal specs give equal workloads.

    Attributes:
        network: a name of `catalogue().networks`, or `FILE.py:NAME` (`models.outside`).
        data: a name of `catalogue().data`; empty for the network's default. Must be empty for replay.
        data_path: the ImageNet folder or the text corpus; only for data that need one.
        batch_size: samples per rank and step.
        profile: for replay, a name in models/profiles or a path to a .json file; empty for the network's default.
        size_scale: for replay, every tensor is this many times smaller (at least one element).
        sequence_length: tokens a sequence; of a masked one with the two that frame it.
        image_size: side of an image in pixels; 0 for what network and data are made for.
        num_workers: loader processes a rank; only image folders use them.
        num_evaluation: held-out samples to evaluate on; 0 for all.
        jitter: for replay, the standard deviation of a step's compute time relative to its mean (log-normal).
        slow_worker: for replay, how much longer rank 0 computes (1: as the others).
        dropout: probability; None for the network's own. Above 0, training draws from torch's global
            generator, so seed that (per rank) before the first step.
    """

    network: str
    data: str = ""
    data_path: str = ""
    batch_size: int = 32
    device: Device = Device.CPU
    profile: str = ""
    size_scale: int = 1
    jitter: float = 0.0
    slow_worker: float = 1.0
    sequence_length: int = 64
    image_size: int = 0
    num_workers: int = 0
    num_evaluation: int = 0
    dropout: float | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "size_scale"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("image_size", "num_workers", "num_evaluation"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        _require(0 <= self.jitter <= 1, "jitter", self.jitter, "between 0 and 1")
        _require(1 <= self.slow_worker <= 10, "slow_worker", self.slow_worker, "between 1 and 10")
        unsteady = self.jitter > 0 or self.slow_worker > 1
        _require(self.device is Device.REPLAY or not unsteady, "device", self.device.value, "replay with jitter")
        _require(8 <= self.sequence_length <= 512, "sequence_length", self.sequence_length, "between 8 and 512")
        _require(self.dropout is None or 0 <= self.dropout < 1, "dropout", self.dropout, "in [0, 1)")

    @property
    def label(self) -> str:
        """A short name for figures and cells, e.g. `resnet20-digits`, `resnet50-replay`."""
        network = self.network.rpartition("/")[2].replace(".py:", ".")  # of one from outside the tree, no path
        if self.device is Device.REPLAY:
            return f"{network}-replay"
        return f"{network}-{self.data}" if self.data else network


def _require(holds: bool, name: str, value: object, remedy: str) -> None:
    if not holds:
        raise WorkloadError(f"{name} is {value!r}; it must be {remedy}")
