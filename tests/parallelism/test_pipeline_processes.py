"""Pipelines among processes on gloo, held against lockstep and one device."""

import copy
from pathlib import Path

import pytest
import torch
from one_device import NUM_LINKS, distance, even_stages, model_and_steps, sgd, train_alone, train_lockstep
from pipeline_ranks import run_all
from torch import Tensor

from baselines.parallelism.dapple import Dapple
from harness.parallel.pipeline import PipelineJob

OURS = {"ours-lstm": ("lstm_lm", 3), "ours-bert": ("bert_tiny", 2)}
CLOSENESS = {
    "replicas-buckets": 1e-5,  # sums in another order, over 8 steps of float32
    "replicas-half": 1e-2,  # each gradient rounded to 11 bits
    "torch-gpipe": 1e-5,
    "torch-dapple": 1e-5,
    "torch-interleaved": 1e-5,
    "torch-zero-bubble": 1e-5,
}
WORLDS = {what: world for what, (_, world) in OURS.items()} | {what: 3 if what[0] == "r" else 2 for what in CLOSENESS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ranks of every run have written their parameters."""
    out = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        run_all(out, WORLDS)
    return out


def parameters_of(what: str, folder: Path) -> dict[str, Tensor]:
    """What all ranks of a run end with."""
    found: dict[str, Tensor] = {}
    for rank in range(WORLDS[what]):
        found |= torch.load(folder / f"{what}-{rank}.pt", weights_only=True)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("what", OURS)
def test_processes_end_with_the_bits_of_lockstep(what: str, folder: Path) -> None:
    network, world = OURS[what]
    model, steps = model_and_steps(network, num_steps=8, num_micro_batches=4, batch_size=16)
    stages = even_stages(NUM_LINKS[network], world)
    job = PipelineJob(network=network, stages=stages, schedule=Dapple(), make_optimizer=sgd)
    wanted, _ = train_lockstep(job, model, steps)
    found = parameters_of(what, folder)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@pytest.mark.slow
@pytest.mark.parametrize(("what", "closeness"), CLOSENESS.items())
def test_strategies_and_torchs_executor_train_to_the_weights_of_one_device(
    what: str, closeness: float, folder: Path
) -> None:
    model, steps = model_and_steps("lstm_lm", num_steps=8, num_micro_batches=4, batch_size=16)
    wanted = train_alone(copy.deepcopy(model), steps)
    found = distance(parameters_of(what, folder), wanted)
    assert found < closeness
    if what == "replicas-half":
        assert found > 1e-7  # it did travel in half precision
