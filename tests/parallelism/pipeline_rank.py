"""A rank that tests start: python pipeline_rank.py WHAT RANK WORLD PORT OUT.

WHAT: `ours-lstm` and `ours-bert` train with 1F1B, `operators` a split network. Each rank writes its parameters.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from one_device import model_and_steps, sgd
from torch import Tensor

from baselines.parallelism.dapple import Dapple
from baselines.parallelism.plans import even_stages
from harness.parallel.groups import ProcessGroup
from harness.parallel.pipeline import PipelineJob
from harness.parallel.processes import PipelineProcess
from harness.parallel.split_network import SplitNetwork
from harness.parallel.stages import MicroBatch
from models.graph import Dimension

NUM_STEPS, NUM_MICRO_BATCHES = 8, 4


def ours(world: int, network: str, links: int) -> dict[str, Tensor]:
    model, steps = model_and_steps(network, num_steps=NUM_STEPS, num_micro_batches=NUM_MICRO_BATCHES, batch_size=16)
    job = PipelineJob(network=network, stages=even_stages(links, world), schedule=Dapple(), make_optimizer=sgd)
    process = PipelineProcess(job, model, steps[0])
    for step in steps:
        process.run(step)
    return process.opened.parameters()


def operators() -> dict[str, Tensor]:
    model, steps = model_and_steps("lstm_lm", num_steps=NUM_STEPS, num_micro_batches=1, batch_size=16)
    splits = [Dimension.CHANNEL_IN, None, Dimension.SAMPLE, Dimension.CHANNEL_OUT]
    own = SplitNetwork("lstm_lm", model, splits, ProcessGroup())
    optimizer = sgd(own.parameters())
    for step in steps:
        batch: MicroBatch = step[0]
        optimizer.zero_grad()
        own.backward(own.loss(batch))
        optimizer.step()
    return {str(place): value for place, value in enumerate(own.whole_parameters())}


def main() -> None:
    what, rank, world, port, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    network, links = ("bert_tiny", 6) if what == "ours-bert" else ("lstm_lm", 4)
    parameters = operators() if what == "operators" else ours(world, network, links)
    torch.save(parameters, out / f"{what}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
