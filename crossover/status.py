"""What an arbiter tells of itself: who sits where, who has the token, how long each job has held and waited.

    status = read_status(default_path())
    for token in status.tokens:
        for seat in token.seats:
            print(token.name, seat.job, seat.phase, seat.num_turns, seat.held_s, seat.waited_s)

To ask needs no seat and moves no turn. Answers may be up to FRESH_S old.
"""

import json
import os
from dataclasses import dataclass, fields
from typing import Any

from crossover.connecting import ask_once
from crossover.errors import Refused
from crossover.policies import Sharing
from crossover.protocol import ReplyKind, Request, RequestKind, Resource
from crossover.settings import Settings
from crossover.tokens import Phase

FRESH_S = 0.01  # a flood of questions costs the arbiter one answer in this time


@dataclass(frozen=True, slots=True)
class SeatStatus:
    """One job at one token: in `phase` for `since_s` seconds; turns ended so far; seconds of lease (`held_s`) and of
    waiting for one (`waited_s`), the present ones included. `pid` is 0 where nobody sits, or where the arbiter cannot
    see the process; with the phase absent it is that of a process which sat there under an arbiter before this one, and
    has not come back. `passed` says that nobody waits for the job until it asks again: it paused, or was passed over.
    Numbers begin anew when an arbiter is replaced, rounds and generations do not."""

    job: str
    phase: Phase
    next_round: int
    num_turns: int
    held_s: float
    waited_s: float
    since_s: float
    pid: int
    passed: bool = False


@dataclass(frozen=True, slots=True)
class TokenStatus:
    """One token. It `is_open` once every declared job has come or is not waited for any more; `generation` is that of
    its youngest lease."""

    name: str
    resource: Resource
    device: str
    is_open: bool
    generation: int
    seats: tuple[SeatStatus, ...]


@dataclass(frozen=True, slots=True)
class HostStatus:
    """One arbiter. `num_left_off` tokens had no room in the answer."""

    pid: int
    uptime_s: float
    settings: Settings
    tokens: tuple[TokenStatus, ...]
    num_left_off: int = 0

    @property
    def jobs(self) -> tuple[str, ...]:
        """The declared jobs in turn order."""
        return self.settings.jobs

    @property
    def sharing(self) -> Sharing:
        """How they share."""
        return self.settings.sharing

    def to_json(self, limit_bytes: int | None = None) -> str:
        """One line of JSON, which `from_json` reads; with a limit, of as many tokens as have room."""
        texts = [json.dumps(_written(token)) for token in self.tokens]
        head = f'{{"pid": {self.pid}, "uptime_s": {self.uptime_s:.6f}, "settings": {self.settings.to_json()}'
        # and what closes the text below
        room = len(head) + 64
        num_kept = 0
        for text in texts:
            room += len(text) + 2
            num_kept += limit_bytes is None or room <= limit_bytes
        num_left_off = self.num_left_off + len(texts) - num_kept
        return f'{head}, "tokens": [{", ".join(texts[:num_kept])}], "num_left_off": {num_left_off}}}'

    @classmethod
    def from_json(cls, text: str) -> "HostStatus":
        """Raises `Refused` for anything that is not the JSON of a status."""
        try:
            given: dict[str, Any] = json.loads(text)
            settings = Settings.from_json(json.dumps(given.pop("settings")))
            return cls(settings=settings, tokens=tuple(map(_read, given.pop("tokens"))), **given)
        except (TypeError, ValueError, AttributeError, KeyError, RecursionError) as error:
            raise Refused(f"{text[:200]!r} is no status ({error}): use the same version on both sides") from error


def read_status(path: str | os.PathLike[str], *, limit_s: float = 2.0) -> HostStatus:
    """Ask the arbiter at `path`.

    Raises `ArbiterAbsent` where nobody serves it, `ArbiterLost` where no answer comes in `limit_s`, and `Refused` where
    it serves another user or speaks another version.
    """
    return HostStatus.from_json(ask_once(path, Request(RequestKind.STATUS), ReplyKind.REPORT, limit_s=limit_s).text)


def excuse(path: str | os.PathLike[str], job: str, *, num_workers: int = 0, limit_s: float = 2.0) -> int:
    """Tell the arbiter at `path` how many workers of a job come to its host: once they are there, nobody waits for the
    job at other devices. 0: its process has ended before it came.

    Returns the number of tokens that waited for it in vain. Errors as of `read_status`.
    """
    request = Request(RequestKind.EXCUSE, number=num_workers, job=job, device="0")
    return ask_once(path, request, ReplyKind.EXCUSED, limit_s=limit_s).round


_SEAT = tuple(item.name for item in fields(SeatStatus))


def _written(token: TokenStatus) -> dict[str, Any]:
    return {
        "name": token.name,
        "resource": token.resource.name.lower(),
        "device": token.device,
        "is_open": token.is_open,
        "generation": token.generation,
        "seats": [{name: getattr(seat, name) for name in _SEAT} for seat in token.seats],
    }


def _read(given: dict[str, Any]) -> TokenStatus:
    seats = tuple(SeatStatus(**seat | {"phase": Phase(seat["phase"])}) for seat in given["seats"])
    return TokenStatus(**given | {"resource": Resource[given["resource"].upper()], "seats": seats})
