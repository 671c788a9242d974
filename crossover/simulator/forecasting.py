"""What sharing means in the long run: rates, gain and slowdowns of the steady state."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf

from crossover.errors import Refused
from crossover.policies import Beat, Sharing, SlotBarrier, Turns, policy_of
from crossover.simulator.conditions import Arrival, Disturbance, LinkSharing, Rules
from crossover.simulator.outcome import SimulationResult
from crossover.simulator.run import Simulation
from crossover.simulator.steps import StepShape

_MIN_TURNS = 10  # of the slowest job in the window, however much faster the others are
_MAX_IMBALANCE = 20
_FOR_EVER = 10**9


@dataclass(frozen=True, slots=True)
class Forecast:
    """A steady state.

    `period_s` is the time in which every job has had its turns of one cycle (the slowest job's, where they differ).
    `gain` is the aggregate normalised throughput Σ r_i t_i, with r_i the steps per second: 1: one job after the other.
    `slowdowns[i]` is 1/(r_i t_i), how many times longer job i takes than alone. Busy times are fractions.
    """

    period_s: float
    gain: float
    slowdowns: tuple[float, ...]
    device_busy: float
    link_busy: float


@dataclass(frozen=True, slots=True)
class _Steady:
    """Rates of some jobs that share, in their order, and the busy fractions meanwhile."""

    rates_hz: tuple[float, ...]
    device_busy: float
    link_busy: float


def simulate(shapes: Sequence[StepShape], num_rounds: Sequence[int], rules: Rules | None = None) -> SimulationResult:
    """Run `num_rounds[i]` steps of job i; a job leaves after its last. Raises `Deadlock` where the rules allow one."""
    run = Simulation(shapes, num_rounds, rules or Rules())
    run.finish()
    return run.outcome()


def forecast(
    shapes: Sequence[StepShape],
    sharing: Sharing | str,
    *,
    link: LinkSharing | str = LinkSharing.FIFO,
    handover_s: float = 0.0,
    interference: float = 0.0,
    num_hosts: int = 1,
    lead_rounds: int = 0,
    shares: Sequence[int] = (),
    groups: Sequence[Sequence[int]] = (),
    beats: Sequence[Beat] = (),
    starts_s: Sequence[float] = (),
    stretch: Disturbance | None = None,
    stall: Disturbance | None = None,
    num_rounds: int = 200,
) -> Forecast:
    """The steady state of jobs that share a device and a link by the rule named, measured over the second half of
    `num_rounds` rounds.

    Jobs are numbered as in `shapes`; `groups` name them by number. `starts_s` are the jobs' phases (for `naive`). A
    hand-over costs only where turns are taken; alone, a job pays interference but no hand-over. Where one job or group
    follows another (`exclusive`, `muri`), the period is the sum of theirs: one step of each job.
    Raises `Refused` for what does not fit together, and `Deadlock` where the rules allow one.
    """
    sharing = Sharing(sharing)
    everybody = list(range(len(shapes)))
    parts = _parts(sharing, everybody, groups)
    for name, values, is_needed in (("beats", beats, sharing is Sharing.CASSINI), ("starts_s", starts_s, False)):
        if (values or is_needed) and len(values) != len(shapes):
            raise Refused(f"{sharing} takes {name} of all {len(shapes)} jobs, not {list(values)}")
    rules = Rules(
        policy=SlotBarrier()
        if sharing is Sharing.MURI
        else policy_of(
            sharing, lead_rounds=lead_rounds, beats=tuple((str(job), beat) for job, beat in enumerate(beats))
        ),
        extent=sharing.extent,
        link=LinkSharing(link),
        shares=tuple(shares),
        orders=(tuple(everybody),) * num_hosts,
        handover_s=handover_s if sharing.takes_turns else 0,
        interference=interference,
        arrivals=tuple(map(Arrival, starts_s)),
        stretch=stretch,
        stall=stall,
    )
    alone = replace(rules, policy=Turns(), handover_s=0, shares=(), arrivals=())
    # Alone under the same interference and disturbances, so that a slowdown counts what sharing costs and nothing else.
    solo_s = [_solo_s(shapes, job, alone, num_rounds) for job in everybody]
    return _combined([_steady(shapes, part, rules, num_rounds) for part in parts], parts, solo_s, shares)


def _solo_s(shapes: Sequence[StepShape], job: int, rules: Rules, num_rounds: int) -> float:
    if rules.is_symmetric and not rules.interference:
        return shapes[job].cost().solo_s
    return 1 / _steady(shapes, [job], rules, 4 if rules.is_symmetric else num_rounds).rates_hz[0]


def _parts(sharing: Sharing, everybody: list[int], groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Jobs that run at the same time; one part follows the other."""
    if sharing is Sharing.EXCLUSIVE:
        return [[job] for job in everybody]
    if sharing is not Sharing.MURI:
        return [everybody]
    named = list(chain(*groups))
    if len(set(named)) != len(named) or not set(named) <= set(everybody):
        raise Refused(f"groups name each of the jobs {everybody} once at most, not {list(groups)}")
    # Jobs that no group names share among themselves, after the groups.
    rest = [job for job in everybody if job not in named]
    return [list(group) for group in groups if group] + ([rest] if rest else [])


def _steady(shapes: Sequence[StepShape], jobs: list[int], rules: Rules, num_rounds: int) -> _Steady:
    """Let `jobs` share, and measure the second half of `num_rounds` rounds."""
    rules = _among(jobs, rules)
    run = Simulation([shapes[job] for job in jobs], [_FOR_EVER] * len(jobs), rules)
    a_round = len(jobs) * len(run.devices)
    # The first half is the way into the steady state, whose phases the start has set.
    while len(run.turns) < num_rounds // 2 * a_round:
        run.advance()
    from_s, busy_s, first = run.agenda.now_s, (run.devices[0].busy_s, run.link.busy_s), len(run.turns)
    limit = first + (num_rounds - num_rounds // 2) * a_round
    while len(run.turns) < limit:
        run.advance()
        if len(run.turns) == limit and limit < _MAX_IMBALANCE * num_rounds * a_round:
            # One job may take a hundred turns while another one takes one; a rate of a single turn would be chance.
            seen = Counter(turn.job for turn in run.turns[first:] if turn.host == 0)
            limit += a_round * (min(seen[job] for job in range(len(jobs))) < _MIN_TURNS)
    duration_s = run.agenda.now_s - from_s
    starts_s: list[list[float]] = [[] for _ in jobs]
    for turn in run.turns[first:]:
        if turn.host == 0:
            starts_s[turn.job].append(turn.start_s)
    rates = (_rate_hz(sorted(starts), share) for starts, share in zip(starts_s, _ones(rules.shares, jobs), strict=True))
    return _Steady(
        tuple(rates),
        (run.devices[0].busy_s - busy_s[0]) / duration_s,
        (run.link.busy_s - busy_s[1]) / duration_s,
    )


def _rate_hz(starts_s: list[float], share: int) -> float:
    """Turns a second over whole cycles; 0 for a job that hardly had one."""
    # A job with several turns per cycle has them in a row: parts of a cycle would be too fast or too slow.
    num_turns = (len(starts_s) - 1) // share * share
    return num_turns / (starts_s[-1] - starts_s[-1 - num_turns]) if num_turns > 0 else 0.0


def _among(jobs: list[int], rules: Rules) -> Rules:
    """The rules for some of the jobs, which are numbered anew."""

    def renumbered(disturbance: Disturbance | None) -> Disturbance | None:
        return disturbance and (lambda host, job, round_: disturbance(host, jobs[job], round_))

    return replace(
        rules,
        shares=tuple(rules.shares[job] for job in jobs if rules.shares),
        arrivals=tuple(rules.arrivals[job] for job in jobs if rules.arrivals),
        orders=tuple(tuple(jobs.index(job) for job in order if job in jobs) for order in rules.orders),
        stretch=renumbered(rules.stretch),
        stall=renumbered(rules.stall),
    )


def _ones(shares: Sequence[int], jobs: Sequence[object]) -> Sequence[int]:
    return shares or [1] * len(jobs)


def _combined(
    steadies: Sequence[_Steady], parts: Sequence[list[int]], solo_s: Sequence[float], shares: Sequence[int]
) -> Forecast:
    """Parts follow each other, each for one cycle of its own."""
    of_job = {
        job: rate
        for part, steady in zip(parts, steadies, strict=True)
        for job, rate in zip(part, steady.rates_hz, strict=True)
    }
    turns = _ones(shares, solo_s)
    periods_s = [max(turns[job] / of_job[job] if of_job[job] else inf for job in part) for part in parts]
    period_s = sum(periods_s)
    weights = [part_s / period_s if period_s < inf else 1 / len(parts) for part_s in periods_s]
    speeds = [
        of_job[job] * solo_s[job] * weights[index]
        for job in range(len(solo_s))
        for index, part in enumerate(parts)
        if job in part
    ]
    return Forecast(
        period_s,
        sum(speeds),
        tuple(1 / speed if speed else inf for speed in speeds),
        sum(weight * steady.device_busy for weight, steady in zip(weights, steadies, strict=True)),
        sum(weight * steady.link_busy for weight, steady in zip(weights, steadies, strict=True)),
    )
