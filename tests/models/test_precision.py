"""bf16 is what layers compute in: weights, gradients and losses stay 32 bits wide."""

import pytest
import torch

from models.workload import Device, Precision, WorkloadError, WorkloadSpec, open_workload


@pytest.mark.parametrize(("network", "data"), [("resnet20", "digits"), ("bert_tiny", "synthetic")])
def test_bf16_changes_the_arithmetic_and_no_width(network: str, data: str) -> None:
    losses = []
    for precision in Precision:
        workload = open_workload(
            WorkloadSpec(network=network, data=data, precision=precision, batch_size=2, dropout=0.0)
        )
        model = workload.build_model(seed=1)
        loss = workload.loss(model, next(workload.batches(0, 1, 1)))
        loss.backward()
        assert loss.dtype is torch.float32
        assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {
            torch.float32
        }
        losses.append(float(loss.detach()))
    wide, narrow = losses
    assert narrow != wide
    assert narrow == pytest.approx(wide, rel=0.05)  # bf16 has 8 bits of mantissa


def test_a_label_names_what_is_not_the_default() -> None:
    assert WorkloadSpec(network="resnet20", data="digits").label == "resnet20-digits"
    assert WorkloadSpec(network="resnet20", data="digits", precision=Precision.BF16).label == "resnet20-digits-bf16"


def test_replay_takes_its_times_from_a_profile_and_no_precision() -> None:
    with pytest.raises(WorkloadError, match="bf16"):
        WorkloadSpec(network="resnet50", device=Device.REPLAY, precision=Precision.BF16)
