"""A trial of a split job in one process: times from a virtual clock, and in lockstep the arithmetic of a real one."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import replace

from baselines.parallelism.api import ParallelismError
from harness.lab.rank import RankResult, Signals
from harness.splits.split_clock import SplitTimeline, run_split_on_clock
from harness.splits.split_learning import SplitLearnt, learn_split
from harness.splits.splitting import SplitPlan, Splitting
from harness.trial import Job, Trial
from models.values import Device
from results.facts import SplitFacts
from results.record import Phases


def splitting_of(job: Job) -> Splitting:
    """The job's own. Raises: ParallelismError if it has none."""
    if job.splitting is None:
        raise ParallelismError(f"job {job.name} is not split; give it splitting")
    return job.splitting


def planned_split(trial: Trial) -> tuple[SplitPlan, SplitTimeline]:
    """The plan of the trial's job on its link, and its step on the clock. Raises: ParallelismError, TextError."""
    (job,) = trial.jobs
    machine, asked = trial.machine_of(job), splitting_of(job)
    plan = asked.on(job.workload, machine)
    return plan, run_split_on_clock(plan.program, machine, overlap=asked.overlap)


def run_split_in_process(trial: Trial, signals: Signals) -> Iterator[RankResult]:
    """Run the trial's job and report each of its ranks. Raises: ParallelismError for a plan that nothing executes."""
    signals.ready()
    (job,), (plan, timeline) = trial.jobs, planned_split(trial)
    replayed = job.workload.device is Device.REPLAY
    splits = [config.splits() for config in plan.configs]
    learnt = SplitLearnt() if replayed else learn_split(trial, splits, signals.step)
    num_steps = trial.num_warmup + trial.num_steps_of(0)
    sent_bytes = timeline.sent_bytes / job.workload.size_scale
    for rank in range(trial.world):
        yield RankResult(
            job=0,
            rank=rank,
            step_times_s=(timeline.step_s,) * num_steps,
            losses=tuple(learnt.losses),
            evaluated=tuple(replace(own, time_s=own.step * timeline.step_s) for own in learnt.evaluated)
            if rank == 0
            else (),
            phases=Phases(compute_s=timeline.compute_s, exposed_s=timeline.exposed_s),
            num_messages=timeline.num_messages,
            wire_bytes={"split": sent_bytes},
            weights_digest=learnt.digest,
            num_parameters=learnt.num_parameters,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            start_s=0.0,
            end_s=num_steps * timeline.step_s,
            distance=learnt.distance,
        )


def split_facts(trial: Trial, ranks: tuple[RankResult, ...]) -> SplitFacts:
    """Of the trial's job, from its plan and its first rank."""
    (job,), (plan, timeline) = trial.jobs, planned_split(trial)
    asked, is_timed = splitting_of(job), job.workload.device is Device.REPLAY
    return SplitFacts(
        planner=asked.planner,
        overlap=asked.overlap,
        splits=plan.texts,
        step_planned_s=plan.planned_s if is_timed else None,
        step_clock_s=timeline.step_s if is_timed else None,
        compute_s=timeline.compute_s,
        exchange_s=timeline.exchange_s,
        sent_bytes=timeline.sent_bytes / job.workload.size_scale,
        memory_bytes=(plan.memory_bytes,),
        distance=ranks[0].distance,
    )
