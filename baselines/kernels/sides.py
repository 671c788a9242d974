"""The largest elements of each sign, in one read of a tensor.

As in `select`, a bound is guessed from a sample, for each side its own; one read collects what reaches them, and the
largest are taken from these few. Where a guess does not hold, that side is copied and searched alone.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baselines.compiling import compiled
from baselines.kernels import select, sparse
from baselines.kernels.select import STRETCH, largest_key
from baselines.memory import blank

Ints = NDArray[np.signedinteger]

_MASK, _FIRST_NAN = 0x7FFFFFFF, 0x7F800001  # of the bit patterns of float32
_LEAST_NUMEL = 1 << 16


def top_k_sides(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Positions (int64, ascending) of the k largest positive elements of `values` [n] float32, and of the k most
    negative ones. Fewer where a side has fewer: zeros are on neither side, NaN on both. Ties go to the lower position.
    """
    compiles = values.device.type == "cpu" and values.dtype == torch.float32 and values.is_contiguous()
    if not compiles or values.numel() < _LEAST_NUMEL or not 0 < k <= values.numel() // 8:
        return _searched(values, k, 1), _searched(values, k, -1)
    room = 2 * k + 1024
    found = blank(2 * room, torch.int64).view(2, room)
    *nums, least_up, least_down = _collect(values.detach().view(torch.int32).numpy(), k, found.numpy())
    return tuple(  # type: ignore[return-value]
        _taken(values, k, sign, kept[:num]) if num <= room and (num >= k or least <= 1) else _searched(values, k, sign)
        for sign, num, least, kept in zip((1, -1), nums, (least_up, least_down), found, strict=True)
    )


def warm_up() -> None:
    """Compile each kernel, or load it from the cache."""
    top_k_sides(torch.linspace(-1.0, 1.0, _LEAST_NUMEL), 10)


def _taken(values: Tensor, k: int, sign: int, candidates: Tensor) -> Tensor:
    """The k largest of `candidates`, which are all of one side; a NaN is taken whatever its sign."""
    if candidates.numel() <= k:
        return candidates.clone()
    return candidates[select.top_k(sparse.gather(values, candidates), k)]


def _searched(values: Tensor, k: int, sign: int) -> Tensor:
    """One side alone, whatever the device and the type."""
    side = (values if sign > 0 else values.neg()).clamp(min=0.0)
    found = select.top_k(side, k)
    return found[side[found] != 0]


@compiled()
def _collect(bits: Ints, k: int, found: NDArray[np.int64]) -> tuple[int, int, int, int]:
    """Positions of what reaches the guessed bounds, positive in row 0, negative in row 1; how many, and the bounds.

    A number that exceeds the width of `found` says that the row is not complete.
    """
    least_up, least_down = _bounds(bits, k)
    lower, room = min(least_up, least_down), found.shape[1]
    num_up, num_down = 0, 0
    for start in range(0, bits.size, STRETCH):
        stop = min(start + STRETCH, bits.size)
        if stop - start == STRETCH and largest_key(bits[start:stop], _MASK) < lower:
            continue
        for i in range(start, stop):
            key = bits[i] & _MASK
            is_nan = key >= _FIRST_NAN
            if key >= least_up and (bits[i] >= 0 or is_nan):
                if num_up < room:
                    found[0, num_up] = i
                num_up += 1
            if key >= least_down and (bits[i] < 0 or is_nan):
                if num_down < room:
                    found[1, num_down] = i
                num_down += 1
    return num_up, num_down, least_up, least_down


@compiled()
def _bounds(bits: Ints, k: int) -> tuple[int, int]:
    """For each side a key, at least 1, that rather more than k of its elements reach than fewer, by one sample."""
    num_samples = min(bits.size >> 6, 512 * bits.size // k)
    stride = bits.size // num_samples
    ups, downs = np.zeros(num_samples, np.int32), np.zeros(num_samples, np.int32)
    for i in range(num_samples):
        taken = bits[i * stride + ((((i * 2654435761) & 0xFFFFFFFF) * stride) >> 32)]  # a hash, as in `select._guess`
        if taken < 0:
            downs[i] = taken & _MASK
        else:
            ups[i] = taken
    hits = num_samples * k / bits.size
    rank = min(num_samples, int(hits + 4.0 * np.sqrt(hits)) + 2)
    return max(1, _key_of_rank(ups, rank)), max(1, _key_of_rank(downs, rank))


@compiled()
def _key_of_rank(keys: NDArray[np.int32], rank: int) -> int:
    """The `rank`-th largest of the keys."""
    return int(np.partition(keys, keys.size - rank)[keys.size - rank])
