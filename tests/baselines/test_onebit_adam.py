"""1-bit Adam: against the algorithm written out in numpy, its residuals, its bytes, and what it goes with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import torch
from layouts import reduce_together
from torch import Tensor, nn

from baselines.api import Aggregate, ExchangeRun, Segment, State
from baselines.compression.error_feedback import ErrorFeedback
from baselines.compression.onebit_adam import OnebitAdam
from baselines.exchange.parameter_server import ParameterServer
from baselines.strategy import StrategyError, parse_strategy
from harness.engine.traffic import sent_by
from harness.lockstep.ranks import Lockstep, replicas

Array = npt.NDArray[np.float64]
LR, BETA1, BETA2, EPS, WARM_UP = 0.01, 0.9, 0.999, 1e-8, 5
ROWS, COLUMNS, BATCH = 7, 6, 8


def method(warmup_steps: int = WARM_UP, **settings: object) -> str:
    told = "".join(f", {name}={value!r}" for name, value in settings.items())
    optimizer = f"frozen-adam(lr={LR}, freeze_after={warmup_steps}, floor=0.0)"
    return f"onebit-adam(warmup_steps={warmup_steps}{told})+{optimizer}"


class Regression(nn.Module):
    """y = Wx + b with a squared error, whose gradients are written out below."""

    def __init__(self) -> None:
        super().__init__()
        dice = torch.Generator().manual_seed(8)
        self.weight = nn.Parameter(torch.randn(ROWS, COLUMNS, generator=dice))
        self.bias = nn.Parameter(torch.randn(ROWS, generator=dice))

    def loss(self, step: int, rank: int) -> Tensor:
        inputs, targets = batch(step, rank)
        return ((inputs @ self.weight.T + self.bias - targets) ** 2).sum() / (2 * BATCH)


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(BATCH, COLUMNS, generator=dice), torch.randn(BATCH, ROWS, generator=dice)


def gradients(weights: dict[str, Array], step: int, rank: int) -> dict[str, Array]:
    inputs, targets = (part.numpy().astype(np.float64) for part in batch(step, rank))
    wrong = (inputs @ weights["weight"].T + weights["bias"] - targets) / BATCH
    return {"weight": wrong.T @ inputs, "bias": wrong.sum(0)}


def loss_at(step: int, rank: int, model: nn.Module) -> Tensor:
    assert isinstance(model, Regression)
    return model.loss(step, rank)


def trained(text: str, world: int, num_steps: int) -> Lockstep:
    ranks = Lockstep(replicas(Regression(), world), parse_strategy(text))
    for step in range(num_steps):
        ranks.step(partial(loss_at, step))
    return ranks


def sign_code(values: Array, order: int) -> Array:
    """C(a) of one block: the scale times signs, that of 0 being +."""
    scale = np.sqrt((values**2).mean()) if order == 2 else np.abs(values).mean()
    return np.asarray(np.where(values >= 0, scale, -scale))


def reference(world: int, num_steps: int, order: int = 2) -> dict[str, Array]:
    """The paper's algorithm on `world` workers that are all servers, rows of a parameter shared out among them."""
    weights = {name: p.detach().numpy().astype(np.float64) for name, p in Regression().named_parameters()}
    names = list(weights)
    momentum = {n: np.zeros_like(weights[n]) for n in names}
    square = {n: np.zeros_like(weights[n]) for n in names}
    worker_error = [{n: np.zeros_like(weights[n]) for n in names} for _ in range(world)]
    server_error = {n: np.zeros_like(weights[n]) for n in names}  # each server's own rows of it
    for step in range(num_steps):
        each = [gradients(weights, step, rank) for rank in range(world)]
        for n in names:
            if step < WARM_UP:
                mean = sum(g[n] for g in each) / world
                momentum[n] = BETA1 * momentum[n] + (1 - BETA1) * mean
                square[n] = BETA2 * square[n] + (1 - BETA2) * mean**2
            else:
                local = [BETA1 * momentum[n] + (1 - BETA1) * g[n] for g in each]
                bounds = [math.ceil(ROWS * server / world) for server in range(world + 1)]
                for low, high in pairwise(bounds):
                    total = np.zeros_like(momentum[n][low:high])
                    for rank in range(world):
                        wanted = local[rank][low:high] + worker_error[rank][n][low:high]
                        sent = sign_code(wanted, order)
                        worker_error[rank][n][low:high] = wanted - sent
                        total += sent / world
                    total += server_error[n][low:high]
                    momentum[n][low:high] = sign_code(total, order)
                    server_error[n][low:high] = total - momentum[n][low:high]
            corrected = momentum[n] / (1 - BETA1 ** (step + 1))
            root = np.sqrt(square[n] / (1 - BETA2 ** min(step + 1, WARM_UP)))
            weights[n] = weights[n] - LR * corrected / (root + EPS)
    return weights


def assert_near(own: nn.Module, weights: dict[str, Array], tolerance: float) -> None:
    for name, parameter in own.named_parameters():
        difference = np.abs(parameter.detach().numpy() - weights[name]).max()
        assert difference <= tolerance, f"{name}: {difference}"


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize(("scale", "order"), [("l2", 2), ("l1", 1)])
def test_weights_are_those_of_the_algorithm_written_out(world: int, scale: str, order: int) -> None:
    """20 steps, 15 of them compressed; float32 against float64, so 1e-5 in weights of size 1. One sign that rounding
    turned would be a thousand times as much."""
    ranks = trained(method(scale=scale) + "+unfused", world, 20)
    for model in ranks.models:
        assert_near(model, reference(world, 20, order), 1e-5)


@pytest.mark.parametrize(
    "surroundings", ["single-bucket", "fixed-buckets(bucket_bytes=64)", "tensor-fusion", "slices(slice_elements=15)"]
)
@pytest.mark.parametrize("servers", [0, 1])
def test_packings_and_servers_do_as_well(surroundings: str, servers: int) -> None:
    """Replicas identical, and the loss as low as with plain Adam, within a tenth."""
    exchange = f"+parameter-server(servers={servers})"
    ranks = trained(f"{method()}+{surroundings}{exchange}", 3, 20)
    first, *others = ranks.models[: ranks.num_workers]
    for other in others:
        assert all(torch.equal(p, other.get_parameter(name)) for name, p in first.named_parameters())
    exact = trained(f"frozen-adam(lr={LR}, freeze_after={WARM_UP}, floor=0.0){exchange}", 3, 20).models[0]
    assert loss_of(first) <= 1.1 * loss_of(exact)


def loss_of(model: nn.Module) -> float:
    assert isinstance(model, Regression)
    with torch.no_grad():
        return float(torch.stack([model.loss(step, rank) for step in range(20) for rank in range(4)]).mean())


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_warm_up_is_adam(world: int) -> None:
    """Until the freeze against torch's Adam: rounding in another order of operations, some ulp of 1 a step."""
    own = trained(method(20), world, 20).models[0]
    exact = trained(f"adam(lr={LR}, weight_decay=0.0)", world, 20).models[0]
    for name, parameter in own.named_parameters():
        torch.testing.assert_close(parameter, exact.get_parameter(name), rtol=0, atol=1e-5)


def test_the_optimizers_momentum_is_the_one_that_was_sent() -> None:
    """Bits and a scale come out of Adam's state again: each server's rows hold ±s alone, to rounding of (m̄' − β₁m̄)."""
    ranks = trained(method() + "+unfused", 2, 40)
    weight = ranks.parameters[0]["weight"]
    own = ranks._optimizers[0][""].state[weight]["exp_avg"]
    sent = ranks.states[0]["weight"]["momentum"].view(ROWS, COLUMNS)
    torch.testing.assert_close(own, sent, rtol=0, atol=1e-6 * float(sent.abs().max()) * 10)
    for rows in (sent[:4], sent[4:]):
        assert len(rows.abs().unique()) == 1
        assert len(rows.unique()) == 2


def segments() -> tuple[Segment, ...]:
    return tuple(
        Segment(f"p{i}", shape, 0, math.prod(shape), i) for i, shape in enumerate([(9, 5), (7,), (), (3, 4, 2)])
    )


@pytest.mark.parametrize(("world", "servers"), [(1, 0), (2, 0), (3, 0), (5, 0), (2, 1), (4, 1), (4, 2)])
def test_momentum_and_residuals_of_workers_and_servers_are_what_was_given(world: int, servers: int) -> None:
    """With δ the sum of all residuals: m̄' + δ' = β₁·m̄ + (1−β₁)·g + δ in every step, to 1e-5 of the largest."""
    compressor, layout, numel = OnebitAdam(warmup_steps=1), segments(), sum(s.numel for s in segments())
    states = [{s.name: compressor.init(s.name, torch.zeros(s.shape)) for s in layout} for _ in range(world)]
    exchange = ParameterServer(servers=servers) if servers else None
    dice, num_workers = torch.Generator().manual_seed(world), world - servers
    for step in range(8):
        grads = torch.randn(world, numel, generator=dice)
        grads[num_workers:] = 0
        momentum, left = kept(states, "momentum")[0], residuals(states, num_workers)
        on_servers = kept(states, "server_residual").sum(0)
        reduced = reduce_together(
            compressor, list(grads.clone()), states, layout, exchange=exchange, step=step, num_workers=num_workers
        )
        now = kept(states, "momentum")[0]
        expected = BETA1 * momentum + (1 - BETA1) * grads.sum(0)
        assert float((now + residuals(states, num_workers) - expected - left).abs().max()) <= 1e-5 * world
        if step > 0:
            applied = BETA1 * momentum + (1 - BETA1) * reduced[0].value
            assert float((applied - now).abs().max()) <= 1e-5
            contributed = [r.contributed for r in reduced[:num_workers] if r.contributed is not None]
            assert len(contributed) == num_workers
            to_servers = BETA1 * momentum + (1 - BETA1) * torch.stack(contributed).sum(0)
            combined = kept(states, "server_residual").sum(0)
            assert float((to_servers + on_servers - now - combined).abs().max()) <= 1e-5 * world


def kept(states: list[dict[str, State]], key: str) -> Tensor:
    return torch.stack([torch.cat([own[s.name][key] for s in segments()]) for own in states])


def residuals(states: list[dict[str, State]], num_workers: int) -> Tensor:
    return kept(states, "residual")[:num_workers].sum(0) + kept(states, "server_residual").sum(0)


@pytest.mark.parametrize("world", [2, 4])
def test_a_bit_an_element_travels_each_way(world: int) -> None:
    """To each other server ⌈bits/8⌉ bytes and 4 a scale, and the same back to each worker; 8 rows of 6 and 8 share out
    evenly. What comes back has a header of 8 bytes from every rank to every other."""
    layout = (Segment("w", (8, 6), 0, 48, 0), Segment("b", (8,), 0, 8, 1))
    states = [{"w": zeros(48), "b": zeros(8)} for _ in range(world)]
    compressor, sent = OnebitAdam(warmup_steps=1), list[float]()
    grads = list(torch.randn(world, 56, generator=torch.Generator().manual_seed(1)))
    reduce_together(compressor, grads, states, layout, step=1, exchange=Counting(sent=sent))
    code = 56 // world // 8 + (56 // world % 8 > 0) + 4 * 2
    assert sum(sent) == 2 * (world - 1) * code + 8 * (world - 1)
    assert compressor.wire_bytes(48_000_000, world) == pytest.approx(6e6 * (1 + 1 / world), rel=1e-4)


def zeros(numel: int) -> State:
    return OnebitAdam().init("p", torch.zeros(numel))


@dataclass(frozen=True, slots=True)
class Counting(ParameterServer):
    """Notes what rank 0 sends."""

    sent: list[float] = field(default_factory=list)

    def run(self, aggregate: Aggregate, rank: int, world: int) -> ExchangeRun:
        running = ParameterServer.run(self, aggregate, rank, world)
        answer = None
        while True:
            try:
                primitive = next(running) if answer is None else running.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if rank == 0:
                self.sent.append(sent_by(primitive, world).payload_bytes)
            answer = yield primitive


def test_blocks_have_scales_of_their_own() -> None:
    """Two blocks of very different size: one scale for both is wrong for either."""
    grad = torch.cat([torch.full((8,), 1e-3), torch.full((8,), 1.0)])
    for block, expected in ((8, grad), (0, torch.full((16,), math.sqrt((1 + 1e-6) / 2)))):
        compressor = OnebitAdam(warmup_steps=1, beta1=0.0, block=block)
        layout = (Segment("p", (1, 16), 0, 16, 0),)
        (reduced,) = reduce_together(compressor, [grad.clone()], [{"p": zeros(16)}], layout, step=1)
        torch.testing.assert_close(reduced.value, expected)


@pytest.mark.parametrize("step", [0, 1])
def test_a_nan_reaches_the_result(step: int) -> None:
    grads = list(torch.ones(2, 16))
    grads[1][3] = math.nan
    layout = (Segment("p", (4, 4), 0, 16, 0),)
    for reduced in reduce_together(
        OnebitAdam(warmup_steps=1), grads, [{"p": zeros(16)}, {"p": zeros(16)}], layout, step=step
    ):
        assert bool(reduced.value[3].isnan())


@pytest.mark.parametrize(
    "text",
    [
        "onebit-adam",
        "onebit-adam+adam",
        "onebit-adam(warmup_steps=50)+frozen-adam",
        "onebit-adam+frozen-adam(freeze_after=50)",
        "onebit-adam(beta1=0.8)+frozen-adam",
        "onebit-adam(beta1=0.8)+frozen-adam+linear-scaling(times=2.0)",
    ],
)
def test_it_needs_its_own_optimizer(text: str) -> None:
    with pytest.raises(StrategyError, match="freeze_after equal to warmup_steps, and the same beta1"):
        parse_strategy(text)


def test_it_goes_with_its_own_optimizer_and_that_goes_alone() -> None:
    assert parse_strategy("onebit-adam(beta1=0.8, warmup_steps=7)+frozen-adam(beta1=0.8, freeze_after=7)")
    assert parse_strategy("onebit-adam+frozen-adam+linear-scaling(times=2.0, warmup_steps=10)")
    assert parse_strategy("frozen-adam")


def test_a_second_residual_or_another_wrapper_is_refused() -> None:
    with pytest.raises(ValueError, match="error-feedback around onebit-adam: it keeps a residual"):
        ErrorFeedback(OnebitAdam())
    with pytest.raises(StrategyError):
        parse_strategy("onebit-adam+warm-up(steps=5)+frozen-adam")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warmup_steps": 0}, "warmup_steps is 0; the second moment needs at least 1 step"),
        ({"beta1": 1.0}, "beta1 is 1.0; use 0 or more and less than 1"),
        ({"scale": "max"}, "scale is 'max'; use one of l2, l1"),
        ({"block": -1}, "block is -1; use a number of elements, or 0"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OnebitAdam(**settings)  # type: ignore[arg-type]
