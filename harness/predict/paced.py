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
from functools import partial
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

# A message takes a millisecond, as most of replayed networks do about: an idle core takes the longer to wake the longer
# it was idle (0.24 ms after 0.3 ms, 0.4 ms after 1.4 ms on a virtual machine).
ALPHA_S = 70e-6
LONGEST_S, NUM_HALVINGS = 10e-3, 24
QUEUED = "unfused"
FOUR_LANES = "unfused+fifo(depth=4)"
NUM_LAYERS, FORWARD_S, BACKWARD_S, NUM_ELEMENTS = 96, 5e-4, 1e-3, 1_024
PILING_BACKWARD_S, PILING_ALPHA_S = 5e-5, 5e-6
NUM_LONG, LONG_ALPHA_S = 16, 8 * ALPHA_S
NUM_STEPS = 10
NUM_ROUNDS = 3  # from one run to the next a lane's step differs by 4 %


def _chain(backward_s: float, num_layers: int) -> Profile:
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
                backward_s=backward_s,
            )
            for place in range(num_layers)
        ),
    )


CHAIN, PILING, LONG = (
    _chain(BACKWARD_S, NUM_LAYERS),
    _chain(PILING_BACKWARD_S, NUM_LAYERS),
    _chain(BACKWARD_S, NUM_LONG),
)
LINK = FabricSpec(kind=FabricKind.PACED, num_hosts=1, num_virtual=8, rate_bps=None, alpha_s=ALPHA_S)
PILING_LINK, LONG_LINK = replace(LINK, alpha_s=PILING_ALPHA_S), replace(LINK, alpha_s=LONG_ALPHA_S)
NUM_TURNS = 3


@dataclass(frozen=True, slots=True)
class ChainSteps:
    """Seconds per step of the chains: alone, with messages that queue up in the link, with messages by one lane, with
    messages that pile up before four lanes, and with long ones by one lane."""

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


def measure_paced(runner: TaskRunner, *, num_repeats: int = NUM_REPEATS, num_steps: int = NUM_STEPS) -> Calibrated:
    """This machine's costs. Raises: PredictError, FabricError, LabLost."""
    rows = time_on(LINK, (*ENGINE_ROWS, *UPDATE_ROWS, *EAGER_ROWS), runner, num_repeats)
    with tempfile.TemporaryDirectory() as folder:
        sending = _job_of(CHAIN, ONE_LANE, Path(folder) / "chain.json")
        piling = _job_of(PILING, FOUR_LANES, Path(folder) / "piling.json")
        long = _job_of(LONG, ONE_LANE, Path(folder) / "long.json")
        jobs = (
            (replace(sending, system="local"), LINK),
            (replace(sending, strategy=QUEUED), LINK),
            (sending, LINK),
            (piling, PILING_LINK),
            (long, LONG_LINK),
        )
        rounds = [[_step_s(runner, job, link, num_steps) for job, link in jobs] for _ in range(NUM_ROUNDS)]
        return fit_paced(rows, ChainSteps(*map(median, zip(*rounds, strict=True))))


def _job_of(chain: Profile, strategy: str, path: Path) -> Job:
    write_json(path, to_jsonable(chain))
    workload = WorkloadSpec(network=chain.network, device=Device.REPLAY, profile=str(path), batch_size=1)
    return Job(name="chain", workload=workload, strategy=strategy)


def _step_s(runner: TaskRunner, job: Job, link: FabricSpec, num_steps: int) -> float:
    """The mean step: means are what is predicted, and late steps are in them.

    Raises: PredictError, FabricError, LabLost.
    """
    trial = Trial(suite="predict", cell="chain", jobs=(job,), fabric=link, num_steps=num_steps)
    answer = runner.ask(Task(trial=trial), lambda event: None)
    if answer.ending is not Ending.DONE:
        raise PredictError(f"calibration of the paced link failed: {answer.reason}")
    return fmean(answer.ranks[0].step_times_s[trial.num_warmup :])


def fit_paced(times: Sequence[RowTime], steps: ChainSteps) -> Calibrated:
    """The loop's time with which the virtual clock gives the chain's step alone, the wake-up with which it gives the
    step whose messages queue up, and the gap and the interpreter's time with which it gives those by lanes."""
    model = replace(paced_costs(LINK, LINK.num_ranks), engine=fit_engine(times))
    piling, long = (paced_costs(link, link.num_ranks).primitives for link in (PILING_LINK, LONG_LINK))
    loop_s = max(0.0, steps.alone_s - compute_s(layers_of(CHAIN), parse_strategy(QUEUED), model))

    def waking(wake_s: float) -> LinkCosts:
        return replace(model, engine=replace(model.engine, loop_s=loop_s, wake_s=wake_s))

    def by_lane(by_lane_s: float, gap_s: float) -> LinkCosts:
        return replace(costs, gap_s=gap_s, engine=replace(costs.engine, by_lane_s=by_lane_s))

    def piled_up(by_lane_s: float) -> LinkCosts:
        return replace(by_lane(by_lane_s, costs.gap_s), primitives=piling)

    def growing(per_doubling_s: float) -> LinkCosts:
        return replace(costs, gap_per_doubling_s=per_doubling_s, primitives=long)

    costs = waking(_longest(steps.queued_s, CHAIN, QUEUED, waking))
    for _ in range(NUM_TURNS):  # four lanes hide most of the gap, so the two hardly depend on each other
        by_lane_s = _longest(steps.piled_up_s, PILING, FOUR_LANES, piled_up)
        gap_s = _longest(steps.by_lane_s, CHAIN, ONE_LANE, partial(by_lane, by_lane_s))
        costs = by_lane(by_lane_s, gap_s)
    costs = replace(costs, gap_per_doubling_s=_longest(steps.long_s, LONG, ONE_LANE, growing))
    return Calibrated(
        kind=FabricKind.PACED,
        num_hosts=LINK.num_ranks,
        rate_bps=None,
        costs=replace(costs, source="measured on a paced link without a rate"),
        rows=tuple(times),
    )


def _longest(step_s: float, chain: Profile, strategy: str, costs: Callable[[float], LinkCosts]) -> float:
    """The longest time whose `costs` make the step of `chain` no longer than `step_s`."""
    layers, plain = layers_of(chain), parse_strategy(strategy)
    shortest_s, longest_s = 0.0, LONGEST_S
    for _ in range(NUM_HALVINGS):  # what takes longer never makes a shorter step
        middle_s = (shortest_s + longest_s) / 2
        if predict_step(layers, plain, costs(middle_s)).step_s < step_s:
            shortest_s = middle_s
        else:
            longest_s = middle_s
    return shortest_s
