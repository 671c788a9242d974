"""Deep gradient compression: momentum and what was not sent are kept before the wire, a thousandth travels.

Paper: Lin et al., Deep Gradient Compression, ICLR 2018. Not verified against the paper's text; read against the
authors' code. With momentum m, velocity u and residual v of a rank, and g its mean gradient over P:

    g ← g · min(1, (clip/√P) / ‖g‖)            local clipping; clip = 0: none
    u ← m·u + g;          v ← v + u            momentum correction (Nesterov: u ← m·(u + g); v ← v + u + g)
    M = {i: |v_i| ≥ threshold};  send v ⊙ M
    v ← v ⊙ ¬M;           u ← u ⊙ ¬M           the latter with `masking` alone

Since g comes divided by P, the sum of P gradients of independent noise has √P times its norm: hence clip/√P. The
threshold is that of the largest `density` of a sample, adapted as in the authors' code: while fewer than 0.8 · k
elements reach it, it is multiplied by 0.8, ten times at most; where more than 1.3 · k do, the k largest of them are
taken, and of up to 1.3 · k the first k. So 0.8 · k to k elements are sent. What is not finite in u or v is given up in
the next step and logged. Warm-up: four equal parts of `warmup_steps` with densities .25, .0625, .015625, .004, then
`density`.

At density 1 this is momentum SGD without masking, and plain SGD with it: u is zeroed at once. What is applied plus v is
all of v's growth: nothing is lost, so no error feedback goes around it. The optimizer must have no momentum, which
would apply it twice: `dgc+sgd(momentum=0.0)`. Weight decay is then added behind the wire, without momentum.

Differs from the paper: the norm that is clipped is that of the message (with single-bucket of the model); warm-up
counts steps, not epochs; samples are random, at least 64 and enough that 10 reach the threshold. `per="message"` takes
one threshold a message, not a tensor as the paper.

Differs from the authors' code in two rules as well. It compresses tensors of more than one dimension alone; all others
are summed dense, and momentum is applied to their mean behind the wire. In ResNet-50 those are 54,120 of 25,557,032
elements, 53,120 of them scales and biases of normalisation: sent dense they would be half of all bytes, and the code
244 times smaller than float32 instead of 502 (k elements of each tensor; somewhat fewer are sent). And weight decay has
a momentum buffer of its own behind the wire, u_w ← m·u_w + λ·w, where ours has none: in the long run its decay is
1/(1 − m) times as strong, ten times at m = 0.9.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Aggregate, Card, Context, How, Reduced, Reduction, Scope, Slot, State
from baselines.kernels import feedback, select, sparse
from baselines.memory import zeros
from baselines.residuals import report
from baselines.sparsity import (
    add_sparse_code,
    blocks,
    check_share,
    chosen_bits,
    code_bytes,
    num_kept,
    sampled,
    sparse_code,
)

SCOPES = {"message": Scope.MESSAGE, "tensor": Scope.TENSOR}
WARM_UP = (0.25, 0.0625, 0.015625, 0.004)
TOO_FEW, TOO_MANY = 0.8, 1.3
MAX_ADAPTIONS = 10


@dataclass(frozen=True, slots=True)
class Dgc:
    card: ClassVar[Card] = Card(
        name="dgc",
        slot=Slot.COMPRESSION,
        summary="momentum before the wire, then the elements above a sampled threshold, gathered",
        paper="Lin et al., Deep Gradient Compression, ICLR 2018",
    )
    lossy: ClassVar[bool] = True
    keeps_residual: ClassVar[bool] = True
    density: float = 0.001
    momentum: float = 0.9
    clip: float = 0.0
    masking: bool = True
    warmup_steps: int = 0
    nesterov: bool = False
    sample: float = 0.01
    per: str = "tensor"

    def __post_init__(self) -> None:
        check_share("density", self.density)
        check_share("sample", self.sample)
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum is {self.momentum}; use 0 or more and less than 1")
        if self.clip < 0.0 or self.warmup_steps < 0:
            raise ValueError(
                f"clip is {self.clip}, warmup_steps {self.warmup_steps}; neither may be negative, 0 is none"
            )
        if self.per not in SCOPES:
            raise ValueError(f"per is {self.per!r}; use one of {', '.join(SCOPES)}")

    @property
    def scope(self) -> Scope:
        """What the threshold is taken of: a message, or each tensor of it."""
        return SCOPES[self.per]

    @property
    def how(self) -> How:
        """Ranks choose different elements, so codes are gathered."""
        return How.CONCAT

    @property
    def applies_momentum(self) -> bool:
        """Unless `momentum` is 0."""
        return self.momentum > 0.0

    @property
    def ramp_steps(self) -> int:
        """Steps over which the density falls to `density`."""
        return self.warmup_steps

    def density_at(self, step: int) -> float:
        """The share of elements sent in step `step`, counted from 0."""
        warming = step < self.warmup_steps
        return max(self.density, WARM_UP[len(WARM_UP) * step // self.warmup_steps]) if warming else self.density

    def init(self, name: str, parameter: Tensor) -> State:
        """Velocity and residual [numel], float32."""
        zeros = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
        return {"velocity": zeros, "residual": zeros.clone()}

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        """Clip, accumulate into velocity and residual, send the residual's largest elements and clear them."""
        self._clip(grad, ctx)
        report(
            sum(
                feedback.accumulate(part, velocity, residual, self.momentum, nesterov=self.nesterov)
                for velocity, residual, part in _parts(states, grad, ctx)
            ),
            ctx.message,
        )
        positions = self._chosen(grad, ctx)
        data, contributed = sparse_code(grad, positions), None
        for (velocity, residual, _), own in zip(_parts(states, grad, ctx), _split(positions, ctx), strict=True):
            sparse.zero_at(residual, own)
            if self.masking:
                sparse.zero_at(velocity, own)
        answer = yield Aggregate((data,), How.CONCAT, "gradient")
        if ctx.wants_contribution:
            add_sparse_code(data, contributed := zeros(grad.numel(), grad.device))
        grad.zero_()
        for (part,) in answer.parts:
            add_sparse_code(part, grad)
        return Reduced(grad, contributed)

    def _clip(self, grad: Tensor, ctx: Context) -> None:
        most = self.clip / math.sqrt(ctx.num_workers or ctx.world)
        if self.clip and (norm := float(torch.linalg.vector_norm(grad, dtype=torch.float64))) > most:
            grad.mul_(most / norm)

    def _chosen(self, values: Tensor, ctx: Context) -> Tensor:
        """Positions (ascending), one at least where there is an element: an empty code would look like no answer."""
        density = self.density_at(ctx.step)
        found = [
            adapted(block, density, self.sample, ctx.generator) + start
            for start, block in blocks(values, ctx, self.per)
        ]
        positions = torch.cat(found)
        least = min(1, values.numel())
        return positions if positions.numel() else torch.zeros(least, dtype=torch.int64, device=values.device)

    @property
    def code_bits(self) -> float:
        """Bits per element at the final density."""
        return chosen_bits(self.density)

    def wire_bytes(self, numel: int, world: int) -> float:
        """Bytes at the final density, once warm-up is over."""
        return code_bytes(numel, self.density)


def adapted(values: Tensor, density: float, sample: float, generator: torch.Generator) -> Tensor:
    """Positions (ascending) [0.8·k … k] of elements of `values` [n] that reach the adapted threshold; all where k = n.

    Fewer than 0.8·k only where ten reductions of the threshold to 0.8 of itself do not bring as many.
    """
    k = num_kept(values.numel(), density)
    if k == values.numel():
        return select.above(values, 0.0)
    threshold = sampled(values, density, sample, generator)
    positions = select.above(values, threshold)
    for _ in range(MAX_ADAPTIONS):
        if positions.numel() >= TOO_FEW * k or threshold == 0.0:
            break
        threshold *= TOO_FEW
        positions = select.above(values, threshold)
    if positions.numel() > TOO_MANY * k:
        return positions[select.top_k(sparse.gather(values, positions), k)]
    return positions[:k]


def _parts(states: Mapping[str, State], flat: Tensor, ctx: Context) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each segment's velocity and residual beside its part of the flat message."""
    for segment, part in zip(ctx.message.segments, flat.split([s.numel for s in ctx.message.segments]), strict=True):
        state, here = states[segment.name], slice(segment.start, segment.stop)
        yield state["velocity"][here], state["residual"][here], part


def _split(positions: Tensor, ctx: Context) -> Iterator[Tensor]:
    """Ascending positions in the message as positions in each segment."""
    start = 0
    ends = torch.tensor([segment.numel for segment in ctx.message.segments], device=positions.device).cumsum(0)
    bounds = torch.searchsorted(positions, ends).tolist()
    for segment, low, high in zip(ctx.message.segments, [0, *bounds[:-1]], bounds, strict=True):
        yield positions[low:high] - start
        start += segment.numel
