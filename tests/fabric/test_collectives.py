"""The table of collectives: loads, conservation, and who must have what when."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.collectives import Collective, Load, flows_of, load_of

WORLDS = st.integers(2, 40)


def enumerated(collective: Collective, world: int) -> Load:
    """A load flow by flow; the number of bytes makes every part whole, so that sums are exact."""
    num_bytes = float(max(1, world * (world - 1)))
    num_rounds, num_sent, sent_bytes, link_bytes = 0, 0, 0.0, 0.0
    for own in flows_of(collective, world, num_bytes):
        ways: dict[tuple[bool, int], float] = defaultdict(float)
        for source, destination, size in own.flows:
            ways[True, source] += size
            ways[False, destination] += size
        num_rounds += own.times
        num_sent += own.times * len(own.flows)
        sent_bytes += own.times * sum(flow.num_bytes for flow in own.flows)
        link_bytes += own.times * max(ways.values())
    return Load(num_rounds, num_sent / world, sent_bytes / (world * num_bytes), link_bytes / num_bytes)


@pytest.mark.parametrize("collective", Collective)
def test_loads_in_closed_form_are_those_of_the_flows_to_the_last_digit(collective: Collective) -> None:
    for world in range(1, 34):
        assert load_of(collective, world) == enumerated(collective, world), world


@pytest.mark.parametrize("collective", Collective)
def test_a_load_does_not_enumerate_the_flows(collective: Collective, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fabric.collectives.RankFlow", None)
    assert load_of(collective, 65_536).num_rounds <= 2 * 65_535


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
