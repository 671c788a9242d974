"""What sparsifying compressors share: how many elements to keep, which ones stand out, and the code of those kept.

The code is the values, then their positions in the smallest type that holds a position of the message: 5, 6 or 8 bytes
an element for up to 256, 65 536 or more elements. How many there are follows from the number of bytes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from baselines.api import Context
from baselines.codec import joined, split
from baselines.kernels import select, sparse

_NUM_EXCEEDING = 10  # a threshold is an estimate from so many samples at least that reach it


def check_share(name: str, value: float) -> None:
    """Raises: ValueError unless `value` is above 0 and at most 1."""
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name} is {value}; use a share above 0 and up to 1, e.g. 0.01")


def num_kept(numel: int, density: float) -> int:
    """k = ⌈density · n⌉, at least one of what there is."""
    return min(numel, max(1, select.ceil_share(density, numel)))


def code_bytes(numel: int, density: float, dtype: torch.dtype = torch.float32) -> float:
    """Bytes of the code of `num_kept` of `numel` elements."""
    return float(num_kept(numel, density) * (dtype.itemsize + sparse.index_dtype(numel).itemsize))


def chosen_bits(density: float, value_bits: float = 32.0) -> float:
    """Bits per element of a code of the `density` largest: their values, and which they are, at the entropy H(density).

    No type of index reaches the entropy; the code that is sent takes `code_bytes`.
    """
    return density * value_bits + entropy(density)


def entropy(share: float) -> float:
    """Bits of one yes or no that is yes with probability `share`."""
    if not 0.0 < share < 1.0:
        return 0.0
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)


def sparse_code(values: Tensor, positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The elements of `values` [n] at `positions` [k] as bytes, the values in `dtype`."""
    return joined(sparse.gather(values, positions).to(dtype), sparse.pack(positions, values.numel()))


def add_sparse_code(data: Tensor, total: Tensor, dtype: torch.dtype = torch.float32) -> None:
    """Add what `data` stands for to `total` [n]. Raises: ValueError if it is no whole number of elements."""
    values, positions = elements(data, total.numel(), dtype)
    sparse.add_at(total, positions, values.to(torch.float32))


def elements(data: Tensor, numel: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Values [k] and positions [k, int64] of a code for `numel` elements."""
    packed = sparse.index_dtype(numel)
    count = data.numel() // (dtype.itemsize + packed.itemsize)
    values, positions = split(data, (dtype, count), (packed, count))
    return values, sparse.unpack(positions)


def standing_out(values: Tensor, density: float, sample: float, generator: torch.Generator) -> Tensor:
    """Positions (ascending) of about `density` of the elements: those whose magnitude reaches a threshold, which is
    estimated on a share `sample` of them, or on more where the tensor is small. With density 1 all that are not 0."""
    return select.above(values, 0.0 if density == 1.0 else sampled(values, density, sample, generator))


def sampled(values: Tensor, density: float, sample: float, generator: torch.Generator) -> float:
    """The magnitude that about `density` of `values` [n] reach, by a share `sample` of them, or more where n is small:
    ten samples at least reach it."""
    enough = _NUM_EXCEEDING / (density * max(1, values.numel()))
    return select.sampled_threshold(values, density, min(1.0, max(sample, enough)), generator)


def blocks(values: Tensor, ctx: Context, scope: str) -> list[tuple[int, Tensor]]:
    """Where each block begins and its elements: a tensor's part of the message, or all of it for scope "message"."""
    if scope == "message":
        return [(0, values)]
    sizes = [segment.numel for segment in ctx.message.segments]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return list(zip(starts, values.split(sizes), strict=True))
