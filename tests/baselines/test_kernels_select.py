"""Selection and sparse payloads: the compiled path, the torch path and a plain sort must agree element by element."""

from __future__ import annotations

import importlib
import json
import math
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from patience import patience_s
from torch import Tensor

from baselines import kernels
from baselines.kernels import select, sparse

pytestmark = pytest.mark.timeout(180)  # the first call of all compiles

ROOT = Path(__file__).parents[2]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAN, INF = math.nan, math.inf
DENORMAL = 1e-45

floats32 = st.floats(width=32)
vectors = st.lists(floats32, min_size=1, max_size=300)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    select.warm_up()
    sparse.warm_up()


def keys_of(values: Tensor) -> np.ndarray:
    """Magnitudes as float64 with NaNs, by their bits, above infinity: what order means, said without bit patterns."""
    wide = values.double().abs().numpy()
    payloads = values.view({4: torch.int32, 2: torch.int16}[values.element_size()]).numpy().astype(np.int64) & 0x7FFFFF
    return np.array([(1, p) if np.isnan(v) else (0, v) for v, p in zip(wide, payloads, strict=True)])


def sorted_top_k(values: Tensor, k: int) -> list[int]:
    """The definition: sort by falling magnitude, then position; the first k, ascending."""
    is_nan, within = keys_of(values).T
    order = np.lexsort((np.arange(values.numel()), -within, -is_nan))
    return sorted(order[:k].tolist())


def torch_top_k(values: Tensor, k: int) -> Tensor:
    """What a GPU does, here on the CPU."""
    bits, key_bits = select._as_bits(values)
    return select._top_k_torch(bits, k, key_bits)


@given(vectors, st.data())
def test_top_k_is_what_a_stable_sort_gives(numbers: list[float], data: st.DataObject) -> None:
    values = torch.tensor(numbers).to(data.draw(st.sampled_from(DTYPES)))
    k = data.draw(st.integers(0, values.numel()))
    expected = sorted_top_k(values, k)
    found = select.top_k(values, k)
    assert found.dtype == torch.int64
    assert found.tolist() == expected
    if k:
        assert torch_top_k(values, k).tolist() == expected


LARGE = 200_003
large_tensors: dict[str, Callable[[torch.Generator], Tensor]] = {
    "normal": lambda g: torch.randn(LARGE, generator=g),
    "scales by layer": lambda g: torch.randn(LARGE, generator=g) * torch.logspace(-9, 2, LARGE),
    "heavy tail": lambda g: torch.randn(LARGE, generator=g) * torch.exp(3 * torch.randn(LARGE, generator=g)),
    "rounded, so many ties": lambda g: (3 * torch.randn(LARGE, generator=g)).round(),
    "nearly all zero": lambda g: torch.randn(LARGE, generator=g) * (torch.rand(LARGE, generator=g) > 0.999),
    "ascending": lambda _: torch.arange(LARGE, dtype=torch.float32),
    "descending": lambda _: -torch.arange(LARGE, 0, -1, dtype=torch.float32),
    "all zero": lambda _: torch.zeros(LARGE),
    "all equal": lambda _: torch.full((LARGE,), -2.5),
    "denormal": lambda g: torch.randn(LARGE, generator=g) * 1e-41,
    "some NaN": lambda g: torch.where(torch.rand(LARGE, generator=g) > 0.001, torch.randn(LARGE, generator=g), NAN),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", large_tensors)
def test_large_tensors_of_any_shape_give_the_sorted_answer(name: str, dtype: torch.dtype) -> None:
    """Guessed bounds, and where the guess fails the whole search; at sizes of every path."""
    values = large_tensors[name](torch.Generator().manual_seed(3)).to(dtype)
    magnitude = values.abs().double().nan_to_num(nan=INF, posinf=1e300)
    order = torch.sort(magnitude, descending=True, stable=True).indices
    for k in (1, 7, 200, LARGE // 100, LARGE // 8, LARGE // 8 + 1, LARGE - 1):
        expected = order[:k].sort().values
        assert torch.equal(select.top_k(values, k), expected), k
        assert torch.equal(torch_top_k(values, k), expected), k


def test_a_guess_that_is_too_high_is_noticed() -> None:
    """A tensor that is large exactly where the guess looks: fewer than k reach the guessed bound."""
    k, numel = 2000, 1 << 18
    bits = torch.arange(numel, dtype=torch.int32)
    looked_at = torch.zeros(numel, dtype=torch.bool)
    stride = 64
    samples = torch.arange(numel // stride)
    looked_at[samples * stride + ((((samples * 2654435761) & 0xFFFFFFFF) * stride) >> 32)] = True
    assert int(looked_at.sum()) == numel // stride
    values = torch.where(looked_at, 1e6 + bits, bits / numel)
    guess = select._guess(values.view(torch.int32).numpy(), k, 31)
    assert select._num_above(values.view(torch.int32).numpy(), 31, guess) < k
    assert torch.equal(select.top_k(values, k), torch.sort(values, descending=True).indices[:k].sort().values)


def test_a_diverged_gradient_is_not_hidden() -> None:
    values = torch.tensor([1.0, -INF, NAN, 5.0, -NAN])
    assert select.top_k(values, 2).tolist() == [2, 4]
    assert select.top_k(values, 3).tolist() == [1, 2, 4]
    assert select.above(values, INF).tolist() == [1, 2, 4]
    assert select.above(values, NAN).tolist() == [2, 4]


def test_edges_of_size() -> None:
    empty = torch.empty(0)
    assert select.top_k(empty, 0).tolist() == []
    assert select.above(empty, 1.0).tolist() == []
    assert select.sampled_threshold(empty, 0.1, 0.1, torch.Generator()) == 0.0
    values = torch.tensor([3.0, 1.0, -2.0])
    assert select.top_k(values, 0).tolist() == []
    assert select.top_k(values, 3).tolist() == [0, 1, 2]
    assert select.top_k(torch.tensor([7.0]), 1).tolist() == [0]


def test_signed_zeros_tie_and_denormals_count() -> None:
    values = torch.tensor([-0.0, 0.0, DENORMAL, -0.0])
    assert select.top_k(values, 2).tolist() == [0, 2]
    assert select.above(values, 0.0).tolist() == [2]
    torch.set_flush_denormal(True)
    try:
        assert select.top_k(values, 1).tolist() == [2]
        assert select.above(values, DENORMAL).tolist() == [2]
    finally:
        torch.set_flush_denormal(False)


def test_strided_and_shaped_tensors_are_read_in_their_own_order() -> None:
    table = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    for values in (table.T, table[:, ::3], table[3]):
        flat = values.reshape(-1).clone()
        assert torch.equal(select.top_k(values, 9), select.top_k(flat, 9))
        assert torch.equal(select.above(values, 1.5), select.above(flat, 1.5))


def test_parameters_may_require_gradients() -> None:
    values = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
    assert select.top_k(values, 1).tolist() == [1]
    assert sparse.gather(values, torch.tensor([2])).tolist() == [2.0]


@pytest.mark.parametrize("k", [-1, 4])
def test_k_beyond_the_tensor_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=f"k is {k} for a tensor of 3"):
        select.top_k(torch.ones(3), k)


def test_other_types_are_refused_with_the_remedy() -> None:
    with pytest.raises(TypeError, match=r"float64.*\.float\(\)"):
        select.top_k(torch.ones(3, dtype=torch.float64), 1)


@given(vectors, st.floats() | floats32, st.sampled_from(DTYPES))
def test_above_is_a_comparison_in_exact_arithmetic(numbers: list[float], threshold: float, dtype: torch.dtype) -> None:
    """The threshold may lie between two numbers of the type, or beyond its range."""
    values = torch.tensor(numbers).to(dtype)
    expected = [
        position
        for position, value in enumerate(values.double().tolist())
        if math.isnan(value) or (not math.isnan(threshold) and abs(value) >= threshold and value != 0)
    ]
    assert select.above(values, threshold).tolist() == expected


def test_a_full_sample_is_exact() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(5))
    threshold = select.sampled_threshold(values, 0.1, 1.0, torch.Generator())
    assert threshold == values.abs().sort(descending=True).values[99]
    assert select.above(values, threshold).numel() == 100


def test_a_small_tensor_is_looked_at_whole() -> None:
    values = torch.arange(1.0, 65.0)
    assert select.sampled_threshold(values, 0.25, 0.001, torch.Generator()) == 49.0


def test_a_threshold_is_that_of_the_whole_number_that_a_density_names() -> None:
    """The 7th largest of 100: 0.07 · 100 is above 7 by rounding alone."""
    values = torch.arange(1.0, 101.0)
    assert select.sampled_threshold(values, 0.07, 1.0, torch.Generator()) == 94.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("share", [0.01, 0.1, 0.6])
def test_a_sampled_threshold_keeps_about_the_density(share: float, dtype: torch.dtype) -> None:
    """m samples of which 5 % are above: the kept share has a deviation of √(0.05·0.95/m); 5 of them, over 20 draws."""
    numel, density = 100_000, 0.05
    values = (torch.randn(numel, generator=torch.Generator().manual_seed(2)) * torch.logspace(-3, 0, numel)).to(dtype)
    generator = torch.Generator().manual_seed(11)
    allowed = 5 * math.sqrt(density * (1 - density) / (share * numel))
    ties = 0.001 if dtype == torch.bfloat16 else 0.0002  # equal magnitudes all pass
    thresholds = [select.sampled_threshold(values, density, share, generator) for _ in range(20)]
    for threshold in thresholds:
        assert abs(select.above(values, threshold).numel() / numel - density) < allowed + ties
    assert len(set(thresholds)) > 1 or dtype == torch.bfloat16  # 8 bits of mantissa may agree on all draws


def test_every_element_is_sampled_equally_often() -> None:
    """64 of 200 elements in 4000 draws: each 1280 times, deviation ≤ √1280 ≈ 36; six of them."""
    counts, generator = torch.zeros(200), torch.Generator().manual_seed(4)
    bits = torch.arange(200, dtype=torch.int32)
    for _ in range(4000):
        sample = select._sampled(bits, torch.rand(64, generator=generator)).long()
        assert sample.unique().numel() == 64
        counts[sample] += 1
    # A stretch has 3 or 4 elements, so a share is 1/3 or 1/4 of the draws.
    expected = torch.cat([torch.full((hi - lo,), 4000 / (hi - lo)) for lo, hi in _stretches(200, 64)])
    assert (counts - expected).abs().max() < 6 * 36


def _stretches(numel: int, num: int) -> list[tuple[int, int]]:
    return [(i * numel // num, (i + 1) * numel // num) for i in range(num)]


@given(st.integers(65, 5000), st.integers(0, 1 << 30), st.floats(0.02, 0.99))
def test_both_paths_sample_the_same_elements(numel: int, seed: int, share: float) -> None:
    bits = torch.arange(numel, dtype=torch.int32)
    places = torch.rand(max(64, int(share * numel)), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(select._sampled(bits, places), select._sampled_torch(bits, places))


@given(vectors, st.data())
def test_both_paths_find_the_same_kth_key(numbers: list[float], data: st.DataObject) -> None:
    bits, key_bits = select._as_bits(torch.tensor(numbers).to(data.draw(st.sampled_from(DTYPES))))
    k = data.draw(st.integers(1, len(numbers)))
    assert select._kth(bits, k, key_bits) == select._kth_torch(bits, k, key_bits)


@pytest.mark.parametrize(("density", "share"), [(0.0, 0.1), (1.5, 0.1), (0.1, 0.0), (0.1, 2.0), (NAN, 0.1)])
def test_shares_outside_their_range_are_refused(density: float, share: float) -> None:
    with pytest.raises(ValueError, match="use a share above 0 and up to 1"):
        select.sampled_threshold(torch.ones(3), density, share, torch.Generator())


@pytest.mark.parametrize(
    ("numel", "dtype"),
    [
        (0, torch.uint8),
        (256, torch.uint8),
        (257, torch.uint16),
        (65536, torch.uint16),
        (65537, torch.int32),
        (1 << 31, torch.int32),
    ],
)
def test_positions_take_the_smallest_type_that_holds_them(numel: int, dtype: torch.dtype) -> None:
    assert sparse.index_dtype(numel) == dtype
    last = torch.tensor([numel - 1] if numel else [], dtype=torch.int64)
    packed = sparse.pack(last, numel)
    assert packed.dtype == dtype
    assert torch.equal(sparse.unpack(packed), last)


def test_a_message_too_long_for_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="split it"):
        sparse.index_dtype((1 << 31) + 1)


@pytest.mark.parametrize("numel", [100, 5000, 70_000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sparse_operations_are_indexing(numel: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(numel)
    values = torch.randn(numel, generator=generator).to(dtype)
    positions = sparse.pack(select.top_k(values, numel // 7), numel)
    taken = sparse.gather(values, positions)
    assert torch.equal(taken, values[positions.long()])

    total = torch.randn(numel, generator=generator).to(dtype)
    expected = total.clone().index_add_(0, positions.long(), taken)
    sparse.add_at(total, positions, taken)
    assert torch.equal(total, expected)

    sent = torch.zeros_like(values)
    sparse.add_at(sent, positions, taken)
    rest = values.clone()
    sparse.zero_at(rest, positions)
    assert torch.equal(rest + sent, values)
    assert int((rest != 0).sum()) == numel - numel // 7


def test_positions_that_repeat_add_up() -> None:
    total = torch.tensor([10.0, 20.0, 30.0])
    sparse.add_at(total, torch.tensor([2, 0, 2, 2], dtype=torch.uint8), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert total.tolist() == [12.0, 20.0, 38.0]


def test_totals_may_be_strided_and_values_of_another_type() -> None:
    """In place means in the caller's memory, also through a view."""
    table = torch.zeros(4, 2)
    sparse.add_at(table[:, 1], torch.tensor([3, 1], dtype=torch.uint8), torch.tensor([5.0, 6.0]))
    assert table.tolist() == [[0, 0], [0, 6], [0, 0], [0, 5]]
    sparse.add_at(table.view(-1), torch.tensor([0], dtype=torch.uint8), torch.tensor([0.5], dtype=torch.float16))
    assert table[0, 0] == 0.5
    sparse.zero_at(table[:, 1], torch.tensor([3]))
    assert table.tolist() == [[0.5, 0], [0, 6], [0, 0], [0, 0]]
    assert sparse.gather(table[:, 1], torch.tensor([1])).tolist() == [6.0]


def test_empty_payloads_change_nothing() -> None:
    total, nothing = torch.ones(3), torch.empty(0, dtype=torch.uint8)
    sparse.add_at(total, nothing, torch.empty(0))
    sparse.zero_at(total, nothing)
    assert total.tolist() == [1.0, 1.0, 1.0]
    assert sparse.gather(total, nothing).numel() == 0


@pytest.mark.parametrize("wrong", [-1, 3, 1 << 30])
@pytest.mark.parametrize("total", [torch.zeros(3), torch.zeros(3, dtype=torch.float16)], ids=["compiled", "torch"])
def test_positions_outside_the_tensor_are_errors_not_writes(wrong: int, total: Tensor) -> None:
    positions = torch.tensor([0, wrong], dtype=torch.int32)
    with pytest.raises(IndexError, match=f"position {wrong} in a tensor of 3"):
        sparse.add_at(total, positions, torch.ones(2))
    with pytest.raises(IndexError, match="not of this message"):
        sparse.zero_at(total, positions)
    with pytest.raises(IndexError, match="not of this message"):
        sparse.gather(total, positions)
    with pytest.raises(IndexError, match="not of this message"):
        sparse.pack(positions, 3)
    assert total.tolist() == [0.0, 0.0, 0.0]


def test_a_position_without_its_value_is_refused() -> None:
    with pytest.raises(ValueError, match="2 positions for 1 values"):
        sparse.add_at(torch.zeros(3), torch.tensor([0, 1]), torch.ones(1))


def compiled_versions(*modules: ModuleType) -> dict[str, int]:
    """How many types each kernel that Python calls is compiled for; kernels inside kernels come with those."""
    versions: dict[str, int] = {}
    for module in modules:
        own = {name: kernel for name, kernel in vars(module).items() if hasattr(kernel, "signatures")}
        inner = {name for kernel in own.values() for name in kernel.py_func.__code__.co_names}
        versions |= {f"{module.__name__}.{n}": len(kernel.signatures) for n, kernel in own.items() if n not in inner}
    return versions


def test_warming_up_reaches_every_kernel_of_the_package() -> None:
    kernels.warm_up()
    names = [f"{kernels.__name__}.{entry.name}" for entry in pkgutil.iter_modules(kernels.__path__)]
    versions = compiled_versions(*map(importlib.import_module, names))
    assert {name.rsplit(".", 1)[0] for name in versions} == set(names)
    assert [name for name, count in versions.items() if count == 0] == []


def test_nothing_is_left_to_compile_after_warming_up() -> None:
    before = compiled_versions(select, sparse)
    for dtype in DTYPES:
        for numel in (10, 1000, 100_000):
            values = torch.randn(numel).to(dtype)
            positions = sparse.pack(select.top_k(values, numel // 10), numel)
            sparse.add_at(values, positions, sparse.gather(values, positions))
            sparse.zero_at(values, select.above(values, select.sampled_threshold(values, 0.1, 0.1, torch.Generator())))
            assert select.above(torch.ones_like(values), 1.0).numel() == numel
    assert compiled_versions(select, sparse) == before


IN_A_FRESH_PROCESS = """
import json
import os
import threading
from pathlib import Path
import torch
from baselines.kernels import select, sparse

NUMEL = 4_000_000


def status_bytes(field):
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(field))
    return int(line.split()[1]) * 1024


def peak(call):
    Path("/proc/self/clear_refs").write_text("5")
    before = status_bytes("VmRSS")
    result = call()
    return (status_bytes("VmHWM") - before) / (4 * NUMEL)


def encode_and_decode(k):
    positions = select.top_k(values, k)
    sparse.add_at(total, sparse.pack(positions, NUMEL), sparse.gather(values, positions))


def by_threshold():
    positions = select.above(values, select.sampled_threshold(values, 0.01, 0.01, torch.Generator()))
    sparse.add_at(total, sparse.pack(positions, NUMEL), sparse.gather(values, positions))


def forked_while_a_thread_computes():
    expected = select.top_k(values, 1000).tolist()
    busy = threading.Thread(target=lambda: [select.top_k(values, NUMEL // 4) for _ in range(5)])
    busy.start()
    pid = os.fork()
    if pid == 0:
        found = []
        threads = [threading.Thread(target=lambda: found.append(select.top_k(values, 1000).tolist())) for _ in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        os._exit(0 if found == [expected, expected] else 1)
    busy.join()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


select.warm_up(), sparse.warm_up()
values, total = torch.randn(NUMEL), torch.zeros(NUMEL)
encode_and_decode(10)
print(json.dumps({
    "gauge": peak(lambda: torch.ones(NUMEL)),
    "peaks": {
        "top-k 1 %": peak(lambda: encode_and_decode(NUMEL // 100)),
        "top-k 12.5 %": peak(lambda: encode_and_decode(NUMEL // 8)),
        "top-k 50 %": peak(lambda: select.top_k(values, NUMEL // 2)),
        "threshold": peak(by_threshold),
        "everything is above": peak(lambda: select.above(values, 0.0)),
    },
    "forked": forked_while_a_thread_computes(),
}))
"""


@pytest.fixture(scope="module")
def fresh_process() -> Any:
    """Figures of one process that has nothing but these kernels in memory."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peaks of memory are read from Linux's /proc")
    command = [sys.executable, "-c", IN_A_FRESH_PROCESS]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed goes back, and is not found there again
    run = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=patience_s(150), check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_peak_extra_memory_is_at_most_twice_the_tensor(fresh_process: Any) -> None:
    """The rise of the resident set, in tensors; int64 positions of every element are twice the tensor themselves.

    0.05 (0.8 MB) is for pages of the interpreter.
    """
    peaks = fresh_process["peaks"]
    assert fresh_process["gauge"] == pytest.approx(1.0, abs=0.05)  # one tensor counts as one
    assert max(peaks["top-k 1 %"], peaks["threshold"]) < 0.3  # may be none: pages that were given back are taken again
    assert peaks["top-k 50 %"] >= 0.95
    assert max(peaks.values()) <= 2.05, peaks


def test_a_fork_amid_a_kernel_leaves_the_child_able_to_compute(fresh_process: Any) -> None:
    """Ranks are forked from a process that has warmed up; two threads of the child then compute at once."""
    assert fresh_process["forked"] == 0
