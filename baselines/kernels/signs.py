"""One bit per element and two means per block: the code of 1-bit SGD (Seide et al., Interspeech 2014).

Element v of a block becomes its sign bit, 1 for v ≥ 0 and 0 for v < 0. A block is decoded with the mean of its
non-negative elements for a 1 and the mean of its negative elements for a 0: of all two values, those keep the block's
sum and have the least squared error. [-1, -2, 3, 5] as one block decodes to [-1.5, -1.5, 4, 4].

Wire form: element i is bit i % 8 of byte i // 8 (lowest first, the last byte filled up with zeros), blocks follow each
other without gaps; then float32 means, (negative, non-negative) a block, 0 where a side is empty. An n-element
message with m blocks takes ⌈n/8⌉ + 8·m bytes. Sums are taken in float64.

A block that holds a NaN or an infinity decodes to NaN throughout: the damage shows, at the price of the whole block.
A block whose mean is beyond float32 cannot exist, as no mean exceeds its largest element.

On the CPU one compiled pass each way; elsewhere vectorised torch in pieces: equal bits, means equal up to the order of
float64 sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baselines.compiling import compiled

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

PIECE = 1 << 20
"""Elements at a time in vectorised torch, at least; a 16th of a large tensor, to bound temporaries by its size."""


def encode(values: Tensor, block_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Sign bits and means of `values` [n] float32, cut into blocks of `block_sizes` elements in order.

    Returns: bits, uint8 [⌈n/8⌉]; means, float32 [2·num_blocks], negative then non-negative of each block.
    Raises: ValueError if the blocks do not add up to n, or for another type or shape.
    """
    sizes = _checked(values, block_sizes)
    if values.device.type != "cpu":
        return encode_vectorised(values, block_sizes)
    source = values.detach().numpy()
    bits = np.empty((source.size + 7) // 8, np.uint8)
    _pack_signs(source, bits)
    means = np.empty(2 * sizes.size, np.float32)
    _means_of_blocks(source, sizes, means)
    return torch.from_numpy(bits), torch.from_numpy(means)


def add_decoded(total: Tensor, bits: Tensor, means: Tensor, block_sizes: Sequence[int]) -> None:
    """Add the decoded elements to `total` [n] float32 in place.

    Raises: ValueError if bits, means and blocks do not fit the length of `total`.
    """
    sizes = _checked(total, block_sizes)
    if bits.dtype != torch.uint8 or bits.numel() != (total.numel() + 7) // 8:
        raise ValueError(
            f"sign bits are {bits.numel()} elements of {bits.dtype}; "
            f"{total.numel()} elements need {(total.numel() + 7) // 8} of torch.uint8"
        )
    if means.dtype != torch.float32 or means.numel() != 2 * sizes.size:
        raise ValueError(
            f"means are {means.numel()} elements of {means.dtype}; {sizes.size} blocks need {2 * sizes.size} of float32"
        )
    if total.device.type != "cpu":
        add_decoded_vectorised(total, bits, means, block_sizes)
    else:
        _add_blocks(total.detach().numpy(), bits.contiguous().numpy(), means.detach().contiguous().numpy(), sizes)


def encode_vectorised(values: Tensor, block_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """`encode` in torch alone, on any device: some thirty launches per piece, however many blocks."""
    bits, sums = [], torch.zeros(len(block_sizes), 4, dtype=torch.float64, device=values.device)
    for start, stop, first, sizes in _pieces(values, block_sizes):
        part = values[start:stop]
        positive = part >= 0
        bits.append(_packed(positive))
        lengths = torch.from_numpy(sizes).to(values.device)
        sides = (torch.where(positive, 0.0, part), torch.where(positive, part, 0.0), ~positive, positive)
        for column, side in enumerate(sides):
            # A block that goes on in the next piece gets the rest there.
            sums[first : first + sizes.size, column] += torch.segment_reduce(side.double(), "sum", lengths=lengths)
    means = sums[:, :2] / sums[:, 2:].clamp(min=1)
    means[~means.isfinite().all(1)] = torch.nan
    return torch.cat(bits) if bits else values.new_zeros(0, dtype=torch.uint8), means.float().view(-1)


def add_decoded_vectorised(total: Tensor, bits: Tensor, means: Tensor, block_sizes: Sequence[int]) -> None:
    """`add_decoded` in torch alone, on any device."""
    for start, stop, first, sizes in _pieces(total, block_sizes):
        lengths = torch.from_numpy(sizes).to(total.device)
        blocks = torch.arange(first, first + sizes.size, device=total.device)
        owners = torch.repeat_interleave(blocks, lengths, output_size=stop - start)
        some = _unpacked(bits[start // 8 : (stop + 7) // 8])[: stop - start]  # 1 for the mean of the others
        total[start:stop] += means[owners.mul_(2).add_(some)]


def _checked(values: Tensor, block_sizes: Sequence[int]) -> Integers:
    if values.dtype != torch.float32 or values.dim() != 1 or not values.is_contiguous():
        raise ValueError(
            f"expected a contiguous 1-D float32 tensor, got {values.dtype} of shape {tuple(values.shape)} "
            f"and strides {values.stride()}; flatten it first"
        )
    sizes = np.asarray(block_sizes, dtype=np.int64)
    if sizes.ndim != 1 or (sizes.size and sizes.min() < 1) or int(sizes.sum()) != values.numel():
        raise ValueError(
            f"block sizes must be positive and add up to the {values.numel()} elements of the tensor; "
            f"{sizes.size} sizes from {sizes.min() if sizes.size else 'none'} add up to {int(sizes.sum())}"
        )
    return sizes


def _pieces(values: Tensor, block_sizes: Sequence[int]) -> Iterator[tuple[int, int, int, Integers]]:
    """Where each piece starts and stops, its first block, and how many elements it has of that one and the next ones.
    Pieces start at whole bytes of bits."""
    numel = values.numel()
    piece = max(PIECE, -(-numel // 128) * 8)
    ends = np.cumsum(np.asarray(block_sizes, dtype=np.int64))
    for start in range(0, numel, piece):
        stop = min(start + piece, numel)
        first, last = int(np.searchsorted(ends, start, "right")), int(np.searchsorted(ends, stop, "left"))
        sizes = np.diff(np.minimum(ends[first : last + 1], stop), prepend=start)
        yield start, stop, first, sizes


def _packed(positive: Tensor) -> Tensor:
    """Bits of a piece's signs; only the last piece may be cut within a byte."""
    signs = torch.nn.functional.pad(positive.to(torch.uint8), (0, -positive.numel() % 8)).view(-1, 8)
    return (signs << torch.arange(8, dtype=torch.uint8, device=positive.device)).sum(1, dtype=torch.uint8)


def _unpacked(bits: Tensor) -> Tensor:
    """Zeros and ones, eight per byte."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits.unsqueeze(1) >> shifts) & 1).view(-1)


@compiled()
def _pack_signs(values: Floats, bits: Bytes) -> None:
    whole = values.size // 8
    for byte in range(whole):
        packed = 0
        for bit in range(8):
            packed |= (values[8 * byte + bit] >= 0) << bit
        bits[byte] = packed
    if whole < bits.size:
        packed = 0
        for bit in range(values.size - 8 * whole):
            packed |= (values[8 * whole + bit] >= 0) << bit
        bits[whole] = packed


@compiled(fastmath={"reassoc", "nsz"})
def _sums_of_sides(values: Floats) -> tuple[float, float, float]:
    """Sum of the negative elements, of the others, and how many others.

    Products, not branches: signs of gradients cannot be predicted. A NaN or an infinity makes a sum NaN (0·∞).
    """
    below, above, num_above = 0.0, 0.0, 0.0
    for element in range(values.size):
        value = np.float64(values[element])
        side = np.float64(values[element] >= np.float32(0))
        above += value * side
        below += value * (1.0 - side)
        num_above += side
    return below, above, num_above


@compiled()
def _means_of_blocks(values: Floats, sizes: Integers, means: Floats) -> None:
    start = 0
    for block in range(sizes.size):
        stop = start + sizes[block]
        below, above, num_above = _sums_of_sides(values[start:stop])
        if not (np.isfinite(below) and np.isfinite(above)):
            below = above = np.nan
        means[2 * block] = below / max(1.0, sizes[block] - num_above)
        means[2 * block + 1] = above / max(1.0, num_above)
        start = stop


@compiled()
def _add_bits(total: Floats, bits: Bytes, start: int, stop: int, pair: Floats) -> None:
    """Elements start … stop one by one."""
    for element in range(start, stop):
        total[element] += pair[(bits[element >> 3] >> (element & 7)) & 1]


@compiled()
def _add_blocks(total: Floats, bits: Bytes, means: Floats, sizes: Integers) -> None:
    """Bytes that lie within one block go eight elements at a time; a look-up in a pair again avoids branches."""
    start = 0
    for block in range(sizes.size):
        stop = start + sizes[block]
        pair = means[2 * block : 2 * block + 2]
        head, tail = min(stop, (start + 7) // 8 * 8), stop // 8 * 8
        _add_bits(total, bits, start, head, pair)
        for byte in range(head // 8, tail // 8):
            packed = bits[byte]
            for bit in range(8):
                total[8 * byte + bit] += pair[(packed >> bit) & 1]
        _add_bits(total, bits, max(head, tail), stop, pair)
        start = stop
