"""Trials for real processes, small enough for two shared cores, and a look at what is left of them."""

from __future__ import annotations

import time

import psutil
from patience import patience_s
from small_network import NAME

from fabric.api import FabricKind, FabricSpec
from harness.lab.launch import LabHandle
from harness.lab.messages import Answer, Ending, Task
from harness.lab.rank import RankResult
from harness.trial import Job, Trial
from models.workload import WorkloadSpec

ENDLESS = 1_000_000
NUM_WARMUP = 1


def spec_of(kind: str, num_hosts: int = 2) -> FabricSpec:
    rate_bps = 200e6 if kind == "emulated" else None
    return FabricSpec(kind=FabricKind(kind), num_hosts=num_hosts, rate_bps=rate_bps)


def task(
    fabric: FabricSpec,
    *,
    num_steps: int = 20,
    timeout_s: float = patience_s(120.0),
    num_cost_steps: int = 0,
    **job: object,
) -> Task:
    """One job called `a` training a small network on digits, `num_steps` steps in all."""
    workload = WorkloadSpec(network=NAME, batch_size=4)
    asked = Trial(
        suite="test",
        cell="test",
        jobs=(Job(name="a", workload=workload, **job),),  # type: ignore[arg-type]
        fabric=fabric,
        num_warmup=NUM_WARMUP,
        num_steps=num_steps - NUM_WARMUP,
        num_cost_steps=num_cost_steps,
        timeout_s=timeout_s,
    )
    return Task(trial=asked)


def done(answer: Answer) -> tuple[RankResult, ...]:
    assert answer.ending is Ending.DONE, answer.reason
    return answer.ranks


def digest(answer: Answer) -> str:
    """The weights that all ranks agree on."""
    (one,) = {rank.weights_digest for rank in done(answer)}
    return one


def processes_with(text: str) -> list[psutil.Process]:
    """Every process whose command line has `text` in it; the ranks of a lab carry its scratch folder."""
    assert text, "an empty text is in every command line"
    found = []
    for process in psutil.process_iter():
        try:
            if any(text in argument for argument in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue  # it ended meanwhile, or it is nobody we may look at
    return found


def ranks_of(lab: LabHandle) -> list[psutil.Process]:
    """The rank processes of a single job, by rank: the last ones that the lab forked."""
    family = processes_with(scratch_of(lab))
    leaves = [process for process in family if not process.children()]
    return sorted(leaves, key=lambda process: process.pid)


def scratch_of(lab: LabHandle) -> str:
    return str(lab._scratch.path)


def left_after(text: str, timeout_s: float = patience_s(40.0)) -> list[psutil.Process]:
    """Processes that are still there after some time, ideally none at once."""
    deadline_s = time.monotonic() + timeout_s
    while (left := processes_with(text)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left
