"""PowerSGD: each gradient matrix as a product of two thin ones, by one step of power iteration a training step.

Paper: Vogels, Karimireddy and Jaggi, PowerSGD, NeurIPS 2019 (with error feedback: write `powersgd+error-feedback`). A
parameter is a matrix M [m × n], the first dimension its rows. With M_w a worker's part and Q [n × r] of the last step:

    P ← Σ_w M_w·Q,    P̂ ← orthonormal columns of P,    Q ← Σ_w M_wᵀ·P̂,    M ≈ P̂·Qᵀ

Both sums are all-reduces, so bytes do not grow with ranks. The matrices of a message go as one tensor of P and one of
Q; vectors, and matrices with (m + n)·r ≥ m·n, go as they are behind P: two aggregates a message, or one if nothing in
it is compressed. What a rank contributed is P̂·P̂ᵀ·M_w, so its residual is M_w − P̂·P̂ᵀ·M_w. The reference code keeps
M_w − P̂·Qᵀ instead; both have the same mean over ranks, and what is applied depends on the mean alone.

`warm_start` keeps Q by parameter name, else each step draws a new one. Draws are standard normal, seeded by `seed`, the
name and the step, so equal on all ranks. Columns are made orthonormal by Householder QR (LAPACK), which has an answer
for a P that is zero or of lower rank, where Gram–Schmidt divides by zero: a zero gradient costs a warm Q its memory and
no more. A warm Q is kept with its columns divided by their largest elements, since P depends on their span alone: else
it grows with the square of the gradient and overflows from |g| ≈ 1e18 on. Where it is not finite, it is drawn anew and
that is logged. Each rank does it for itself: replicas stay identical as long as equal P give equal P̂, on equal
processors.

Differs from the paper: a matrix is compressed wherever that saves bytes; its authors' later code and torch's hook ask
for twice fewer. The default rank is 4, torch's 1; both call 1–4 usual. Not verified against the paper's text, but
against the authors' code, whose later version alternates P and Q between steps and so sends half.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Aggregate, Card, Context, How, Message, Reduced, Reduction, Scope, Segment, Slot, State
from baselines.residuals import report


@dataclass(frozen=True, slots=True)
class PowerSgd:
    card: ClassVar[Card] = Card(
        name="powersgd",
        slot=Slot.COMPRESSION,
        summary="each gradient matrix as two thin ones, summed by two all-reduces",
        paper="Vogels et al., PowerSGD, NeurIPS 2019",
    )
    lossy: ClassVar[bool] = True
    rank: int = 4
    warm_start: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank is {self.rank}; an approximation has rank 1 or more, e.g. 4")

    @property
    def scope(self) -> Scope:
        """A matrix is factored as a whole."""
        return Scope.TENSOR

    @property
    def how(self) -> How:
        """Both factors are sums over ranks."""
        return How.SUM

    def init(self, name: str, parameter: Tensor) -> State:
        """Q [r × n] of the last step for a matrix that is compressed, if it is to be kept."""
        shape = tuple(parameter.shape)
        return {"q": self._drawn(name, shape, 0, parameter)} if self.warm_start and self._pays(shape) else {}

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        """Sum P and what is not compressed, orthonormalise, sum Q, put the products in place of the gradients."""
        flat = grad.float()
        matrices = [(at, s) for at, s in _places(ctx.message) if self._pays(s.shape)]
        plain = [flat[at : at + s.numel] for at, s in _places(ctx.message) if not self._pays(s.shape)]
        values = [flat[at : at + s.numel].view(s.shape[0], -1) for at, s in matrices]
        # factors lie as rows, r × n: with thin columns the same products take 4 to 25 times as long in MKL at r = 2 … 8
        before = [self._q(s, states, ctx.step, grad) for _, s in matrices]
        own = [q @ value.T for value, q in zip(values, before, strict=True)]
        ((total,),) = (yield Aggregate((_joined([*own, *plain]),), How.SUM, "gradient")).parts
        bases, exact = _cut(total, own), total[sum(p.numel() for p in own) :]
        bases = [torch.linalg.qr(p.T).Q.T for p in bases]
        own = [p @ value for value, p in zip(values, bases, strict=True)]
        contributed = flat.clone() if ctx.wants_contribution else None
        if contributed is not None:
            _put(contributed, matrices, bases, own)
        if matrices:
            ((total,),) = (yield Aggregate((_joined(own),), How.SUM, "gradient")).parts
        after = _cut(total, own)
        for (_, segment), q in zip(matrices, after, strict=True):
            if self.warm_start:
                self._keep(states[segment.name]["q"], q, segment, ctx)
        _put(flat, matrices, bases, after)
        for part, summed in zip(plain, exact.split([p.numel() for p in plain]), strict=True):
            part.copy_(summed)
        return Reduced(flat.to(grad.dtype), contributed)

    def aggregate_bytes(self, message: Message, world: int) -> tuple[float, ...]:
        """Bytes of P with what is not compressed, and of Q: exactly what `reduce` sends for `message`."""
        shapes = [s.shape for s in message.segments if self._pays(s.shape)]
        plain = sum(s.numel for s in message.segments if not self._pays(s.shape))
        rows = sum(shape[0] * self._rank_of(shape) for shape in shapes)
        columns = sum(math.prod(shape[1:]) * self._rank_of(shape) for shape in shapes)
        return (4.0 * (rows + plain), 4.0 * columns) if shapes else (4.0 * plain,)

    def wire_bytes(self, numel: int, world: int) -> float:
        """As if the message were one square matrix; `aggregate_bytes` knows better."""
        return 4.0 * min(numel, 2 * math.sqrt(numel) * self.rank)

    def _rank_of(self, shape: tuple[int, ...]) -> int:
        return min(self.rank, shape[0], math.prod(shape[1:]))

    def _pays(self, shape: tuple[int, ...]) -> bool:
        numel = math.prod(shape)
        return len(shape) > 1 and numel > 0 and (shape[0] + numel // shape[0]) * self._rank_of(shape) < numel

    def _q(self, segment: Segment, states: Mapping[str, State], step: int, like: Tensor) -> Tensor:
        if self.warm_start:
            return states[segment.name]["q"]
        return self._drawn(segment.name, segment.shape, step, like)

    def _keep(self, kept: Tensor, q: Tensor, segment: Segment, ctx: Context) -> None:
        """Q for the next step: its span, each column with a largest element of 1; drawn anew where it is lost."""
        largest = q.abs().amax(1, keepdim=True)
        if bool(largest.isfinite().all()):
            kept.copy_(q / torch.where(largest > 0, largest, 1.0))
        else:
            report(q.numel(), ctx.message)
            kept.copy_(self._drawn(segment.name, segment.shape, ctx.step + 1, kept))

    def _drawn(self, name: str, shape: tuple[int, ...], step: int, like: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {step} {name}".encode()))
        return torch.randn(self._rank_of(shape), math.prod(shape[1:]), generator=generator).to(like.device)


def _places(message: Message) -> Iterator[tuple[int, Segment]]:
    """Each segment and where it begins in the message."""
    offset = 0
    for segment in message.segments:
        yield offset, segment
        offset += segment.numel


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _cut(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    """The first elements of `flat` in the shapes of `like`."""
    sizes = [part.numel() for part in like]
    pieces = flat[: sum(sizes)].split(sizes)
    return [piece.view(part.shape) for piece, part in zip(pieces, like, strict=True)]


def _put(flat: Tensor, matrices: list[tuple[int, Segment]], bases: list[Tensor], factors: list[Tensor]) -> None:
    """Write each P̂·Qᵀ to its place."""
    for (at, segment), p, q in zip(matrices, bases, factors, strict=True):
        torch.mm(p.T, q, out=flat[at : at + segment.numel].view(p.shape[1], -1))
