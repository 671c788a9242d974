"""The largest of each sign in one read: what clamping and searching each side alone gives, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from baselines.kernels import select, sides
from baselines.memory import blank, zeros

NUMEL = (1 << 16) + 77  # more than the least that is compiled, and no multiple of a stretch
RANDOM = torch.Generator().manual_seed(0)
NORMAL = torch.randn(NUMEL, generator=RANDOM)
PLACES = torch.tensor([5, 40_000])


def defined(values: Tensor, k: int, sign: int) -> list[int]:
    """The definition: one side with the other one clamped to zero, and no zeros."""
    side = (sign * values).clamp(min=0.0)
    found = select.top_k(side, k)
    return found[side[found] != 0].tolist()


CASES: dict[str, Callable[[], Tensor]] = {
    "normal": lambda: NORMAL,
    "positive": lambda: NORMAL.abs(),
    "negative": lambda: -NORMAL.abs(),
    "zeros": lambda: torch.zeros(NUMEL),
    "few": lambda: torch.zeros(NUMEL).index_put_((torch.arange(0, NUMEL, 5000),), NORMAL[:14]),
    "ties": lambda: NORMAL.mul(2).round(),
    "ascending": lambda: torch.arange(NUMEL).float() - 1000,
    "NaN": lambda: NORMAL.index_put((PLACES,), torch.tensor([math.nan, -math.nan])),
    "infinite": lambda: NORMAL.index_put((PLACES,), torch.tensor([math.inf, -math.inf])),
    "scales": lambda: NORMAL * torch.logspace(-30, 3, NUMEL),
    "at the end": lambda: torch.cat([NORMAL[:-2000] * 1e-6, NORMAL[-2000:]]),
}


@pytest.mark.parametrize("k", [1, 7, 200, 2000, NUMEL // 8, NUMEL])
@pytest.mark.parametrize("name", CASES)
def test_each_side_has_its_largest(name: str, k: int) -> None:
    values = CASES[name]()
    up, down = sides.top_k_sides(values, k)
    assert (up.tolist(), down.tolist()) == (defined(values, k, 1), defined(values, k, -1))


@pytest.mark.parametrize("numel", [0, 1, 100])
def test_small_tensors_have_sides_too(numel: int) -> None:
    values = NORMAL[:numel]
    up, down = sides.top_k_sides(values, min(numel, 3))
    assert bool((values[up] > 0).all())
    assert bool((values[down] < 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int8, torch.int64])
def test_fresh_memory_is_a_tensor_as_any_other(dtype: torch.dtype) -> None:
    fresh = blank(1000, dtype)
    assert (fresh.shape, fresh.dtype, fresh.is_contiguous()) == ((1000,), dtype, True)
    assert blank(0, dtype).view(torch.uint8).numel() == 0
    assert torch.equal(zeros(1000), torch.zeros(1000))
