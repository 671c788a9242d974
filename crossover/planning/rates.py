"""How often each job should have its turn: the fair rates of unequal jobs, and small whole shares that come near them.

Job i makes r_i steps per second and has weight w_i. The linear programme is

    max Σ w_i r_i t_i   subject to   Σ r_i c_i' ≤ 1,   Σ r_i m_i ≤ 1,   1/k ≤ r_i t_i ≤ 1

with c_i' = c_i + s + m_i·σ/(1+σ), a turn's cost with hand-over and interference. r_i t_i is the job's speed against
running alone; its lower bound is the sharing incentive, that nobody does worse than with a k-th of the device to
itself. With c, m ≤ t it can always be kept, unless hand-over and interference eat it up. Then the rates are the
max-min fair ones: the smallest r_i t_i as large as can be, and after it the weighted sum.

Shares are numbers of turns in a cycle, for `weighted` sharing. Rates say what the resources allow in the long run;
shares say what a cycle of strict turns does with them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd

from crossover.errors import Refused
from crossover.planning.profiles import shape_of
from crossover.policies import Sharing
from crossover.simulator import LinkSharing, StepShape, forecast
from crossover.theory import JobCost

MAX_SHARE = 8
ALL_SHARES = 512  # up to so many combinations are all looked at
MEASURED = 48  # of those, so many are measured where that is asked for
ROUNDS = 40  # of a forecast: costs are steady, so few do
TOLERANCE = 1e-9

Speeds = Callable[[tuple[int, ...]], tuple[float, ...]]
"""Each job's r_i t_i under these shares."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Steps a second by job, each job's speed r_i t_i against running alone, their weighted sum, and whether each has
    at least its k-th part."""

    rates_hz: tuple[float, ...]
    speeds: tuple[float, ...]
    throughput: float
    is_fair: bool


@dataclass(frozen=True, slots=True)
class TurnShares:
    """Turns a cycle by job, what they reach, and the part of the fair rates' throughput that is lost by rounding."""

    turns: tuple[int, ...]
    speeds: tuple[float, ...]
    throughput: float
    is_fair: bool
    loss: float


def turn_costs(costs: Sequence[JobCost], handover_s: float = 0.0, interference: float = 0.0) -> tuple[float, ...]:
    """Device time of a turn of each job, with its hand-over and with all its messages beside somebody's computation."""
    slowed = interference / (1 + interference)
    return tuple(cost.compute_s + handover_s + cost.communication_s * slowed for cost in costs)


def fair_rates(
    costs: Sequence[JobCost],
    weights: Sequence[float] = (),
    *,
    handover_s: float = 0.0,
    interference: float = 0.0,
) -> Rates:
    """The linear programme's solution, or the max-min fair rates where it has none (`is_fair` is False then)."""
    weights = _checked(weights, len(costs))
    turns_s = turn_costs(costs, handover_s, interference)
    incentive = 1 / len(costs)
    speeds = _best(costs, turns_s, weights, floor=incentive)
    is_fair = speeds is not None
    if speeds is None:
        floor = _greatest_floor(costs, turns_s)
        speeds = _best(costs, turns_s, weights, floor=floor * (1 - TOLERANCE))
        if speeds is None:
            raise Refused(f"no rates for {list(costs)}: give costs within 1e-9 to 1e9 s of each other")
    rates_hz = tuple(speed / cost.solo_s for speed, cost in zip(speeds, costs, strict=True))
    return Rates(rates_hz, speeds, _weighed(weights, speeds), is_fair)


def whole_shares(
    costs: Sequence[JobCost],
    weights: Sequence[float] = (),
    *,
    handover_s: float = 0.0,
    interference: float = 0.0,
    speeds_of: Speeds | None = None,
) -> TurnShares:
    """Turns in a cycle, 1 to 8 a job: the best weighted throughput among those that keep the sharing incentive; where
    none does, those whose worst-off job has most.

    `speeds_of` measures shares (a forecast, for one); by default they are taken to reach the cycle's bound
    max(Σn c', Σn m, max n t). Equal turns are always among the candidates, so the result is never less than they are
    where they are fair.
    """
    weights = _checked(weights, len(costs))
    rates = fair_rates(costs, weights, handover_s=handover_s, interference=interference)
    turns_s = turn_costs(costs, handover_s, interference)
    incentive = 1 / len(costs)

    def rank(turns: tuple[int, ...], speeds: tuple[float, ...]) -> tuple[bool, float, float, int]:
        is_fair = min(speeds) >= incentive * (1 - 1e-6)
        throughput = _weighed(weights, speeds)
        return is_fair, round(throughput if is_fair else min(speeds), 6), round(throughput, 6), -sum(turns)

    candidates = {_reduced(turns) for turns in _candidates(rates.rates_hz)}
    found = {turns: cycle_speeds(costs, turns_s, turns) for turns in candidates}
    if speeds_of is not None:
        best = sorted(found, key=lambda turns: rank(turns, found[turns]), reverse=True)[:MEASURED]
        found = {turns: speeds_of(turns) for turns in {*best, (1,) * len(costs)}}
    turns = max(found, key=lambda turns: rank(turns, found[turns]))
    speeds = found[turns]
    throughput = _weighed(weights, speeds)
    loss = max(0.0, 1 - throughput / rates.throughput)
    return TurnShares(turns, speeds, throughput, rank(turns, speeds)[0], loss)


def shares_for(costs: Sequence[JobCost], weights: Sequence[float] = ()) -> tuple[int, ...]:
    """Turns in a cycle for jobs that take link turns and of which no more is known than their costs, measured by
    forecast."""
    return whole_shares(costs, weights, speeds_of=forecast_speeds([shape_of(cost) for cost in costs])).turns


def forecast_speeds(
    shapes: Sequence[StepShape],
    *,
    link: LinkSharing = LinkSharing.FIFO,
    handover_s: float = 0.0,
    interference: float = 0.0,
) -> Speeds:
    """What strict turns really make of shares: a job with several turns in a row waits for its own messages between
    them, which the bound of a cycle does not see."""

    def speeds_of(turns: tuple[int, ...]) -> tuple[float, ...]:
        found = forecast(
            shapes,
            Sharing.WEIGHTED,
            shares=turns,
            link=link,
            handover_s=handover_s,
            interference=interference,
            num_rounds=ROUNDS,
        )
        return tuple(1 / slowdown for slowdown in found.slowdowns)

    return speeds_of


def cycle_speeds(costs: Sequence[JobCost], turns_s: Sequence[float], turns: Sequence[int]) -> tuple[float, ...]:
    """r_i t_i when a cycle of n_i turns takes as little as it can: max(Σn c', Σn m, max n t)."""
    cycle_s = max(
        sum(count * turn_s for count, turn_s in zip(turns, turns_s, strict=True)),
        sum(count * cost.communication_s for count, cost in zip(turns, costs, strict=True)),
        max(count * cost.solo_s for count, cost in zip(turns, costs, strict=True)),
    )
    return tuple(count * cost.solo_s / cycle_s for count, cost in zip(turns, costs, strict=True))


def _checked(weights: Sequence[float], num_jobs: int) -> tuple[float, ...]:
    given = tuple(weights) or (1.0,) * num_jobs
    if not num_jobs or len(given) != num_jobs or not all(0 < weight < float("inf") for weight in given):
        raise Refused(f"weights {given}: give one above 0 for each of {num_jobs} jobs")
    return given


def _weighed(weights: Sequence[float], speeds: Sequence[float]) -> float:
    return sum(weight * speed for weight, speed in zip(weights, speeds, strict=True))


def _use(costs: Sequence[JobCost], turns_s: Sequence[float]) -> list[list[float]]:
    """Rows of the device and the link: how much of each a job uses at the speed that it has alone."""
    device = [turn_s / cost.solo_s for turn_s, cost in zip(turns_s, costs, strict=True)]
    return [device, [cost.communication_s / cost.solo_s for cost in costs]]


def _best(
    costs: Sequence[JobCost], turns_s: Sequence[float], weights: Sequence[float], *, floor: float
) -> tuple[float, ...] | None:
    from scipy.optimize import linprog

    solved = linprog(
        [-weight for weight in weights],
        A_ub=_use(costs, turns_s),
        b_ub=[1, 1],
        bounds=[(min(floor, 1.0), 1.0)] * len(costs),
        method="highs",
    )
    return tuple(float(speed) for speed in solved.x) if solved.status == 0 else None


def _greatest_floor(costs: Sequence[JobCost], turns_s: Sequence[float]) -> float:
    """The speed that all jobs can have at once."""
    return min(1.0, *(1 / used for row in _use(costs, turns_s) if (used := sum(row)) > 0))


def _reduced(turns: tuple[int, ...]) -> tuple[int, ...]:
    """The same rates in the shortest cycle."""
    common = gcd(*turns)
    return tuple(count // common for count in turns)


def _candidates(rates_hz: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """All combinations of few jobs; of many, roundings of the rates, to every scale; and equal turns."""
    yield (1,) * len(rates_hz)
    if MAX_SHARE ** len(rates_hz) <= ALL_SHARES:
        yield from product(range(1, MAX_SHARE + 1), repeat=len(rates_hz))
        return
    for most in range(1, MAX_SHARE + 1):
        for rounding in (0.25, 0.5, 0.75):
            scaled = (most * rate_hz / max(rates_hz) for rate_hz in rates_hz)
            yield tuple(max(1, min(MAX_SHARE, int(value + rounding))) for value in scaled)
