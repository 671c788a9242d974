"""PipeMare: no flush and no stashed weights; smaller steps and corrected weights make up for the delay.

Paper: Yang et al., PipeMare: Asynchronous Pipeline Parallel DNN Training, MLSys 2021. A step has N micro-batches
(`micro_batches_per_step`). Forward uses the newest weights, and so does backward: between the two, stage i (from 1) of
K is updated τ_i = (2(K−i)+1)/N times, on average over the micro-batches of a step. With τ_b = 0:

    T1  α_i = α / τ_i^p,  p = 1 − min(t/T, 1)                  (`rate_steps` is T; 0 turns it off)
    T2  backward uses w − (τ_i − τ_b)·δ,  δ ← γδ + (1−γ)(w' − w),  γ = D^(1/(τ_i−τ_b))   (`decay` is D; 0: off)
    T3  the first `synchronous_steps` steps run with a flush

Defaults: D = 0.135 (e⁻²). The order is 1F1B with 2(K−i)+2 forwards before the first backward. So 2(K−i)+1 other
micro-batches have their backward between the forward and the backward of one, which is exactly the delay above. The
last stage is one micro-batch late too, as in the paper, whose stages run a forward and a backward at once.
Differs from the paper: T1 is off by default, as no T suits every run: the full PipeMare needs `rate_steps`. τ below 1
counts as 1 in T1, which would raise the learning rate of the last stages. A device runs a forward and a backward one
after the other.
Not verified against the paper's text.
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
class PipeMare:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="pipemare",
        summary="no flush, one copy of the weights; learning rate and backward weights corrected for the delay",
        paper="Yang et al., PipeMare, MLSys 2021",
    )
    synchronous: ClassVar[bool] = False
    micro_batches_per_step: int = 4
    rate_steps: int = 0
    decay: float = 0.135
    synchronous_steps: int = 0

    def __post_init__(self) -> None:
        require_positive(micro_batches_per_step=self.micro_batches_per_step)
        if not 0.0 <= self.decay < 1.0 or self.rate_steps < 0 or self.synchronous_steps < 0:
            raise ParallelismError(
                f"decay {self.decay}, rate_steps {self.rate_steps}, synchronous_steps {self.synchronous_steps}; "
                "use a decay in [0, 1), and steps of 0 or more"
            )

    @property
    def stages_per_rank(self) -> int:
        """One."""
        return 1

    def actions(self, rank: int, num_ranks: int, num_micro_batches: int) -> Actions:
        """1F1B with 2(K−i)+2 forwards ahead, behind the steps that flush. Raises: ParallelismError for a part of a
        step."""
        require_positive(num_ranks=num_ranks, num_micro_batches=num_micro_batches)
        if num_micro_batches % self.micro_batches_per_step:
            raise ParallelismError(
                f"{num_micro_batches} micro-batches are no whole number of steps; use a multiple of "
                f"{self.micro_batches_per_step}"
            )
        return tuple(self._actions(rank, num_ranks, num_micro_batches))

    def _actions(self, stage: int, num_stages: int, num_micro_batches: int) -> Iterator[Action]:
        per_step = self.micro_batches_per_step
        num_flushed = min(self.synchronous_steps * per_step, num_micro_batches)
        for start in range(0, num_flushed, per_step):
            yield from self._stream(stage, num_stages - stage, start, per_step)
        yield from self._stream(stage, self._num_ahead(stage, num_stages), num_flushed, num_micro_batches - num_flushed)

    def _stream(self, stage: int, num_warmup: int, start: int, num_micro_batches: int) -> Iterator[Action]:
        per_step = self.micro_batches_per_step
        version = start // per_step
        for entry in order(num_warmup, num_micro_batches):
            micro_batch = start + entry.micro_batch
            if not entry.is_backward:
                yield Forward(stage, micro_batch, version)
                continue
            yield Backward(stage, micro_batch, version)
            if (micro_batch + 1) % per_step == 0:
                version += 1
                yield Update(stage, version, per_step)

    @staticmethod
    def _num_ahead(stage: int, num_stages: int) -> int:
        return 2 * (num_stages - stage)

    def peak_stash(self, rank: int, num_ranks: int, num_micro_batches: int) -> int:
        """The larger of what the flushed steps and the others hold."""
        num_flushed = min(self.synchronous_steps * self.micro_batches_per_step, num_micro_batches)
        flushed = min(num_ranks - rank, self.micro_batches_per_step) if num_flushed else 0
        return max(flushed, min(self._num_ahead(rank, num_ranks), num_micro_batches - num_flushed))

    def bubble(self, num_ranks: int, num_micro_batches: int) -> float:
        """That of filling and draining once. Raises: ParallelismError with flushed steps, for which there is no one
        formula."""
        if self.synchronous_steps:
            raise ParallelismError(f"synchronous_steps is {self.synchronous_steps}: no one formula; set it to 0")
        return fill_and_drain_bubble(num_ranks, num_micro_batches)

    def learning_rate_scale(self, stage: int, num_stages: int, step: int) -> float:
        """T1, and 1 while steps are flushed."""
        if not self.rate_steps or step < self.synchronous_steps:
            return 1.0
        power = 1.0 - min((step - self.synchronous_steps) / self.rate_steps, 1.0)
        return float(max(1.0, self._delay_steps(stage, num_stages)) ** -power)

    def discrepancy(self, stage: int, num_stages: int, step: int) -> tuple[float, float] | None:
        """T2: (τ_i, γ); while steps are flushed the delay is 0, and the average already follows the weights."""
        if not self.decay:
            return None
        delay_steps = self._delay_steps(stage, num_stages)
        return delay_steps * (step >= self.synchronous_steps), self.decay ** (1.0 / delay_steps)

    def _delay_steps(self, stage: int, num_stages: int) -> float:
        # Of the micro-batches in flight, a forward waits for all others.
        return (self._num_ahead(stage, num_stages) - 1) / self.micro_batches_per_step
