"""One rank: from a seat in a trial to its result. Runs in a process of its own on its host."""

from __future__ import annotations

import hashlib
import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import nn

from baselines.api import IN_FLOAT32
from baselines.strategy import taken_by
from crossover import Alone, Participant, Resource, TurnTaking
from fabric.api import FabricSpec, Host
from fabric.paced import PACED
from harness.engine.layout import check_types, trainable_parameters
from harness.engine.link_turns import LinkTurns
from harness.lab.gpu import GpuMemory, logged_turns, own_times, peak_memory, until_idle
from harness.lab.interference import other_communication
from harness.lab.meeting import Meeting, join
from harness.lab.serving import serve
from harness.loop import Evaluated, Run, Schedule, train
from harness.paced.group import register
from harness.paced.pacing import pacing_of
from harness.precision import in_precision
from harness.predict.codecs import Charge, Charged, charge_of
from harness.systems import system_of
from harness.systems.api import Compresses, RankSeat, Session
from harness.trace import Recorder, Span, covered_s
from harness.trial import Link, Trial
from harness.turns import Turn, merged
from models.device import VirtualDevice
from models.replay import ReplayWorkload
from models.workload import Device, Workload, open_workload
from results.facts import PipelineRankFacts
from results.record import Adapted, ConsistencyFacts, JobCosts, Phases


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this process sits: job and rank, its host, its core or GPU there (`slot`), where the job's ranks meet, the
    host's sockets, a folder that is removed after the trial."""

    job: int
    rank: int
    host: Host
    slot: int
    meeting: Meeting = field(default_factory=Meeting)
    arbiter_socket: str = ""
    device_socket: str = ""
    link_socket: str = ""
    scratch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """What one rank reports; plain values. In lockstep there are no step times, and rank 0 tells the bytes that the
    rank which sent most had sent after each step. Rank 0 alone tells `tensor_sizes`, the elements of each parameter.
    `distance` is how far a split network's weights are from those of one device, relative to their norm."""

    job: int
    rank: int
    step_times_s: tuple[float, ...]
    losses: tuple[float, ...]
    evaluated: tuple[Evaluated, ...]
    phases: Phases
    num_messages: float | None
    wire_bytes: Mapping[str, float]
    weights_digest: str
    num_parameters: int
    peak_memory_bytes: int
    start_s: float
    end_s: float
    gpu_memory: GpuMemory = field(default_factory=GpuMemory)
    costs: JobCosts | None = None
    turns: tuple[Turn, ...] = ()
    compute_times: tuple[tuple[float, float], ...] = ()
    link_times: tuple[tuple[float, float], ...] = ()
    spans: tuple[Span, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    adaptation: tuple[Adapted, ...] = ()
    num_skipped: int = 0
    loss_scale: float | None = None
    serves: bool = False
    sent_bytes: tuple[float, ...] = ()
    num_control_rounds: float | None = None
    num_rounds: float | None = None
    consistency: ConsistencyFacts | None = None
    pipeline: PipelineRankFacts | None = None
    distance: float | None = None
    tensor_sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Signals:
    """How a rank talks to the lab: `ready` blocks until every rank of the trial is."""

    ready: Callable[[], None]
    step: Callable[[int], None] = field(default=lambda step: None)


def join_group(place: Place, fabric: FabricSpec, world: int, timeout_s: float, backend: str = "gloo") -> None:
    """Bring up the default process group; gloo listens on the host's own interface. On the paced fabric the backend is
    `paced`, and with virtual peers the group counts them too.

    Raises: StrangerError.
    """
    # gloo would take the address of the host's name, which on a real machine may be the loopback's.
    os.environ["GLOO_SOCKET_IFNAME"] = place.host.interface
    store = place.meeting.store(world, timeout_s)
    pacing = pacing_of(fabric, place.link_socket)
    if pacing is not None:
        register()
        backend, world = PACED, pacing.link.num_ranks
    join(store, place.rank, world, backend=backend, timeout=timedelta(seconds=timeout_s), options=pacing)


def rank_seed(seed: int, rank: int) -> int:
    """Of torch's global generators in a rank's process."""
    return seed * 1_000_003 + rank


def run_rank(trial: Trial, place: Place, signals: Signals) -> RankResult:
    """Train one job's rank of `trial` and report. The process group must be up."""
    job, num_workers = trial.jobs[place.job], trial.num_workers_of(place.job)
    if job.workload.device is Device.CUDA:
        torch.cuda.set_device(place.slot)
    # Dropout and the like: ranks must not draw alike. Initial weights come from the trial's seed and are alike.
    torch.manual_seed(rank_seed(trial.seed, place.rank))
    workload = _open(trial, place)
    model = workload.build_model(trial.seed)
    recorder = Recorder()
    seat = RankSeat(
        rank=place.rank,
        world=trial.world,
        host=place.host,
        seed=trial.seed,
        strategy=job.resolve(),
        link=_link_turns(trial, place),
        accumulate=job.accumulate,
        clip_norm=job.clip_norm,
        precision=job.precision,
        scratch=Path(place.scratch) if place.scratch else None,
        paused=workload.device.pause if isinstance(workload, ReplayWorkload) else lambda: None,
        recorder=recorder,
        compressor=_compressor(trial, place, workload),
        size_scale=job.workload.size_scale,
    )
    system = system_of(job.system)
    if job.system != "ours":  # whose engine asks all plug-ins
        compresses = isinstance(system, Compresses) and system.compresses
        own = {job.system: IN_FLOAT32} if compresses else {}
        check_types(trainable_parameters(model), taken_by([seat.strategy.optimizer]) | own)
    session = system.prepare(model, seat)
    # The loop always takes turns; alone they cost nothing.
    seated = Participant(place.arbiter_socket, job.name) if place.arbiter_socket else Alone()
    turns = logged_turns(seated, job.workload.device)
    with turns:
        signals.ready()
        if place.rank >= num_workers:
            run = serve(session, _schedule(trial, place.job), on_step=signals.step)
        else:
            run = train(
                session,
                workload,
                turns,
                _schedule(trial, place.job),
                rank=place.rank,
                world=num_workers,
                seed=trial.seed,
                recorder=recorder,
                on_step=signals.step,
                evaluate=lambda: workload.evaluate(model),
            )
        # Before costs are measured: those steps change weights, traffic and peak memory.
        trained = _summary(trial, place, run, recorder, session, model)
        own_turns = own_times(turns)
        costs = _measure_costs(trial, session, workload, turns, run.step_times_s()[trial.num_warmup :], place)
        session.close()
    return replace(trained, costs=costs, turns=own_turns if place.arbiter_socket else ())


def _schedule(trial: Trial, job: int) -> Schedule:
    return Schedule(
        num_warmup=trial.num_warmup,
        num_steps=trial.num_steps_of(job),
        evaluate_every=trial.evaluate_every,
        start_delay_s=trial.jobs[job].start_delay_s,
        release=trial.release,
        num_micro_batches=trial.jobs[job].accumulate,
    )


def _summary(
    trial: Trial, place: Place, run: Run, recorder: Recorder, session: Session, model: nn.Module
) -> RankResult:
    """What the training alone left behind, before anything else is measured in its session."""
    times_s = run.step_times_s()
    traffic, scaled = session.traffic, session.loss_scale
    return RankResult(
        job=place.job,
        rank=place.rank,
        step_times_s=tuple(times_s),
        losses=tuple(float(loss) for loss in run.losses),
        evaluated=tuple(run.evaluated),
        phases=_phases(run, recorder, trial.num_steps_of(place.job), session=session),
        num_messages=traffic.num_messages / len(times_s) if traffic else None,
        num_control_rounds=traffic.num_control_rounds / len(times_s) if traffic else None,
        num_rounds=traffic.num_rounds / len(times_s) if traffic else None,
        wire_bytes={t: n / len(times_s) for t, n in traffic.wire_bytes.items()} if traffic else {},
        weights_digest=weights_digest(model),
        num_parameters=sum(p.numel() for p in model.parameters()),
        tensor_sizes=tuple(p.numel() for p in model.parameters()) if place.rank == 0 else (),
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        start_s=run.start_s,
        end_s=run.end_s,
        gpu_memory=peak_memory(trial.jobs[place.job].workload.device),
        compute_times=_times_of(recorder, "compute") if place.arbiter_socket else (),
        link_times=_times_of(recorder, "lane") if place.arbiter_socket else (),
        spans=tuple(recorder.spans) if trial.trace else (),
        notes=dict(session.notes),
        adaptation=session.adapted,
        num_skipped=scaled.num_skipped if scaled else 0,
        loss_scale=scaled.scale if scaled else None,
        serves=place.rank >= trial.num_workers_of(place.job),
    )


def _compressor(trial: Trial, place: Place, workload: Workload) -> Charged | None:
    """In replay the job's compressor, charged to the virtual device."""
    job = trial.jobs[place.job]
    charge = charge_of(job, trial.num_ranks)
    if not isinstance(charge, Charge) or not isinstance(workload, ReplayWorkload):
        return None
    return Charged(job.resolve().compression, charge, workload.device)


def _link_turns(trial: Trial, place: Place) -> LinkTurns | None:
    job = trial.jobs[place.job]
    if trial.sharing is None or not trial.sharing.gates_link or trial.link is not Link.FIFO or job.system != "ours":
        return None
    return LinkTurns(Participant(place.arbiter_socket, job.name, resource=Resource.LINK))


def _open(trial: Trial, place: Place) -> Workload:
    spec = trial.jobs[place.job].workload
    shared = spec.device is Device.REPLAY and place.device_socket
    workload = open_workload(spec, device=VirtualDevice.connect(Path(place.device_socket)) if shared else None)
    return in_precision(workload, trial.jobs[place.job].precision)


def _on_lanes(recorder: Recorder) -> list[Span]:
    return [span for span in recorder.spans if span.track.startswith("lane")]


def _times_of(recorder: Recorder, track: str) -> tuple[tuple[float, float], ...]:
    """When there was something on tracks of this name."""
    return tuple(merged((span.start_s, span.end_s) for span in recorder.spans if span.track.startswith(track)))


def _phases(run: Run, recorder: Recorder, num_steps: int, *, session: Session) -> Phases:
    """Mean seconds per step over the measured steps; None for what the system does not let us see."""
    recorder = recorder.between(run.measured_from_s, run.measured_until_s)
    ours = session.traffic is not None
    waited = "exposed" if ours else "wait"  # the engine also waits inside a forward
    told = session.separates_waiting
    return Phases(
        compute_s=recorder.total_without_s("compute", ("loop", waited)) / num_steps if told else None,
        communication_s=covered_s(_on_lanes(recorder)) / num_steps if ours else None,
        exposed_s=recorder.total_s("loop", waited) / num_steps if told else None,
        turn_wait_s=recorder.total_s("turn", "wait") / num_steps,
        compress_s=recorder.total_s("codec") / num_steps if ours else None,
        decompress_s=recorder.total_s("codec", "decode") / num_steps if ours else None,
        cpu_s=(run.measured_until_cpu_s - run.measured_from_cpu_s) / num_steps,
    )


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over the parameters' bytes, in order of name. Buffers (BatchNorm statistics) are local."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        # As bytes: equal digests mean equal bits, which a comparison of numbers would not for NaN or −0.
        digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _measure_costs(
    trial: Trial, session: Session, workload: Workload, turns: TurnTaking, times_s: list[float], place: Place
) -> JobCosts | None:
    """c, m and t of this job alone, after its training; keeps the turn so that nobody computes beside it."""
    if not trial.num_cost_steps:
        return None
    num_workers = trial.num_workers_of(place.job)
    with_others = workload.spec.device is not Device.REPLAY and trial.world > 1
    if place.rank >= num_workers:
        _times(session.exchange_once, trial.num_cost_steps)
        # The other ranks' traffic is measured beside, so a server takes part in it, and computes nothing.
        if with_others:
            with other_communication():
                return None
        return None
    batches = workload.batches(place.rank, num_workers, trial.seed)
    lease = turns.acquire()
    exchange_s = _times(session.exchange_once, trial.num_cost_steps)
    session.mute(True)

    num_micro_batches = trial.jobs[place.job].accumulate

    def compute() -> None:
        session.update()
        for _ in range(num_micro_batches):
            session.backward(workload.loss(session.model, next(batches)) / num_micro_batches)
        until_idle(workload.spec.device)

    compute_s = median(_times(compute, trial.num_cost_steps)[1:])
    beside_s = compute_s
    if with_others:
        with other_communication():
            beside_s = median(_times(compute, trial.num_cost_steps)[1:])
    session.mute(False)
    turns.release(lease)
    return JobCosts(
        compute_s=compute_s,
        communication_s=median(exchange_s[1:]),
        solo_s=median(times_s),
        interference=max(0.0, beside_s / compute_s - 1),
    )


def _times(action: Callable[[], None], count: int) -> list[float]:
    times_s = []
    for _ in range(count + 1):
        start_s = perf_counter()
        action()
        times_s.append(perf_counter() - start_s)
    return times_s
