"""Local steps: local SGD and SBC's delay, in lockstep and through the session that the loop drives."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from engine_threads import SharedRoom
from torch import Tensor, nn

from baselines.strategy import StrategyError, parse_strategy
from fabric.api import FabricKind, FabricSpec
from harness.checks.trial import check
from harness.engine.engine import Engine
from harness.lockstep.ranks import Lockstep, replicas
from harness.precision import LossScale
from harness.systems.ours import EngineSession
from harness.trace import Recorder
from harness.trial import Job, Trial, TrialError
from models.workload import WorkloadSpec

WORLD, LR = 3, 0.1
PRESETS = ("sbc+error-feedback", "sbc(density=0.01)+error-feedback+local-steps(n=10)")


def model() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def batch(step: int, rank: int) -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * step + rank))


def loss_at(step: int, rank: int, own: nn.Module) -> Tensor:
    inputs = batch(step, rank)
    out: Tensor = (own(inputs) - inputs[:, :2]).square().mean()
    return out


def trained(text: str, num_steps: int) -> Lockstep:
    ranks = Lockstep(replicas(model(), WORLD), parse_strategy(f"{text}+sgd(lr={LR}, momentum=0.5)"), seed=2)
    for step in range(num_steps):
        ranks.step(lambda rank, own, step=step: loss_at(step, rank, own))
    return ranks


def test_without_compression_weights_are_averaged_every_nth_step() -> None:
    """Local SGD written out, to float32 rounding of w − (w − w_i)."""
    models = replicas(model(), WORLD)
    optimizers = [torch.optim.SGD(own.parameters(), lr=LR, momentum=0.5) for own in models]
    for step in range(8):
        for rank, (own, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            loss_at(step, rank, own).backward()
            optimizer.step()
        if step % 4 == 3:
            for parts in zip(*(own.parameters() for own in models), strict=True):
                mean = torch.stack([part.detach() for part in parts]).mean(0)
                for part in parts:
                    part.data.copy_(mean)
    ranks = trained("local-steps(n=4)", 8)
    for own, exact in zip(ranks.models, models, strict=True):
        for part, wanted in zip(own.parameters(), exact.parameters(), strict=True):
            torch.testing.assert_close(part, wanted, rtol=0, atol=1e-6)


def test_one_local_step_of_plain_sgd_is_synchronous_sgd() -> None:
    one = [p.detach() for p in trained("local-steps(n=1)", 4).models[0].parameters()]
    plain = [p.detach() for p in trained("unfused", 4).models[0].parameters()]
    assert all(torch.equal(a, b) for a, b in zip(one, plain, strict=True))


def test_bytes_fall_by_the_number_of_local_steps() -> None:
    every, tenth = trained("unfused", 20).traffic, trained("local-steps(n=10)", 20).traffic
    assert every.wire_bytes["gradient"] == pytest.approx(10 * tenth.wire_bytes["gradient"])


def test_a_warm_up_counts_exchanges() -> None:
    text = "single-bucket+topk(density=0.1)+error-feedback+warm-up(steps=2)+local-steps(n=3)"
    sent = [trained(text, num_steps).traffic.wire_bytes["gradient"] for num_steps in (3, 6, 9)]
    assert sent[1] == 2 * sent[0]
    assert sent[2] - sent[1] < sent[0]


@pytest.mark.parametrize("text", PRESETS)
def test_sbcs_presets_train_and_keep_replicas_equal_after_each_exchange(text: str) -> None:
    ranks = trained(text, 60)
    first, *others = ranks.models
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    losses = [loss_at(step, 0, first).item() for step in range(20)]
    assert sum(losses) < 0.9 * sum(loss_at(step, 0, model()).item() for step in range(20))


def test_what_local_steps_changed_is_exchanged_before_weights_are_looked_at() -> None:
    ranks = trained("local-steps(n=10)", 13)
    first, second = (next(iter(own.parameters())).detach().clone() for own in ranks.models[:2])
    assert not torch.equal(first, second)
    ranks.synchronise()
    first, second = (next(iter(own.parameters())).detach() for own in ranks.models[:2])
    assert torch.equal(first, second)
    sent = ranks.traffic.wire_bytes["gradient"]
    ranks.synchronise()
    assert ranks.traffic.wire_bytes["gradient"] == sent


def test_a_checkpoint_between_exchanges_goes_on_bit_for_bit() -> None:
    whole, saved = trained("local-steps(n=4)+topk(density=0.3)+error-feedback", 10), None
    first = trained("local-steps(n=4)+topk(density=0.3)+error-feedback", 6)
    saved = copy.deepcopy(first.state_dict())
    second = trained("local-steps(n=4)+topk(density=0.3)+error-feedback", 0)
    second.load_state_dict(saved)
    for step in range(6, 10):
        second.step(lambda rank, own, step=step: loss_at(step, rank, own))
    for a, b in zip(whole.models[1].parameters(), second.models[1].parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("local-steps(n=2)+at-pre-hook", "update after-all"),
        ("local-steps(n=2)+unfused+parameter-server(update='server')", r"servers=0, update='worker'"),
        ("local-steps(n=2)+parameter-server(servers=1)", r"servers=0, update='worker'"),
        ("local-steps(n=2)+dgc+sgd(momentum=0.0)", "differences of weights travel"),
        ("local-steps(n=2)+onebit-adam+frozen-adam", "differences of weights travel"),
        ("local-steps(n=2)+mg-wfbp", "no times of single steps"),
        ("local-steps(n=0)", r"e\.g\. local-steps\(n=10\)"),
        ("local-steps", r"e\.g\. local-steps\(n=10\)"),
        ("local-steps(n=2.0)", r"e\.g\. local-steps\(n=10\)"),
    ],
)
def test_what_cannot_go_with_local_steps_is_refused_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        parse_strategy(text)


def test_a_scaled_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="use bfloat16 or float32"):
        Lockstep(replicas(model(), 2), parse_strategy("local-steps(n=2)"), loss_scale=LossScale())


def trial(strategy: str, evaluate_every: int) -> Trial:
    job = Job(name="a", workload=WorkloadSpec(network="resnet20"), strategy=strategy)
    fabric = FabricSpec(kind=FabricKind.LOCKSTEP, num_hosts=2)
    return Trial(suite="t", cell="c", jobs=(job,), fabric=fabric, evaluate_every=evaluate_every)


def test_an_evaluation_that_would_cut_a_period_short_is_refused() -> None:
    with pytest.raises(TrialError, match=r"evaluate_every=4 would cut .* short; evaluate every 6 steps"):
        check(trial("unfused+local-steps(n=6)", 4))
    for fitting in (0, 6, 12):
        check(trial("unfused+local-steps(n=6)", fitting))


def run_session(rank: int, own: nn.Module, room: SharedRoom, text: str, num_steps: int) -> EngineSession:
    """One rank as the loop drives it; `finish` exchanges what is left."""
    strategy = parse_strategy(f"{text}+sgd(lr={LR}, momentum=0.5)")
    engine = Engine(own, strategy, room.seat(rank), recorder=Recorder(), seed=2)
    session = EngineSession(own, strategy.optimizer, engine)
    for step in range(num_steps):
        session.wait()
        session.update()
        session.begin_micro_batch(last=True)
        session.backward(loss_at(step, rank, own))
    session.finish()
    session.close()
    return session


@pytest.mark.parametrize("num_steps", [8, 10])
def test_the_session_that_the_loop_drives_gives_locksteps_weights(num_steps: int) -> None:
    """With 2 ranks sums have one order: bit for bit, also where the last period is cut short."""
    text, room, models = "local-steps(n=4)+topk(density=0.5)+error-feedback", SharedRoom(2), replicas(model(), 2)
    exact = Lockstep(replicas(model(), 2), parse_strategy(f"{text}+sgd(lr={LR}, momentum=0.5)"), seed=2)
    for step in range(num_steps):
        exact.step(lambda rank, own, step=step: loss_at(step, rank, own))
    exact.synchronise()
    threads = [
        threading.Thread(target=run_session, args=(rank, own, room, text, num_steps)) for rank, own in enumerate(models)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for own, wanted in zip(models, exact.models, strict=True):
        for part, target in zip(own.parameters(), wanted.parameters(), strict=True):
            assert torch.equal(part, target)
