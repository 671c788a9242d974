"""A trial of pipelined jobs in one process: arithmetic in lockstep, times from a virtual clock.

Replayed jobs have no arithmetic that anybody would look at, so they have times alone, on any number of ranks. Real ones
train exactly what processes would train, bit for bit, and their times are those of the layer graph: of its FLOPs where
nothing was recorded.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from baselines.parallelism.api import Backward, Forward, ParallelismError, Recompute, Update
from baselines.parallelism.programs import PipelineProgram, Receive, Send, peak_stash, peak_versions, program_of
from crossover import Sharing
from harness.lab.rank import RankResult, Signals
from harness.loop import Evaluated
from harness.parallel.clock import StageCosts, TimedInstruction
from harness.parallel.planning import busy_per_step
from harness.parallel.shared_clock import ClockedJob, DeviceOrder, SharedTimeline, run_jobs_on_clock
from harness.parallel.trial_facts import clocked
from harness.parallel.trial_job import costs_of_job, pipelining_of
from harness.parallel.trial_learning import Learnt, learn
from harness.trial import Trial
from models.values import Device
from results.facts import PassTime, PipelineRankFacts
from results.record import JobCosts, Phases


@dataclass(frozen=True, slots=True)
class _Times:
    """When each step of a job ended, what each pipeline rank computed of a step, and the passes that are told."""

    start_s: float
    ends_s: tuple[float, ...]
    busy_s: tuple[float, ...]
    passes: tuple[PassTime, ...] = ()


def run_pipelines_on_clock(trial: Trial, signals: Signals) -> Iterator[RankResult]:
    """Run the trial's jobs and report every rank of each.

    Raises: ParallelismError where jobs of asynchronous schedules share.
    """
    signals.ready()
    times = _times_of(trial)
    for number, job in enumerate(trial.jobs):
        replayed = job.workload.device is Device.REPLAY
        learnt = Learnt() if replayed else learn(trial, number, signals)
        yield from _results(trial, number, times[number], learnt)


def _times_of(trial: Trial) -> list[_Times]:
    # One after the other a job has its devices to itself, and each step is like the next.
    if trial.sharing is Sharing.CROSSOVER:
        return _shared(trial)
    found: list[_Times] = []
    start_s = 0.0
    for number in range(len(trial.jobs)):  # alone, or one after the other
        timeline, step_s = clocked(trial, number)
        num_steps = trial.num_warmup + trial.num_steps_of(number)
        ends_s = tuple(start_s + step_s * (step + 1) for step in range(num_steps))
        busy_s = busy_per_step(timeline, pipelining_of(trial.jobs[number]).resolve())
        # Of jobs that share: how they look alone is what the shared timeline is held against.
        passes = tuple(_passes(timeline.spans, start_s)) if trial.sharing is not None else ()
        found.append(_Times(start_s, ends_s, busy_s, passes))
        start_s = ends_s[-1]
    return found


def _shared(trial: Trial) -> list[_Times]:
    jobs = [clocked_job(trial, number) for number in range(len(trial.jobs))]
    timeline = run_jobs_on_clock(jobs, trial.machine_of(trial.jobs[0]), DeviceOrder.FIRST_COME)
    # Two steps of the first job in the middle of the run; every job tells its passes in them.
    first_ends_s = timeline.step_ends_s[0]
    middle = len(first_ends_s) // 2
    window_s = first_ends_s[middle - 1], first_ends_s[min(middle + 1, len(first_ends_s) - 1)]
    return [
        _Times(
            job.start_s,
            timeline.step_ends_s[number],
            _busy_of(timeline, number, job),
            tuple(
                own
                for own in _passes(timeline.spans[number], 0.0)
                if own.start_s < window_s[1] and own.end_s > window_s[0]
            ),
        )
        for number, job in enumerate(jobs)
    ]


def _passes(spans: Iterable[TimedInstruction], from_s: float) -> Iterator[PassTime]:
    for span in spans:
        step = span.instruction
        if isinstance(step, Forward | Recompute | Backward):
            is_forward = not isinstance(step, Backward)
            yield PassTime(span.rank, is_forward, step.micro_batch, from_s + span.start_s, from_s + span.end_s)


def clocked_job(trial: Trial, number: int) -> ClockedJob:
    """Job `number` as the clock of shared devices runs it. Raises: ParallelismError for an asynchronous schedule."""
    job, costs = trial.jobs[number], costs_of_job(trial, number)
    schedule = pipelining_of(job).resolve()
    if not schedule.synchronous:
        raise ParallelismError(
            f"{schedule.card.name}: its steps overlap, and the clock of shared devices repeats steps; use a "
            "synchronous schedule, or the paced fabric"
        )
    return ClockedJob(
        program=program_of(schedule, len(costs) // schedule.stages_per_rank, job.accumulate),
        stages=costs,
        num_steps=trial.num_warmup + trial.num_steps_of(number),
        start_s=job.start_delay_s,
    )


def _busy_of(timeline: SharedTimeline, number: int, job: ClockedJob) -> tuple[float, ...]:
    busy_s = [0.0] * job.program.num_ranks
    for span in timeline.spans[number]:
        # An update is no pass: what a pipeline's bubble is measured against computes micro-batches.
        if isinstance(span.instruction, Forward | Recompute | Backward):
            busy_s[span.rank] += span.end_s - span.start_s
    return tuple(total_s / job.num_steps for total_s in busy_s)


def _results(trial: Trial, number: int, times: _Times, learnt: Learnt) -> Iterator[RankResult]:
    job, costs = trial.jobs[number], costs_of_job(trial, number)
    schedule = pipelining_of(job).resolve()
    num_steps = trial.num_warmup + trial.num_steps_of(number)
    # Where steps overlap, one program is the whole run; else it is one step and repeats.
    num_micro_batches = job.accumulate * (1 if schedule.synchronous else num_steps)
    program = program_of(schedule, len(costs) // schedule.stages_per_rank, num_micro_batches)
    steps_s = tuple(later - earlier for earlier, later in pairwise((times.start_s, *times.ends_s)))
    window_s = times.ends_s[-1] - times.ends_s[trial.num_warmup - 1]
    replicas = [stage.num_replicas for stage in pipelining_of(job).stages(job.workload, trial.world)]
    places = [rank for rank in range(program.num_ranks) for _ in range(replicas[rank])]
    # Replicas are alike on the clock, so one stands for all.
    for rank, place in enumerate(places):
        sent = list(_sent(program, place, costs, replicas))
        # A whole run's messages, as a mean per step.
        num_runs = 1 if schedule.synchronous else num_steps
        sent_bytes = sum(sent) / job.workload.size_scale / num_runs
        facts = PipelineRankFacts(
            window_s=window_s,
            busy_s=times.busy_s[place] * trial.num_steps_of(number),
            peak_stash=peak_stash(program, place),
            versions=max(peak_versions(program, stage) for stage in _own_stages(program, place)),
            staleness=max(staleness_of(program, stage) for stage in _own_stages(program, place)),
            sent_bytes=sent_bytes,
            # Of the place's first replica: all are alike.
            passes=tuple(own for own in times.passes if own.rank == place) if rank == places.index(place) else (),
        )
        rate_bps = trial.fabric.rate_bps
        job_costs = JobCosts(
            compute_s=times.busy_s[place],
            communication_s=8 * sent_bytes / rate_bps if rate_bps else 0.0,
            solo_s=window_s / trial.num_steps_of(number),
        )
        yield RankResult(
            job=number,
            rank=rank,
            step_times_s=steps_s,
            losses=learnt.losses,
            evaluated=_timed(learnt.evaluated, times) if rank == 0 else (),
            phases=Phases(compute_s=times.busy_s[place]),
            num_messages=len(sent) / num_runs,
            wire_bytes={"pipeline": sent_bytes},
            weights_digest=learnt.digest,
            num_parameters=learnt.num_parameters,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            start_s=times.start_s,
            end_s=times.ends_s[-1],
            costs=job_costs if trial.num_cost_steps else None,
            pipeline=facts,
        )


def _sent(
    program: PipelineProgram, place: int, costs: Sequence[StageCosts], replicas: Sequence[int]
) -> Iterator[float]:
    """Bytes of each message and each sum of a run that one replica of a pipeline rank sends: its part of what crosses
    between two ranks, and of its stages' gradients."""
    for step in program.ranks[place]:
        if isinstance(step, Send):
            boundary = step.crossing.boundary
            # Its bytes on the clock are those of a replica of the smaller side.
            pairs = min(replicas[program.rank_of(stage)] for stage in (boundary, boundary + 1))
            yield costs[boundary].output_bytes * pairs / replicas[place]
        elif isinstance(step, Update) and costs[step.stage].sum_bytes:
            yield costs[step.stage].sum_bytes


def _timed(evaluated: Sequence[Evaluated], times: _Times) -> tuple[Evaluated, ...]:
    return tuple(
        Evaluated(one.step, times.ends_s[one.step - 1] - times.start_s, one.loss, one.accuracy) for one in evaluated
    )


def _own_stages(program: PipelineProgram, rank: int) -> range:
    return range(rank, program.num_stages, program.num_ranks)


def staleness_of(program: PipelineProgram, stage: int) -> int:
    """The most updates of `stage` between a forward and the application of its gradient: 0 is synchronous."""
    newest, versions, most = 0, dict[int, int](), 0
    for step in program.ranks[program.rank_of(stage)]:
        if isinstance(step, Send | Receive) or step.stage != stage:
            continue
        if isinstance(step, Update):
            newest = step.version
        elif isinstance(step, Forward):
            versions[step.micro_batch] = step.version
        elif isinstance(step, Backward):
            most = max(most, newest - versions[step.micro_batch])
    return most
