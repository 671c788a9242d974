"""Compression beside consistency, and runs on the virtual clock that are broken off and gone on with."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from baselines.consistency.asp import Asp
from baselines.consistency.bsp import Bsp
from baselines.consistency.dynssp import DynSsp
from baselines.consistency.ssp import Ssp
from baselines.strategy import StrategyError, parse_strategy, why_not_pushed
from harness.asynchrony.checkpoint import read_checkpoint, write_checkpoint
from harness.asynchrony.cluster import Disturbances, VirtualCluster
from harness.asynchrony.coding import WorkerCodes
from harness.asynchrony.training import Training
from harness.asynchrony.virtual import VirtualRun
from harness.engine.checkpoint import CheckpointError
from harness.engine.layout import trainable_parameters

UNEQUAL = VirtualCluster(
    num_workers=3,
    compute_s=1.0,
    alpha_s=0.01,
    beta_s_per_byte=1e-3,
    disturbances=Disturbances(slowdowns=(1.0, 1.5, 3.0), jitter=0.3),
)
NUM_CLOCKS = 10


def batches(worker: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(100 + worker)
    while True:
        inputs = torch.randn(8, 6, generator=generator)
        yield inputs, inputs.sum(1, keepdim=True).sin()


def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))


def start(text: str) -> tuple[VirtualRun, Training, WorkerCodes | None]:
    """A run that has not begun. Data of each worker go on after what its training has drawn."""
    strategy = parse_strategy(f"{text}+sgd(lr=0.05)")
    data: dict[int, Iterator[tuple[Tensor, Tensor]]] = {}

    def loss(worker: int, own: nn.Module) -> Tensor:
        if worker not in data:
            data[worker] = islice(batches(worker), training.num_drawn(worker), None)
        inputs, targets = next(data[worker])
        return nn.functional.mse_loss(own(inputs), targets)

    training = Training(model(), strategy.optimizer.build, loss, UNEQUAL.num_workers, seed=7)
    codes = None
    if strategy.compression.lossy:
        parameters = trainable_parameters(training.model)
        codes = WorkerCodes(strategy.compression, strategy.packing, parameters, UNEQUAL.num_workers, seed=7)
    run = VirtualRun(
        UNEQUAL,
        strategy.consistency,
        training.values,
        training.update,
        NUM_CLOCKS,
        training.num_bytes,
        seed=4,
        encode=codes.encode if codes else None,
    )
    return run, training, codes


@pytest.mark.parametrize("text", ["bsp", "asp", "ssp(staleness=2)", "dynssp(staleness=2)", "ssp+qsgd+error-feedback"])
def test_broken_off_at_five_moments_and_gone_on_with_is_the_same_run(text: str, tmp_path: Path) -> None:
    """Weights bit for bit, and the counts of staleness and bytes."""
    whole, *_ = start(text)
    list(whole)
    run, training, codes = start(text)
    for moment in sorted(random.Random(text).sample(range(1, 3 * NUM_CLOCKS), 5)):
        for _ in islice(run, moment - run.parameters.num_pushed):
            pass
        write_checkpoint(tmp_path / "run.pt", run, training, codes)
        list(islice(run, 2))  # what was done after the checkpoint is lost
        run, training, codes = start(text)
        read_checkpoint(tmp_path / "run.pt", run, training, codes)
    list(run)
    assert torch.equal(run.parameters.read(), whole.parameters.read())
    assert run.tally == whole.tally
    assert run.num_pushed_bytes == whole.num_pushed_bytes


@pytest.mark.parametrize("content", [None, b"", b"hello", b"half"], ids=["absent", "empty", "text", "half"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, content: bytes | None) -> None:
    run, training, _ = start("asp")
    path = tmp_path / "run.pt"
    if content is not None:
        write_checkpoint(path, run, training)
        path.write_bytes(path.read_bytes()[:2_000] if content == b"half" else content)
    with pytest.raises(CheckpointError, match=r"run\.pt cannot be read"):
        read_checkpoint(path, run, training)


def test_what_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    run, training, _ = start("asp")
    torch.save({"weights": torch.zeros(3)}, tmp_path / "run.pt")
    with pytest.raises(CheckpointError, match="of another format"):
        read_checkpoint(tmp_path / "run.pt", run, training)


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.pt").mkdir()
    with pytest.raises(OSError, match=r"run\.pt"):
        write_checkpoint(tmp_path / "run.pt", *start("asp")[:2])
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    run, training, codes = start("ssp+topk+error-feedback")
    next(iter(run))
    write_checkpoint(tmp_path / "run.pt", run, training, codes)
    dense, dense_training, _ = start("ssp")
    with pytest.raises(CheckpointError, match="another format or compression"):
        read_checkpoint(tmp_path / "run.pt", dense, dense_training)


def test_a_checkpoint_of_another_policy_is_refused(tmp_path: Path) -> None:
    run, training, _ = start("ssp(staleness=2)")
    next(iter(run))
    write_checkpoint(tmp_path / "run.pt", run, training)
    other, other_training, _ = start("bsp")
    with pytest.raises(CheckpointError, match="is of Ssp"):
        read_checkpoint(tmp_path / "run.pt", other, other_training)


@pytest.mark.parametrize(
    "text", ["topk(density=0.1)+error-feedback", "onebit+error-feedback", "fixed-buckets+half+error-feedback"]
)
def test_what_is_not_pushed_now_is_pushed_later(text: str) -> None:
    """Per worker: the sum of what servers read and the residual is the sum of its updates."""
    _, training, codes = start(f"asp+{text}")
    assert codes is not None
    generator = torch.Generator().manual_seed(5)
    updates = torch.randn(6, training.values.numel(), generator=generator)
    read = sum(
        (codes.encode(1, clock, update)[0] for clock, update in enumerate(updates)), torch.zeros_like(updates[0])
    )
    flushed = updates.sum(0) - read
    residual = torch.cat([state["residual"].reshape(-1) for state in codes.state_dict()["states"][1].values()])
    torch.testing.assert_close(residual, flushed, rtol=1e-4, atol=1e-5)  # float32 sums of six updates


def test_compressed_pushes_carry_fewer_bytes_and_take_less_time() -> None:
    dense, *_ = start("asp")
    sparse, *_ = start("asp+topk(density=0.05)+error-feedback")
    dense_end, sparse_end = list(dense)[-1].time_s, list(sparse)[-1].time_s
    assert sparse.num_pushed_bytes < dense.num_pushed_bytes / 3
    assert sparse_end < dense_end


def test_a_code_that_changes_nothing_is_the_run_without_one() -> None:
    """Everything is among the largest: only the error-feedback's arithmetic may round."""
    dense, *_ = start("ssp(staleness=2)")
    whole, *_ = start("ssp(staleness=2)+topk(density=1.0)+error-feedback")
    whole.num_bytes = dense.num_bytes
    list(dense)
    encode = whole.encode
    assert encode is not None
    whole.encode = lambda worker, clock, update: (encode(worker, clock, update)[0], dense.num_bytes)
    list(whole)
    torch.testing.assert_close(whole.parameters.read(), dense.parameters.read(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "text", ["signsgd", "gtopk+error-feedback+tree", "dgc+sgd(momentum=0.0)", "onebit+double-squeeze"]
)
def test_codes_that_need_all_workers_at_once_are_refused(text: str) -> None:
    assert why_not_pushed(parse_strategy(text)) is not None
    with pytest.raises(StrategyError):
        parse_strategy(f"ssp+{text}")


@pytest.mark.parametrize("policy", [Bsp(), Asp(), Ssp(2), DynSsp(2)], ids=str)
def test_two_thousand_schedules_end(policy: Bsp | Asp | Ssp | DynSsp) -> None:
    """500 of each method; `python -m scripts.schedules` tries 100,000."""
    from scripts.schedules import try_schedules

    assert try_schedules(policy, range(500)) == 500
