"""Jobs that push to servers and compute in turns: an asynchronous one beside a synchronous one on the same devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from patience import patience_s
from torch import Tensor

from baselines.api import Consistency
from baselines.consistency.asp import Asp
from baselines.consistency.bsp import Bsp
from baselines.consistency.dynssp import DynSsp
from baselines.consistency.ssp import Ssp
from crossover import Sharing
from crossover.policies import policy_of
from fabric.api import FabricKind, FabricSpec
from harness.asynchrony.cluster import Disturbances, VirtualCluster
from harness.asynchrony.trial import run_virtual
from harness.asynchrony.virtual import VirtualRun
from harness.asynchrony.virtual_turns import DeviceSeats, in_turns
from harness.checks.trial import check
from harness.engine.checkpoint import CheckpointError
from harness.lab.labs import Labs
from harness.lab.messages import Answer, Ending, Task
from harness.lab.rank import RankResult, Signals
from harness.outcome import Background, record_of
from harness.trial import Job, Link, Trial, TrialError
from models.workload import WorkloadSpec
from results.record import Environment, Status

NUM_CLOCKS = 12
UNEQUAL = VirtualCluster(
    num_workers=3,
    compute_s=1.0,
    alpha_s=0.01,
    beta_s_per_byte=1e-3,
    disturbances=Disturbances(slowdowns=(1.0, 1.37, 2.9), jitter=0.3),
)
STEADY = VirtualCluster(num_workers=3, compute_s=1.0, disturbances=Disturbances(slowdowns=(1.0, 1.37, 2.9)))


def update_of(worker: int, clock: int, values: Tensor) -> Tensor:
    """Depends on what was read, so a read of something else ends in other numbers."""
    return torch.sin(values + worker + 0.1 * clock)


def run_of(policy: Consistency, cluster: VirtualCluster = UNEQUAL, seed: int = 0) -> VirtualRun:
    return VirtualRun(cluster, policy, torch.zeros(4), update_of, NUM_CLOCKS, num_bytes=20.0, seed=seed)


def share(runs: Mapping[str, VirtualRun], sharing: Sharing = Sharing.CROSSOVER) -> None:
    assert len(list(in_turns(runs, policy_of(sharing)))) == len(runs) * NUM_CLOCKS * 3


def done(run: VirtualRun) -> VirtualRun:
    list(run)
    return run


@pytest.mark.parametrize("sharing", [Sharing.CROSSOVER, Sharing.EXCLUSIVE])
@pytest.mark.parametrize("policy", [Bsp(), Ssp(0), DynSsp(0)], ids=str)
def test_a_synchronous_job_beside_an_asynchronous_one_ends_as_alone(policy: Consistency, sharing: Sharing) -> None:
    """Bit for bit: turns move when it reads and never what."""
    runs = {"asynchronous": run_of(Asp()), "synchronous": run_of(policy)}
    share(runs, sharing)
    assert torch.equal(runs["synchronous"].parameters.read(), done(run_of(policy)).parameters.read())


def test_an_asynchronous_job_whose_partner_is_its_twin_reads_as_stale_as_alone() -> None:
    """Without transfers turns of equal jobs make the second one's every time twice what it is alone, so updates come in
    the same order: the same staleness, and the same bits although ASP's depend on that order."""
    runs = {"first": run_of(Asp(), STEADY), "second": run_of(Asp(), STEADY)}
    share(runs)
    alone = done(run_of(Asp(), STEADY))
    assert runs["second"].tally == alone.tally
    assert torch.equal(runs["second"].parameters.read(), alone.parameters.read())


def test_under_exclusive_the_first_job_is_as_alone_whatever_its_method_is() -> None:
    runs = {"first": run_of(Ssp(2)), "second": run_of(Bsp())}
    # The link is the first job's too until its last turn, and the second one computes only afterwards.
    share(runs, Sharing.EXCLUSIVE)
    alone = done(run_of(Ssp(2)))
    assert torch.equal(runs["first"].parameters.read(), alone.parameters.read())
    assert runs["first"].tally == alone.tally


def test_strict_turns_beside_a_barrier_bound_a_job_that_has_no_bound() -> None:
    """ASP beside BSP: its turn comes after BSP's, whose step before last needs every worker's turn before that. So
    nobody is more than two clocks ahead, where alone the fastest is done with the slowest not half-way."""
    runs = {"asp": run_of(Asp()), "bsp": run_of(Bsp())}
    share(runs)
    assert max(runs["asp"].tally.ahead) <= 2
    assert max(done(run_of(Asp())).tally.ahead) >= 6


@given(
    st.lists(st.sampled_from([Asp(), Bsp(), Ssp(1), Ssp(3), DynSsp(2)]), min_size=2, max_size=3),
    st.integers(0, 10_000),
)
def test_any_jobs_in_turns_end_and_no_device_is_held_twice(policies: list[Consistency], seed: int) -> None:
    """Each within its own bound of staleness, which every read asserts, and every update counted once."""
    runs = {str(number): run_of(policy, seed=seed) for number, policy in enumerate(policies)}
    share(runs)
    for run in runs.values():
        assert run.parameters.clocks == [NUM_CLOCKS] * 3
        assert run.policy.staleness is None or max(run.tally.ahead) <= run.policy.staleness
    for worker in range(3):
        seats = [run.devices for run in runs.values() if isinstance(run.devices, DeviceSeats)]
        turns = sorted((turn.granted_s, turn.released_s) for seat in seats for turn in seat.turns[worker])
        assert len(turns) == len(runs) * NUM_CLOCKS
        assert all(before[1] <= after[0] for before, after in pairwise(turns))


def test_what_turns_cannot_do_is_refused() -> None:
    run = run_of(Asp())
    share({"a": run, "b": run_of(Bsp())})
    with pytest.raises(CheckpointError, match="computes in turns"):
        run.state_dict()
    other = replace(STEADY, num_workers=2, disturbances=Disturbances())
    with pytest.raises(ValueError, match="give all as many"):
        list(in_turns({"a": run_of(Asp()), "b": run_of(Asp(), other)}, policy_of(Sharing.CROSSOVER)))


def trial_of(**more: object) -> Trial:
    """An asynchronous and a synchronous job, two workers each."""
    workload = WorkloadSpec(network="resnet20", batch_size=2, num_evaluation=16)
    jobs = (
        Job(name="free", workload=workload, strategy="asp"),
        Job(name="bound", workload=workload, strategy="bsp"),
    )
    asked: dict[str, object] = {
        "suite": "test",
        "cell": "test",
        "jobs": jobs,
        "fabric": FabricSpec(kind=FabricKind.LOCKSTEP, num_hosts=2),
        "sharing": Sharing.CROSSOVER,
        "link": Link.FAIR,
        "num_steps": 2,
        "num_warmup": 1,
        "cluster": replace(STEADY, num_workers=2, disturbances=Disturbances(slowdowns=(1.0, 3.0))),
    }
    return Trial(**{**asked, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def on_the_clock() -> tuple[RankResult, ...]:
    check(trial_of())
    return tuple(run_virtual(trial_of(), Signals(ready=lambda: None)))


def test_a_trial_of_both_on_the_virtual_clock_has_one_record(on_the_clock: tuple[RankResult, ...]) -> None:
    trial, answer = trial_of(), Answer(ending=Ending.DONE, ranks=on_the_clock)
    record = record_of(trial, answer, Background(environment=Environment()))
    assert record.status is Status.OK
    free, bound = record.jobs
    assert free.consistency is not None
    assert free.consistency.clocks == (3, 3)
    assert record.sharing_facts is not None
    # On the first host a second of either job in turn, from 1 s to 8 s; nobody noted what its link did.
    assert record.sharing_facts.device_busy == pytest.approx(4 / 7)
    assert record.sharing_facts.link_busy is None
    # The slow worker computes 3 s of either job in turn, so both step every 6 s.
    assert bound.ranks[1].steps_s == free.ranks[1].steps_s == (6.0, 6.0)


def test_among_processes_both_train_in_turns_and_the_synchronous_one_to_the_same_bits(
    on_the_clock: tuple[RankResult, ...], labs: Labs
) -> None:
    """Two workers and a server of either job on three hosts, with the scheduler's own arbiters."""
    trial = trial_of(
        fabric=FabricSpec(kind=FabricKind.NATIVE, num_hosts=3, rate_bps=None),
        cluster=VirtualCluster(num_workers=2, compute_s=0.01, num_servers=1),
        timeout_s=patience_s(60.0),
    )
    check(trial)
    answer = labs.ask(Task(trial=trial))
    assert answer.ending is Ending.DONE, answer.reason
    (clocks,) = {rank.consistency.clocks for rank in answer.ranks if rank.consistency is not None}
    assert clocks == (3, 3)
    assert {len(rank.turns) for rank in answer.ranks if not rank.serves} == {3}
    trained = {rank.weights_digest for rank in answer.ranks if rank.job == 1 and not rank.serves}
    assert trained == {rank.weights_digest for rank in on_the_clock if rank.job == 1}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sharing": Sharing.HOLD}, "share by crossover or exclusive, not by hold"),
        ({"link": Link.FIFO}, "link=fifo under crossover: a pull waits for other workers"),
        ({"cluster": None}, "jobs cannot share by crossover|give the trial a cluster"),
    ],
)
def test_what_jobs_with_servers_cannot_share_is_refused_with_the_reason(more: dict[str, object], message: str) -> None:
    with pytest.raises(TrialError, match=message):
        check(trial_of(**more))
