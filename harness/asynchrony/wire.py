"""What workers and servers say to each other over TCP: frames of a fixed header and raw float32, nothing pickled.

A worker introduces itself with the run's token, then pushes updates and pulls parameters:

    Push(clock): my update of this clock             Pull(at_least): parameters that hold every update up to a clock

A server welcomes it with the clock at which to go on, 0 unless the run was broken off, and answers a pull when it may,
each worker by itself. All processes of a run are on machines of one byte order.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from baselines.memory import blank

HEADER = struct.Struct("!BIiQ")  # kind, worker, clock, bytes that follow
TOKEN_BYTES = 16
# Of a host that ends without a word, such as one that lost its power, nothing would ever be heard: it is asked after so
# many seconds of silence, so often, at intervals of so many.
KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPCNT: 6, socket.TCP_KEEPINTVL: 10}


class FrameKind(IntEnum):
    """What a frame is. DONE is a worker's goodbye: an end without it is a loss."""

    HELLO = 0
    PUSH = 1
    PULL = 2
    PARAMETERS = 3
    DONE = 4
    LAST_PULL = 5  # the parameters at the end, which is no read of the training
    WELCOME = 6
    WELCOME_BACK = 7  # to a worker that the others had gone on without


class WireError(RuntimeError):
    """Bytes that are no frame of this run."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message. `clock` is a push's own, a pull's `at_least`, in an answer the slowest worker's, in a welcome the
    worker's next one."""

    kind: FrameKind
    worker: int
    clock: int
    payload: Tensor  # [bytes, uint8]


def prepare(connection: socket.socket) -> None:
    """What both sides ask of the kernel. No limit for data that is not taken (TCP_USER_TIMEOUT): a worker that is
    stopped, or waits for its turn, is no lost one."""
    # A header that goes alone must not wait for more bytes to go with it.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def header_of(kind: FrameKind, worker: int, clock: int, num_bytes: int = 0) -> bytes:
    """The bytes before a payload of `num_bytes`."""
    return HEADER.pack(kind, worker, clock, num_bytes)


def raw(values: Tensor) -> memoryview:
    """The bytes of `values` [numel, float32], not copied."""
    return _bytes_of(values.detach().contiguous().view(torch.uint8))


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.numpy())  # type: ignore[arg-type]  # numpy's stub for Python 3.11 knows no Buffer


class FrameReader:
    """Frames of one socket, put together as bytes come. None may be longer than `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._start()

    def _start(self) -> None:
        self._payload: Tensor | None = None
        self._head = bytearray(HEADER.size)
        self._rest = memoryview(self._head)

    def read(self, source: socket.socket) -> Frame | None:
        """Take what is there, once; a frame if that completes one.

        Raises: ConnectionError at the end of the stream, WireError for what is no frame.
        """
        if self._rest:
            num_read = source.recv_into(self._rest)
            if not num_read:
                raise ConnectionResetError("the other side has closed the connection")
            self._rest = self._rest[num_read:]
        if self._rest:
            return None
        kind, worker, clock, num_bytes = HEADER.unpack(self._head)
        if self._payload is None:
            if num_bytes > self.most_bytes or kind not in set(FrameKind):
                raise WireError(
                    f"a frame of kind {kind} with {num_bytes} bytes; at most {self.most_bytes} are expected"
                )
            # Received straight into the tensor's memory, so that nothing is copied.
            self._payload = blank(num_bytes, torch.uint8)
            self._rest = _bytes_of(self._payload) if num_bytes else self._rest
            if num_bytes:
                return None
        frame = Frame(FrameKind(kind), worker, clock, self._payload)
        self._start()
        return frame
