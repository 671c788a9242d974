"""A host that jobs share on the virtual clock: the scheduler's own tokens for its device and its link.

All hosts of the jobs do the same at the same time, since one worker stands for all ranks of a job; so one host speaks
for all of them. Jobs that compute at once share the device evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from crossover import tokens
from crossover.policies import Extent
from crossover.simulator.fluid import Action, Agenda
from crossover.tokens import Policy, Token
from harness.turns import Turn


@dataclass(slots=True)
class VirtualToken:
    """A token on the clock; `granted` is called when a job's turn has come."""

    clock: Agenda
    policy: Policy
    token: Token
    _asked: dict[str, Action] = field(default_factory=dict)
    _wake_s: float = inf

    def join(self, jobs: Sequence[str]) -> None:
        """All take their seats before anybody asks."""
        for job in jobs:
            self.token = tokens.join(self.token, job)

    def ask(self, job: str, granted: Action) -> None:
        """Call `granted` when it is this job's turn."""
        self._asked[job] = granted
        self._settle(tokens.ask(self.token, job))

    def release(self, job: str) -> None:
        """The job's turn is over."""
        self._settle(tokens.release(self.token, job, self.token.seat(job).generation))

    def leave(self, job: str) -> None:
        """The job has made its last step."""
        self._settle(tokens.leave(self.token, job))

    def _settle(self, token: Token) -> None:
        now_s = self.clock.now_s
        self.token, grants = tokens.settle(token, self.policy, now_s)
        # A policy may let several jobs in at once.
        for grant in grants:
            self._asked.pop(grant.job)()
        # a policy with beats grants at times at which nothing else happens
        wake_s = self.policy.wake_s(self.token, now_s)
        if now_s < wake_s < inf and wake_s != self._wake_s:
            self._wake_s = wake_s
            self.clock.plan(wake_s, lambda: self._settle(self.token))


@dataclass(slots=True, eq=False)
class SharedHost:
    """`device` and `link` are its tokens, None where no turns are taken."""

    clock: Agenda
    extent: Extent
    device: VirtualToken | None = None
    link: VirtualToken | None = None
    _computing: dict[str, Callable[[], None]] = field(default_factory=dict)

    @property
    def num_computing(self) -> int:
        """How many jobs share the device now."""
        return max(1, len(self._computing))

    def begin(self, job: str, respeed: Callable[[], None]) -> None:
        """`job` computes from now on; the others slow down."""
        # a copy, and without this job: its own thread is running, and takes the new pace when it yields
        others = list(self._computing.values())
        self._computing[job] = respeed
        for other in others:
            other()

    def end(self, job: str) -> None:
        """`job` has stopped computing."""
        del self._computing[job]
        for other in list(self._computing.values()):
            other()


@dataclass(slots=True, eq=False)
class HostSeat:
    """One job's seat on a shared host; `turns` and `computed_s` are the log of it."""

    host: SharedHost
    job: str
    turns: list[Turn] = field(default_factory=list)
    computed_s: list[tuple[float, float]] = field(default_factory=list)
    _asked_s: float = 0.0
    _granted_s: float = 0.0
    _begun_s: float = 0.0

    @property
    def extent(self) -> Extent:
        """What a turn lasts until."""
        return self.host.extent

    @property
    def shares_link(self) -> bool:
        """Whether jobs take turns on the link."""
        return self.host.link is not None

    @property
    def num_computing(self) -> int:
        """How many jobs share the device now."""
        return self.host.num_computing

    def take_turn(self, granted: Action) -> None:
        """Ask for the device."""
        self._asked_s = self.host.clock.now_s

        def begin() -> None:
            self._granted_s = self.host.clock.now_s
            granted()

        if self.host.device is None:
            begin()
        else:
            self.host.device.ask(self.job, begin)

    def end_turn(self) -> None:
        """Give the device back, and log the turn."""
        self.turns.append(Turn(self._asked_s, self._granted_s, self.host.clock.now_s))
        if self.host.device is not None:
            self.host.device.release(self.job)

    def take_link(self, granted: Action) -> None:
        """Ask for the link."""
        assert self.host.link is not None, "nobody takes turns on this link"
        self.host.link.ask(self.job, granted)

    def end_link_turn(self) -> None:
        """Give the link back."""
        assert self.host.link is not None, "nobody takes turns on this link"
        self.host.link.release(self.job)

    def begin_compute(self, respeed: Callable[[], None]) -> None:
        """Share the device from now on."""
        self._begun_s = self.host.clock.now_s
        self.host.begin(self.job, respeed)

    def end_compute(self) -> None:
        """Leave the device to the others, and log for how long it was used."""
        self.computed_s.append((self._begun_s, self.host.clock.now_s))
        self.host.end(self.job)

    def leave(self) -> None:
        """Take no more turns."""
        # A job that has ended must not be waited for.
        for token in (self.host.device, self.host.link):
            if token is not None:
                token.leave(self.job)


def virtual_token(clock: Agenda, policy: Policy, jobs: Sequence[str], shares: Mapping[str, int]) -> VirtualToken:
    """A token around which all `jobs` sit."""
    made = VirtualToken(clock, policy, tokens.new_token(jobs, shares or None))
    made.join(jobs)
    return made
