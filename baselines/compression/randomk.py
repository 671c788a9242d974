"""Random-k sparsification: each message sends k elements drawn at random.

Paper: Stich et al., Sparsified SGD with Memory, NeurIPS 2018 (rand_k; with error feedback:
`random-k+error-feedback`). Every set of k = max(1, ⌈density · n⌉) of the n elements is equally likely, so
E‖a − rand_k(a)‖² = (1 − k/n)‖a‖². Values are sent as they are, not scaled by n/k: biased, as the paper's
operator, and what is left out must be fed back.

`shared=True`: all ranks draw the same positions, from a hash of `seed`, the step and the names of what the
message holds. Values alone travel, 4·k bytes, and are summed on the way: the one sparsifier here whose volume does
not grow with the number of ranks. `shared=False`: every rank draws its own; 4·k bytes of values and 1, 2 or 4 for each
position, gathered.

Differs from the paper: positions are drawn a message, not over the model. Not verified against the paper's text. Own
positions travel, where a seed of 8 bytes would do: receivers would then have to draw again for each rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Aggregate, Card, Context, How, Reduced, Reduction, Scope, Slot, State
from baselines.codec import Gathered, gathered, split
from baselines.kernels import sparse
from baselines.memory import zeros
from baselines.sparsity import add_sparse_code, check_share, chosen_bits, code_bytes, num_kept, sparse_code


@dataclass(frozen=True, slots=True)
class RandomK(Gathered):
    card: ClassVar[Card] = Card(
        name="random-k",
        slot=Slot.COMPRESSION,
        summary="k elements of each message at random, the same on all ranks and summed, or gathered",
        paper="Stich et al., Sparsified SGD with Memory, NeurIPS 2018",
    )
    lossy: ClassVar[bool] = True
    density: float = 0.01
    shared: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_share("density", self.density)

    @property
    def scope(self) -> Scope:
        """k is of a message."""
        return Scope.MESSAGE

    @property
    def how(self) -> How:
        """Equal positions on all ranks can be summed, own ones are gathered."""
        return How.SUM if self.shared else How.CONCAT

    @property
    def equal_sizes(self) -> bool:
        """True: k depends on the message's size alone."""
        return True

    def encode(self, values: Tensor, ctx: Context) -> Tensor:
        """The values [k] at the drawn positions, with the positions unless they are shared."""
        if self.shared:
            return sparse.gather(values, self._positions(values, ctx)).view(torch.uint8)
        return sparse_code(values, self._positions(values, ctx))

    def add_decoded(self, data: Tensor, total: Tensor, ctx: Context) -> None:
        """Add each value at its position of `total` [numel]; shared positions are drawn again."""
        if self.shared:
            positions = self._positions(total, ctx)
            (values,) = split(data, (torch.float32, positions.numel()))
            sparse.add_at(total, positions, values)
        else:
            add_sparse_code(data, total)

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        """Sum the values at shared positions, or gather codes."""
        if not self.shared:
            return (yield from gathered(self, grad, ctx))
        positions, contributed = self._positions(grad, ctx), None
        values = sparse.gather(grad, positions)
        if ctx.wants_contribution:
            contributed = zeros(grad.numel(), grad.device)
            sparse.add_at(contributed, positions, values)
        total = yield Aggregate((values,), How.SUM, "gradient")
        sparse.add_at(grad.zero_(), positions, total.parts[0][0])
        return Reduced(grad, contributed)

    def _positions(self, values: Tensor, ctx: Context) -> Tensor:
        generator = self._common(ctx) if self.shared else ctx.generator
        return _drawn(values.numel(), num_kept(values.numel(), self.density), generator).to(values.device)

    def _common(self, ctx: Context) -> torch.Generator:
        """The same on all ranks for the same step and message."""
        names = ",".join(f"{segment.name}[{segment.start}:{segment.stop}]" for segment in ctx.message.segments)
        digest = hashlib.blake2b(f"{self.seed} {ctx.step} {names}".encode(), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))

    @property
    def code_bits(self) -> float:
        """Expected bits per element."""
        return 32.0 * self.density if self.shared else chosen_bits(self.density)

    def wire_bytes(self, numel: int, world: int) -> float:
        """4·k bytes, and those of positions unless they are shared."""
        return 4.0 * num_kept(numel, self.density) if self.shared else code_bytes(numel, self.density)


def _drawn(numel: int, k: int, generator: torch.Generator) -> Tensor:
    """k of `numel` positions, ascending, all sets equally likely. Holds some 32 · k bytes."""
    if 16 * k > numel:
        return torch.randperm(numel, dtype=torch.int32, generator=generator)[:k].sort().values
    drawn = torch.empty(0, dtype=torch.int64)
    while drawn.numel() < k:  # repeated draws fall out; 16 · k ≤ numel, so few do
        drawn = torch.randint(numel, (k + k // 8 + 8,), generator=generator).unique()
    kept = torch.randperm(drawn.numel(), generator=generator)[:k]  # a random part of a random set
    return drawn[kept.sort().values]
