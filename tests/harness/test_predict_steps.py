"""Step times on the virtual clock, to 1 %: a change of a policy, the engine's rules or the clock shows here."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

import pytest
from patience import cpu_limit_s

from baselines.strategy import parse_strategy
from harness.predict.costs import EngineCosts, LinkCosts, given_costs
from harness.predict.layers import layers_of, plain_layers
from harness.predict.step import predict_step
from models.layer_profile import load_profile

ENGINE = EngineCosts(
    message_s=1e-4,
    message_s_per_byte=2e-10,
    wake_s=5e-5,
    update_s=2e-4,
    update_s_per_tensor=5e-6,
    update_s_per_byte=1e-10,
    eager_s=1.5e-5,
)
CELLS = (  # profile, strategy, workers, bit/s, step in seconds, messages
    ("resnet50", "unfused", 4, 1e10, 0.206537, 161),
    ("resnet50", "fixed-buckets", 8, 1e10, 0.194640, 5),
    ("resnet50", "tensor-fusion", 8, 1e10, 0.200740, 3),
    ("resnet50", "fixed-buckets+half", 8, 1e10, 0.124827, 5),
    ("resnet50", "unfused+at-pre-hook", 2, 2.5e10, 0.098574, 161),
    ("vgg16", "unfused", 4, 1e10, 0.822564, 32),
    ("vgg16", "unfused+fifo(depth=1)+at-pre-hook", 4, 1e10, 0.899361, 32),
    ("vgg16", "tensor-fusion(cycle_s=0.005)+half", 4, 1e10, 0.496515, 4),
    ("bert_base", "fixed-buckets", 8, 2.5e10, 0.447299, 15),
    ("bert_base", "fixed-buckets+all-gather", 4, 2.5e10, 0.616726, 15),
    ("bert_base", "tensor-fusion+topk(density=0.01)+error-feedback", 8, 1e10, 0.346037, 25),
    ("bert_base", "single-bucket+ring", 1024, 1e11, 0.572706, 1),
)


def costs_of(world: int, rate_bps: float) -> LinkCosts:
    given = given_costs(world, alpha_s=5e-5, beta_s_per_byte=8 / rate_bps, engine=ENGINE)
    return replace(given, occupied=0.4, overlap=0.7)


@pytest.mark.parametrize(("network", "text", "world", "rate_bps", "step_s", "num_messages"), CELLS)
def test_step_time(network: str, text: str, world: int, rate_bps: float, step_s: float, num_messages: int) -> None:
    layers = layers_of(load_profile(f"{network}-v100"))
    step = predict_step(layers, parse_strategy(text), costs_of(world, rate_bps))
    assert step.step_s == pytest.approx(step_s, rel=0.01)
    assert step.num_messages == num_messages


@pytest.mark.parametrize("text", ["unfused", "tensor-fusion", "unfused+ring", "unfused+at-pre-hook"])
def test_a_thousand_workers_and_400_tensors_take_less_than_five_seconds(text: str) -> None:
    layers = plain_layers([1e-4] * 400, [2e-4] * 400, [60_000] * 400)
    start_s = process_time()
    step = predict_step(layers, parse_strategy(text), costs_of(1024, 100e9))
    assert process_time() - start_s < cpu_limit_s(5.0)
    assert step.step_s > layers.forward_s + layers.backward_s
