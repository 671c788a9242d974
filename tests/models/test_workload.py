"""Specs resolve, wrong ones are refused with a remedy, real workloads learn."""

import dataclasses
from itertools import islice

import pytest
import torch
from learning import learn
from torch import nn

from models.values import Batch, Device, WorkloadError, WorkloadSpec
from models.workload import catalogue, open_workload
from results.codec import from_jsonable, to_jsonable


def test_a_spec_survives_json() -> None:
    spec = WorkloadSpec(network="bert_base", device=Device.REPLAY, size_scale=50, dropout=0.0)
    assert from_jsonable(WorkloadSpec, to_jsonable(spec)) == spec


def test_defaults_are_filled_in_and_named() -> None:
    assert open_workload(WorkloadSpec(network="resnet20")).spec.label == "resnet20-digits"
    replay = open_workload(WorkloadSpec(network="resnet50", device=Device.REPLAY)).spec
    assert (replay.label, replay.profile) == ("resnet50-replay", "resnet50-v100")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": "alexnet"}, r"no network 'alexnet'; there are resnet20, "),
        ({"data": "cifar"}, r"no data 'cifar'; there are digits, "),
        ({"data": "text"}, r"'resnet20' does not train on 'text'; it takes digits"),
        ({"data": "imagefolder"}, r"'imagefolder' needs data_path"),
        ({"data": "digits", "data_path": "x"}, r"'digits' takes no data_path, but 'x'"),
        ({"data_path": "/nowhere"}, r"data_path '/nowhere' is not a folder"),
        ({"size_scale": 50}, r"profile and size_scale are for replay; device is 'cpu'"),
        ({"device": Device.REPLAY}, r"'resnet20' has no default profile; name one of bert_base-h100"),
        ({"device": Device.REPLAY, "profile": "h900"}, r"no profile 'h900'; there are bert_base-h100"),
        ({"device": Device.REPLAY, "profile": "vgg16-v100"}, r"is of 'vgg16', not of 'resnet20'"),
        ({"device": Device.REPLAY, "data": "digits"}, r"data 'digits' is given, but replay reads none"),
        ({"batch_size": 0}, r"batch_size is 0; it must be at least 1"),
        ({"size_scale": 0}, r"size_scale is 0; it must be at least 1"),
        ({"num_workers": -1}, r"num_workers is -1; it must be 0 or more"),
        ({"sequence_length": 1000}, r"sequence_length is 1000; it must be between"),
        ({"dropout": 1.0}, r"dropout is 1.0; it must be in"),
    ],
)
def test_a_wrong_spec_is_refused_with_a_remedy(change: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        open_workload(WorkloadSpec(**{"network": "resnet20", **change}))  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_missing_gpu_is_said() -> None:
    with pytest.raises(WorkloadError, match="device 'cuda' is asked, but torch sees no GPU"):
        open_workload(WorkloadSpec(network="resnet20", device=Device.CUDA))


def test_the_catalogue_lists_all_with_a_line_each() -> None:
    everything = catalogue()
    images = {"resnet20", "resnet20_zero_gamma", "resnet50", "resnet101", "vgg16"}
    texts = {"bert_tiny", "bert_base", "bert_large", "gpt2_tiny", "gpt2", "transformer_lm", "lstm_lm", "elman_rnn"}
    assert set(everything.networks) == images | texts
    assert set(everything.data) == {"digits", "shifted-digits", "text", "textfile", "imagefolder", "synthetic"}
    assert all("\n" not in line and line for line in [*everything.networks.values(), *everything.data.values()])


@pytest.mark.parametrize(("network", "learning_rate", "num_steps"), [("resnet20", 1e-3, 60), ("bert_tiny", 1e-3, 12)])
def test_a_real_workload_learns(network: str, learning_rate: float, num_steps: int) -> None:
    torch.manual_seed(0)
    spec = WorkloadSpec(network=network, batch_size=8, sequence_length=16, num_evaluation=64, dropout=0.0)
    before, after = learn(open_workload(spec), learning_rate, num_steps)
    assert after.loss < before.loss


def test_loss_calls_the_model_once() -> None:
    workload = open_workload(WorkloadSpec(network="resnet20", batch_size=4))
    calls = []

    class Counting(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            calls.append(images.shape)
            return torch.zeros(len(images), 10)

    workload.loss(Counting(), next(workload.batches(0, 1, 0)))
    assert calls == [(4, 1, 8, 8)]


def test_digits_deal_the_training_part_and_hold_out_a_fifth() -> None:
    workload = open_workload(WorkloadSpec(network="resnet20", batch_size=100))
    seen = [tuple(row.tolist()) for b in islice(workload.batches(0, 1, 0), 14) for row in b.inputs[0].flatten(1)]
    evaluation = workload.evaluate(workload.build_model(0))
    assert len(set(seen)) == len(seen) == 1400
    assert evaluation is not None
    assert evaluation.num_samples == 360


@pytest.mark.parametrize("network", ["resnet50", "bert_base"])
def test_synthetic_batches_have_the_usual_shape_and_differ_by_rank(network: str) -> None:
    spec = WorkloadSpec(network=network, data="synthetic", batch_size=2, image_size=32, sequence_length=16)
    workload = open_workload(spec)
    first, second = (next(workload.batches(rank, 2, 0)) for rank in (0, 1))
    assert isinstance(first, Batch)
    assert first.inputs[0].shape == ((2, 3, 32, 32) if network == "resnet50" else (2, 16))
    assert not torch.equal(first.inputs[0], second.inputs[0])


def test_memory_grows_with_the_batch_and_shrinks_with_the_scale() -> None:
    def memory(**change: object) -> int:
        spec = WorkloadSpec(network="resnet50", data="synthetic", batch_size=1)
        return open_workload(dataclasses.replace(spec, **change)).memory_bytes()  # type: ignore[arg-type]

    assert memory() == pytest.approx(25_557_032 * 12 + 86.2e6)
    assert memory(batch_size=32) - memory() == pytest.approx(31 * 86.2e6)
    assert memory(device=Device.REPLAY, data="", size_scale=50) == pytest.approx(25_557_032 * 12 / 50, rel=1e-3)
