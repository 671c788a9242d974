"""Order agreement: every rank sends the same messages in the same order, whatever its gradients do."""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselines.api import Message, Packed, Payload, Segment
from baselines.ordering.fifo import Fifo
from baselines.packing.tensor_fusion import TensorFusion
from baselines.packing.unfused import Unfused
from baselines.strategy import Strategy, parse_strategy
from harness.collectives import Room
from harness.dispatch import Coordinator, PlanError, StaticDispatch, make_plan
from harness.negotiate import Negotiation
from harness.traffic import Traffic


def segments(num: int) -> tuple[Segment, ...]:
    return tuple(Segment(f"p{index}", (index + 1,), 0, index + 1, index) for index in range(num))


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
    assert dispatch.all_sent
    assert [message.index for message in sent] == list(range(len(sent)))


@dataclasses.dataclass(frozen=True, slots=True)
class Doubling(Unfused):
    def pack(self, ready: Sequence[Segment], now_s: float) -> Packed:
        return Packed(((ready[0],), *((segment,) for segment in ready)))


def test_a_plan_that_doubles_elements_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match="unfused: 2 of 1 elements of p0"):
        make_plan(Doubling(), segments(3))


class Rank:
    """One rank of a simulated negotiation, with `depth` lanes whose messages complete when told."""

    def __init__(self, strategy: Strategy, layout: Sequence[Segment], room: Room, rank: int) -> None:
        self.traffic = Traffic()
        self.sent: list[Message] = []
        self.flying: deque[Message] = deque()
        self.now_s = 0.0
        self._depth = strategy.ordering.depth
        self.side = Negotiation(
            strategy, layout, room.seat(rank), self.traffic, self._receive, clock=lambda: self.now_s
        )

    def _receive(self, answer: Payload | Exception) -> None:
        assert not isinstance(answer, Exception)
        self.side.answered(answer)

    @property
    def num_sent(self) -> int:
        return sum(message.numel for message in self.sent)

    def act(self, now_s: float) -> None:
        """What the engine does after every event."""
        self.now_s = now_s
        while len(self.flying) < self._depth and (message := self.side.next()):
            self.flying.append(message)
            self.sent.append(message)
        self.side.cycle(tuple(self.flying), now_s)


def negotiate(strategy: Strategy, num: int, world: int, dice: random.Random) -> list[Rank]:
    """All gradients and completions come at random times; runs until nothing is left to do."""
    layout, room = segments(num), Room(world)
    ranks = [Rank(strategy, layout, room, rank) for rank in range(world)]
    events = [(rank, index) for rank in ranks for index in range(num)]
    dice.shuffle(events)
    now_s = 0.0
    num_elements = sum(segment.numel for segment in layout)
    while events or any(rank.flying or rank.num_sent < num_elements for rank in ranks):
        now_s += dice.random() * 1e-3
        flying = [rank for rank in ranks if rank.flying]
        if events and (not flying or dice.random() < 0.7):
            rank, index = events.pop()
            rank.side.ready(index)
        elif flying:
            rank = dice.choice(flying)
            rank.flying.popleft()
        for rank in dice.sample(ranks, world):
            rank.act(now_s)
    return ranks


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
    ranks = negotiate(strategy, num, world, random.Random(seed))
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

    def pack(self, ready: Sequence[Segment], now_s: float) -> Packed:
        return Packed(tuple((dataclasses.replace(segment, stop=segment.stop // 2),) for segment in ready))


def test_a_packing_that_forgets_a_part_of_what_is_ready_is_refused_by_name() -> None:
    coordinator = Coordinator(Half(), Fifo(), segments(2))
    with pytest.raises(PlanError, match=r"tensor-fusion: \d+ of \d+ elements of .* are packed"):
        coordinator.decide([0, 1], (), 0.0)


def test_an_ordering_that_lets_messages_overtake_decides_for_free_lanes_only() -> None:
    coordinator = Coordinator(TensorFusion(threshold_bytes=0), LatestFirst(depth=2), segments(9))
    window = coordinator.decide(range(9), (), 0.0)
    assert [group[0].index for group in window] == [8, 7]
    assert coordinator.look_again_s == 0.0
    assert coordinator.decide(range(9), (Message(0, window[0]), Message(1, window[1])), 0.0) == []


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
