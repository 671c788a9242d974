"""Trials of unequal workers in a lab: a rank that stops for a while breaks nothing, and one that dies is named."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import psutil
import pytest
from patience import patience_s

from fabric.api import FabricKind, FabricSpec
from harness.asynchrony.cluster import OnLoss, VirtualCluster
from harness.checks.trial import check
from harness.lab.labs import Labs
from harness.lab.messages import Answer, Ending, Event, Task
from harness.trial import Job, Trial
from models.workload import WorkloadSpec
from results.record import ConsistencyFacts

pytestmark = pytest.mark.slow

NUM_STEPS, STOPPED_S = 12, 1.0
FABRIC = FabricSpec(kind=FabricKind.NATIVE, num_hosts=3, rate_bps=None)


def trial_of(strategy: str, on_loss: OnLoss = OnLoss.STOP) -> Trial:
    """Two workers and a server; a step takes 0.4 s, so that there is time to disturb one."""
    workload = WorkloadSpec(network="resnet20", batch_size=1, num_evaluation=16)
    trial = Trial(
        suite="test",
        cell="test",
        jobs=(Job(name="a", workload=workload, strategy=strategy),),
        fabric=FABRIC,
        num_warmup=1,
        num_steps=NUM_STEPS - 1,
        timeout_s=patience_s(60.0),
        cluster=VirtualCluster(num_workers=2, compute_s=0.4),
        on_loss=on_loss,
    )
    check(trial)
    return trial


@pytest.fixture(scope="module")
def labs() -> Iterator[Labs]:
    """Of this process's own, whose ranks are its descendants."""
    with closing(Labs()) as own:
        yield own


def disturbed(labs: Labs, trial: Trial, act: Callable[[int], None]) -> Answer:
    """Run it, and do `act` to the process of worker 1 when worker 0 has told of a step."""
    heard: list[Event] = []

    def listen(event: Event) -> None:
        if event.kind == "step":
            heard.append(event)
            if len(heard) == 1:
                lab = labs._labs[FABRIC.kind.is_enclosed, threading.get_ident()]
                family = psutil.Process(lab._process.pid).children(recursive=True)
                ranks = sorted(own.pid for own in family if not own.children())
                act(ranks[1])

    answer = labs.ask(Task(trial=trial), listen)
    assert heard, "no rank told of a step, so nothing was disturbed"
    assert answer.ending is Ending.DONE, answer.reason
    return answer


def facts_of(answer: Answer) -> ConsistencyFacts:
    (facts,) = (rank.consistency for rank in answer.ranks if rank.consistency is not None)
    return facts


def stop_for_a_while(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(STOPPED_S, lambda: os.kill(pid, signal.SIGCONT)).start()


@pytest.mark.parametrize(("strategy", "most"), [("bsp", 0), ("ssp(staleness=1)", 1)])
def test_a_worker_that_stops_for_a_while_breaks_nothing(strategy: str, most: int, labs: Labs) -> None:
    """The other one waits at its bound and no further ahead, and all updates come when it goes on."""
    facts = facts_of(disturbed(labs, trial_of(strategy), stop_for_a_while))
    assert facts.clocks == (NUM_STEPS, NUM_STEPS)
    assert facts.lost == ()
    assert max(int(clocks) for clocks in facts.ahead) <= most
    assert facts.waited_s[0] > 0.0


def test_the_others_go_on_without_a_worker_whose_process_died(labs: Labs) -> None:
    """With `--on-loss continue`: the record says who is missing and how far it had come."""
    answer = disturbed(labs, trial_of("asp", OnLoss.CONTINUE), lambda pid: os.kill(pid, signal.SIGKILL))
    facts = facts_of(answer)
    assert facts.lost == (1,)
    assert facts.clocks[0] == NUM_STEPS
    assert facts.clocks[1] < NUM_STEPS
    assert {rank.rank for rank in answer.ranks} == {0, 2}
