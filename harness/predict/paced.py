"""What a message costs on the paced link: α and β as given, and around them this machine, measured.

The link keeps its own time, but a message is packed, handed to a thread, asked for and told of by this machine's
processor, and the loop and its updates run there. Between two messages of a lane the link waits for that: a gap, in
which another lane's message may be carried; sums that queue up in the link have none. These costs are the machine's and
no link's. They are measured once: messages and updates by rows through the engine; the loop, the wake-up and the gap in
training steps of a plain chain of layers, once without messages, and twice with one for each layer over a paced link
without a rate: queued up there, and carried by one lane.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
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
NUM_LAYERS, FORWARD_S, BACKWARD_S, NUM_ELEMENTS = 96, 5e-4, 1e-3, 1_024
NUM_STEPS = 10
NUM_ROUNDS = 3  # from one run to the next a lane's step differs by 4 %
CHAIN = Profile(
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
            backward_s=BACKWARD_S,
        )
        for place in range(NUM_LAYERS)
    ),
)
LINK = FabricSpec(kind=FabricKind.PACED, num_hosts=1, num_virtual=8, rate_bps=None, alpha_s=ALPHA_S)


def paced_costs(fabric: FabricSpec, world: int, machine: LinkCosts | None = None) -> LinkCosts:
    """What the paced fabric's model asks for, all of it link time; around it what `machine` has measured, if anything
    was."""
    beta = 8 / fabric.rate_bps if fabric.rate_bps else 0.0
    model = replace(serialised(given_costs(world, alpha_s=fabric.alpha_s, beta_s_per_byte=beta)), queues=True)
    if machine is None or world == 1:
        return model if machine is None else replace(model, engine=machine.engine)
    source = f"{model.source}, engine and gaps of this machine as measured"
    return replace(model, gap_s=gap_of(machine), engine=machine.engine, source=source)


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
        profile = Path(folder) / "chain.json"
        write_json(profile, to_jsonable(CHAIN))
        workload = WorkloadSpec(network=CHAIN.network, device=Device.REPLAY, profile=str(profile), batch_size=1)
        sending = Job(name="chain", workload=workload, strategy=ONE_LANE)
        jobs = (replace(sending, system="local"), replace(sending, strategy=QUEUED), sending)
        rounds = [[_step_s(runner, job, num_steps) for job in jobs] for _ in range(NUM_ROUNDS)]
        alone_s, queued_s, by_lane_s = map(median, zip(*rounds, strict=True))
        return fit_paced(rows, chain_s=alone_s, queued_s=queued_s, by_lane_s=by_lane_s)


def _step_s(runner: TaskRunner, job: Job, num_steps: int) -> float:
    """The mean step: means are what is predicted, and late steps are in them.

    Raises: PredictError, FabricError, LabLost.
    """
    trial = Trial(suite="predict", cell="chain", jobs=(job,), fabric=LINK, num_steps=num_steps)
    answer = runner.ask(Task(trial=trial), lambda event: None)
    if answer.ending is not Ending.DONE:
        raise PredictError(f"calibration of the paced link failed: {answer.reason}")
    return fmean(answer.ranks[0].step_times_s[trial.num_warmup :])


def fit_paced(times: Sequence[RowTime], *, chain_s: float, queued_s: float, by_lane_s: float) -> Calibrated:
    """The loop's time with which the virtual clock gives the chain's step alone, the wake-up with which it gives the
    step whose messages queue up, and the gap with which it gives the step whose messages one lane carries."""
    layers = layers_of(CHAIN)
    model = replace(paced_costs(LINK, LINK.num_ranks), engine=fit_engine(times))
    loop_s = max(0.0, chain_s - compute_s(layers, parse_strategy(QUEUED), model))

    def waking(wake_s: float) -> LinkCosts:
        return replace(model, engine=replace(model.engine, loop_s=loop_s, wake_s=wake_s))

    awake = waking(_longest(queued_s, QUEUED, waking))
    return Calibrated(
        kind=FabricKind.PACED,
        num_hosts=LINK.num_ranks,
        rate_bps=None,
        costs=replace(
            awake,
            gap_s=_longest(by_lane_s, ONE_LANE, lambda gap_s: replace(awake, gap_s=gap_s)),
            source="measured on a paced link without a rate",
        ),
        rows=tuple(times),
    )


def _longest(step_s: float, strategy: str, costs: Callable[[float], LinkCosts]) -> float:
    """The longest time whose `costs` make the chain's step no longer than `step_s`."""
    layers, plain = layers_of(CHAIN), parse_strategy(strategy)
    shortest_s, longest_s = 0.0, LONGEST_S
    for _ in range(NUM_HALVINGS):  # what takes longer never makes a shorter step
        middle_s = (shortest_s + longest_s) / 2
        if predict_step(layers, plain, costs(middle_s)).step_s < step_s:
            shortest_s = middle_s
        else:
            longest_s = middle_s
    return shortest_s
