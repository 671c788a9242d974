"""What messages cost on a fabric, from micro-benchmarks alone, and a file to keep it in.

Rows of messages are timed through the engine on all hosts (`rows`). The costs are those with which the virtual clock
gives the rows' times: the same model that is then asked about training. For numbers of workers that were not measured,
a primitive's α is `steps(P) · a + b` and its β `share(P) · s`, with the steps and shares of its usual algorithm (ring
all-reduce: 2(P−1) and 2(P−1)/P); a, b and s are fitted over the numbers that were, and the costs say
that they are extrapolated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
import scipy  # `scipy.optimize` takes half a second and is loaded by whoever fits

from baselines.strategy import parse_strategy
from fabric.api import FabricKind, FabricSpec, format_rate
from harness.calibrate import slowest_median_s
from harness.lab.labs import Labs, TaskRunner
from harness.lab.messages import Ending, LinkQuestion, Probe, Row, Task
from harness.predict.costs import (
    RING_STEPS,
    Cost,
    EngineCosts,
    LinkCosts,
    PredictError,
    hop_of,
    ring_theory,
)
from harness.predict.layers import plain_layers
from harness.predict.step import predict_exchange_s
from results.codec import CodecError, to_jsonable
from results.files import read_as, write_json
from results.lines import line_s_per_byte
from results.record import Environment

ONE_LANE, NEGOTIATED = "unfused+fifo(depth=1)", "tensor-fusion(threshold_bytes=0, cycle_s=0.0)"
ENGINE_ROWS = (
    Row(probe=Probe.ENGINE, num_tensors=32, num_bytes=4_096),
    Row(probe=Probe.ENGINE, num_tensors=8, num_bytes=1 << 20),
)
UPDATE_ROWS = tuple(
    Row(probe=Probe.UPDATE, num_tensors=num, num_bytes=size) for num, size in ((4, 4_096), (160, 4_096), (4, 1 << 20))
)
EAGER_ROWS = (Row(probe=Probe.EAGER_UPDATE, num_tensors=160, num_bytes=4_096),)
RING_ROWS = tuple(
    Row(probe=Probe.EXCHANGE, num_tensors=num, num_bytes=size, strategy=strategy)
    for strategy, num, size in (
        (ONE_LANE, 1, 4_096),
        (ONE_LANE, 32, 4_096),
        (ONE_LANE, 1, 65_536),
        (ONE_LANE, 8, 65_536),
        (ONE_LANE, 1, 524_288),
        (ONE_LANE, 3, 524_288),
        (ONE_LANE, 1, 2_097_152),
        ("unfused", 64, 4_096),
        ("unfused", 16, 65_536),
        ("unfused", 4, 524_288),
        ("unfused", 3, 2_097_152),
        (NEGOTIATED, 1, 4_096),
    )
)
OTHER_EXCHANGES = {"all-gather": "AllGather", "ring": "Transfer", "parameter-server": "AllToAll"}
CODECS = ("half", "topk(density=0.01)+error-feedback")
# Limits of the search: without them a row that noise spoiled pulls α to nothing.
PLAUSIBLE_S = (1e-7, 1e-1)
MOST_OF_LINE = 1.1  # β over what the line needs
UNSHAPED_S_PER_BYTE = (1e-12, 1e-5)  # limits of β of a ring where no line is known
NUM_REPEATS = 7
FARTHEST = 2.0  # times the hosts and the rates measured, to which costs are extrapolated


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTime:
    """A row, its median time on the slowest rank in seconds, and what the fitted costs give."""

    row: Row
    seconds: float
    fitted_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """One fabric's costs, with the rows that they come from."""

    kind: FabricKind
    num_hosts: int
    rate_bps: float | None
    costs: LinkCosts
    rows: tuple[RowTime, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Everything measured on one machine."""

    entries: tuple[Calibrated, ...] = ()
    environment: Environment = field(default_factory=Environment)

    def costs(self, kind: FabricKind, world: int, rate_bps: float | None) -> LinkCosts:
        """Costs among `world` workers: as measured where they were, else extrapolated from those near by.

        Raises: PredictError where nothing is known of such a fabric, or only of far fewer hosts or other rates.
        """
        if world == 1:
            return self._alone(kind)
        of_kind = [entry for entry in self.entries if entry.kind is kind and entry.num_hosts > 1]
        for entry in of_kind:
            # Measured beats fitted: an exact entry is never mixed with others.
            if (entry.num_hosts, entry.rate_bps) == (world, rate_bps):
                return entry.costs
        alike = [entry for entry in of_kind if entry.rate_bps == rate_bps]
        # Other rates only where there are none of this one: α hardly depends on the rate and β scales with it.
        alike = alike or [entry for entry in of_kind if entry.rate_bps and rate_bps]
        if not alike:
            known = ", ".join(sorted({f"{e.kind} at {format_rate(e.rate_bps)}" for e in self.entries})) or "nothing"
            raise PredictError(
                f"no costs are known of the {kind} fabric at {format_rate(rate_bps)}; measured is {known}. "
                "Measure it with `crossover-bench predict --calibrate`, or give --alpha"
            )
        _check_near(alike, world, rate_bps)
        return extrapolated(alike, world, rate_bps)

    def _alone(self, kind: FabricKind) -> LinkCosts:
        """One worker: nothing to send, but the same updates as on the fewest hosts that were measured."""
        entries = [entry for entry in self.entries if entry.kind is kind] or list(self.entries)
        engine = min(entries, key=lambda e: e.num_hosts).costs.engine if entries else EngineCosts()
        return LinkCosts(world=1, primitives={RING_STEPS: Cost(0.0, 0.0)}, engine=engine, source="one worker")


def _check_near(entries: Sequence[Calibrated], world: int, rate_bps: float | None) -> None:
    """α of 8 emulated hosts on one machine says nothing of 512 hosts. Raises: PredictError."""
    worlds = sorted({entry.num_hosts for entry in entries})
    rates = sorted({entry.rate_bps for entry in entries if entry.rate_bps})
    is_near = not (rate_bps and rates) or rates[0] / FARTHEST <= rate_bps <= FARTHEST * rates[-1]
    if world > FARTHEST * worlds[-1] or not is_near:
        raise PredictError(
            f"{world} hosts at {format_rate(rate_bps)} are more than {FARTHEST:g} times beyond what was measured: "
            f"{', '.join(map(str, worlds))} hosts at {', '.join(map(format_rate, rates)) or 'no rate'}. Measure nearer "
            "with --calibrate, or leave the calibration out and give --alpha"
        )


def extrapolated(entries: Sequence[Calibrated], world: int, rate_bps: float | None) -> LinkCosts:
    """Costs among `world` workers at `rate_bps` from entries of one kind of fabric."""
    names = [name for name in entries[0].costs.primitives if all(name in e.costs.primitives for e in entries)]
    primitives = {name: _extrapolated_cost(name, entries, world, rate_bps) for name in names}
    worlds = sorted({entry.num_hosts for entry in entries})
    rates = sorted({format_rate(entry.rate_bps) for entry in entries})
    fewest = min(entries, key=lambda entry: entry.num_hosts)
    return LinkCosts(
        world=world,
        primitives=primitives,
        occupied=fmean(entry.costs.occupied for entry in entries),
        overlap=fmean(entry.costs.overlap for entry in entries),
        engine=fewest.costs.engine,
        residual=max(entry.costs.residual for entry in entries),
        source=f"extrapolated from P = {', '.join(map(str, worlds))} at {', '.join(rates)}",
    )


def _extrapolated_cost(name: str, entries: Sequence[Calibrated], world: int, rate_bps: float | None) -> Cost:
    """α = steps·a + b and β = share·s/rate; with one number of workers b is 0."""
    known = [entry.costs.primitives[name] for entry in entries]
    steps = np.array([ring_theory(name, entry.num_hosts, Cost(1.0, 0.0)).alpha_s for entry in entries])
    shares = [ring_theory(name, entry.num_hosts, Cost(0.0, 1.0)).beta_s_per_byte for entry in entries]
    alphas = np.array([cost.alpha_s for cost in known])
    # One number of workers cannot tell a slope from a constant.
    columns = [steps, np.ones_like(steps)] if len(set(steps.tolist())) > 1 else [np.maximum(steps, 1.0)]
    fitted, _ = scipy.optimize.nnls(np.stack(columns, axis=1), alphas)
    here = ring_theory(name, world, Cost(1.0, 1.0))
    alpha_s = float(fitted[0]) * (here.alpha_s if len(columns) > 1 or steps[0] else 1.0) + sum(map(float, fitted[1:]))
    scaled = [
        cost.beta_s_per_byte / share * (entry.rate_bps / rate_bps if entry.rate_bps and rate_bps else 1.0)
        for cost, share, entry in zip(known, shares, entries, strict=True)
        if share
    ]
    return Cost(alpha_s, here.beta_s_per_byte * median(scaled) if scaled else 0.0)


# ---- measuring


def measure(
    fabrics: Sequence[FabricSpec],
    environment: Environment,
    *,
    runner: TaskRunner | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Calibration:
    """Run the micro-benchmarks on every fabric. Raises: PredictError, FabricError, LabLost."""
    entries, runner = [], runner or Labs()
    try:
        for fabric in fabrics:
            say(f"{fabric.num_hosts} hosts at {format_rate(fabric.rate_bps)}")
            entries.append(measure_one(fabric, runner))
    finally:
        runner.close()
    return Calibration(entries=tuple(entries), environment=environment)


def measure_one(
    fabric: FabricSpec, runner: TaskRunner, *, num_repeats: int = NUM_REPEATS, others: bool = True
) -> Calibrated:
    """One fabric; `others`: also exchanges beside all-reduce and the codecs."""
    rows = [*ENGINE_ROWS, *UPDATE_ROWS, *EAGER_ROWS, *RING_ROWS]
    if others:
        rows += [replace(row, strategy=f"unfused+{codec}") for codec in CODECS for row in ENGINE_ROWS]
        rows += [row for name in OTHER_EXCHANGES for row in _rows_of_exchange(name)]
    return fit(fabric, time_on(fabric, rows, runner, num_repeats))


def time_on(fabric: FabricSpec, rows: Sequence[Row], runner: TaskRunner, num_repeats: int) -> list[RowTime]:
    """Each row's median on the slowest rank of `fabric`. Raises: PredictError, FabricError, LabLost."""
    question = LinkQuestion(fabric=fabric, rows=tuple(rows), num_repeats=num_repeats, timeout_s=300.0)
    answer = runner.ask(Task(links=question), lambda event: None)
    if answer.ending is not Ending.DONE:
        raise PredictError(f"calibration of the {fabric.kind} fabric failed: {answer.reason}")
    return [
        RowTime(row=row, seconds=slowest_median_s([link.times_s[place] for link in answer.links]))
        for place, row in enumerate(rows)
    ]


def _rows_of_exchange(name: str) -> tuple[Row, Row]:
    strategy = f"{ONE_LANE}+{name}"
    small = Row(probe=Probe.EXCHANGE, num_tensors=4, num_bytes=4_096, strategy=strategy)
    return small, replace(small, num_tensors=2, num_bytes=131_072)


# ---- fitting


def fit(fabric: FabricSpec, times: Sequence[RowTime]) -> Calibrated:
    """The costs that give these rows."""
    engine = fit_engine(times)
    ring = [time for time in times if time.row in RING_ROWS]
    costs = _fit_ring(fabric, engine, ring)
    for exchange, primitive in OTHER_EXCHANGES.items():
        own = [time for time in times if time.row in _rows_of_exchange(exchange)]
        if own:
            costs = _fit_primitive(fabric, costs, primitive, own)
    fitted = tuple(
        replace(time, fitted_s=row_s(time.row, costs)) if time.row.probe is Probe.EXCHANGE else time for time in times
    )
    errors = [abs(time.fitted_s / time.seconds - 1) for time in fitted if time.fitted_s and time.row in RING_ROWS]
    source = f"measured on the {fabric.kind} fabric, {fabric.num_hosts} hosts at {format_rate(fabric.rate_bps)}"
    return Calibrated(
        kind=fabric.kind,
        num_hosts=fabric.num_hosts,
        rate_bps=fabric.rate_bps,
        costs=replace(costs, residual=max(errors), source=source),
        rows=fitted,
    )


def refitted(calibration: Calibration) -> Calibration:
    """The same measurements with their costs fitted again; an entry without all rows that this takes stays as it is."""
    needed = {*ENGINE_ROWS, *UPDATE_ROWS, *EAGER_ROWS, *RING_ROWS}
    entries = tuple(
        fit(FabricSpec(kind=entry.kind, num_hosts=entry.num_hosts, rate_bps=entry.rate_bps), entry.rows)
        if entry.num_hosts > 1 and needed <= {time.row for time in entry.rows}
        else entry
        for entry in calibration.entries
    )
    return replace(calibration, entries=entries)


def row_s(row: Row, costs: LinkCosts) -> float:
    """What the virtual clock gives for a row of messages."""
    none_s = [0.0] * row.num_tensors
    layers = plain_layers(none_s, none_s, [max(1, row.num_bytes // 4)] * row.num_tensors)
    return predict_exchange_s(layers, parse_strategy(row.strategy), costs)


def fit_engine(times: Sequence[RowTime]) -> EngineCosts:
    """What messages and updates cost without a network; the wake-up is not among it."""
    by_row = {time.row: time.seconds for time in times}
    message_s, per_byte = _line([(row.num_bytes, by_row[row] / row.num_tensors) for row in ENGINE_ROWS])
    matrix = [[1.0, row.num_tensors, row.num_tensors * row.num_bytes] for row in UPDATE_ROWS]
    update, _ = scipy.optimize.nnls(np.array(matrix), np.array([by_row[row] for row in UPDATE_ROWS]))
    codecs = {}
    for codec in CODECS:
        large = replace(ENGINE_ROWS[-1], strategy=f"unfused+{codec}")
        if large in by_row:
            extra_s = (by_row[large] - by_row[ENGINE_ROWS[-1]]) / large.num_tensors / large.num_bytes
            codecs[parse_strategy(codec).compression.card.name] = max(0.0, extra_s)
    per_tensor_s, (eager,) = float(update[1]), EAGER_ROWS
    return EngineCosts(
        message_s=message_s,
        message_s_per_byte=per_byte,
        update_s=float(update[0]),
        update_s_per_tensor=per_tensor_s,
        update_s_per_byte=float(update[2]),
        eager_s=max(0.0, by_row[eager] / eager.num_tensors - per_tensor_s),
        codec_s_per_byte=codecs,
    )


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Start and slope ≥ 0 through points (bytes, seconds)."""
    matrix = np.array([[1.0, size] for size, _ in points])
    (start, slope), _ = scipy.optimize.nnls(matrix, np.array([seconds for _, seconds in points]))
    return float(start), float(slope)


def _fit_ring(fabric: FabricSpec, engine: EngineCosts, times: Sequence[RowTime]) -> LinkCosts:
    """α, β, control α and wake-up on a logarithmic scale, the two shares on a plain one. Errors are relative, and weigh
    as the root of what the row takes: what is predicted is mostly the link's time, and an error of a tenth in it is not
    made up by a short row that fits. β is what the line needs, headers included, and at most a tenth more: short rows
    seem faster, since the shaper lets a few packets pass at once, and a row that the machine delayed slower.
    """
    world = fabric.num_hosts

    def costs_at(x: np.ndarray) -> LinkCosts:
        alpha_s, beta, control_s, wake_s = (float(value) for value in np.exp(x[:4]))
        control = {
            name: Cost(control_s, ring_theory(name, world, hop_of(Cost(0.0, beta), world)).beta_s_per_byte)
            for name in ("Gather", "Broadcast")
        }
        primitives = {RING_STEPS: Cost(alpha_s, beta), **control}
        return LinkCosts(
            world=world,
            primitives=primitives,
            occupied=float(x[4]),
            overlap=float(x[5]),
            engine=replace(engine, wake_s=wake_s),
        )

    def errors(x: np.ndarray) -> list[float]:
        costs = costs_at(x)
        return [
            weight * float(np.log(row_s(time.row, costs) / time.seconds))
            for weight, time in zip(weights, times, strict=True)
        ]

    longest_s = max(time.seconds for time in times)
    weights = [(time.seconds / longest_s) ** 0.5 for time in times]
    small, large = (next(t for t in times if t.row == RING_ROWS[place]) for place in (1, 5))
    alpha_s = max(1e-6, small.seconds / small.row.num_tensors - engine.message_s)
    # What the large row takes beyond a start-up, per byte; the search only needs the order of magnitude.
    beta = max(1e-11, (large.seconds / large.row.num_tensors - alpha_s) / large.row.num_bytes)
    low, high = np.log(PLAUSIBLE_S)
    fastest, slowest = np.log(_plausible_betas(fabric))
    # Logarithms keep times positive and make a factor of two weigh the same at any size.
    start = [np.log(alpha_s), np.log(beta), np.log(alpha_s), np.log(1e-4), 0.3, 0.5]
    limits = ([low, fastest, low, low, 0.0, 0.0], [high, slowest, high, np.log(1e-2), 1.0, 1.0])
    found = scipy.optimize.least_squares(errors, np.clip(start, *limits), bounds=limits, diff_step=1e-3, max_nfev=40)
    return costs_at(found.x)


def _plausible_betas(fabric: FabricSpec, primitive: str = RING_STEPS) -> tuple[float, float]:
    """Limits of the search for β in seconds per byte of the primitive's tensor: the line's, and a tenth more."""
    line = line_s_per_byte(fabric.rate_bps, fabric.num_hosts) if fabric.rate_bps else None
    limits = UNSHAPED_S_PER_BYTE if line is None else (line, MOST_OF_LINE * line)
    hops = (hop_of(Cost(0.0, beta), fabric.num_hosts) for beta in limits)
    fastest, slowest = (ring_theory(primitive, fabric.num_hosts, hop).beta_s_per_byte for hop in hops)
    return fastest, slowest


def _fit_primitive(fabric: FabricSpec, costs: LinkCosts, primitive: str, times: Sequence[RowTime]) -> LinkCosts:
    """α and β of one more primitive, from a small and a large row of an exchange made of it. Its β has the limits that
    the ring's has: without them a large row that noise made shorter than a small one takes β to nothing, and messages
    that are larger still are then predicted faster than their line."""

    def with_cost(x: np.ndarray) -> LinkCosts:
        own: Mapping[str, Cost] = {primitive: Cost(float(np.exp(x[0])), float(np.exp(x[1])))}
        return replace(costs, primitives={**costs.primitives, **own})

    def errors(x: np.ndarray) -> list[float]:
        known = with_cost(x)
        return [float(np.log(row_s(time.row, known) / time.seconds)) for time in times]

    guess = costs.of(primitive)
    limits = np.log([PLAUSIBLE_S, _plausible_betas(fabric, primitive)]).T
    start = np.clip(np.log([guess.alpha_s, guess.beta_s_per_byte]), *limits)
    found = scipy.optimize.least_squares(errors, start, bounds=limits, diff_step=1e-3, max_nfev=30)
    return with_cost(found.x)


# ---- the file


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write it as JSON, in one step."""
    write_json(path, to_jsonable(calibration))


def read_calibration(path: Path) -> Calibration:
    """Raises: PredictError if the file is not there or is no calibration."""
    try:
        return read_as(Calibration, path)
    except FileNotFoundError:
        raise PredictError(
            f"no calibration at {path}; measure one with `crossover-bench predict --calibrate --calibration {path}`, "
            "or give --alpha"
        ) from None
    except (OSError, CodecError) as error:
        raise PredictError(f"{path} is no calibration ({error}); measure it again with --calibrate") from error
