"""Ranks that tests fork, one run after the other.

`ours-lstm` and `ours-bert` train with 1F1B, `replicas-…` with two replicas of the first stage, whose gradients go
by a strategy; `torch-…` trains by torch's executor. Each rank writes its parameters.
"""

from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.distributed as dist
from one_device import even_stages, model_and_steps, sgd
from torch import Tensor

from baselines.parallelism.api import PipelineSchedule
from baselines.parallelism.dapple import Dapple
from baselines.parallelism.gpipe import GPipe
from baselines.parallelism.interleaved import Interleaved
from baselines.parallelism.plans import PlannedStage
from baselines.strategy import parse_strategy
from crossover import Alone
from harness.garbage import lasting
from harness.parallel.meter import PipelineMeter
from harness.parallel.pipeline import PipelineJob
from harness.parallel.processes import PipelineProcess
from harness.parallel.sessions import PipelineSeat, RunsPipelines
from harness.parallel.stages import cut
from harness.systems import system_of
from harness.trace import Recorder

NUM_STEPS, NUM_MICRO_BATCHES = 8, 4


def ours(stages: tuple[PlannedStage, ...], network: str, strategy: str = "") -> dict[str, Tensor]:
    model, steps = model_and_steps(network, num_steps=NUM_STEPS, num_micro_batches=NUM_MICRO_BATCHES, batch_size=16)
    resolved = parse_strategy(strategy) if strategy else None
    job = PipelineJob(network=network, stages=stages, schedule=Dapple(), make_optimizer=sgd, strategy=resolved)
    process = PipelineProcess(job, model, steps[0])
    for step in steps:
        process.run(step)
    process.close()
    return process.opened.parameters()


def torchs(
    stages: tuple[PlannedStage, ...], network: str, schedule: PipelineSchedule, system: str
) -> dict[str, Tensor]:
    model, steps = model_and_steps(network, num_steps=NUM_STEPS, num_micro_batches=NUM_MICRO_BATCHES, batch_size=16)
    job = PipelineJob(network=network, stages=stages, schedule=schedule, make_optimizer=sgd)
    meter = PipelineMeter(Alone(), Recorder(), updates_per_step=schedule.stages_per_rank, on_step=lambda step: None)
    seat = PipelineSeat(job=job, model=model, data=steps[0], meter=meter, recorder=Recorder(), paused=lambda: None)
    found = system_of(system)
    assert isinstance(found, RunsPipelines)
    session = found.open_pipeline(seat)
    for step in steps:
        session.run(step)
    own = cut(network, model, stages, steps[0][0].inputs[:1])
    return {
        own[index].names[name]: value.detach()
        for index, module in session.modules.items()
        for name, value in module.named_parameters()
    }


def parameters_of(what: str, world: int) -> dict[str, Tensor]:
    replicated = (PlannedStage(0, 2, 2), PlannedStage(2, 4))
    match what:
        case "ours-bert":
            return ours(even_stages(6, world), "bert_tiny")
        case "ours-lstm":
            return ours(even_stages(4, world), "lstm_lm")
        case "replicas-buckets":
            return ours(replicated, "lstm_lm", "fixed-buckets(bucket_bytes=65536)+fifo+sgd(lr=0.05)")
        case "replicas-half":
            return ours(replicated, "lstm_lm", "unfused+half+sgd(lr=0.05)")
        case "torch-interleaved":
            return torchs(even_stages(4, 2 * world), "lstm_lm", Interleaved(), "torch-pipelining")
        case "torch-zero-bubble":
            return torchs(even_stages(4, 2 * world), "lstm_lm", Interleaved(), "torch-pipelining(zero_bubble=True)")
    return torchs(even_stages(4, world), "lstm_lm", Dapple() if what == "torch-dapple" else GPipe(), "torch-pipelining")


def train(what: str, rank: int, world: int, out: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{out}/{what}.store", rank=rank, world_size=world)
    torch.save(parameters_of(what, world), out / f"{what}-{rank}.pt")
    dist.destroy_process_group()


def run_all(out: Path, worlds: Mapping[str, int]) -> None:
    # What ranks would each import again: networks, the rest of torch with the first optimizer, plug-ins and systems.
    with lasting():
        for network in ("lstm_lm", "bert_tiny"):
            model, _ = model_and_steps(network, num_steps=1, num_micro_batches=1)
        sgd(model.parameters())
        parse_strategy("unfused")
        system_of("torch-pipelining")
    for what, world in worlds.items():
        ranks = [
            get_context("fork").Process(target=train, args=(what, rank, world, out), daemon=True)
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        assert not any(process.exitcode for process in ranks), what
