"""Step times by method, workers and link, from records: what was measured beside what a virtual clock predicts.

Predicted cells are records whose fabric is `simulated`; measured ones may carry their own prediction. Both meet by
suite, workload, batch, number of workers, what the link stands for, and method. Tensors of a replayed cell are S times
smaller and so are the sizes in its strategy; here they are multiplied by S again, so that a method keeps its name over
cells of different S.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from analysis import naming
from analysis.cells import LOCAL, SIMULATED, cell_group_of, fabric_key, is_measured, is_shared, num_workers, step_time_s
from analysis.stats import NOISE, Interval, median_interval, pairs_interval, quantile_interval
from analysis.steps.rows import ErrorRow, PaysRow, Setting, StepRow, StudyRow, on_fabric
from analysis.targets.training import median_phases, visible_phases
from analysis.wording import plural
from results.lines import line_s_per_byte
from results.record import Record

GRADIENT_BYTES = 4
TOO_FEW_STEPS = 2  # of a trial that counts bytes: the first step and the last one wait otherwise than those between
GIVEN = 0.0  # the residual of costs that nobody had to fit, on a modelled link
Key = tuple[Setting, str]


def step_rows(cells: Iterable[Sequence[Record]], suites: Container[str]) -> tuple[StepRow, ...]:
    """Every method in every place, of `suites`; names are short among these."""
    found: dict[Key, StepRow] = {}
    for records in (own for cell in cells for own in _by_suite(cell, suites)):
        row = _row(records)
        key = (row.place, row.method)
        found[key] = _merged(found[key], row) if key in found else row
    rows = [row for row in found.values() if row.system != LOCAL]
    singles = _singles(list(found.values()))
    names = naming.short_names(row.strategy for row in rows)
    return tuple(
        sorted((_completed(replace(row, name=names[row.method]), singles) for row in rows), key=lambda row: _order(row))
    )


def _by_suite(records: Iterable[Record], suites: Container[str]) -> list[list[Record]]:
    """What is usable of a cell; suites may have cells of one name."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record.suite in suites and _is_usable(record):
            found.setdefault(record.suite, []).append(record)
    return list(found.values())


def _is_usable(record: Record) -> bool:
    if is_shared(record) or len(record.jobs) != 1:
        return False
    if record.fabric.label == SIMULATED:
        return _predicted_s(record) is not None
    return is_measured(record) and record.jobs[0].num_steps > TOO_FEW_STEPS


def _predicted_s(record: Record) -> float | None:
    """A predicted record's step time, wherever it says it."""
    if record.prediction is not None and record.prediction.step_time_s is not None:
        return record.prediction.step_time_s
    return step_time_s(record.jobs[0]) if record.jobs[0].step_times_s() else None


def place_of(record: Record) -> Setting:
    """Where a record's method ran or was predicted."""
    fabric, job = record.fabric, record.jobs[0]
    rate = fabric.equivalent_rate_bps or fabric.rate_bps
    return Setting(
        suite=record.suite,
        workload=job.workload,
        batch_size=job.batch_size,
        num_workers=num_workers(record, job),
        gbit=None if rate is None else float(f"{rate / 1e9:.6g}"),
        network=fabric_key(fabric).network,
        cell_group=cell_group_of(record),
        fabric=fabric.kind,
    )


def _row(records: Sequence[Record]) -> StepRow:
    first = records[0]
    job = first.jobs[0]
    ran = naming.method_of(job)
    method = ran.in_real_sizes(first.fabric.size_scale)
    row = StepRow(
        place=place_of(first),
        method=str(method),
        strategy=method,
        name=str(method),
        system=job.system,
        evidence=first.fabric.label,
        phases=median_phases([visible_phases(record.jobs[0]) for record in records]),
        num_messages=job.num_messages,
        num_control_rounds=job.num_control_rounds,
        ids=tuple(record.id for record in records),
        ran=str(ran),
    )
    predictions = [predicted for record in records if (predicted := _predicted_s(record)) is not None]
    if first.fabric.label == SIMULATED:
        return replace(row, predicted_s=statistics.median(predictions))
    by_repeat = tuple((record.repeat, step_time_s(record.jobs[0])) for record in records)
    told = [record.prediction.step_time_s for record in records if record.prediction is not None]
    known = [step_s for step_s in told if step_s is not None]
    return replace(
        row,
        step_time_s=median_interval([step_s for _, step_s in by_repeat]),
        by_repeat=by_repeat,
        predicted_s=statistics.median(known) if known else None,
        bound_s=_all_in_one_s(first),
    )


def _all_in_one_s(record: Record) -> float | None:
    """One message with every gradient by all-reduce: α + β·bytes where they are given and not fitted, else what the
    line's rate needs, since fits of noisy minutes say more; None where no rate is set and nothing was calibrated."""
    fabric, size = record.fabric, GRADIENT_BYTES * record.jobs[0].num_parameters
    if fabric.rate_bps and size and fabric.fit_residual != GIVEN:
        return size * line_s_per_byte(fabric.rate_bps, num_workers(record, record.jobs[0]))
    if fabric.alpha_s is None or fabric.beta_s_per_byte is None or not size:
        return None
    return fabric.alpha_s + fabric.beta_s_per_byte * size


def _merged(a: StepRow, b: StepRow) -> StepRow:
    """The measured and the predicted half of one row; of two of one kind the first. A cell's own prediction is kept."""
    measured, other = (a, b) if a.step_time_s is not None else (b, a)
    predicted_s = measured.predicted_s if measured.predicted_s is not None else other.predicted_s
    return replace(measured, predicted_s=predicted_s, ids=tuple(dict.fromkeys((*measured.ids, *other.ids))))


Single = tuple[float, tuple[str, ...]]  # the step of one worker, and the records that it is of


def _singles(rows: Sequence[StepRow]) -> Callable[[Setting], Single | None]:
    """The step of one worker: alone and measured, of the place's suite and link if they have one; else the computation
    that was predicted."""
    alone = [
        (row.place, row.step_time_s.median, row.ids)
        for row in rows
        if (row.system == LOCAL or row.place.num_workers == 1) and row.step_time_s is not None
    ]
    predicted = [
        (row.place, row.phases.compute_s, row.ids)
        for row in rows
        if row.evidence == SIMULATED and row.phases.compute_s is not None
    ]

    def single(place: Setting) -> Single | None:
        for known in (alone, predicted):
            same = [one for one in known if _work(one[0]) == _work(place)]
            if same:
                own = [one for one in same if one[0].suite == place.suite] or same
                nearest = [one for one in own if one[0].gbit == place.gbit] or own
                return statistics.median(step_s for _, step_s, _ in nearest), tuple(
                    i for *_, ids in nearest for i in ids
                )
        return None

    return single


def _work(place: Setting) -> tuple[str, int]:
    return place.workload, place.batch_size


def _completed(row: StepRow, singles: Callable[[Setting], Single | None]) -> StepRow:
    single_s, ids = singles(row.place) or (None, ())
    bound_s = max(single_s, row.bound_s) if single_s is not None and row.bound_s is not None else None
    return replace(row, single_s=single_s, single_ids=ids, bound_s=bound_s)


def _order(row: StepRow) -> tuple[object, ...]:
    place = row.place
    gbit = math.inf if place.gbit is None else place.gbit
    return place.suite, place.workload, place.batch_size, place.num_workers, gbit, row.system != "ours", row.method


def step_studies(rows: Sequence[StepRow], references: Mapping[str, Sequence[str]]) -> tuple[StudyRow, ...]:
    """The rows by suite and network; `references` are by suite, see `Study.references`."""
    by_study: dict[tuple[str, str, int], list[StepRow]] = {}
    for row in rows:
        by_study.setdefault((row.place.suite, *_work(row.place)), []).append(row)
    return tuple(
        StudyRow(
            suite=suite,
            workload=workload,
            batch_size=batch_size,
            rows=tuple(own),
            reference=_name_of(reference, own),
            pays=pays(own, reference),
        )
        for (suite, workload, batch_size), own in by_study.items()
        for reference in [_reference(references.get(suite, ()), own)]
    )


def _reference(wanted: Sequence[str], rows: Sequence[StepRow]) -> str:
    methods = sorted({row.method for row in rows}, key=len)
    return next((method for start in wanted for method in methods if method.startswith(start)), "")


def _name_of(method: str, rows: Sequence[StepRow]) -> str:
    return next((row.name for row in rows if row.method == method), "")


def pays(rows: Sequence[StepRow], reference: str) -> tuple[PaysRow, ...]:
    """For each method, number of workers and kind of link the rates at which it beats the reference, between rates
    interpolated."""
    found: list[PaysRow] = []
    by_network: dict[Setting, list[StepRow]] = {}
    for row in rows:
        if row.place.gbit is not None:
            by_network.setdefault(row.place.without_rate, []).append(row)
    for network, here in sorted(by_network.items(), key=lambda one: one[0].num_workers):
        for method in dict.fromkeys(row.method for row in here if row.method != reference):
            curves = (("measured", _median), ("predicted", _predicted))
            gains = {basis: _gains(here, reference, method, value) for basis, value in curves}
            basis = max(gains, key=lambda one: len(gains[one]))  # of equally many rates those that were measured
            if len(gains[basis]) > 1:
                one = PaysRow(
                    name=_name_of(method, here),
                    num_workers=network.num_workers,
                    ranges=paying_ranges(gains[basis]),
                    rates=(gains[basis][0][0], gains[basis][-1][0]),
                    basis=basis,
                    where=network.where,
                )
                found.append(one)
    return tuple(found)


def _gains(
    rows: Sequence[StepRow], reference: str, method: str, value: Callable[[StepRow], float | None]
) -> list[tuple[float, float]]:
    """A step of the reference over one of the method at each rate that both know, in order."""
    theirs, own = _curve(rows, reference, value), _curve(rows, method, value)
    return [(gbit, theirs[gbit] / own[gbit]) for gbit in sorted(own.keys() & theirs.keys())]


def _predicted(row: StepRow) -> float | None:
    return row.predicted_s


def _median(row: StepRow) -> float | None:
    return row.step_time_s.median if row.step_time_s is not None else None


def _curve(rows: Sequence[StepRow], method: str, value: Callable[[StepRow], float | None]) -> Mapping[float, float]:
    # Of two rows at one rate the first counts.
    known = [(row.place.gbit, value(row)) for row in reversed(rows) if row.method == method]
    return {gbit: step_s for gbit, step_s in known if gbit is not None and step_s is not None}


def paying_ranges(gains: Sequence[tuple[float, float]]) -> tuple[tuple[float | None, float | None], ...]:
    """Ranges of the rate where the gain, a step of the reference over one here, is above 1 by more than noise.

    Between neighbours the logarithm of the gain is taken as linear in that of the rate.
    """
    heights = [(gbit, math.log(gain) - math.log1p(NOISE)) for gbit, gain in gains]
    ranges: list[tuple[float | None, float | None]] = []
    start: float | None = None
    paying = heights[0][1] > 0
    for (low, before), (high, after) in itertools.pairwise(heights):
        if (before > 0) != (after > 0):
            share = before / (before - after)
            crossing = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
            if paying:
                ranges.append((start, crossing))
            start, paying = crossing, not paying
    return (*ranges, (start, None)) if paying else tuple(ranges)


def error_rows(rows: Sequence[StepRow]) -> tuple[ErrorRow, ...]:
    """How far predictions lie from measurements: over all cells first, then by fabric, workers, network and suite."""
    known = [row for row in rows if row.error is not None]
    if not known:
        return ()
    kinds: tuple[Callable[[StepRow], str], ...] = (
        lambda row: on_fabric(row.place.fabric),
        lambda row: plural(row.place.num_workers, "worker"),
        lambda row: row.place.workload,
        lambda row: f"suite {row.place.suite}",
    )
    parts = [errors_of("all", known)]
    for kind in kinds:
        groups = dict.fromkeys(map(kind, known))
        parts += [errors_of(group, [row for row in known if kind(row) == group]) for group in groups]
    return tuple(parts)


def errors_of(name: str, rows: Sequence[StepRow]) -> ErrorRow:
    """The statistics of these rows, which have both a measurement and a prediction."""
    signed = [row.error for row in rows if row.error is not None]
    sizes = [abs(error) for error in signed]
    tau, num_pairs = kendall_tau(rows)
    return ErrorRow(
        of=name,
        num_cells=len(signed),
        median=median_interval(sizes),
        p95=quantile_interval(sizes, 0.95),
        worst=max(sizes),
        bias=statistics.median(signed),
        tau=tau,
        num_pairs=num_pairs,
        fewest_repeats=min(row.num_repeats for row in rows),
        cells=tuple(row.ids for row in rows),
    )


def kendall_tau(rows: Sequence[StepRow]) -> tuple[Interval | None, int]:
    """Kendall's τ of measured and predicted order over pairs of methods in one place whose intervals are disjoint
    and whose medians differ by more than noise.

    Its interval is over rows and not over pairs, which share rows.
    """
    signs = {
        (i, j): _sign((a.step_time_s.median - b.step_time_s.median) * (a.predicted_s - b.predicted_s))
        for (i, a), (j, b) in itertools.combinations(enumerate(rows), 2)
        if a.place == b.place and a.step_time_s is not None and b.step_time_s is not None
        if a.predicted_s is not None and b.predicted_s is not None and _differ(a.step_time_s, b.step_time_s)
    }
    return (pairs_interval(signs, len(rows)) if signs else None), len(signs)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _differ(a: Interval, b: Interval) -> bool:
    """Surely, and by more than the 1 % below which nobody would prefer one."""
    less, more = sorted((a, b), key=lambda own: own.median)
    return less.has_bounds and more.has_bounds and less.high < more.low and more.median > (1 + NOISE) * less.median
