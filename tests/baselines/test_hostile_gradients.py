"""Gradients of other formats, of no elements, beyond bounds: what every lossy compressor makes of them."""

from __future__ import annotations

from logging import LogRecord

import pytest
import torch
from layouts import reduce_together
from torch import Tensor, nn

from baselines.api import Aggregated, Context, KeepsResidual, Message, Segment, Slot, Votes
from baselines.catalogue import plugins
from baselines.compression.dgc import Dgc
from baselines.compression.half import Half
from baselines.compression.powersgd import PowerSgd
from baselines.kernels import feedback
from baselines.strategy import Strategy, parse_strategy
from harness.lockstep.ranks import Lockstep, replicas

ROWS, COLUMNS = 20, 30
NUMEL = ROWS * COLUMNS
NEEDS = {
    "gtopk": "+tree",
    "dgc": "+sgd(momentum=0.0)",
    "signum": "+sgd(momentum=0.0)",
    "onebit-adam": "(warmup_steps=1)+frozen-adam(freeze_after=1)",
}


def strategies() -> list[str]:
    """Every lossy compressor, with error feedback where that may go around it."""
    found = []
    for name, kind in plugins().items():
        if kind.card.slot is Slot.COMPRESSION and not kind.card.wraps and kind().lossy:
            feeds_back = "" if isinstance(kind(), KeepsResidual | Votes) else "+error-feedback"
            found.append(f"single-bucket+{name}{NEEDS.get(name, '')}{feeds_back}")
    return found


def drawn(step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(step)).to(dtype)


def segment(dtype: torch.dtype = torch.float32) -> Segment:
    return Segment("a", (ROWS, COLUMNS), 0, NUMEL, 0, dtype)


def with_feedback() -> list[tuple[str, torch.dtype]]:
    """Every compressor under error feedback, with each format that its card says it takes."""
    texts = [text for text in strategies() if text.endswith("error-feedback")]
    taken = {text: frozenset.intersection(*parse_strategy(text).takes.values()) for text in texts}
    return [(text, dtype) for text in texts for dtype in sorted(taken[text], key=str)]


@pytest.mark.parametrize(("text", "dtype"), with_feedback(), ids=str)
def test_residuals_conserve_gradients_of_every_format(text: str, dtype: torch.dtype) -> None:
    """Σ sent + e = Σ g to 1e-6 of the largest: residuals are float32 whatever the format of the gradient."""
    strategy = parse_strategy(text)
    states = [{"a": strategy.compression.init("a", torch.zeros(ROWS, COLUMNS, dtype=dtype))}]
    wide = torch.promote_types(dtype, torch.float64)  # complex for what is complex
    given, sent = torch.zeros(2, NUMEL, dtype=wide)
    for step in range(20):
        grad = torch.complex(drawn(step), drawn(-step)).to(dtype) if dtype.is_complex else drawn(step, dtype)
        given += grad
        (reduced,) = reduce_together(
            strategy.compression, [grad], states, [segment(dtype)], exchange=strategy.exchange, step=step
        )
        assert reduced.contributed is not None
        assert reduced.value.dtype == dtype
        sent += reduced.contributed
    residual = states[0]["a"]["residual"]
    assert residual.dtype == torch.promote_types(dtype, torch.float32)
    assert float((sent + residual - given).abs().max()) <= 1e-6 * float(given.abs().max())


def test_half_precision_of_a_gradient_in_that_format_tells_what_was_sent_and_not_the_sum() -> None:
    grad = drawn(1, torch.float16)
    ctx = Context(0, 2, 0, Message(0, (segment(torch.float16),)), torch.Generator(), wants_contribution=True)
    run = Half().reduce(grad.clone(), {}, ctx)
    (payload,) = next(run).payload
    payload.add_(1.0)  # a sum may arrive in place
    with pytest.raises(StopIteration) as end:
        run.send(Aggregated(((payload,),)))
    assert torch.equal(end.value.value.contributed, grad)


@pytest.mark.parametrize("text", strategies())
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_models_of_16_bits_train_with_every_compressor(text: str, dtype: torch.dtype) -> None:
    """Replicas stay equal bit for bit and finite."""
    torch.manual_seed(2)
    ranks = Lockstep(replicas(nn.Linear(COLUMNS, ROWS).to(dtype), 2), parse_strategy(text))
    for step in range(3):
        inputs = drawn(step, dtype).view(ROWS, COLUMNS)
        ranks.step(lambda rank, model, inputs=inputs: model(inputs[rank::2]).float().square().mean())
    first, second = (dict(model.named_parameters()) for model in ranks.models)
    for name, parameter in first.items():
        assert parameter.dtype == dtype
        assert bool(parameter.isfinite().all())
        assert torch.equal(parameter, second[name])


@pytest.mark.parametrize("text", strategies())
def test_parameters_without_elements_are_no_error(text: str) -> None:
    strategy = parse_strategy(text)
    nothing, some = Segment("nothing", (0, 3), 0, 0, 0), Segment("some", (5,), 0, 5, 1)
    for layout in ([nothing], [nothing, some], [some, nothing]):
        states = [{s.name: strategy.compression.init(s.name, torch.zeros(s.shape)) for s in layout} for _ in range(2)]
        for step in range(2):
            grads = [torch.ones(sum(s.numel for s in layout)) for _ in range(2)]
            results = reduce_together(
                strategy.compression, grads, states, layout, exchange=strategy.exchange, step=step
            )
            assert all(result.value.numel() == grads[0].numel() for result in results)


@pytest.mark.parametrize("text", strategies())
def test_after_one_infinite_gradient_states_recover_and_say_so(text: str, logged: list[LogRecord]) -> None:
    strategy = parse_strategy(text)
    states = [{"a": strategy.compression.init("a", torch.zeros(ROWS, COLUMNS))} for _ in range(2)]

    def reduce(step: int, value: float | None = None) -> Tensor:
        grads = [drawn(10 * step + rank) for rank in range(2)]
        if value is not None:
            grads[1][33] = value
        return reduce_together(strategy.compression, grads, states, [segment()], exchange=strategy.exchange, step=step)[
            0
        ].value

    reduce(0)
    reduce(1, torch.inf)
    is_damaged = "onebit-adam" in text or "powersgd" in text  # they begin anew at once
    is_damaged |= not all(bool(tensor.isfinite().all()) for own in states for tensor in own["a"].values())
    for step in range(2, 5):
        value = reduce(step)
    assert bool(value.isfinite().all())
    assert all(bool(tensor.isfinite().all()) for own in states for tensor in own["a"].values())
    assert any("not finite: begun anew" in record.getMessage() for record in logged) is is_damaged


@pytest.mark.parametrize("scale", [1e15, 1e18, 1e25, 1e-25])
def test_powersgd_stays_finite_and_near_for_huge_and_tiny_gradients(scale: float) -> None:
    """A matrix of rank 2 comes back as it is, to 1e-4 of its size: float32 products through a warm Q."""
    left, right = drawn(1)[:40].view(ROWS, 2), drawn(2)[: 2 * COLUMNS].view(2, COLUMNS)
    exact = (left @ right).view(-1)
    compressor = PowerSgd(rank=2)
    states = [{"a": compressor.init("a", torch.zeros(ROWS, COLUMNS))}]
    for step in range(3):
        (reduced,) = reduce_together(compressor, [exact * scale], states, [segment()], step=step)
        assert bool(reduced.value.isfinite().all())
    torch.testing.assert_close(reduced.value / scale, exact, rtol=0, atol=1e-4 * float(exact.abs().max()))


@pytest.mark.parametrize("tail", ["normal", "heavy", "few large", "mostly zero"])
def test_dgc_sends_between_eight_tenths_of_k_and_k(tail: str) -> None:
    """As the authors' code adapts it, whatever the distribution."""
    numel, num_kept = 200_000, 1_000
    dice = torch.Generator().manual_seed(4)
    values = torch.randn(numel, generator=dice)
    if tail == "heavy":
        values = values * (3 * torch.randn(numel, generator=dice)).exp()
    elif tail == "few large":
        values[:300] *= 1e3
    elif tail == "mostly zero":
        values[900:] = 0.0
    compressor = Dgc(density=num_kept / numel, momentum=0.0)
    layout = [Segment("a", (numel,), 0, numel, 0)]
    for step in range(5):
        states = [{"a": compressor.init("a", torch.zeros(numel))}]
        (reduced,) = reduce_together(compressor, [values.clone()], states, layout, step=step)
        assert 0.8 * num_kept <= int((reduced.value != 0).sum()) <= num_kept


@pytest.mark.parametrize("nesterov", [False, True])
def test_one_pass_gives_what_torchs_operations_give(nesterov: bool) -> None:
    """To a unit in the last place: the same sums, once fused."""
    grad, velocity, residual = drawn(1), drawn(2), drawn(3)
    other = [tensor.double() for tensor in (grad, velocity, residual)]  # not compiled
    assert feedback.accumulate(grad, velocity, residual, 0.9, nesterov=nesterov) == 0
    feedback.accumulate(other[0], other[1], other[2], 0.9, nesterov=nesterov)
    for own, exact in zip((grad, velocity, residual), other, strict=True):
        torch.testing.assert_close(own.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "vectorised"])
def test_absorbing_gives_up_what_is_not_finite_in_any_residual(dtype: torch.dtype) -> None:
    grads = [torch.ones(4, dtype=dtype), torch.ones(2, dtype=dtype)]
    residuals = [torch.tensor([1.0, torch.nan, torch.inf, -1.0], dtype=dtype), torch.tensor([0.5, 2.0], dtype=dtype)]
    assert feedback.absorb(grads, residuals) == 2
    assert [grad.tolist() for grad in grads] == [kept.tolist() for kept in residuals] == [[2, 1, 1, 0], [1.5, 3]]
    assert feedback.absorb(grads, residuals) == 0


def test_texts_of_every_compressor_are_legal() -> None:
    assert all(isinstance(parse_strategy(text), Strategy) for text in strategies())
