"""The table of collectives: closed forms, conservation, and who must have what when."""

from __future__ import annotations

from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.collectives import Collective, flows_of, load_of

WORLDS = st.integers(2, 40)


@pytest.mark.parametrize("world", [2, 3, 4, 7, 8, 64, 1024])
def test_loads_equal_the_closed_forms(world: int) -> None:
    others, rounds = world - 1, ceil(log2(world))
    forms = {  # rounds, bytes on the busiest link per byte, bytes that a rank sends in the mean
        Collective.ALL_REDUCE: (2 * others, 2 * others / world, 2 * others / world),
        Collective.ALL_GATHER: (others, others, others),
        Collective.GATHER: (1, others, others / world),
        Collective.BROADCAST: (rounds, rounds, others / world),
        Collective.TRANSFER: (1, 1, 1),
    }
    if world < 100:  # its flows grow with the square
        forms[Collective.ALL_TO_ALL] = (others, 1, 1)
    for collective, form in forms.items():
        load = load_of(collective, world)
        assert (load.num_rounds, load.link_bytes, load.sent_bytes) == form, collective


@given(st.sampled_from(Collective), WORLDS)
def test_no_rank_sends_to_itself_or_outside(collective: Collective, world: int) -> None:
    for own in flows_of(collective, world, 1.0):
        for flow in own.flows:
            assert flow.source != flow.destination
            assert {flow.source, flow.destination} <= set(range(world))


@given(WORLDS)
def test_a_broadcast_reaches_every_rank_once_from_one_that_has_it(world: int) -> None:
    holders = {0}
    for own in flows_of(Collective.BROADCAST, world, 1):
        assert {flow.source for flow in own.flows} <= holders
        fresh = [flow.destination for flow in own.flows]
        assert holders.isdisjoint(fresh)
        assert len(fresh) == len(set(fresh))
        holders.update(fresh)
    assert holders == set(range(world))


@given(WORLDS)
def test_an_all_to_all_has_each_pair_once(world: int) -> None:
    pairs = [(f.source, f.destination) for own in flows_of(Collective.ALL_TO_ALL, world, world - 1) for f in own.flows]
    assert len(pairs) == len(set(pairs)) == world * (world - 1)


@pytest.mark.parametrize("collective", Collective)
def test_a_rank_alone_sends_nothing(collective: Collective) -> None:
    assert not list(flows_of(collective, 1, 10))
    assert load_of(collective, 1).sent_bytes == 0.0


def test_no_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="among 0 ranks; there is at least 1"):
        next(flows_of(Collective.ALL_REDUCE, 0, 1))
