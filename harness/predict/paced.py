"""What a message costs on the paced link: α and β as given, and around them this machine, measured.

The link keeps its own time, but a message is packed, handed to a thread, asked for and told of by this machine's
processor, and the loop and its updates run there. Between two messages of a lane the link waits for that: a gap, in
which another lane's message may be carried; sums that queue up in the link have none. Part of what a message by a lane
takes is the interpreter's time, and of that there is one for all lanes. These costs are the machine's and no link's.
They are measured beside what they are to predict: messages and updates by rows through the engine; the rest in
training steps of plain chains of layers over a paced link without a rate. One chain's layers take longer than their
messages. Its steps without messages tell the loop's time, with messages that queue up in the link the wake-up, and by
one lane the gap. Another one's messages pile up, and four lanes hide each other's gaps: its steps tell the
interpreter's time. A third one's messages are eight times as long as the first one's, and so tell how a gap grows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from baselines.strategy import parse_strategy
from fabric.api import FabricKind, FabricSpec
from harness.lab.labs import TaskRunner
from harness.lab.messages import Ending, Task
from harness.predict.bounds import compute_s
from harness.predict.calibration import (
    EAGER_ROWS,
    ENGINE_ROWS,
    NUM_REPEATS,
    ONE_LANE,
    UPDATE_ROWS,
    Calibrated,
    Calibration,
    RowTime,
    fit_engine,
    time_on,
)
from harness.predict.costs import RING_STEPS, LinkCosts, PredictError, given_costs, serialised
from harness.predict.layers import layers_of
from harness.predict.step import predict_step
from harness.trial import Job, Trial
from models.layer_profile import LayerProfile, ParameterShape, Profile, Provenance
from models.workload import Device, WorkloadSpec
from results.codec import to_jsonable
from results.files import write_json

LONGEST_S, RESOLUTION_S, NOTHING_S = 10e-3, 1e-9, 1e-12
NUM_RANKS = 8
QUEUED, FOUR_LANES = "unfused", "unfused+fifo(depth=4)"
FORWARD_S, NUM_ELEMENTS = 5e-4, 1_024
NUM_STEPS = 10
NUM_ROUNDS = 3  # from one run to the next a lane's step differs by 4 %
NUM_TURNS = 3


@dataclass(frozen=True, slots=True)
class Chain:
    """Equal layers in a row, whose messages take 14 `alpha_s` each on a paced link of eight ranks without a rate."""

    num_layers: int
    backward_s: float
    alpha_s: float

    @property
    def link(self) -> FabricSpec:
        """What carries its messages."""
        return FabricSpec(
            kind=FabricKind.PACED, num_hosts=1, num_virtual=NUM_RANKS, rate_bps=None, alpha_s=self.alpha_s
        )

    @property
    def profile(self) -> Profile:
        """Its layers' times, to be replayed."""
        return Profile(
            network="resnet50",  # in name alone: replay asks whose times it plays
            provenance=Provenance.DERIVED,
            source="made up to measure this machine",
            device="none",
            precision="float32",
            batch_size=1,
            sample="none",
            num_steps=0,
            layers=tuple(
                LayerProfile(
                    name=f"layer{place}",
                    parameters=(ParameterShape(name=f"layer{place}.weight", shape=(NUM_ELEMENTS,)),),
                    forward_s=FORWARD_S,
                    backward_s=self.backward_s,
                )
                for place in range(self.num_layers)
            ),
        )


# A message takes a millisecond, as most of replayed networks do about: an idle core takes the longer to wake the longer
# it was idle (0.24 ms after 0.3 ms, 0.4 ms after 1.4 ms on a virtual machine).
CHAIN = Chain(num_layers=96, backward_s=1e-3, alpha_s=70e-6)
PILING = replace(CHAIN, backward_s=5e-5, alpha_s=5e-6)
LONG = replace(CHAIN, num_layers=16, alpha_s=8 * CHAIN.alpha_s)


@dataclass(frozen=True, slots=True)
class ChainSteps:
    """Seconds per step: of `CHAIN` alone, with messages that queue up in the link, and by one lane; of `PILING` by four
    lanes, and of `LONG` by one."""

    alone_s: float
    queued_s: float
    by_lane_s: float
    piled_up_s: float
    long_s: float


def paced_costs(fabric: FabricSpec, world: int, machine: LinkCosts | None = None) -> LinkCosts:
    """What the paced fabric's model asks for, all of it link time; around it what `machine` has measured, if anything
    was."""
    beta = 8 / fabric.rate_bps if fabric.rate_bps else 0.0
    model = replace(serialised(given_costs(world, alpha_s=fabric.alpha_s, beta_s_per_byte=beta)), queues=True)
    if machine is None or world == 1:
        return model if machine is None else replace(model, engine=machine.engine)
    source = f"{model.source}, engine and gaps of this machine as measured"
    return replace(
        model,
        gap_s=gap_of(machine),
        gap_per_doubling_s=machine.gap_per_doubling_s,
        engine=machine.engine,
        source=source,
    )


def gap_of(costs: LinkCosts) -> float:
    """Seconds of a message's start-up that are no link time."""
    return costs.gap_s + costs.of(RING_STEPS).alpha_s * (1 - costs.occupied)


def machine_of(calibration: Calibration) -> LinkCosts | None:
    """What was measured of this machine on the paced link, if anything."""
    return next((entry.costs for entry in calibration.entries if entry.kind is FabricKind.PACED), None)


def measure_paced(
    runner: TaskRunner,
    *,
    num_repeats: int = NUM_REPEATS,
    num_steps: int = NUM_STEPS,
    num_rounds: int = NUM_ROUNDS,
) -> Calibrated:
    """This machine's costs. Raises: PredictError, FabricError, LabLost."""
    rows = time_on(CHAIN.link, (*ENGINE_ROWS, *UPDATE_ROWS, *EAGER_ROWS), runner, num_repeats)
    with tempfile.TemporaryDirectory() as folder:
        sending = ((CHAIN, ONE_LANE), (PILING, FOUR_LANES), (LONG, ONE_LANE))
        by_lane, *others = (_trial(chain, strategy, Path(folder), num_steps) for chain, strategy in sending)
        (job,) = by_lane.jobs
        alone, queued = (
            replace(by_lane, jobs=(other,)) for other in (replace(job, system="local"), replace(job, strategy=QUEUED))
        )
        rounds = [[_step_s(runner, each) for each in (alone, queued, by_lane, *others)] for _ in range(num_rounds)]
        return fit_paced(rows, ChainSteps(*map(median, zip(*rounds, strict=True))))


def _trial(chain: Chain, strategy: str, folder: Path, num_steps: int) -> Trial:
    path = folder / f"{chain.num_layers} layers of {chain.backward_s:g} s.json"
    write_json(path, to_jsonable(chain.profile))
    workload = WorkloadSpec(network=chain.profile.network, device=Device.REPLAY, profile=str(path), batch_size=1)
    job = Job(name="chain", workload=workload, strategy=strategy)
    return Trial(suite="predict", cell="chain", jobs=(job,), fabric=chain.link, num_steps=num_steps)


def _step_s(runner: TaskRunner, trial: Trial) -> float:
    """The mean step: means are what is predicted, and late steps are in them.

    Raises: PredictError, FabricError, LabLost.
    """
    answer = runner.ask(Task(trial=trial), lambda event: None)
    if answer.ending is not Ending.DONE:
        raise PredictError(f"calibration of the paced link failed: {answer.reason}")
    return fmean(answer.ranks[0].step_times_s[trial.num_warmup :])


def fit_paced(times: Sequence[RowTime], steps: ChainSteps) -> Calibrated:
    """The loop's time with which the virtual clock gives the chain's step alone, the wake-up with which it gives the
    step whose messages queue up, and the gap and the interpreter's time with which it gives those by lanes."""
    link = CHAIN.link
    costs = replace(paced_costs(link, NUM_RANKS), engine=fit_engine(times))
    compute = compute_s(layers_of(CHAIN.profile), parse_strategy(QUEUED), costs)
    costs = replace(costs, engine=replace(costs.engine, loop_s=max(0.0, steps.alone_s - compute)))
    costs = _fitted(costs, steps.queued_s, CHAIN, QUEUED, _waking_in)
    for _ in range(NUM_TURNS):  # four lanes hide most of the gap, so the two hardly depend on each other
        costs = _fitted(costs, steps.piled_up_s, PILING, FOUR_LANES, _by_lanes_in)
        costs = _fitted(costs, steps.by_lane_s, CHAIN, ONE_LANE, lambda known, x: replace(known, gap_s=x))
    costs = _fitted(costs, steps.long_s, LONG, ONE_LANE, lambda known, x: replace(known, gap_per_doubling_s=x))
    return Calibrated(
        kind=FabricKind.PACED,
        num_hosts=NUM_RANKS,
        rate_bps=None,
        costs=replace(costs, source="measured on a paced link without a rate"),
        rows=tuple(times),
    )


def _waking_in(costs: LinkCosts, seconds: float) -> LinkCosts:
    return replace(costs, engine=replace(costs.engine, wake_s=seconds))


def _by_lanes_in(costs: LinkCosts, seconds: float) -> LinkCosts:
    return replace(costs, engine=replace(costs.engine, by_lane_s=seconds))


def _fitted(
    costs: LinkCosts, step_s: float, chain: Chain, strategy: str, having: Callable[[LinkCosts, float], LinkCosts]
) -> LinkCosts:
    """`costs` having the shortest time with which the step of `chain` is as long as `step_s`, or nearest to it."""
    from scipy.optimize import brentq  # with the first fit: whoever only predicts need not wait for it

    layers, plain = layers_of(chain.profile), parse_strategy(strategy)
    on_link = replace(costs, primitives=paced_costs(chain.link, NUM_RANKS).primitives)

    def too_long_s(seconds: float) -> float:
        """A hair more than it is, so that of several times that fit the shortest is found."""
        return predict_step(layers, plain, having(on_link, seconds)).step_s - step_s + NOTHING_S

    # What takes longer never makes a shorter step.
    if too_long_s(0.0) >= 0.0:
        return having(costs, 0.0)
    if too_long_s(LONGEST_S) < 0.0:
        return having(costs, LONGEST_S)
    return having(costs, brentq(too_long_s, 0.0, LONGEST_S, xtol=RESOLUTION_S))
