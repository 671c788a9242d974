"""Whole trials whose ranks a lab forks: CUDA must not have been started before, whatever the jobs train with."""

from __future__ import annotations

import pytest
from patience import patience_s

from crossover import Sharing
from fabric.api import FabricKind, FabricSpec
from harness.bench import Bench
from harness.trial import Job, Trial
from models.workload import Device, WorkloadSpec
from results.record import Status

PACED = FabricSpec(kind=FabricKind.PACED, num_hosts=1, num_virtual=8, rate_bps=2e9, alpha_s=20e-6)
NETWORKS = (("vision", "resnet20"), ("language", "bert_tiny"))


@pytest.mark.parametrize("optimizer", ["sgd(lr=0.05)", "adam(lr=0.0001)"])
def test_jobs_in_turns_train_on_the_gpu_whatever_their_optimizer(bench: Bench, optimizer: str) -> None:
    jobs = tuple(
        Job(
            name=name,
            workload=WorkloadSpec(network=network, batch_size=4, device=Device.CUDA),
            strategy="fixed-buckets+topk(density=0.1)+error-feedback",
            optimizer=optimizer,
        )
        for name, network in NETWORKS
    )
    trial = Trial(
        suite="test",
        cell="test",
        jobs=jobs,
        fabric=PACED,
        sharing=Sharing.CROSSOVER,
        num_warmup=1,
        num_steps=2,
        timeout_s=patience_s(120.0),
    )
    for _ in range(2):
        record = bench.run(trial)
        assert record.status is Status.OK, record.reason
