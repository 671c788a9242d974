"""The engine, threads and all: equal to lockstep, and loud when communication fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from engine_threads import NUM_STEPS, SharedRoom, train_with_engine
from forked_ranks import forked
from tiny_models import awkward, loss_at

from baselines.api import Primitive
from baselines.strategy import parse_strategy
from harness.engine.engine import Engine, EngineError
from harness.engine.transport import CONTROL, Done, ProcessGroupTransport
from harness.lockstep.collectives import Room
from harness.lockstep.ranks import Lockstep, replicas
from harness.trace import Recorder


@pytest.mark.parametrize(
    "text",
    [
        "unfused",
        "fixed-buckets",
        "single-bucket+adam",
        "tensor-fusion+ring",
        "tensor-fusion(threshold_bytes=0, cycle_s=0.0)",
        "unfused+all-gather+fifo(depth=1)",
        "tensor-fusion+half+error-feedback",
        "single-bucket+topk(density=0.2)+error-feedback",
    ],
)
def test_the_engine_trains_exactly_as_lockstep_does(text: str) -> None:
    """Bit for bit, on two ranks that run as threads. Where compression sees whole messages the
    packing must not depend on time, so top-k stands with a static plan."""
    strategy, room = parse_strategy(text), SharedRoom(2)
    exact = Lockstep(replicas(awkward(), 2), strategy, seed=7)
    for step in range(NUM_STEPS):
        exact.step(loss_at(step))
    models = replicas(awkward(), 2)
    with ThreadPoolExecutor(2) as threads:
        engines = list(threads.map(lambda rank: train_with_engine(models[rank], strategy, room, rank), range(2)))
    for model in models:
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, exact.models[0].get_parameter(name)), name
    for engine, expected in zip(engines, exact.traffic_of, strict=True):
        # A ring pads a message to a multiple of two elements, and how many messages there are depends on time.
        padding = 4 * max(engine.traffic.num_messages, expected.num_messages)
        assert abs(engine.traffic.wire_bytes["gradient"] - expected.wire_bytes["gradient"]) <= padding
        if strategy.rank_invariant:
            assert engine.traffic == expected


class Broken(Room):
    """Refuses everything that it is told to, at once or as an answer."""

    def __init__(self, refuses: Callable[[int], bool], *, at_once: bool) -> None:
        super().__init__(1)
        self._refuses, self._at_once = refuses, at_once

    def ask(self, rank: int, primitive: Primitive, lane: int, done: Done) -> None:
        if not self._refuses(lane):
            super().ask(rank, primitive, lane, done)
        elif self._at_once:
            raise ConnectionError("the peer is gone")
        else:
            done(ConnectionError("the peer is gone"))


@pytest.mark.parametrize("at_once", [True, False], ids=["on asking", "as the answer"])
@pytest.mark.parametrize("text", ["unfused", "tensor-fusion"])
def test_a_failure_reaches_every_later_call(text: str, at_once: bool) -> None:
    model = awkward()
    room = Broken(lambda lane: True, at_once=at_once)
    engine = Engine(model, parse_strategy(text), room.seat(0), recorder=Recorder())
    engine.begin_step()
    loss_at(0)(0, model).backward()
    engine.end_backward()
    with pytest.raises(EngineError, match="the peer is gone") as failed:
        engine.wait()
    assert isinstance(failed.value.__cause__, ConnectionError)
    with pytest.raises(EngineError):
        engine.wait_for("twice.weight")
    with pytest.raises(EngineError):
        engine.begin_step()
    engine.close()


def test_a_failure_while_agreeing_on_the_order_is_told() -> None:
    model = awkward()
    engine = Engine(
        model,
        parse_strategy("unfused"),
        Broken(lambda lane: lane == CONTROL, at_once=False).seat(0),
        recorder=Recorder(),
    )
    engine.begin_step()
    loss_at(0)(0, model).backward()
    engine.end_backward()
    with pytest.raises(EngineError, match="the peer is gone"):
        engine.wait()
    engine.close()


@pytest.mark.parametrize(("text", "num_threads"), [("unfused", 0), ("tensor-fusion", 1), ("unfused+half", 1)])
def test_closing_ends_the_thread_and_the_hooks(text: str, num_threads: int) -> None:
    """Plain sums of a static plan go from the hooks; a negotiation looks again at a time of no event, and compression
    is for another core."""
    before = threading.active_count()
    model = awkward()
    engine = Engine(model, parse_strategy(text), Room(1).seat(0), recorder=Recorder())
    assert threading.active_count() == before + num_threads
    engine.close()
    assert threading.active_count() == before
    loss_at(0)(0, model).backward()
    assert engine.traffic.num_messages == 0


class Slow(Room):
    """Answers when told to. Before each message: what the main thread knew to have landed."""

    def __init__(self) -> None:
        super().__init__(1)
        self.engine: Engine
        self.known, self.held = list[set[str]](), list[Callable[[], None]]()

    def ask(self, rank: int, primitive: Primitive, lane: int, done: Done) -> None:
        self.known.append(set(self.engine._communication.landed))
        self.held.append(lambda: Room.ask(self, rank, primitive, lane, done))


def test_the_next_message_goes_before_the_main_thread_is_told_of_the_last_one() -> None:
    """Whoever is woken takes the interpreter, and the link would wait for it."""
    room, model = Slow(), awkward()
    engine = room.engine = Engine(model, parse_strategy("unfused+fifo(depth=1)"), room.seat(0), recorder=Recorder())
    engine.begin_step()
    loss_at(0)(0, model).backward()
    engine.end_backward()
    for num_landed in range(len(engine.parameters)):
        assert len(room.held) == 1
        room.held.pop()()
        assert len(engine._communication.landed) == num_landed + 1
    assert [len(known) for known in room.known] == [0, *range(len(engine.parameters) - 1)]
    engine.close()


def test_a_muted_engine_keeps_gradients_local() -> None:
    model = awkward()
    engine = Engine(model, parse_strategy("unfused"), Room(1).seat(0), recorder=Recorder())
    engine.mute(True)
    loss_at(0)(0, model).backward()
    engine.mute(False)
    assert engine.traffic.num_messages == 0
    engine.exchange_once()
    assert engine.traffic.num_messages == len(list(model.parameters()))
    engine.close()


def test_a_single_rank_gets_its_own_gradients_back() -> None:
    model, alone = awkward(), awkward()
    engine = Engine(model, parse_strategy("fixed-buckets"), Room(1).seat(0), recorder=Recorder())
    engine.begin_step()
    for each in (model, alone):
        loss_at(0)(0, each).backward()
    engine.end_backward()
    engine.wait()
    for name, parameter in alone.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        grad = model.get_parameter(name).grad
        assert grad is not None
        assert torch.equal(grad, expected)
    engine.close()


@pytest.mark.parametrize("text", ["unfused", "tensor-fusion", "unfused+ring"])
def test_a_peer_that_dies_in_mid_step_is_an_error_and_no_hang(text: str, tmp_path: Path) -> None:
    dies_at = 2

    def run(rank: int) -> str:
        dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 2), rank=rank, world_size=2)
        model, strategy = awkward(), parse_strategy(text)
        engine = Engine(model, strategy, ProcessGroupTransport.of(strategy), recorder=Recorder())
        try:
            for step in range(dies_at + 2):
                engine.begin_step()
                if rank == 1 and step == dies_at:
                    os._exit(9)
                loss_at(step)(rank, model).backward()
                engine.end_backward()
                engine.wait()
        except EngineError as error:
            return f"EngineError at step {step}: {error}"
        return "no error"

    (_, told), died = forked(run, 2)
    assert "EngineError at step 2: communication failed" in told
    assert died == (9, None)
