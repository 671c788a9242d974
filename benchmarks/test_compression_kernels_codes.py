"""Encoding and decoding of 25.5 million float32 elements (ResNet-50) on one core: `make benchmark`.

Beside each time stands, in the extra columns, the multiple of one `copy_` between preallocated tensors of that size,
taken before and after in the same run (the best of all), the target where there is one, and the peak extra memory as a
multiple of the tensor. Nothing here fails for being slow; more than twice the tensor of extra memory does fail.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor

from baselines.kernels import elias, golomb, levels, signs

NUMEL = 25_500_000
NUM_ROUNDS = 7
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@dataclass(frozen=True, slots=True)
class Case:
    """There and back; `target` is the greatest multiple of a copy that is wanted."""

    encode: Callable[[Tensor], tuple[Tensor, ...]]
    decode: Callable[[Tensor, tuple[Tensor, ...]], None]
    target: float | None = None


def one_bit(block: int) -> Case:
    blocks = [block] * (NUMEL // block) + [NUMEL % block] * (NUMEL % block > 0)
    return Case(
        lambda values: signs.encode(values, blocks),
        lambda total, sent: signs.add_decoded(total, sent[0], sent[1], blocks),
        target=12,
    )


def qsgd(bits: int, bucket: int, norm: levels.Norm, target: float | None = None) -> Case:
    dice = torch.Generator().manual_seed(0)
    return Case(
        lambda values: levels.encode(values, bits, bucket, dice, norm),
        lambda total, sent: levels.add_decoded(total, sent[0], sent[1], bits, bucket),
        target,
    )


def qsgd_elias(bits: int) -> Case:
    dice = torch.Generator().manual_seed(0)

    def encode(values: Tensor) -> tuple[Tensor, ...]:
        found, norms = levels.quantise(values, bits, 512, dice)
        return elias.encode(found), norms

    def decode(total: Tensor, sent: tuple[Tensor, ...]) -> None:
        levels.add_levels(total, elias.decode(sent[0], NUMEL), sent[1], bits, 512)

    return Case(encode, decode)


CASES = {
    "1-bit, one block": one_bit(NUMEL),
    "1-bit, blocks of 512": one_bit(512),
    "QSGD 4 bits, bucket 512": qsgd(4, 512, "l2", target=30),
    "QSGD 4 bits, bucket 512, max": qsgd(4, 512, "max"),
    "QSGD 2 bits, bucket 64": qsgd(2, 64, "l2"),
    "QSGD 8 bits, one bucket, max": qsgd(8, NUMEL, "max"),
    "QSGD 2 bits, Elias": qsgd_elias(2),
    "QSGD 4 bits, Elias": qsgd_elias(4),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a rank."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def tensors(device: str) -> tuple[Tensor, Tensor]:
    """Values and a total, both touched."""
    values = torch.randn(NUMEL, generator=torch.Generator().manual_seed(0)).to(device)
    return values, values.clone()


def best_s(action: Callable[[], object], num_rounds: int = NUM_ROUNDS) -> float:
    """Shortest of some runs after one to warm up."""
    times_s = []
    for _ in range(num_rounds + 1):
        start_s = time.perf_counter()
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times_s.append(time.perf_counter() - start_s)
    return min(times_s[1:])


def peak_extra_bytes(action: Callable[[], object]) -> int:
    """By how much resident memory rises at most during `action`, of which nothing is kept (Linux with glibc)."""

    def status(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

    ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not hide what is taken now
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is resident now
    before = status("VmRSS")
    action()
    return status("VmHWM") - before


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_there_and_back(benchmark: BenchmarkFixture, name: str, device: str) -> None:
    case = CASES[name]
    values, total = tensors(device)

    def there_and_back() -> None:
        case.decode(total, case.encode(values))
        if device != "cpu":
            torch.cuda.synchronize()

    total.zero_()
    there_and_back()
    assert bool(total.isfinite().all())
    assert torch.dot(total, values) > 0.2 * total.norm() * values.norm()  # s = 1: 1/√(1 + √512·0.8) of QSGD's noise
    if device == "cpu":
        extra = peak_extra_bytes(there_and_back) / values.nbytes
    else:
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        there_and_back()
        extra = (torch.cuda.max_memory_allocated() - held) / values.nbytes
    assert extra <= 2
    copies_s = [best_s(lambda: total.copy_(values))]
    benchmark.pedantic(there_and_back, rounds=NUM_ROUNDS, warmup_rounds=1)
    copies_s.append(best_s(lambda: total.copy_(values)))
    sent = case.encode(values)
    info = {
        "copy_ms": min(copies_s) * 1e3,
        "encode_copies": best_s(lambda: case.encode(values)) / min(copies_s),
        "decode_copies": best_s(lambda: case.decode(total, sent)) / min(copies_s),
        "target_copies": case.target,
        "extra_memory_tensors": extra,
        "bits_per_element": 8 * sum(part.nbytes for part in sent) / NUMEL,
    }
    if benchmark.enabled:
        info["copies"] = benchmark.stats.stats.min / min(copies_s)
    benchmark.extra_info.update({key: round(value, 3) for key, value in info.items() if value is not None})


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_golomb_there_and_back(benchmark: BenchmarkFixture, density: float) -> None:
    """Only the positions that are sent cost anything."""
    chosen = torch.rand(NUMEL, generator=torch.Generator().manual_seed(0)) < density
    positions, parameter = chosen.nonzero().view(-1), golomb.best_parameter(density)
    values, total = tensors("cpu")
    copy_s = best_s(lambda: total.copy_(values))

    def there_and_back() -> Tensor:
        stream = golomb.encode(positions, NUMEL, parameter)
        return golomb.decode(stream, positions.numel(), parameter, NUMEL)

    assert torch.equal(benchmark.pedantic(there_and_back, rounds=NUM_ROUNDS, warmup_rounds=1), positions)
    bits = 8 * golomb.encode(positions, NUMEL, parameter).numel() / positions.numel()
    info = {"copy_ms": copy_s * 1e3, "bits_per_position": bits}
    if benchmark.enabled:
        info["copies"] = benchmark.stats.stats.min / copy_s
    benchmark.extra_info.update({key: round(value, 3) for key, value in info.items()})
