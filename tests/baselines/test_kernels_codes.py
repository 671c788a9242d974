"""Codes: signs, stochastic levels, Elias' and Golomb's. What they lose, what they cost, what they refuse."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from baselines.kernels import elias, golomb, levels, signs

pytestmark = pytest.mark.timeout(180)  # the first call of all compiles

SEEDS = st.integers(0, 2**31 - 1)
BAD = [math.nan, math.inf, -math.inf]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_values(seed: int, numel: int) -> Tensor:
    """Elements that span several orders of magnitude, a few of them zeros of both signs."""
    dice = seeded(seed)
    values = torch.randn(numel, generator=dice) * 10.0 ** (4 * torch.rand(numel, generator=dice) - 3)
    values[torch.rand(numel, generator=dice) < 0.05] = 0.0
    values[torch.rand(numel, generator=dice) < 0.05] = -0.0
    return values


def random_blocks(seed: int, numel: int) -> list[int]:
    """Sizes from 1 on that add up to `numel`, with runs of equal ones."""
    dice, sizes = np.random.default_rng(seed), []
    while numel:
        size = min(numel, int(dice.choice([1, 2, 7, 8, 9, 64, 500])))
        for _ in range(min(int(dice.integers(1, 4)), numel // size)):
            sizes.append(size)
            numel -= size
    return sizes


# --- one bit per element


def decoded_signs(values: Tensor, blocks: list[int]) -> Tensor:
    total = torch.zeros_like(values)
    signs.add_decoded(total, *signs.encode(values, blocks), blocks)
    return total


def test_one_bit_example_decodes_to_the_means_of_both_sides() -> None:
    assert decoded_signs(torch.tensor([-1.0, -2.0, 3.0, 5.0]), [4]).tolist() == [-1.5, -1.5, 4.0, 4.0]


def test_sign_bits_are_packed_from_the_lowest_bit_and_none_is_inverted_as_a_byte() -> None:
    """`~` of the byte 1 is 254: a decoder that uses it for the other sign yields values in the thousands."""
    values = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0, -0.0])
    bits, means = signs.encode(values, [10])
    assert bits.tolist() == [0b00001101, 0b00000011]
    assert means.tolist() == [-1.0, pytest.approx(0.8)]
    for decode in (signs.add_decoded, signs.add_decoded_vectorised):
        total = torch.zeros(10)
        decode(total, bits, means, [10])
        assert total.abs().max() == 1.0
        assert (total[:8] * values[:8] > 0).all()


@settings(max_examples=60)
@given(SEEDS, st.integers(0, 600))
def test_signs_agree_with_the_definition_in_both_paths(seed: int, numel: int) -> None:
    values, blocks = random_values(seed, numel), random_blocks(seed, numel)
    bits, means = signs.encode(values, blocks)
    assert bits.tolist() == np.packbits(values.numpy() >= 0, bitorder="little").tolist()
    parts = [part.astype(np.float64) for part in np.split(values.numpy(), np.cumsum(blocks)[:-1])] if blocks else []
    expected = [side.mean() if side.size else 0.0 for part in parts for side in (part[part < 0], part[part >= 0])]
    np.testing.assert_allclose(means.numpy(), expected, rtol=2e-7, atol=0)  # one rounding to float32
    other_bits, other_means = signs.encode_vectorised(values, blocks)
    assert torch.equal(bits, other_bits)
    np.testing.assert_allclose(means.numpy(), other_means.numpy(), rtol=2e-7, atol=0)
    total, other = random_values(seed + 1, numel), random_values(seed + 1, numel)
    signs.add_decoded(total, bits, means, blocks)
    signs.add_decoded_vectorised(other, bits, means, blocks)
    assert torch.equal(total, other)


@settings(max_examples=50)
@given(SEEDS, st.integers(1, 1000))
def test_one_bit_keeps_the_sum_of_every_block(seed: int, numel: int) -> None:
    values, blocks = random_values(seed, numel), random_blocks(seed, numel)
    for part, decoded in zip(values.split(blocks), decoded_signs(values, blocks).split(blocks), strict=True):
        # A mean rounded to float32 is off by 2⁻²⁴ relative, for each element of its side.
        assert abs(part.double().sum() - decoded.double().sum()) <= 2e-7 * part.double().abs().sum()


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("encode", [signs.encode, signs.encode_vectorised])
def test_a_block_of_signs_with_a_bad_element_is_nan_and_no_other_is(
    encode: Callable[[Tensor, list[int]], tuple[Tensor, Tensor]], bad: float
) -> None:
    values = torch.ones(30)
    values[13] = bad
    total = torch.zeros(30)
    signs.add_decoded(total, *encode(values, [10, 10, 10]), [10, 10, 10])
    assert total.isnan().tolist() == [10 <= element < 20 for element in range(30)]


def test_vectorised_signs_cut_a_large_block_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs, "PIECE", 64)
    values, blocks = random_values(3, 1000), [3, 700, 100, 100, 97]
    bits, means = signs.encode_vectorised(values, blocks)
    assert torch.equal(bits, signs.encode(values, blocks)[0])
    np.testing.assert_allclose(means.numpy(), signs.encode(values, blocks)[1].numpy(), rtol=2e-7, atol=0)
    total = torch.zeros(1000)
    signs.add_decoded_vectorised(total, bits, means, blocks)
    assert torch.equal(total, decoded_signs(values, blocks))


def test_large_float32_elements_do_not_overflow_a_mean() -> None:
    values = torch.full((1000,), 3e38)
    assert torch.equal(decoded_signs(values, [1000]), values)


def test_signs_refuse_what_does_not_fit() -> None:
    values = torch.ones(10)
    bits, means = signs.encode(values, [10])
    with pytest.raises(ValueError, match="add up to 9"):
        signs.encode(values, [9])
    with pytest.raises(ValueError, match="positive"):
        signs.encode(values, [11, -1])
    with pytest.raises(ValueError, match="float64"):
        signs.encode(values.double(), [10])
    with pytest.raises(ValueError, match="flatten"):
        signs.encode(torch.ones(20)[::2], [10])
    with pytest.raises(ValueError, match="need 2"):
        signs.add_decoded(values, bits[:1], means, [10])
    with pytest.raises(ValueError, match="1 blocks need 2"):
        signs.add_decoded(values, bits, means[:1], [10])


# --- levels


def decoded_levels(values: Tensor, bits: int, bucket: int, dice: torch.Generator, norm: levels.Norm = "l2") -> Tensor:
    total = torch.zeros_like(values)
    levels.add_decoded(total, *levels.encode(values, bits, bucket, dice, norm), bits, bucket)
    return total


@given(
    SEEDS,
    st.integers(0, 5000),
    st.sampled_from([1, 2, 3, 64, 512, 1000, 1025, 2500, 10**9]),
    st.sampled_from(levels.WIDTHS),
    st.sampled_from(["l2", "max"]),
)
def test_compiled_and_vectorised_levels_are_identical(
    seed: int, numel: int, bucket: int, bits: int, norm: levels.Norm
) -> None:
    values = random_values(seed, numel)
    found, norms = levels.quantise(values, bits, bucket, seeded(seed), norm)
    same_seed = int(torch.randint(-(2**63), 2**63 - 1, (1,), generator=seeded(seed)).item())
    s, size = levels.num_levels(bits), min(bucket, max(1, numel))
    other, other_norms = levels.quantise_vectorised(values, s, size, same_seed, norm)
    assert torch.equal(found, other)
    assert torch.equal(norms, other_norms)
    assert int(found.abs().max()) <= s if numel else True
    codes = levels.pack(found, bits)
    assert codes.numel() == -(-numel * bits // 8)
    assert torch.equal(codes, levels.pack_vectorised(found, bits))
    assert torch.equal(levels.unpack(codes, bits, numel), found)
    assert torch.equal(levels.unpack_vectorised(codes, bits, numel), found)
    total, again = random_values(seed + 1, numel), random_values(seed + 1, numel)
    levels.add_decoded(total, codes, norms, bits, bucket)
    levels.add_levels_vectorised(again, found, norms / s, size)
    assert torch.equal(total, again)


def test_vectorised_levels_in_small_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = random_values(5, 7777)
    whole = levels.quantise_vectorised(values, 7, 3000, 11, "l2")
    monkeypatch.setattr(levels, "PIECE", 1024)
    parts = levels.quantise_vectorised(values, 7, 3000, 11, "l2")
    assert torch.equal(whole[0], parts[0])
    assert torch.equal(whole[1], parts[1])


def test_norms_are_those_of_the_buckets() -> None:
    values = random_values(1, 10_000)
    for bucket in (100, 512, 3000, 10_000):
        parts = values.double().split(bucket)
        for norm, expected in (
            ("l2", [part.norm().item() for part in parts]),
            ("max", [part.abs().max().item() for part in parts]),
        ):
            _, norms = levels.quantise(values, 4, bucket, seeded(0), norm)  # type: ignore[arg-type]
            np.testing.assert_allclose(norms.numpy(), expected, rtol=1e-7)


@pytest.mark.parametrize("bits", levels.WIDTHS)
@pytest.mark.parametrize("norm", ["l2", "max"])
def test_quantisation_is_unbiased_with_the_variance_of_the_paper(bits: int, norm: levels.Norm) -> None:
    """4,000 samples of a bucket of 128. Each rounding has a standard error of at most N/(2s√4000); five of them."""
    num_samples, numel = 4000, 128
    values = torch.randn(numel, generator=seeded(7))
    samples = decoded_levels(values.repeat(num_samples), bits, numel, seeded(8), norm).view(num_samples, numel).double()
    s = levels.num_levels(bits)
    length = float(values.double().norm())
    scale = length if norm == "l2" else float(values.abs().max())
    bias = (samples.mean(0) - values.double()).abs().max()
    assert bias <= 5 * scale / (2 * s * math.sqrt(num_samples))
    error = float((samples - values.double()).square().sum(1).mean())
    bound = min(numel / s**2, math.sqrt(numel) / s) * length**2
    assert error <= bound
    # Rounding x to a level up with probability f has the variance f(1 − f): the code must not be better than that.
    share = (values.double().abs() / scale * s) % 1
    assert error == pytest.approx(float((share * (1 - share)).sum()) * (scale / s) ** 2, rel=0.05)


def test_random_numbers_are_uniform_and_of_every_element_and_seed() -> None:
    """χ² of 64 classes has mean 63 and standard deviation 11.2: 63 ± 5 of those."""
    indices = torch.arange(64_000)
    dice = levels._dice_vectorised(12345, indices)
    assert dice.min() >= 0
    assert dice.max() < 1
    for some in (dice, dice[::2], dice[1::2], (dice[::2] + dice[1::2]) % 1, (dice[1:-1:2] + dice[2::2]) % 1):
        counts = torch.bincount((some * 64).long(), minlength=64).double()
        expected = some.numel() / 64
        assert abs(float(((counts - expected) ** 2 / expected).sum()) - 63) < 56
    assert dice.unique().numel() > 63_990
    other = levels._dice_vectorised(12346, indices)
    # The correlation of n independent pairs has a standard deviation of 1/√n = 0.004.
    assert abs(float(torch.corrcoef(torch.stack([dice, other]))[0, 1])) < 0.02
    words = np.empty(64_000, np.uint32)
    levels._roll(np.uint64(12345), 0, words)
    assert torch.equal(torch.from_numpy(words * 2.0**-32), dice)


def test_the_same_generator_draws_anew_at_each_call() -> None:
    values, dice = torch.randn(1000, generator=seeded(0)), seeded(1)
    first, second = levels.encode(values, 4, 512, dice)[0], levels.encode(values, 4, 512, dice)[0]
    assert not torch.equal(first, second)
    assert torch.equal(first, levels.encode(values, 4, 512, seeded(1))[0])


def test_zero_buckets_and_tiny_and_single_elements() -> None:
    values = torch.zeros(600)
    values[512] = -3.5  # alone in its bucket: the norm itself, no rounding
    assert torch.equal(decoded_levels(values, 4, 512, seeded(0)), values)
    assert decoded_levels(torch.tensor([2.5]), 2, 512, seeded(0)).tolist() == [2.5]
    assert decoded_levels(torch.empty(0), 4, 512, seeded(0)).numel() == 0
    tiny = torch.tensor([1e-45, -1e-45, 0.0])  # the least float32: 1/norm is beyond float32
    assert set(decoded_levels(tiny, 2, 3, seeded(0), "max").tolist()) == set(tiny.tolist())


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("norm", ["l2", "max"])
def test_a_bucket_of_levels_with_a_bad_element_is_nan_and_no_other_is(norm: levels.Norm, bad: float) -> None:
    values = torch.randn(30, generator=seeded(0))
    values[13] = bad
    total = decoded_levels(values, 4, 10, seeded(0), norm)
    assert total.isnan().tolist() == [10 <= element < 20 for element in range(30)]
    found, norms = levels.quantise_vectorised(values, 7, 10, 5, norm)
    assert norms.isnan().tolist() == [False, True, False]
    assert not found[10:20].any()


def test_levels_take_the_bits_that_they_promise() -> None:
    """Not a byte per element, as seen elsewhere."""
    codes, norms = levels.encode(torch.ones(1001), 4, 512, seeded(0))
    assert (codes.nbytes, norms.nbytes) == (501, 8)


def test_levels_refuse_what_does_not_fit() -> None:
    values = torch.ones(100)
    codes, norms = levels.encode(values, 4, 64, seeded(0))
    with pytest.raises(ValueError, match="3 bits"):
        levels.encode(values, 3, 64, seeded(0))
    with pytest.raises(ValueError, match="bucket of 0"):
        levels.encode(values, 4, 0, seeded(0))
    with pytest.raises(ValueError, match="'l1'"):
        levels.encode(values, 4, 64, seeded(0), "l1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="float16"):
        levels.encode(values.half(), 4, 64, seeded(0))
    with pytest.raises(ValueError, match="need 50"):
        levels.add_decoded(values, codes[:-1], norms, 4, 64)
    with pytest.raises(ValueError, match="need 2"):
        levels.add_decoded(values, codes, norms[:1], 4, 64)
    with pytest.raises(ValueError, match="int8"):
        levels.add_levels(values, codes, norms, 4, 64)


# --- Elias


def gaussian_levels(numel: int, s: int, num_buckets: int, seed: int = 0) -> Tensor:
    """QSGD with s levels of Gaussian buckets, rows [num_buckets, numel]; s need not be one of the packed widths."""
    values = torch.randn(num_buckets * numel, generator=seeded(seed))
    return levels.quantise_vectorised(values, s, numel, seed, "l2")[0].view(num_buckets, numel)


def elias_bits(bucket: Tensor) -> int:
    """Of one bucket without the mark: with all that is needed to decode it but the norm."""
    return 8 * (elias.encode(bucket).numel() - 1)


def test_elias_codes_of_small_integers() -> None:
    codes = [format(code, f"0{length}b") for code, length in map(elias.code_of, [1, 2, 3, 4, 7, 8, 15, 16, 100])]
    assert codes == [
        "0", "100", "110", "101000", "101110", "1110000", "1111110", "10100100000", "1011011001000",
    ]  # fmt: skip
    for integer in (1, 2, 4095, 4096, 2**20 + 3, 2**40):
        assert elias._omega(integer) == elias.code_of(integer)


@settings(max_examples=60)
@given(SEEDS, st.integers(0, 700), st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.5, 1.0]), st.sampled_from([1, 3, 127]))
def test_elias_gives_back_every_level(seed: int, numel: int, density: float, s: int) -> None:
    dice = np.random.default_rng(seed)
    drawn = dice.integers(-s, s + 1, numel) * (dice.random(numel) < density)
    found = torch.from_numpy(drawn.astype(np.int8))
    stream = elias.encode(found)
    assert torch.equal(elias.decode(stream, numel), found)
    nonzero = np.flatnonzero(drawn)
    sparse = elias.code_of(nonzero.size + 1)[1] + sum(
        elias.code_of(int(gap))[1] + 1 + elias.code_of(abs(int(drawn[at])))[1]
        for gap, at in zip(np.diff(nonzero, prepend=-1), nonzero, strict=True)
    )
    dense = sum(elias.code_of(abs(int(level)) + 1)[1] + (level != 0) for level in drawn)
    assert stream.numel() == 1 + (min(sparse, dense) + 7) // 8
    assert stream[0] == (elias.SPARSE if sparse < dense else elias.DENSE)


def test_elias_takes_every_int8_and_long_gaps() -> None:
    every = torch.arange(-128, 128, dtype=torch.int8)
    assert torch.equal(elias.decode(elias.encode(every), 256), every)
    lonely = torch.zeros(300_000, dtype=torch.int8)
    lonely[[5, 299_999]] = torch.tensor([-128, 1], dtype=torch.int8)
    stream = elias.encode(lonely)
    assert stream[0] == elias.SPARSE
    assert stream.numel() <= 9
    assert torch.equal(elias.decode(stream, 300_000), lonely)


@pytest.mark.parametrize(("numel", "s"), [(512, 1), (512, 2), (512, 7), (4096, 1), (4096, 7)])
def test_sparse_buckets_stay_below_the_bound_of_theorem_3_2(numel: int, s: int) -> None:
    """With o(1) taken as 0 and the bucket's filling and count included: the mean over 50 buckets."""
    spread = s * (s + math.sqrt(numel))
    bound = (3 + 1.5 * math.log2(2 * (s**2 + numel) / spread)) * spread + 32
    buckets = gaussian_levels(numel, s, 50)
    assert all(elias.encode(bucket)[0] == elias.SPARSE for bucket in buckets) or s > 2
    measured = sum(elias_bits(bucket) + 32 for bucket in buckets) / 50
    assert 0.2 * bound < measured <= bound


@pytest.mark.parametrize("s", [64, 127])
def test_gaussian_buckets_with_s_of_root_n_stay_below_the_bound_of_corollary_3_3(s: int) -> None:
    """2.8·n + 32 with the norm; the dense form alone, of which the paper speaks, would be above it."""
    numel = s * s
    buckets = gaussian_levels(numel, s, 8)
    measured = sum(elias_bits(bucket) for bucket in buckets) / 8 + 32
    assert 2.7 * numel < measured <= 2.8 * numel + 32
    dense = sum(elias._count(bucket.numpy())[1] for bucket in buckets) / 8 / numel
    assert 2.8 < dense < 3.0


def test_the_worst_dense_bucket_is_above_2_8_bits_and_below_what_the_code_s_own_length_gives() -> None:
    """Equal magnitudes with s = √n become a level 1 each. A negative result, kept: 2.8 leaves out an o(1)."""
    numel = 4096
    equal = levels.quantise_vectorised(torch.ones(numel), 64, numel, 0, "l2")[0]
    assert torch.equal(equal, torch.ones(numel, dtype=torch.int8))
    sparse_bits, dense_bits, _ = elias._count(equal.numpy())
    assert (sparse_bits - elias.code_of(numel + 1)[1], dense_bits) == (3 * numel, 4 * numel)
    assert dense_bits <= (2 + 1.25 * math.log2(6)) * numel
    lengths = [elias.code_of(k)[1] for k in range(1, 10_000)]
    assert all(length <= 1 + 2.5 * math.log2(k) + 1e-9 for k, length in enumerate(lengths, 1))


def test_the_dense_form_is_taken_where_it_is_shorter() -> None:
    bucket = gaussian_levels(512, 127, 1)[0]
    sparse_bits, dense_bits, _ = elias._count(bucket.numpy())
    assert dense_bits < sparse_bits
    stream = elias.encode(bucket)
    assert stream[0] == elias.DENSE
    assert torch.equal(elias.decode(stream, 512), bucket)


def test_cut_streams_of_elias_are_refused_at_every_length() -> None:
    for found in (gaussian_levels(512, 1, 1)[0], gaussian_levels(256, 127, 1)[0]):
        stream = elias.encode(found)
        for length in range(stream.numel()):
            with pytest.raises(ValueError, match=r"cut|at least a byte"):
                elias.decode(stream[:length], found.numel())
        with pytest.raises(ValueError, match="left over"):
            elias.decode(torch.cat([stream, stream[:1]]), found.numel())


@given(st.binary(min_size=0, max_size=60), st.integers(0, 1), st.integers(0, 500))
def test_damaged_streams_of_elias_end_in_levels_or_an_error(body: bytes, variant: int, numel: int) -> None:
    stream = torch.tensor([variant, *body], dtype=torch.uint8)
    with contextlib.suppress(ValueError):
        found = elias.decode(stream, numel)
        assert found.numel() == numel
        num_bits = elias._count(found.numpy())[variant]
        assert stream.numel() == 1 + (num_bits + 7) // 8  # every level has one code: what decodes is what is encoded


def test_elias_refuses_what_is_no_stream() -> None:
    with pytest.raises(ValueError, match="with 7"):
        elias.decode(torch.tensor([7, 0], dtype=torch.uint8), 3)
    with pytest.raises(ValueError, match="cannot hold 99"):
        elias.decode(torch.tensor([1, 0], dtype=torch.uint8), 99)
    with pytest.raises(ValueError, match="int8"):
        elias.encode(torch.zeros(3))
    with pytest.raises(ValueError, match="not 0"):
        elias.code_of(0)


# --- Golomb


@given(SEEDS, st.integers(0, 5000), st.sampled_from([0.0, 0.001, 0.03, 0.5, 1.0]), st.integers(0, 40))
def test_golomb_gives_back_every_position(seed: int, numel: int, density: float, parameter: int) -> None:
    chosen = np.flatnonzero(np.random.default_rng(seed).random(numel) < density)
    positions = torch.from_numpy(chosen)
    stream = golomb.encode(positions, numel, parameter)
    assert torch.equal(golomb.decode(stream, positions.numel(), parameter, numel), positions)
    gaps = np.diff(chosen, prepend=-1) - 1
    num_bits = int((gaps >> parameter).sum()) + chosen.size * (1 + parameter)
    assert stream.numel() == (num_bits + 7) // 8


def test_golomb_bits_of_an_example() -> None:
    """Gaps less one 2, 0, 6 with b = 1: quotients in unary, remainders in one bit."""
    stream = golomb.encode(torch.tensor([2, 3, 10]), 11, 1)
    assert "".join(format(byte, "08b") for byte in stream.tolist()) == "100" + "00" + "11100" + "000000"


@pytest.mark.parametrize(("density", "parameter"), [(0.001, 9), (0.01, 6), (0.1, 3)])
def test_golomb_takes_the_bits_of_the_formula(density: float, parameter: int) -> None:
    """Of 20,000 positions: the mean of their geometric quotients has a standard error of less than a per cent."""
    numel = int(20_000 / density)
    assert golomb.best_parameter(density) == parameter
    positions = torch.from_numpy(np.flatnonzero(np.random.default_rng(0).random(numel, dtype=np.float32) < density))
    measured = 8 * golomb.encode(positions, numel, parameter).numel() / positions.numel()
    formula = parameter + 1 / (1 - (1 - density) ** (2**parameter))
    assert golomb.bits_per_position(density, parameter) == pytest.approx(formula)
    assert measured == pytest.approx(formula, rel=0.02)
    entropy = -math.log2(density) - (1 - density) / density * math.log2(1 - density)
    assert entropy < measured < 1.04 * entropy
    neighbours = [golomb.bits_per_position(density, parameter + step) for step in (-1, 1)]
    assert formula <= min(neighbours)


def test_best_parameter_at_the_ends() -> None:
    ends = (1.0, 0.99, 0.5, 1e-300, 1e-310, 5e-324)
    assert [golomb.best_parameter(density) for density in ends] == [0, 0, 0, 40, 40, 40]
    assert math.isfinite(golomb.bits_per_position(5e-324, 40))
    for density in (0.0, -0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="density"):
            golomb.best_parameter(density)


def test_cut_streams_of_golomb_are_refused_at_every_length() -> None:
    positions = torch.arange(0, 1000, 13)
    stream = golomb.encode(positions, 1000, 3)
    for length in range(stream.numel()):
        with pytest.raises(ValueError, match="cut"):
            golomb.decode(stream[:length], positions.numel(), 3, 1000)
    with pytest.raises(ValueError, match="count is wrong"):
        golomb.decode(torch.cat([stream, stream]), positions.numel(), 3, 1000)


@given(st.binary(max_size=60), st.integers(-1, 100), st.integers(0, 40), st.sampled_from([0, 1, 100, golomb.LIMIT]))
def test_damaged_streams_of_golomb_end_in_positions_or_an_error(
    body: bytes, count: int, parameter: int, numel: int
) -> None:
    stream = torch.tensor(list(body), dtype=torch.uint8)
    with contextlib.suppress(ValueError):
        positions = golomb.decode(stream, count, parameter, numel)
        assert positions.numel() == count
        assert (positions.diff() > 0).all()
        assert ((positions >= 0) & (positions < numel)).all()


@pytest.mark.parametrize("positions", [[3, 2], [2, 2], [-1, 4], [5, 10]])
def test_golomb_refuses_positions_out_of_order_or_range(positions: list[int]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        golomb.encode(torch.tensor(positions), 10, 2)


def test_golomb_refuses_wrong_parameters() -> None:
    with pytest.raises(ValueError, match="parameter 41"):
        golomb.encode(torch.tensor([1]), 10, 41)
    with pytest.raises(ValueError, match="parameter -1"):
        golomb.decode(torch.zeros(1, dtype=torch.uint8), 1, -1)
    with pytest.raises(ValueError, match="int32"):
        golomb.encode(torch.tensor([1], dtype=torch.int32), 10, 2)
