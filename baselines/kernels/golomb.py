"""Golomb-Rice code of sparse positions: gaps between them, with the parameter 2^b.

Golomb (IEEE Trans. Inf. Theory 1966), as in Sparse Binary Compression (Sattler et al., IJCNN 2019, section on optimal
position encoding). The gap d ≥ 1 from the position before, the first counted from −1, becomes ⌊(d − 1)/2^b⌋ ones, a
zero, and (d − 1) mod 2^b in b bits. If each element is sent with probability p, gaps are geometric, and the best
parameter is

    b* = 1 + ⌊log₂(ln(φ − 1)/ln(1 − p))⌋, φ = (1 + √5)/2,

with b* + 1/(1 − (1 − p)^(2^b*)) bits a position on average.

Wire form: bits from the highest of a byte on, the last byte filled with zeros; nothing else: the receiver knows the
count and b. Differs from the paper: b* is not below 0, where p > 0.62; the paper has p ≤ 0.01. The formulas are from
the project's notes and agree with the test's measured rates; not verified against the paper's text.

Compiled CPU code; a tensor on another device goes to the CPU and its code back. A stream that is cut, too long or
points beyond `numel` raises ValueError; give `numel` before the positions index anything.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baselines.compiling import compiled

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

MAX_PARAMETER = 40
LIMIT = 1 << 48
"""More elements than any tensor has; sums of decoded gaps below it cannot overflow."""
LEAST_DENSITY = 1 / LIMIT  # gaps of rarer positions would be longer than any tensor
CUT, BEYOND = -1, -2


def best_parameter(density: float) -> int:
    """b* for positions of which a share `density` is sent. Raises: ValueError outside (0, 1]."""
    if not 0 < density <= 1:
        raise ValueError(f"density {density} is no share of positions; choose one above 0 and up to 1")
    if density == 1:
        return 0
    golden = (1 + math.sqrt(5)) / 2
    best = 1 + math.floor(math.log2(math.log(golden - 1) / math.log1p(-max(density, LEAST_DENSITY))))
    return min(max(best, 0), MAX_PARAMETER)


def encode(positions: Tensor, numel: int, parameter: int) -> Tensor:
    """Code uint8 of ascending `positions` int64 [count] in 0 … numel − 1.

    Raises: ValueError for another type or shape, positions that do not ascend or lie outside, a wrong parameter.
    """
    _check_parameter(parameter)
    if positions.dtype != torch.int64 or positions.dim() != 1:
        raise ValueError(f"expected 1-D int64 positions, got {positions.dtype} of shape {tuple(positions.shape)}")
    if not 0 <= numel <= LIMIT:
        raise ValueError(f"{numel} elements cannot be coded; numel must lie in 0 … {LIMIT}")
    source = positions.detach().cpu().contiguous().numpy()
    num_bits = _count(source, numel, parameter)
    if num_bits < 0:
        raise ValueError(
            f"the {source.size} positions must ascend without repeats in 0 … {numel - 1}; sort them and drop doubles"
        )
    stream = np.empty((num_bits + 7) // 8, np.uint8)
    _write(source, parameter, stream)
    return torch.from_numpy(stream).to(positions.device)


def decode(stream: Tensor, count: int, parameter: int, numel: int = LIMIT) -> Tensor:
    """The `count` positions int64, ascending and below `numel`.

    Raises: ValueError for a stream that `encode` did not write for this count, parameter and numel.
    """
    _check_parameter(parameter)
    if stream.dtype != torch.uint8 or stream.dim() != 1:
        raise ValueError(f"expected a 1-D uint8 tensor, got {stream.dtype} of shape {tuple(stream.shape)}")
    if not 0 <= numel <= LIMIT:
        raise ValueError(f"{numel} elements cannot be coded; numel must lie in 0 … {LIMIT}")
    if not 0 <= count * (1 + parameter) <= 8 * stream.numel():
        raise ValueError(
            f"{stream.numel()} bytes cannot hold {count} positions of {1 + parameter} bits or more: "
            "the message was cut, or count is wrong"
        )
    positions = np.empty(count, np.int64)
    used = _read(stream.detach().cpu().contiguous().numpy(), parameter, numel, positions)
    if used == CUT:
        raise ValueError(f"the Golomb stream of {stream.numel()} bytes ends before position {count}: it was cut")
    if used == BEYOND:
        raise ValueError(f"the Golomb stream points beyond {numel} elements: it was damaged, or numel is wrong")
    if (used + 7) // 8 != stream.numel():
        raise ValueError(
            f"{count} positions end after {(used + 7) // 8} of {stream.numel()} bytes: "
            "the message was damaged, or count is wrong"
        )
    return torch.from_numpy(positions).to(stream.device)


def bits_per_position(density: float, parameter: int) -> float:
    """Expected bits b + 1/(1 − (1 − p)^(2^b)) of a position when each element is sent with probability `density`."""
    _check_parameter(parameter)
    if density == 1:
        return parameter + 1.0
    return parameter - 1 / math.expm1(2**parameter * math.log1p(-max(density, LEAST_DENSITY)))


def _check_parameter(parameter: int) -> None:
    if not 0 <= parameter <= MAX_PARAMETER:
        raise ValueError(f"Golomb parameter {parameter} must lie in 0 … {MAX_PARAMETER}; see best_parameter")


@compiled()
def _count(positions: Positions, numel: int, parameter: int) -> int:
    """Bits of the code; negative if positions do not ascend in 0 … numel − 1."""
    num_bits, last = positions.size * (1 + parameter), -1
    for position in positions:
        if position <= last or position >= numel:
            return BEYOND
        num_bits += (position - last - 1) >> parameter
        last = position
    return num_bits


@compiled()
def _write(positions: Positions, parameter: int, stream: Bytes) -> None:
    register, held, at, last = 0, 0, 0, -1
    for position in positions:
        gap = position - last - 1
        last = position
        num_ones = gap >> parameter
        while num_ones:  # eight at a time, so that the register of 64 bits is never full
            some = min(num_ones, 8)
            register, held, num_ones = (register << some) | ((1 << some) - 1), held + some, num_ones - some
            while held >= 8:
                held -= 8
                stream[at] = (register >> held) & 0xFF
                at += 1
        register = (register << (1 + parameter)) | (gap & ((1 << parameter) - 1))
        held += 1 + parameter
        while held >= 8:
            held -= 8
            stream[at] = (register >> held) & 0xFF
            at += 1
    if held:
        stream[at] = (register << (8 - held)) & 0xFF


@compiled()
def _read(stream: Bytes, parameter: int, numel: int, positions: Positions) -> int:
    """Fill `positions`; the bits used, or a negative complaint. Every read is within the stream."""
    register, held, at, last = 0, 0, 0, -1
    for index in range(positions.size):
        quotient = 0
        while True:
            if not held:
                if at == stream.size:
                    return CUT
                register, held, at = int(stream[at]), 8, at + 1
            held -= 1
            if not (register >> held) & 1:
                break
            quotient += 1
        while held < parameter:
            if at == stream.size:
                return CUT
            register, held, at = ((register & 0xFFFFFFFFFF) << 8) | int(stream[at]), held + 8, at + 1
        held -= parameter
        if quotient > numel >> parameter:
            return BEYOND
        last += (quotient << parameter) + ((register >> held) & ((1 << parameter) - 1)) + 1
        if last >= numel:
            return BEYOND
        positions[index] = last
    return 8 * at - held
