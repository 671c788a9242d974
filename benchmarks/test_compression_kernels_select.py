"""Selection and sparse payloads of 25.5 million float32 elements (ResNet-50), as multiples of one `copy_`.

`make benchmark ARGS='-k kernels_select'`; the multiples stand under `extra_info` of the saved run. Nothing here fails
for being slow. Bytes that must move: reading the tensor, writing and reading the payload, zeroing the total, reading
and writing its touched elements.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from roofline import Roofline
from torch import Tensor

from baselines.kernels import select, sparse

NUMEL = 25_500_000
NUM_KEPT = NUMEL // 100
DENSITY, SHARE = 0.01, 0.001
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
ENCODE_BYTES = 4 * NUMEL + 8 * NUM_KEPT
DECODE_BYTES = 4 * NUMEL + 8 * NUM_KEPT + 8 * NUM_KEPT


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a rank."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    select.warm_up()
    sparse.warm_up()
    yield
    torch.set_num_threads(before)


def gradient(distribution: str, device: str) -> Tensor:
    """`normal`: of 100 layers whose scales span four decades; `heavy`: a log-normal scale per element."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(NUMEL, generator=generator)
    if distribution == "normal":
        values.view(100, -1).mul_(torch.logspace(-5, -1, 100).unsqueeze(1))
    else:
        values.mul_(torch.randn(NUMEL, generator=generator).mul_(2.0).exp_()).mul_(1e-4)
    return values.to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("distribution", ["normal", "heavy"])
def test_exact_top_k_there_and_back(benchmark: BenchmarkFixture, distribution: str, device: str) -> None:
    values, total = gradient(distribution, device), torch.ones(NUMEL, device=device)

    def there_and_back() -> None:
        positions = sparse.pack(select.top_k(values, NUM_KEPT), NUMEL)
        kept = sparse.gather(values, positions)
        total.zero_()
        sparse.add_at(total, positions, kept)

    Roofline(NUMEL, device).time(benchmark, there_and_back, moved_bytes=ENCODE_BYTES + DECODE_BYTES, target_copies=40)
    assert int(total.count_nonzero()) == NUM_KEPT
    assert total.abs().sum() == pytest.approx(float(values.abs().topk(NUM_KEPT).values.sum()), rel=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("distribution", ["normal", "heavy"])
def test_sampled_threshold_there_and_back(benchmark: BenchmarkFixture, distribution: str, device: str) -> None:
    values, total = gradient(distribution, device), torch.ones(NUMEL, device=device)
    generator = torch.Generator().manual_seed(2)

    def there_and_back() -> None:
        threshold = select.sampled_threshold(values, DENSITY, SHARE, generator)
        positions = sparse.pack(select.above(values, threshold), NUMEL)
        kept = sparse.gather(values, positions)
        total.zero_()
        sparse.add_at(total, positions, kept)

    Roofline(NUMEL, device).time(benchmark, there_and_back, moved_bytes=ENCODE_BYTES + DECODE_BYTES, target_copies=20)
    assert 0.7 * NUM_KEPT < int(total.count_nonzero()) < 1.3 * NUM_KEPT


@pytest.mark.parametrize("shape", ["all equal", "dense"])
def test_top_k_where_the_guess_does_not_help(benchmark: BenchmarkFixture, shape: str) -> None:
    """The radix search alone: ties without end, and k = 30 % of n."""
    values = torch.ones(NUMEL) if shape == "all equal" else gradient("normal", "cpu")
    k = NUM_KEPT if shape == "all equal" else 30 * NUM_KEPT
    found: list[Tensor] = []

    def choose() -> None:
        found[:] = [select.top_k(values, k)]

    Roofline(NUMEL).time(benchmark, choose, moved_bytes=4 * NUMEL + 8 * k, target_copies=40)
    assert found[0].numel() == k
