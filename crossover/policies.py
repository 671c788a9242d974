"""Who gets the token: the sharing policies, pure rules over `crossover.tokens`.

- `Naive` lends to whoever asks, several at once: no turns;
- `Exclusive` lends only to the first job until it has left, then to the second, and so on;
- `Turns` lends to the front job only, so turns go round strictly; with `lead_rounds=1` a job that is not ready may be
  passed, and then nobody gets further than one round ahead of it;
- `SlotBarrier` waits with every turn until the job of the turn before last has its messages: all switch together;
- `Grouped` gives the token to one group of jobs until all of it has left, then to the next;
- `TimeShifted` lends like `Naive`, to each job at its own phase of its own period.

Where turns matter, nobody has one before every declared job has come once: hosts that began in different orders would
make all jobs slower, or wait for each other for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite

from crossover.errors import Refused
from crossover.tokens import Phase, Policy, Seat, Token

CLOCK_S = 1e-6  # nearer to its beat a job is at it: clocks and additions are not exact


class Timeless:
    """A policy in which time plays no part."""

    __slots__ = ()

    def wake_s(self, token: Token, now_s: float) -> float:
        """Never: only events matter."""
        return inf


@dataclass(frozen=True, slots=True)
class Naive(Timeless):
    """Everybody at once: the device is shared as its driver or the kernel sees fit."""

    def choose(self, token: Token, now_s: float) -> str | None:
        """The first job that waits."""
        return next((seat.job for seat in token.seats if seat.phase is Phase.WAITING), None)


@dataclass(frozen=True, slots=True)
class Exclusive(Timeless):
    """One job after the other: the first keeps the token between its turns, until it leaves. Who comes back queues
    again."""

    def choose(self, token: Token, now_s: float) -> str | None:
        """The one job whose stint it is, if it waits."""
        # by stints: a job that has left and come back queues behind those that never left
        staying = [seat for seat in token.seats if seat.phase is not Phase.LEFT]
        first = min(staying, key=lambda seat: seat.stint, default=None)
        return first.job if first is not None and first.phase is Phase.WAITING else None


@dataclass(frozen=True, slots=True)
class Turns(Timeless):
    """Turns in the order of the queue, among the jobs that are there; round robin where all strides are equal.

    Strict turns (`lead_rounds=0`) reach the bound of `crossover.theory` for steady costs, however different the jobs
    are: behind a first-come-first-served link no job's messages arrive before those of the job in front of it, so there
    is never anybody to let pass. `lead_rounds=1` helps where a job is late for another reason (a slow loader, an
    evaluation), and reorders collectives between hosts: gloo bears that, NCCL and link turns do not.

    A lease aside goes to the front job, or to another one while the front job does not wait, or by turns with the queue
    to a job that was passed over.
    """

    lead_rounds: int = 0

    def __post_init__(self) -> None:
        if self.lead_rounds not in (0, 1):
            raise Refused(
                f"lead_rounds must be 0 (strict turns) or 1 (a late job may be passed), not {self.lead_rounds}"
            )

    def choose(self, token: Token, now_s: float) -> str | None:
        """The front job if it waits; else one that may pass it."""
        # one at a time is all that turns are
        if token.holders:
            return None
        queue, waiting = queue_of(token), _waiting(token)
        outside = next((seat.job for seat in waiting if seat.passed), None)
        # by turns with the queue, so that neither starves the other
        if not queue or (outside is not None and not token.last_aside):
            return outside
        front = queue[0]
        if front.phase is Phase.WAITING and (token.is_open or front.aside):
            return front.job
        # a lease aside moves no round, so it may go in between where nobody else can
        ahead = self._ahead(token, queue) if self.lead_rounds and token.is_open else None
        return ahead or next((seat.job for seat in waiting if seat.aside), None)

    def _ahead(self, token: Token, queue: Sequence[Seat]) -> str | None:
        """The first job that waits and may pass the front one: by `lead_rounds` of its own rounds, not more."""
        place, front = token.seats.index, queue[0]
        for seat in queue:
            limit = (front.next_pass + self.lead_rounds * seat.stride, place(front))
            # compared as places in the queue: jobs with more shares have shorter rounds
            if seat.phase is Phase.WAITING and (seat.next_pass, place(seat)) <= limit:
                return seat.job
        return None


@dataclass(frozen=True, slots=True)
class SlotBarrier(Timeless):
    """All switch together: a slot is one job's computation and the exchange of the job before it, and ends with the
    later of the two. The same as `Turns` for two jobs, worse for more (up to 1.7 times for 3 to 5)."""

    def choose(self, token: Token, now_s: float) -> str | None:
        """The front job, once no job but the last one is still at its exchange."""
        chosen = Turns().choose(token, now_s)
        if chosen is None or token.seat(chosen).aside:
            return chosen
        # a job before its first round has sent nothing yet that could be waited for
        behind = (seat for seat in token.seats if seat.phase is Phase.IDLE and seat.counts and seat.next_round > 0)
        return chosen if all(seat.job == token.last for seat in behind) else None


@dataclass(frozen=True, slots=True)
class Grouped(Timeless):
    """One group of jobs at a time, under `inner`, until the last of it has left. Jobs of no group come last."""

    groups: tuple[tuple[str, ...], ...]
    inner: Policy

    def choose(self, token: Token, now_s: float) -> str | None:
        """What `inner` chooses among the present group."""
        staying = {seat.job for seat in token.seats if seat.phase is not Phase.LEFT}
        # the rest, jobs of no group, are a group of their own at the end
        present = next((group for group in self.groups if staying.intersection(group)), tuple(staying))
        inside = tuple(
            seat if seat.job in present or seat.phase is Phase.HOLDING else seat._replace(phase=Phase.LEFT)
            for seat in token.seats
        )
        return self.inner.choose(token._replace(seats=inside), now_s)


@dataclass(frozen=True, slots=True)
class Beat:
    """When a job's steps begin: at `shift_s` after the token opened, and every `period_s` from there."""

    shift_s: float
    period_s: float

    def __post_init__(self) -> None:
        if not (isfinite(self.period_s) and self.period_s > 0 and isfinite(self.shift_s) and self.shift_s >= 0):
            raise Refused(
                f"a beat needs a period above 0 and a shift of 0 or more, not {self.period_s} and {self.shift_s} s"
            )


@dataclass(frozen=True, slots=True)
class TimeShifted:
    """CASSINI's time shifts (Rajasekaran et al., NSDI 2024): jobs run at once, each from its own phase, so that one's
    messages meet the other's computation.

    A job that asks up to `slack` of a period after its beat goes at once; one that is early waits for the beat, and so
    does one that has drifted further: that is the paper's correction of drift (its agents correct beyond 5 %).
    """

    beats: tuple[tuple[str, Beat], ...]
    slack: float = 0.5

    def choose(self, token: Token, now_s: float) -> str | None:
        """The first job that waits and is at its beat."""
        ready = (seat.job for seat in _waiting(token) if self._wait_s(token, seat, now_s) == 0)
        return next(ready, None)

    def wake_s(self, token: Token, now_s: float) -> float:
        """The next beat of a job that waits."""
        return min((now_s + self._wait_s(token, seat, now_s) for seat in _waiting(token)), default=inf)

    def _wait_s(self, token: Token, seat: Seat, now_s: float) -> float:
        beat = dict(self.beats).get(seat.job)
        if not token.is_open:
            return 0.0 if seat.aside else inf
        if beat is None or seat.aside:
            return 0.0
        since_s = now_s - token.opened_s - beat.shift_s
        if since_s < 0:
            return -since_s
        # modulo the period: a job that has drifted by whole periods is in step again
        late_s = since_s % beat.period_s
        at_beat = seat.next_round == 0 or late_s <= self.slack * beat.period_s or beat.period_s - late_s < CLOCK_S
        return 0.0 if at_beat else beat.period_s - late_s


def _waiting(token: Token) -> list[Seat]:
    return [seat for seat in token.seats if seat.phase is Phase.WAITING]


def queue_of(token: Token) -> list[Seat]:
    """The jobs that are there or still expected, front first; without those that were passed over."""
    order = sorted((seat.next_pass, place) for place, seat in enumerate(token.seats) if seat.counts)
    return [token.seats[place] for _, place in order]


class Extent(StrEnum):
    """What a turn lasts until: the end of forward, of backward, or the arrival of the step's messages."""

    FORWARD = "forward"
    BACKWARD = "backward"
    MESSAGES = "messages"


class Sharing(StrEnum):
    """How jobs share their devices, by name."""

    EXCLUSIVE = "exclusive"
    HOLD = "hold"
    NAIVE = "naive"
    MPS = "mps"
    SLOT_BARRIER = "slot-barrier"
    CROSSOVER = "crossover"
    WEIGHTED = "weighted"
    TICK_TOCK = "tick-tock"
    MURI = "muri"
    CASSINI = "cassini"

    @property
    def extent(self) -> Extent:
        """What a turn lasts until. `hold` is time slicing: it gains nothing, and shows it. In `tick-tock` (Wavelet,
        MLSys 2021) one job's forward runs beside the other's backward."""
        return {Sharing.HOLD: Extent.MESSAGES, Sharing.TICK_TOCK: Extent.FORWARD}.get(self, Extent.BACKWARD)

    @property
    def takes_turns(self) -> bool:
        """Whether a job may have to wait for another one's turn."""
        return self not in (Sharing.NAIVE, Sharing.MPS, Sharing.CASSINI)

    @property
    def computes_at_once(self) -> bool:
        """Whether several jobs may compute at the same time."""
        return self in (Sharing.NAIVE, Sharing.MPS, Sharing.CASSINI, Sharing.TICK_TOCK)

    @property
    def gates_link(self) -> bool:
        """Whether link turns belong to it."""
        return self in (Sharing.CROSSOVER, Sharing.WEIGHTED)

    @property
    def waits_in_turn(self) -> bool:
        """Whether a job may wait for messages while it has the device, as an update point inside the turn does."""
        return self in (Sharing.NAIVE, Sharing.EXCLUSIVE, Sharing.MPS, Sharing.CASSINI)


def policy_of(
    sharing: Sharing,
    *,
    lead_rounds: int = 0,
    groups: tuple[tuple[str, ...], ...] = (),
    beats: tuple[tuple[str, Beat], ...] = (),
) -> Policy:
    """The rule behind the name. `lead_rounds` concerns `crossover` and `weighted`, `groups` `muri`, `beats`
    `cassini`; the shares of `weighted` are the token's."""
    match sharing:
        case Sharing.NAIVE | Sharing.MPS:
            return Naive()
        case Sharing.EXCLUSIVE:
            return Exclusive()
        case Sharing.SLOT_BARRIER:
            return SlotBarrier()
        case Sharing.MURI:
            return Grouped(groups, SlotBarrier())
        case Sharing.CASSINI:
            return TimeShifted(beats)
        case Sharing.HOLD | Sharing.TICK_TOCK:
            return Turns()
        case Sharing.CROSSOVER | Sharing.WEIGHTED:
            return Turns(lead_rounds)


def link_policy(policy: Policy) -> Policy:
    """The rule of link turns that goes with a device's rule: strict turns among the jobs that the device lets in."""
    match policy:
        case Naive() | TimeShifted():
            return Naive()
        case Exclusive():
            return policy
        case Grouped(groups, inner):
            return Grouped(groups, link_policy(inner))
    return Turns()
