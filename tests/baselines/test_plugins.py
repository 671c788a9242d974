"""What every discovered plug-in owes: a card, a page, defaults, a text that can be read back."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest

from baselines.api import Compressor, Consistency, Exchange, OptimizerSpec, Ordering, Packing, Slot, Tuner, UpdatePoint
from baselines.catalogue import CatalogueError, plugin, plugins, summary_of
from baselines.compression.topk import TopK
from baselines.optimizer.sgd import Sgd
from baselines.packing.fixed_buckets import FixedBuckets
from baselines.packing.tensor_fusion import TensorFusion
from baselines.strategy import DEFAULTS, StrategyError, parse_strategy
from baselines.text import TextError, settable_fields
from harness.trial import Job
from models.values import WorkloadSpec
from results.codec import from_jsonable, to_jsonable

PROTOCOLS = {
    Slot.PACKING: Packing,
    Slot.ORDERING: Ordering,
    Slot.COMPRESSION: Compressor,
    Slot.EXCHANGE: Exchange,
    Slot.OPTIMIZER: OptimizerSpec,
    Slot.TUNING: Tuner,
    Slot.CONSISTENCY: Consistency,
}
EVERY = pytest.mark.parametrize("kind", plugins().values(), ids=plugins().keys())

# What does not go with the defaults of other slots, and what it goes with.
NEEDS = {"dgc": "sgd(momentum=0.0)+", "signum": "sgd(momentum=0.0)+", "gtopk": "tree+", "onebit-adam": "frozen-adam+"}
INNER: dict[Slot, Any] = {Slot.COMPRESSION: TopK(), Slot.OPTIMIZER: Sgd()}  # what wrappers go around


def beside(kind: type[Any]) -> str:
    """What must stand before it in a text: something to wrap, to tune, or that it does not go without."""
    if kind.card.slot is Slot.TUNING:
        return "tensor-fusion+"
    return INNER[kind.card.slot].card.name + "+" if kind.card.wraps else NEEDS.get(kind.card.name, "")


def make(kind: type[Any]) -> Any:
    return kind(inner=INNER[kind.card.slot]) if kind.card.wraps else kind()


@EVERY
def test_a_card_is_complete(kind: type[Any]) -> None:
    card = kind.card
    assert card.name == card.name.lower().replace("_", "-")
    assert not set(card.name) & set("+() =")
    assert card.name not in set(UpdatePoint)
    assert card.summary
    assert not card.summary.endswith(".")
    assert any(mark in card.paper for mark in ("19", "20", "textbook"))


@EVERY
def test_a_plugin_has_a_page_and_follows_its_slot(kind: type[Any]) -> None:
    assert len(sys.modules[kind.__module__].__doc__ or "") > 40
    assert isinstance(make(kind), PROTOCOLS[kind.card.slot])
    assert kind.__module__.startswith(f"baselines.{kind.card.slot}.")


@EVERY
def test_a_plugin_is_a_frozen_value(kind: type[Any]) -> None:
    assert make(kind) == make(kind)
    assert hash(make(kind)) == hash(make(kind))
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        make(kind).surprise = 1


@EVERY
def test_a_text_with_all_parameters_gives_the_default(kind: type[Any]) -> None:
    name = kind.card.name
    fields = settable_fields(kind)
    written = f"{name}({', '.join(f'{key}={value!r}' for key, value in fields.items())})" if fields else name
    prefix = beside(kind)
    short, long = parse_strategy(prefix + name), parse_strategy(prefix + written)
    assert long.text == prefix + written
    assert dataclasses.replace(long, text=short.text) == short
    assert getattr(long, kind.card.slot) == make(kind)


@EVERY
def test_a_catalogue_row_names_parameters_and_defaults(kind: type[Any]) -> None:
    row = summary_of(kind)
    assert {"name", "slot", "summary", "paper", "parameters", "kind"} <= row.keys()
    for name, default in settable_fields(kind).items():
        assert f"{name}={default!r}" in row["parameters"]


@EVERY
def test_an_unknown_parameter_is_refused_with_the_known_ones(kind: type[Any]) -> None:
    prefix = beside(kind)
    with pytest.raises(TextError, match="no parameter 'surprise'") as refused:
        parse_strategy(f"{prefix}{kind.card.name}(surprise=1)")
    assert all(name in str(refused.value) for name in settable_fields(kind))


def test_defaults_are_those_of_the_papers() -> None:
    mib = 1024 * 1024
    assert (TensorFusion().threshold_bytes, TensorFusion().cycle_s) == (128 * mib, 0.001)
    assert (FixedBuckets().first_bucket_bytes, FixedBuckets().bucket_bytes) == (mib, 25 * mib)


def test_what_is_not_named_keeps_its_default() -> None:
    strategy = parse_strategy("half")
    assert strategy.update_point is UpdatePoint.AFTER_ALL
    for slot, name in DEFAULTS.items():
        if slot is not Slot.COMPRESSION:
            assert getattr(strategy, slot).card.name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no-such-thing", "unknown baseline 'no-such-thing'; known: .*unfused"),
        ("unfused+fixed-buckets", "both decide packing"),
        ("topk(density=2.0)", "density is 2.0"),
        ("topk(density=0.0)", "density is 0.0"),
        ("topk(density='a')", "should be of type float"),
        ("topk(0.1)", "name=value"),
        ("topk(density=0.1, density=0.5)", "each once"),
        ("topk(values='float16')(density=0.5)", "each once"),
        ("topk(density=0.5).x(density=0.1)", "each once"),
        ("topk()#(density=0.5)", "each once"),
        ("at-pre-hook(x=3)", "at-pre-hook has no parameters; write at-pre-hook"),
        ("at-pre-hook+after-all", "after-all is the second to decide update_point; name one"),
        ("local-steps(n=2)+local-steps(n=5)", "is the second to decide local_steps; name one"),
        ("topk(density=__import__('os'))", "name=value"),
        ("topk(density=0.1", "cannot be read"),
        ("unfused++half", "cannot be read"),
        ("", "cannot be read"),
        ("tensor-fusion(cycle_s=-1.0)", "neither may be negative"),
        ("tensor-fusion(cycle_s=1e12)", "cycle_s 1000000000000.0; .* at most 1000 s"),
        ("fixed-buckets(bucket_bytes=0)", "bucket_bytes is 0"),
        ("fixed-buckets(first_bucket_bytes=0)", "first_bucket_bytes 0"),
        ("fifo(depth=0)", "between 1 and"),
        ("fifo(depth=True)", "should be of type int"),
        ("half(dtype='int8')", "use one of float16, bfloat16"),
        ("error-feedback", "nothing is lost"),
        ("topk+error-feedback+error-feedback", "named twice"),
        ("topk+ring", "use all-reduce or all-gather"),
    ],
)
def test_bad_texts_name_the_value_and_the_remedy(text: str, message: str) -> None:
    with pytest.raises((TextError, CatalogueError), match=message):
        parse_strategy(text)


def test_whole_numbers_are_taken_where_a_float_is_due() -> None:
    assert parse_strategy("topk(density=1)") == dataclasses.replace(
        parse_strategy("topk(density=1.0)"), text="topk(density=1)"
    )


def test_errors_are_value_errors() -> None:
    assert issubclass(StrategyError, TextError)
    assert issubclass(TextError, ValueError)
    assert issubclass(CatalogueError, ValueError)
    with pytest.raises(CatalogueError):
        plugin("none of these")


@pytest.mark.parametrize(
    ("strategy", "optimizer", "means"),
    [
        ("fixed-buckets", "sgd(lr=0.1)", "sgd(lr=0.1)"),
        ("fixed-buckets+lamb(lr=0.01)", "sgd(lr=0.1)", "lamb(lr=0.01)"),
        ("lamb(lr=0.01)+fixed-buckets", "sgd(lr=0.1)", "lamb(lr=0.01)"),
        ("lars", "adam+linear-scaling(times=2.0)", "lars"),
        ("fixed-buckets+dgc+sgd(momentum=0.0)", "sgd(lr=0.1)", "sgd(momentum=0.0)"),
        ("sgd+linear-scaling(times=4.0)", "sgd(lr=0.1)", "sgd+linear-scaling(times=4.0)"),
        ("fixed-buckets+linear-scaling(times=4.0)", "sgd(lr=0.1)", "sgd(lr=0.1)+linear-scaling(times=4.0)"),
    ],
)
def test_an_optimizer_in_the_strategy_takes_the_place_of_the_suites(strategy: str, optimizer: str, means: str) -> None:
    job = Job(name="job", workload=WorkloadSpec(network="resnet20"), strategy=strategy, optimizer=optimizer)
    assert (job.strategy, job.optimizer) == (strategy, means)
    assert job.resolve().optimizer == parse_strategy(means).optimizer
    assert job.resolve().packing == parse_strategy(strategy if "buckets" in strategy else "unfused").packing
    assert from_jsonable(Job, to_jsonable(job)) == job


def test_two_optimizers_in_one_text_are_still_refused() -> None:
    with pytest.raises(StrategyError, match="lamb and sgd both decide optimizer; name one"):
        Job(name="job", workload=WorkloadSpec(network="resnet20"), strategy="sgd+lamb").resolve()
    with pytest.raises(StrategyError, match="momentum"):
        Job(name="job", workload=WorkloadSpec(network="resnet20"), strategy="fixed-buckets+dgc").resolve()
