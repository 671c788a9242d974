"""From what the ranks reported to the record of the trial. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from crossover import JobCost, Sharing, bound
from crossover.theory import predicted
from fabric.api import FabricKind, NetworkSpec
from harness.calibrate import LinkModel
from harness.facts import asked_of
from harness.lab.messages import Answer, Ending
from harness.lab.rank import RankResult
from harness.parallel.trial_facts import pipeline_facts
from harness.splits.split_trial import split_facts
from harness.trial import Trial
from harness.turns import busy_share, common_window, handovers_s, percentiles_s
from models.workload import Device
from results.codec import to_jsonable
from results.record import (
    Adapted,
    CurvePoint,
    Environment,
    FabricFacts,
    JobCosts,
    JobResult,
    Prediction,
    RankTimes,
    Record,
    SharingFacts,
    Status,
)

STATUS = {
    Ending.DONE: Status.OK,
    Ending.FAILED: Status.ERROR,
    Ending.TIMEOUT: Status.TIMEOUT,
    Ending.INTRUDED: Status.INVALID,
    Ending.UNAVAILABLE: Status.SKIPPED,
}
LABELS = {
    FabricKind.NATIVE: "measured",
    FabricKind.EMULATED: "emulated",
    FabricKind.PACED: "paced",
    FabricKind.LOCKSTEP: "lockstep",
    FabricKind.SIMULATED: "simulated",
}


@dataclass(frozen=True, slots=True)
class Background:
    """What a record says beside the trial's own results."""

    environment: Environment
    link: LinkModel | None = None
    costs: tuple[JobCosts, ...] = ()
    prediction: Prediction | None = None


def skipped(trial: Trial, reason: str, background: Background) -> Record:
    """The record of a trial that this machine cannot run."""
    return record_of(trial, Answer(ending=Ending.UNAVAILABLE, reason=reason), background)


def record_of(trial: Trial, answer: Answer, background: Background) -> Record:
    """The record of a finished trial; `background.costs` are the jobs' own, measured alone. A trial in which each runs
    alone has measured them itself."""
    # A server trains nothing: its weights, losses and times would be compared with the workers'.
    servers = [rank for rank in answer.ranks if rank.serves]
    answer = replace(answer, ranks=tuple(rank for rank in answer.ranks if not rank.serves))
    status, reason = _verdict(trial, answer)
    done = answer.ending is Ending.DONE and status is not Status.ERROR
    facts = sharing_facts(trial, answer.ranks) if done and trial.sharing is not None else None
    measured = costs_of(answer.ranks)
    known = (measured, background.costs) if trial.sharing is Sharing.EXCLUSIVE else (background.costs, measured)
    return replace(
        bare_record(trial, status, fabric_facts(trial, background.link), background.environment),
        reason=reason,
        jobs=tuple(
            _job_result(trial, index, answer, [rank for rank in servers if rank.job == index], background.prediction)
            for index in range(len(trial.jobs))
        ),
        makespan_s=_makespan_s(trial, answer.ranks) if done and _has_makespan(trial) else None,
        prediction=background.prediction or (_prediction(trial, known[0] or known[1], facts) if done else None),
        sharing_facts=facts,
    )


def bare_record(trial: Trial, status: Status, fabric: FabricFacts, environment: Environment) -> Record:
    """What was asked for and where, before anything is said of what came of it."""
    return Record(
        id=trial.id,
        suite=trial.suite,
        cell=trial.cell,
        repeat=trial.repeat,
        seed=trial.seed,
        status=status,
        sharing=trial.sharing.value if trial.sharing else "none",
        link=trial.link.value if trial.sharing and trial.sharing.gates_link else "",
        axis=trial.axis,
        at=trial.at,
        fabric=fabric,
        trial=to_jsonable(trial),
        environment=environment,
    )


def fabric_facts(trial: Trial, link: LinkModel | None) -> FabricFacts:
    """The fabric with its honest label and what its link stands for."""
    spec, scale = trial.fabric, max((job.workload.size_scale for job in trial.jobs), default=1)
    replayed = any(job.workload.device is Device.REPLAY for job in trial.jobs)
    label = "replay" if replayed and spec.kind.has_processes else LABELS[spec.kind]
    if spec.network is not None:
        return _network_facts(trial, spec.network, scale)
    return FabricFacts(
        kind=spec.kind.value,
        label=label,
        num_hosts=spec.num_hosts,
        num_virtual=spec.num_ranks - spec.num_hosts,
        rate_bps=spec.rate_bps,
        equivalent_rate_bps=spec.rate_bps * scale if spec.rate_bps else None,
        size_scale=scale,
        alpha_s=link.alpha_s if link else None,
        beta_s_per_byte=link.beta_s_per_byte if link else None,
        fit_residual=link.residual if link else None,
        ranks_per_host=trial.ranks_per_host,
    )


def _network_facts(trial: Trial, network: NetworkSpec, scale: int) -> FabricFacts:
    """A named network: `rate_bps` is what a host's link carries of tensors that are `scale` times smaller."""
    from fabric.simulated.placed import place_network  # numba comes with it

    host_bps = place_network(network, trial.world, len(trial.jobs)).host_bps
    return FabricFacts(
        kind=trial.fabric.kind.value,
        label=LABELS[trial.fabric.kind],
        num_hosts=trial.fabric.num_hosts,
        rate_bps=host_bps / scale,
        equivalent_rate_bps=host_bps,
        size_scale=scale,
        ranks_per_host=trial.ranks_per_host,
        network=network.network_text,
        transport=network.transport,
        placement=network.placement_text,
    )


def costs_of(ranks: Sequence[RankResult]) -> tuple[JobCosts, ...]:
    """Each job's costs on its slowest rank, where they were measured."""
    jobs = sorted({rank.job for rank in ranks if rank.costs is not None})
    measured = [[r.costs for r in ranks if r.job == job and r.costs is not None] for job in jobs]
    return tuple(
        JobCosts(
            compute_s=max(c.compute_s for c in costs),
            communication_s=max(c.communication_s for c in costs),
            solo_s=max(c.solo_s for c in costs),
            interference=fmean(c.interference for c in costs),
        )
        for costs in measured
    )


def theory_cost(costs: JobCosts) -> JobCost:
    """The same as the theory takes it."""
    return JobCost(costs.compute_s, costs.communication_s, costs.solo_s)


def sharing_facts(trial: Trial, ranks: Sequence[RankResult]) -> SharingFacts:
    """What the turns of a host's jobs were like, on the host with the slowest hand-overs."""
    hosts = sorted({rank.rank for rank in ranks})
    # Turns are taken host by host, so only ranks of one host can hand over to each other.
    facts = [_host_facts([rank for rank in ranks if rank.rank == host]) for host in hosts]
    rules = {name: to_jsonable(getattr(trial, name)) for name in ("shares", "groups", "beats") if getattr(trial, name)}
    worst = max(facts, key=lambda own: own.handover_p50_s or 0.0)
    return replace(worst, rules=json.dumps(rules) if rules else "")


def _host_facts(ranks: Sequence[RankResult]) -> SharingFacts:
    jobs = [rank.turns for rank in ranks]
    window, latencies_s = common_window(jobs), handovers_s(jobs)
    p50_s, p99_s = percentiles_s(latencies_s)
    return SharingFacts(
        num_handovers=len(latencies_s),
        handover_p50_s=p50_s,
        handover_p99_s=p99_s,
        device_busy=busy_share((times for rank in ranks for times in rank.compute_times), window),
        link_busy=busy_share((times for rank in ranks for times in rank.link_times), window),
        peak_memory_bytes=sum(rank.peak_memory_bytes for rank in ranks),
    )


def _verdict(trial: Trial, answer: Answer) -> tuple[Status, str]:
    if answer.ending is not Ending.DONE:
        return STATUS[answer.ending], answer.reason
    for index, job in enumerate(trial.jobs):
        ranks = [rank for rank in answer.ranks if rank.job == index]
        if not ranks:  # the others go on without one that is lost, until nobody is left
            return (
                Status.ERROR,
                f"job {job.name}: every worker was lost; look for what ended them, e.g. too little memory",
            )
        if any(not math.isfinite(loss) for rank in ranks for loss in rank.losses):
            return Status.DIVERGED, f"job {job.name}: the loss is not finite; use a smaller learning rate"
        # Buffers are not in the digest; parameters of synchronous training are equal on all ranks, bit for bit.
        if job.system != "local" and len({rank.weights_digest for rank in ranks}) > 1:
            return Status.ERROR, f"job {job.name}: ranks ended with different weights, which synchronous SGD must not"
    return Status.OK, ""


def _job_result(
    trial: Trial, index: int, answer: Answer, servers: Sequence[RankResult], prediction: Prediction | None
) -> JobResult:
    job, is_timed = trial.jobs[index], trial.is_timed
    ranks = [rank for rank in answer.ranks if rank.job == index]
    asked = asked_of(job, trial.num_steps_of(index), trial.num_ranks, ranks[0].tensor_sizes if ranks else ())
    if not ranks:
        return asked
    # Synchronous ranks wait for the slowest, so its phases explain the step.
    slowest = max(ranks, key=lambda rank: sum(rank.step_times_s[trial.num_warmup :]))
    # Clocks of one machine are common, and only differences mean something.
    zero_s = min(rank.start_s for rank in answer.ranks)
    num_steps = trial.num_warmup + trial.num_steps_of(index)
    # Interfaces do not know jobs: what crossed one belongs to a job only if there was one.
    alone = answer.sent_bytes is not None and len(trial.jobs) == 1
    predicted_s = prediction.step_time_s if prediction is not None and not is_timed else None
    return replace(
        asked,
        num_parameters=ranks[0].num_parameters,
        ranks=tuple(_times(rank, trial.num_warmup) for rank in ranks) if is_timed else (),
        phases=slowest.phases,
        num_messages=ranks[0].num_messages,
        num_control_rounds=ranks[0].num_control_rounds,
        num_rounds=ranks[0].num_rounds,
        # The rank that sends most sets the pace, a server too.
        wire_bytes=max((rank.wire_bytes for rank in (*ranks, *servers)), key=lambda sent: sum(sent.values())),
        num_servers=len(servers),
        interface_bytes=max(answer.sent_bytes or ()) / num_steps if alone else None,
        curve=tuple(_curve(ranks) if is_timed else _untimed_curve(ranks, predicted_s)),
        clock=_clock(trial, predicted_s),
        consistency=next((rank.consistency for rank in (*ranks, *servers) if rank.consistency is not None), None),
        pipeline=pipeline_facts(trial, index, ranks) if job.pipelining is not None else None,
        split=split_facts(trial, tuple(ranks)) if job.splitting is not None else None,
        weights_digest=ranks[0].weights_digest,
        notes={name: text for rank in reversed(ranks) for name, text in rank.notes.items()},
        adaptation=ranks[0].adaptation,
        tuned=tuned_of(ranks[0].adaptation),
        num_skipped_steps=ranks[0].num_skipped,
        loss_scale=ranks[0].loss_scale,
        peak_memory_bytes=max(rank.peak_memory_bytes for rank in ranks),
        gpu_allocated_bytes=max(rank.gpu_memory.peak_allocated_bytes for rank in ranks),
        gpu_reserved_bytes=max(rank.gpu_memory.peak_reserved_bytes for rank in ranks),
        costs=next(iter(costs_of(ranks)), None),
        start_s=min(rank.start_s for rank in ranks) - zero_s,
        end_s=max(rank.end_s for rank in ranks) - zero_s,
    )


def _has_makespan(trial: Trial) -> bool:
    """Whether jobs of this trial begin and end on one clock."""
    return bool(trial.jobs) and (trial.fabric.kind.has_clock or trial.is_partitioned)


def _clock(trial: Trial, predicted_s: float | None) -> str:
    """What the curve's times are."""
    if trial.fabric.kind.has_processes:
        return "measured"
    if trial.is_timed:
        return "virtual"
    return "none" if predicted_s is None else "predicted"


def tuned_of(adaptation: Sequence[Adapted]) -> Mapping[str, float]:
    """The settings that a tuner kept last; none where none did."""
    return next((one.values for one in reversed(adaptation) if one.what == "chosen"), {})


def _times(rank: RankResult, num_warmup: int) -> RankTimes:
    return RankTimes(rank=rank.rank, warmup_s=rank.step_times_s[:num_warmup], steps_s=rank.step_times_s[num_warmup:])


def _curve(ranks: Sequence[RankResult]) -> list[CurvePoint]:
    """Training loss, mean over ranks, at every step; held-out loss and accuracy where evaluated. Nothing where only
    times were computed."""
    # A replayed pipeline on the clock has no arithmetic, and so no loss.
    if not ranks[0].losses:
        return []
    points, time_s = [], 0.0
    losses = list(zip(*(rank.losses for rank in ranks), strict=True))
    for step, (step_s, loss) in enumerate(zip(ranks[0].step_times_s, losses, strict=True), start=1):
        time_s += step_s
        points.append(CurvePoint(step=step, time_s=time_s, loss=sum(loss) / len(loss)))
    points += [CurvePoint(step=e.step, time_s=e.time_s, loss=e.loss, accuracy=e.accuracy) for e in ranks[0].evaluated]
    return points


def _untimed_curve(ranks: Sequence[RankResult], step_s: float | None) -> list[CurvePoint]:
    """The same in lockstep, where a step takes `step_s` or nobody knows how long."""
    losses, sent = list(zip(*(rank.losses for rank in ranks), strict=True)), ranks[0].sent_bytes

    def point(step: int, loss: float, accuracy: float | None = None) -> CurvePoint:
        time_s = None if step_s is None else step * step_s
        return CurvePoint(step=step, time_s=time_s, loss=loss, accuracy=accuracy, sent_bytes=sent[step - 1])

    trained = [point(step, sum(loss) / len(loss)) for step, loss in enumerate(losses, start=1)]
    return trained + [point(e.step, e.loss, e.accuracy) for e in ranks[0].evaluated]


def _makespan_s(trial: Trial, ranks: Sequence[RankResult]) -> float:
    """From the first job's first turn to the last job's last step; in exclusive sharing the sum of
    the jobs' own times, since cost measurements lie between them."""
    spans = []
    for index in range(len(trial.jobs)):
        own = [rank for rank in ranks if rank.job == index]
        spans.append((min(r.start_s for r in own), max(r.end_s for r in own)))
    if trial.sharing is Sharing.EXCLUSIVE:
        return sum(end - start for start, end in spans)
    return max(end for _, end in spans) - min(start for start, _ in spans)


def _prediction(trial: Trial, solo: Sequence[JobCosts], facts: SharingFacts | None) -> Prediction | None:
    if trial.sharing is None or len(solo) != len(trial.jobs):
        return None
    # T* is of one device and one link, and jobs on hosts of their own share neither as a whole
    if trial.fabric.network is not None and trial.fabric.network.own_hosts:
        return None
    costs = [theory_cost(own) for own in solo]
    best = bound(costs)
    expected = None
    if trial.sharing is not Sharing.EXCLUSIVE and trial.sharing.takes_turns:
        handover_s = (facts.handover_p50_s if facts else None) or 0.0
        expected = predicted(costs, handover_s=handover_s, interference=fmean(own.interference for own in solo))
    terms = "; ".join(
        f"{job.name}: c {1e3 * cost.compute_s:.1f} ms, m {1e3 * cost.communication_s:.1f} ms, "
        f"t {1e3 * cost.solo_s:.1f} ms"
        for job, cost in zip(trial.jobs, costs, strict=True)
    )
    source = f"T* = max(Σc, Σm, max t) from each job measured alone, {terms}; limited by {best.limiting}"
    return Prediction(
        source=source,
        period_s=best.period_s,
        gain=best.gain,
        expected_period_s=expected.period_s if expected else None,
        expected_gain=expected.gain if expected else None,
    )
