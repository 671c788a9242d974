"""Tensor fusion: each cycle, what is ready on all ranks travels together, up to a threshold.

Paper: Sergeev and Del Balso, Horovod, arXiv 1802.05799, section 5. Every `cycle_s` the
gradients that are ready on *all* ranks are taken, in order, and fill messages until
the next tensor would pass `threshold_bytes`. A single tensor may exceed the threshold; a
threshold of 0 sends each tensor alone. A tensor that does not fit, as its format differs or it is too
large, is passed over while message and what was passed over stay within the threshold, so that mixed
formats do not break messages up; what was passed over begins the next one. Defaults as in Horovod 0.28: 128 MiB, 1 ms.

Knobs: a threshold of 64 KiB to 256 MiB and a cycle of 1 to 100 ms, on logarithmic scales. Horovod's own autotuning
searches 0 to 64 MiB and the same cycles, on linear ones.

Differs from Horovod: nothing is negotiated while nothing is ready, so an idle job costs no
processor time, and the clock begins anew with a step's first gradient. When it ticks first, and which cycle
waits for the last gradient, the engine learns from the step before (`harness.engine.negotiate`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Group, Knob, Packed, Segment, Slot, size

LONGEST_CYCLE_S = 1000.0  # ranks tell it in microseconds, as a number of 32 bits


@dataclass(frozen=True, slots=True)
class TensorFusion:
    card: ClassVar[Card] = Card(
        name="tensor-fusion",
        slot=Slot.PACKING,
        summary="what is ready on all ranks each cycle, up to a threshold",
        paper="Sergeev and Del Balso, Horovod, arXiv 1802.05799, 2018",
    )
    rank_invariant: ClassVar[bool] = False
    slices: ClassVar[bool] = False
    knobs: ClassVar[Mapping[str, Knob]] = {
        "threshold_bytes": Knob(64 * 1024, 256 * 1024 * 1024),
        "cycle_s": Knob(0.001, 0.1),
    }
    threshold_bytes: int = size(128 * 1024 * 1024, "bytes")
    cycle_s: float = 0.001

    def __post_init__(self) -> None:
        if self.threshold_bytes < 0 or not 0 <= self.cycle_s <= LONGEST_CYCLE_S:
            raise ValueError(
                f"threshold_bytes is {self.threshold_bytes} and cycle_s {self.cycle_s}; neither may be negative, and a "
                f"cycle takes at most {LONGEST_CYCLE_S:g} s"
            )

    def pack(self, ready: Sequence[Segment]) -> Packed:
        """Fill messages from what is ready until all of it is taken; look again after `cycle_s`."""
        groups, waiting = list[Group](), deque(ready)
        while waiting:
            groups.append(self._fused(waiting))
        return Packed(tuple(groups), look_again_s=self.cycle_s)

    def _fused(self, waiting: deque[Segment]) -> Group:
        """The next message, taken out of `waiting`; what it passes over stays there, in order."""
        group = [waiting.popleft()]
        size, passed, passed_bytes = group[0].nbytes, list[Segment](), 0
        while waiting:
            segment = waiting[0]
            if segment.dtype == group[0].dtype and size + segment.nbytes <= self.threshold_bytes:
                group.append(segment)
                size += segment.nbytes
            else:
                passed_bytes += segment.nbytes
                if size + passed_bytes > self.threshold_bytes:
                    break
                passed.append(segment)
            waiting.popleft()
        waiting.extendleft(reversed(passed))
        return tuple(group)
