"""Curves from pairs: the same question asked at several values of one quantity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from analysis.sharing.axes import HOSTS, JOBS, RHO, axis_of, order_of
from analysis.sharing.rows import CROSSOVER, PHASE, PairRow, SeriesRow, SharingRow, SweepRow

Located = tuple[float, PairRow]


def sweeps(pairs: Sequence[PairRow]) -> tuple[SweepRow, ...]:
    """Every sweep of the pairs, in order of the table of axes and of title, also those with one value alone."""
    groups: dict[tuple[object, ...], list[Located]] = {}
    for pair in pairs:
        if pair.axis and pair.at is not None:
            groups.setdefault(_question(pair), []).append((pair.at, pair))
    found = [_sweep(located, pairs) for group in groups.values() for located in _without_doubles(group)]
    found += [_phase_sweep(pair) for pair in pairs if pair.phases is not None]
    return tuple(sorted(found, key=lambda sweep: (order_of(sweep.axis), sweep.axis, sweep.title, sweep.group)))


def overlaps(pair: PairRow) -> bool:
    """Whether messages leave during backward in any of the jobs: a single one leaves when backward is over."""
    return any(job.num_messages is None or job.num_messages > 1 for job in pair.rows[0].jobs)


def _question(pair: PairRow) -> tuple[object, ...]:
    jobs = tuple((job.workload, job.strategy) for job in pair.rows[0].jobs)
    workers = None if pair.axis == HOSTS else pair.key.num_workers
    return pair.group, pair.axis, pair.evidence, workers, frozenset(jobs) if pair.axis == JOBS else jobs


def _without_doubles(group: Iterable[Located]) -> list[list[Located]]:
    """One list, or one for each network where a value occurs on several."""
    ordered = sorted(group, key=lambda located: located[0])
    if len({at for at, _ in ordered}) == len(ordered):
        return [ordered]
    by_network = sorted(ordered, key=lambda located: (located[1].where, located[0]))
    return [list(located) for _, located in groupby(by_network, key=lambda located: located[1].where)]


def _sweep(located: list[Located], pairs: Sequence[PairRow]) -> SweepRow:
    borrowed = _borrowed(located, pairs)
    places = sorted([*located, *borrowed], key=lambda place: place[0])
    first = located[0][1]
    ways = {row.way for _, pair in located for row in pair.rows}
    varies_jobs = first.axis == JOBS
    return SweepRow(
        names=first.names.replace(f" ×{len(first.rows[0].jobs)}", "") if varies_jobs else first.names,
        group=first.group,
        axis=first.axis,
        evidence=first.evidence,
        num_jobs=None if varies_jobs else len(first.rows[0].jobs),
        num_workers=None if first.axis == HOSTS else first.key.num_workers,
        overlaps=overlaps(first),
        workloads=tuple(job.workload for job in first.rows[0].jobs),
        series=tuple(
            _series((at, row) for at, pair in places for row in pair.rows if row.axis != PHASE and row.way in ways)
        ),
        bounds=tuple((at, row.bound) for at, pair in places if (row := pair.row(CROSSOVER)) and row.bound),
        pairs=tuple(pair for _, pair in places),
        borrowed=tuple(dict.fromkeys(f"{pair.group} ({pair.axis} = {pair.at:g})" for _, pair in borrowed)),
    )


def _borrowed(located: Sequence[Located], pairs: Sequence[PairRow]) -> list[Located]:
    """Pairs of other sweeps with the same jobs that lie on this axis too, at a value that it lacks."""
    first, home = located[0][1], axis_of(located[0][1].axis).home
    if home is None:
        return []
    taken = {at for at, _ in located}
    found: dict[float, PairRow] = {}
    for pair in sorted(pairs, key=lambda pair: pair.axis != RHO):
        if pair.axis and axis_of(pair.axis).home is None and _alike(first, pair) and home(pair) not in taken:
            found.setdefault(home(pair), pair)
    return list(found.items())


def _alike(a: PairRow, b: PairRow) -> bool:
    """The same work on the same links, whatever the number of hosts where that is what is swept."""
    if a.axis != HOSTS and a.key != b.key:
        return False
    same_links = (a.key.label, a.key.rate_bps, a.key.size_scale) == (b.key.label, b.key.rate_bps, b.key.size_scale)
    return same_links and a.work == b.work


def _series(points: Iterable[tuple[float, SharingRow]]) -> Iterable[SeriesRow]:
    ways: dict[str, list[tuple[float, SharingRow]]] = {}
    for at, row in points:
        if row.throughput is not None and not row.is_reference:
            ways.setdefault(row.way, []).append((at, row))
    return (SeriesRow(way=way, points=tuple(found)) for way, found in ways.items())


def _phase_sweep(pair: PairRow) -> SweepRow:
    """Naive co-location over the offset at which the last job starts, beside crossover, which does not depend on it."""
    points = sorted(((row.at or 0.0, row) for row in pair.rows if row.axis == PHASE), key=lambda point: point[0])
    crossover = pair.row(CROSSOVER)
    bound = crossover.bound if crossover is not None else None
    return SweepRow(
        names=pair.names.removeprefix(f"{pair.group}: "),
        group=pair.group,
        axis=PHASE,
        evidence=pair.evidence,
        num_jobs=len(pair.rows[0].jobs),
        num_workers=pair.key.num_workers,
        overlaps=overlaps(pair),
        workloads=tuple(job.workload for job in pair.rows[0].jobs),
        series=tuple(_series(points)),
        bounds=tuple((at, bound) for at, _ in points) if bound else (),
        pairs=(pair,),
        level=crossover,
    )
