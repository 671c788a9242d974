"""Sparse binary compression: the larger side's largest elements, all with one value, their positions Golomb-coded.

Paper: Sattler, Wiedemann, Müller and Samek, Sparse Binary Compression, IJCNN 2019, arXiv 1805.08768. Of a tensor of n
elements the k = ⌈p·n⌉ largest positive ones have the mean μ⁺, the k most negative ones the mean −μ⁻; only the side with
the larger mean is kept (the positive one if they are equal), each of its elements becomes μ⁺ or −μ⁻, all others 0.
What is lost is fed back: write `sbc+error-feedback`.

On the wire: μ with its sign for each tensor (float32), the number of positions in the message (int32), and the gaps
between them in Golomb-Rice code with 2^b, b = 1 + ⌊log₂(ln(φ−1)/ln(1−p))⌋, φ = (1+√5)/2: for positions at random
b + 1/(1 − (1−p)^(2^b)) bits each, near their entropy (11.5 bits and 11.4 at p = 0.001). 4·tensors + 4 + the code bytes
a rank, gathered from all ranks.

`density` is p (default 0.001). The paper delays communication as well: its presets (p, n) are (0.001, 1), (0.01, 10)
and (0.01, 100) with n local steps between two exchanges. They are written `sbc+error-feedback`,
`sbc(density=0.01)+error-feedback+local-steps(n=10)` and the same with n=100.

`per="tensor"` (default) or "message": what k and μ are taken of. Fewer than k are sent where fewer have the right sign,
and none of a tensor of zeros. A NaN makes μ NaN, on the positions kept.

Differs from the paper: gaps run through the whole message in one code, p is the same for all tensors, ties at the k-th
element go to the lower position. Not verified against the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Card, Context, Message, Scope, Slot
from baselines.codec import Gathered, joined, split
from baselines.kernels import golomb, sides, sparse
from baselines.sparsity import check_share, num_kept


@dataclass(frozen=True, slots=True)
class Sbc(Gathered):
    card: ClassVar[Card] = Card(
        name="sbc",
        slot=Slot.COMPRESSION,
        summary="positions of the largest elements of one sign, Golomb-coded, with one value per tensor",
        paper="Sattler et al., Sparse Binary Compression, IJCNN 2019, arXiv 1805.08768",
    )
    lossy: ClassVar[bool] = True
    density: float = 0.001
    per: str = "tensor"

    def __post_init__(self) -> None:
        check_share("density", self.density)
        if self.per not in ("tensor", "message"):
            raise ValueError(f"per is {self.per!r}; use 'tensor' or 'message'")

    @property
    def scope(self) -> Scope:
        """k and μ are of a tensor, or of a message."""
        return Scope.TENSOR if self.per == "tensor" else Scope.MESSAGE

    @property
    def equal_sizes(self) -> bool:
        """False: gaps between positions have codes of different lengths."""
        return False

    def encode(self, values: Tensor, ctx: Context) -> Tensor:
        """μ per block, float32; the number of positions, int32; their gaps in Golomb-Rice code."""
        means, positions, start = [], [], 0
        for part in values.split(self._sizes(ctx.message)):
            mean, kept = self._binarised(part)
            means.append(mean)
            positions.append(kept.add_(start))
            start += part.numel()
        flat = torch.cat(positions) if positions else torch.zeros(0, dtype=torch.int64, device=values.device)
        count = torch.tensor([flat.numel()], dtype=torch.int32, device=values.device)
        table = torch.stack(means) if means else values[:0]
        return joined(table, count, golomb.encode(flat, values.numel(), self._parameter))

    def add_decoded(self, data: Tensor, total: Tensor, ctx: Context) -> None:
        """Add μ of its block at each position of `total` [numel]."""
        sizes = self._sizes(ctx.message)
        stream = data.numel() - 4 * len(sizes) - 4
        means, count, code = split(data, (torch.float32, len(sizes)), (torch.int32, 1), (torch.uint8, max(0, stream)))
        positions = golomb.decode(code, int(count), self._parameter, total.numel())
        ends = torch.tensor(sizes, device=data.device).cumsum(0)
        sparse.add_at(total, positions, means[torch.searchsorted(ends, positions, right=True)])

    def _sizes(self, message: Message) -> list[int]:
        """How many elements each tensor has, or the message."""
        sizes = [segment.numel for segment in message.segments] if self.per == "tensor" else [message.numel]
        return [size for size in sizes if size]

    def _binarised(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The signed mean of the side that is kept, float32 [], and its positions (ascending)."""
        rising, falling = sides.top_k_sides(values, num_kept(values.numel(), self.density))
        up, down = _mean(sparse.gather(values, rising)), -_mean(sparse.gather(values, falling))
        return (-down, falling) if bool(down > up) else (up, rising)

    @property
    def _parameter(self) -> int:
        return golomb.best_parameter(self.density)

    @property
    def code_bits(self) -> float:
        """Expected bits per element for positions at random, the header apart."""
        return self.density * golomb.bits_per_position(self.density, self._parameter)

    def wire_bytes(self, numel: int, world: int) -> float:
        """Of one tensor with positions at random."""
        return 8.0 + num_kept(numel, self.density) * golomb.bits_per_position(self.density, self._parameter) / 8


def _mean(values: Tensor) -> Tensor:
    """float32 [], 0 of none."""
    return values.sum(dtype=torch.float64).div(max(1, values.numel())).float()
