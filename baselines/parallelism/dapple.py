"""DAPPLE: one forward, one backward in turn, then a flush: early backwards bound what a stage holds.

Paper: Fan et al., DAPPLE: A Pipelined Data Parallel Approach for Training Large Models, PPoPP 2021. Stage i of S starts
with K_i forwards and then alternates strictly. Policy A: K_i = min(S−i, D), policy B: K_i = min(2(S−i)−1, D), where D
is the number of micro-batches that memory holds (`most_in_flight`, 0: no bound). B hides messages that are about as
long as a pass, for twice the activations. The step ends with one update: the result is that of synchronous SGD.
Policy A without a bound is 1F1B with flush (PipeDream-2BW's and Megatron's name for it). Bubble as GPipe's.

A bound D below S−i starves the pipeline: the bubble's formula then no longer holds and `bubble` refuses.
Not verified against the paper's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from baselines.parallelism.api import (
    Actions,
    Backward,
    Forward,
    ParallelCard,
    ParallelismError,
    Update,
    require_positive,
)
from baselines.parallelism.one_forward_one_backward import fill_and_drain_bubble, order


class WarmUpPolicy(StrEnum):
    """How many forwards come before the first backward."""

    A = "a"
    B = "b"


@dataclass(frozen=True, slots=True)
class Dapple:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="dapple",
        summary="one forward, one backward, with a flush (1F1B); activations bound by the depth",
        paper="Fan et al., DAPPLE, PPoPP 2021",
    )
    synchronous: ClassVar[bool] = True
    policy: WarmUpPolicy = WarmUpPolicy.A
    most_in_flight: int = 0

    @property
    def stages_per_rank(self) -> int:
        """One."""
        return 1

    def actions(self, rank: int, num_ranks: int, num_micro_batches: int) -> Actions:
        """Warm-up forwards, then a backward and a forward in turn, one update at the end."""
        require_positive(num_ranks=num_ranks, num_micro_batches=num_micro_batches)
        passes = [
            Backward(rank, entry.micro_batch, 0) if entry.is_backward else Forward(rank, entry.micro_batch, 0)
            for entry in order(self._num_warmup(rank, num_ranks), num_micro_batches)
        ]
        return (*passes, Update(rank, 1, num_micro_batches))

    def peak_stash(self, rank: int, num_ranks: int, num_micro_batches: int) -> int:
        """The warm-up's forwards, as far as there are micro-batches."""
        return min(self._num_warmup(rank, num_ranks), num_micro_batches)

    def bubble(self, num_ranks: int, num_micro_batches: int) -> float:
        """That of GPipe. Raises: ParallelismError where `most_in_flight` starves the pipeline."""
        if 0 < self.most_in_flight < num_ranks:
            raise ParallelismError(
                f"most_in_flight is {self.most_in_flight} for {num_ranks} stages: no formula holds; use at least "
                f"{num_ranks}, or 0 for no bound"
            )
        return fill_and_drain_bubble(num_ranks, num_micro_batches)

    def _num_warmup(self, stage: int, num_stages: int) -> int:
        depth = num_stages - stage
        wanted = depth if self.policy is WarmUpPolicy.A else 2 * depth - 1
        return min(wanted, self.most_in_flight) if self.most_in_flight else wanted
