"""Compression from records: bits and seconds of each method, the links on which it pays, and time to the target."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from analysis.cells import LOCAL, SIMULATED, is_measured, is_untimed, step_time_s
from analysis.codes.rows import CompressionStudy, MethodRow, PaysBelow, SoonerRow, Threshold
from analysis.codes.sent import coded_bits, facts_of, mean_bits
from analysis.corrections import overrun
from analysis.naming import method_of
from analysis.stats import Interval, median_interval
from analysis.steps.rows import Setting
from analysis.steps.times import paying_ranges, place_of
from analysis.targets.rows import Price, TargetRow, TargetStudy
from analysis.targets.training import median_phases, visible_phases
from results.facts import Role
from results.record import Record, Status

FEWEST_RATES = 2
Rows = Sequence[MethodRow]
ByRepeat = Mapping[int, float]


def compression_study(
    groups: Iterable[Sequence[Record]], targets: Sequence[TargetStudy], suites: Container[str]
) -> CompressionStudy:
    """Everything of `suites`; empty where there are no records of them."""
    rows = _rows(groups, suites)
    own = [target for target in targets if target.suite in suites]
    return CompressionStudy(rows=rows, pays=pays_of(rows), sooner=_sooner(rows, own))


def _rows(groups: Iterable[Sequence[Record]], suites: Container[str]) -> tuple[MethodRow, ...]:
    found: dict[tuple[Setting, str], MethodRow] = {}
    for records in groups:
        alone = [r for r in records if r.suite in suites and len(r.jobs) == 1 and r.jobs[0].system != LOCAL]
        # Times that do not count take nothing from what was sent, which is exact.
        ended = [r for r in alone if is_measured(r) or is_untimed(r)]
        if own := ended or [r for r in alone if r.status is Status.INVALID]:
            row = _row(own)
            key = row.place, row.name
            found[key] = _merged(found[key], row) if key in found else row
    return tuple(sorted(found.values(), key=_order))


def _row(records: Sequence[Record]) -> MethodRow:
    first = records[0]
    job = first.jobs[0]
    ran = method_of(job)
    method = ran.in_real_sizes(first.fabric.size_scale)
    place = place_of(first)
    code = facts_of(job, place.num_workers)
    share = code.sent_share
    told = [r.prediction.step_time_s for r in records if r.prediction and r.prediction.step_time_s is not None]
    timed = [record for record in records if is_measured(record) and not overrun(record)]
    by_repeat = tuple((record.repeat, step_time_s(record.jobs[0])) for record in timed)
    is_foretold = first.fabric.label == SIMULATED
    return MethodRow(
        place=place,
        name=first.label or str(method),
        method=str(method),
        system=job.system,
        evidence=first.fabric.label,
        phases=median_phases([visible_phases(record.jobs[0]) for record in records]),
        step_time_s=None if is_foretold or not timed else median_interval([step_s for _, step_s in by_repeat]),
        by_repeat=() if is_foretold else by_repeat,
        predicted_s=statistics.median(told) if told else by_repeat[0][1] if is_foretold and timed else None,
        # A clock tells of a step behind the warm-up.
        bits=mean_bits(records) if is_foretold else coded_bits(records, code),
        mean_bits=mean_bits(records),
        bits_with_warm_up=code.ramp_steps > 0,
        share=share,
        theory_bits=None if code.bits_per_element is None or share is None else code.bits_per_element * share,
        role=job.role,
        charge=job.charge,
        warm_up_steps=max(code.dense_steps, code.ramp_steps),
        ids=tuple(record.id for record in records),
        ran=str(ran),
    )


def _merged(a: MethodRow, b: MethodRow) -> MethodRow:
    """The half that was run, timed if one is, with the clock's own prediction, which holds no machine, or its own; of
    two of one kind the first."""
    measured, other = (
        (a, b) if (a.step_time_s is not None, a.was_run) >= (b.step_time_s is not None, b.was_run) else (b, a)
    )
    clock = next((row for row in (other, measured) if row.evidence == SIMULATED), measured)
    return replace(
        measured,
        predicted_s=clock.predicted_s or measured.predicted_s,
        ids=tuple(dict.fromkeys((*measured.ids, *clock.ids))),
    )


def _order(row: MethodRow) -> tuple[object, ...]:
    place = row.place
    gbit = math.inf if place.gbit is None else place.gbit
    return place.workload, place.batch_size, place.num_workers, gbit, not row.is_dense, not row.is_rival, row.name


# ---- where a method pays


def pays_of(rows: Rows) -> tuple[PaysBelow, ...]:
    """For each method in each place the rates at which it pays, where two or more are known."""
    found = []
    for here in _by_work(rows):
        for name in dict.fromkeys(row.name for row in here if not row.is_dense):
            own = [row for row in here if row.name == name]
            curves = _measured_gains(own, here) or _predicted_gains(own, here)
            threshold = _threshold(curves, "measured" if _measured_gains(own, here) else "predicted")
            if threshold is not None:
                place = own[0].place
                found.append(
                    PaysBelow(
                        name=name,
                        workload=place.workload,
                        num_workers=place.num_workers,
                        where=place.without_rate.where,
                        threshold=threshold,
                        unshaped=_unshaped(own, here),
                    )
                )
    return tuple(found)


def _by_work(rows: Rows) -> list[list[MethodRow]]:
    """Rows that differ in the method and the link's rate alone."""
    groups: dict[Setting, list[MethodRow]] = {}
    for row in rows:
        groups.setdefault(row.place.without_rate, []).append(row)
    return list(groups.values())


def rivals_of(row: MethodRow, rows: Rows) -> list[MethodRow]:
    """What a method has to beat in its place: float32 and half, of which a half has to beat float32."""
    allowed = [other for other in rows if other.place == row.place and other.is_rival]
    return [other for other in allowed if other.is_dense] if row.is_rival else allowed


def gains_of(row: MethodRow, rows: Rows) -> dict[int, float]:
    """By repeat, the shortest of the rivals' steps over this one's."""
    rivals = [dict(other.by_repeat) for other in rivals_of(row, rows) if other.by_repeat]
    return {
        repeat: min(rival[repeat] for rival in rivals) / step_s
        for repeat, step_s in row.by_repeat
        if rivals and all(repeat in rival for rival in rivals)
    }


def _measured_gains(own: Rows, here: Rows) -> list[list[tuple[float, float]]]:
    """A curve per repeat: (Gbit/s, gain), for repeats that were run at every rate."""
    by_rate = {row.place.gbit: gains_of(row, here) for row in own if row.place.gbit is not None and row.by_repeat}
    return _curves({gbit: gains for gbit, gains in by_rate.items() if gbit is not None and gains})


def _curves(by_rate: Mapping[float, ByRepeat]) -> list[list[tuple[float, float]]]:
    if len(by_rate) < FEWEST_RATES:
        return []
    repeats = set.intersection(*(set(gains) for gains in by_rate.values()))
    return [[(gbit, by_rate[gbit][repeat]) for gbit in sorted(by_rate)] for repeat in sorted(repeats)]


def _predicted_gains(own: Rows, here: Rows) -> list[list[tuple[float, float]]]:
    curve = []
    for row in own:
        known = [other.predicted_s for other in rivals_of(row, here)]
        rivals = [step_s for step_s in known if step_s is not None]
        if row.place.gbit is not None and row.predicted_s and rivals:
            curve.append((row.place.gbit, min(rivals) / row.predicted_s))
    return [sorted(curve)] if len(curve) >= FEWEST_RATES else []


def _threshold(curves: Sequence[Sequence[tuple[float, float]]], basis: str) -> Threshold | None:
    """The end of the lowest rates at which a curve's gain is above 1 by more than noise, repeat by repeat."""
    if not curves:
        return None
    ranges = [paying_ranges(curve) for curve in curves]
    ends = [_end(own) for own in ranges]
    return Threshold(
        gbit=median_interval(ends),
        lowest=curves[0][0][0],
        highest=curves[0][-1][0],
        basis=basis,
        again=any(low is not None for own in ranges for low, _ in own),
    )


def _end(ranges: Sequence[tuple[float | None, float | None]]) -> float:
    if not ranges or ranges[0][0] is not None:
        return 0.0
    return math.inf if ranges[0][1] is None else ranges[0][1]


def _unshaped(own: Rows, here: Rows) -> Interval | None:
    gains = [gain for row in own if row.place.gbit is None for gain in gains_of(row, here).values()]
    return median_interval(gains) if gains else None


# ---- time to the target


def _sooner(rows: Rows, targets: Sequence[TargetStudy]) -> tuple[SoonerRow, ...]:
    found = []
    for study in targets:
        home = _home(rows, study)
        if home is not None and home.gbit is not None:
            here = [row for row in rows if row.place.without_rate == home.without_rate]
            found += [_sooner_row(row, study, here, home.gbit) for row in study.rows if row.role is not Role.DENSE]
    return tuple(found)


def _home(rows: Rows, study: TargetStudy) -> Setting | None:
    """Where the study's records were trained."""
    ids = set(study.dense.record_ids)
    return next((row.place for row in rows if ids & set(row.ids)), None)


def _sooner_row(row: TargetRow, study: TargetStudy, here: Rows, home: float) -> SoonerRow:
    complete = row.reaches and study.dense.reaches
    by_rate: dict[float, ByRepeat] = {}
    unshaped: ByRepeat = {}
    if complete:
        for gbit in sorted({at.place.gbit for at in here if at.place.gbit is not None}):
            if gains := _gains_at(row, study, here, gbit, home):
                by_rate[gbit] = gains
        unshaped = _gains_at(row, study, here, None, home)
    dense = [own for own in study.rows if own.role is Role.DENSE and own.reaches]
    lost_too = list(_gains_at(row, study, here, home, home).values())
    return SoonerRow(
        name=row.name,
        workload=study.workload,
        home_gbit=home,
        gains=tuple((gbit, median_interval(list(gains.values()))) for gbit, gains in by_rate.items()),
        threshold=_threshold(_curves(by_rate), "measured steps") if by_rate else None,
        num_reached=row.num_reached,
        num_repeats=len(row.prices),
        unshaped=median_interval(list(unshaped.values())) if unshaped else None,
        lost_too=median_interval(lost_too) if lost_too else None,
        of=(*(own.record_ids for own in dense), row.record_ids),
    )


def _gains_at(row: TargetRow, study: TargetStudy, here: Rows, gbit: float | None, home: float) -> ByRepeat:
    """Float32's time to the target over the method's, by repeat."""
    theirs, own = _dense_s(study, here, gbit, home), _times_s(row, study, here, gbit, home)
    return {repeat: theirs[repeat] / own[repeat] for repeat in theirs.keys() & own.keys()}


def _dense_s(study: TargetStudy, here: Rows, gbit: float | None, home: float) -> dict[int, float]:
    """The sooner of float32's packings, by repeat."""
    known = [_times_s(row, study, here, gbit, home) for row in study.rows if row.role is Role.DENSE and row.reaches]
    every = set.intersection(*map(set, known)) if known else set()
    return {repeat: min(times[repeat] for times in known) for repeat in every}


def _times_s(row: TargetRow, study: TargetStudy, here: Rows, gbit: float | None, home: float) -> dict[int, float]:
    """Seconds to the target by repeat: as measured at home, else steps times the step there, a warm-up's dense ones."""
    if gbit == home:
        return row.times_s_by_repeat
    own = _at(here, row.name, gbit)
    dense = _at(here, study.dense.name, gbit)
    if own is None or dense is None:
        return {}
    steps, full = dict(own.by_repeat), dict(dense.by_repeat)
    return {
        price.repeat: _steps_s(price, own.warm_up_steps, steps[price.repeat], full[price.repeat])
        for price in row.prices
        if price.repeat in steps and price.repeat in full
    }


def _steps_s(price: Price, warm_up: int, step_s: float, dense_s: float) -> float:
    warm = min(price.steps, warm_up)
    return warm * dense_s + (price.steps - warm) * step_s


def _at(rows: Rows, name: str, gbit: float | None) -> MethodRow | None:
    return next((row for row in rows if (row.name, row.place.gbit) == (name, gbit) and row.by_repeat), None)
