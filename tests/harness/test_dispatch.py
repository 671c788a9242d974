"""Order agreement: every rank sends the same messages in the same order, whatever its gradients do."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from simulated_ranks import Rank, negotiate, segments

from baselines.api import Broadcast, Gather, Message, Packed, Segment
from baselines.ordering.fifo import Fifo
from baselines.packing.tensor_fusion import TensorFusion
from baselines.packing.unfused import Unfused
from baselines.strategy import parse_strategy
from harness.engine.dispatch import MARGIN, Coordinator, LookAhead, PlanError, StaticDispatch, make_plan
from harness.engine.negotiate import Negotiation
from harness.lockstep.collectives import Room


@dataclasses.dataclass(frozen=True, slots=True)
class LatestFirst:
    """An ordering in which a newer message overtakes."""

    card = Fifo.card
    rank_invariant = False
    depth: int = 2

    def pick(self, pending: Sequence[Message], in_flight: Sequence[Message], now_s: float) -> Message | None:
        return pending[-1] if pending else None


@given(num=st.integers(1, 12), limit=st.integers(1, 200), seed=st.integers(0, 999))
def test_a_static_plan_is_sent_in_its_own_order_and_drains(num: int, limit: int, seed: int) -> None:
    packing = parse_strategy(f"fixed-buckets(first_bucket_bytes={limit}, bucket_bytes={limit})").packing
    dispatch = StaticDispatch(make_plan(packing, segments(num)))
    ready: set[int] = set()
    sent: list[Message] = []
    for index in random.Random(seed).sample(range(num), num):
        dispatch.ready(index)
        ready.add(index)
        while message := dispatch.next():
            assert {segment.index for segment in message.segments} <= ready
            sent.append(message)
    assert sent == list(dispatch.plan)


@dataclasses.dataclass(frozen=True, slots=True)
class Doubling(Unfused):
    def pack(self, ready: Sequence[Segment]) -> Packed:
        return Packed(((ready[0],), *((segment,) for segment in ready)))


def test_a_plan_that_doubles_elements_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match="unfused: 2 of 1 elements of p0"):
        make_plan(Doubling(), segments(3))


@given(
    world=st.integers(1, 4),
    num=st.integers(1, 10),
    threshold=st.sampled_from([0, 40, 10_000]),
    depth=st.integers(1, 3),
    seed=st.integers(0, 9999),
)
@pytest.mark.parametrize("in_order", [True, False], ids=["fifo", "latest first"])
def test_negotiated_ranks_send_the_same_messages_in_the_same_order(
    in_order: bool, world: int, num: int, threshold: int, depth: int, seed: int
) -> None:
    strategy = dataclasses.replace(
        parse_strategy(f"tensor-fusion(threshold_bytes={threshold})"),
        ordering=Fifo(depth=depth) if in_order else LatestFirst(depth=depth),
    )
    ranks = negotiate(strategy, segments(num), world, random.Random(seed))
    for rank in ranks:
        assert rank.sent == ranks[0].sent
    sent = sorted((s.index, s.start, s.stop) for message in ranks[0].sent for s in message.segments)
    assert sent == [(s.index, s.start, s.stop) for s in segments(num)]
    if world > 1:
        assert ranks[0].traffic.wire_bytes["control"] > 0


def test_whatever_is_ready_is_decided_in_one_window_if_order_is_kept() -> None:
    layout = segments(9)
    coordinator = Coordinator(TensorFusion(threshold_bytes=0), Fifo(depth=2), layout)
    assert len(coordinator.decide(range(9), (), 0.0)) == 9
    assert coordinator.look_again_s == TensorFusion().cycle_s


class Half(TensorFusion):
    """Packs the first half of everything and forgets the rest."""

    def pack(self, ready: Sequence[Segment]) -> Packed:
        return Packed(tuple((dataclasses.replace(segment, stop=segment.stop // 2),) for segment in ready))


def test_a_packing_that_forgets_a_part_of_what_is_ready_is_refused_by_name() -> None:
    coordinator = Coordinator(Half(), Fifo(), segments(2))
    with pytest.raises(PlanError, match=r"tensor-fusion: \d+ of \d+ elements of .* are packed"):
        coordinator.decide([0, 1], (), 0.0)


def test_an_ordering_that_lets_messages_overtake_decides_one_message_more_than_lanes() -> None:
    coordinator = Coordinator(TensorFusion(threshold_bytes=0), LatestFirst(depth=2), segments(10))
    window = coordinator.decide(range(9), (), 0.0)
    assert [message.segments[0].index for message in window] == [8, 7]
    assert coordinator.look_again_s == 0.0
    in_flight = tuple(window)
    (ahead,) = coordinator.decide(range(9), in_flight, 0.0)
    assert ahead.segments[0].index == 6
    assert coordinator.decide(range(9), in_flight, 0.0, queued=(ahead,)) == []
    more = coordinator.decide(range(9), in_flight, 0.0, queued=(ahead,), ahead_bytes=ahead.nbytes + 6 * 4)
    assert [message.segments[0].index for message in more] == [5, 4]


def test_once_everything_is_ready_one_window_decides_the_rest() -> None:
    coordinator = Coordinator(TensorFusion(threshold_bytes=0), LatestFirst(depth=2), segments(9))
    assert [message.segments[0].index for message in coordinator.decide(range(9), (), 0.0)] == list(range(8, -1, -1))
    assert not coordinator.has_waiting


def test_a_window_holds_no_more_than_can_be_told() -> None:
    coordinator = Coordinator(Unfused(), LatestFirst(), segments(9), capacity=4)
    windows = [coordinator.decide(range(9), (), 0.0) for _ in range(3)]
    assert [len(window) for window in windows] == [4, 4, 1]


def test_messages_of_a_plan_overtake_those_that_are_not_ready() -> None:
    coordinator = Coordinator(Unfused(), LatestFirst(depth=2), segments(5))
    assert [message.index for message in coordinator.decide([3, 1], (), 0.0)] == [1, 3]


def test_a_plans_round_begins_only_when_it_could_decide_a_message() -> None:
    """Four parameters of four bytes in two messages, ready out of order; the clock says that it is always time."""
    strategy = parse_strategy("fixed-buckets(first_bucket_bytes=8, bucket_bytes=8)+p3")
    layout = [dataclasses.replace(own, shape=(1,), stop=1) for own in segments(4)]
    side = Negotiation(strategy, layout, 0, 1, 0.0)
    begun = []
    for index in (0, 2, 3, 1):
        side.ready(index)
        begun.append(isinstance(side.cycle((), 1e12), Gather))
    assert begun == [False, False, True, False]  # one round at a time
    window = side.answered((torch.ones(4, dtype=torch.uint8),))
    assert isinstance(window, Broadcast)
    assert side.answered((window.tensor,)) is None
    assert side.all_decided
    assert side.cycle((), 1e12) is None


@dataclasses.dataclass(frozen=True, slots=True)
class Refusing(LatestFirst):
    def pick(self, pending: Sequence[Message], in_flight: Sequence[Message], now_s: float) -> Message | None:
        return None


def test_an_ordering_that_picks_nothing_for_an_empty_link_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match="fifo picks None of 3 messages"):
        Coordinator(Unfused(), Refusing(), segments(3)).decide(range(3), (), 0.0)


def test_what_is_decided_ahead_follows_what_starts_in_a_round() -> None:
    ahead = LookAhead(limit_bytes=1_000)
    ahead.learn(started_bytes=50, window_bytes=60, ran_dry=True)
    assert ahead.nbytes == 60
    ahead.learn(started_bytes=60, window_bytes=60, ran_dry=True)
    assert ahead.nbytes == 120
    for _ in range(20):
        ahead.learn(started_bytes=80, window_bytes=120, ran_dry=False)
    assert abs(ahead.nbytes - MARGIN * 80) < 5
    for _ in range(9):
        ahead.learn(started_bytes=100, window_bytes=100, ran_dry=True)
    assert ahead.nbytes == 1_000


def test_a_parameter_missing_on_one_rank_holds_its_message_back() -> None:
    room, layout = Room(2), segments(2)
    ranks = [Rank(parse_strategy("tensor-fusion"), layout, room, rank) for rank in range(2)]
    for rank, indices in zip(ranks, ([0, 1], [1]), strict=True):
        for index in indices:
            rank.side.ready(index)
        rank.act(1.0)
    for rank in ranks:
        rank.act(1.0)
        assert [s.index for message in rank.sent for s in message.segments] == [1]
