"""Which lane a message takes, and what lanes are to the link: shared by messages side by side, or one flow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from clocked_link import LINK, ClockedLink, virtual_world

from baselines.api import AllReduce, Message, Payload, Segment
from baselines.strategy import parse_strategy
from crossover.simulator.fluid import Agenda
from fabric.collectives import Collective
from harness.engine.core import Core, Start
from harness.engine.dispatch import StaticDispatch
from harness.engine.reduction import Tagged
from harness.engine.traffic import Traffic
from harness.engine.transport import ProcessGroupTransport
from harness.predict.costs import given_costs
from harness.predict.demand import Demand
from harness.predict.worker import Medium

MEGABYTE = 250_000  # float32 elements


class OneSum:
    """A message that is one sum."""

    def advance(self, answer: Payload | None) -> Tagged | None:
        return None if answer else Tagged(AllReduce(torch.zeros(1)), "gradient")


def lanes_taken(sizes: list[int], *, one_by_one: bool) -> list[int]:
    """The lane of each message, of two; the oldest lands when no more may go."""
    plan = tuple(Message(i, (Segment(f"p{i}", (size,), 0, size, i),)) for i, size in enumerate(sizes))
    core = Core(lambda _, __: OneSum(), 2, 2, Traffic(), lambda: 0.0, one_by_one=one_by_one)
    core.begin(StaticDispatch(plan), {f"p{i}": size for i, size in enumerate(sizes)})
    for index in range(len(sizes)):
        core.ready(index)
    taken, flying = list[int](), deque[int]()
    while core.left:
        while (actions := core.send()) is not None:
            started = [action.lane for action in actions if isinstance(action, Start)]
            taken += started
            flying += started
        core.answered(flying.popleft(), (torch.zeros(1),))
    return taken


@pytest.mark.parametrize(("one_by_one", "expected"), [(False, [0, 1, 1, 1, 1]), (True, [0, 1, 0, 1, 0])])
def test_small_messages_pass_a_large_one_or_lanes_take_turns(one_by_one: bool, expected: list[int]) -> None:
    assert lanes_taken([100, 1, 2, 3, 4], one_by_one=one_by_one) == expected


@pytest.mark.parametrize(("in_order", "landed"), [(False, [2.0, 2.0]), (True, [1.0, 2.0])])
def test_lanes_of_one_order_follow_each_other_on_the_link(in_order: bool, landed: list[float]) -> None:
    """Two equal messages at once; alone, each takes one unit of time."""
    link, landed_s = ClockedLink(), list[float]()
    with virtual_world(link.carrier()):
        transport = ProcessGroupTransport(2, in_order=in_order)
        for lane in (0, 1):
            transport.start(AllReduce(torch.zeros(MEGABYTE)), lane, lambda _: landed_s.append(link.now_s))
        link.run()
        transport.close()
    alone_s = LINK.seconds(Collective.ALL_REDUCE, 4 * MEGABYTE)
    assert landed_s == pytest.approx([units * alone_s for units in landed])


@pytest.mark.parametrize(
    ("text", "shares_link", "num_made"),
    [
        ("fixed-buckets", False, 0),
        ("fixed-buckets", True, 3),  # two lanes and control: the link's turns come on another thread
        ("unfused+at-pre-hook", False, 3),
        ("tensor-fusion", False, 3),
    ],
)
def test_sums_begun_by_one_thread_need_no_group_but_the_default_one(
    monkeypatch: pytest.MonkeyPatch, text: str, shares_link: bool, num_made: int
) -> None:
    """Each group of gloo has a thread that wakes a hundred times per second, whether or not it is used."""
    made, really = list[dist.ProcessGroup](), dist.new_group

    def new_group(*args: Any, **named: Any) -> dist.ProcessGroup:
        made.append(really(*args, **named))
        return made[-1]

    monkeypatch.setattr(dist, "new_group", new_group)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ProcessGroupTransport.of(parse_strategy(text), shares_link=shares_link).close()
        assert len(made) == num_made
    finally:
        made.clear()
        dist.destroy_process_group()


def test_on_the_virtual_clock_a_gap_passes_while_the_one_before_is_carried() -> None:
    clock = Agenda()
    medium = Medium(clock, given_costs(2, alpha_s=0.0, beta_s_per_byte=0.0))
    demand, landed_s = Demand(gap_s=0.25, bytes_s=1.0, queues=True), list[float]()

    def start(lane: int, then: Callable[[], None] | None = None) -> None:
        def done(_: object) -> None:
            landed_s.append(clock.now_s)
            if then is not None:
                then()

        medium.start(0, lane, demand, done)

    start(0, then=lambda: start(0))
    start(1)
    while clock.advance():
        pass
    assert landed_s == pytest.approx([1.25, 2.25, 3.25])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slices+p3+at-pre-hook", True),
        ("slices+bytescheduler+at-pre-hook", True),
        ("slices+p3+half", False),
        ("unfused+tictac", False),
        ("unfused+at-pre-hook", False),
        ("slices+fifo(one_by_one=True)+at-pre-hook", True),
    ],
)
def test_plain_sums_of_p3_and_bytescheduler_travel_one_by_one(text: str, expected: bool) -> None:
    assert parse_strategy(text).sums_one_by_one == expected
