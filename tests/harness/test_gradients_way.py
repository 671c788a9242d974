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

from baselines.strategy import parse_strategy
from harness.engine.engine import Engine
from harness.engine.straight import may_queue
from harness.engine.transport import HeldByLibrary
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

    def is_completed(self) -> bool:
        return True

    def wait(self) -> bool:
        return True


class QueueOfOne:
    """A transport of one rank that takes sums as gloo does."""

    rank, world = 0, 1
    queues_sums = True

    def queue(self, tensor: torch.Tensor) -> HeldByLibrary:
        return Done()

    def start(self, primitive: object, lane: int, done: Callable[..., None]) -> None:
        raise AssertionError(f"{primitive} went by lanes")

    def close(self) -> None:
        """Nothing is held."""


def files_of_a_step() -> set[str]:
    """The project's files whose functions run in one step of plain sums, its layout settled."""
    model, strategy = nn.Linear(3, 2), parse_strategy("fixed-buckets")
    engine = Engine(model, strategy, QueueOfOne(), recorder=Recorder())
    engine._agree_on_ready_order = lambda: None  # type: ignore[method-assign]  # a broadcast, after the first step alone
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
    asked = {f"harness/engine/{name}" for name in ("buffers.py", "traffic.py", "streams.py")} | {"harness/trace.py"}
    plugins = {"baselines/compression/uncompressed.py", "baselines/exchange/all_reduce.py"}
    assert len(handed_on) <= MOST_FILES
    assert all(f"`{Path(file).name}`" in PAGE for file in asked)
    assert files_of_a_step() - VALUES == set(handed_on) - NOT_RUN | asked | plugins


def test_every_file_that_the_page_names_is_there() -> None:
    page = (ROOT / "docs" / "guide" / "architecture.md").read_text()
    named = re.findall(r"`((?:harness|crossover|results|suites)/[\w/]+\.py)`", page)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).is_file()] == []


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
