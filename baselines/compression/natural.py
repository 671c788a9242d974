"""Natural compression: every element becomes a power of two beside it, at random and right on average.

Paper: Horváth, Ho, Horváth, Sahu, Canini and Richtárik, Natural Compression for Distributed Deep Learning, MSML 2022,
arXiv 1905.10988. With 2^e ≤ |v| < 2^(e+1)

    C(v) = sgn(v)·2^(e+1) with probability |v|/2^e − 1, else sgn(v)·2^e

so E[C(v)] = v and E‖C(v) − v‖² ≤ ⅛·‖v‖²: without bias and with little noise, it needs no error feedback. The
probability is the mantissa of the float as it stands, and what travels is sign and exponent: 9 bits per element, n +
⌈n/8⌉ bytes, gathered from all ranks.

|v| below 2^−126 becomes 0. A NaN or an infinity stays an infinity, and a value that is rounded up from beyond 2^127
becomes one. Differs from the paper: codes are gathered, where it pushes them to a server that sends one back
(`double-squeeze` does). Not verified against the paper's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Card, Context, Scope, Slot
from baselines.codec import Gathered, joined, split

MANTISSA, PIECE = 23, 1 << 18  # bits; elements at a time, which stay in a cache


@dataclass(frozen=True, slots=True)
class Natural(Gathered):
    card: ClassVar[Card] = Card(
        name="natural",
        slot=Slot.COMPRESSION,
        summary="stochastic rounding to powers of two: sign and exponent, 9 bits",
        paper="Horváth et al., Natural Compression, MSML 2022, arXiv 1905.10988",
    )
    lossy: ClassVar[bool] = True

    @property
    def scope(self) -> Scope:
        """Each element is rounded by itself."""
        return Scope.ELEMENT

    @property
    def equal_sizes(self) -> bool:
        """True: 9 bits per element whatever the values."""
        return True

    def encode(self, values: Tensor, ctx: Context) -> Tensor:
        """Exponents [numel] and packed signs [⌈numel/8⌉] of `values` [numel], float32."""
        bits = values.detach().contiguous().view(torch.int32)
        exponents = torch.empty(values.numel(), dtype=torch.uint8, device=values.device)
        signs = torch.zeros(-(-values.numel() // 8) * 8, dtype=torch.uint8, device=values.device)
        for start in range(0, values.numel(), PIECE):
            part = bits[start : start + PIECE]
            dice = torch.randint(1 << MANTISSA, part.shape, dtype=torch.int32, generator=ctx.generator)
            raised = (part & 0x7FFFFFFF) + dice.to(part.device)  # carries into the exponent as often as it should
            # A NaN may carry into bit 31, which is 256 here and no sign.
            powers = (raised >> MANTISSA).bitwise_and_(0x1FF).clamp_(max=255)
            exponents[start : start + PIECE] = powers.masked_fill_((part & 0x7F800000) == 0, 0).to(torch.uint8)
            signs[start : start + part.numel()] = part < 0
        return joined(exponents, _packed(signs))

    def add_decoded(self, data: Tensor, total: Tensor, ctx: Context) -> None:
        """Add the powers of two to `total` [numel]."""
        numel = total.numel()
        exponents, signs = split(data, (torch.uint8, numel), (torch.uint8, -(-numel // 8)))
        for start in range(0, numel, PIECE):
            powers = exponents[start : start + PIECE].to(torch.int32) << MANTISSA
            negative = _unpacked(signs[start // 8 : -(-(start + powers.numel()) // 8)])[: powers.numel()]
            total[start : start + PIECE] += (powers | (negative.to(torch.int32) << 31)).view(torch.float32)

    def wire_bytes(self, numel: int, world: int) -> float:
        """A byte of exponent per element, and a bit of sign."""
        return numel + float(-(-numel // 8))


def _packed(flags: Tensor) -> Tensor:
    """0 and 1 [8·k], uint8, as bits [k], the first in the lowest."""
    shifts = torch.arange(8, dtype=torch.uint8, device=flags.device)
    return (flags.view(-1, 8) << shifts).sum(1, dtype=torch.uint8)


def _unpacked(bits: Tensor) -> Tensor:
    """Undo `_packed`."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits.unsqueeze(1) >> shifts) & 1).view(-1)
