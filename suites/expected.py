"""How long a trial takes, before it is run: what `--dry-run` and the first guess of the progress bar say.

A step's computation is the profile's, its link time that of the messages which its own packing plans, each α + β·bytes
by the strategy's exchange, and the step the longer of computation and of forward with all link time after it (messages
hide behind backward). Neither overlap across steps nor queues are looked at: `harness.predict` does, and takes seconds
for a suite where this takes a fraction of one. Costs are nominal ones of emulated hosts on a small machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from baselines.api import Message
from baselines.strategy import Strategy
from crossover import Sharing
from fabric.api import FabricKind, FabricSpec
from harness.collectives.ranks import NUM_ROWS, ROW_S, SIZES
from harness.engine.dispatch import PlanError, make_plan
from harness.parallel.trial_facts import clocked
from harness.predict.calibration import NUM_REPEATS, RING_ROWS
from harness.predict.codecs import with_charge
from harness.predict.costs import RING_STEPS, LinkCosts, PredictError, given_costs
from harness.predict.demand import Demands
from harness.predict.layers import Layers, layers_of_workload, plain_layers
from harness.predict.worker import bound
from harness.trial import Job, TimedCollective, Trial
from models.networks import find_network
from models.workload import Device, WorkloadSpec
from results.collectives import bus_factor
from results.lines import PAYLOAD_SHARE

HOP_S = 6e-4  # α of one ring step: medians of 0.7–1.5 ms over 2 and 8 reference hosts, less what lanes overlap
OVERHEAD = 1.1  # updates, copies, waking up
UNSHAPED_BPS = 8e9  # loopback
START_S, HOST_S = 0.15, 0.1  # of a trial, and more for each of its hosts
LIBRARY_START_S = 6.0  # hosts, and processes that import torch and meet
OPEN_S = 3.0  # hosts and links, once a fabric
MACHINE_S = 34.0  # what surrounds a paced link, measured on this machine (`harness.predict.paced`)
BIND_S, PROPOSE_S = 1.0, 0.15  # measuring costs while training, and a tuner's thinking about a trial
NEGOTIATED_MESSAGES = 4  # about as many a step where no plan says it, in other systems too
SAMPLE_S = {"resnet20": 2.3e-4, "resnet20_zero_gamma": 2.3e-4, "bert_tiny": 4.4e-3}  # forward and backward on one core
OTHER_SAMPLE_S = 2e-3
VIRTUAL_STEP_S = 0.05  # of a job on a simulated network
TRAFFIC_S = 1.0  # of a few million events of the packet engine
PROBLEM_S = 1.0  # of a paper's own problem
PASS_S = 10e-3  # forward and backward of a real network, however few its samples
EVERYTHING_ELSE = 1.7  # rows of micro-benchmarks beside those of all-reduce, in time of these


@dataclass(frozen=True, slots=True)
class StepParts:
    """Seconds of one step of a job alone."""

    forward_s: float
    compute_s: float
    link_s: float

    @property
    def step_s(self) -> float:
        """Messages hide behind backward and not behind forward."""
        return OVERHEAD * max(self.compute_s, self.forward_s + self.link_s)


def expected_s(trial: Trial) -> float:
    """Seconds from the start of a trial to its record, on a fabric that is up and calibrated."""
    if trial.traffic is not None:
        return START_S + TRAFFIC_S
    if trial.problem is not None:
        return START_S + PROBLEM_S
    if trial.fabric.kind is FabricKind.SIMULATED:
        return START_S + len(trial.jobs) * (trial.num_warmup + trial.num_steps) * VIRTUAL_STEP_S
    if trial.collective is not None:
        return _collective_s(trial, trial.collective)
    if trial.is_pipelined:
        return _pipelined_s(trial)
    if trial.is_split and trial.jobs[0].workload.device is Device.REPLAY:
        return START_S  # its clock's steps take no time
    if not trial.fabric.kind.has_processes:
        return START_S + (trial.num_warmup + trial.num_steps) * trial.world * _in_lockstep_s(trial.jobs[0])
    parts = [step_parts(job, trial.fabric, trial.num_ranks) for job in trial.jobs]
    num_steps = [trial.num_warmup + trial.num_steps_of(place) for place in range(len(parts))]
    run_s = sum(num * part.step_s for num, part in zip(num_steps, parts, strict=True))
    if trial.sharing is not Sharing.EXCLUSIVE:
        period_s = max(
            sum(part.compute_s for part in parts), sum(part.link_s for part in parts), *(part.step_s for part in parts)
        )
        run_s = max(num_steps) * period_s
    alone_s = 2 * trial.num_cost_steps * sum(part.step_s for part in parts)
    return START_S + HOST_S * trial.world + sum(map(_adapting_s, trial.jobs)) + run_s + alone_s


def _collective_s(trial: Trial, asked: TimedCollective) -> float:
    """Rows of every size that fits, at the line's rate; what small ones lack of a row is waited for by none."""
    second_bytes = (trial.fabric.rate_bps or UNSHAPED_BPS) * PAYLOAD_SHARE / 8
    factor = bus_factor(asked.operation, trial.num_ranks)
    once_s = [HOP_S + factor * size / second_bytes for size in SIZES]
    rows_s = [(NUM_ROWS + 1) * max(ROW_S, each_s) for each_s in once_s if (NUM_ROWS + 1) * each_s <= asked.most_s]
    return LIBRARY_START_S + sum(rows_s)


def _pipelined_s(trial: Trial) -> float:
    """Pipelines: what all ranks compute one after the other on as many cores, and in replay the clock's own steps."""
    if not trial.fabric.kind.has_processes and all(job.workload.device is Device.REPLAY for job in trial.jobs):
        return START_S
    run_s = 0.0
    for number, job in enumerate(trial.jobs):
        num_steps = trial.num_warmup + trial.num_steps_of(number)
        step_s = clocked(trial, number)[1] if job.workload.device is Device.REPLAY else _in_lockstep_s(job)
        run_s += num_steps * step_s
    return START_S + HOST_S * trial.world + run_s


def expected_each_s(trials: Iterable[Trial], *, foresees: bool = False) -> list[float]:
    """The same for each in this order, with what the first on a fabric takes to bring that up and calibrate it, on the
    paced one the first of each repeat.

    `foresees`: step times are predicted too, from more micro-benchmarks.
    """
    seen, found = set[FabricSpec | int](), []
    for trial in trials:
        place = trial.repeat if trial.fabric.kind is FabricKind.PACED else trial.fabric
        is_known = place in seen or trial.collective is not None
        first_s = 0.0 if is_known else calibration_s(trial.fabric, foresees=foresees)
        if trial.collective is None:
            seen.add(place)
        found.append(expected_s(trial) + first_s)
    return found


def expected_run_s(trials: Sequence[Trial], *, foresees: bool) -> float:
    """Seconds that a run takes; what has no clock is run one a core."""
    each_s = expected_each_s(trials, foresees=foresees)
    at_once = os.cpu_count() or 1
    return sum(
        seconds / (1 if trial.fabric.kind.has_processes else at_once)
        for trial, seconds in zip(trials, each_s, strict=True)
    )


def calibration_s(fabric: FabricSpec, *, foresees: bool) -> float:
    """Seconds until a fabric's hosts are up and its α and β known."""
    if not fabric.kind.has_processes:
        return 0.0
    if fabric.kind is FabricKind.PACED:
        return MACHINE_S if foresees else 0.0
    costs = _costs(fabric, fabric.num_ranks)
    each_s = [row.num_tensors * costs.of(RING_STEPS).seconds(row.num_bytes) for row in RING_ROWS]
    return OPEN_S + (1 + NUM_REPEATS) * sum(each_s) * (EVERYTHING_ELSE if foresees else 0.5)


def _in_lockstep_s(job: Job) -> float:
    """A virtual rank's part of a step."""
    return job.accumulate * _pass_s(job.workload)


def _pass_s(spec: WorkloadSpec) -> float:
    """Forward and backward of a real network's batch on one core."""
    return PASS_S + spec.batch_size * SAMPLE_S.get(spec.network, OTHER_SAMPLE_S)


@cache
def step_parts(job: Job, fabric: FabricSpec, world: int) -> StepParts:
    """A step of `job` alone among `world` ranks on `fabric`. Raises: WorkloadError, TextError."""
    layers = _layers(job.workload, world)
    costs = with_charge(_costs(fabric, world), job, world)
    link_s = 0.0 if job.system.startswith("local") else _link_s(job, layers, costs)
    compute_s = job.accumulate * (layers.forward_s + layers.backward_s)
    return StepParts(compute_s - layers.backward_s, compute_s, link_s)


def _costs(fabric: FabricSpec, world: int) -> LinkCosts:
    paced = fabric.kind is FabricKind.PACED
    beta = 8 / (fabric.rate_bps * (1.0 if paced else PAYLOAD_SHARE) if fabric.rate_bps else UNSHAPED_BPS)
    if world == 1:
        return given_costs(1, alpha_s=0.0, beta_s_per_byte=0.0)
    return given_costs(world, alpha_s=fabric.alpha_s if paced else HOP_S, beta_s_per_byte=beta)


@cache
def _layers(spec: WorkloadSpec, world: int) -> Layers:
    """The profile's where it is replayed; else one layer, since what it would be split into is not known unbuilt."""
    if spec.device is Device.REPLAY:
        return layers_of_workload(spec)
    crowd = max(1.0, world / (os.cpu_count() or 1)) if spec.device is Device.CPU else 1.0
    compute_s = crowd * _pass_s(spec)
    return plain_layers((compute_s / 3,), (compute_s * 2 / 3,), (find_network(spec.network).num_parameters,))


def _link_s(job: Job, layers: Layers, costs: LinkCosts) -> float:
    """All messages of a step, one after the other."""
    whole = Message(0, layers.segments)
    dense_s = costs.of(RING_STEPS).seconds(whole.nbytes) + (NEGOTIATED_MESSAGES - 1) * costs.alpha_s
    if job.system != "ours":
        return dense_s
    try:
        strategy = bound(job.resolve(), layers, costs)
        demands = Demands(strategy, costs)
        planned = _planned(strategy, layers)
        if planned:
            return sum(demands.of(message).alone_s for message in planned)
        return demands.of(whole).alone_s + (NEGOTIATED_MESSAGES - 1) * costs.alpha_s
    except (PredictError, PlanError):  # what it sends cannot be foretold
        return dense_s


def _planned(strategy: Strategy, layers: Layers) -> Sequence[Message]:
    """The messages of a step, in whatever order they go; none where ranks pack only as gradients come."""
    return make_plan(strategy.packing, layers.segments) if strategy.packing.rank_invariant else ()


def _adapting_s(job: Job) -> float:
    if job.system != "ours":
        return 0.0
    strategy = job.resolve()
    return (BIND_S if strategy.needs_costs else 0.0) + PROPOSE_S * strategy.tuning.num_trials
