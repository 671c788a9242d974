"""Real processes on emulated hosts: the bytes that the engine counts are those that cross the interfaces.

A trial of few steps is taken away from one of more, so that what starts a trial (rendezvous, process groups, the first
step's order) falls out. From each packet its Ethernet, IPv4 and TCP headers are taken away; a packet that only
acknowledges is nothing but these. What is left is what gloo was given, and gloo's own framing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab_tasks import done, spec_of, task

from harness.launch import LabHandle
from harness.messages import Answer

pytestmark = pytest.mark.emulated

HEADER_BYTES = 14 + 20 + 20 + 12  # Ethernet, IPv4, TCP and its time stamps
FEW, MANY = 3, 11
SMALL_STEP_BYTES = 100_000
METHODS = (
    "half",
    "topk(density=0.01)+error-feedback",
)


def crossed_bytes(answer: Answer) -> float:
    """What all interfaces carried, less headers."""
    assert answer.sent_bytes is not None
    assert answer.sent_packets is not None
    return sum(answer.sent_bytes) - HEADER_BYTES * sum(answer.sent_packets)


def counted_bytes(answer: Answer, num_steps: int) -> float:
    """What all ranks counted."""
    return num_steps * sum(sum(rank.wire_bytes.values()) for rank in done(answer))
