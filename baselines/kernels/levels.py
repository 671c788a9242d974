"""Stochastic rounding to s levels of a bucket's norm, packed at 2, 4 or 8 bits per element: QSGD's quantiser.

Alistarh et al., QSGD, NeurIPS 2017, sections 3.1 and 4. With the norm N of the bucket (Euclidean, or the largest
magnitude, as in the paper's experiments) and s = 2^(bits−1) − 1,

    Q(v) = N/s · sgn(v) · ⌊s·|v|/N + u⌋,  u uniform in [0, 1) for each element,

so E[Q(v)] = v and, for the Euclidean norm, E‖Q(v) − v‖² ≤ min(n/s², √n/s)·‖v‖² over a bucket of n elements. The largest
magnitude gives a lower error and no bound on the number of non-zeros. s is 1, 7 and 127 at 2, 4 and 8 bits.

Random numbers: one 64-bit seed from the torch generator a call; then u of element i is a half, the lower for even i,
of SplitMix64(seed + i // 2) (Steele, Lea and Flood 2014), over 2³². Random access by index, so that the compiled and
the vectorised path, on any device, give identical codes. Ranks must own generators of different seeds.

Wire form: level + s (0 … 2s) in `bits` bits, lowest bits of a byte first, buckets without gaps, the last byte filled
with zeros; and one float32 norm a bucket: ⌈n·bits/8⌉ + 4·⌈n/bucket⌉ bytes. Differs from the paper: fixed width here,
its variable-length code is in `elias`.

A bucket of zeros decodes to zeros. A bucket that holds a NaN or an infinity, or whose norm is beyond float32, has the
norm NaN and decodes to NaN throughout. Rounding is computed in float64; the sum of squares in an order that both paths
share: squares of chunks of up to 1,024 elements are added in halves, the sums of chunks likewise.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baselines.compiling import compiled

Norm = Literal["l2", "max"]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
Levels = npt.NDArray[np.int8]
Words = npt.NDArray[np.uint32]

WIDTHS = (2, 4, 8)
"""Bits per element that fill a byte without remainder."""
CHUNK = 1024
TILE = 4096
"""Elements whose random numbers are drawn at once; they stay in the first cache. Even."""
PIECE = 1 << 20
"""Elements at a time in vectorised torch, at least; a 16th of a large tensor, to bound temporaries by its size."""

GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of SplitMix64
U64_GAMMA, U64_FIRST, U64_SECOND = np.uint64(GAMMA), np.uint64(FIRST), np.uint64(SECOND)
U64_LOW, ONE = np.uint64(0xFFFFFFFF), np.uint64(1)
TO_UNIT = 2.0**-32


def num_levels(bits: int) -> int:
    """s. Raises: ValueError for a width that does not divide a byte, or that leaves no level beside the sign."""
    if bits not in WIDTHS:
        raise ValueError(f"{bits} bits per element cannot be packed; choose one of {', '.join(map(str, WIDTHS))}")
    return int(2 ** (bits - 1)) - 1


def encode(
    values: Tensor, bits: int, bucket: int, generator: torch.Generator, norm: Norm = "l2"
) -> tuple[Tensor, Tensor]:
    """Codes, uint8 [⌈n·bits/8⌉], and norms, float32 [⌈n/bucket⌉], of `values` [n] float32.

    Raises: ValueError for another type or shape, width, norm, or a bucket of no elements.
    """
    levels, norms = quantise(values, bits, bucket, generator, norm)
    return pack(levels, bits), norms


def add_decoded(total: Tensor, codes: Tensor, norms: Tensor, bits: int, bucket: int) -> None:
    """Add the decoded elements to `total` [n] float32 in place.

    Raises: ValueError if codes, norms and buckets do not fit the length of `total`.
    """
    add_levels(total, unpack(codes, bits, total.numel()), norms, bits, bucket)


def quantise(
    values: Tensor, bits: int, bucket: int, generator: torch.Generator, norm: Norm = "l2"
) -> tuple[Tensor, Tensor]:
    """Signed levels, int8 [n] in −s … s, and norms, float32 [⌈n/bucket⌉]: what `elias` takes."""
    size, levels_of_norm = _checked(values, bucket), num_levels(bits)
    if norm not in ("l2", "max"):
        raise ValueError(f"unknown norm {norm!r}; choose 'l2' or 'max'")
    device = generator.device
    seed = int(torch.randint(-(2**63), 2**63 - 1, (1,), generator=generator, device=device).item())
    if values.device.type != "cpu":
        return quantise_vectorised(values, levels_of_norm, size, seed, norm)
    source = values.detach().numpy()
    norms = np.empty(_num_buckets(source.size, size), np.float32)
    _norms_of_buckets(source, size, norm == "max", norms)
    levels = np.empty(source.size, np.int8)
    _round(source, size, norms, levels_of_norm, np.uint64(seed % 2**64), levels)
    return torch.from_numpy(levels), torch.from_numpy(norms)


def add_levels(total: Tensor, levels: Tensor, norms: Tensor, bits: int, bucket: int) -> None:
    """Add levels · norm/s to `total` [n] float32 in place. Raises: ValueError if the lengths do not fit."""
    size, levels_of_norm = _checked(total, bucket), num_levels(bits)
    if levels.dtype != torch.int8 or levels.shape != total.shape:
        raise ValueError(
            f"levels are {levels.numel()} elements of {levels.dtype}; needed are {total.numel()} of torch.int8"
        )
    if norms.dtype != torch.float32 or norms.numel() != _num_buckets(total.numel(), size):
        raise ValueError(
            f"norms are {norms.numel()} elements of {norms.dtype}; {total.numel()} elements in buckets of {bucket} "
            f"need {_num_buckets(total.numel(), size)} of torch.float32"
        )
    units = norms.detach() / levels_of_norm
    if total.device.type == "cpu":
        _add(total.detach().numpy(), levels.contiguous().numpy(), units.contiguous().numpy(), size)
    else:
        add_levels_vectorised(total, levels, units, size)


def pack(levels: Tensor, bits: int) -> Tensor:
    """Levels int8 [n] as codes uint8 [⌈n·bits/8⌉]."""
    offset, per_byte = num_levels(bits), 8 // bits
    if levels.device.type != "cpu" or per_byte == 1:
        return pack_vectorised(levels, bits)
    whole = levels.numel() // per_byte
    codes = np.empty(whole, np.uint8)
    pack_some = _pack_pairs if per_byte == 2 else _pack_fours
    pack_some(levels.contiguous().numpy(), np.uint8(offset), codes)
    packed, rest = torch.from_numpy(codes), levels[whole * per_byte :]
    return torch.cat([packed, pack_vectorised(rest, bits)]) if rest.numel() else packed


def unpack(codes: Tensor, bits: int, numel: int) -> Tensor:
    """Codes uint8 [⌈n·bits/8⌉] as levels int8 [n]. Raises: ValueError for another type or number of bytes."""
    num_levels(bits)
    needed = -(-numel * bits // 8)
    if codes.dtype != torch.uint8 or codes.dim() != 1 or codes.numel() != needed:
        raise ValueError(
            f"codes are {codes.dtype} of shape {tuple(codes.shape)}; "
            f"{numel} elements at {bits} bits need {needed} of torch.uint8"
        )
    if codes.device.type != "cpu" or bits == 8:
        return unpack_vectorised(codes, bits, numel)
    word = np.dtype(f"u{8 // bits}")
    table = unpack_vectorised(torch.arange(256).byte(), bits, 256 * 8 // bits).numpy().view(word)
    words = np.empty(needed, word)
    _look_up(codes.contiguous().numpy(), table, words)
    return torch.from_numpy(words.view(np.int8))[:numel]


def pack_vectorised(levels: Tensor, bits: int) -> Tensor:
    """`pack` in torch alone, on any device."""
    codes, per_byte = (levels + num_levels(bits)).view(torch.uint8), 8 // bits
    if per_byte == 1:
        return codes
    packed = codes[::per_byte].clone()
    for place in range(1, per_byte):
        some = codes[place::per_byte]
        packed[: some.numel()] |= some << (place * bits)
    return packed


def unpack_vectorised(codes: Tensor, bits: int, numel: int) -> Tensor:
    """`unpack` in torch alone, on any device."""
    offset, per_byte = num_levels(bits), 8 // bits
    if per_byte == 1:
        return codes.view(torch.int8) - offset  # wraps around, as the code did
    levels = torch.empty(numel, dtype=torch.int8, device=codes.device)
    for place in range(per_byte):
        some = levels[place::per_byte]
        torch.sub(((codes >> (place * bits)) & (2**bits - 1))[: some.numel()].view(torch.int8), offset, out=some)
    return levels


def quantise_vectorised(values: Tensor, s: int, bucket: int, seed: int, norm: Norm) -> tuple[Tensor, Tensor]:
    """`quantise` in torch alone, on any device, from a seed."""
    norms = _norms_vectorised(values, bucket, norm)
    sound = norms.isfinite()
    scales = torch.where(sound & (norms > 0), s / norms.double(), 0.0)
    levels = torch.empty(values.numel(), dtype=torch.int8, device=values.device)
    for start in range(0, values.numel(), _piece_of(values)):
        part = values[start : start + _piece_of(values)]
        indices = torch.arange(start, start + part.numel(), device=values.device)
        owners = indices // bucket
        rounded = part.abs().double().mul_(scales[owners]).add_(_dice_vectorised(seed, indices)).floor_().clamp_(max=s)
        rounded = torch.where(sound[owners], rounded, 0.0).to(torch.int8)
        levels[start : start + part.numel()] = torch.where(part < 0, -rounded, rounded)
    return levels, norms


def add_levels_vectorised(total: Tensor, levels: Tensor, units: Tensor, bucket: int) -> None:
    """`add_levels` in torch alone, on any device, with norm/s of each bucket."""
    for start in range(0, total.numel(), _piece_of(total)):
        part = levels[start : start + _piece_of(total)]
        owners = torch.arange(start, start + part.numel(), device=total.device) // bucket
        total[start : start + part.numel()] += part * units[owners]


def _checked(values: Tensor, bucket: int) -> int:
    """The bucket's size, no larger than the tensor."""
    if values.dtype != torch.float32 or values.dim() != 1 or not values.is_contiguous():
        raise ValueError(
            f"expected a contiguous 1-D float32 tensor, got {values.dtype} of shape {tuple(values.shape)} "
            f"and strides {values.stride()}; flatten it first"
        )
    if bucket < 1:
        raise ValueError(f"a bucket of {bucket} elements holds nothing; choose 1 or more (the paper: 512)")
    return min(bucket, max(1, values.numel()))


def _num_buckets(numel: int, bucket: int) -> int:
    return -(-numel // bucket)


def _piece_of(values: Tensor) -> int:
    return max(PIECE, -(-values.numel() // 16))


def _norms_vectorised(values: Tensor, bucket: int, norm: Norm) -> Tensor:
    """Every bucket is cut into chunks of equal width, the missing elements taken as zeros."""
    numel, width = values.numel(), min(bucket, CHUNK)
    num_buckets, per_bucket = _num_buckets(numel, bucket), -(-bucket // width)
    if norm == "max":
        parts = torch.zeros(num_buckets * per_bucket, dtype=torch.float32, device=values.device)
    else:
        parts = torch.zeros(num_buckets * per_bucket, dtype=torch.float64, device=values.device)
    columns = torch.arange(width, device=values.device)
    step = max(1, _piece_of(values) // width)
    for first in range(0, parts.numel(), step):
        chunks = torch.arange(first, min(first + step, parts.numel()), device=values.device)
        owners = chunks // per_bucket
        positions = (owners * bucket + chunks % per_bucket * width).unsqueeze(1) + columns
        missing = positions >= ((owners + 1) * bucket).clamp_(max=numel).unsqueeze(1)
        rows = values[positions.clamp_(max=numel - 1)].masked_fill_(missing, 0.0)
        parts[chunks] = rows.abs().amax(1) if norm == "max" else _in_halves(rows.double().square_())
    table = parts.view(num_buckets, per_bucket)
    norms = table.amax(1) if norm == "max" else _in_halves(table).sqrt_().float()
    return norms.masked_fill_(~norms.isfinite(), torch.nan)


def _in_halves(rows: Tensor) -> Tensor:
    """Sum of each row; the upper half is added to the lower one until one column is left."""
    while (width := rows.size(1)) > 1:
        half = (width + 1) // 2
        rows = torch.cat([rows[:, : width - half] + rows[:, half:], rows[:, width - half : half]], dim=1)
    return rows[:, 0]


def _signed(word: int) -> int:
    """The int64 of the same bits: torch has no arithmetic on uint64."""
    return (word + 2**63) % 2**64 - 2**63


def _dice_vectorised(seed: int, indices: Tensor) -> Tensor:
    """u of each element, float64 in [0, 1). int64 wraps like uint64; a shift must lose the copies of the sign."""
    state = (indices // 2 + 1) * _signed(GAMMA) + _signed(seed)
    state = (state ^ ((state >> 30) & (2**34 - 1))) * _signed(FIRST)
    state = (state ^ ((state >> 27) & (2**37 - 1))) * _signed(SECOND)
    state = state ^ ((state >> 31) & (2**33 - 1))
    return ((state >> (32 * (indices % 2))) & (2**32 - 1)).double() * TO_UNIT


@compiled()
def _norms_of_buckets(values: Floats, bucket: int, largest: bool, norms: Floats) -> None:
    width = min(bucket, CHUNK)
    per_bucket = (bucket + width - 1) // width
    squares, parts = np.empty(width), np.empty(per_bucket)
    for owner in range(norms.size):
        stop = min((owner + 1) * bucket, values.size)
        for chunk in range(per_bucket):
            start = owner * bucket + chunk * width
            some = values[min(start, stop) : min(start + width, stop)]
            parts[chunk] = _largest(some) if largest else _sum_of_squares(some, squares)
        norm = np.float32(_largest_of_parts(parts) if largest else np.sqrt(_add_halves(parts, per_bucket)))
        norms[owner] = norm if np.isfinite(norm) else np.nan


@compiled()
def _largest(values: Floats) -> float:
    """The largest magnitude; bits of floats order like integers, NaN above infinity, so that neither is lost."""
    largest = np.int32(0)
    magnitudes = values.view(np.int32)
    for element in range(magnitudes.size):
        largest = max(largest, magnitudes[element] & np.int32(0x7FFFFFFF))
    return float(np.array([largest], np.int32).view(np.float32)[0])


@compiled()
def _largest_of_parts(parts: Doubles) -> float:
    largest = 0.0
    for part in parts:
        if not part <= largest:  # also where it is NaN; the caller does not tell NaN from infinity
            largest = part if np.isfinite(part) else np.inf
    return largest


@compiled()
def _sum_of_squares(values: Floats, squares: Doubles) -> float:
    for element in range(values.size):
        value = np.float64(values[element])
        squares[element] = value * value
    squares[values.size :] = 0.0
    return _add_halves(squares, squares.size)


@compiled()
def _add_halves(terms: Doubles, width: int) -> float:
    while width > 1:
        half = (width + 1) // 2
        for element in range(width - half):
            terms[element] += terms[element + half]
        width = half
    return float(terms[0])


@compiled()
def _roll(seed: np.uint64, start: int, dice: Words) -> None:
    """32 random bits for the elements from `start`, which is even, on."""
    pairs = dice.view(np.uint64)
    for pair in range(pairs.size):
        state = np.uint64(start // 2 + pair + 1) * U64_GAMMA + seed
        state = (state ^ (state >> np.uint64(30))) * U64_FIRST
        state = (state ^ (state >> np.uint64(27))) * U64_SECOND
        pairs[pair] = state ^ (state >> np.uint64(31))


@compiled()
def _round(values: Floats, bucket: int, norms: Floats, s: int, seed: np.uint64, levels: Levels) -> None:
    dice = np.empty(TILE, np.uint32)
    for tile in range(0, values.size, TILE):
        _roll(seed, tile, dice)
        start, end = tile, min(tile + TILE, values.size)
        while start < end:
            owner = start // bucket
            stop = min((owner + 1) * bucket, end)
            norm = np.float64(norms[owner])
            if norm > 0:  # not for NaN
                _round_some(values[start:stop], s / norm, dice[start - tile : stop - tile], s, levels[start:stop])
            else:
                levels[start:stop] = 0
            start = stop


@compiled()
def _round_some(values: Floats, scale: float, dice: Words, s: int, levels: Levels) -> None:
    top = np.int32(s)
    for element in range(values.size):
        value = values[element]
        level = min(np.int32(abs(np.float64(value)) * scale + dice[element] * TO_UNIT), top)
        levels[element] = level * (np.int32(1) - np.int32(2) * np.int32(value < np.float32(0)))


@compiled()
def _pack_pairs(levels: Levels, offset: np.uint8, codes: Bytes) -> None:
    for byte in range(codes.size):
        low, high = np.uint8(levels[2 * byte]) + offset, np.uint8(levels[2 * byte + 1]) + offset
        codes[byte] = np.uint8(low) | np.uint8(np.uint8(high) << np.uint8(4))


@compiled()
def _pack_fours(levels: Levels, offset: np.uint8, codes: Bytes) -> None:
    for byte in range(codes.size):
        packed = np.uint8(0)
        for place in range(4):
            code = np.uint8(np.uint8(levels[4 * byte + place]) + offset)
            packed |= np.uint8(code << np.uint8(2 * place))
        codes[byte] = packed


@compiled()
def _look_up(codes: Bytes, table: npt.NDArray[np.unsignedinteger], words: npt.NDArray[np.unsignedinteger]) -> None:
    for byte in range(codes.size):
        words[byte] = table[codes[byte]]


@compiled()
def _add(total: Floats, levels: Levels, units: Floats, bucket: int) -> None:
    for owner in range(units.size):
        start, stop = owner * bucket, min((owner + 1) * bucket, total.size)
        _add_scaled(total[start:stop], levels[start:stop], units[owner])


@compiled()
def _add_scaled(total: Floats, levels: Levels, unit: np.float32) -> None:
    for element in range(total.size):
        total[element] += np.float32(levels[element]) * unit
