"""The flow engine: jobs' flows as fluids that share links max-min fairly, from event to event.

An event is a flow that joins (a path's delay after its round starts, as in SimGrid's CM02 model) or that ends. Rates
change only where they must (`max_min`), and flows of a round that are alike and share a path are one flow with a
weight. Jobs whose links are disjoint from all others' do not compete; their repeated rounds are solved once.

Source of the model: Velho et al., On the Validity of Flow-level TCP Network Models, ACM TOMACS 2013.
Differs from it: no window-limited rates and no reverse traffic, as with SimGrid's CM02 without cross-traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fabric.simulated.compiled import entry_point, inlined
from fabric.simulated.graph import Floats, Ints, NetworkError, NetworkGraph, PathSet
from fabric.simulated.heap import drop_first, push
from fabric.simulated.max_min import Shares, choose, choose_robbed, put, repair, shares_of, take_off
from fabric.simulated.routing import route
from fabric.simulated.traffic import TrafficJob

BITS = 8.0
SAME_TIME = 1e-12  # relative: events that only rounding parts are one
LOST = 1e-6  # relative: more than this missing from what was sent is a bug and not rounding


@dataclass(frozen=True, slots=True, eq=False)
class FlowResult:
    """When each job's rounds ended [job][round, repeats counted], and what each link carried, bytes."""

    round_ends_s: tuple[Floats, ...]
    link_bytes: Floats  # [links]

    @property
    def finish_s(self) -> tuple[float, ...]:
        """When each job ended; nan for a job that sends nothing."""
        return tuple(float(ends[-1]) if len(ends) else float("nan") for ends in self.round_ends_s)


class _Table(NamedTuple):
    """Flows of all rounds of all jobs, and the order in which each job goes through its rounds."""

    size_bits: Floats  # [flows]
    delay_s: Floats  # [flows]
    job_of: Ints  # [flows]
    round_first: Ints  # [rounds + 1] into flows
    order: Ints  # the rounds, repeats counted, job after job
    order_first: Ints  # [jobs + 1] into order
    start_s: Floats  # [jobs]
    round_s: Floats  # [jobs]


def simulate_flows(
    graph: NetworkGraph, jobs: Sequence[TrafficJob], *, choices: Sequence[Ints] | None = None
) -> FlowResult:
    """Run all jobs to their end. `choices[job]` are routing choices, one per flow of its rounds in order.

    NetworkError for hosts that are not there, flows of no bytes, or hosts parted by failures. AssertionError if bytes
    are lost, which would be a bug here.
    """
    paths = _routes(graph, jobs, choices)
    ends: list[Floats] = [np.zeros(0)] * len(jobs)
    for members in _competing(paths):
        group, once = [jobs[member] for member in members], len(members) == 1
        table, shares = _tables(graph, group, [paths[member] for member in members], once)
        group_ends, carried = _run(table, shares)
        sent = table.size_bits * _runs_of(table)
        assert np.allclose(carried, sent, rtol=LOST), "the flow engine lost bytes"
        for place, member in enumerate(members):
            part = group_ends[table.order_first[place] : table.order_first[place + 1]]
            ends[member] = _repeated(part, jobs[member]) if once else part
    return FlowResult(tuple(ends), _link_bytes(graph, jobs, paths))


def _link_bytes(graph: NetworkGraph, jobs: Sequence[TrafficJob], paths: Sequence[PathSet]) -> Floats:
    total = np.zeros(2 * graph.num_cables)
    for job, own in zip(jobs, paths, strict=True):
        sent = [each.num_bytes * each.repeats for each in job.rounds]
        np.add.at(total, own.links, np.repeat(np.concatenate([np.zeros(0), *sent]), np.diff(own.offsets)))
    return total


def _routes(graph: NetworkGraph, jobs: Sequence[TrafficJob], choices: Sequence[Ints] | None) -> list[PathSet]:
    found = []
    for number, job in enumerate(jobs):
        hosts = np.asarray(job.hosts, np.int64)
        if not job.rounds:
            found.append(PathSet.of([]))
            continue
        ranks = np.concatenate([np.concatenate([each.sources, each.destinations]) for each in job.rounds])
        if len(ranks) and not 0 <= ranks.min() <= ranks.max() < len(hosts):
            raise NetworkError(
                f"job {number} has {len(hosts)} hosts but sends from rank {ranks.max()}; place it on more"
            )
        if any((each.num_bytes <= 0.0).any() for each in job.rounds):
            raise NetworkError(f"job {number} has a flow of no bytes; leave it out")
        tails = np.concatenate([hosts[each.sources] for each in job.rounds])
        heads = np.concatenate([hosts[each.destinations] for each in job.rounds])
        found.append(route(graph, tails, heads, None if choices is None else choices[number]))
    return found


def _competing(paths: Sequence[PathSet]) -> list[list[int]]:
    """Groups of jobs that share a link, directly or through others; jobs that send nothing are in none."""
    groups: list[tuple[list[int], set[int]]] = []
    for number, own in enumerate(paths):
        members, links = [number], set(own.links.tolist())
        apart = []
        for group in groups:
            if links & group[1]:
                members, links = group[0] + members, links | group[1]
            else:
                apart.append(group)
        groups = [*apart, (members, links)]
    return [members for members, links in groups if links]


def _tables(graph: NetworkGraph, jobs: list[TrafficJob], paths: list[PathSet], once: bool) -> tuple[_Table, Shares]:
    """All flows with those merged that are alike; with `once` every round runs a single time."""
    rows: list[Ints] = []
    sizes: list[float] = []
    weights: list[int] = []
    job_of: list[int] = []
    round_sizes: list[int] = []
    order: list[int] = []
    order_first = [0]
    for number, (job, own) in enumerate(zip(jobs, paths, strict=True)):
        flow = 0
        for each in job.rounds:
            alike: dict[tuple[bytes, float], int] = {}
            for num_bytes in each.num_bytes.tolist():
                key = (own[flow].tobytes(), num_bytes)
                alike[key] = alike.get(key, 0) + 1
                if alike[key] == 1:
                    rows.append(own[flow])
                flow += 1
            order += [len(round_sizes)] * (1 if once else each.repeats)
            round_sizes.append(len(alike))
            weights += list(alike.values())
            sizes += [num_bytes * BITS * count for (_, num_bytes), count in alike.items()]
            job_of += [number] * len(alike)
        order_first.append(len(order))
    merged = PathSet.of([row.tolist() for row in rows])
    delays = np.add.reduceat(np.repeat(graph.delay_s, 2)[merged.links], merged.offsets[:-1])
    table = _Table(
        np.array(sizes),
        delays,
        np.array(job_of),
        np.concatenate([[0], np.cumsum(round_sizes)]),
        np.array(order),
        np.array(order_first),
        np.array([job.start_s for job in jobs]),
        np.array([job.round_s for job in jobs]),
    )
    return table, shares_of(merged.offsets, merged.links, np.array(weights, np.float64), graph.link_rate_bps)


def _runs_of(table: _Table) -> Ints:
    """How often each flow ran."""
    runs = np.bincount(table.order, minlength=len(table.round_first) - 1)
    return np.repeat(runs, np.diff(table.round_first))


def _repeated(ends: Floats, job: TrafficJob) -> Floats:
    """Ends of all rounds, from those of a run in which each was done once: alone, a repeat takes as long again."""
    repeats = np.array([each.repeats for each in job.rounds])
    durations = np.diff(np.concatenate([[job.start_s], ends]))
    return np.asarray(job.start_s + np.repeat(durations, repeats).cumsum())


class _Progress(NamedTuple):
    """What changes while flows run. A flow's end is foreseen for `due`; other entries of the heap are outdated."""

    left: Floats  # [flows] bits
    since: Floats  # [flows] when `left` was true
    carried: Floats  # [flows] bits
    old: Floats  # [flows] the rate since then
    due: Floats  # [flows] −1: not foreseen
    dirty: Ints  # [2 · flows] flows that joined or ended; a flow can do both at one time
    step: Ints  # [jobs]
    waiting: Ints  # [jobs] flows of the round that have not ended
    ends: Floats  # [order]
    keys: Floats  # heap of times
    codes: Ints  # a flow that ends, or −1 − a flow that joins


@inlined
def _start_round(table: _Table, progress: _Progress, job: int, now: float, size: int) -> int:
    """Let the flows of a job's next round join after their delays; nothing if the job is done."""
    place = table.order_first[job] + progress.step[job]
    if place == table.order_first[job + 1]:
        return size
    first, last = table.round_first[table.order[place]], table.round_first[table.order[place] + 1]
    progress.waiting[job] = last - first
    for flow in range(first, last):
        size = push(progress.keys, progress.codes, size, now + table.round_s[job] + table.delay_s[flow], -1 - flow)
    return size


@inlined
def _end_flow(table: _Table, shares: Shares, progress: _Progress, flow: int, now: float, size: int) -> int:
    """Take a flow off; start its job's next round if it was the last."""
    progress.carried[flow] += progress.left[flow]
    progress.left[flow], progress.due[flow] = 0.0, -1.0
    take_off(shares, flow)
    job = table.job_of[flow]
    progress.waiting[job] -= 1
    if progress.waiting[job] == 0:
        progress.ends[table.order_first[job] + progress.step[job]] = now
        progress.step[job] += 1
        size = _start_round(table, progress, job, now, size)
    return size


@inlined
def _take_events(table: _Table, shares: Shares, progress: _Progress, size: int) -> tuple[int, int]:
    """Apply all events of the next moment; return the heap's size and how many flows joined or ended."""
    now, num_dirty = progress.keys[0], 0
    while size > 0 and progress.keys[0] <= now * (1.0 + SAME_TIME):
        moment, code = progress.keys[0], progress.codes[0]
        size = drop_first(progress.keys, progress.codes, size)
        if code < 0:
            flow = -1 - code
            put(shares, flow)
            progress.left[flow], progress.since[flow] = table.size_bits[flow], now
            progress.due[flow], progress.old[flow] = -1.0, 0.0
        elif progress.due[code] == moment:
            flow = code
            # what it carried at its last rate; `left` is then only rounding, and is counted as well
            moved = progress.old[flow] * (now - progress.since[flow])
            progress.carried[flow] += moved
            progress.left[flow] -= moved
            size = _end_flow(table, shares, progress, flow, now, size)
        else:
            continue
        progress.dirty[num_dirty] = flow
        num_dirty += 1
    return size, num_dirty


@inlined
def _choose_changed(shares: Shares, progress: _Progress, num_dirty: int) -> int:
    """The flows whose rates may be wrong after some joined (their rate is 0) or ended; return how many."""
    num_chosen = 0
    for place in range(num_dirty):
        flow = progress.dirty[place]
        if progress.left[flow] > 0.0:
            num_chosen = choose(shares, flow, num_chosen)
        for entry in range(shares.offsets[flow], shares.offsets[flow + 1]):
            num_chosen = choose_robbed(shares, shares.links[entry], num_chosen)
    return num_chosen


@inlined
def _foresee(shares: Shares, progress: _Progress, num_chosen: int, now: float, size: int) -> int:
    """Settle the flows of the repaired set at the rates they had, and foresee their ends at the new ones."""
    for place in range(num_chosen):
        flow = shares.flow_list[place]
        moved = progress.old[flow] * (now - progress.since[flow])
        progress.left[flow] -= moved
        progress.carried[flow] += moved
        progress.since[flow] = now
        if shares.rate[flow] != progress.old[flow] or progress.due[flow] < 0.0:
            progress.old[flow] = shares.rate[flow]
            progress.due[flow] = now + progress.left[flow] / shares.rate[flow]
            size = push(progress.keys, progress.codes, size, progress.due[flow], flow)
    return size


@inlined
def _without_outdated(progress: _Progress, size: int) -> int:
    """Rebuild the heap from the entries that still count."""
    kept = 0
    for place in range(size):
        key, code = progress.keys[place], progress.codes[place]
        if code < 0 or progress.due[code] == key:
            kept = push(progress.keys, progress.codes, kept, key, code)
    return kept


@entry_point(allocates=True)
def _run(table: _Table, shares: Shares) -> tuple[Floats, Floats]:
    """Ends of rounds [order], and bits carried per flow [flows]."""
    num_flows, num_jobs = len(table.size_bits), len(table.start_s)
    progress = _Progress(
        np.zeros(num_flows), np.zeros(num_flows), np.zeros(num_flows), np.zeros(num_flows), np.full(num_flows, -1.0),
        np.zeros(2 * num_flows, np.int64), np.zeros(num_jobs, np.int64), np.zeros(num_jobs, np.int64),
        np.zeros(len(table.order)), np.zeros(4 * num_flows + 16), np.zeros(4 * num_flows + 16, np.int64),
    )  # fmt: skip
    size = 0
    for job in range(num_jobs):
        size = _start_round(table, progress, job, table.start_s[job], size)
    while size > 0:
        now = progress.keys[0]
        size, num_dirty = _take_events(table, shares, progress, size)
        num_chosen = _choose_changed(shares, progress, num_dirty)
        num_chosen = repair(shares, num_chosen)
        if size + num_chosen + num_flows > len(progress.keys):
            size = _without_outdated(progress, size)
        size = _foresee(shares, progress, num_chosen, now, size)
    return progress.ends, progress.carried
