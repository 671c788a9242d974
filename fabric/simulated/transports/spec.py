"""What the engine must know of a transport beside its compiled functions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from fabric.simulated.engine import state
from fabric.simulated.switches import FlowControl, Marking


class Reliability(IntEnum):
    """What is sent again after a loss."""

    GO_BACK_N = state.GO_BACK_N
    NEW_RENO = state.NEW_RENO
    SELECTIVE = state.SELECTIVE


@dataclass(frozen=True, slots=True)
class TransportSpec:
    """A transport's card: its number in the compiled code, its wire format, and the switches it was designed for."""

    name: str
    number: int
    paper: str
    reliability: Reliability
    flow_control: FlowControl
    payload_bytes: int
    header_bytes: int
    marking: Marking | None = None
    timeout_s: float = 0.0  # 0: never
    is_routed: bool = True  # False: bound to layer 2, so every flow of a pair takes the same path
