"""What the switches of the packet engine are set to, as plain values: no compiled code comes with them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class FlowControl(IntEnum):
    """How links keep buffers from overflowing; the compiled loop knows the numbers."""

    LOSSY = 0
    PFC = 1
    CREDITS = 2


@dataclass(frozen=True, slots=True)
class Marking:
    """ECN by queue length, bytes: none below `mark_from`, all above `mark_all`, up to `mark_most` of them between."""

    mark_from: float
    mark_all: float
    mark_most: float = 1.0


@dataclass(frozen=True, slots=True)
class SwitchSettings:
    """All switches alike. None takes what the first flow's transport was designed for.

    `xoff_bytes` None: what the buffer leaves per ingress link and priority after the headroom. `share` is the dynamic
    threshold's factor on lossy queues, `port_bytes` a fixed limit of a queue; `credit_bytes` is a link's receive buffer
    under credits. Lossless links drop nothing: thresholds and credits that could overfill `buffer_bytes` are refused.
    `timeout_min_s` is TCP's smallest timeout.
    """

    buffer_bytes: int = 9_000_000
    flow_control: FlowControl | None = None
    marking: Marking | None = None
    xoff_bytes: int | None = None
    share: float = 1.0
    port_bytes: int | None = None
    credit_bytes: int = 64_000
    timeout_min_s: float = 0.2
    ack_bytes: int = 64
    seed: int = 1
