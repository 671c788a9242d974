"""The training loop: the only one. Every system, workload, device and sharing goes through it.

    for each step:
        batch           ready before the turn is asked for, so no loader holds the device
        session.wait    the previous step's messages are complete, so no link holds it either
        ┌ turn ──────────────────────────────────────────────────────────────────────┐
        │ session.update (previous step) → forward → backward → device idle          │
        │                    (both once a micro-batch; the last one's gradients go)  │
        └────────────────────────────────────────────────────────────────────────────┘
        messages travel while other jobs have their turns, or the next step's start waits

Without sharing a turn costs nothing and this is synchronous SGD, step for step; with sharing the
arithmetic is the same, so each job's weights equal those of its run alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter, process_time, sleep

import torch
from torch import Tensor

from crossover import Extent, ReleasePoint, TurnTaking
from harness.systems.api import Session
from harness.trace import Recorder
from models.workload import Evaluation, Workload

OnStep = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long, how warm, how often to evaluate (0: never), how late the first step, when a turn on a GPU ends, how
    many micro-batches per step."""

    num_warmup: int
    num_steps: int
    evaluate_every: int = 0
    start_delay_s: float = 0.0
    release: ReleasePoint = ReleasePoint.EVENT
    num_micro_batches: int = 1


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Held-out loss and accuracy after `step` steps, `time_s` seconds of training in (None in lockstep)."""

    step: int
    time_s: float | None
    loss: float
    accuracy: float


@dataclass(slots=True)
class Run:
    """What one rank's loop saw. `ends_s[k]` is when step k's update was applied, which is when
    synchronous ranks agree on the time, or where it is spread over the next forward, when that began; evaluation is
    taken out."""

    start_s: float = 0.0
    ends_s: list[float] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    evaluated: list[Evaluated] = field(default_factory=list)
    measured_from_s: float = 0.0
    measured_from_cpu_s: float = 0.0
    measured_until_s: float = 0.0
    measured_until_cpu_s: float = 0.0
    end_s: float = 0.0

    def note_update(self, num_steps: int, now_s: float) -> None:
        """The first `num_steps` steps are applied, the last of them just now or as noted before."""
        if len(self.ends_s) < num_steps:
            self.ends_s.append(now_s)

    def step_times_s(self) -> list[float]:
        """Seconds from one step's update to the next one's, the first from the start."""
        return [end - start for start, end in itertools.pairwise([self.start_s, *self.ends_s])]


def train(
    session: Session,
    workload: Workload,
    turns: TurnTaking,
    schedule: Schedule,
    *,
    rank: int,
    world: int,
    seed: int,
    recorder: Recorder,
    on_step: OnStep,
    evaluate: Callable[[], Evaluation | None],
) -> Run:
    """Train `schedule.num_warmup + num_steps` steps and leave the weights as after the last one."""
    run = Run(start_s=perf_counter())
    batches = workload.batches(rank, world, seed)
    sleep(schedule.start_delay_s)
    paused_s, num_micro_batches = 0.0, schedule.num_micro_batches
    for step in range(schedule.num_warmup + schedule.num_steps):
        loss, micro_batches = torch.zeros(()), list(itertools.islice(batches, num_micro_batches))
        with recorder.span("loop", "wait"):
            session.wait()
        with recorder.span("turn", "wait"):
            lease = turns.acquire()
        if step == 0:
            run.start_s = perf_counter()
        with recorder.span("compute", "update"):
            session.update()
        # Step k's update is applied in turn k + 1, so its end is noted here.
        run.note_update(step, perf_counter() - paused_s)
        # Behind the last warm-up update, so that no part of a warm-up step is measured.
        if step == schedule.num_warmup:
            run.measured_from_s, run.measured_from_cpu_s = perf_counter(), process_time()
        for number, batch in enumerate(micro_batches, start=1):
            last = number == num_micro_batches
            session.begin_micro_batch(last=last)
            with recorder.span("compute", "forward"):
                part = workload.loss(session.model, batch) / num_micro_batches
            # Sharings whose turns cover the forward alone let others compute beside backward.
            if last and turns.extent is Extent.FORWARD:
                _until_idle(part, schedule.release)
                turns.release(lease)
            with recorder.span("compute", "backward"):
                session.backward(part)
                _until_idle(part, schedule.release)
            loss = loss + part.detach()
        # Sharings that hold a turn until the messages are through overlap nothing between jobs.
        if turns.extent is Extent.MESSAGES:
            session.wait()
        if turns.extent is not Extent.FORWARD:
            turns.release(lease)
        run.losses.append(loss)
        on_step(step)
        if schedule.evaluate_every and (step + 1) % schedule.evaluate_every == 0:
            # Evaluation needs the weights after this step, whose update would otherwise come with the next one.
            session.finish()
            run.note_update(step + 1, perf_counter() - paused_s)
            paused_s += _evaluate(run, evaluate)
    _end(run, session, turns, recorder, paused_s)
    return run


def _end(run: Run, session: Session, turns: TurnTaking, recorder: Recorder, paused_s: float) -> None:
    """The last step's messages and update; what another step would hide behind its forward is in no step."""
    with recorder.span("loop", "wait"):
        session.wait()
    with turns.turn():
        with recorder.span("compute", "update"):
            session.update()
        run.note_update(len(run.losses), perf_counter() - paused_s)
        run.measured_until_s, run.measured_until_cpu_s = perf_counter(), process_time()
        with recorder.span("compute", "update"):
            session.finish()
    run.end_s = perf_counter()


def _until_idle(loss: Tensor, release: ReleasePoint) -> None:
    """Released means that the device is idle, not that Python returned; `launch` shows the difference."""
    if loss.is_cuda and release is ReleasePoint.EVENT:
        torch.cuda.current_stream(loss.device).synchronize()  # messages on streams of their own may go on


def _evaluate(run: Run, evaluate: Callable[[], Evaluation | None]) -> float:
    """Evaluate; returns the seconds it took, which are not training, nor is its processor time."""
    start_s, start_cpu_s = perf_counter(), process_time()
    trained_s = run.ends_s[-1] - run.start_s
    evaluation = evaluate()
    if evaluation is not None:
        run.evaluated.append(Evaluated(len(run.ends_s), trained_s, evaluation.loss, evaluation.accuracy))
    run.measured_from_cpu_s += process_time() - start_cpu_s
    return perf_counter() - start_s
