"""A trial's step time before it is run, or the reason why nobody knows: what stands beside a measurement."""

from __future__ import annotations

from dataclasses import dataclass, replace

from baselines.api import Tried
from baselines.strategy import Strategy
from fabric.api import FabricKind
from harness.calibrate import LinkModel
from harness.facts import asked_of
from harness.outcome import bare_record, fabric_facts
from harness.predict.bounds import Bounds, bounds
from harness.predict.calibration import Calibration
from harness.predict.codecs import with_charge
from harness.predict.costs import Cost, LinkCosts, PredictError
from harness.predict.layers import Layers, layers_of_workload
from harness.predict.paced import machine_of, paced_costs
from harness.predict.step import Predicted, predict_step
from harness.trial import Job, Trial
from models.workload import Device, WorkloadError
from results.codec import to_jsonable
from results.record import (
    Environment,
    FabricFacts,
    JobResult,
    Phases,
    Prediction,
    RankTimes,
    Record,
    Status,
)

SYSTEMS = ("ours", "local")


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """A predicted cell: its step, what bounds it, the costs that it rests on, and the settings that a tuner chose."""

    step: Predicted
    bounds: Bounds
    costs: LinkCosts
    num_parameters: int
    tuned: str = ""

    @property
    def efficiency(self) -> float:
        """Scaling efficiency: computation alone over the step."""
        return self.bounds.compute_s / self.step.step_s

    @property
    def prediction(self) -> Prediction:
        """For a record."""
        chosen = f"; knobs chosen on the virtual clock: {self.tuned}" if self.tuned else ""
        source = f"virtual clock, {self.costs.world} workers, costs {self.costs.source}{chosen}"
        return Prediction(source=source, step_time_s=self.step.step_s)


def predict_trial(trial: Trial, calibration: Calibration) -> Prediction | str:
    """What a record of `trial` says beside the measurement, or the reason why there is no prediction."""
    foretold = foretell(trial, calibration)
    return foretold if isinstance(foretold, str) else foretold.prediction


def foretell(
    trial: Trial,
    calibration: Calibration,
    *,
    world: int | None = None,
    slowdown: float = 0.0,
    costs: LinkCosts | None = None,
) -> Foretold | str:
    """Predict `trial` among `world` ranks (default: its own), or say why not. `costs` replace the calibration's."""
    if reason := why_unpredictable(trial):
        return reason
    (job,) = trial.jobs
    try:
        own = with_charge(costs or _costs(trial, calibration, world), job, world or trial.num_ranks)
        return foretell_job(job, layers_of_workload(job.workload), own, slowdown)
    except (PredictError, WorkloadError) as error:
        return str(error)


def why_unpredictable(trial: Trial) -> str:
    """The reason why `trial` cannot be predicted whatever the costs; empty if it can."""
    job = trial.jobs[0]
    system = job.system.partition("(")[0]
    reasons = (
        (
            trial.is_partitioned,
            "the step of stages and splits is predicted by their own clock, and stands in the record",
        ),
        (trial.sharing is not None, "jobs share: their period is predicted from measured costs instead"),
        (system not in SYSTEMS, f"{system} decides by itself what to send when"),
        (
            job.workload.device is not Device.REPLAY,
            f"computes on {job.workload.device}: no profile tells its layer times",
        ),
        (job.workload.jitter > 0, f"jitter={job.workload.jitter:g}: ranks differ at random, and one stands for all"),
        (trial.ranks_per_host > 1, f"ranks_per_host={trial.ranks_per_host}: the link's model has one rank a host"),
        (job.clip_norm is not None, "clip_norm: what clipping takes is not calibrated"),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _costs(trial: Trial, calibration: Calibration, world: int | None) -> LinkCosts:
    ranks = world or trial.fabric.num_ranks
    if trial.fabric.kind is FabricKind.PACED:
        costs = paced_costs(trial.fabric, ranks, machine_of(calibration))
        return replace(costs, size_scale=trial.jobs[0].workload.size_scale)
    return calibration.costs(trial.fabric.kind, ranks, trial.fabric.rate_bps)


def foretell_job(job: Job, layers: Layers, costs: LinkCosts, slowdown: float = 0.0) -> Foretold:
    """Predict `job` whose ranks compute `layers`, under `costs`. Raises: PredictError."""
    strategy, chosen = job.resolve(), ""
    if strategy.local_steps > 1:
        raise PredictError(f"local-steps(n={strategy.local_steps}): steps that exchange differ from those that do not")
    if job.system.startswith("local"):
        # Without communication messages still go through the clock, and cost nothing.
        nothing = {name: Cost(0.0, 0.0) for name in costs.primitives}
        costs = replace(costs.queued_up(), primitives=nothing, engine=costs.engine.without_messages())
    if strategy.tuning.num_trials and strategy.knobs:
        strategy = tuned(strategy, layers, costs)
        chosen = ", ".join(f"{knob} = {value:g}" for knob, value in strategy.settings.items())
    step = predict_step(layers, strategy, costs, slowdown=slowdown, num_micro_batches=job.accumulate)
    limits = bounds(layers, strategy, costs)
    # Bounds are of one micro-batch; those before the last one communicate nothing.
    extra_s = (job.accumulate - 1) * (layers.forward_s + layers.backward_s)
    return Foretold(
        step=step,
        bounds=replace(limits, compute_s=limits.compute_s + extra_s),
        costs=costs,
        num_parameters=sum(segment.numel for segment in layers.segments),
        tuned=chosen,
    )


def tuned(strategy: Strategy, layers: Layers, costs: LinkCosts) -> Strategy:
    """The strategy with the knobs that its tuner keeps when it is told predicted step times."""
    tried: list[Tried] = []
    for _ in range(strategy.tuning.num_trials):
        values = strategy.tuning.propose(strategy.knobs, tried)
        tried.append(Tried(values, predict_step(layers, strategy.tuned(values), costs).step_s))
    return strategy.tuned(strategy.tuning.propose(strategy.knobs, tried))


def simulated_record(
    trial: Trial, found: Foretold | str, environment: Environment, *, world: int, imagined: bool = False
) -> Record:
    """A predicted cell as a record, labelled `simulated`; skipped with the reason where there is no prediction.

    `imagined`: the trial's own fabric only says the rate, and it cannot be run.
    """
    job = trial.jobs[0]
    own = world == trial.fabric.num_ranks and not imagined
    name = f"{trial.cell}/{world}-hosts"  # never that of a cell that was measured
    asked = asked_of(job, 1, world)
    costs = None if isinstance(found, str) else found.costs
    fabric = _simulated_fabric(trial, costs, world, imagined=imagined)
    status = Status.SKIPPED if isinstance(found, str) else Status.OK
    return replace(
        bare_record(replace(trial, cell=name), status, fabric, environment),
        reason=found if isinstance(found, str) else "",
        jobs=(asked if isinstance(found, str) else _simulated_job(asked, found),),
        prediction=None if isinstance(found, str) else found.prediction,
        trial=to_jsonable(trial) if own else {},
    )


def _simulated_fabric(trial: Trial, costs: LinkCosts | None, world: int, *, imagined: bool) -> FabricFacts:
    if trial.fabric.network is not None:
        return fabric_facts(replace(trial, fabric=replace(trial.fabric, num_hosts=world)), None)
    link = None
    if costs is not None:
        link = LinkModel(alpha_s=costs.alpha_s, beta_s_per_byte=costs.beta_s_per_byte, residual=costs.residual)
    facts = fabric_facts(trial, link)
    kind = "simulated" if imagined else facts.kind
    return replace(facts, kind=kind, label="simulated", num_hosts=world, num_virtual=0)


def _simulated_job(asked: JobResult, found: Foretold) -> JobResult:
    step = found.step
    return replace(
        asked,
        num_parameters=found.num_parameters,
        ranks=(RankTimes(rank=0, warmup_s=(), steps_s=(step.step_s,)),),
        phases=Phases(compute_s=step.compute_s, communication_s=step.communication_s, exposed_s=step.exposed_s),
        num_messages=float(step.num_messages),
        wire_bytes=step.wire_bytes,
    )
