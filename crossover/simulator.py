"""A shared step on a virtual clock: the scheduler's own policies, one device a host, one first-come-first-served link.

A job's turn computes for `compute_s`, during which its buckets become ready one after the other. A bucket travels when
it is ready on every host (a collective), after all buckets that were ready before it. A job asks for its next turn when
its own messages have arrived. Nothing here measures: it shows what the rules give when their assumptions hold.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count

from crossover import tokens
from crossover.errors import Refused
from crossover.policies import Turns
from crossover.theory import JobCost
from crossover.tokens import Grant, Policy, Token

Action = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Bucket:
    """One message of a step: when it is ready after the turn began, and how long the link needs for it."""

    ready_s: float
    link_s: float


@dataclass(frozen=True, slots=True)
class StepShape:
    """One job's step: its computation, and its buckets in the order in which backward makes them ready."""

    compute_s: float
    buckets: tuple[Bucket, ...]

    def __post_init__(self) -> None:
        ready = [bucket.ready_s for bucket in self.buckets]
        if ready != sorted(ready) or any(not 0 <= ready_s <= self.compute_s for ready_s in ready):
            raise Refused(f"buckets become ready in order, within the {self.compute_s} s of compute, not at {ready}")

    @classmethod
    def without_overlap(cls, compute_s: float, communication_s: float) -> "StepShape":
        """All communication after the computation."""
        return cls(compute_s, (Bucket(compute_s, communication_s),))

    def cost(self) -> JobCost:
        """c, m and the step time alone."""
        end_s = 0.0
        for bucket in self.buckets:
            end_s = max(end_s, bucket.ready_s) + bucket.link_s
        return JobCost(self.compute_s, sum(bucket.link_s for bucket in self.buckets), max(self.compute_s, end_s))


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn that was taken: times on the virtual clock."""

    host: int
    job: int
    round: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened: every turn in the order of its start, and when the last message had arrived."""

    turns: tuple[Turn, ...]
    makespan_s: float


@dataclass(frozen=True, slots=True)
class Rules:
    """How the jobs share. `hold` keeps the token until the messages have arrived.

    `orders` is each host's turn order, as job numbers (empty: one host, jobs as given). `stretch(host, job, round)`
    multiplies the computation of a turn, for jitter and stragglers.
    """

    policy: Policy = field(default_factory=Turns)
    hold: bool = False
    orders: tuple[tuple[int, ...], ...] = ()
    stretch: Callable[[int, int, int], float] = lambda _host, _job, _round: 1


def simulate(shapes: Sequence[StepShape], num_rounds: Sequence[int], rules: Rules | None = None) -> Outcome:
    """Run `num_rounds[i]` steps of job i; a job leaves after its last."""
    if not shapes or len(shapes) != len(num_rounds) or min(num_rounds) < 1:
        raise Refused(f"give every one of {len(shapes)} jobs at least 1 round, not {list(num_rounds)}")
    return _Run(shapes, num_rounds, rules or Rules()).outcome()


def steady_period_s(shapes: Sequence[StepShape], rules: Rules | None = None, num_rounds: int = 200) -> float:
    """Mean time of a round once the start-up is over: over the second half of `num_rounds`."""
    turns = simulate(shapes, [num_rounds] * len(shapes), rules).turns
    starts_s = [turn.start_s for turn in turns if turn.host == turn.job == 0]
    half = num_rounds // 2
    return (starts_s[-1] - starts_s[half - 1]) / (num_rounds - half)


class _Run:
    """One simulation's clock, tokens and link; what falls on one instant happens in the order in which it was
    planned."""

    def __init__(self, shapes: Sequence[StepShape], num_rounds: Sequence[int], rules: Rules) -> None:
        self._shapes, self._num_rounds, self._rules = shapes, num_rounds, rules
        orders = rules.orders or (tuple(range(len(shapes))),)
        self._tokens = [tokens.new_token([str(job) for job in order]) for order in orders]
        self._agenda: list[tuple[float, int, Action]] = []
        self._planned = count()
        self._now_s = self._link_free_s = 0.0
        self._unfinished: Counter[tuple[int, int]] = Counter()  # (host, job): parts of its step that are not over
        self._ready: Counter[tuple[int, int]] = Counter()  # (job, bucket): hosts where it is ready
        self._turns: list[Turn] = []

    def outcome(self) -> Outcome:
        for host, token in enumerate(self._tokens):
            for seat in token.seats:
                token = tokens.ask(tokens.join(token, seat.job), seat.job)
            self._settle(host, token)
        while self._agenda:
            self._now_s, _, action = heappop(self._agenda)
            action()
        return Outcome(tuple(self._turns), self._now_s)

    def _plan(self, at_s: float, action: Action) -> None:
        heappush(self._agenda, (at_s, next(self._planned), action))

    def _settle(self, host: int, token: Token) -> None:
        token, grants = tokens.settle(token, self._rules.policy, self._now_s)
        if len(token.holders) > 1:
            raise Refused(
                f"{self._rules.policy} lets jobs compute at once, which is not modelled: use a policy with turns"
            )
        self._tokens[host] = token
        for grant in grants:
            self._begin_turn(host, int(grant.job), grant)

    def _begin_turn(self, host: int, job: int, grant: Grant) -> None:
        shape, stretch = self._shapes[job], self._rules.stretch(host, job, grant.round)
        end_s = self._now_s + shape.compute_s * stretch
        self._turns.append(Turn(host, job, grant.round, self._now_s, end_s))
        self._unfinished[host, job] = 1 + len(shape.buckets)
        for index, bucket in enumerate(shape.buckets):
            self._plan(self._now_s + bucket.ready_s * stretch, partial(self._bucket_ready, job, index))
        self._plan(end_s, partial(self._end_compute, host, job))

    def _bucket_ready(self, job: int, index: int) -> None:
        self._ready[job, index] += 1
        if self._ready[job, index] == len(self._tokens):
            self._ready[job, index] = 0
            self._link_free_s = max(self._link_free_s, self._now_s) + self._shapes[job].buckets[index].link_s
            for host in range(len(self._tokens)):
                self._plan(self._link_free_s, partial(self._end_part, host, job))

    def _end_compute(self, host: int, job: int) -> None:
        if not self._rules.hold:
            self._settle(host, self._released(host, job))
        self._end_part(host, job)

    def _end_part(self, host: int, job: int) -> None:
        self._unfinished[host, job] -= 1
        if self._unfinished[host, job]:
            return
        token = self._released(host, job) if self._rules.hold else self._tokens[host]
        done = token.seat(str(job)).next_round == self._num_rounds[job]
        self._settle(host, tokens.leave(token, str(job)) if done else tokens.ask(token, str(job)))

    def _released(self, host: int, job: int) -> Token:
        token = self._tokens[host]
        return tokens.release(token, str(job), token.seat(str(job)).generation)
