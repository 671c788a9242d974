"""What a check is about: hosts, jobs, their lives, and what goes wrong."""

from dataclasses import dataclass, replace
from math import ceil
from random import Random

from crossover.errors import Refused
from crossover.policies import Beat, Extent, Sharing
from crossover.settings import Settings

MAX_JOBS = 26
PASSABLE = (Sharing.CROSSOVER, Sharing.WEIGHTED)  # where a late job may be passed
LINK_TURNS = PASSABLE  # link turns belong to these: others hold the device longer, or take no turns
ORDERED = (Sharing.CROSSOVER, Sharing.WEIGHTED, Sharing.HOLD, Sharing.TICK_TOCK, Sharing.SLOT_BARRIER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Jobs by number, on hosts by number; each job has one worker a host.

    - `num_steps[j]`; `orders[h]`: the turn order of host h (empty: the same everywhere).
    - `late` jobs are not awaited: they come when the schedule lets them.
    - `asides` (job, step): after so many steps the job's worker on host 0 takes a lease aside, as for an evaluation.
    - `skips` (job, step, rounds): after so many steps all its workers skip rounds.
    - `deaths` (job, host, step): its worker there dies at some moment after so many steps, then its other workers do.
    - `restarts[h]`: how often the arbiter of host h dies and is replaced.
    - `passes_over`: a job that does not come for its turn may be passed over, at any moment, on one host alone; then
      rounds and order may differ between hosts and are not checked.
    - `extent` overrides the sharing's own; `link_turns` adds a link token to every host.
    - `pauses` (job, step): after so many steps its workers leave the queue, and come back when all of them have.
    - `agrees`: the workers of a job that comes late or back skip, before its next turn, to the latest round at which
      one of them came in.
    """

    num_steps: tuple[int, ...]
    num_hosts: int = 2
    sharing: Sharing = Sharing.CROSSOVER
    lead_rounds: int = 0
    shares: tuple[int, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    orders: tuple[tuple[int, ...], ...] = ()
    late: tuple[int, ...] = ()
    asides: tuple[tuple[int, int], ...] = ()
    skips: tuple[tuple[int, int, int], ...] = ()
    deaths: tuple[tuple[int, int, int], ...] = ()
    restarts: tuple[int, ...] = ()
    extent: Extent | None = None
    link_turns: bool = False
    passes_over: bool = False
    pauses: tuple[tuple[int, int], ...] = ()
    agrees: bool = True

    def __post_init__(self) -> None:
        jobs = range(len(self.num_steps))
        if not 1 <= len(jobs) <= MAX_JOBS or min(self.num_steps) < 1 or self.num_hosts < 1:
            raise Refused(
                f"give 1 to {MAX_JOBS} jobs at least 1 step on at least 1 host, "
                f"not {self.num_steps} on {self.num_hosts}"
            )
        if self.orders and (
            len(self.orders) != self.num_hosts or any(sorted(order) != list(jobs) for order in self.orders)
        ):
            raise Refused(f"give each of {self.num_hosts} hosts an order of all jobs, not {self.orders}")
        if self.link_turns and (any(self.restarts) or self.passes_over or self.pauses):
            raise Refused("link turns are not modelled with restarts, pauses or jobs passed over: choose one")

    @property
    def turn_extent(self) -> Extent:
        """What a turn lasts until."""
        return self.extent or self.sharing.extent

    def order(self, host: int) -> tuple[int, ...]:
        """The turn order of a host."""
        return self.orders[host] if self.orders else tuple(range(len(self.num_steps)))

    def settings(self, host: int) -> Settings:
        """What the arbiter of a host is started with: the rules under test are those of a real one."""
        order = self.order(host)
        return Settings(
            jobs=tuple(name(job) for job in order),
            sharing=self.sharing,
            lead_rounds=self.lead_rounds,
            shares=tuple(self.shares[job] for job in order) if self.shares else (),
            groups=tuple(tuple(name(job) for job in group) for group in self.groups),
            beats=tuple(Beat(float(job), 8.0) for job in order) if self.sharing is Sharing.CASSINI else (),
        )

    def most_passed(self, waiting: int, passing: int) -> int:
        """How many turns `passing` may get while `waiting` waits for one."""
        shares = self.shares or (1,) * len(self.num_steps)
        return (1 + self.lead_rounds) * ceil(shares[passing] / shares[waiting])


def name(job: int) -> str:
    """A job's name: a, b, c, …"""
    return chr(ord("a") + job)


def number(job: str) -> int:
    """The job of that name."""
    return ord(job) - ord("a")


def drawn(random: Random) -> Scenario:
    """A scenario in which nothing may go wrong: up to 3 hosts, 4 jobs and 4 steps, any sharing, and faults."""
    num_hosts, num_jobs = random.choice((1, 2, 2, 2, 3)), random.choice((2, 2, 3, 3, 4))
    jobs = range(num_jobs)
    sharing = random.choice(tuple(Sharing))
    most = 4 if num_hosts * num_jobs <= 6 else 3
    scenario = Scenario(
        num_steps=tuple(random.randint(1, most) for _ in jobs),
        num_hosts=num_hosts,
        sharing=sharing,
        lead_rounds=random.randint(0, 1) if sharing in PASSABLE else 0,
        shares=tuple(random.randint(1, 3) for _ in jobs) if sharing is Sharing.WEIGHTED else (),
        groups=((0, 1),) if sharing is Sharing.MURI else (),
        asides=tuple((job, random.randint(0, most)) for job in jobs if random.random() < 0.3),
        link_turns=sharing in LINK_TURNS and random.random() < 0.3,
    )
    return _troubled(scenario, random)


def _troubled(scenario: Scenario, random: Random) -> Scenario:
    jobs, hosts = range(len(scenario.num_steps)), range(scenario.num_hosts)
    if scenario.sharing in ORDERED and random.random() < 0.3:
        late = random.sample(jobs, random.randint(1, len(jobs)))
        scenario = replace(scenario, late=tuple(late))
    if random.random() < 0.3:
        skips = ((random.choice(jobs), random.randint(0, 2), random.randint(1, 3)),)
        scenario = replace(scenario, skips=skips)
    if random.random() < 0.3:
        deaths = ((random.choice(jobs), random.choice(hosts), random.randint(0, 2)),)
        scenario = replace(scenario, deaths=deaths)
    if scenario.sharing in ORDERED and not scenario.link_turns and random.random() < 0.3:
        scenario = replace(scenario, pauses=((random.choice(jobs), random.randint(0, 2)),))
    if scenario.sharing in PASSABLE and not scenario.link_turns and random.random() < 0.2:
        scenario = replace(scenario, passes_over=True)
    if scenario.late and scenario.sharing is Sharing.HOLD:
        return scenario  # who holds cannot rejoin a new arbiter, nor the newcomer join it before: a known limit of hold
    if not scenario.link_turns and random.random() < 0.4:
        scenario = replace(scenario, restarts=tuple(random.randint(0, 2) for _ in hosts))
    return scenario
