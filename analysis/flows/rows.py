"""Experiments without jobs, cell by cell, and the figures of one run: completion, goodput, queue, round trip.

The first group of flows is whose completion is asked for, the last one whose goodput is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from analysis.stats import Interval, computed, median_interval, paired_ratio
from results.record import Record, Status
from results.traffic import GroupFacts, TrafficFacts

BITS = 8
FRAME_BYTES = 1538  # of a full Ethernet frame, preamble and gap included
Figure = Callable[[TrafficFacts], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRow:
    """One cell: what its runs did by repeat. `line_bps` is the rate of the watched host's cable."""

    suite: str
    cell: str
    group: str
    label: str
    network: str
    transport: str
    line_bps: float
    axis: str
    at: float | None
    runs: Mapping[int, TrafficFacts]
    ids: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """Whether no seed draws anything, so that one repeat says all."""
        return not any(run.is_drawn for run in self.runs.values())

    def value(self, figure: Figure) -> Interval:
        """A figure over repeats."""
        found = median_interval([figure(run) for run in self.runs.values()])
        return computed(found) if self.is_exact else found

    def over(self, other: FlowRow, figure: Figure) -> Interval:
        """A figure over that of another cell, repeat by repeat: equal repeats drew the same starts and sizes."""
        both = sorted(self.runs.keys() & other.runs.keys())
        found = paired_ratio([figure(self.runs[r]) for r in both], [figure(other.runs[r]) for r in both])
        return computed(found) if self.is_exact and other.is_exact else found


def flow_rows(groups: Iterable[Sequence[Record]]) -> tuple[FlowRow, ...]:
    """A row for each cell of flows, of the repeats that ended well."""
    return tuple(row for records in groups for row in _row([one for one in records if one.status is Status.OK]))


def _row(records: Sequence[Record]) -> Iterator[FlowRow]:
    runs = {record.repeat: record.traffic for record in records if record.traffic is not None}
    if not runs:
        return
    first = records[0]
    yield FlowRow(
        suite=first.suite,
        cell=first.cell,
        group=first.group,
        label=first.label,
        network=first.fabric.network,
        transport=first.fabric.transport,
        line_bps=first.fabric.rate_bps or math.nan,
        axis=first.axis,
        at=first.at,
        runs=runs,
        ids=tuple(record.id for record in records),
    )


def completion_s(run: TrafficFacts) -> float:
    """Mean time from start to end of the first group's flows; one that has not ended counts until the run's end."""
    own = run.groups[0]
    ends = (run.now_s if end is None else end for end in own.end_s)
    return fmean(end - start for start, end in zip(own.start_s, ends, strict=True))


def slowdowns(run: TrafficFacts) -> list[float]:
    """Completion of each flow that has ended over its time alone, all groups, in order of size."""
    return sorted(
        (end - start) / alone
        for group in run.groups
        for start, end, alone in zip(group.start_s, group.end_s, group.alone_s, strict=True)
        if end is not None
    )


def mean_slowdown(run: TrafficFacts) -> float:
    """Mean over flows that have ended of their completion over their time alone."""
    return fmean(slowdowns(run))


def group_s(run: TrafficFacts) -> float:
    """Mean over groups of the time from the first start to the last end; all flows have ended."""
    return fmean(_end_s(run, group) - min(group.start_s) for group in run.groups)


def used_s(run: TrafficFacts) -> float:
    """When what waits for the groups ends: each use begins when its group is there and the use before it has ended."""
    now_s = 0.0
    for group in run.groups:
        now_s = max(now_s, _end_s(run, group)) + group.use_s
    return now_s


def takes_s(run: TrafficFacts) -> float:
    """The time until the end of the last use where something waits for flows, else the mean over groups."""
    return used_s(run) if any(group.use_s for group in run.groups) else group_s(run)


def _end_s(run: TrafficFacts, group: GroupFacts) -> float:
    return max(run.now_s if end is None else end for end in group.end_s)


def goodput_bps(run: TrafficFacts) -> float:
    """Payload per second of the last group from the moment that counts to its last end, or to the run's."""
    return math.fsum(_goodputs_bps(run, run.groups[-1]))


def least_share(run: TrafficFacts) -> float:
    """The least goodput of the last group's flows over their mean: 1 is fair."""
    goodputs = _goodputs_bps(run, run.groups[-1])
    return min(goodputs) / fmean(goodputs)


def _goodputs_bps(run: TrafficFacts, group: GroupFacts) -> list[float]:
    ended = [end for end in group.end_s if end is not None]
    spent_s = (max(ended) if len(ended) == len(group.end_s) else run.now_s) - run.from_s
    both = zip(group.before_bytes, group.delivered_bytes, strict=True)
    return [(delivered - before) * BITS / spent_s for before, delivered in both]


def mean_queue_bytes(run: TrafficFacts) -> float:
    """The watched queue over time."""
    return run.mean_queue_bytes


def queue_over_mark(run: TrafficFacts) -> float:
    """The same over the queue from which switches mark; NaN where they never do."""
    return math.nan if run.mark_bytes is None else run.mean_queue_bytes / run.mark_bytes


def round_trip_s(run: TrafficFacts) -> float:
    """Mean over flows of their mean round trip."""
    return fmean(each for group in run.groups for each in group.round_trip_s if each is not None)


def waits_in_circle(run: TrafficFacts) -> float:
    """1 where links wait for each other in a circle, else 0."""
    return float(bool(run.circle))


def lowest_bytes(run: TrafficFacts) -> float:
    """The lowest sample of the watched queue."""
    return float(min(run.queue_bytes))


def highest_bytes(run: TrafficFacts) -> float:
    """The highest sample of the watched queue."""
    return float(max(run.queue_bytes))


def highest_over_limit(run: TrafficFacts) -> float:
    """The highest sample over K + N full frames, K the queue from which switches mark and N the number of flows."""
    return highest_bytes(run) / ((run.mark_bytes or math.nan) + len(run.groups[-1].num_bytes) * FRAME_BYTES)
