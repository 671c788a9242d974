"""QSGD: each element stochastically rounded to a few levels of its bucket's norm.

Paper: Alistarh, Grubic, Li, Tomioka and Vojnovic, QSGD, NeurIPS 2017. With the norm N of a bucket of d elements and
s = 2^(bits−1) − 1 levels beside 0,

    Q(v) = N · sgn(v) · ξ,  ξ = (ℓ+1)/s with probability s|v|/N − ℓ, else ℓ/s,  ℓ = ⌊s|v|/N⌋

so E[Q(v)] = v, and with the Euclidean norm E‖Q(v) − v‖² ≤ min(d/s², √d/s)·‖v‖². Being unbiased it needs no error
feedback, which may yet be put around it. `norm="max"`, the largest magnitude, is what the paper's experiments use: a
smaller error, but no bound on how many elements are not 0. A bucket that holds a NaN or an infinity turns into NaN.

`coding="fixed"`: ⌈n·bits/8⌉ + 4·⌈n/bucket⌉ bytes for n elements, packed. `coding="elias"`: levels in the paper's
variable-length code (`kernels/elias.py`), 4·⌈n/bucket⌉ bytes of norms beside it: the shorter the more levels are 0.

Defaults: 4 bits and buckets of 512, as in the paper's experiments. Buckets run through a message, over the borders of
its tensors. Codes are gathered from all ranks: the volume grows with their number.

Differs from the paper: the fixed coding is not in its theory; small tensors are quantised as well, where the paper's
experiments leave them alone. Not verified against the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Card, Context, Scope, Slot
from baselines.codec import Gathered, joined, split
from baselines.kernels import elias, levels


@dataclass(frozen=True, slots=True)
class Qsgd(Gathered):
    card: ClassVar[Card] = Card(
        name="qsgd",
        slot=Slot.COMPRESSION,
        summary="stochastic rounding to 2, 4 or 8 bits per element, without bias",
        paper="Alistarh et al., QSGD, NeurIPS 2017",
    )
    lossy: ClassVar[bool] = True
    bits: int = 4
    bucket: int = 512
    norm: str = "l2"
    coding: str = "fixed"

    def __post_init__(self) -> None:
        if self.bits not in levels.WIDTHS:
            raise ValueError(f"bits is {self.bits}; use one of {', '.join(map(str, levels.WIDTHS))}")
        if self.bucket < 1:
            raise ValueError(f"bucket is {self.bucket}; use a number of elements from 1 up, e.g. 512")
        if self.norm not in ("l2", "max"):
            raise ValueError(f"norm is {self.norm!r}; use 'l2' or 'max'")
        if self.coding not in ("fixed", "elias"):
            raise ValueError(f"coding is {self.coding!r}; use 'fixed' or 'elias'")

    @property
    def scope(self) -> Scope:
        """Buckets run through a message."""
        return Scope.MESSAGE

    @property
    def equal_sizes(self) -> bool:
        """True for the fixed coding; the length of Elias codes depends on the values."""
        return self.coding == "fixed"

    def encode(self, values: Tensor, ctx: Context) -> Tensor:
        """A norm per bucket, float32, and coded levels."""
        rounded, norms = levels.quantise(values, self.bits, self.bucket, ctx.generator, self._norm)
        return joined(norms, levels.pack(rounded, self.bits) if self.equal_sizes else elias.encode(rounded))

    def add_decoded(self, data: Tensor, total: Tensor, ctx: Context) -> None:
        """Add norm · level / s of each element to `total` [numel]."""
        numel = total.numel()
        num_buckets = -(-numel // self.bucket)
        norms, codes = split(data, (torch.float32, num_buckets), (torch.uint8, data.numel() - 4 * num_buckets))
        rounded = levels.unpack(codes, self.bits, numel) if self.equal_sizes else elias.decode(codes, numel)
        levels.add_levels(total, rounded, norms, self.bits, self.bucket)

    @property
    def _norm(self) -> levels.Norm:
        return "max" if self.norm == "max" else "l2"

    def wire_bytes(self, numel: int, world: int) -> float:
        """The Elias coding is estimated for elements of a normal distribution."""
        width = float(self.bits) if self.equal_sizes else self._elias_width(max(1, min(self.bucket, numel)))
        return numel * width / 8 + 4.0 * -(-numel // self.bucket)

    def _elias_width(self, bucket: int) -> float:
        """Bits per element: Σ P(level)·|its code|, of the shorter of the two forms.

        s|v|/N has the deviation σ; with H(t) the mean of what of it exceeds t, P(j) = H(j−1) − 2H(j) + H(j+1).
        """
        s, normal = levels.num_levels(self.bits), NormalDist()
        sigma = s / (sqrt(bucket) if self.norm == "l2" else normal.inv_cdf(1 - 0.28 / bucket))
        excess = [2 * (sigma * normal.pdf(t / sigma) - t * normal.cdf(-t / sigma)) for t in range(s + 2)]
        chance = {j: excess[j - 1] - 2 * excess[j] + excess[j + 1] for j in range(1, s + 1)}
        zero = 1 - sum(chance.values())
        gap: float = sum(_length(2**k) * (zero ** (2**k - 1) - zero ** (2 ** (k + 1) - 1)) for k in range(40))
        dense = zero + sum(p * (1 + _length(j + 1)) for j, p in chance.items())
        sparse = sum(p * (1 + _length(j) + gap) for j, p in chance.items())
        return min(dense, sparse)


def _length(integer: int) -> int:
    """Bits of its Elias code."""
    return elias.code_of(integer)[1]
