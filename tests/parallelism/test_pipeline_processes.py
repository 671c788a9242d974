"""Pipelines among processes on gloo, held against lockstep and one device."""

import copy
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from one_device import NUM_LINKS, distance, model_and_steps, sgd, train_alone
from patience import patience_s
from torch import Tensor

from baselines.parallelism.dapple import Dapple
from baselines.parallelism.plans import even_stages
from harness.parallel.pipeline import PipelineJob, train_lockstep

RANK = Path(__file__).with_name("pipeline_rank.py")
ROOT = Path(__file__).parents[2]


def run_processes(what: str, world: int, out: Path) -> dict[str, Tensor]:
    """The parameters that the ranks of a run end with."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{RANK.parent}", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([sys.executable, str(RANK), what, str(rank), str(world), str(port), str(out)], env=environment)
        for rank in range(world)
    ]
    try:
        codes = [rank.wait(timeout=patience_s(150)) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert codes == [0] * world
    found: dict[str, Tensor] = {}
    for rank in range(world):
        found |= torch.load(out / f"{what}-{rank}.pt", weights_only=True)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("what", "network", "world"), [("ours-lstm", "lstm_lm", 3), ("ours-bert", "bert_tiny", 2)])
def test_processes_end_with_the_bits_of_lockstep(what: str, network: str, world: int, tmp_path: Path) -> None:
    model, steps = model_and_steps(network, num_steps=8, num_micro_batches=4, batch_size=16)
    stages = even_stages(NUM_LINKS[network], world)
    job = PipelineJob(network=network, stages=stages, schedule=Dapple(), make_optimizer=sgd)
    wanted, _ = train_lockstep(job, model, steps)
    found = run_processes(what, world, tmp_path)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "world", "closeness"),
    [
        ("replicas-buckets", 3, 1e-5),  # sums in another order, over 8 steps of float32
        ("replicas-half", 3, 1e-2),  # each gradient rounded to 11 bits
        ("torch-gpipe", 2, 1e-5),
        ("torch-dapple", 2, 1e-5),
        ("torch-interleaved", 2, 1e-5),
        ("torch-zero-bubble", 2, 1e-5),
    ],
)
def test_strategies_and_torchs_executor_train_to_the_weights_of_one_device(
    what: str, world: int, closeness: float, tmp_path: Path
) -> None:
    model, steps = model_and_steps("lstm_lm", num_steps=8, num_micro_batches=4, batch_size=16)
    wanted = train_alone(copy.deepcopy(model), steps)
    found = distance(run_processes(what, world, tmp_path), wanted)
    assert found < closeness
    if what == "replicas-half":
        assert found > 1e-7  # it did travel in half precision
