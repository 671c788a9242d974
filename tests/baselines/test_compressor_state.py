"""Compressors' states survive a checkpoint, bit for bit, and other messages from then on."""

from __future__ import annotations

import io
import threading
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn

from baselines.api import Slot
from baselines.catalogue import plugins
from baselines.strategy import parse_strategy
from baselines.text import TextError
from harness.engine.checkpoint import CheckpointError, Saved
from harness.engine.engine import Engine, EngineError
from harness.lockstep.collectives import Room
from harness.lockstep.ranks import Lockstep, replicas
from harness.trace import Recorder

NUM_STEPS, STOP_AFTER = 5, 3
SHORT = {  # so that warm-ups end within these steps, and everything is compressed on both sides of the stop
    "onebit-adam": "onebit-adam(warmup_steps=2)",
    "frozen-adam": "frozen-adam(freeze_after=2)",
    "warm-up": "warm-up(steps=2)",
    "dgc": "dgc(density=0.1, warmup_steps=2)",
}
SURROUNDINGS = [
    f"{packing}+{exchange}+{optimizer}"
    for packing in ("unfused", "single-bucket")
    for exchange in ("all-reduce", "tree")
    for optimizer in ("sgd(lr=0.01)", "sgd(lr=0.01, momentum=0.0)", SHORT["frozen-adam"])
]


@cache
def named(*, wraps: bool) -> list[str]:
    kinds = [kind.card for kind in plugins().values() if kind.card.slot is Slot.COMPRESSION]
    return [SHORT.get(card.name, card.name) for card in kinds if card.wraps is wraps]


@cache
def strategies() -> dict[str, str]:
    """Every compressor of the catalogue, alone and in every wrapper, with the first surroundings that are legal."""
    compressions = named(wraps=False) + [f"{one}+{other}" for one in named(wraps=False) for other in named(wraps=True)]
    found: dict[str, str] = {}
    for compression in [*compressions, "topk+double-squeeze+error-feedback"]:
        for surroundings in SURROUNDINGS:
            try:
                parse_strategy(f"{compression}+{surroundings}")
            except TextError:
                continue
            found.setdefault(compression, f"{compression}+{surroundings}")
    return found


class Linear(nn.Module):
    """Whose gradients are set by step and rank alone; a matrix, a vector, a scalar and a kernel."""

    def __init__(self) -> None:
        super().__init__()
        dice = torch.Generator().manual_seed(3)
        shapes = {"matrix": (12, 10), "bias": (12,), "gain": (), "kernel": (4, 3, 3, 3)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=dice)))

    def gradients(self, step: int, rank: int) -> dict[str, Tensor]:
        dice = torch.Generator().manual_seed(100 * step + rank)
        return {n: torch.randn(p.shape, generator=dice) for n, p in self.named_parameters()}

    def loss(self, step: int, rank: int) -> Tensor:
        gradients = self.gradients(step, rank)
        return torch.stack([(p * gradients[n]).sum() for n, p in self.named_parameters()]).sum()


def loss_at(step: int, rank: int, model: nn.Module) -> Tensor:
    assert isinstance(model, Linear)
    return model.loss(step, rank)


def ranks_of(text: str, world: int = 3) -> Lockstep:
    return Lockstep(replicas(Linear(), world), parse_strategy(text), seed=5)


def train(ranks: Lockstep, start: int, stop: int) -> Lockstep:
    for step in range(start, stop):
        ranks.step(partial(loss_at, step))
    return ranks


def through_a_file(saved: Saved) -> Saved:
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    loaded: Saved = torch.load(file, weights_only=True)
    return loaded


def resumed(ranks: Lockstep, text: str) -> Lockstep:
    fresh = ranks_of(text, ranks.world)
    fresh.load_state_dict(through_a_file(ranks.state_dict()))
    return fresh


def test_every_compressor_is_among_them() -> None:
    assert {text.split("+")[0] for text in strategies()} == set(named(wraps=False))


@pytest.mark.parametrize("text", strategies().values(), ids=strategies().keys())
def test_a_run_stopped_and_resumed_equals_one_that_was_not(text: str) -> None:
    whole = train(ranks_of(text), 0, NUM_STEPS)
    stopped = train(ranks_of(text), 0, STOP_AFTER)
    going_on = train(resumed(stopped, text), STOP_AFTER, NUM_STEPS)
    for one, other in zip(going_on.models, whole.models, strict=True):
        for name, parameter in one.named_parameters():
            assert torch.equal(parameter, other.get_parameter(name)), name
    for own, others in zip(going_on.states, whole.states, strict=True):
        for name, state in own.items():
            assert state.keys() == others[name].keys()
            assert all(torch.equal(state[key], others[name][key]) for key in state), name


def fed_back() -> list[str]:
    return [text for text in strategies() if text.endswith("+error-feedback")]


@pytest.mark.parametrize("compression", fed_back())
def test_nothing_is_lost_where_a_checkpoint_meets_another_packing(compression: str) -> None:
    """Gradients do not depend on weights here, so with plain SGD of rate 1 what was applied is w₀ − w; with the
    workers' and servers' residuals it is the sum of all mean gradients, to 1e-6 of the sum of magnitudes (half also
    rounds the sum itself, to 2⁻¹¹ of it)."""
    _, _, exchange, _ = strategies()[compression].rsplit("+", 3)
    surroundings = f"+{exchange}+sgd(lr=1.0, momentum=0.0)"
    ranks = train(ranks_of(f"{compression}{surroundings}+unfused"), 0, STOP_AFTER)
    buckets = "fixed-buckets(bucket_bytes=500, first_bucket_bytes=100)"
    ranks = train(resumed(ranks, f"{compression}{surroundings}+{buckets}"), STOP_AFTER, NUM_STEPS)
    every = [Linear().gradients(step, rank) for step in range(NUM_STEPS) for rank in range(ranks.world)]
    for name, first in Linear().named_parameters():
        applied = (first - ranks.models[0].get_parameter(name)).detach().double()
        kept = [t for own in ranks.states for key, t in own[name].items() if key in ("residual", "server_residual")]
        left = torch.stack(kept).double().sum(0).view(first.shape)
        given = torch.stack([gradients[name].double() for gradients in every])
        bound = (2.0**-10 if compression.startswith("half") else 2e-6) * float(given.abs().sum(0).max())
        assert float((applied + left - given.sum(0) / ranks.world).abs().max()) <= bound, name


def test_a_server_that_steps_goes_on_too() -> None:
    text = "parameter-server(servers=1, update='server')+adam+unfused"
    whole = train(ranks_of(text), 0, NUM_STEPS)
    going_on = train(resumed(train(ranks_of(text), 0, STOP_AFTER), text), STOP_AFTER, NUM_STEPS)
    for one, other in zip(going_on.models[0].parameters(), whole.models[0].parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_of_something_else_is_refused() -> None:
    saved = train(ranks_of("topk+error-feedback"), 0, 1).state_dict()
    with pytest.raises(CheckpointError, match=r"keeps .*residual.* nothing; go on with the compression"):
        ranks_of("topk+error-feedback").load_state_dict(train(ranks_of("topk"), 0, 1).state_dict())
    with pytest.raises(CheckpointError, match="of 3 ranks, 3 of which train; here are 2 and 2"):
        ranks_of("topk+error-feedback", 2).load_state_dict(saved)
    with pytest.raises(CheckpointError, match="another update point"):
        ranks_of("topk+error-feedback+at-pre-hook").load_state_dict(saved)
    frozen = Linear()
    frozen.bias.requires_grad_(False)
    with pytest.raises(CheckpointError, match="other parameters than the model: bias"):
        Lockstep(replicas(frozen, 3), parse_strategy("topk+error-feedback")).load_state_dict(saved)


class LockedRoom(Room):
    """A room that communication threads enter one at a time."""

    def __init__(self, world: int) -> None:
        super().__init__(world)
        self._lock = threading.RLock()

    def ask(self, *asked: object) -> None:
        with self._lock:
            super().ask(*asked)  # type: ignore[arg-type]


def engine_steps(engine: Engine, model: Linear, start: int, stop: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(start, stop):
        engine.begin_step()
        model.loss(step, engine.transport.rank).backward()
        engine.end_backward()
        engine.wait()
        optimizer.step()
        optimizer.zero_grad()


def run_engines(text: str, models: list[Linear], saved: list[Saved] | None, start: int, stop: int) -> list[Saved]:
    room, done = LockedRoom(len(models)), dict[int, Saved]()

    def run(rank: int) -> None:
        engine = Engine(models[rank], parse_strategy(text), room.seat(rank), recorder=Recorder(), seed=5)
        if saved is not None:
            engine.load_state_dict(through_a_file(saved[rank]))
        engine_steps(engine, models[rank], start, stop)
        done[rank] = engine.state_dict()
        with pytest.raises(EngineError, match="before the first one"):
            engine.load_state_dict(done[rank])
        engine.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [done[rank] for rank in range(len(models))]


@pytest.mark.parametrize("text", ["topk(density=0.1)+error-feedback+fixed-buckets", "powersgd(rank=1)+error-feedback"])
def test_an_engine_goes_on_as_if_it_had_not_stopped(text: str) -> None:
    """Two ranks: sums have one order, so the engine's weights are the lockstep's bit for bit."""
    models = [Linear(), Linear()]
    saved = run_engines(text, models, None, 0, STOP_AFTER)
    saved = run_engines(text, models, saved, STOP_AFTER, NUM_STEPS)
    assert saved[0]["num_steps"] == NUM_STEPS
    whole = train(ranks_of(f"{text}+sgd(lr=0.01, momentum=0.0)", 2), 0, NUM_STEPS)
    for name, parameter in whole.models[0].named_parameters():
        assert torch.equal(parameter, models[0].get_parameter(name)), name
        assert torch.equal(parameter, models[1].get_parameter(name)), name
