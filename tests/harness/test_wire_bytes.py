"""Real processes on emulated hosts: the bytes that the engine counts are those that cross the interfaces.

A trial of few steps is taken away from one of more, so that what starts a trial (rendezvous, process groups, the order
after the first step) falls out. From each packet its Ethernet, IPv4 and TCP headers are taken away; a packet
that only acknowledges is nothing but these. What TCP sent again, since an acknowledgement was late, interfaces count
twice: a full segment at most for each that the kernel counts as sent again.
"""

from __future__ import annotations

import pytest
from lab_tasks import done, spec_of, task
from patience import patience_s

from harness.lab.labs import Labs
from harness.lab.messages import Answer

# A busy machine makes processes late, not wrong.
pytestmark = [pytest.mark.slow, pytest.mark.emulated, pytest.mark.timeout(300)]

HEADER_BYTES = 14 + 20 + 20 + 12  # Ethernet, IPv4, TCP and its time stamps
SEGMENT_BYTES = 1500 - 20 - 20 - 12
FEW, MANY = 3, 9  # both past every warm-up below
PATIENCE_S = patience_s(150.0)  # a lab that has no cache compiles kernels first
TOLERANCE = 0.01  # without anything sent again they are equal
ADAM = "frozen-adam(freeze_after=2)"
# A method for each way of a code, as primitives tell them apart: summed or gathered, in which number format, in sizes
# that are equal or differ, up a tree, by all ranks or through servers. `test_lockstep_contract.py` sees to it that no
# compressor sends another primitive; what one comes to is counted at one place. Densities are such that a step of this
# small network sends some 20 kB or more. Each is one message.
METHODS = {
    "uncompressed": "sgd",
    "topk+error-feedback": "sgd",
    "gtopk+tree+error-feedback": "sgd",
    "onebit+double-squeeze+error-feedback": "sgd",
    "onebit+double-squeeze+error-feedback+parameter-server": "sgd",
    "qsgd(coding='elias')": "sgd",
    "onebit-adam(warmup_steps=2)": ADAM,
    "parameter-server(update='server')": "sgd",
}
# In two messages per step, and where ranks agree on how many.
DIVIDED = {
    "fixed-buckets+sbc+error-feedback": "sgd",
    "fixed-buckets+gtopk(density=0.001)+tree+error-feedback": "sgd",
    "fixed-buckets+powersgd+error-feedback": "sgd",
    "tensor-fusion+half": "sgd",
}
CASES = {f"single-bucket+{method}": optimizer for method, optimizer in METHODS.items()} | DIVIDED
# How bytes grow with ranks is the primitives' affair, so of each primitive one method goes on two hosts. The first
# three go nowhere else: others take their primitives to three.
PRIMITIVES = (
    "single-bucket+uncompressed",  # all-reduce
    "single-bucket+topk+error-feedback",  # all-gather
    "single-bucket+gtopk+tree+error-feedback",  # transfers
    "single-bucket+onebit+double-squeeze+error-feedback",  # all-to-all
    "single-bucket+parameter-server(update='server')",
    "tensor-fusion+half",  # gather and broadcast of control
)
WORLDS = [(2, strategy) for strategy in PRIMITIVES] + [
    (3, strategy) for strategy in CASES if strategy not in PRIMITIVES[:3]
]


def task_bytes(labs: Labs, world: int, strategy: str, optimizer: str) -> tuple[float, float, float]:
    """Bytes per step that all interfaces carried at least, first transmissions alone, and at most; those counted."""
    asked = {"strategy": strategy, "optimizer": optimizer}
    few, many = (
        labs.ask(task(spec_of("emulated", world), num_steps=n, timeout_s=PATIENCE_S, **asked)) for n in (FEW, MANY)
    )
    resent = SEGMENT_BYTES * sum(sum(answer.resent_segments or ()) for answer in (few, many))
    crossed = crossed_bytes(many) - crossed_bytes(few)
    counted = counted_bytes(many, MANY) - counted_bytes(few, FEW)
    return (crossed - resent) / (MANY - FEW), (crossed + resent) / (MANY - FEW), counted / (MANY - FEW)


def crossed_bytes(answer: Answer) -> int:
    """What all interfaces carried, less headers."""
    assert answer.sent_bytes is not None
    assert answer.sent_packets is not None
    return sum(answer.sent_bytes) - HEADER_BYTES * sum(answer.sent_packets)


def counted_bytes(answer: Answer, num_steps: int) -> float:
    """What all ranks counted, control messages, size headers and framing included."""
    return num_steps * sum(sum(rank.wire_bytes.values()) for rank in done(answer))


@pytest.mark.parametrize(("world", "strategy"), WORLDS)
def test_counted_bytes_are_those_that_cross_the_interfaces(labs: Labs, world: int, strategy: str) -> None:
    least, most, counted = task_bytes(labs, world, strategy, CASES[strategy])
    assert least <= (1 + TOLERANCE) * counted
    assert most >= (1 - TOLERANCE) * counted
