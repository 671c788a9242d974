"""Positions and values of a sparse gradient: the smallest type for positions, and adding them up.

Positions go into tensors of one message, so 8 bits do up to 256 elements, 16 bits up to 65 536, 32 bits beyond; never
64. What arrives from another rank is checked before it is used: a position outside the tensor is an error, not a write
to foreign memory.

On the CPU contiguous float32 is compiled, other types and devices take torch's indexed operations. `add_at` adds
duplicates in the order in which they stand on the CPU; on a GPU their order is free, so their sum may differ in the
last digits from run to run. Positions of one rank are unique, so that touches no compressor here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baselines.compiling import compiled

Positions = NDArray[np.integer]
Floats = NDArray[np.float32]

_TYPES = ((1 << 8, torch.uint8), (1 << 16, torch.uint16), (1 << 31, torch.int32))


def index_dtype(numel: int) -> torch.dtype:
    """The smallest type that holds every position of a tensor of `numel` elements."""
    for limit, dtype in _TYPES:
        if numel <= limit:
            return dtype
    raise ValueError(f"{numel} elements in one message; positions have 32 bits, split it below {1 << 31} elements")


def pack(positions: Tensor, numel: int) -> Tensor:
    """`positions` [k] in the type of `index_dtype(numel)`."""
    _check_inside(positions, numel)
    return positions.to(index_dtype(numel))


def unpack(packed: Tensor) -> Tensor:
    """Packed positions as int64, as torch indexes with."""
    return packed.to(torch.int64)


def add_at(total: Tensor, positions: Tensor, values: Tensor) -> None:
    """total[positions[i]] += values[i], in place; positions that repeat add up."""
    if positions.numel() != values.numel():
        raise ValueError(f"{positions.numel()} positions for {values.numel()} values; give one position a value")
    _check_inside(positions, total.numel())
    if _compiles(total, values):
        _add_at(_array(total), _array(positions), _array(values))
    else:
        total.index_add_(0, unpack(positions), values.to(total.dtype))


def gather(values: Tensor, positions: Tensor) -> Tensor:
    """values[positions], a new tensor."""
    _check_inside(positions, values.numel())
    if not _compiles(values):
        return values[unpack(positions)]
    taken = torch.empty(positions.numel(), dtype=values.dtype)
    _gather(_array(values), _array(positions), taken.numpy())
    return taken


def zero_at(values: Tensor, positions: Tensor) -> None:
    """values[positions] = 0, in place."""
    _check_inside(positions, values.numel())
    if _compiles(values):
        _zero_at(_array(values), _array(positions))
    else:
        values.index_fill_(0, unpack(positions), 0)


def warm_up() -> None:
    """Compile each kernel for each type of positions, or load it from the cache."""
    for dtype in (*(dtype for _, dtype in _TYPES), torch.int64):
        values, positions = torch.zeros(1), torch.zeros(1, dtype=dtype)
        add_at(values, positions, gather(values, positions))
        zero_at(values, positions)


def _compiles(*tensors: Tensor) -> bool:
    return all(t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().contiguous().numpy()


def _check_inside(positions: Tensor, numel: int) -> None:
    """On the CPU only: torch's own kernels check on the device, without waiting for it."""
    if positions.device.type == "cpu" and positions.numel():
        least, most = _range(_array(positions))
        if least < 0 or most >= numel:
            wrong = least if least < 0 else most
            raise IndexError(f"position {wrong} in a tensor of {numel} elements; the payload is not of this message")


# Compiled, one thread; without bounds checks, so positions are checked before.


@compiled()
def _range(positions: Positions) -> tuple[int, int]:
    least, most = positions[0], positions[0]
    for position in positions:
        least, most = min(least, position), max(most, position)
    return least, most


@compiled()
def _add_at(total: Floats, positions: Positions, values: Floats) -> None:
    for i in range(positions.size):
        total[positions[i]] += values[i]


@compiled()
def _gather(values: Floats, positions: Positions, taken: Floats) -> None:
    for i in range(positions.size):
        taken[i] = values[positions[i]]


@compiled()
def _zero_at(values: Floats, positions: Positions) -> None:
    for position in positions:
        values[position] = 0.0
