"""CASSINI's time shifts (Rajasekaran et al., "CASSINI: Network-Aware Job Scheduling in Machine Learning Clusters",
NSDI 2024): when each job's steps should begin so that their messages do not meet.

A job's use of the link is rolled around a circle whose perimeter is the least common multiple of all periods (rounded
so that there is one). Turning a job's circle by an angle Δ shifts it in time. Over the circle's angles α

    score = 1 − mean_α max(Σ_i demand_i(α − Δ_i) − 1, 0)          (demand 1: the whole link)

is 1 when no two ever want more than the link has; the best turns are searched in steps of 5°, all combinations for
the first three jobs and one job after the other for more, then refined. Job i's shift is its Δ_i in time, modulo its
period. (Not verified against the paper's text.)

Differs from the paper: there, each job has devices of its own, and keeps its period. Here jobs share a device too,
which they must use one after the other to keep their step times: so the device is a second circle, scored in the same
way and with the same weight. Where the device or the link cannot carry all jobs at their own periods, these are
stretched: all by the same factor, or all to the one period T* (or a little more, so that a job that meets another one
still keeps its beat), whichever gains most on the simulator's virtual clock. Beats have the rounded periods, never
shorter than a job's own, so that they do not drift apart. There is one link and one host's jobs, hence no affinity
graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, lcm, log2
from typing import Any

from crossover.errors import Refused
from crossover.planning.profiles import shape_of
from crossover.policies import Beat, Sharing
from crossover.simulator import StepShape, forecast
from crossover.theory import JobCost, bound

Arcs = tuple[tuple[float, float], ...]
"""When a resource is wanted in a step: (from, for how long), in seconds after the step's beginning."""

SLOTS = 72  # 5 degrees, the paper's precision
MAX_TICKS = 240  # of the perimeter, in units of which every period is a whole number
MAX_DOUBLINGS = 7  # of the shortest period, where periods differ too much for that
MORE = (1.0, 1.05, 1.1)  # than T*: periods that are tried
ROUNDS = 60  # of a forecast
EXHAUSTIVE = 3  # jobs whose combinations are all tried


@dataclass(frozen=True, slots=True)
class TrafficPattern:
    """One job's step: its period, and when it wants the link and the device."""

    period_s: float
    link: Arcs
    device: Arcs = ()

    def __post_init__(self) -> None:
        spans = [span for arcs in (self.link, self.device) for span in arcs]
        if not self.period_s > 0 or any(
            start_s < 0 or length_s < 0 or start_s + length_s > self.period_s * (1 + 1e-6)
            for start_s, length_s in spans
        ):
            raise Refused(f"a pattern's arcs {spans} lie within its period of {self.period_s} s, which is above 0")


@dataclass(frozen=True, slots=True)
class Shifts:
    """When steps begin, a beat a job; how well the link and the device bear it (1: nobody meets)."""

    beats: tuple[Beat, ...]
    link_score: float
    device_score: float


def pattern_of(shape: StepShape) -> TrafficPattern:
    """The circle of a job that runs alone: the device from the beginning, the link whenever messages travel."""
    arcs: list[tuple[float, float]] = []
    free_s = 0.0
    for bucket in shape.buckets:
        start_s = max(free_s, bucket.ready_s)
        free_s = start_s + bucket.link_s
        arcs.append((start_s, bucket.link_s))
    return TrafficPattern(max(shape.compute_s, free_s), tuple(arcs), ((0.0, shape.compute_s),))


def shifts_of(shapes: Sequence[StepShape]) -> Shifts:
    """The best beats of jobs that share a device and a link."""
    patterns = [pattern_of(shape) for shape in shapes]
    costs = [shape.cost() for shape in shapes]
    own_s = [pattern.period_s for pattern in patterns]
    device_use = sum(cost.compute_s / cost.solo_s for cost in costs)
    link_use = sum(cost.communication_s / cost.solo_s for cost in costs)
    stretch = max(1.0, device_use, link_use)
    choices = [[period_s * stretch for period_s in own_s]]
    choices += [[bound(costs).period_s * more] * len(costs) for more in MORE]
    found = [best_shifts(_at_periods(patterns, periods_s)) for periods_s in choices]
    return max(found, key=lambda shifts: _gain(shapes, shifts))


def beats_for(costs: Sequence[JobCost]) -> tuple[Beat, ...]:
    """The best beats of jobs of which no more is known than their costs."""
    return shifts_of([shape_of(cost) for cost in costs]).beats


def _gain(shapes: Sequence[StepShape], shifts: Shifts) -> float:
    gain = forecast(shapes, Sharing.CASSINI, beats=shifts.beats, num_rounds=ROUNDS).gain
    return round(gain, 6)  # of equals the first


def _at_periods(patterns: Sequence[TrafficPattern], periods_s: Sequence[float]) -> list[TrafficPattern]:
    return [replace(pattern, period_s=period_s) for pattern, period_s in zip(patterns, periods_s, strict=True)]


def best_shifts(patterns: Sequence[TrafficPattern]) -> Shifts:
    """The best beats of these patterns."""
    if not patterns:
        raise Refused("shifts need at least one job")
    ticks, tick_s = whole_periods([pattern.period_s for pattern in patterns])
    per_tick = ceil(SLOTS / min(ticks))
    periods_s = [count * tick_s for count in ticks]
    slots = [count * per_tick for count in ticks]
    circles = [
        _circles(pattern, period_s, num_slots, lcm(*ticks) * per_tick // num_slots)
        for pattern, period_s, num_slots in zip(patterns, periods_s, slots, strict=True)
    ]
    turns = _search(circles, slots)
    link, device = (_score([circle[which] for circle in circles], turns) for which in (0, 1))
    beats = tuple(Beat(turn * tick_s / per_tick, period_s) for turn, period_s in zip(turns, periods_s, strict=True))
    return Shifts(beats, link, device)


def whole_periods(periods_s: Sequence[float]) -> tuple[tuple[int, ...], float]:
    """Periods as whole numbers of a tick with a common multiple of at most 240, and the tick in seconds: the smallest
    with which no period is shortened.

    Raises `Refused` where the longest is more than 128 times the shortest and no such numbers are near.
    """
    shortest_s = min(periods_s)
    ratios = [period_s / shortest_s for period_s in periods_s]

    def tick(ticks: Sequence[int]) -> float:
        return max(period_s / count for period_s, count in zip(periods_s, ticks, strict=True))

    roundings = [tuple(round(ratio * count) for ratio in ratios) for count in range(1, 25)]
    choices = [ticks for ticks in roundings if lcm(*ticks) <= MAX_TICKS]
    if not choices and max(ratios) <= 2**MAX_DOUBLINGS:
        choices = [tuple(2 ** round(log2(ratio)) for ratio in ratios)]
    if not choices:
        raise Refused(f"periods of {[*periods_s]} s have no common circle: share between jobs of nearer step times")
    best = min(choices, key=lambda ticks: (round(tick(ticks) * min(ticks) / shortest_s, 9), lcm(*ticks)))
    return best, tick(best)


def _circles(pattern: TrafficPattern, period_s: float, num_slots: int, repeats: int) -> tuple[Any, Any]:
    """How much of each slot of the perimeter the job wants of the link, and of the device."""
    import numpy

    edges_s = numpy.linspace(0.0, period_s, num_slots + 1)
    circles = []
    for arcs in (pattern.link, pattern.device):
        wanted = numpy.zeros(num_slots)
        for start_s, length_s in arcs:
            covered_s = numpy.clip(edges_s, start_s, start_s + length_s)
            wanted += numpy.diff(covered_s) / (period_s / num_slots)
        circles.append(numpy.tile(wanted, repeats))
    return circles[0], circles[1]


def _search(circles: Sequence[tuple[Any, Any]], num_slots: Sequence[int]) -> list[int]:
    """The turn of each circle, in slots; the first stays where it is."""
    turns = [0]
    demand = [circles[0][0], circles[0][1]]
    joint = min(EXHAUSTIVE, len(circles)) - 1
    if joint == 2:
        turns.append(_first_of_two(demand, circles[1:3], num_slots[1:3]))
        demand = _added(demand, circles[1], turns[1])
    for index in range(len(turns), len(circles)):
        turns.append(_refined_turn(demand, circles[index], num_slots[index]))
        demand = _added(demand, circles[index], turns[-1])
    for index in range(1, len(circles)):  # once more, with everybody else in place
        without = [total - _rolled(own, turns[index]) for total, own in zip(demand, circles[index], strict=True)]
        turns[index] = _refined_turn(without, circles[index], num_slots[index])
        demand = _added(without, circles[index], turns[index])
    return turns


def _first_of_two(demand: Sequence[Any], circles: Sequence[tuple[Any, Any]], num_slots: Sequence[int]) -> int:
    """The turn of the first circle with which the best turn of the second one is best."""
    first, second = (range(0, slots, max(1, slots // SLOTS)) for slots in num_slots)
    return min((_best_turn(_added(demand, circles[0], turn), circles[1], second)[0], turn) for turn in first)[1]


def _refined_turn(demand: Sequence[Any], circle: tuple[Any, Any], num_slots: int) -> int:
    """The best of 72 turns, then of all near it."""
    step = max(1, num_slots // SLOTS)
    _, best = _best_turn(demand, circle, range(0, num_slots, step))
    if step == 1:
        return best
    return _best_turn(demand, circle, range(max(0, best - step + 1), min(num_slots, best + step)))[1]


def _best_turn(demand: Sequence[Any], circle: tuple[Any, Any], turns: range) -> tuple[float, int]:
    """(excess over both resources, turn): the least, and the earliest of equals."""
    import numpy

    size = len(circle[0])
    columns = (numpy.arange(size)[None, :] - numpy.asarray(turns)[:, None]) % size
    excess = sum(
        numpy.maximum(wanted[None, :] + own[columns] - 1, 0).mean(axis=1)
        for wanted, own in zip(demand, circle, strict=True)
    )
    rounded = numpy.round(excess, 12)
    best = int(numpy.argmin(rounded))
    return float(rounded[best]), turns[best]


def _added(demand: Sequence[Any], circle: tuple[Any, Any], turn: int) -> list[Any]:
    return [total + _rolled(own, turn) for total, own in zip(demand, circle, strict=True)]


def _rolled(circle: Any, turn: int) -> Any:
    import numpy

    return numpy.roll(circle, turn)


def _score(circles: Sequence[Any], turns: Sequence[int]) -> float:
    import numpy

    demand = sum(_rolled(circle, turn) for circle, turn in zip(circles, turns, strict=True))
    return 1 - float(numpy.maximum(demand - 1, 0).mean())
