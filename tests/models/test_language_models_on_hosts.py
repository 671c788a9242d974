"""Causal language models on two real ranks: our engine and torch DDP end with the same weights, and the loss falls (of
each network in one process: test_language_models.py).

A weight tied between embedding and head, and a cell that every token calls again, must be sent once and complete.
"""

from typing import Any

import pytest
from patience import patience_s

from fabric.api import FabricKind, FabricSpec
from harness.lab.labs import Labs
from harness.lab.messages import Ending, Task
from harness.trial import Job, Trial
from models.workload import WorkloadSpec

FABRIC = FabricSpec(kind=FabricKind.NATIVE, num_hosts=2, rate_bps=None)


def train(labs: Labs, network: str, *, num_steps: int = 5, **job: Any) -> tuple[str, tuple[float, ...]]:
    workload = WorkloadSpec(network=network, batch_size=4, sequence_length=16, dropout=0.0)
    asked = Trial(
        suite="test",
        cell="test",
        jobs=(Job(name="a", workload=workload, optimizer="adam(lr=0.003)", **job),),
        fabric=FABRIC,
        num_warmup=1,
        num_steps=num_steps,
        timeout_s=patience_s(120.0),
    )
    answer = labs.ask(Task(trial=asked))
    assert answer.ending is Ending.DONE, answer.reason
    (digest,) = {rank.weights_digest for rank in answer.ranks}  # all ranks agree
    return digest, tuple(answer.ranks[0].losses)


@pytest.mark.parametrize("network", ["transformer_lm", "lstm_lm", "elman_rnn"])
def test_two_hosts_train_as_under_torch_ddp(labs: Labs, network: str) -> None:
    ours, _ = train(labs, network, strategy="fixed-buckets(bucket_bytes=400000, first_bucket_bytes=100000)")
    theirs, _ = train(labs, network, system="torch-ddp")
    assert ours == theirs


def test_a_cell_called_for_every_token_is_updated_before_the_first_call_and_the_loss_falls(labs: Labs) -> None:
    late, losses = train(labs, "elman_rnn", num_steps=24, strategy="unfused+at-pre-hook")
    early, _ = train(labs, "elman_rnn", num_steps=24, strategy="unfused")
    assert late == early
    assert sum(losses[-4:]) < sum(losses[:4]) - 2  # half a nat a step
