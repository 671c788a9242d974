"""Laws of the orderings by priority: one message at a time, by hypothesis."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import segments_of

from baselines.api import Costs, HasCredit, HasKnobs, Keyed, Message, NeedsCosts, Ordering, Segment
from baselines.ordering.bytescheduler import ByteScheduler
from baselines.ordering.p3 import P3
from baselines.ordering.tictac import TicTac
from baselines.strategy import parse_strategy
from baselines.text import TextError

COSTS = Costs(1e-4, 1e-9, (1e-3,) * 8, (1e-3, 0.0) * 4)
BY_PRIORITY: list[Ordering] = [P3(), ByteScheduler(), TicTac().bind(COSTS), TicTac(variant="tic").bind(COSTS)]


@st.composite
def pendings(draw: st.DrawFn) -> list[Message]:
    """Slices of up to eight parameters in any order, numbered as they were made."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=8, max_size=8))
    slices = [
        Segment(whole.name, whole.shape, start, start + 1, whole.index)
        for whole in segments_of(sizes)
        for start in range(whole.numel)
    ]
    messages = [Message(index, (part,)) for index, part in enumerate(slices)]
    return draw(st.lists(st.sampled_from(messages), unique=True, max_size=20))


@pytest.mark.parametrize("ordering", BY_PRIORITY, ids=lambda o: o.card.name)
@given(pending=pendings())
def test_the_most_urgent_goes_and_of_equals_the_one_made_first(ordering: Ordering, pending: list[Message]) -> None:
    picked = ordering.pick(pending, (), 0.0)
    if not pending:
        assert picked is None
        return
    assert picked is not None
    for other in pending:
        assert picked.priority > other.priority or (picked.priority == other.priority and picked.index <= other.index)


@pytest.mark.parametrize("ordering", [*BY_PRIORITY, TicTac()], ids=lambda o: o.card.name)
@given(pending=pendings(), seed=st.integers(0, 99))
def test_no_order_of_the_list_changes_the_choice_and_keys_tell_it(
    ordering: Ordering, pending: list[Message], seed: int
) -> None:
    """A strict weak order: a comparison with `<=` breaks the first; a heap by key must agree with `pick`."""
    shuffled = random.Random(seed).sample(pending, len(pending))
    assert ordering.pick(pending, (), 0.0) == ordering.pick(shuffled, (), 0.0)
    assert isinstance(ordering, Keyed)
    drained: list[Message] = []
    while pending:
        picked = ordering.pick(pending, (), 0.0)
        assert picked is not None
        pending = [message for message in pending if message != picked]
        drained.append(picked)
    assert drained == sorted(shuffled, key=ordering.key)
    assert len({ordering.key(message) for message in drained}) == len(drained)


@given(pending=pendings(), flying=pendings(), credit=st.integers(1, 60))
def test_with_credit_left_a_message_goes_and_without_none_does(
    pending: list[Message], flying: list[Message], credit: int
) -> None:
    picked = ByteScheduler(credit_bytes=credit).pick(pending, flying, 0.0)
    outstanding = sum(message.nbytes for message in flying)
    assert (picked is None) == (not pending or (bool(flying) and outstanding >= credit))
    if picked is not None and flying:
        assert outstanding + picked.nbytes < credit + picked.nbytes


def test_what_the_engine_may_ask_of_each() -> None:
    kinds = (ByteScheduler(), P3(), TicTac())
    assert [isinstance(kind, HasCredit) for kind in kinds] == [True, False, False]
    assert [isinstance(kind, HasKnobs) for kind in kinds] == [True, False, False]
    assert [isinstance(kind, NeedsCosts) for kind in kinds] == [False, False, True]
    knob = ByteScheduler.knobs["credit_bytes"]
    assert (knob.low, knob.high) == (16e6, 256e6)  # 4 to 64 million parameters, as in the authors' code
    assert knob.low <= ByteScheduler().credit_bytes <= knob.high


@pytest.mark.parametrize("text", ["p3(depth=0)", "bytescheduler(credit_bytes=0)", "tictac(depth=0)"])
def test_impossible_settings_are_refused_with_their_value(text: str) -> None:
    with pytest.raises(TextError, match="is 0"):
        parse_strategy(text)
