"""A token whose steps are worked out once and then looked up.

Jobs that take turns bring their token back to the same state again and again, but for the numbers of rounds and leases.
So a state is kept in a *frame*, with numbers that are small again, and with each state the steps that lead out of it.
After the first turns a request or a release costs a look into a dictionary, where the rules of `crossover.tokens` and a
policy would build a dozen values: most of an arbiter's processor time. What a step gives is what the rules give. A
policy in which time plays a part, a token that is not open yet and one with jobs that were passed over use them
directly.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import lcm

from crossover import tokens
from crossover.policies import Timeless
from crossover.tokens import Grant, Phase, Policy, Token

MAX_STATES = 1024  # steady jobs need a handful
_GENERATION = 1 << 10  # of a token in its frame; a lease that is older by more has no place in it


@dataclass(slots=True, eq=False)
class State:
    """A token in its frame (or as it is), whether it is stalled, and the steps known so far, by job."""

    token: Token
    is_framed: bool
    is_stalled: bool
    asks: dict[str, "Transition"] = field(default_factory=dict)
    releases: dict[str, "Transition"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Transition:
    """Where an event leads, the leases it gives (numbered in the frame before) with
    their jobs' strides, and how far the frame moves."""

    state: State
    grants: tuple[tuple[Grant, int], ...]
    passes: int
    generations: int


class TokenCache:
    """A token under its policy. `ask` and `release` settle it, and return the leases that it gives."""

    def __init__(self, token: Token, policy: Policy) -> None:
        self._policy = policy
        self._cycle = lcm(*(seat.stride for seat in token.seats))
        self._states: dict[Token, State] = {}
        self.put(token)

    @property
    def token(self) -> Token:
        """The token as it is."""
        return _moved(self._state.token, self._passes, self._generations)

    @property
    def is_stalled(self) -> bool:
        """Whether somebody waits and nobody holds the token."""
        return self._state.is_stalled

    def put(self, token: Token) -> None:
        """Go on with another token: one to which something else has happened."""
        self._state, self._passes, self._generations = self._entered(token)

    def ask(self, job: str, now_s: float) -> tuple[Grant, ...]:
        """The job wants its next turn."""
        state = self._state
        if (step := state.asks.get(job)) is not None:
            # steady jobs end here from their second round on
            return self._take(step)
        return self._work_out(state.asks, job, lambda token: tokens.ask(token, job), now_s)

    def release(self, job: str, now_s: float) -> tuple[Grant, ...]:
        """The job gives its lease back."""
        state = self._state
        if (step := state.releases.get(job)) is not None:
            return self._take(step)
        return self._work_out(state.releases, job, lambda token: _released(token, job), now_s)

    def next_release(self, job: str) -> tuple[Transition, tuple[Grant, ...]] | None:
        """What `release` would do now, as far as it is known already, and the leases that it would give."""
        step = self._state.releases.get(job)
        return None if step is None else (step, self._given(step))

    def advance(self, step: Transition) -> None:
        """Do what `next_release` said, if nothing has happened since."""
        self._state = step.state
        self._passes += step.passes
        self._generations += step.generations

    def _given(self, step: Transition) -> tuple[Grant, ...]:
        passes, generations = self._passes, self._generations
        return tuple(
            [
                Grant(grant.job, grant.generation + generations, grant.round + passes // stride, grant.aside)
                for grant, stride in step.grants
            ]
        )

    def _take(self, step: Transition) -> tuple[Grant, ...]:
        given = self._given(step) if step.grants else ()
        self.advance(step)
        return given

    def _work_out(
        self, steps: dict[str, Transition], job: str, event: Callable[[Token], Token], now_s: float
    ) -> tuple[Grant, ...]:
        before = self._state
        token, grants = tokens.settle(event(before.token), self._policy, now_s)
        # such a state comes once, so keeping its steps would only fill the cache
        if not before.is_framed:
            self.put(token)
            return grants
        state, passes, generations = self._entered(token)
        step = Transition(state, tuple((grant, token.seat(grant.job).stride) for grant in grants), passes, generations)
        if state.is_framed:
            steps[job] = step
            return self._take(step)
        given = self._take(step)
        self.put(self.token)  # it left the frame, and is kept as it is
        return given

    def _entered(self, token: Token) -> tuple[State, int, int]:
        """The state of a token, and how far its frame lies from the token's numbers."""
        generations = token.generation - _GENERATION
        if not self._has_frame(token, generations):
            return State(token, is_framed=False, is_stalled=_is_stalled(token)), 0, 0
        # whole cycles only, so that each job's round moves by a whole number; one cycle stays for jobs a bit behind
        passes = self._cycle * max(0, min((s.next_pass for s in token.seats if s.counts), default=0) // self._cycle - 1)
        framed = _moved(token, -passes, -generations)
        if len(self._states) >= MAX_STATES:
            self._forget()
        if (state := self._states.get(framed)) is None:
            state = self._states[framed] = State(framed, is_framed=True, is_stalled=_is_stalled(framed))
        return state, passes, generations

    def _forget(self) -> None:
        for state in self._states.values():
            state.asks.clear()
            state.releases.clear()  # states lead to each other in circles, which nobody else would break
        self._states.clear()

    def _has_frame(self, token: Token, generations: int) -> bool:
        return (
            isinstance(self._policy, Timeless)
            # before that the token keeps the time at which it opened, which no frame can
            and token.is_open
            and not any(seat.passed or 0 < seat.generation <= generations for seat in token.seats)
        )


def _moved(token: Token, passes: int, generations: int) -> Token:
    """The token with its numbers moved: rounds of the jobs that have a place in the queue, and generations."""
    if not (passes or generations):
        return token
    seats = tuple(
        seat._replace(
            next_round=seat.next_round + (passes // seat.stride if seat.counts else 0),
            generation=seat.generation and seat.generation + generations,
        )
        for seat in token.seats
    )
    return token._replace(seats=seats, generation=token.generation + generations)


def _released(token: Token, job: str) -> Token:
    return tokens.release(token, job, token.seat(job).generation)


def _is_stalled(token: Token) -> bool:
    phases = {seat.phase for seat in token.seats}
    return token.is_open and Phase.WAITING in phases and Phase.HOLDING not in phases
