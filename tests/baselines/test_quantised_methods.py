"""Quantised methods through the whole way over ranks: what the papers promise, and bytes against their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import pytest
import torch
from driven_ranks import Ranks, parameters_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from baselines.api import Compressor, Context, Message, Segment
from baselines.codec import Codec, decoded
from baselines.compression.double_squeeze import DoubleSqueeze
from baselines.compression.error_feedback import ErrorFeedback
from baselines.compression.onebit import OneBit
from baselines.compression.qsgd import Qsgd
from baselines.compression.sbc import Sbc
from baselines.compression.topk import TopK
from baselines.compression.uncompressed import Uncompressed
from baselines.compression.warm_up import WarmUp
from baselines.kernels import golomb
from baselines.sparsity import num_kept
from baselines.strategy import parse_strategy
from baselines.text import TextError

SHAPES = ((6, 5), (7,), (3, 2, 4), (), (20,))
NUMEL = 82
METHODS: tuple[Compressor, ...] = (
    Qsgd(),
    Qsgd(bits=2, bucket=16),
    Qsgd(bits=8, norm="max"),
    Qsgd(coding="elias"),
    OneBit(),
    OneBit(per="tensor"),
    OneBit(per="message"),
    Sbc(density=0.1),
    Sbc(density=0.1, per="message"),
    ErrorFeedback(WarmUp(Sbc(density=0.1), steps=1)),
)
EVERY = pytest.mark.parametrize("method", METHODS, ids=str)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def one_rank(codec: Compressor, grad: Tensor, shapes: tuple[tuple[int, ...], ...] | None = None) -> Tensor:
    """What a single rank gets back for its own gradient."""
    ranks = Ranks(codec, 1, parameters_of(shapes or ((grad.numel(),),)))
    return ranks.reduce([grad])[0].value


def context(segments: tuple[Segment, ...], seed: int = 0) -> Context:
    return Context(0, 1, 0, Message(0, segments), torch.Generator().manual_seed(seed))


def size_of(codec: Compressor, values: Tensor, shapes: tuple[tuple[int, ...], ...] | None = None) -> int:
    """Bytes of the code."""
    return cast(Codec, codec).encode(values, context(parameters_of(shapes or ((values.numel(),),)))).numel()


# ---- all of them


@EVERY
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_replicas_get_the_same_bits_and_the_sum_of_what_was_sent(method: Compressor, world: int) -> None:
    ranks = Ranks(method, world, parameters_of(SHAPES))
    for step in range(2):
        results = ranks.reduce(list(normal(world, NUMEL, seed=step)))
        assert all(torch.equal(results[0].value, other.value) for other in results)
        sent = torch.stack([cast(Tensor, result.contributed) for result in results])
        torch.testing.assert_close(results[0].value, sent.sum(0), rtol=1e-6, atol=1e-6)


@EVERY
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_reaches_every_rank(method: Compressor, value: float) -> None:
    ranks = Ranks(method, 3, parameters_of(SHAPES))
    for _ in range(2):
        grads = list(normal(3, NUMEL))
        grads[1][33] = value
        assert all(not result.value.isfinite().all() for result in ranks.reduce(grads))


@EVERY
def test_a_gradient_of_zeros_stays_zero(method: Compressor) -> None:
    ranks = Ranks(method, 2, parameters_of(SHAPES))
    for _ in range(2):
        assert not ranks.reduce([torch.zeros(NUMEL)] * 2)[0].value.any()


@EVERY
def test_codes_leave_the_gradient_as_it_is(method: Compressor) -> None:
    if isinstance(method, Codec):
        values = normal(NUMEL)
        before = values.clone()
        method.encode(values, context(parameters_of(SHAPES)))
        assert torch.equal(values, before)


@EVERY
def test_an_empty_message_has_a_code(method: Compressor) -> None:
    if isinstance(method, Codec):
        nothing = context(())
        data = method.encode(torch.zeros(0), nothing)
        assert decoded(method, data, 0, nothing).numel() == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Qsgd(bits=3), "bits is 3; use one of 2, 4, 8"),
        (lambda: Qsgd(bucket=0), "bucket is 0"),
        (lambda: Qsgd(norm="l1"), "norm is 'l1'; use 'l2' or 'max'"),
        (lambda: Qsgd(coding="huffman"), "coding is 'huffman'; use 'fixed' or 'elias'"),
        (lambda: OneBit(per="column"), "per is 'column'; use 'row', 'tensor' or 'message'"),
        (lambda: Sbc(density=0.0), "density is 0.0"),
        (lambda: Sbc(density=1.5), "density is 1.5"),
        (lambda: Sbc(per="row"), "per is 'row'; use 'tensor' or 'message'"),
        (lambda: WarmUp(OneBit(), steps=-1), "steps is -1"),
        (lambda: WarmUp(Uncompressed()), "warm-up around uncompressed: nothing is lost"),
        (lambda: WarmUp(WarmUp(OneBit())), "named twice"),
    ],
)
def test_wrong_settings_are_named_with_the_remedy(make: Callable[[], Compressor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# ---- QSGD


@pytest.mark.parametrize(("bits", "norm"), [(2, "l2"), (4, "l2"), (8, "l2"), (4, "max")])
def test_qsgd_has_no_bias_and_the_variance_of_the_paper(bits: int, norm: str) -> None:
    """3000 draws for each of 3 buckets, over 2 ranks: each element's mean is within 5 standard errors of the mean
    gradient, and the squared error below min(d/s², √d/s)·‖v‖² a rank (for l2; 3000 draws leave a few per cent)."""
    num_draws, d, s = 3000, 32, 2 ** (bits - 1) - 1
    buckets = list(normal(2, 3, d) * torch.linspace(0.01, 3, 3 * d).view(3, d))  # [ranks], each [buckets, d]
    ranks = Ranks(Qsgd(bits=bits, bucket=d, norm=norm), 2, parameters_of(((num_draws, 3, d),)))
    value = ranks.reduce([own.repeat(num_draws, 1).view(-1) for own in buckets])[0].value.view(num_draws, 3, d).double()
    exact = torch.stack(buckets).double().mean(0)
    variance = value.var(0)
    assert bool(((value.mean(0) - exact).abs() <= 5 * (variance / num_draws).sqrt() + 1e-6).all())
    norms = sum((own / 2).square().sum(1) for own in buckets)
    measured = variance.sum(1)
    assert bool((measured > 0).all())
    if norm == "l2":
        assert bool((measured <= min(d / s**2, math.sqrt(d) / s) * norms * 1.05).all())


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("numel", [1, 5, 512, 513, 1000])
def test_qsgd_of_fixed_width_is_really_packed(bits: int, numel: int) -> None:
    """⌈n·bits/8⌉ and 4 bytes per bucket; not a byte per element, as in public implementations."""
    codec = Qsgd(bits=bits)
    assert size_of(codec, normal(numel)) == -(-numel * bits // 8) + 4 * -(-numel // 512)
    assert codec.wire_bytes(numel, 4) == pytest.approx(numel * bits / 8 + 4 * -(-numel // 512))


def test_every_rank_sends_its_code_to_each_other_and_no_header_where_sizes_are_equal() -> None:
    fixed, elias = (Ranks(Qsgd(coding=coding), 4, parameters_of(((1000,),))) for coding in ("fixed", "elias"))
    grads = list(normal(4, 1000))
    fixed.reduce(grads)
    assert fixed.sent == [3 * (500 + 8)] * 4
    elias.reduce(grads)
    longest = elias.sent[0] / 3 - 8
    assert longest < 0.55 * 508  # sizes of 8 bytes to each of 3; then as many bytes as the longest code has
    assert elias.sent == [elias.sent[0]] * 4


@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("bucket", [64, 512, 8192])
def test_elias_codes_are_as_long_as_predicted_for_a_normal_distribution(bits: int, bucket: int, norm: str) -> None:
    codec = Qsgd(bits=bits, bucket=bucket, norm=norm, coding="elias")
    values = normal(16 * 8192)
    assert codec.wire_bytes(values.numel(), 2) == pytest.approx(size_of(codec, values), rel=0.04)


def test_the_elias_coding_keeps_the_bound_of_the_paper() -> None:
    """Theorem 3.2 with its o(1) left out, a bucket of 512: 2-bit codes, where the theorem is about sparse vectors."""
    s, d = 1, 512
    kept = s * (s + math.sqrt(d))
    bits = (3 + 1.5 * math.log2(2 * (s * s + d) / kept)) * kept + 32
    num_buckets = 64
    measured = 8 * size_of(Qsgd(bits=2, coding="elias"), normal(num_buckets * d)) / num_buckets
    assert measured <= bits


def test_both_codings_stand_for_the_same_values() -> None:
    grad = normal(1500)
    fixed, elias = (one_rank(Qsgd(coding=coding), grad) for coding in ("fixed", "elias"))
    assert torch.equal(fixed, elias)
    assert fixed.any()


def test_a_bucket_of_zeros_beside_others_stays_zero() -> None:
    grad = normal(1200)
    grad[512:1024] = 0
    value = one_rank(Qsgd(), grad)
    assert not value[512:1024].any()
    assert value[:512].any()
    assert value[1024:].any()


def test_qsgd_keeps_to_its_levels() -> None:
    grad = normal(300)
    value = one_rank(Qsgd(bucket=300), grad)
    steps = value / (grad.norm() / 7)
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-5)
    assert steps.abs().max() <= 7
    assert bool((value * grad >= 0).all())


# ---- 1-bit SGD


def test_one_bit_decodes_the_example() -> None:
    """Where `~` on unsigned bytes decodes, values are in the hundreds."""
    for per in ("row", "tensor", "message"):
        assert one_rank(OneBit(per=per), torch.tensor([-1.0, -2.0, 3.0, 5.0])).tolist() == [-1.5, -1.5, 4.0, 4.0]


def test_what_a_block_is() -> None:
    grad = torch.tensor([-1.0, 3.0, -5.0, 7.0, 2.0, 4.0])
    shapes = ((2, 2), (2,))
    assert one_rank(OneBit(per="row"), grad, shapes).tolist() == [-1, 3, -5, 7, 3, 3]
    assert one_rank(OneBit(per="tensor"), grad, shapes).tolist() == [-3, 5, -3, 5, 3, 3]
    assert one_rank(OneBit(per="message"), grad, shapes).tolist() == [-3, 4, -3, 4, 4, 4]


@given(shape=st.lists(st.integers(1, 6), max_size=3), cut=st.tuples(st.integers(0, 216), st.integers(0, 216)))
def test_blocks_are_rows_also_of_a_part_of_a_parameter(shape: list[int], cut: tuple[int, int]) -> None:
    numel = math.prod(shape)
    start, stop = sorted(min(end, numel) for end in cut)
    sizes = OneBit().block_sizes(Message(0, (Segment("p", tuple(shape), start, stop, 0),)))
    assert all(sizes)
    assert sum(sizes) == stop - start
    row = numel // shape[0] if len(shape) > 1 else numel
    borders = {start + sum(sizes[:i]) for i in range(len(sizes) + 1)} - {start, stop}
    assert borders == {at for at in range(start + 1, stop) if at % row == 0}


@pytest.mark.parametrize(("per", "num_blocks"), [("row", 6 + 1 + 3 + 1 + 1), ("tensor", 5), ("message", 1)])
def test_one_bit_takes_a_bit_an_element_and_two_means_a_block(per: str, num_blocks: int) -> None:
    assert size_of(OneBit(per=per), normal(NUMEL), SHAPES) == -(-NUMEL // 8) + 8 * num_blocks


def test_one_bit_keeps_the_sum_of_each_row_and_has_the_least_error() -> None:
    grad = normal(6, 50)
    value = one_rank(OneBit(), grad.flatten(), ((6, 50),)).view(6, 50)
    torch.testing.assert_close(value.sum(1), grad.sum(1))
    error = (value - grad).square().sum()
    for scale in (0.9, 0.99, 1.01, 1.1):
        assert (scale * value - grad).square().sum() > error


def test_one_bit_needs_whole_tensors_by_row_and_by_tensor() -> None:
    for text in ("slices+onebit", "slices+onebit(per='tensor')+double-squeeze", "slices+sbc"):
        with pytest.raises(TextError, match="whole tensors"):
            parse_strategy(text)
    assert parse_strategy("slices+onebit(per='message')").compression == OneBit(per="message")


# ---- SBC


@given(
    seed=st.integers(0, 10**6), density=st.floats(0.01, 0.3), sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4)
)
def test_sbc_keeps_one_side_of_each_tensor_at_its_mean(seed: int, density: float, sizes: list[int]) -> None:
    """Against a reference by sorting."""
    grad = normal(sum(sizes), seed=seed)
    codec = Sbc(density=density)
    value = one_rank(codec, grad, tuple((size,) for size in sizes))
    for own, result in zip(grad.split(sizes), value.split(sizes), strict=True):
        k = num_kept(own.numel(), codec.density)
        rising, falling = own[own > 0].sort(descending=True).values[:k], own[own < 0].sort().values[:k]
        up, down = (float(side.double().mean()) if side.numel() else 0.0 for side in (rising, -falling))
        kept, mean = (own >= rising[-1], up) if up >= down else (own <= falling[-1], -down)
        torch.testing.assert_close(result, torch.where(kept, mean, 0.0).float())
        assert result.unique().numel() <= 2


def test_sbc_of_a_message_has_one_value() -> None:
    grad = normal(NUMEL)
    value = one_rank(Sbc(density=0.1, per="message"), grad, SHAPES)
    per_tensor = one_rank(Sbc(density=0.1), grad, SHAPES)
    assert value.unique().numel() == 2
    assert int((value != 0).sum()) == num_kept(NUMEL, 0.1)
    assert per_tensor.unique().numel() > 2


def test_sbc_sends_fewer_where_fewer_have_the_sign() -> None:
    grad = torch.zeros(40)
    grad[7] = -2.0
    assert torch.equal(one_rank(Sbc(density=0.5), grad), grad)


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_sbc_takes_the_bits_of_its_formula(density: float) -> None:
    """Positions at random: b* + 1/(1 − (1−p)^(2^b*)) each, to 3 %; beside it a mean a tensor and a count."""
    numel = 2_000_000
    values = normal(numel)
    codec = Sbc(density=density)
    stream = size_of(codec, values, ((numel // 2,), (numel // 2,))) - 2 * 4 - 4
    b = 1 + math.floor(math.log2(math.log((math.sqrt(5) - 1) / 2) / math.log(1 - density)))
    bits = b + 1 / (1 - (1 - density) ** (2**b))
    assert 8 * stream / (density * numel) == pytest.approx(bits, rel=0.03)
    assert codec.wire_bytes(numel, 2) == pytest.approx(size_of(codec, values), rel=0.03)
    assert golomb.best_parameter(density) == b


def test_a_damaged_position_is_refused_not_written() -> None:
    codec, ctx = Sbc(density=0.1), context(parameters_of(((50,),)))
    data = codec.encode(normal(50), ctx)
    with pytest.raises(ValueError, match="the message was cut"):
        codec.add_decoded(data[:-1], torch.zeros(50), ctx)
    with pytest.raises(ValueError, match="bytes arrived where"):
        codec.add_decoded(data[:3], torch.zeros(50), ctx)


# ---- warm-up


def test_bytes_and_results_switch_after_the_warm_up_and_residuals_are_zero_before() -> None:
    codec = TopK(density=0.1)
    ranks = Ranks(WarmUp(ErrorFeedback(codec), steps=2), 3, parameters_of(SHAPES))
    alone = Ranks(ErrorFeedback(codec), 3, parameters_of(SHAPES))
    for step in range(4):
        grads = list(normal(3, NUMEL, seed=step))
        before = ranks.sent[0]
        value = ranks.reduce(grads)[0].value
        sent = ranks.sent[0] - before
        if step < 2:
            torch.testing.assert_close(value, torch.stack(grads).mean(0))
            assert sent == pytest.approx(2 * 2 / 3 * 4 * NUMEL)
            assert not any(ranks.kept(rank, "residual").any() for rank in range(3))
        else:
            assert torch.equal(value, alone.reduce(grads)[0].value)
            assert sent == pytest.approx(2 * codec.wire_bytes(NUMEL, 3))
            assert ranks.kept(0, "residual").any()


def test_no_steps_of_warm_up_are_none() -> None:
    grad = normal(NUMEL)
    assert torch.equal(one_rank(WarmUp(OneBit(), steps=0), grad, SHAPES), one_rank(OneBit(), grad, SHAPES))


def test_a_warm_up_goes_where_its_inner_compressor_goes() -> None:
    inner = ErrorFeedback(DoubleSqueeze(OneBit()))
    outer = WarmUp(inner)
    assert (outer.how, outer.scope, outer.wire_bytes(1000, 4)) == (inner.how, inner.scope, inner.wire_bytes(1000, 4))
    parameter = torch.zeros(3)
    assert outer.init("p", parameter).keys() == inner.init("p", parameter).keys()
    for exchange in ("all-reduce", "parameter-server", "parameter-server(servers=1)"):
        parse_strategy(f"onebit+double-squeeze+error-feedback+warm-up(steps=5)+{exchange}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topk+warm-up+error-feedback", "write it last"),
        ("onebit+warm-up+double-squeeze", "no code which can travel alone"),
        ("warm-up", "nothing is lost"),
    ],
)
def test_a_warm_up_inside_another_wrapper_is_refused(text: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        parse_strategy(text)
