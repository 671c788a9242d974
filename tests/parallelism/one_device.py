"""What a pipeline is held against: the same network on one device; and how tests cut and run pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer

from baselines.api import Parameters
from baselines.parallelism.plans import PlannedStage
from harness.parallel.pipeline import PipelineJob, open_ranks, run_lockstep
from harness.parallel.stages import IGNORED, MicroBatch, micro_batches_of
from models.nets.recurrent import LSTMLM
from models.networks import find_network
from models.values import WorkloadSpec
from models.workload import open_workload

NUM_LINKS = {"resnet20": 11, "bert_tiny": 6, "lstm_lm": 4}


def sgd(parameters: Parameters) -> Optimizer:
    return SGD(parameters, lr=0.05, momentum=0.9)


def model_and_steps(
    network: str, *, num_steps: int, num_micro_batches: int, batch_size: int = 12, double: bool = False
) -> tuple[nn.Module, list[tuple[MicroBatch, ...]]]:
    data = "digits" if network == "resnet20" else "synthetic"
    spec = WorkloadSpec(network=network, data=data, batch_size=batch_size, sequence_length=8, dropout=0.0)
    workload = open_workload(spec)
    batches = workload.batches(rank=0, world=1, seed=0)
    steps = [micro_batches_of(next(batches), num_micro_batches) for _ in range(num_steps)]
    model = _narrow_lstm() if network == "lstm_lm" else workload.build_model(seed=0)
    if double:
        model = model.double()
        steps = [tuple(MicroBatch(_double(one.inputs), one.targets, one.num_targets) for one in step) for step in steps]
    return model, steps


def _narrow_lstm() -> nn.Module:
    """A network like `lstm_lm`, of a tenth of its weights: what pipelines do with them is the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LSTMLM(find_network("lstm_lm").num_classes, dropout=0.0, width=32)


def _double(inputs: Tensor) -> Tensor:
    return inputs.double() if inputs.is_floating_point() else inputs


def train_alone(
    model: nn.Module, steps: Iterable[Sequence[MicroBatch]], make: Callable[[Parameters], Optimizer] = sgd
) -> dict[str, Tensor]:
    """Plain SGD on one device; the gradients of a step's micro-batches are summed, so that statistics of batch
    normalisation are those of a micro-batch too."""
    optimizer = make(model.named_parameters())
    for step in steps:
        optimizer.zero_grad()
        for micro_batch in step:
            loss_of(model, micro_batch).backward()
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def train_lockstep(
    job: PipelineJob, model: nn.Module, steps: Iterable[Sequence[MicroBatch]]
) -> tuple[dict[str, Tensor], list[float]]:
    """Train on the micro-batches of each step. Answer: the parameters by name, and losses: of each step, or, where
    steps overlap, of each micro-batch."""
    batches = [tuple(step) for step in steps]
    if job.schedule.synchronous:
        opened = open_ranks(job, model, batches[0])
        return_losses = [run_lockstep(opened, step) for step in batches]
        return opened.parameters(), return_losses
    stream = [micro_batch for step in batches for micro_batch in step]
    opened = open_ranks(job, model, stream)
    run_lockstep(opened, stream)
    losses: dict[int, float] = {}
    for worker in opened.workers:
        for micro_batch, loss in worker.losses.items():
            losses[micro_batch] = losses.get(micro_batch, 0.0) + loss
    return opened.parameters(), [losses[micro_batch] for micro_batch in range(len(stream))]


def even_stages(num_layers: int, num_stages: int) -> tuple[PlannedStage, ...]:
    """Stages with as many layers as each other, give or take one."""
    bounds = [round(index * num_layers / num_stages) for index in range(num_stages + 1)]
    return tuple(PlannedStage(first, stop) for first, stop in pairwise(bounds))


def loss_of(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
    output = model(micro_batch.inputs)
    logits = output if isinstance(output, Tensor) else output[0]
    return (
        functional.cross_entropy(
            logits.flatten(0, -2), micro_batch.targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        / micro_batch.num_targets
    )


def distance(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Of all parameters together, relative to what is wanted."""
    assert found.keys() == wanted.keys()
    difference = sum(float((found[name] - value).square().sum()) for name, value in wanted.items())
    return float((difference / sum(float(value.square().sum()) for value in wanted.values())) ** 0.5)
