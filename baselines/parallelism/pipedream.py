"""PipeDream: 1F1B without a flush; an update after each backward; stashed weights.

Paper: Narayanan et al., PipeDream: Generalized Pipeline Parallelism for DNN Training, SOSP 2019. Stage i of K starts
with K−i forwards (NOAM = K at the first one, without replicas), then alternates. Each mini-batch is one micro-batch and
is applied as soon as its backward is done. With n updates done, the next forward uses version n, so mini-batch m is
computed at stage i with the weights of m−(K−i)+1 updates. Weight stashing: backward uses its own forward's version.
Vertical sync: every stage uses the version with which the mini-batch entered the first stage, m−K+1. Versions to keep:
K−i, and K with vertical sync. The bubble is that of filling and draining once in a run.

With `stash` off, backward uses the newest weights: not a gradient of anything, and there to be told apart.
Differs from the paper: replicas of a stage each take a slice of every mini-batch, where the paper's take whole
mini-batches in turn. Batch normalisation's running statistics are not stashed: they follow the forwards in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from baselines.parallelism.api import (
    Action,
    Actions,
    Backward,
    Forward,
    ParallelCard,
    ParallelismError,
    Update,
    require_positive,
)
from baselines.parallelism.one_forward_one_backward import fill_and_drain_bubble, order


@dataclass(frozen=True, slots=True)
class PipeDream:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="pipedream",
        summary="1F1B without a flush, weights stashed per mini-batch; optionally vertical sync",
        paper="Narayanan et al., PipeDream, SOSP 2019",
    )
    synchronous: ClassVar[bool] = False
    stash: bool = True
    vertical_sync: bool = False

    def __post_init__(self) -> None:
        if self.vertical_sync and not self.stash:
            raise ParallelismError("vertical_sync without stash; vertical sync needs stashed weights, turn stash on")

    @property
    def stages_per_rank(self) -> int:
        """One."""
        return 1

    def actions(self, rank: int, num_ranks: int, num_micro_batches: int) -> Actions:
        """1F1B without a flush, an update behind each backward."""
        require_positive(num_ranks=num_ranks, num_micro_batches=num_micro_batches)
        return tuple(self._actions(rank, num_ranks, num_micro_batches))

    def _actions(self, stage: int, num_stages: int, num_micro_batches: int) -> Iterator[Action]:
        num_updates = 0
        for entry in order(num_stages - stage, num_micro_batches):
            version = self._version(entry.micro_batch, stage, num_stages)
            if not entry.is_backward:
                yield Forward(stage, entry.micro_batch, version)
                continue
            yield Backward(stage, entry.micro_batch, version if self.stash else num_updates)
            num_updates += 1
            yield Update(stage, num_updates, 1)

    def _version(self, micro_batch: int, stage: int, num_stages: int) -> int:
        depth = num_stages if self.vertical_sync else num_stages - stage
        return max(0, micro_batch - depth + 1)

    def peak_stash(self, rank: int, num_ranks: int, num_micro_batches: int) -> int:
        """K−i at stage i, as far as there are micro-batches."""
        return min(num_ranks - rank, num_micro_batches)

    def bubble(self, num_ranks: int, num_micro_batches: int) -> float:
        """That of filling and draining once in the whole run."""
        return fill_and_drain_bubble(num_ranks, num_micro_batches)
