"""A trial on a simulated network: jobs' own policies on one clock, their messages on the links that they share.

Every job is one collapsed worker that stands for all its ranks (`harness.predict.worker`); turns are given by the
scheduler's own tokens, and rounds of flows share the links of the named network max-min fairly. Nothing is computed and
nothing is sent, so a trial takes seconds on a thousand hosts and repeats exactly.

    answer, costs = simulate(trial, layers_of)  # the answer that a lab would give, and what each job costs alone
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from baselines.strategy import Strategy
from crossover import Sharing
from crossover.planning.cassini import best_shifts, pattern_of
from crossover.planning.profiles import shape_of
from crossover.policies import Extent, link_policy, policy_of
from crossover.simulator.fluid import Agenda
from fabric.simulated.placed import PlacedNetwork, place_network
from harness.engine.dispatch import PlanError
from harness.lab.messages import Answer, Ending
from harness.lab.rank import RankResult
from harness.outcome import theory_cost
from harness.predict.codecs import with_charge
from harness.predict.costs import Cost, LinkCosts, PredictError
from harness.predict.demand import check_world
from harness.predict.layers import Layers
from harness.predict.trial import tuned
from harness.predict.worker import Medium, MessageCarrier, Totals, Worker, bound, run_workers
from harness.sharing_settings import with_rules
from harness.simulated.hosts import HostSeat, SharedHost, virtual_token
from harness.simulated.links import NetworkLinks
from harness.simulated.medium import NetworkMedium, network_costs
from harness.trial import Job, Link, Trial
from harness.turns import merged
from models.workload import WorkloadSpec
from results.record import JobCosts, Phases

LayersOf = Callable[[WorkloadSpec], Layers]
ALONE_STEPS = 4  # from the second on a step repeats
ON_LINKS_ALONE = frozenset({Sharing.NAIVE, Sharing.EXCLUSIVE, Sharing.CASSINI, Sharing.CROSSOVER, Sharing.WEIGHTED})


def why_not_simulated(trial: Trial) -> str:
    """The reason why this trial cannot run on the virtual clock; empty if it can."""
    network = trial.fabric.network
    assert network is not None, "a fabric without a network is refused before"
    if network.own_hosts and trial.sharing is not None and trial.sharing not in ON_LINKS_ALONE:
        return f"{trial.sharing}: jobs on hosts of their own have no device to take turns on"
    if trial.ranks_per_host > 1:
        return f"ranks_per_host={trial.ranks_per_host}: a simulated host has one rank of a job"
    return next((reason for job in trial.jobs if (reason := _why_not_job(job))), "")


def _why_not_job(job: Job) -> str:
    if (system := job.system.partition("(")[0]) not in ("ours", "local"):
        return f"{system} decides by itself what to send when"
    if job.workload.jitter > 0:
        return f"jitter={job.workload.jitter:g}: ranks differ at random, and one stands for all"
    if job.clip_norm is not None:
        return "clip_norm: what clipping takes is not known"
    if system == "ours" and job.resolve().local_steps > 1:
        return "local-steps: steps that exchange differ from those that do not"
    return ""


def simulate(trial: Trial, layers_of: LayersOf) -> tuple[Answer, tuple[JobCosts, ...]]:
    """Run `trial`; `layers_of` knows what a workload computes.

    Raises: NetworkError for a network that cannot be, PredictError for a strategy that never sends something.
    """
    if reason := why_not_simulated(trial):
        return Answer(ending=Ending.UNAVAILABLE, reason=reason), ()
    assert trial.fabric.network is not None
    network = place_network(trial.fabric.network, trial.world, len(trial.jobs))
    layers = [layers_of(job.workload) for job in trial.jobs]
    try:
        # Rules of sharing are made of what each job costs alone on this very network.
        alone = tuple(_alone(trial, network, place, own) for place, own in enumerate(layers))
        jobs = TrialClock(with_rules(_with_beats(trial, alone), alone), network).train(layers)
    except PlanError as error:
        raise PredictError(str(error)) from error
    if trial.num_cost_steps:
        jobs = [replace(own, costs=cost) for own, cost in zip(jobs, alone, strict=True)]
    return Answer(ending=Ending.DONE, ranks=tuple(jobs)), alone


def _with_beats(trial: Trial, alone: Sequence[JobCosts]) -> Trial:
    """CASSINI's own case, jobs that share links alone: its circles without a device."""
    assert trial.fabric.network is not None
    if trial.sharing is not Sharing.CASSINI or not trial.fabric.network.own_hosts or trial.beats:
        return trial
    shapes = [shape_of(theory_cost(own)) for own in alone]
    # Each job has a device of its own, so circles hold the link's times and nothing else.
    return replace(trial, beats=best_shifts([replace(pattern_of(own), device=()) for own in shapes]).beats)


def job_costs(trial: Trial, network: PlacedNetwork, place: int) -> LinkCosts:
    """What the primitives of one job cost with the network to itself, and its codec on its device."""
    job, spec = trial.jobs[place], trial.fabric.network
    assert spec is not None
    if job.system.startswith("local"):
        return LinkCosts(world=trial.world, primitives={"AllReduce": Cost(0.0, 0.0)}, source="no communication")
    source = f"flows on {spec.network_text}, {spec.transport}, {spec.placement_text}"
    scale = float(job.workload.size_scale)
    found = network_costs(network, place, alpha_s=trial.fabric.alpha_s, size_scale=scale, source=source)
    return with_charge(found, job, trial.world)


class TrialClock:
    """Clock, links and hosts of one trial."""

    def __init__(self, trial: Trial, network: PlacedNetwork) -> None:
        self._trial, self._network = trial, network
        self.clock = Agenda()
        self.links = NetworkLinks(self.clock, network.graph.link_rate_bps, network.law)
        self._seats = [HostSeat(host, job.name) for job, host in zip(trial.jobs, self._hosts(), strict=True)]

    def _hosts(self) -> list[SharedHost]:
        """The host of each job: one that all share, or one each that only share tokens."""
        trial, sharing, names = self._trial, self._trial.sharing, [job.name for job in self._trial.jobs]
        assert trial.fabric.network is not None
        own = trial.fabric.network.own_hosts
        # Without sharing a job still has a seat, so that the worker's code is the same; its turns are granted at once.
        if sharing is None:
            return [SharedHost(self.clock, Extent.BACKWARD)]
        beats = tuple(zip(names, trial.beats, strict=True)) if trial.beats else ()
        policy = policy_of(sharing, groups=trial.groups, beats=beats)
        shares = dict(zip(names, trial.shares, strict=True)) if trial.shares else {}
        # on devices of their own, turns would only part computation that nobody shares
        takes_device = not (own and sharing.gates_link)
        takes_link = sharing.gates_link and trial.link is Link.FIFO
        shared = SharedHost(
            self.clock,
            sharing.extent,
            virtual_token(self.clock, policy, names, shares) if takes_device else None,
            virtual_token(self.clock, link_policy(policy), names, shares) if takes_link else None,
        )
        if not own:
            return [shared] * len(names)
        return [SharedHost(self.clock, sharing.extent, shared.device, shared.link) for _ in names]

    def train(self, layers: Sequence[Layers]) -> list[RankResult]:
        """All jobs' steps, warm-up included."""
        trial = self._trial
        workers, mediums, counts = [], [], []
        for place, (job, own) in enumerate(zip(trial.jobs, layers, strict=True)):
            costs = job_costs(trial, self._network, place)
            medium = self.medium(place, costs)
            strategy = strategy_of(job, own, costs)
            worker = Worker(medium, own, strategy, num_micro_batches=job.accumulate, seat=self._seats[place])
            worker.train(trial.num_warmup + trial.num_steps_of(place), job.start_delay_s)
            workers.append(worker)
            mediums.append(medium)
            # One mark more than steps: the first is the start.
            counts.append(trial.num_warmup + trial.num_steps_of(place) + 1)
        run_workers(workers, counts)
        return [
            _result(trial, place, worker, seat, medium.spans_s if isinstance(medium, NetworkMedium) else [])
            for place, (worker, seat, medium) in enumerate(zip(workers, self._seats, mediums, strict=True))
        ]

    def medium(self, place: int, costs: LinkCosts) -> MessageCarrier:
        """What carries the messages of one job."""
        job = self._trial.jobs[place]
        if job.system.startswith("local"):
            return Medium(self.clock, costs)
        return NetworkMedium(
            self.clock,
            self.links,
            self._network.jobs[place],
            costs,
            self._trial.fabric.alpha_s,
            float(job.workload.size_scale),
        )


def strategy_of(job: Job, layers: Layers, costs: LinkCosts) -> Strategy:
    """The job's strategy, tuned on the clock and bound to these costs. Raises: PredictError."""
    strategy = job.resolve()
    check_world(strategy, costs.world)
    if strategy.tuning.num_trials and strategy.knobs:
        strategy = tuned(strategy, layers, costs)
    return bound(strategy, layers, costs)


def _alone(trial: Trial, network: PlacedNetwork, place: int, layers: Layers) -> JobCosts:
    """c, m and t of one job with hosts and network to itself."""
    job = replace(trial.jobs[place], num_steps=ALONE_STEPS, start_delay_s=0.0)
    solo = replace(
        trial, jobs=(job,), sharing=None, num_steps=ALONE_STEPS, num_warmup=1, shares=(), groups=(), beats=()
    )
    own = replace_jobs(network, place)
    # m needs a run of its own: in a step messages hide behind backward
    (found,) = TrialClock(solo, own).train([layers])
    run = TrialClock(solo, own)
    costs = job_costs(solo, own, 0)
    worker = Worker(run.medium(0, costs), layers, strategy_of(job, layers, costs))
    worker.exchange(2)
    run_workers([worker], [3])
    return JobCosts(
        compute_s=found.phases.compute_s or 0.0,
        communication_s=worker.marks[-1].at_s - worker.marks[-2].at_s,
        solo_s=found.step_times_s[-1],
    )


def replace_jobs(network: PlacedNetwork, place: int) -> PlacedNetwork:
    """The same network with one of its jobs alone."""
    return replace(network, jobs=(network.jobs[place],))


def _result(
    trial: Trial, place: int, worker: Worker, seat: HostSeat, spans_s: Sequence[tuple[float, float]]
) -> RankResult:
    """What the one worker of a job saw, as the rank that stands for all."""
    marks, num_steps = worker.marks, trial.num_steps_of(place)
    # A mark is left at each update: the one behind the last warm-up step begins what is measured.
    first, last = marks[trial.num_warmup], marks[-1]
    total = len(marks) - 1
    sent = worker.marks[-1].wire_bytes
    return RankResult(
        job=place,
        rank=0,
        step_times_s=tuple(b.at_s - a.at_s for a, b in itertools.pairwise(marks)),
        losses=(),
        evaluated=(),
        phases=_phases(first, last, num_steps),
        num_messages=last.num_messages / total,
        wire_bytes={tag: count / total for tag, count in sent.items()},
        weights_digest="",
        num_parameters=worker.num_parameters,
        peak_memory_bytes=0,
        start_s=marks[0].at_s,
        end_s=last.at_s,
        turns=tuple(seat.turns) if trial.sharing is not None else (),
        compute_times=tuple(merged(seat.computed_s)) if trial.sharing is not None else (),
        link_times=tuple(merged(spans_s)) if trial.sharing is not None else (),
    )


def _phases(first: Totals, last: Totals, num_steps: int) -> Phases:
    return Phases(
        compute_s=(last.compute_s - first.compute_s) / num_steps,
        communication_s=(last.communication_s - first.communication_s) / num_steps,
        exposed_s=(last.exposed_s - first.exposed_s) / num_steps,
        turn_wait_s=(last.turn_wait_s - first.turn_wait_s) / num_steps,
    )
