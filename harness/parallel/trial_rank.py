"""One rank of a pipelined job: from a seat in a trial to its result. The counterpart of `harness.lab.rank.run_rank`."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter, sleep

import torch
import torch.distributed as dist
from torch import Tensor, nn

from crossover import Alone, Participant
from harness.lab.gpu import logged_turns, own_times
from harness.lab.rank import Place, RankResult, Signals, rank_seed, weights_digest
from harness.loop import Evaluated
from harness.parallel.meter import PipelineMeter
from harness.parallel.rank_program import RankLayout
from harness.parallel.sessions import PipelineSeat, PipelineSession, RunsPipelines, open_ours
from harness.parallel.stages import MicroBatch, links_of
from harness.parallel.trial_job import OpenedJob, open_job
from harness.systems import system_of
from harness.trace import Recorder
from harness.trial import Trial
from harness.turns import merged
from models.replay import ReplayWorkload
from results.facts import PipelineRankFacts
from results.record import JobCosts, Phases


@dataclass(slots=True)
class _Trained:
    """What a rank's training left. `losses` are the steps' means, the same on all ranks."""

    losses: tuple[float, ...] = ()
    evaluated: list[Evaluated] = field(default_factory=list)


def run_pipeline_rank(trial: Trial, place: Place, signals: Signals) -> RankResult:
    """Train one rank of a pipelined job of `trial` and report. The process group must be up."""
    torch.manual_seed(rank_seed(trial.seed, place.rank))
    opened = open_job(trial, place.job, place.device_socket)
    device = trial.jobs[place.job].workload.device
    turns = logged_turns(
        Participant(place.arbiter_socket, trial.jobs[place.job].name) if place.arbiter_socket else Alone(), device
    )
    recorder = Recorder()
    updates = opened.pipeline.schedule.stages_per_rank
    meter = PipelineMeter(turns, recorder, updates_per_step=updates, on_step=signals.step)
    with turns:
        data = _data_of(trial, place.job, opened)
        first = next(data)
        session = _session(trial, place, opened, first, meter, recorder)
        # Groups and stages are there by now: no first step pays for them.
        signals.ready()
        with turns.turn(aside=True):
            pass  # under exclusive sharing the whole job waits here, and not in its messages
        sleep(trial.jobs[place.job].start_delay_s)
        trained = _train(trial, place, opened, session, meter, _first_and(first, data))
        own_turns = own_times(turns)
    # Outside the turns: another job need not wait for broadcasts.
    gather(opened, session)
    turns_here = own_turns if place.arbiter_socket else ()
    result = _result(trial, place, opened, session, meter, recorder, trained, turns_here)
    session.close()
    return result


def _first_and(
    first: tuple[MicroBatch, ...], rest: Iterator[tuple[MicroBatch, ...]]
) -> Iterator[tuple[MicroBatch, ...]]:
    yield first
    yield from rest


def _data_of(trial: Trial, number: int, opened: OpenedJob) -> Iterator[tuple[MicroBatch, ...]]:
    """What each run of the program takes: a step's micro-batches; all of them at once where steps overlap."""
    num_steps = trial.num_warmup + trial.num_steps_of(number)
    steps = opened.steps(trial.seed)
    if opened.pipeline.schedule.synchronous:
        for _ in range(num_steps):
            yield next(steps)
    else:
        # One program for the whole run: a step's passes lie between those of its neighbours.
        yield tuple(micro_batch for _ in range(num_steps) for micro_batch in next(steps))


def _session(
    trial: Trial,
    place: Place,
    opened: OpenedJob,
    first: Sequence[MicroBatch],
    meter: PipelineMeter,
    recorder: Recorder,
) -> PipelineSession:
    replayed = isinstance(opened.workload, ReplayWorkload)
    seat = PipelineSeat(
        job=opened.pipeline,
        model=opened.model,
        data=first,
        meter=meter,
        recorder=recorder,
        paused=opened.workload.device.pause if replayed else lambda: None,  # type: ignore[attr-defined]
    )
    system = system_of(trial.jobs[place.job].system)
    return system.open_pipeline(seat) if isinstance(system, RunsPipelines) else open_ours(seat)


def _train(
    trial: Trial,
    place: Place,
    opened: OpenedJob,
    session: PipelineSession,
    meter: PipelineMeter,
    data: Iterator[tuple[MicroBatch, ...]],
) -> _Trained:
    trained, shares = _Trained(), list[float]()
    per_step = opened.num_micro_batches
    for micro_batches in data:
        found = session.run(micro_batches)
        for first in range(0, len(micro_batches), per_step):
            shares.append(sum(found.get(number, 0.0) for number in range(first, first + per_step)))
        if trial.evaluate_every and len(shares) % trial.evaluate_every == 0:
            _evaluate(opened, session, meter, trained, len(shares), place.rank)
    # Only the last stage's ranks know losses, and the record wants the same from all.
    total = torch.tensor(shares, dtype=torch.float64)
    dist.all_reduce(total)
    trained.losses = tuple(total.tolist())
    return trained


def _evaluate(
    opened: OpenedJob, session: PipelineSession, meter: PipelineMeter, trained: _Trained, step: int, rank: int
) -> None:
    """Rank 0 evaluates the whole network, and all wait for it; the time is no training's."""
    since_s, at_s = perf_counter(), meter.ends_s[-1] - meter.start_s
    gather(opened, session)
    if rank == 0 and (found := opened.workload.evaluate(opened.model)) is not None:
        trained.evaluated.append(Evaluated(step, at_s, found.loss, found.accuracy))
    # The others wait here rather than in a receive, which would count as their stage's idle time.
    dist.barrier()
    meter.paused_s += perf_counter() - since_s


def gather(opened: OpenedJob, session: PipelineSession) -> None:
    """Every stage's newest weights and statistics into every rank's whole network.

    Raises: AssertionError if replicas of a stage differ.
    """
    job = opened.pipeline
    links, layout = links_of(job.network, opened.model), job.layout()
    for index, stage in enumerate(job.stages):
        whole = nn.Sequential(*(link.module for link in links[stage.first : stage.stop]))
        targets = _floats(whole)
        own = _floats(session.modules[index]) if index in session.modules else targets
        flat = torch.cat([tensor.detach().flatten() for tensor in own])
        mine = flat.clone()  # the broadcast writes over it, and replicas are to be compared
        dist.broadcast(flat, _owner(layout, index, job.num_ranks))
        num_weights = sum(parameter.numel() for parameter in whole.parameters())
        if index in session.modules:
            # Statistics may differ between replicas, which see other samples; weights must not.
            assert torch.equal(mine[:num_weights], flat[:num_weights]), f"replicas of stage {index} differ"
        for target, part in zip(targets, flat.split([tensor.numel() for tensor in targets]), strict=True):
            target.data.copy_(part.view_as(target))


def _owner(layout: RankLayout, stage: int, num_ranks: int) -> int:
    return layout.ranks_of(stage % num_ranks)[0]


def _floats(module: nn.Module) -> list[Tensor]:
    """Parameters first, then the buffers that are no counters."""
    return [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]


def _result(
    trial: Trial,
    place: Place,
    opened: OpenedJob,
    session: PipelineSession,
    meter: PipelineMeter,
    recorder: Recorder,
    trained: _Trained,
    turns: tuple[object, ...],
) -> RankResult:
    times_s, num_measured = meter.step_times_s(), trial.num_steps_of(place.job)
    since_s, until_s = meter.window(trial.num_warmup)
    measured = recorder.between(since_s, until_s)
    peak_stash, versions, staleness = session.held
    facts = PipelineRankFacts(
        window_s=meter.ends_s[-1] - meter.ends_s[trial.num_warmup - 1],
        busy_s=meter.busy_s(trial.num_warmup),
        peak_stash=peak_stash,
        versions=versions,
        staleness=staleness,
        sent_bytes=session.num_sent_bytes / len(times_s),
    )
    rate_bps = trial.fabric.rate_bps
    costs = JobCosts(
        compute_s=facts.busy_s / num_measured,
        communication_s=8 * facts.sent_bytes / rate_bps if rate_bps else 0.0,
        solo_s=median(times_s[trial.num_warmup :]),
    )
    compute = [(span.start_s, span.end_s) for span in recorder.spans if span.track == "compute"]
    told = trial.jobs[place.job].system == "ours"  # another executor does not say what it computes and sends
    return RankResult(
        job=place.job,
        rank=place.rank,
        step_times_s=tuple(times_s),
        losses=trained.losses,
        evaluated=tuple(trained.evaluated),
        phases=Phases(
            compute_s=facts.busy_s / num_measured if told else None,
            exposed_s=measured.total_s("loop", "wait") / num_measured if told else None,
            turn_wait_s=measured.total_s("turn", "wait") / num_measured,
        ),
        num_messages=session.num_messages / len(times_s) if told else None,
        wire_bytes={"pipeline": facts.sent_bytes} if told else {},
        weights_digest=weights_digest(opened.model),
        num_parameters=sum(parameter.numel() for parameter in opened.model.parameters()),
        tensor_sizes=tuple(p.numel() for p in opened.model.parameters()) if place.rank == 0 else (),
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        start_s=meter.start_s,
        end_s=until_s,
        costs=costs if trial.num_cost_steps and told else None,
        turns=turns,  # type: ignore[arg-type]
        compute_times=tuple(merged(compute)) if place.arbiter_socket else (),
        spans=tuple(recorder.spans) if trial.trace else (),
        pipeline=facts,
    )
