"""One rank of a split job as a process: from a seat in a trial to its result. The counterpart of `split_trial`."""

from __future__ import annotations

import copy
import resource
from contextlib import closing
from dataclasses import replace
from itertools import accumulate
from time import perf_counter
from typing import NamedTuple

from harness.lab.rank import Place, RankResult, Signals
from harness.splits.groups import ProcessGroup
from harness.splits.split_learning import (
    SplitLearnt,
    distance_from_one_device,
    open_training,
    split_network,
    train_rank,
)
from harness.splits.split_replay import SplitReplay
from harness.splits.split_trial import planned_split, splitting_of
from harness.splits.splitting import SplitPlan
from harness.trace import Recorder
from harness.trial import Trial
from models.device import VirtualDevice
from models.values import Device
from results.record import Phases


class _Sent(NamedTuple):
    """By this rank in a step, each of which is like the first."""

    num_messages: int
    num_bytes: float


def run_split_rank(trial: Trial, place: Place, signals: Signals) -> RankResult:
    """Train one rank of `trial`'s split job and report; the first one then trains the network whole, to compare. The
    process group must be up. Raises: ParallelismError for a plan that nothing executes."""
    (job,), (plan, _) = trial.jobs, planned_split(trial)
    recorder = Recorder()
    replayed = job.workload.device is Device.REPLAY
    learnt, sent = (_replay if replayed else _train)(trial, plan, place, signals, recorder)
    # Between steps the weights are put together for an evaluation, which is no part of any.
    measured = learnt.times_s[trial.num_warmup :]
    waited_s = sum(recorder.between(*step).total_s("loop", "wait") for step in measured) / trial.num_steps_of(0)
    times_s = tuple(end - start for start, end in learnt.times_s)
    step_s = sum(times_s[trial.num_warmup :]) / trial.num_steps_of(0)
    ends_s = (0.0, *accumulate(times_s))
    return RankResult(
        job=place.job,
        rank=place.rank,
        step_times_s=times_s,
        losses=tuple(learnt.losses),
        evaluated=tuple(replace(own, time_s=ends_s[own.step]) for own in learnt.evaluated),
        phases=Phases(compute_s=step_s - waited_s, exposed_s=waited_s),
        num_messages=sent.num_messages,
        wire_bytes={"split": sent.num_bytes},
        weights_digest=learnt.digest,
        num_parameters=learnt.num_parameters,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        start_s=learnt.times_s[0][0],
        end_s=learnt.times_s[-1][1],
        spans=tuple(recorder.spans) if trial.trace else (),
        distance=learnt.distance,
    )


def _replay(
    trial: Trial, plan: SplitPlan, place: Place, signals: Signals, recorder: Recorder
) -> tuple[SplitLearnt, _Sent]:
    (job,) = trial.jobs
    learnt, num_steps = SplitLearnt(), trial.num_warmup + trial.num_steps_of(0)
    replay = SplitReplay(
        plan,
        VirtualDevice.local(),
        recorder,
        size_scale=job.workload.size_scale,
        overlap=splitting_of(job).overlap,
        is_virtual=trial.fabric.num_virtual > 0,
    )
    with closing(replay):
        # Groups are there by now: no first step pays for them.
        signals.ready()
        for step in range(num_steps):
            start_s = perf_counter()
            replay.step()
            learnt.times_s.append((start_s, perf_counter()))
            signals.step(step)
    return learnt, _Sent(replay.num_messages // num_steps, replay.num_sent_bytes / num_steps)


def _train(
    trial: Trial, plan: SplitPlan, place: Place, signals: Signals, recorder: Recorder
) -> tuple[SplitLearnt, _Sent]:
    group, sent = ProcessGroup(recorder), list[_Sent]()

    def on_step(step: int) -> None:
        sent.append(_Sent(group.num_messages, group.num_sent_bytes))
        signals.step(step)

    training = open_training(trial, [config.splits() for config in plan.configs], on_step)
    alone, own = copy.deepcopy(training.model), split_network(training, group)
    signals.ready()
    learnt = train_rank(training, own)
    if place.rank == 0:
        learnt.distance = distance_from_one_device(training, alone)
    return learnt, sent[0]
