"""For whom everybody waits: what an arbiter's status says of a token that has not moved for a while."""

from collections.abc import Iterator
from dataclasses import dataclass

from crossover.arbiter.roster import process_state
from crossover.arbiter.seats import PATIENCE_S
from crossover.commands.texts import seconds
from crossover.policies import Sharing
from crossover.settings import Settings
from crossover.status import HostStatus, SeatStatus, TokenStatus
from crossover.tokens import Phase

_LONG_WAITS = (Sharing.EXCLUSIVE, Sharing.MURI)  # one job, or group, waits for another's whole life by design


@dataclass(frozen=True, slots=True)
class Stall:
    """Jobs have waited at a token for `waited_s` seconds; `culprits` are the jobs that they wait for."""

    token: str
    culprits: tuple[str, ...]
    waiting: tuple[str, ...]
    waited_s: float
    reason: str

    @property
    def told(self) -> str:
        """In one line."""
        verb = "waits" if len(self.waiting) == 1 else "wait"
        jobs = ", ".join(self.waiting)
        return f"{jobs} {verb} for {self.token} since {seconds(self.waited_s)}: {self.reason}"


def stalls(status: HostStatus, patience_s: float = PATIENCE_S) -> list[Stall]:
    """One per token at which a job has waited longer than `patience_s` seconds, where turns are meant to be short."""
    if status.sharing in _LONG_WAITS:
        return []
    return [stall for token in status.tokens for stall in _stalls_of(token, status.settings, patience_s)]


def _stalls_of(token: TokenStatus, settings: Settings, patience_s: float) -> Iterator[Stall]:
    waiting = [seat for seat in token.seats if seat.phase is Phase.WAITING]
    waited_s = max((seat.since_s for seat in waiting), default=0.0)
    if waited_s < patience_s:
        return
    culprits, reason = _blame(token, settings)
    if culprits:
        jobs = tuple(seat.job for seat in waiting)
        yield Stall(token.name, tuple(seat.job for seat in culprits), jobs, waited_s, reason)


def _blame(token: TokenStatus, settings: Settings) -> tuple[list[SeatStatus], str]:
    if holders := [seat for seat in token.seats if seat.phase is Phase.HOLDING]:
        # several hold it where turns overlap; the longest is the one to look at
        seat = max(holders, key=lambda seat: seat.since_s)
        return holders, f"{seat.job} has held it for {seconds(seat.since_s)}{_process(seat)}"
    if not token.is_open:
        absent = [seat for seat in token.seats if seat.phase is Phase.ABSENT]
        if awaited := next((seat for seat in absent if seat.pid), None):
            told = f"{awaited.job} may be in a turn that the arbiter before this one gave it"
            return [awaited], f"{told}, and has not come back{_process(awaited)}"
        names = ", ".join(seat.job for seat in absent)
        return absent, f"{names} has not come to it yet (crossover.attach); --gather-limit says for how long"
    idle = [seat for seat in token.seats if seat.phase is Phase.IDLE and not seat.passed]
    if not idle:
        return [], ""
    # the front of the queue, as the arbiter sees it
    strides = {seat.job: seat.stride for seat in settings.token().seats}
    seat = min(idle, key=lambda seat: seat.next_round * strides[seat.job])
    told = f"it is {seat.job}'s turn, which has not come for it for {seconds(seat.since_s)}{_process(seat)}"
    if settings.passes_over_after_s is None:
        return [seat], f"{told}; nobody is passed over here"
    return [seat], f"{told}; --idle-limit says for how long it is waited for"


def _process(seat: SeatStatus) -> str:
    """Its process, and the remedy where that is stopped."""
    if not seat.pid:
        return ""
    is_stopped = process_state(seat.pid) in ("T", "t")  # t: by a debugger
    return f" (process {seat.pid}{f' is stopped: `kill -CONT {seat.pid}`' if is_stopped else ''})"
