"""Real processes on emulated hosts: the bytes that the engine counts are those that cross the interfaces.

A trial of few steps is taken away from one of more, so that what starts a trial (rendezvous, process groups, the order
after the first step) falls out. From each packet its Ethernet, IPv4 and TCP headers are taken away; a packet
that only acknowledges is nothing but these. What is left is what gloo was given and gloo's own framing, which is not
counted: whatever size a message has, each send takes two notices and a header of 48 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab_tasks import done, spec_of, task

from harness.launch import LabHandle
from harness.messages import Answer

pytestmark = [pytest.mark.emulated, pytest.mark.timeout(300)]  # a busy machine makes processes late, not wrong

HEADER_BYTES = 14 + 20 + 20 + 12  # Ethernet, IPv4, TCP and its time stamps
FRAME_BYTES = 3 * 48
FEW, MANY = 3, 9  # both past every warm-up below
PATIENCE_S = 150.0  # a lab that has no cache compiles kernels first
SMALL_STEP_BYTES = 100_000
ADAM = "frozen-adam(freeze_after=2)"
# Densities are such that a step of this small network sends some 20 kB or more; each is one message.
METHODS = {
    "uncompressed": "sgd",
    "half": "sgd",
    "topk+error-feedback": "sgd",
    "random-k(density=0.1)+error-feedback": "sgd",
    "random-k(shared=False)+error-feedback": "sgd",
    "gtopk+tree+error-feedback": "sgd",
    "dgc(density=0.01)": "sgd(momentum=0.0)",
    "aji-heafield+error-feedback": "sgd",
    "powersgd+error-feedback": "sgd",
    "onebit+error-feedback": "sgd",
    "onebit+double-squeeze+error-feedback": "sgd",
    "onebit+double-squeeze+error-feedback+parameter-server": "sgd",
    "qsgd": "sgd",
    "qsgd(coding='elias')": "sgd",
    "sbc(density=0.1)+error-feedback": "sgd",
    "onebit-adam(warmup_steps=2)": ADAM,
    "parameter-server(update='server')": "sgd",
}
# How many sends of gloo's a rank makes for one message, on average over P ranks. All-reduce and all-gather are rings
# that cut what they carry in two for each neighbour; a transfer is one send.
FRAMED = {
    "random-k+error-feedback": lambda world: 4 * (world - 1),
    "topk(density=0.001)+error-feedback": lambda world: 2 * (world - 1),
    "sbc+error-feedback": lambda world: 4 * (world - 1),  # a size header before the code
    "gtopk(density=0.001)+tree+error-feedback": lambda world: 2 * (world - 1) / world,
}


@pytest.fixture(scope="module", params=[2, 3], ids=lambda num_hosts: f"{num_hosts} hosts")
def lab(request: pytest.FixtureRequest) -> Iterator[tuple[LabHandle, int]]:
    with LabHandle(spec_of("emulated", request.param)) as handle:
        yield handle, request.param


def sent_bytes(lab: tuple[LabHandle, int], strategy: str, optimizer: str = "sgd") -> tuple[float, float, float]:
    """Bytes a step that all interfaces carried, less headers; that all ranks counted; messages a rank sent."""
    handle, world = lab
    asked = {"strategy": strategy, "optimizer": optimizer}
    few, many = (
        handle.ask(task(spec_of("emulated", world), num_steps=n, timeout_s=PATIENCE_S, **asked)) for n in (FEW, MANY)
    )
    num_steps = MANY - FEW
    crossed = (crossed_bytes(many) - crossed_bytes(few)) / num_steps
    counted = (counted_bytes(many, MANY) - counted_bytes(few, FEW)) / num_steps
    num_messages = many.ranks[0].num_messages
    assert num_messages is not None
    return crossed, counted, num_messages


def crossed_bytes(answer: Answer) -> float:
    """What all interfaces carried, less headers."""
    assert answer.sent_bytes is not None
    assert answer.sent_packets is not None
    return sum(answer.sent_bytes) - HEADER_BYTES * sum(answer.sent_packets)


def counted_bytes(answer: Answer, num_steps: int) -> float:
    """What all ranks counted, control messages and size headers included."""
    return num_steps * sum(sum(rank.wire_bytes.values()) for rank in done(answer))


@pytest.mark.parametrize("strategy", METHODS)
def test_counted_bytes_are_those_that_cross_the_interfaces(lab: tuple[LabHandle, int], strategy: str) -> None:
    crossed, counted, _ = sent_bytes(lab, f"single-bucket+{strategy}", METHODS[strategy])
    tolerance = 0.05 if counted / lab[1] < SMALL_STEP_BYTES else 0.02
    assert crossed == pytest.approx(counted, rel=tolerance)


@pytest.mark.parametrize("strategy", FRAMED)
def test_what_is_missing_of_small_messages_is_the_framing_of_gloo(lab: tuple[LabHandle, int], strategy: str) -> None:
    """A notice falls away where the other side is ahead of it: so not to the byte."""
    crossed, counted, num_messages = sent_bytes(lab, f"fixed-buckets+{strategy}")
    framing = lab[1] * num_messages * FRAMED[strategy](lab[1]) * FRAME_BYTES
    assert crossed - counted == pytest.approx(framing, rel=0.2)
