"""Which elements to send: exact top-k, thresholds, and thresholds estimated on a sample.

Magnitudes are compared as *keys*, the bit pattern of a floating-point number without its sign: for numbers that are not
negative the integers order as the numbers do. So denormals count whatever the processor's flush mode, −0 equals 0, and
NaN ranks above infinity: a gradient that has diverged is sent, not hidden.

The key of the k-th largest magnitude is found by a radix search from the highest bits down: a histogram of the first
digit of all keys says in which bin it lies, a second one resolves that bin; one more pass writes positions. That is
three reads of the tensor (65 536 bins a digit; five reads for few elements, with 256), whatever the distribution.
`top_k` of a large tensor first guesses a bound from a sample, collects what reaches it in one read, and searches only
there; where fewer than k or too many reach it, it searches everywhere. The result is exact either way.

Values are float32, float16 or bfloat16. Beside the result, and a contiguous copy where they were not contiguous, the
CPU path holds a histogram of at most 512 KiB and in `top_k` up to 24 bytes for each of the k elements, where k ≤ n/8;
the torch path holds about one more tensor of keys, and positions.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baselines.compiling import compiled

Ints = NDArray[np.signedinteger]

# Floating-point type: the integer type of its bit pattern, and how many bits its key has.
_KEYS = {torch.float32: (torch.int32, 31), torch.float16: (torch.int16, 15), torch.bfloat16: (torch.int16, 15)}
_MIN_SAMPLES = 64
STRETCH = 64
"""Elements of which most often none reaches a bound: one look at their largest is faster than one at each."""


def top_k(values: Tensor, k: int) -> Tensor:
    """Positions [k] (int64, ascending) of the k largest magnitudes; ties go to the lower position."""
    bits, key_bits = _as_bits(values)
    _check_k(k, bits.numel())
    if k in (0, bits.numel()):
        return torch.arange(k, device=values.device)
    if not _on_cpu(values):
        return _top_k_torch(bits, k, key_bits)
    found = torch.empty(k, dtype=torch.int64)
    _top_k(bits.numpy(), k, key_bits, found.numpy())
    return found


def ceil_share(share: float, numel: int) -> int:
    """⌈share · n⌉ without the rounding of floats, by which 0.07 · 100 is above 7: a few units of 2⁻⁵³ are taken off."""
    return math.ceil(share * numel * (1 - 2.0**-51))


def sampled_threshold(values: Tensor, density: float, share: float, generator: torch.Generator) -> float:
    """The magnitude that a share `density` of the elements reaches, estimated on a random `share` of them.

    At least min(n, 64) elements are looked at: one in each of equal stretches of the tensor, at a random place of it,
    so none twice, and layers of different scale in proportion. It is the ⌈density · m⌉-th largest magnitude of the m.
    With a share of 1 it is exact. Holds 8 bytes a sampled element; 0 for an empty tensor.
    """
    _check_share("density", density)
    _check_share("share", share)
    bits, key_bits = _as_bits(values)
    numel = bits.numel()
    num_samples = min(numel, max(_MIN_SAMPLES, ceil_share(share, numel)))
    if num_samples == 0:
        return 0.0
    if num_samples < numel:
        places = torch.rand(num_samples, dtype=torch.float32, generator=generator, device=generator.device)
        bits = _sampled(bits, places)
    return _magnitude(_kth(bits, ceil_share(density, num_samples), key_bits), values.dtype)


def above(values: Tensor, threshold: float) -> Tensor:
    """Positions (int64, ascending) with |v| ≥ threshold and v ≠ 0, those of NaN always among them.

    One read of the tensor where few reach the threshold (one in 32), else up to two more, to count them first.
    """
    bits, key_bits = _as_bits(values)
    least = max(1, _key_of(threshold, values.dtype))
    if not _on_cpu(values):
        return (bits & _mask(key_bits)).ge_(least).nonzero().view(-1)
    few = torch.empty(bits.numel() // 32 + 1024, dtype=torch.int64)
    num_few = int(_write_above(bits.numpy(), key_bits, least, few.numpy()))
    if num_few <= few.numel():
        return few[:num_few].clone()
    del few
    found = torch.empty(_num_above(bits.numpy(), key_bits, least), dtype=torch.int64)
    _write_above(bits.numpy(), key_bits, least, found.numpy())
    return found


def warm_up() -> None:
    """Compile each kernel for each type, or load it from the cache."""
    for dtype in _KEYS:
        values = torch.arange(2 * _MIN_SAMPLES, dtype=dtype)
        above(values, sampled_threshold(values, 0.1, 0.1, torch.Generator()))
        top_k(values, 1)
        _num_above(_as_bits(values)[0].numpy(), 15, 1)


def _on_cpu(values: Tensor) -> bool:
    return values.device.type == "cpu"


def _as_bits(values: Tensor) -> tuple[Tensor, int]:
    """The values' bit patterns [numel], and the number of bits of a key."""
    if values.dtype not in _KEYS:
        names = ", ".join(str(dtype) for dtype in _KEYS)
        raise TypeError(f"values are {values.dtype}; selection knows {names}: convert them with .float()")
    integer, key_bits = _KEYS[values.dtype]
    return values.detach().reshape(-1).contiguous().view(integer), key_bits


def _check_k(k: int, numel: int) -> None:
    if not 0 <= k <= numel:
        raise ValueError(f"k is {k} for a tensor of {numel} elements; use a number from 0 to {numel}")


def _check_share(name: str, value: float) -> None:
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name} is {value}; use a share above 0 and up to 1, e.g. 0.01")


def _mask(key_bits: int) -> int:
    return (1 << key_bits) - 1


def _magnitude(key: int, dtype: torch.dtype) -> float:
    """The number whose key this is."""
    return float(torch.tensor([key], dtype=_KEYS[dtype][0]).view(dtype).item())


def _key_of(threshold: float, dtype: torch.dtype) -> int:
    """The least key of the magnitudes that reach `threshold`, which may lie between two numbers of `dtype`."""
    integer = _KEYS[dtype][0]
    infinity = int(torch.tensor([math.inf], dtype=dtype).view(integer).item())
    if math.isnan(threshold):
        return infinity + 1
    if threshold <= 0.0:
        return 0
    nearest = torch.tensor([threshold], dtype=torch.float64).to(dtype)
    rounded_down = float(nearest.item()) < threshold
    return int(nearest.view(integer).item()) + rounded_down


def _kth(bits: Tensor, k: int, key_bits: int) -> int:
    if not _on_cpu(bits):
        return _kth_torch(bits, k, key_bits)
    return int(_kth_key(bits.numpy(), k, key_bits)[0])


def _sampled(bits: Tensor, places: Tensor) -> Tensor:
    """One element of each of `places.numel()` equal stretches, at the given place (0 … 1) of it."""
    if not _on_cpu(bits):
        return _sampled_torch(bits, places.to(bits.device))
    samples = torch.empty(places.numel(), dtype=bits.dtype)
    _take_samples(bits.numpy(), places.cpu().numpy(), samples.numpy())
    return samples


# Vectorised torch: for any device, the same results.


def _kth_torch(bits: Tensor, k: int, key_bits: int) -> int:
    return int((bits & _mask(key_bits)).topk(k, sorted=False).values.min().item())


def _top_k_torch(bits: Tensor, k: int, key_bits: int) -> Tensor:
    keys = bits & _mask(key_bits)
    least = keys.topk(k, sorted=False).values.min()
    chosen = keys > least
    num_ties = k - int(chosen.sum().item())
    chosen[(keys == least).nonzero().view(-1)[:num_ties]] = True
    return chosen.nonzero().view(-1)


def _sampled_torch(bits: Tensor, places: Tensor) -> Tensor:
    stretch = torch.arange(places.numel(), device=bits.device)
    start = stretch * bits.numel() // places.numel()
    width = (stretch + 1) * bits.numel() // places.numel() - start
    return bits[start + (places.double() * width).long()]


# Compiled, one thread. numba computes with 64-bit integers whatever the type of an array.


@compiled()
def _kth_key(bits: Ints, k: int, key_bits: int) -> tuple[int, int]:
    """The k-th largest key, and how many of the elements that have it belong to the k largest."""
    digit_bits = 16 if bits.size > 65536 else 8
    mask = (1 << key_bits) - 1
    prefix, left = 0, key_bits
    while left > 0:
        taken = min(digit_bits, left)
        left -= taken
        digit_mask = (1 << taken) - 1
        counts = np.zeros(1 << taken, np.int64)
        for i in range(bits.size):
            key = (bits[i] & mask) >> left
            if key >> taken == prefix:
                counts[key & digit_mask] += 1
        digit = digit_mask
        while counts[digit] < k:
            k -= counts[digit]
            digit -= 1
        prefix = (prefix << taken) | digit
    return prefix, k


@compiled()
def _write_largest(bits: Ints, k: int, key_bits: int, found: Ints) -> None:
    """The positions of the k largest keys, ascending."""
    bound, num_ties = _kth_key(bits, k, key_bits)
    mask = (1 << key_bits) - 1
    written = 0
    for i in range(bits.size):
        key = bits[i] & mask
        if key >= bound:
            if key == bound:
                if num_ties == 0:
                    continue
                num_ties -= 1
            found[written] = i
            written += 1


@compiled()
def largest_key(stretch: Ints, mask: int) -> int:
    """Of `STRETCH` elements; in 32 bits and without a branch, so that the compiler takes several at once."""
    own_mask, most = np.int32(mask), np.int32(0)
    for i in range(STRETCH):
        most = max(most, np.int32(stretch[i] & own_mask))
    return int(most)


@compiled()
def _write_above(bits: Ints, key_bits: int, least: int, found: Ints) -> int:
    """Positions whose key is at least `least`, until `found` is full; returns how many, one too many if it was."""
    mask = (1 << key_bits) - 1
    written = 0
    for start in range(0, bits.size, STRETCH):
        stop = min(start + STRETCH, bits.size)
        if stop - start == STRETCH and largest_key(bits[start:stop], mask) < least:
            continue
        for i in range(start, stop):
            if (bits[i] & mask) >= least:
                if written == found.size:
                    return written + 1
                found[written] = i
                written += 1
    return written


@compiled()
def _guess(bits: Ints, k: int, key_bits: int) -> int:
    """A key that about k elements reach, rather more than fewer (four standard deviations), by a sample of them.

    About 512 of the sampled elements are among the k largest, or as many as one in 64 finds. The place in a stretch is
    a multiplicative hash of its number, so that a pattern of the layer's shape does not meet the stride.
    """
    num_samples = min(bits.size >> 6, 512 * bits.size // k)
    stride = bits.size // num_samples
    sample = np.empty(num_samples, bits.dtype)
    for i in range(num_samples):
        sample[i] = bits[i * stride + ((((i * 2654435761) & 0xFFFFFFFF) * stride) >> 32)]
    hits = num_samples * k / bits.size
    return _kth_key(sample, min(num_samples, int(hits + 4.0 * np.sqrt(hits)) + 2), key_bits)[0]


@compiled()
def _top_k(bits: Ints, k: int, key_bits: int, found: Ints) -> None:
    """One read where the guess holds: whatever reaches it contains the k largest. Else the radix search over all."""
    if bits.size >= 65536 and k <= bits.size // 8:
        candidates = np.empty(2 * k + 1024, np.int64)
        num_candidates = _write_above(bits, key_bits, _guess(bits, k, key_bits), candidates)
        if k <= num_candidates <= candidates.size:
            candidates = candidates[:num_candidates]
            _write_largest(bits[candidates], k, key_bits, found)
            for i in range(k):
                found[i] = candidates[found[i]]
            return
    _write_largest(bits, k, key_bits, found)


@compiled()
def _num_above(bits: Ints, key_bits: int, least: int) -> int:
    mask = (1 << key_bits) - 1
    total = 0
    for i in range(bits.size):
        total += (bits[i] & mask) >= least
    return total


@compiled()
def _take_samples(bits: Ints, places: NDArray[np.float32], samples: Ints) -> None:
    start = 0
    for stretch in range(samples.size):
        stop = (stretch + 1) * bits.size // samples.size  # a division each, and no more: they take half of the time
        samples[stretch] = bits[start + int(places[stretch] * np.float64(stop - start))]
        start = stop
