"""Fluid processor sharing of one device, as a pure policy on a clock that the caller holds.

n processes with work on the device progress at 1/n each, whatever their work is made of. A process
that has finished a piece of work usually submits the next one at once, as a GPU's queue would hold it
already. So it stays resident for `linger_s`: its share accrues as credit against its next piece. If none
comes, it leaves and the credit goes to the others, so that no device time is lost. What it submits while it has work
waits behind that and follows it at once, however late the caller looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

Client = Hashable


@dataclass(slots=True)
class _Member:
    remaining_s: float  # device seconds; negative: credit of a lingering member
    finished_at_s: float | None = None  # set while lingering
    queued_s: deque[float] = field(default_factory=deque)  # work behind that, in order


@dataclass(slots=True)
class FluidDevice:
    """State of one shared device. Times are seconds of one monotonic clock and never go back."""

    linger_s: float = 0.002
    _now_s: float = 0.0
    _members: dict[Client, _Member] = field(default_factory=dict)

    def submit(self, client: Client, work_s: float, *, follows: bool, now_s: float) -> None:
        """Give `client` `work_s` seconds of device time to do, behind what it has to do already.

        `follows` says that the process was ready when its last work ended: then it may use the credit
        that it accrued since.
        """
        self.advance(now_s)
        member = self._members.get(client)
        if member is not None and member.finished_at_s is None:
            member.queued_s.append(work_s)
            return
        if member is not None and not follows:
            self.leave(client, now_s=now_s)
            member = None
        credit_s = -member.remaining_s if member is not None else 0.0
        self._members[client] = _Member(work_s - credit_s)

    def leave(self, client: Client, *, now_s: float) -> None:
        """Take `client` off the device; its credit goes to those that have work."""
        self.advance(now_s)
        member = self._members.pop(client, None)
        if member is not None and member.remaining_s < 0:
            busy = [other for other in self._members.values() if other.finished_at_s is None]
            for other in busy:
                other.remaining_s += member.remaining_s / len(busy)

    def advance(self, now_s: float) -> None:
        """Serve all members up to `now_s`; without events in between, at rate 1/n each."""
        if self._members:
            share_s = (now_s - self._now_s) / len(self._members)
            for member in self._members.values():
                member.remaining_s -= share_s
        self._now_s = now_s

    def collect_finished(self, now_s: float) -> list[Client]:
        """Clients whose work has ended since the last call, once per work; those without more linger from now on."""
        self.advance(now_s)
        done = []
        for client, member in self._members.items():
            while member.finished_at_s is None and member.remaining_s <= 1e-9:
                done.append(client)
                if member.queued_s:
                    member.remaining_s += member.queued_s.popleft()
                else:
                    member.finished_at_s = now_s
        for client in [c for c, m in self._members.items() if self._has_lingered(m)]:
            self.leave(client, now_s=now_s)
        return done

    def next_event_s(self) -> float | None:
        """When something will happen by itself: a work ends or a lingering client leaves. None: nothing will."""
        times = []
        for member in self._members.values():
            if member.finished_at_s is None:
                times.append(self._now_s + max(0.0, member.remaining_s) * len(self._members))
            else:
                times.append(member.finished_at_s + self.linger_s)
        return min(times, default=None)

    def _has_lingered(self, member: _Member) -> bool:
        return member.finished_at_s is not None and self._now_s >= member.finished_at_s + self.linger_s
