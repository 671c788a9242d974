"""Who sits where: the arbiter's connections, its tokens, and what the next release will mean."""

import socket
from dataclasses import dataclass, field
from math import inf

from crossover import tokens
from crossover.protocol import Answer, Ask, Reply, Request
from crossover.tokens import Grant, Policy, Token


@dataclass(slots=True, eq=False)
class Connection:
    """One connected process; it has a seat once `table` is set. `deadline_s` is when its patience or its lease ends."""

    sock: socket.socket
    pid_fd: int | None
    deadline_s: float
    table: "Table | None" = None
    job: str = ""
    generation: int = 0
    is_open: bool = True


@dataclass(slots=True, eq=False)
class Table:
    """A token with the connections that sit around it."""

    name: str
    token: Token
    policy: Policy
    gather_deadline_s: float
    wake_s: float = inf
    seated: dict[str, Connection] = field(default_factory=dict)
    foresight: "Foresight | None" = None


@dataclass(frozen=True, slots=True)
class Foresight:
    """What the holder's release will mean, if nothing else happens to the token before."""

    before: Token
    packet: bytes
    after: Token
    heir: Connection
    grant: Grant
    granted: bytes


def foresee(table: Table, now_s: float) -> None:
    """Work out the holder's release while its turn lasts, where it has one heir."""
    token = table.token
    if (table.foresight is not None and table.foresight.before is token) or len(token.holders) != 1:
        return
    seat = token.seat(token.holders[0])
    after, grants = tokens.settle(tokens.release(token, seat.job, seat.generation), table.policy, now_s)
    if len(grants) == 1 and table.policy.wake_s(after, now_s) == inf:
        (grant,) = grants
        packet = Request(Ask.RELEASE, number=seat.generation).pack()
        table.foresight = Foresight(token, packet, after, table.seated[grant.job], grant, granted(grant))


def granted(grant: Grant) -> bytes:
    """The packet that tells a job of its lease."""
    return Reply(Answer.GRANTED, grant.generation, grant.round).pack()
