"""That the suite `parity` compares like with like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from analysis.naming import Method
from baselines.strategy import parse_strategy
from fabric.api import Host
from harness.engine.dispatch import make_plan
from harness.engine.layout import lay_out, trainable_parameters
from harness.facts import plugins_of
from harness.systems import system_of
from harness.systems.api import RankSeat
from models.workload import open_workload
from suites.parity.grid import BUCKETS, RECIPES
from suites.recipes import RESNET20, Recipe
from suites.scaling import MIB
from suites.step_rows import message_sizes


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        yield Host(index=0, name="here", address="127.0.0.1", interface="lo")
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated:FutureWarning")  # what takes its place syncs once
@pytest.mark.parametrize(("strategy", "system"), BUCKETS)
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.workload.network)
def test_both_engines_fill_the_same_buckets(strategy: str, system: str, recipe: Recipe, host: Host) -> None:
    """DDP takes the order of gradients from its first step. In that order our plan has the same parameters per message,
    which equal weights would not tell: among two ranks a sum is the same however it is cut."""
    workload = open_workload(recipe.workload)
    model = workload.build_model(0)
    seat = RankSeat(rank=0, world=1, host=host, seed=0, strategy=parse_strategy(f"unfused+{recipe.optimizer}"))
    session, batches = system_of(system).prepare(model, seat), workload.batches(0, 1, 0)
    for _ in range(3):
        session.update()
        session.backward(workload.loss(session.model, next(batches)))
    told = session.model._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"]
    theirs = [[int(number) for number in bucket.split()] for bucket in told.split(",")]

    names = [name for name, _ in model.named_parameters()]
    order = [names[number] for bucket in theirs for number in bucket]
    plan = make_plan(parse_strategy(strategy).packing, lay_out(trainable_parameters(model), order))
    assert [[names.index(segment.name) for segment in message.segments] for message in plan] == theirs


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("torch-ddp", (MIB, 25 * MIB)),
        ("torch-ddp(bucket_mb=25)", (25 * MIB, 25 * MIB)),
        ("torch-ddp(bucket_mb=0.25, hook='fp16')", (MIB / 4, MIB / 4)),
        ("torch-ddp(hook='fp16')", None),
        ("horovod(cycle_s=0.005, fusion_threshold_bytes=1000)", (1000, 1000)),
        ("local", None),
    ],
)
def test_a_system_tells_how_large_its_messages_may_be(text: str, sizes: tuple[float, float] | None) -> None:
    assert message_sizes(Method(plugins_of(replace(RESNET20.job(), system=text)))) == sizes


@pytest.mark.parametrize(("strategy", "system"), BUCKETS)
def test_what_a_pair_is_given_says_the_same(strategy: str, system: str) -> None:
    ours, theirs = RESNET20.job(strategy=strategy), RESNET20.job(system=system)
    assert message_sizes(Method(plugins_of(ours))) == message_sizes(Method(plugins_of(theirs)))
