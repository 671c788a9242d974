"""The page on compression: its table names every method, and its example is a plug-in that trains."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pages import ROOT, block_after
from torch import nn
from torch.nn import functional

import baselines.compression
from baselines.api import How, Slot
from baselines.catalogue import plugins
from baselines.strategy import parse_strategy
from harness.lockstep.ranks import Lockstep, replicas

TEXT = (ROOT / "docs" / "guide" / "compression.md").read_text()
pytestmark = pytest.mark.timeout(180)  # kernels are compiled where no cache has them

MARK = "<!-- example: baselines/compression/eight_bit.py -->"
CODE = block_after(TEXT, MARK)


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[None]:
    """The example among the plug-ins of this process, found by its presence in one more folder of its slot."""
    (tmp_path / "eight_bit.py").write_text(CODE)
    baselines.compression.__path__.append(str(tmp_path))
    plugins.cache_clear()
    yield
    baselines.compression.__path__.remove(str(tmp_path))
    sys.modules.pop("baselines.compression.eight_bit", None)
    plugins.cache_clear()


def trained(text: str, world: int, num_steps: int) -> tuple[Lockstep, list[float]]:
    """Ranks that fit a line, and their mean loss at every step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ranks = Lockstep(replicas(nn.Linear(20, 3), world), parse_strategy(text), seed=1)
    dice = torch.Generator().manual_seed(1)
    truth, losses = torch.randn(3, 20, generator=dice), []
    for _ in range(num_steps):
        batch = torch.randn(world, 16, 20, generator=dice)
        step = ranks.step(
            lambda rank, model, batch=batch: functional.mse_loss(model(batch[rank]), batch[rank] @ truth.T)
        )
        losses.append(float(torch.stack(step).mean()))
    return ranks, losses


def test_the_table_names_every_compressor() -> None:
    table = TEXT[TEXT.index("## Methods") : TEXT.index("### What differs")]
    written = {name.partition("(")[0] for text in re.findall(r"`([^`]+)`", table) for name in text.split("+")}
    compressors = {name for name, kind in plugins().items() if kind.card.slot is Slot.COMPRESSION}
    assert compressors - written == {"uncompressed"}


def test_the_example_is_one_short_file_that_the_linter_accepts() -> None:
    assert len(CODE.splitlines()) <= 60
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff is not installed beside this Python")
    for command in (["check", "-"], ["format", "--check", "-"]):
        done = subprocess.run(
            [ruff, *command, "--stdin-filename", "baselines/compression/eight_bit.py"],
            input=CODE, text=True, capture_output=True, cwd=ROOT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("around", ["error-feedback", "double-squeeze+error-feedback"])
def test_the_example_learns_and_keeps_replicas_equal(around: str) -> None:
    ranks, losses = trained(f"unfused+eight-bit+{around}+sgd(lr=0.05, momentum=0.0)", world=3, num_steps=60)
    assert losses[-1] < 0.1 * losses[0]
    first, *others = ranks.models
    for other in others:
        assert torch.equal(other.weight, first.weight)


@pytest.mark.usefixtures("installed")
def test_the_example_sends_what_it_predicts() -> None:
    ranks, _ = trained("single-bucket+eight-bit", world=3, num_steps=2)
    compressor = plugins()["eight-bit"]()
    assert compressor.how is How.CONCAT
    assert ranks.traffic.wire_bytes["gradient"] == 2 * 2 * compressor.wire_bytes(63, 3)
