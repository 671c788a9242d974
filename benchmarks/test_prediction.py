"""The predictor's own speed, and in `extra_info` the step times that it foretells: `make benchmark`.

Step times on the virtual clock are exact; tests/harness/test_predict_steps.py holds some of them to 1 %. A real cell
beside its prediction is a matter of wall time, so it stands here and not among the tests.
"""

from __future__ import annotations

from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from baselines.strategy import parse_strategy
from fabric.api import FabricError, FabricKind, FabricSpec
from harness.bench import Bench
from harness.lab.labs import Labs
from harness.predict.calibration import Calibration, measure_one
from harness.predict.costs import given_costs
from harness.predict.layers import layers_of, plain_layers
from harness.predict.step import predict_step
from harness.predict.trial import predict_trial
from harness.trial import Job, Trial
from models.layer_profile import load_profile
from models.workload import Device, WorkloadSpec
from results.record import Prediction, Status

# A link so slow that its bytes dominate: the cores are shared with whatever else runs here.
SLOW = FabricSpec(kind=FabricKind.EMULATED, num_hosts=2, rate_bps=50e6)
REPLAY = WorkloadSpec(network="resnet50", device=Device.REPLAY, size_scale=50)


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


@pytest.mark.timeout(300)
def test_a_real_cell_takes_as_long_as_foretold() -> None:
    """Within 15 %, of so many steps that five late ones are no median."""
    job = Job(name="job", workload=REPLAY, strategy="fixed-buckets")
    trial = Trial(suite="test", cell="test/real", jobs=(job,), fabric=SLOW, num_warmup=1, num_steps=11)
    runner = Labs()
    try:
        calibration = Calibration(entries=(measure_one(SLOW, runner, num_repeats=3, others=False),))
        told = predict_trial(trial, calibration)
        with Bench(runner) as bench:
            record = bench.run(trial)
    except FabricError as error:
        pytest.skip(str(error))
    finally:
        runner.close()
    assert record.status is Status.OK, record.reason
    assert isinstance(told, Prediction)
    assert told.step_time_s == pytest.approx(median(record.jobs[0].step_times_s()), rel=0.15)
