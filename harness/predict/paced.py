"""What a message costs on the paced link: α and β as given, and around them this machine, measured.

The link keeps its own time, but a message is packed, handed to a thread, asked for and told of by this machine's
processor, and updates run there. Between two messages of a lane the link waits for that: a gap, in which another lane's
message may be carried. These costs are the machine's and no link's: they are measured once, through the engine, on a
paced link that has a start-up and no rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import minimize_scalar

from fabric.api import FabricKind, FabricSpec
from fabric.collectives import Collective
from harness.lab.labs import TaskRunner
from harness.lab.messages import Probe, Row
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
    row_s,
    time_on,
)
from harness.predict.costs import RING_STEPS, Cost, LinkCosts, given_costs, serialised

# One message after the other, and two in flight: the gap shows whole in the first, and in the second where the other
# lane's message does not fill it.
EXCHANGE_ROWS = (
    Row(probe=Probe.EXCHANGE, num_tensors=32, num_bytes=4_096, strategy=ONE_LANE),
    Row(probe=Probe.EXCHANGE, num_tensors=64, num_bytes=4_096, strategy="unfused"),
)
ALPHA_S = 20e-6
GAP_S = (1e-6, 1e-2)  # limits of the search
LINK = FabricSpec(kind=FabricKind.PACED, num_hosts=1, num_virtual=8, rate_bps=None, alpha_s=ALPHA_S)


def paced_costs(fabric: FabricSpec, world: int, machine: LinkCosts | None = None) -> LinkCosts:
    """What the paced fabric's model asks for, all of it link time; around it what `machine` has measured, if anything
    was."""
    beta = 8 / fabric.rate_bps if fabric.rate_bps else 0.0
    model = serialised(given_costs(world, alpha_s=fabric.alpha_s, beta_s_per_byte=beta))
    if machine is None or world == 1:
        return model if machine is None else replace(model, engine=machine.engine)
    source = f"{model.source}, engine and gaps of this machine as measured"
    return replace(_with_gap(model, gap_of(machine)), engine=machine.engine, source=source)


def gap_of(costs: LinkCosts) -> float:
    """Seconds of a message's start-up that are no link time."""
    return costs.of(RING_STEPS).alpha_s * (1 - costs.occupied)


def _with_gap(model: LinkCosts, gap_s: float) -> LinkCosts:
    """Every primitive starts so much later, which comes first and takes no link."""
    known = {name.value: model.of(name.value) for name in Collective}
    ring = known[RING_STEPS]
    return replace(
        model,
        primitives={name: Cost(cost.alpha_s + gap_s, cost.beta_s_per_byte) for name, cost in known.items()},
        occupied=ring.alpha_s / (ring.alpha_s + gap_s),
        overlap=0.0,
    )


def machine_of(calibration: Calibration) -> LinkCosts | None:
    """What was measured of this machine on the paced link, if anything."""
    return next((entry.costs for entry in calibration.entries if entry.kind is FabricKind.PACED), None)


def measure_paced(runner: TaskRunner, *, num_repeats: int = NUM_REPEATS) -> Calibrated:
    """This machine's costs, from rows through the engine. Raises: PredictError, FabricError, LabLost."""
    rows = (*ENGINE_ROWS, *UPDATE_ROWS, *EAGER_ROWS, *EXCHANGE_ROWS)
    return fit_paced(time_on(LINK, rows, runner, num_repeats))


def fit_paced(times: Sequence[RowTime]) -> Calibrated:
    """The gap with which the virtual clock comes nearest to the rows of messages, in the mean of logarithms."""
    messages = [time for time in times if time.row in EXCHANGE_ROWS]
    model = replace(paced_costs(LINK, LINK.num_ranks), engine=fit_engine(times))

    def error(logarithm: float) -> float:
        costs = _with_gap(model, float(np.exp(logarithm)))
        return float(sum(np.log(row_s(time.row, costs) / time.seconds) ** 2 for time in messages))

    best = minimize_scalar(error, bounds=np.log(GAP_S), method="bounded")
    costs = _with_gap(model, float(np.exp(best.x)))
    fitted = [replace(time, fitted_s=row_s(time.row, costs)) for time in messages]
    residual = max(abs((time.fitted_s or 0.0) / time.seconds - 1) for time in fitted)
    others = [time for time in times if time.row not in EXCHANGE_ROWS]
    return Calibrated(
        kind=FabricKind.PACED,
        num_hosts=LINK.num_ranks,
        rate_bps=None,
        costs=replace(costs, residual=residual, source="measured on a paced link without a rate"),
        rows=(*others, *fitted),
    )
