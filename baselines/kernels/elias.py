"""Elias' recursive (omega) code of quantised levels, as QSGD sends them.

Alistarh et al., QSGD, NeurIPS 2017, section 3.1 (Elias, IEEE Trans. Inf. Theory 1975, for the code). ω(k) of an integer
k ≥ 1 is its binary form, before it that of its length less one, and so on down to 1, then a 0: ω(1) = 0, ω(2) = 100,
ω(4) = 101000. Its length is log₂ k + log₂ log₂ k + … + 1, exactly 1, 3, 3, 6, 6, 6, 6, 7 for k = 1 … 8.

Two variants; the shorter one is taken, its mark is the first byte:

- sparse (0), section 3.1: ω(number of non-zeros + 1), then for each non-zero element ω(distance from the one before,
  the first counted from −1), one sign bit (1 is negative), ω(|level|);
- dense (1), shorter where few levels are 0: for each element ω(|level| + 1), and a sign bit if the level is not 0.

Bounds of the paper, for one bucket of n elements with the Euclidean norm sent in 32 bits: sparse, Theorem 3.2, at most
(3 + (3/2 + o(1))·log₂(2(s² + n)/(s(s + √n))))·s(s + √n) + 32 bits; dense with s = √n, Corollary 3.3, at most 2.8·n
+ 32. Gaussian buckets meet the second, thanks to the sparse form: 2.76·n at s = 64, where the dense form takes 2.9·n.
Not all buckets do: equal magnitudes take 3·n sparse and 4·n dense, since the bound leaves out the o(1) of
|ω(k)| ≤ (1 + o(1))·log₂ k + 1 and levels are so small there that the 3 bits of ω(2), not 2, decide. What holds for the
dense form: with |ω(k)| ≤ 2.5·log₂ k + 1 for all k, E Σ levels² ≤ 2n and Jensen, (2 + 1.25·log₂ 6)·n ≈ 5.3·n bits.

Differs from the paper: the count in front of the sparse form, so that the stream ends itself; norms apart, in their own
tensor; no sign of a zero in the dense form. The paper's full version, with its code for the dense case, was not at
hand: that variant is not verified against the paper.

Bits are written from the highest of a byte on, the last byte filled with zeros. Compiled CPU code; a tensor on another
device goes to the CPU and its code back. A stream that is cut, too long or impossible raises ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baselines.compiling import compiled

Bytes = npt.NDArray[np.uint8]
Levels = npt.NDArray[np.int8]
Words = npt.NDArray[np.uint32]
Symbols = npt.NDArray[np.int16]

SPARSE, DENSE = 0, 1
WINDOW = 15
"""Bits of the longest code of an int8 level in the dense form: 14 of ω(129) and a sign. ω(k) fits for k < 256."""
NUM_OMEGAS = 4096
MAX_GROUP = 42
"""Bits of the longest binary form in a code: below 48, that one read may take, and enough for 2⁴¹ elements."""
CUT, IMPOSSIBLE, TOO_LONG = -1, -2, -3
COMPLAINTS = {
    CUT: "it ends within a code: the message was cut",
    IMPOSSIBLE: "it holds a code that no encoder writes: the message was damaged, or numel differs from the sender's",
    TOO_LONG: "bits are left over: the message was damaged, or numel differs from the sender's",
}


def encode(levels: Tensor) -> Tensor:
    """Code uint8 of signed `levels` int8 [n], with mark and filling. Raises: ValueError for another type or shape."""
    if levels.dtype != torch.int8 or levels.dim() != 1:
        raise ValueError(f"expected a 1-D int8 tensor of levels, got {levels.dtype} of shape {tuple(levels.shape)}")
    source = levels.detach().cpu().contiguous().numpy()
    sparse_bits, dense_bits, num_nonzero = _count(source)
    variant = SPARSE if sparse_bits < dense_bits else DENSE
    num_bits = min(sparse_bits, dense_bits)
    stream = np.empty(1 + (num_bits + 7) // 8, np.uint8)
    stream[0] = variant
    if variant == SPARSE:
        _write_sparse(source, num_nonzero, stream[1:])
    else:
        _write_dense(source, stream[1:])
    return torch.from_numpy(stream).to(levels.device)


def decode(stream: Tensor, numel: int) -> Tensor:
    """The `numel` levels int8 of an `encode`. Raises: ValueError for a stream that `encode` did not write."""
    if stream.dtype != torch.uint8 or stream.dim() != 1 or not stream.numel():
        raise ValueError(f"expected a 1-D uint8 tensor of at least a byte, got {stream.dtype} of {tuple(stream.shape)}")
    source = stream.detach().cpu().contiguous().numpy()
    variant, body = int(source[0]), source[1:]
    if variant not in (SPARSE, DENSE):
        raise ValueError(f"an Elias stream begins with {SPARSE} or {DENSE}, this one with {variant}: it was damaged")
    if numel < 0 or (variant == DENSE and numel > 8 * body.size):
        raise ValueError(f"{body.size} bytes cannot hold {numel} levels of a bit or more: cut, or numel is wrong")
    levels = np.zeros(numel, np.int8)
    used = _read_sparse(body, levels) if variant == SPARSE else _read_dense(body, levels)
    if used >= 0 and (used + 7) // 8 != body.size:
        used = TOO_LONG
    if used < 0:
        raise ValueError(f"the Elias stream of {source.size} bytes does not hold {numel} levels: {COMPLAINTS[used]}")
    return torch.from_numpy(levels).to(stream.device)


def code_of(integer: int) -> tuple[int, int]:
    """ω(k) as an integer, and its length in bits. Raises: ValueError for less than 1, which has no code."""
    if integer < 1:
        raise ValueError(f"Elias' code is for integers from 1 on, not {integer}")
    code, length = 0, 1
    while integer > 1:
        code |= integer << length
        length += integer.bit_length()
        integer = integer.bit_length() - 1
    return code, length


def _dense_codes() -> tuple[Words, Bytes]:
    """Code and length of each level −128 … 127 in the dense form."""
    codes, lengths = np.zeros(256, np.uint32), np.zeros(256, np.uint8)
    for level in range(-128, 128):
        code, length = code_of(abs(level) + 1)
        if level:
            code, length = code << 1 | (level < 0), length + 1
        codes[level + 128], lengths[level + 128] = code, length
    return codes, lengths


def _windows(symbols: Sequence[int], codes: Sequence[int], lengths: Sequence[int]) -> tuple[Symbols, Bytes]:
    """The symbol at the head of each window of bits and the length of its code, 0 where there is none."""
    found, sizes = np.zeros(1 << WINDOW, np.int16), np.zeros(1 << WINDOW, np.uint8)
    for symbol, code, length in zip(symbols, codes, lengths, strict=True):
        first, last = code << (WINDOW - length), (code + 1) << (WINDOW - length)
        found[first:last], sizes[first:last] = symbol, length
    return found, sizes


# Tables, which compiled code takes in as constants: codes of small integers, and what a window of bits begins with.
OMEGA_CODES = np.array([0, *(code_of(integer)[0] for integer in range(1, NUM_OMEGAS))], np.uint32)
OMEGA_LENGTHS = np.array([0, *(code_of(integer)[1] for integer in range(1, NUM_OMEGAS))], np.uint8)
DENSE_CODES, DENSE_LENGTHS = _dense_codes()
OMEGAS, OMEGA_SIZES = _windows(range(1, 256), OMEGA_CODES[1:256].tolist(), OMEGA_LENGTHS[1:256].tolist())
LEVELS, LEVEL_SIZES = _windows(range(-128, 128), DENSE_CODES.tolist(), DENSE_LENGTHS.tolist())


@compiled()
def _omega(integer: int) -> tuple[int, int]:
    """`code_of`, compiled."""
    if integer < NUM_OMEGAS:
        return int(OMEGA_CODES[integer]), int(OMEGA_LENGTHS[integer])
    code, length = 0, 1
    while integer > 1:
        size = 0
        while integer >> size:
            size += 1
        code |= integer << length
        length += size
        integer = size - 1
    return code, length


@compiled()
def _flush(stream: Bytes, at: int, register: int, held: int) -> tuple[int, int]:
    """Write the whole bytes of the `held` lowest bits of `register`; where to go on, and how many bits are left."""
    while held >= 8:
        held -= 8
        stream[at] = (register >> held) & 0xFF
        at += 1
    return at, held


@compiled()
def _count(levels: Levels) -> tuple[int, int, int]:
    """Bits of the sparse form, of the dense form, and how many levels are not 0."""
    sparse, dense, num_nonzero, last = 0, 0, 0, -1
    for element in range(levels.size):
        level = 0 + int(levels[element])  # compiled int() keeps eight bits, in which −128 has no magnitude
        dense += int(DENSE_LENGTHS[level + 128])
        if level:
            sparse += _omega(element - last)[1] + 1 + int(OMEGA_LENGTHS[abs(level)])
            last = element
            num_nonzero += 1
    return sparse + _omega(num_nonzero + 1)[1], dense, num_nonzero


@compiled()
def _write_sparse(levels: Levels, num_nonzero: int, stream: Bytes) -> None:
    register, held = _omega(num_nonzero + 1)
    at, held = _flush(stream, 0, register, held)
    last = -1
    for element in range(levels.size):
        level = 0 + int(levels[element])  # compiled int() keeps eight bits, in which −128 has no magnitude
        if level:
            code, length = _omega(element - last)
            register = (register << length) | code
            at, held = _flush(stream, at, register, held + length)
            code, length = _omega(abs(level))
            register = (((register << 1) | int(level < 0)) << length) | code
            at, held = _flush(stream, at, register, held + 1 + length)
            last = element
    if held:
        stream[at] = (register << (8 - held)) & 0xFF


@compiled()
def _write_dense(levels: Levels, stream: Bytes) -> None:
    at, register, held = 0, 0, 0
    for element in range(levels.size):
        symbol = int(levels[element]) + 128
        length = int(DENSE_LENGTHS[symbol])
        register = (register << length) | int(DENSE_CODES[symbol])
        at, held = _flush(stream, at, register, held + length)
    if held:
        stream[at] = (register << (8 - held)) & 0xFF


@compiled()
def _peek(stream: Bytes, position: int, length: int) -> int:
    """The `length` ≤ 48 bits from `position` on; zeros beyond the end, so that no read leaves the stream."""
    register, at = 0, position >> 3
    if at + 7 <= stream.size:
        for byte in range(7):
            register = (register << 8) | int(stream[at + byte])
    else:
        for byte in range(at, at + 7):
            register = (register << 8) | (int(stream[byte]) if byte < stream.size else 0)
    return (register >> (56 - (position & 7) - length)) & ((1 << length) - 1)


@compiled()
def _read_omega(stream: Bytes, position: int) -> tuple[int, int]:
    """The integer whose code starts at `position`, and where the code ends; a negative integer is a complaint."""
    window = _peek(stream, position, WINDOW)
    if OMEGA_SIZES[window]:
        return int(OMEGAS[window]), position + int(OMEGA_SIZES[window])
    integer = 1
    while True:
        if position >= 8 * stream.size:
            return CUT, position
        if not _peek(stream, position, 1):
            return integer, position + 1
        size = integer + 1
        if size > MAX_GROUP:
            return IMPOSSIBLE, position
        integer = _peek(stream, position, size)
        position += size


@compiled()
def _read_sparse(stream: Bytes, levels: Levels) -> int:
    """Fill `levels`, which are zeros; the bits used, or a complaint."""
    count, position = _read_omega(stream, 0)
    if count < 0:
        return count
    if count - 1 > levels.size:
        return IMPOSSIBLE
    element = -1
    for _ in range(count - 1):
        distance, position = _read_omega(stream, position)
        if distance < 0:
            return distance
        element += distance
        sign = _peek(stream, position, 1)
        level, position = _read_omega(stream, position + 1)
        if level < 0:
            return level
        if element >= levels.size or level > 127 + sign:
            return IMPOSSIBLE
        levels[element] = -level if sign else level
    return position if position <= 8 * stream.size else CUT


@compiled()
def _read_dense(stream: Bytes, levels: Levels) -> int:
    """A look-up of the next bits gives a level and how many of them it took; the bits used, or a complaint."""
    register, held, at = 0, 0, 0
    for element in range(levels.size):
        while held < WINDOW:
            register = ((register & 0xFFFF) << 8) | (int(stream[at]) if at < stream.size else 0)
            held += 8
            at += 1
        window = (register >> (held - WINDOW)) & ((1 << WINDOW) - 1)
        length = int(LEVEL_SIZES[window])
        if not length:
            return IMPOSSIBLE
        levels[element] = LEVELS[window]
        held -= length
    used = 8 * at - held
    return used if used <= 8 * stream.size else CUT
