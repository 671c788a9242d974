"""The rules of BSP, ASP, SSP and DynSSP, on a virtual clock with plain vectors and with real gradients."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from baselines.api import Consistency
from baselines.consistency.asp import Asp
from baselines.consistency.bsp import Bsp
from baselines.consistency.dynssp import DynSsp
from baselines.consistency.ssp import Ssp
from baselines.strategy import parse_strategy
from harness.asynchrony.cluster import Disturbances, Halt, VirtualCluster, VirtualClusterError
from harness.asynchrony.parameters import ClockError, Parameters
from harness.asynchrony.training import Training
from harness.asynchrony.virtual import StaleReadError, VirtualRun
from harness.engine.layout import trainable_parameters
from harness.lockstep.ranks import Lockstep, replicas

POLICIES: tuple[Consistency, ...] = (Bsp(), Asp(), Ssp(0), Ssp(2), DynSsp(2), DynSsp(1, rule="constant"))


def drawn_cluster(rng: random.Random, num_workers: int) -> VirtualCluster:
    """Unequal workers: speeds, jitter, pauses, and one that stops for a while."""
    return VirtualCluster(
        num_workers=num_workers,
        compute_s=1.0,
        alpha_s=rng.choice((0.0, 0.1)),
        beta_s_per_byte=rng.choice((0.0, 0.05)),
        disturbances=Disturbances(
            slowdowns=tuple(rng.choice((1.0, 1.0, 3.0)) for _ in range(num_workers)),
            jitter=rng.choice((0.0, 0.5)),
            pause_probability=0.1,
            pause_s=2.0,
            halts=(Halt(worker=rng.randrange(num_workers), at_s=3.0, for_s=rng.choice((0.0, 20.0))),),
        ),
    )


def numbered(worker: int, clock: int, values: Tensor) -> Tensor:
    """An update that tells who made it and when."""
    return torch.tensor([float(worker + 1), float(clock + 1)])


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_no_schedule_stops_for_ever_and_none_reads_too_old(policy: Consistency) -> None:
    """The run itself asserts at every read that what the policy promises is there."""
    for seed in range(60):
        rng = random.Random(seed)
        num_workers, num_clocks = rng.randint(1, 6), rng.randint(1, 8)
        run = VirtualRun(
            drawn_cluster(rng, num_workers), policy, torch.zeros(2), numbered, num_clocks, num_bytes=1.0, seed=seed
        )
        pushes = list(run)
        assert run.parameters.clocks == [num_clocks] * num_workers
        assert [push.time_s for push in pushes] == sorted(push.time_s for push in pushes)
        assert max(run.tally.ahead) <= (num_clocks if policy.staleness is None else policy.staleness)


def test_a_policy_that_promises_more_than_it_waits_for_is_caught() -> None:
    class Liar(Ssp):
        def must_include(self, clock: int) -> int:
            return clock - 1

    cluster = VirtualCluster(num_workers=2, compute_s=1.0, disturbances=Disturbances(slowdowns=(1.0, 3.0)))
    with pytest.raises(StaleReadError, match="worker 0 reads at clock"):
        list(VirtualRun(cluster, Liar(2), torch.zeros(2), numbered, 5))


def test_an_update_out_of_turn_is_an_error() -> None:
    parameters = Parameters(torch.zeros(1), 2, Asp().share)
    parameters.push(0, 0, torch.ones(1))
    with pytest.raises(ClockError, match="worker 0 pushes clock 0 after 1 updates"):
        parameters.push(0, 0, torch.ones(1))


@given(st.permutations([(worker, clock) for worker in range(4) for clock in range(3)]), st.sampled_from(POLICIES))
def test_equal_updates_give_equal_parameters_in_any_order(order: list[tuple[int, int]], policy: Consistency) -> None:
    """Bit for bit, and in the middle too: what has come counts in order of clock and worker."""
    updates = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1))
    expected = None
    for schedule in (sorted(order), sorted(order, key=lambda one: (one[0], order.index(one)))):
        parameters, clocks = Parameters(torch.zeros(5), 4, policy.share), [0] * 4
        for worker, _ in schedule:
            parameters.push(worker, clocks[worker], updates[worker, clocks[worker]])
            clocks[worker] += 1
        assert expected is None or torch.equal(parameters.read(), expected)
        expected = parameters.read()


@given(st.permutations(range(5)))
def test_a_version_of_dynssp_is_the_mean_of_its_updates_in_any_order(order: list[int]) -> None:
    updates = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    parameters = Parameters(torch.zeros(4, dtype=torch.float64), 5, DynSsp().share)
    for count, worker in enumerate(order, start=1):
        parameters.push(worker, 0, updates[worker])
        torch.testing.assert_close(parameters.read(), updates[order[:count]].mean(0))  # as δ = (u − ū)/d adds up
    torch.testing.assert_close(parameters.values, updates.mean(0))


class Small(nn.Module):
    """Two layers and a normalisation whose statistics are each worker's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.norm(self.first(inputs))))
        return out


def small() -> Small:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Small()


def batches(worker: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(100 + worker)
    while True:
        inputs = torch.randn(8, 6, generator=generator)
        yield inputs, inputs.sum(1, keepdim=True).sin()


def small_training(num_workers: int, **more: int) -> Training:
    data = [batches(worker) for worker in range(num_workers)]

    def loss(worker: int, model: nn.Module) -> Tensor:
        inputs, targets = next(data[worker])
        return nn.functional.mse_loss(model(inputs), targets)

    return Training(
        small(), lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9), loss, num_workers, **more
    )


def test_an_optimizer_of_a_worker_finds_parameters_by_name() -> None:
    """Adam's first step moves each element by the rate; LAMB scales that by the tensor's norm unless it is excluded."""
    model = small()
    build = parse_strategy("ssp+lamb(lr=0.01, exclude='first')").optimizer.build
    training = Training(model, build, lambda worker, own: own(next(batches(worker))[0]).square().mean(), 1)
    named = trainable_parameters(model)
    moved = training.update(0, 0, training.values).split([own.numel() for own in named.values()])
    steps = dict(zip(named, moved, strict=True))
    assert float(steps["first.weight"].abs().max()) == pytest.approx(0.01, rel=1e-3)
    assert float(steps["last.weight"].abs().max()) != pytest.approx(0.01, rel=1e-1)


def end_of(policy: Consistency, cluster: VirtualCluster, num_clocks: int = 12, **more: int) -> Tensor:
    training = small_training(cluster.num_workers, **more)
    run = VirtualRun(cluster, policy, training.values, training.update, num_clocks, training.num_bytes, seed=4)
    list(run)
    return run.parameters.read()


UNEQUAL = VirtualCluster(
    num_workers=4, compute_s=1.0, disturbances=Disturbances(slowdowns=(1.0, 1.5, 1.0, 3.0), jitter=0.3)
)


@pytest.mark.parametrize("policy", [Ssp(0), DynSsp(0), DynSsp(0, rule="constant")], ids=str)
def test_no_staleness_is_bsp_bit_for_bit(policy: Consistency) -> None:
    assert torch.equal(end_of(policy, UNEQUAL), end_of(Bsp(), UNEQUAL))


def test_staleness_changes_what_is_learnt() -> None:
    """The control of the test above: were all policies alike, it would pass too."""
    assert not torch.equal(end_of(Ssp(2), UNEQUAL), end_of(Bsp(), UNEQUAL))
    assert not torch.equal(end_of(DynSsp(2), UNEQUAL), end_of(Ssp(2), UNEQUAL))


def test_one_asynchronous_worker_is_plain_sgd() -> None:
    training = small_training(1)
    for _ in range(12):
        own = training._workers[0].optimizer
        own.zero_grad()
        training.loss(0, training.model).backward()
        own.step()
    alone = VirtualCluster(num_workers=1, compute_s=1.0)
    # differences are added to what was read, which rounds once more than the optimizer's own step
    torch.testing.assert_close(end_of(Asp(), alone), training.values, rtol=1e-6, atol=1e-7)


def test_bsp_is_synchronous_training_with_momentum() -> None:
    """As lockstep computes it, to float tolerance: the mean of differences is the difference by the mean gradient."""
    lockstep = Lockstep(replicas(small(), 4), parse_strategy("sgd(lr=0.05)"), seed=0)
    data = [batches(worker) for worker in range(4)]

    def loss(rank: int, model: nn.Module) -> Tensor:
        inputs, targets = next(data[rank])
        return nn.functional.mse_loss(model(inputs), targets)

    for _ in range(12):
        lockstep.step(loss)
    expected = torch.cat([own.detach().reshape(-1) for own in trainable_parameters(lockstep.models[0]).values()])
    torch.testing.assert_close(end_of(Bsp(), UNEQUAL), expected, rtol=1e-5, atol=1e-6)


def test_a_run_repeats_exactly_and_another_seed_is_another_run() -> None:
    cluster = copy.deepcopy(UNEQUAL)
    assert torch.equal(end_of(Asp(), cluster), end_of(Asp(), UNEQUAL))
    times = [
        [push.time_s for push in VirtualRun(UNEQUAL, Asp(), torch.zeros(2), numbered, 5, seed=seed)] for seed in (1, 2)
    ]
    assert times[0] != times[1]


def test_bsp_waits_for_the_slowest_and_asp_for_nobody() -> None:
    straggler = VirtualCluster(num_workers=4, compute_s=1.0, disturbances=Disturbances(slowdowns=(1.0, 1.0, 1.0, 3.0)))
    ends = {}
    for policy in (Bsp(), Ssp(3), Asp()):
        run = VirtualRun(straggler, policy, torch.zeros(2), numbered, 20)
        by_then = [push for push in run if push.time_s <= 30.0]
        ends[str(policy)] = len(by_then)
    assert ends[str(Bsp())] == 4 * 10  # three seconds per step, ten of them
    assert ends[str(Asp())] == 3 * 20 + 10
    assert ends[str(Bsp())] < ends[str(Ssp(3))] <= 4 * 10 + 3 * 4  # the fast ones run ahead once, by s + 1 clocks


def test_a_halted_worker_keeps_the_others_no_longer_than_the_bound() -> None:
    """Under SSP they go on for s clocks more; under ASP they never wait."""
    halted = VirtualCluster(
        num_workers=3, compute_s=1.0, disturbances=Disturbances(halts=(Halt(worker=2, at_s=2.5, for_s=10.0),))
    )
    for policy, most in ((Ssp(2), 5), (Asp(), 12)):
        run = VirtualRun(halted, policy, torch.zeros(2), numbered, 12)
        during = [push for push in run if push.worker == 0 and push.time_s <= 12.4]
        assert len(during) == most, policy


@pytest.mark.parametrize("second", [Halt(worker=0, at_s=5.0, for_s=10.0), Halt(worker=0, at_s=12.0, for_s=3.0)])
def test_halts_that_overlap_or_follow_count_no_second_twice(second: Halt) -> None:
    """A second of work that may begin at 15 s, or between 10 and 12 s."""
    halts = (second, Halt(worker=0, at_s=0.0, for_s=10.0), Halt(worker=0, at_s=2.0, for_s=1.0))
    cluster = VirtualCluster(num_workers=1, compute_s=1.0, disturbances=Disturbances(halts=halts))
    assert cluster.computed_at_s(0, 0, 0.0, seed=1) == (16.0 if second.at_s == 5.0 else 11.0)


def test_transfers_take_the_servers_link_one_after_the_other() -> None:
    """Four workers that push 1 s each through one link: no faster than the link."""
    cluster = VirtualCluster(num_workers=4, compute_s=0.001, beta_s_per_byte=1.0)
    run = VirtualRun(cluster, Asp(), torch.zeros(2), numbered, 5, num_bytes=1.0)
    assert list(run)[-1].time_s >= 20.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ssp(-1), "staleness is -1; use 0"),
        (lambda: DynSsp(rule="mean"), "rule is 'mean'; use 'constant' or 'dynamic'"),
        (lambda: VirtualCluster(num_workers=0, compute_s=1.0), "num_workers is 0"),
        (lambda: VirtualCluster(num_workers=2, compute_s=0.0), "compute_s is 0.0"),
        (
            lambda: VirtualCluster(num_workers=2, compute_s=1.0, disturbances=Disturbances(slowdowns=(1.0,))),
            "1 slowdowns for 2 workers",
        ),
        (
            lambda: VirtualCluster(
                num_workers=2, compute_s=1.0, disturbances=Disturbances(halts=(Halt(worker=2, at_s=0, for_s=1),))
            ),
            "worker 2 halts and there are 2",
        ),
        (lambda: Disturbances(slowdowns=(0.5,)), "slowdowns are"),
        (lambda: Halt(worker=0, at_s=1.0, for_s=-5.0), "worker 0 halts at 1.0 s for -5.0 s; use seconds of 0"),
        (lambda: VirtualCluster(num_workers=2, compute_s=1.0, beta_s_per_byte=-1.0), "beta_s_per_byte -1.0; use 0"),
        (lambda: Disturbances(jitter=float("nan")), "jitter is nan"),
        (lambda: Disturbances(pause_probability=2.0), "probability 2.0"),
    ],
)
def test_what_cannot_be_is_refused_with_value_and_remedy(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises((ValueError, VirtualClusterError), match=message):
        make()
