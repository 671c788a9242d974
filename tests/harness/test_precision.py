"""Mixed precision: a loss scale that no result shows, steps that all ranks skip, and what must not be combined."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from lab_tasks import spec_of
from micro_batch_ranks import NUM_RANKS, told_by_ranks
from patience import patience_s
from precision_ranks import NUM_STEPS, OVERFLOWS, run_rank
from tiny_models import awkward, loss_at, random_arrivals
from torch import Tensor, nn

from baselines.api import Context, Reduction, State
from baselines.compression.topk import TopK
from baselines.strategy import parse_strategy
from harness import precision
from harness.bench import Bench
from harness.checks.trial import check
from harness.lockstep.ranks import Lockstep, replicas
from harness.precision import FIRST_SCALE, GROWTH_INTERVAL, SMALLEST_SCALE, Guard, LossScale, Precision, in_precision
from harness.trial import Job, Trial, TrialError
from models.workload import Device, WorkloadSpec, open_workload
from results.codec import from_jsonable, to_jsonable
from results.record import Status

OVERFLOWING = 3  # the step in lockstep
HUGE = 1e36  # times 2¹⁶ no float32
STRATEGIES = (
    "fixed-buckets",
    "tensor-fusion",
    "unfused+half",
    "fixed-buckets+half+error-feedback",
    "unfused+topk(density=0.2)+error-feedback",
    "slices(slice_elements=10)+topk(density=0.1)+error-feedback",
    "unfused+parameter-server(servers=1)",
    "unfused+half+error-feedback+parameter-server(servers=1)",
)


# ---- the scale


def test_the_scale_moves_as_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    default = torch.amp.GradScaler("cpu")
    assert (default.get_scale(), default.get_growth_interval()) == (FIRST_SCALE, GROWTH_INTERVAL)
    monkeypatch.setattr(precision, "GROWTH_INTERVAL", 20)
    theirs, ours = torch.amp.GradScaler("cpu", growth_interval=20), LossScale()
    pattern = [False] * 20 + [True] * 3 + [False] * 19 + [True] + [False] * 21
    for overflow in pattern:
        theirs.scale(weight.sum())
        weight.grad = torch.full((1,), math.inf if overflow else 1.0)
        theirs.step(optimizer)
        theirs.update()
        ours = ours.after(overflow=overflow)
        assert ours.scale == theirs.get_scale()
    assert (ours.scale, ours.num_skipped) == (2.0**16 * 2 / 8 / 2 * 2, 4)


def test_a_scale_stays_above_zero() -> None:
    scale = LossScale()
    for _ in range(200):
        scale = scale.after(overflow=True)
    assert scale == LossScale(SMALLEST_SCALE, 0, 200)


# ---- a step that overflows


def overflowing(step: int) -> Callable[[int, nn.Module], Tensor]:
    """The loss of `step`, too large on rank 1 in step OVERFLOWING."""

    def loss(rank: int, model: nn.Module) -> Tensor:
        return loss_at(step)(rank, model) * (HUGE if rank == 1 and step == OVERFLOWING else 1.0)

    return loss


def lockstep(text: str, scale: LossScale | None, steps: list[int], world: int = 3) -> Lockstep:
    ranks = Lockstep(replicas(awkward(), world), parse_strategy(text), seed=7, loss_scale=scale)
    for step in steps:
        ranks.step(overflowing(step), arrivals=random_arrivals(ranks, seed=step))
    return ranks


def assert_same_state(one: Lockstep, other: Lockstep) -> None:
    for mine, theirs in zip(one.parameters, other.parameters, strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    for mine, theirs in zip(one.states, other.states, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[n][key], theirs[n][key]) for n in mine for key in mine[n] | theirs[n])


@pytest.mark.parametrize("text", STRATEGIES)
def test_a_scale_shows_nowhere_and_a_skipped_step_is_as_if_it_had_not_been(text: str) -> None:
    """Bit for bit, residuals included: they are in the gradients' own unit before and after the scale has changed, hold
    nothing of the skipped step and lose nothing to it."""
    scaled = lockstep(text, LossScale(), [0, 1, 2, 3, 4, 5])
    assert scaled.loss_scale == LossScale(FIRST_SCALE / 2, 2, 1)
    assert_same_state(scaled, lockstep(text, None, [0, 1, 2, 4, 5]))
    assert all(bool(t.isfinite().all()) for own in scaled.states for state in own.values() for t in state.values())


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("text", ["unfused", "unfused+half", "unfused+topk(density=0.01)+error-feedback"])
def test_a_single_gradient_of_one_rank_that_is_not_finite_is_enough(text: str, bad: float) -> None:
    """Wherever it is in its message, though k = 1 of a message's values might not be it."""

    def loss(rank: int, model: nn.Module) -> Tensor:
        value = loss_at(0)(rank, model)
        if rank == 1:
            weight = dict(model.named_parameters())["twice.weight"]
            weight.register_hook(lambda grad: grad.index_put((torch.tensor(4), torch.tensor(4)), torch.tensor(bad)))
        return value

    ranks = lockstep(text, LossScale(), [])
    ranks.step(loss)
    assert ranks.loss_scale == LossScale(FIRST_SCALE / 2, 0, 1)
    assert_same_state(ranks, lockstep(text, None, []))


def test_an_overflow_of_half_precision_on_the_wire_skips_the_step_too() -> None:
    def loss(rank: int, model: nn.Module) -> Tensor:
        return loss_at(0)(rank, model) * 1e7  # gradients are finite, and beyond float16's 65,504

    ranks = lockstep("unfused+half", LossScale(), [])
    ranks.step(loss)
    assert ranks.loss_scale == LossScale(FIRST_SCALE / 2, 0, 1)
    assert_same_state(ranks, lockstep("unfused+half", None, []))


@dataclasses.dataclass(frozen=True, slots=True)
class Fastidious(TopK):
    """Fails on what is not finite, as a kernel may."""

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        assert bool(grad.isfinite().all()), "a compressor saw a number that is not finite"
        return TopK.reduce(self, grad, states, ctx)


def test_a_lossy_compressor_sees_finite_numbers_only() -> None:
    strategy = dataclasses.replace(parse_strategy("unfused+topk"), compression=Fastidious(density=0.5))
    ranks = Lockstep(replicas(awkward(), 2), strategy, loss_scale=LossScale())
    for step in range(OVERFLOWING + 1):
        ranks.step(overflowing(step))
    assert ranks.loss_scale == LossScale(FIRST_SCALE / 2, 0, 1)


def test_a_guard_puts_states_back_in_place_and_forgets_new_ones() -> None:
    residual = torch.tensor([1.0, 2.0])
    states: dict[str, State] = {"w": {"residual": residual, "factor": torch.ones(2)}, "b": {}}
    guard = Guard(states, lossy=True)
    for _ in range(2):  # the second time into memory that is there
        guard.begin()
        residual.add_(5.0)
        states["w"]["factor"] = torch.zeros(3)
        states["b"]["new"] = torch.zeros(1)
        guard.undo()
        assert states["w"]["residual"] is residual
        assert residual.tolist() == [1.0, 2.0]
        assert states["w"]["factor"].tolist() == [1.0, 1.0]
        assert states["b"] == {}


@pytest.mark.parametrize("text", ["unfused+at-pre-hook", "unfused+parameter-server(update='server')"])
def test_lockstep_refuses_what_applies_parts_of_a_step_early(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be skipped"):
        lockstep(text, LossScale(), [])


# ---- the same on real ranks, through loop and sessions

SCENARIOS: dict[str, dict[str, Any]] = {
    "ours": {"strategy": "fixed-buckets"},
    "negotiated": {"strategy": "tensor-fusion(cycle_s=0.001)"},
    "accumulated and clipped": {"strategy": "unfused", "accumulate": 3, "clip_norm": 3.0},
    "sparse": {"strategy": "fixed-buckets+topk(density=0.1)+error-feedback"},
    "half, accumulated and clipped": {"strategy": "unfused+half+error-feedback", "accumulate": 2, "clip_norm": 3.0},
    "torch DDP": {"system": "torch-ddp"},
    "torch DDP, accumulated and clipped": {"system": "torch-ddp", "accumulate": 3, "clip_norm": 3.0},
}
Told = dict[tuple[str, bool, int], dict[str, Any]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    asked = [(name, scaled) for name in SCENARIOS for scaled in (False, True)]
    scenarios = [{**SCENARIOS[name], "scaled": scaled} for name, scaled in asked]
    ranks = told_by_ranks(run_rank, scenarios, tmp_path_factory.mktemp("precision"))
    return {(*one, rank): told for rank, own in enumerate(ranks) for one, told in zip(asked, own, strict=True)}


@pytest.mark.parametrize("name", SCENARIOS)
def test_real_ranks_skip_together_and_train_as_without_the_skipped_steps(told: Told, name: str) -> None:
    for rank in range(NUM_RANKS):
        plain, scaled = told[name, False, rank], told[name, True, rank]
        assert scaled["weights"] == plain["weights"] == told[name, False, 0]["weights"]
        assert scaled["residuals"] == plain["residuals"]
        assert (scaled["num_skipped"], scaled["scale"]) == (len(OVERFLOWS), FIRST_SCALE / 2 ** len(OVERFLOWS))
        assert plain["scale"] is None
    assert any(told["sparse", True, 0]["residuals"])


def test_ranks_vote_only_where_a_compressor_may_swallow_an_overflow(told: Told) -> None:
    """One float32 a step, by ring all-reduce 2(P−1)/P of it a rank."""
    votes = {name: told[name, True, 0]["control_bytes"] - told[name, False, 0]["control_bytes"] for name in SCENARIOS}
    assert votes["sparse"] == votes["half, accumulated and clipped"] == 4.0 * NUM_STEPS
    assert votes["ours"] == votes["accumulated and clipped"] == 0


# ---- 16 bits


@pytest.mark.parametrize(
    ("kind", "tolerance"), [(Precision.FLOAT16, 1e-3), (Precision.BFLOAT16, 5e-2)], ids=str
)  # 11 and 8 bits of mantissa
def test_layers_compute_in_16_bits_and_nothing_else_does(kind: Precision, tolerance: float) -> None:
    wide = open_workload(WorkloadSpec(network="resnet20", data="digits", batch_size=4))
    narrow = in_precision(wide, kind)
    model, widths = narrow.build_model(seed=1), set[torch.dtype]()
    layer = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    layer.register_forward_hook(lambda _, __, output: widths.add(output.dtype))
    batch = next(narrow.batches(0, 1, 1))
    loss = narrow.loss(model, batch)
    loss.backward()
    assert widths == {kind.dtype}
    assert loss.dtype is torch.float32
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    expected = float(wide.loss(model, batch).detach())
    assert float(loss.detach()) != expected
    assert float(loss.detach()) == pytest.approx(expected, rel=tolerance)
    assert in_precision(wide, Precision.FLOAT32) is wide


def test_float16_loses_small_gradients_that_a_scale_keeps() -> None:
    """What the scale is for: a gradient below 2⁻²⁴ is no float16."""
    layer, inputs = nn.Linear(1, 1, bias=False), torch.ones(1, 1)

    def gradient(scale: float) -> float:
        layer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = layer(inputs)
        (outputs.float() * 1e-9 * scale).sum().backward()
        assert layer.weight.grad is not None
        return float(layer.weight.grad) / scale

    assert gradient(1.0) == 0
    assert gradient(FIRST_SCALE) == pytest.approx(1e-9, rel=2**-10)


def job(**asked: Any) -> Job:
    return Job(name="a", workload=WorkloadSpec(network="resnet20", data="digits", batch_size=2), **asked)


def trial(own: Job, **asked: Any) -> Trial:
    return Trial(suite="t", cell="c", jobs=(own,), fabric=spec_of("native"), num_warmup=1, num_steps=2, **asked)


@pytest.mark.slow  # float16 on a CPU without float16 arithmetic
def test_a_record_says_what_was_computed_in_and_how_the_scale_fared(bench: Bench) -> None:
    asked = job(precision=Precision.FLOAT16, strategy="fixed-buckets+half+error-feedback", clip_norm=1.0)
    own = trial(asked, timeout_s=patience_s(120.0))
    assert from_jsonable(Trial, to_jsonable(own)) == own
    record = bench.run(own)
    assert record.status is Status.OK, record.reason
    (told,) = record.jobs
    assert told.precision == "float16"
    assert told.strategy == "fixed-buckets+half+error-feedback in float16"
    assert told.loss_scale == FIRST_SCALE / 2**told.num_skipped_steps
    assert math.isfinite(told.curve[-1].loss)


# ---- what cannot be


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"strategy": "unfused+at-pre-hook"}, "at-pre-hook updates a layer before the others' have arrived"),
        ({"strategy": "unfused+parameter-server(update='server')"}, "use update='worker', or bfloat16"),
        ({"strategy": "fixed-buckets+local-steps(n=2)"}, "leave local-steps out, or use bfloat16"),
        ({"system": "horovod"}, "horovod does not train in float16 here; use bfloat16, float32"),
        ({"system": "deepspeed"}, "deepspeed does not train in float16 here; use float32"),
    ],
)
def test_what_cannot_skip_or_scale_is_refused_with_the_remedy(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(TrialError, match=message):
        check(trial(job(precision=Precision.FLOAT16, **asked)))


def test_bfloat16_needs_no_scale_and_is_legal_where_float16_is_not() -> None:
    check(trial(job(precision=Precision.BFLOAT16, strategy="unfused+at-pre-hook")))
    check(trial(job(precision=Precision.BFLOAT16, system="horovod")))
    with pytest.raises(TrialError, match="deepspeed does not train in bfloat16 here"):
        check(trial(job(precision=Precision.BFLOAT16, system="deepspeed")))


@pytest.mark.parametrize(
    ("workload", "asked", "message"),
    [
        ({"device": Device.REPLAY, "network": "resnet50"}, "float16", "precision=float16 in replay, whose times are"),
        ({}, "fp16", "precision is 'fp16'; use one of float32, float16, bfloat16"),
    ],
)
def test_a_wrong_precision_is_named(workload: dict[str, Any], asked: str, message: str) -> None:
    spec = partial(WorkloadSpec, **{"network": "resnet20", **workload})
    with pytest.raises(TrialError, match=f"job a: .*{message}"):
        Job(name="a", workload=spec(), precision=asked)  # type: ignore[arg-type]


def test_a_precision_may_be_written_as_text() -> None:
    assert job(precision="bfloat16").precision is Precision.BFLOAT16
    assert job(precision="bfloat16").label == "fixed-buckets in bfloat16"
    assert job().label == "fixed-buckets"
