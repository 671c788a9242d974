"""What a record says of a pipelined job: what its ranks measured, beside the schedule's formulas and the clock's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from baselines.parallelism.api import ParallelismError, PipelineSchedule
from baselines.parallelism.plans import Workshare
from harness.lab.rank import RankResult
from harness.parallel.clock import PipelineTimeline
from harness.parallel.placement import graph_of_workload
from harness.parallel.planning import busy_per_step, pipeline_step
from harness.parallel.trial_job import pipelining_of
from harness.trial import Trial
from models.values import Device
from results.facts import PipelineFacts


def pipeline_facts(trial: Trial, number: int, ranks: Sequence[RankResult]) -> PipelineFacts:
    """Of job `number`, from all of its ranks. Replicas of a pipeline rank count as the largest of them."""
    job = trial.jobs[number]
    asked = pipelining_of(job)
    schedule, stages = asked.resolve(), asked.stages(job.workload, trial.world)
    num_ranks = len(stages) // schedule.stages_per_rank
    replicas = tuple(stage.num_replicas for stage in stages[:num_ranks])
    by_rank = {rank.rank: rank.pipeline for rank in ranks if rank.pipeline is not None}
    # Replicas differ by what a busy machine did to them; the slowest holds the others up.
    groups, first = [], 0
    for count in replicas:
        groups.append([by_rank[rank] for rank in range(first, first + count)])
        first += count
    # Of every job, measured ones too: the record then has the prediction beside what was measured.
    timeline, step_s = clocked(trial, number)
    busy_s = busy_per_step(timeline, schedule)
    told = job.system == "ours"
    timed = job.workload.device is Device.REPLAY
    num_steps = trial.num_steps_of(number)
    num_micro_batches = _in_flight_of(schedule, job.accumulate, trial.num_warmup + num_steps)
    layers = graph_of_workload(job.workload).layers
    return PipelineFacts(
        schedule=asked.schedule,
        first_layers=tuple(layers[stage.first].name for stage in stages),
        num_micro_batches=job.accumulate,
        num_replicas=replicas,
        bubble=fmean(1 - own.busy_s / own.window_s for own in by_rank.values()) if told else None,
        bubble_formula=_formula(schedule, num_ranks, job.accumulate),
        bubble_clock=1 - math.fsum(map(math.prod, zip(replicas, busy_s, strict=True))) / (step_s * trial.world)
        if timed
        else None,
        step_clock_s=step_s if timed else None,
        peak_stash=tuple(max(own.peak_stash for own in group) for group in groups if told),
        stash_formula=tuple(schedule.peak_stash(rank, num_ranks, num_micro_batches) for rank in range(num_ranks)),
        versions=tuple(max(own.versions for own in group) for group in groups if told),
        staleness=tuple(max(own.staleness for own in group) for group in groups if told),
        busy_s=tuple(max(own.busy_s for own in group) / num_steps for group in groups if told),
        sent_bytes=tuple(max(own.sent_bytes for own in group) for group in groups if told),
        memory_bytes=timeline.peak_bytes,
        passes=tuple(sorted((one for own in by_rank.values() for one in own.passes), key=lambda one: one.start_s)),
    )


def clocked(trial: Trial, number: int) -> tuple[PipelineTimeline, float]:
    """Job `number` alone on the virtual clock, and its seconds per step."""
    job = trial.jobs[number]
    asked = pipelining_of(job)
    work = Workshare(batch_size=job.workload.batch_size * job.accumulate, num_micro_batches=job.accumulate)
    stages = asked.stages(job.workload, trial.world)
    return pipeline_step(stages, asked.resolve(), graph_of_workload(job.workload), trial.machine_of(job), work)


def _in_flight_of(schedule: PipelineSchedule, per_step: int, num_steps: int) -> int:
    """Micro-batches of one run of the program."""
    return per_step if schedule.synchronous else per_step * num_steps


def _formula(schedule: PipelineSchedule, num_ranks: int, num_micro_batches: int) -> float | None:
    """The idle share per step; none where steps overlap (a run fills and drains once), or no formula holds."""
    if not schedule.synchronous:
        return None
    try:
        return schedule.bubble(num_ranks, num_micro_batches)
    except ParallelismError:
        return None
