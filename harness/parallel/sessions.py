"""What trains a pipelined job on a rank: our executor, or another system run as itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import nn

from harness.parallel.meter import PipelineMeter
from harness.parallel.pipeline import PipelineJob
from harness.parallel.processes import PipelineProcess
from harness.parallel.stages import MicroBatch
from harness.trace import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSeat:
    """Where a rank of a pipeline sits: the process group is up, and this is what else it may know.

    `data` are the micro-batches of the first run, `paused` is told where the device had to wait for a message.
    """

    job: PipelineJob
    model: nn.Module
    data: Sequence[MicroBatch]
    meter: PipelineMeter
    recorder: Recorder
    paused: Callable[[], None]


class PipelineSession(Protocol):
    """One rank's part of a pipelined training."""

    @property
    def num_sent_bytes(self) -> float:
        """Payload bytes so far."""
        ...

    @property
    def num_messages(self) -> int:
        """Messages so far."""
        ...

    def close(self) -> None:
        """Free threads and groups."""
        ...

    @property
    def modules(self) -> Mapping[int, nn.Module]:
        """The rank's own stages with their newest weights."""
        ...

    @property
    def held(self) -> tuple[int, int, int]:
        """(most micro-batches whose activations were held, most versions of weights, staleness in updates)."""
        ...

    def run(self, data: Sequence[MicroBatch]) -> Mapping[int, float]:
        """A step of a synchronous schedule, or the whole run of any other. Answer: this rank's share of each
        micro-batch's loss."""
        ...


@runtime_checkable
class RunsPipelines(Protocol):
    """A system that can train a pipelined job."""

    def why_unfit_for(self, schedule: str) -> str | None:
        """The reason why it has no such schedule, and what to use; or None."""
        ...

    def open_pipeline(self, seat: PipelineSeat) -> PipelineSession:
        """Build the rank's stages. Raises: ParallelismError."""
        ...


def open_ours(seat: PipelineSeat) -> PipelineSession:
    """Our executor's rank. Raises: ParallelismError."""
    # The engine's systems of data parallelism are no sessions of this kind, so ours is a function and no class.
    return PipelineProcess(seat.job, seat.model, seat.data, seat.meter, recorder=seat.recorder, paused=seat.paused)
