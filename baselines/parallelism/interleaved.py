"""Interleaved 1F1B: each rank holds several stages that lie far apart, so the pipeline fills v times faster.

Paper: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021.
Rank r of K holds the stages r, r+K, …, r+(v−1)K (`stages_per_rank` is v). Micro-batches go in groups of K through one
stage of a rank after the other. A rank starts with 2(K−r−1) + (v−1)K forwards and then alternates. The bubble is
(K−1)/(vM+K−1) of the time, v times the messages. M must be a multiple of K.
"""

from __future__ import annotations

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
class Interleaved:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="interleaved",
        summary="1F1B with several stages per rank and a flush: a smaller bubble for more messages",
        paper="Narayanan et al., Megatron-LM, SC 2021",
    )
    synchronous: ClassVar[bool] = True
    stages_per_rank: int = 2

    def __post_init__(self) -> None:
        if self.stages_per_rank < 2:
            raise ParallelismError(f"stages_per_rank is {self.stages_per_rank}; use at least 2, or the schedule dapple")

    def actions(self, rank: int, num_ranks: int, num_micro_batches: int) -> Actions:
        """1F1B over the rank's stages in groups of K micro-batches. Raises: ParallelismError for other numbers of
        them."""
        require_positive(num_ranks=num_ranks, num_micro_batches=num_micro_batches)
        if num_micro_batches % num_ranks:
            raise ParallelismError(
                f"{num_micro_batches} micro-batches go in groups of {num_ranks}; use a multiple of {num_ranks}"
            )
        num_units = num_micro_batches * self.stages_per_rank
        actions: list[Action] = []
        for entry in order(self._num_warmup(rank, num_ranks) + 1, num_units):
            chunk, micro_batch = self._place(entry.micro_batch, num_ranks)
            if entry.is_backward:
                actions.append(Backward(rank + (self.stages_per_rank - 1 - chunk) * num_ranks, micro_batch, 0))
            else:
                actions.append(Forward(rank + chunk * num_ranks, micro_batch, 0))
        updates = [Update(rank + chunk * num_ranks, 1, num_micro_batches) for chunk in range(self.stages_per_rank)]
        return (*actions, *updates)

    def _place(self, unit: int, num_ranks: int) -> tuple[int, int]:
        """(stage of the rank, micro-batch) of a pass: K micro-batches through a stage, then through the next one."""
        group, inside = divmod(unit, num_ranks * self.stages_per_rank)
        chunk, place = divmod(inside, num_ranks)
        return chunk, group * num_ranks + place

    def _num_warmup(self, rank: int, num_ranks: int) -> int:
        return 2 * (num_ranks - rank - 1) + (self.stages_per_rank - 1) * num_ranks

    def peak_stash(self, rank: int, num_ranks: int, num_micro_batches: int) -> int:
        """The warm-up's forwards and one, over all of the rank's stages."""
        return min(self._num_warmup(rank, num_ranks) + 1, num_micro_batches * self.stages_per_rank)

    def bubble(self, num_ranks: int, num_micro_batches: int) -> float:
        """(K−1)/(vM+K−1)."""
        return fill_and_drain_bubble(num_ranks, num_micro_batches * self.stages_per_rank)
