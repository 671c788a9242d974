"""A network cut into stages, and a step's samples cut into micro-batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from baselines.parallelism.api import ParallelismError
from baselines.parallelism.plans import PlannedStage, Workshare, check_stages
from models.chain import ChainLink, apply_chain, chain_of, names_of_parameters
from models.replay_chain import ReplayChain, ReplayLink
from models.values import Batch

IGNORED = -100  # a target that no loss counts


@dataclass(frozen=True, slots=True, kw_only=True)
class StageModule:
    """A stage's own copy of its layers.

    Attributes:
        names: its own name of a parameter → the network's.
        tied: network's names of parameters that another stage holds too → all stages that do.
        output_shape: of what it hands on, without the samples' dimension.
        loss: of the last stage's output for a micro-batch: its part of the step's mean loss.
    """

    stage: int
    module: nn.Sequential
    names: dict[str, str]
    tied: dict[str, tuple[int, ...]]
    output_shape: tuple[int, ...]
    loss: LossOfMicroBatch


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples that go through the stages together. Their loss is the sum over targets, divided by `num_targets`: the
    number of all targets of the step."""

    inputs: Tensor  # [samples, …]
    targets: Tensor  # [samples, …]
    num_targets: int


LossOfMicroBatch = Callable[[Tensor, MicroBatch], Tensor]


def cross_entropy_part(logits: Tensor, batch: MicroBatch) -> Tensor:
    """Of logits [samples, …, classes]: the sum over targets, over the step's number of them."""
    total = functional.cross_entropy(
        logits.flatten(0, -2), batch.targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / batch.num_targets


def replayed_part(output: Tensor, batch: MicroBatch) -> Tensor:
    """Of a replayed chain's output [samples, width]: the sum of the samples' losses, over the step's number of them."""
    return output[:, 0].sum() / batch.num_targets


def links_of(network: str, model: nn.Module) -> tuple[ChainLink, ...]:
    """The links of a network or of its replay. Raises: WorkloadError."""
    return model.chain() if isinstance(model, ReplayChain) else chain_of(network, model)


def cut(network: str, model: nn.Module, stages: Sequence[PlannedStage], sample: Tensor) -> tuple[StageModule, ...]:
    """Copies of the layers of `model`, stage by stage. `sample` [1, …] is run through it to see what crosses.

    Raises: ParallelismError if the stages do not fit the network.
    """
    links = links_of(network, model)
    check_stages(stages, len(links), micro_batch_size=max(stage.num_replicas for stage in stages))
    per_link = names_of_parameters(model, links)
    holders: dict[str, list[int]] = {}
    for index, stage in enumerate(stages):
        for name in {name for names in per_link[stage.first : stage.stop] for name in names.values()}:
            holders.setdefault(name, []).append(index)
    shapes = _output_shapes(network, model, stages, sample)
    cut_stages = []
    for index, stage in enumerate(stages):
        module = copy.deepcopy(nn.Sequential(*(link.module for link in links[stage.first : stage.stop])))
        all_names = {
            f"{place}.{own}": name
            for place, names in enumerate(per_link[stage.first : stage.stop])
            for own, name in names.items()
        }
        cut_stages.append(
            StageModule(
                stage=index,
                module=module,
                names={own: all_names[own] for own, _ in module.named_parameters()},
                tied={name: tuple(where) for name, where in holders.items() if len(where) > 1 and index in where},
                output_shape=shapes[index],
                loss=replayed_part if isinstance(model, ReplayChain) else cross_entropy_part,
            )
        )
    return tuple(cut_stages)


def _output_shapes(
    network: str, model: nn.Module, stages: Sequence[PlannedStage], sample: Tensor
) -> list[tuple[int, ...]]:
    if isinstance(model, ReplayChain):
        last = [model.links[stage.stop - 1] for stage in stages]
        return [(link.width,) for link in last if isinstance(link, ReplayLink)]
    model = copy.deepcopy(model).eval()  # running statistics and the generator stay as they are
    links = chain_of(network, model)
    shapes = []
    x = sample
    with torch.no_grad():
        for stage in stages:
            x = apply_chain(links[stage.first : stage.stop], x)
            shapes.append(tuple(x.shape[1:]))
    return shapes


def micro_batches_of(batch: Batch, num_micro_batches: int) -> tuple[MicroBatch, ...]:
    """Equal slices of a step's samples. Raises: ParallelismError if the samples do not divide."""
    size = Workshare(batch_size=len(batch.targets), num_micro_batches=num_micro_batches).micro_batch_size
    num_targets = int((batch.targets != IGNORED).sum())
    if num_targets == 0:
        raise ParallelismError(f"a batch of {len(batch.targets)} samples has no target; use a larger batch")
    return tuple(
        MicroBatch(inputs, targets, num_targets)
        for inputs, targets in zip(batch.inputs[0].split(size), batch.targets.split(size), strict=True)
    )


def slice_of(replica: int, num_replicas: int, num_samples: int) -> slice:
    """The samples of a micro-batch that a replica takes: the first ones take one more where they do not divide."""
    share, left = divmod(num_samples, num_replicas)
    return slice(replica * share + min(replica, left), (replica + 1) * share + min(replica + 1, left))
