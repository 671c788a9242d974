"""A gradient's way through the code is the one that docs/guide/architecture.md tells."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import nn

from baselines.api import AllReduce
from baselines.strategy import Strategy, parse_strategy
from crossover import Alone
from harness.engine.dispatch import make_plan
from harness.engine.engine import Engine
from harness.engine.layout import lay_out
from harness.engine.link_turns import LinkTurns
from harness.engine.messages import GradientRun, PlainSum, RankMessages
from harness.engine.straight import NUM_QUEUED
from harness.engine.transport import HeldByLibrary, may_queue
from harness.systems.ours import EngineSession
from harness.trace import Recorder

ROOT = Path(__file__).resolve().parents[2]
PAGE = (
    (ROOT / "docs" / "guide" / "architecture.md").read_text().partition("## A gradient's way")[2].partition("\n## ")[0]
)
MOST_FILES = 9
VALUES = {"baselines/api.py", "baselines/strategy.py", "harness/systems/api.py"}  # what is handed on, and its protocols
NOT_RUN = {"harness/loop.py", "harness/engine/transport.py"}  # the test is the loop, and a library that is done at once


class Done:
    """A sum among one rank."""

    num_waits = 0

    def is_completed(self) -> bool:
        return True

    def wait(self) -> bool:
        self.num_waits += 1
        return True


class QueueOfOne:
    """A transport of one rank that takes sums as gloo does."""

    rank, world = 0, 1
    queues_sums = True

    def __init__(self, *, ends_in_stream: bool = False) -> None:
        self.queued = list[Done]()
        self._ends_in_stream = ends_in_stream

    def queue(self, tensor: torch.Tensor) -> HeldByLibrary:
        self.queued.append(Done())
        return self.queued[-1]

    def in_stream(self, tensor: torch.Tensor) -> bool:
        return self._ends_in_stream

    def start(self, primitive: object, lane: int, done: Callable[..., None]) -> None:
        raise AssertionError(f"{primitive} went by lanes")

    def close(self) -> None:
        """Nothing is held."""


def engine_of_one(model: nn.Module, strategy: Strategy, transport: QueueOfOne) -> Engine:
    """An engine that has nobody to agree with on the order after its first step."""
    engine = Engine(model, strategy, transport, recorder=Recorder())
    engine._agree_on_ready_order = lambda: None  # type: ignore[method-assign]
    return engine


def take_first_step(engine: Engine, model: nn.Module) -> None:
    """In which gradients wait for the end of backward."""
    engine.begin_step()
    model(torch.ones(1, 1)).sum().backward()
    engine.end_backward()
    engine.wait()


def files_of_a_step() -> set[str]:
    """The project's files whose functions run in one step of plain sums, its layout settled."""
    model, strategy = nn.Linear(3, 2), parse_strategy("fixed-buckets")
    engine = engine_of_one(model, strategy, QueueOfOne())
    session = EngineSession(model, strategy.optimizer, engine)
    session.backward(model(torch.ones(1, 3)).sum())
    seen = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(ROOT):
            seen.add(str(Path(frame.f_code.co_filename).relative_to(ROOT)))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        session.wait()
        session.update()
        session.backward(model(torch.ones(1, 3)).sum())
        session.wait()
    finally:
        sys.setprofile(before)
    session.close()
    return {file for file in seen if not file.startswith((".venv", "tests"))}


def test_the_page_names_every_file_that_a_gradient_meets() -> None:
    handed_on = re.findall(r"^\| `(\S+\.py)` \|", PAGE, re.MULTILINE)
    asked = {f"harness/engine/{name}" for name in ("layout.py", "buffers.py", "traffic.py", "streams.py")} | {
        "harness/trace.py"
    }
    assert len(handed_on) <= MOST_FILES
    assert all(f"`{Path(file).name}`" in PAGE for file in asked)
    assert files_of_a_step() - VALUES == set(handed_on) - NOT_RUN | asked


def test_every_file_that_the_page_names_is_there() -> None:
    page = (ROOT / "docs" / "guide" / "architecture.md").read_text()
    named = re.findall(r"`((?:harness|crossover|results|suites)/[\w/]+\.py)`", page)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_more_messages_than_the_library_holds_go_during_backward_all_the_same() -> None:
    num_layers = NUM_QUEUED + 10
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(num_layers)))
    strategy = parse_strategy("fixed-buckets(bucket_bytes=4, first_bucket_bytes=4)")
    transport = QueueOfOne()
    engine = engine_of_one(model, strategy, transport)
    take_first_step(engine, model)
    transport.queued.clear()
    engine.begin_step()
    model(torch.ones(1, 1)).sum().backward()
    assert len(transport.queued) == num_layers
    engine.wait()
    engine.close()


@pytest.mark.parametrize("ends_in_stream", [True, False])
def test_what_follows_a_sum_that_ends_in_a_stream_is_launched_in_the_hook(ends_in_stream: bool) -> None:
    """The host then waits for the device alone, and learns of all ends there."""
    model, strategy = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), parse_strategy("fixed-buckets(bucket_bytes=4)")
    transport = QueueOfOne(ends_in_stream=ends_in_stream)
    engine = engine_of_one(model, strategy, transport)
    take_first_step(engine, model)
    transport.queued.clear()
    engine.recorder.spans.clear()
    engine.begin_step()
    model(torch.ones(1, 1)).sum().backward()
    assert [done.num_waits for done in transport.queued] == [int(ends_in_stream)] * len(transport.queued)
    assert not [span for span in engine.recorder.spans if span.track.startswith("lane")]
    engine.wait()
    assert [done.num_waits for done in transport.queued] == [1] * len(transport.queued)
    lanes = [span for span in engine.recorder.spans if span.track.startswith("lane")]
    assert [span.name for span in lanes] == [f"message {number}" for number in range(len(transport.queued))]
    engine.close()


def test_sums_that_queue_up_beside_turns_on_the_link_are_refused_with_the_remedy() -> None:
    model, strategy, turns = nn.Linear(3, 2), parse_strategy("fixed-buckets"), LinkTurns(Alone())
    with pytest.raises(ValueError, match="make the transport with shares_link"):
        Engine(model, strategy, QueueOfOne(), recorder=Recorder(), link=turns)
    turns.leave()


@pytest.mark.parametrize("run", [PlainSum, GradientRun])
def test_a_plain_sum_is_what_the_nulls_of_compression_and_exchange_come_to(
    run: type[PlainSum] | type[GradientRun],
) -> None:
    model, strategy = nn.Linear(3, 2), parse_strategy("fixed-buckets")
    model(torch.ones(1, 3)).sum().backward()
    parameters = dict(model.named_parameters())
    layout = lay_out(parameters, ["bias", "weight"])
    own = RankMessages(
        strategy=strategy,
        parameters=parameters,
        states={},
        rank=0,
        world=4,
        generator=torch.Generator(),
        compressor=strategy.compression,
    )
    own.begin(0, layout)
    (message,) = make_plan(strategy.packing, layout)
    message_run = run(own, message, 0)
    tagged = message_run.advance(None)
    assert tagged is not None
    assert tagged.tag == "gradient"
    assert isinstance(tagged.primitive, AllReduce)
    assert torch.equal(tagged.primitive.tensor, torch.full((8,), 0.25))
    assert message_run.advance((torch.arange(8.0),)) is None
    assert model.bias.grad is not None
    assert model.weight.grad is not None
    assert torch.equal(model.bias.grad, torch.tensor([0.0, 1.0]))
    assert torch.equal(model.weight.grad, torch.tensor([[2.0, 3.0, 4.0], [5.0, 6.0, 7.0]]))
    assert type(own.open(message, 0)) is PlainSum


@pytest.mark.parametrize(
    ("strategy", "queues"),
    [
        ("fixed-buckets", True),
        ("fixed-buckets+at-pre-hook", False),
        ("fixed-buckets+fifo(depth=1)", False),
        ("fixed-buckets+p3", False),
        ("fixed-buckets+half", False),
    ],
)
def test_only_plain_sums_that_are_waited_for_together_queue_up(strategy: str, queues: bool) -> None:
    """A layer that waits for its own must be able to look past an older message that is still under way."""
    assert may_queue(parse_strategy(strategy)) == queues
