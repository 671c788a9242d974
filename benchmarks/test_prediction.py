"""The predictor's own speed, and in `extra_info` the step times that it foretells: `make benchmark`.

Step times on the virtual clock are exact; tests/harness/test_predict_steps.py holds some of them to 1 %.
"""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from baselines.strategy import parse_strategy
from harness.predict.costs import given_costs
from harness.predict.layers import layers_of, plain_layers
from harness.predict.step import predict_step
from models.layer_profile import load_profile


@pytest.mark.parametrize("text", ["unfused", "fixed-buckets", "tensor-fusion", "unfused+ring"])
def test_predicting_1024_workers_and_400_tensors(benchmark: BenchmarkFixture, text: str) -> None:
    layers = plain_layers([1e-4] * 400, [2e-4] * 400, [60_000] * 400)
    costs = given_costs(1024, alpha_s=2e-5, beta_s_per_byte=8 / 100e9)
    step = benchmark(predict_step, layers, parse_strategy(text), costs)
    benchmark.extra_info.update(step_s=step.step_s, num_messages=step.num_messages)
    assert step.step_s > 0.12


@pytest.mark.parametrize("network", ["resnet50", "vgg16", "bert_base"])
@pytest.mark.parametrize("text", ["unfused", "fixed-buckets", "tensor-fusion", "unfused+at-pre-hook"])
def test_step_time_on_8_workers_at_10_gbit(benchmark: BenchmarkFixture, network: str, text: str) -> None:
    layers = layers_of(load_profile(f"{network}-v100"))
    costs = given_costs(8, alpha_s=5e-5, beta_s_per_byte=8 / 10e9)
    step = benchmark(predict_step, layers, parse_strategy(text), costs)
    benchmark.extra_info.update(step_s=step.step_s, exposed_s=step.exposed_s, num_messages=step.num_messages)
    assert step.step_s >= layers.forward_s + layers.backward_s
