"""GPipe: all forwards of a step, then all backwards, then one update of every stage.

Paper: Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, NeurIPS 2019. A
mini-batch is cut into M micro-batches; gradients are summed over them and applied at the end, so the result is that of
synchronous SGD (batch normalisation aside, whose statistics are of a micro-batch). With K stages the bubble is
(K−1)/(M+K−1). With `recompute` a stage keeps the input of each micro-batch alone and runs its forward again before the
backward: M boundary tensors and one micro-batch's activations at a time, for about a third more compute. It does so
while it waits for the gradient, so the bubble is smaller: 3(K−1)/(4M+3(K−1)) where backward takes twice forward.

Backwards run in the order of forwards, as in torch.distributed.pipelining: gradients are then summed in the order in
which one device would sum them, bit for bit.
Not verified against the paper: the order of backwards.
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
    Recompute,
    Update,
    require_positive,
)
from baselines.parallelism.one_forward_one_backward import fill_and_drain_bubble


@dataclass(frozen=True, slots=True)
class GPipe:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="gpipe",
        summary="all forwards, then all backwards, then the update; optionally with recompute",
        paper="Huang et al., GPipe, NeurIPS 2019",
    )
    synchronous: ClassVar[bool] = True
    recompute: bool = False

    @property
    def stages_per_rank(self) -> int:
        """One."""
        return 1

    def actions(self, rank: int, num_ranks: int, num_micro_batches: int) -> Actions:
        """All forwards, all backwards in the same order, one update."""
        require_positive(num_ranks=num_ranks, num_micro_batches=num_micro_batches)
        return tuple(self._actions(rank, num_micro_batches))

    def _actions(self, stage: int, num_micro_batches: int) -> Iterator[Action]:
        for micro_batch in range(num_micro_batches):
            yield Forward(stage, micro_batch, 0, keep=not self.recompute)
        for micro_batch in range(num_micro_batches):
            if self.recompute:
                yield Recompute(stage, micro_batch, 0)
            yield Backward(stage, micro_batch, 0)
        yield Update(stage, 1, num_micro_batches)

    def peak_stash(self, rank: int, num_ranks: int, num_micro_batches: int) -> int:
        """All micro-batches, or one where activations are computed again."""
        return 1 if self.recompute else num_micro_batches

    def bubble(self, num_ranks: int, num_micro_batches: int) -> float:
        """(K−1)/(M+K−1), or with recomputation 3(K−1)/(4M+3(K−1))."""
        if not self.recompute:
            return fill_and_drain_bubble(num_ranks, num_micro_batches)
        # With backward twice forward: 4 units of work per micro-batch, and 3 to fill and drain per other rank.
        return 3 * (num_ranks - 1) / (4 * num_micro_batches + 3 * (num_ranks - 1))
