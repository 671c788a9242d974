"""Packets: what is written is read again, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.errors import Refused
from crossover.policies import Extent
from crossover.protocol import (
    HEADER_BYTES,
    REPLY_BYTES,
    REPORT_BYTES,
    REQUEST_BYTES,
    Reply,
    ReplyKind,
    Request,
    RequestKind,
    Resource,
    check_job,
)

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,31}", fullmatch=True)
NUMBERS = st.integers(0, 2**64 - 1)


@given(resource=st.sampled_from(Resource), number=NUMBERS, job=NAMES, device=NAMES)
def test_a_join_is_read_as_written(resource: Resource, number: int, job: str, device: str) -> None:
    request = Request(RequestKind.JOIN, resource, number, job, device)
    assert Request.unpack(request.pack()) == request


@given(
    kind=st.sampled_from(ReplyKind), extent=st.sampled_from(Extent), generation=NUMBERS, round_=NUMBERS, text=st.text()
)
def test_a_reply_is_read_as_written_and_its_text_is_cut(
    kind: ReplyKind, extent: Extent, generation: int, round_: int, text: str
) -> None:
    reply = Reply(kind, generation, round_, extent, text)
    again = Reply.unpack(reply.pack())
    assert (again.kind, again.generation, again.round, again.extent) == (kind, generation, round_, extent)
    assert HEADER_BYTES <= len(reply.pack()) <= (REPORT_BYTES if kind is ReplyKind.REPORT else REPLY_BYTES)
    assert text.startswith(again.text.rstrip("\ufffd")) or "\ufffd" in text


@given(packet=st.one_of(st.binary(max_size=300), st.binary(min_size=REQUEST_BYTES, max_size=REQUEST_BYTES)))
def test_garbage_is_refused_and_never_anything_worse(packet: bytes) -> None:
    for unpack in (Request.unpack, Reply.unpack):
        with pytest.raises(Refused):
            unpack(packet)


@given(position=st.integers(0, REQUEST_BYTES - 1), value=st.integers(0, 255))
def test_a_changed_byte_gives_a_request_or_a_refusal(position: int, value: int) -> None:
    packet = bytearray(Request(RequestKind.JOIN, job="resnet", device="0").pack())
    packet[position] = value
    try:
        request = Request.unpack(bytes(packet))
    except Refused:
        return
    assert check_job(request.job) == request.job


@pytest.mark.parametrize("name", ["", "two words", "-a", "../x", "é", "a" * 65, "a\n"])
def test_a_name_that_cannot_travel_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="job name"):
        check_job(name)
