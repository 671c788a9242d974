"""The words between a participant and its arbiter: one fixed-size packet each way on a Unix SOCK_SEQPACKET socket.

One connection is one seat: a job at one token (a resource of one device). The kernel keeps packets apart, so there is
nothing to frame, and any packet of another size, magic or kind is refused.

    JOIN(job, device, resource, number=first round)  → WELCOME(generation=token's, round, extent) | REFUSED(text)
    ACQUIRE                                          → GRANTED(generation, round), when it is the job's turn
    ASIDE                                            → GRANTED(generation, round): a lease that is no turn
    RELEASE(number=generation)                       → RELEASED | FENCED(text)
    SKIP(number=rounds)                              → SKIPPED(round)

To leave is to close the connection. After REFUSED the arbiter closes it.
"""

import re
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum

from crossover.errors import Refused
from crossover.policies import Extent

MAGIC = b"CXO1"
_REQUEST = struct.Struct("!4sBB2xQ64s32s")
_REPLY = struct.Struct("!4sBB2xQQ232s")
REQUEST_BYTES = _REQUEST.size
REPLY_BYTES = _REPLY.size
_TEXT_BYTES = 232
_EXTENTS = tuple(Extent)
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]*")


class Resource(IntEnum):
    """What a token guards on its host."""

    DEVICE = 1
    LINK = 2


class Ask(IntEnum):
    """What a participant says."""

    JOIN = 1
    ACQUIRE = 2
    RELEASE = 3
    ASIDE = 4
    SKIP = 5


class Answer(IntEnum):
    """What the arbiter says."""

    WELCOME = 1
    GRANTED = 2
    RELEASED = 3
    FENCED = 4
    REFUSED = 5
    SKIPPED = 6


@dataclass(frozen=True, slots=True)
class Request:
    """Participant to arbiter. `number` is a first round in JOIN, a generation in RELEASE and a number of rounds in
    SKIP; names count in JOIN only."""

    kind: Ask
    resource: Resource = Resource.DEVICE
    number: int = 0
    job: str = ""
    device: str = ""

    def pack(self) -> bytes:
        """Exactly REQUEST_BYTES."""
        return _REQUEST.pack(
            MAGIC, self.kind, self.resource, self.number, self.job.encode("ascii"), self.device.encode("ascii")
        )

    @classmethod
    def unpack(cls, packet: bytes) -> "Request":
        """The request in a packet; anything else is `Refused`."""
        if len(packet) != REQUEST_BYTES:
            raise Refused(f"a request is {REQUEST_BYTES} bytes, not {len(packet)}: use the same version on both sides")
        magic, kind, resource, number, job, device = _REQUEST.unpack(packet)
        if magic != MAGIC:
            raise Refused(f"packet begins with {magic!r}, not {MAGIC!r}: use the same version on both sides")
        try:
            ask = Ask(kind)
            return cls(
                ask, Resource(resource), number, *(_name(raw) if ask is Ask.JOIN else "" for raw in (job, device))
            )
        except ValueError as error:
            raise Refused(f"malformed request ({error}): use the same version on both sides") from error


@dataclass(frozen=True, slots=True)
class Reply:
    """Arbiter to participant. `extent`: what the sharing wants a turn to last until."""

    kind: Answer
    generation: int = 0
    round: int = 0
    extent: Extent = Extent.BACKWARD
    text: str = ""

    def pack(self) -> bytes:
        """Exactly REPLY_BYTES; a longer text is cut."""
        text = self.text.encode("utf-8")[:_TEXT_BYTES]
        return _REPLY.pack(MAGIC, self.kind, _EXTENTS.index(self.extent), self.generation, self.round, text)

    @classmethod
    def unpack(cls, packet: bytes) -> "Reply":
        """The reply in a packet; anything else is `Refused`."""
        if len(packet) != REPLY_BYTES or not packet.startswith(MAGIC):
            raise Refused(f"the arbiter sent {len(packet)} bytes that are no reply: use the same version on both sides")
        _, kind, extent, generation, round_, text = _REPLY.unpack(packet)
        try:
            told = text.rstrip(b"\0").decode("utf-8", "replace")
            return cls(Answer(kind), generation, round_, _EXTENTS[extent], told)
        except (ValueError, IndexError) as error:
            raise Refused(f"malformed reply ({error}): use the same version on both sides") from error


def check_name(kind: str, name: str, limit: int) -> str:
    """A job's or device's name as it may travel, or `Refused`."""
    if len(name) > limit or not _NAME.fullmatch(name):
        raise Refused(
            f"{kind} name {name!r}: use 1 to {limit} letters, digits or ._:+- and begin with a letter or digit"
        )
    return name


def check_job(name: str) -> str:
    """A job's name, at most 64 characters."""
    return check_name("job", name, 64)


def check_device(name: str) -> str:
    """A device's name, at most 32 characters."""
    return check_name("device", name, 32)


def peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process at the other end, as the kernel saw it; pid 0 when it lives in another PID
    namespace."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def _name(raw: bytes) -> str:
    return check_name("packet", raw.rstrip(b"\0").decode("ascii"), len(raw))
