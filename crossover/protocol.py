"""The words between a process and its arbiter: one packet each way on a Unix SOCK_SEQPACKET socket.

One connection is one seat: a job at one token (a resource of one device). The kernel keeps packets apart, so there is
nothing to frame; every packet begins with a header of HEADER_BYTES, and any of another size, magic or kind is refused.

    JOIN(job, device, resource, number=earliest round, generation=last lease's)
                                                     → WELCOME(generation=token's, round, extent) | REFUSED(text)
    ACQUIRE                                          → GRANTED(generation, round), when it is the job's turn
    ASIDE                                            → GRANTED(generation, round): a lease that is no turn
    RELEASE(number=generation)                       → RELEASED, after the next job has its GRANTED | FENCED(text)
    SKIP(number=rounds)                              → SKIPPED(round)
    PAUSE                                            → PAUSED(round): out of the queue until the next ACQUIRE

Who releases sleeps until it is answered, which leaves its core to the arbiter and the next job: a release without an
answer made the hand-over twice as long. To leave is to close the connection, or to shut down one's own half: then LEFT
comes back. After REFUSED the arbiter closes it. A connection that has not joined may ask:

    STATUS                                           → REPORT(text=JSON of crossover.status.HostStatus)
    EXCUSE(job)                                      → EXCUSED(round=number of tokens that waited for the job to come)
"""

import re
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum

from crossover.errors import Refused
from crossover.policies import Extent

MAGIC = b"CXO2"
REQUEST_HEADER = struct.Struct("!4sBB2xQQ")  # magic, kind, resource, number, generation
REPLY_HEADER = struct.Struct("!4sBB2xQQ")  # magic, kind, extent, generation, round
_NAMES = struct.Struct("!64s32s")
HEADER_BYTES = REQUEST_HEADER.size
REQUEST_BYTES = HEADER_BYTES + _NAMES.size  # the longest: with names
REPLY_BYTES = HEADER_BYTES + 1000  # the longest but for a report
REPORT_BYTES = 1 << 16
# one byte of a reply: the place in this tuple, so new ones go to the end
_EXTENTS = tuple(Extent)
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]*")


class Resource(IntEnum):
    """What a token guards on its host."""

    DEVICE = 1
    LINK = 2


class RequestKind(IntEnum):
    """What a participant says."""

    JOIN = 1
    ACQUIRE = 2
    RELEASE = 3
    ASIDE = 4
    SKIP = 5
    STATUS = 6
    EXCUSE = 8
    PAUSE = 9


class ReplyKind(IntEnum):
    """What the arbiter says."""

    WELCOME = 1
    GRANTED = 2
    LEFT = 3
    FENCED = 4
    REFUSED = 5
    SKIPPED = 6
    REPORT = 7
    RELEASED = 9
    EXCUSED = 10
    PAUSED = 11


_NAMED = (RequestKind.JOIN, RequestKind.EXCUSE)


@dataclass(frozen=True, slots=True)
class Request:
    """Participant to arbiter. `number` is the earliest round in JOIN, a generation in RELEASE and a number of rounds in
    SKIP, and in EXCUSE how many workers of the job come to this host (0: it has ended, so none); `generation` counts in
    JOIN only, names in JOIN and EXCUSE (the job's alone)."""

    kind: RequestKind
    resource: Resource = Resource.DEVICE
    number: int = 0
    job: str = ""
    device: str = ""
    generation: int = 0

    def pack(self) -> bytes:
        """HEADER_BYTES, or REQUEST_BYTES with names."""
        header = REQUEST_HEADER.pack(MAGIC, self.kind, self.resource, self.number, self.generation)
        if self.kind not in _NAMED:
            return header
        return header + _NAMES.pack(self.job.encode("ascii"), self.device.encode("ascii"))

    @classmethod
    def unpack(cls, packet: bytes) -> "Request":
        """The request in a packet; anything else is `Refused`."""
        if len(packet) not in (HEADER_BYTES, REQUEST_BYTES) or not packet.startswith(MAGIC):
            raise Refused(f"packet of {len(packet)} bytes is no request: use the same version on both sides")
        _, kind, resource, number, generation = REQUEST_HEADER.unpack_from(packet)
        try:
            ask = RequestKind(kind)
            if (ask in _NAMED) != (len(packet) == REQUEST_BYTES):
                raise ValueError(f"{ask.name} of {len(packet)} bytes")
            job, device = map(_name, _NAMES.unpack_from(packet, HEADER_BYTES)) if ask in _NAMED else ("", "")
            return cls(ask, Resource(resource), number, job, device, generation)
        except ValueError as error:
            raise Refused(f"malformed request ({error}): use the same version on both sides") from error


@dataclass(frozen=True, slots=True)
class Reply:
    """Arbiter to participant. `extent`: what the sharing wants a turn to last until."""

    kind: ReplyKind
    generation: int = 0
    round: int = 0
    extent: Extent = Extent.BACKWARD
    text: str = ""

    def pack(self) -> bytes:
        """A header and the text, which is cut to what its kind may carry."""
        limit = (REPORT_BYTES if self.kind is ReplyKind.REPORT else REPLY_BYTES) - HEADER_BYTES
        header = REPLY_HEADER.pack(MAGIC, self.kind, _EXTENTS.index(self.extent), self.generation, self.round)
        return header + self.text.encode("utf-8")[:limit]

    @classmethod
    def unpack(cls, packet: bytes) -> "Reply":
        """The reply in a packet; anything else is `Refused`."""
        if len(packet) < HEADER_BYTES or not packet.startswith(MAGIC):
            raise Refused(f"the arbiter sent {len(packet)} bytes that are no reply: use the same version on both sides")
        _, kind, extent, generation, round_ = REPLY_HEADER.unpack_from(packet)
        try:
            told = packet[HEADER_BYTES:].decode("utf-8", "replace")
            return cls(ReplyKind(kind), generation, round_, _EXTENTS[extent], told)
        except (ValueError, IndexError) as error:
            raise Refused(f"malformed reply ({error}): use the same version on both sides") from error


def release_of(generation: int) -> bytes:
    """The packet that ends the lease."""
    return REQUEST_HEADER.pack(MAGIC, RequestKind.RELEASE, Resource.DEVICE, generation, 0)


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
    # from the kernel: what a peer says of itself proves nothing
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def _name(raw: bytes) -> str:
    return check_name("packet", raw.rstrip(b"\0").decode("ascii"), len(raw))
