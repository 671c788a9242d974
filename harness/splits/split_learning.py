"""The arithmetic of a split job: its ranks in lockstep or in a process each, and the same batches on one device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from baselines.parallelism.plans import LayerSplit
from harness.lab.rank import rank_seed, weights_digest
from harness.loop import Evaluated
from harness.parallel.stages import MicroBatch, cross_entropy_part, links_of, micro_batches_of
from harness.splits.groups import RankGroup, run_ranks
from harness.splits.split_network import SplitNetwork, dimensions_of
from harness.trial import Trial
from models.chain import apply_chain
from models.workload import Workload, open_workload


@dataclass(slots=True)
class SplitLearnt:
    """What arithmetic gave; nothing in replay. Steps lasted `times_s`, evaluation apart. `distance` is that of all
    parameters from those of one device that trained on the same batches, relative to their norm."""

    times_s: list[tuple[float, float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    evaluated: list[Evaluated] = field(default_factory=list)
    digest: str = ""
    num_parameters: int = 0
    distance: float | None = None


@dataclass(frozen=True, slots=True)
class SplitTraining:
    """What all ranks of a split training have in common. In lockstep `model` is one for all of them, and the first
    rank's to write."""

    trial: Trial
    workload: Workload
    model: nn.Module
    splits: Sequence[Sequence[LayerSplit]]
    on_step: Callable[[int], None]
    is_lockstep: bool

    @property
    def network(self) -> str:
        return self.trial.jobs[0].workload.network

    def steps(self) -> Iterator[MicroBatch]:
        """Whole batches, the same for every rank and for one device."""
        batches = self.workload.batches(rank=0, world=1, seed=self.trial.seed)
        for batch in islice(batches, self.trial.num_warmup + self.trial.num_steps_of(0)):
            yield micro_batches_of(batch, 1)[0]

    def optimizer(self, network: nn.Module) -> Optimizer:
        return self.trial.jobs[0].resolve().optimizer.build(list(network.parameters()))


def open_training(
    trial: Trial, splits: Sequence[Sequence[LayerSplit]], on_step: Callable[[int], None]
) -> SplitTraining:
    """Job 0 of `trial`, its weights drawn. Raises: WorkloadError."""
    torch.manual_seed(rank_seed(trial.seed, 0))
    workload, in_lockstep = open_workload(trial.jobs[0].workload), not trial.fabric.kind.has_processes
    return SplitTraining(trial, workload, workload.build_model(trial.seed), splits, on_step, in_lockstep)


def learn_split(trial: Trial, splits: Sequence[Sequence[LayerSplit]], on_step: Callable[[int], None]) -> SplitLearnt:
    """Train job 0 of `trial` on all its ranks, then on one device. Raises: ParallelismError if it cannot be."""
    training = open_training(trial, splits, on_step)
    alone = copy.deepcopy(training.model)
    learnt = run_ranks(trial.world, lambda group: train_rank(training, split_network(training, group)))[0]
    learnt.distance = distance_from_one_device(training, alone)
    return learnt


def split_network(training: SplitTraining, group: RankGroup) -> SplitNetwork:
    """The rank's own parts of the common model. Raises: ParallelismError."""
    return SplitNetwork(training.network, training.model, dimensions_of(training.splits, group.part.world), group)


def train_rank(training: SplitTraining, own: SplitNetwork) -> SplitLearnt:
    """Of one rank; its whole weights go into the model."""
    learnt, every, is_first = SplitLearnt(), training.trial.evaluate_every, own.group.part.rank == 0
    optimizer = training.optimizer(own)
    for step, batch in enumerate(training.steps(), start=1):
        start_s = perf_counter()
        optimizer.zero_grad()
        loss = own.loss(batch)
        own.backward(loss)
        optimizer.step()
        learnt.times_s.append((start_s, perf_counter()))
        learnt.losses.append(float(loss.detach()))
        if is_first or not training.is_lockstep:
            training.on_step(step - 1)
        if every and step % every == 0:
            _gather(training, own)
            if is_first and (found := training.workload.evaluate(training.model)) is not None:
                learnt.evaluated.append(Evaluated(step, None, found.loss, found.accuracy))
            own.group.meet()  # else the others would wait for the first one inside their next step
    _gather(training, own)
    learnt.digest = weights_digest(training.model)
    learnt.num_parameters = sum(parameter.numel() for parameter in training.model.parameters())
    return learnt


def _gather(training: SplitTraining, own: SplitNetwork) -> None:
    """Put the weights together, with the rank's own statistics, into its model."""
    whole = own.whole_parameters()
    if training.is_lockstep and own.group.part.rank:
        return
    links = nn.ModuleList(link.module for link in links_of(training.network, training.model))
    # In the order of the links, in which both sides name a tied weight once.
    for target, value in zip(links.parameters(), whole, strict=True):
        target.data.copy_(value)
    for buffer, value in zip(links.buffers(), own.links.buffers(), strict=True):
        buffer.copy_(value)


def distance_from_one_device(training: SplitTraining, alone: nn.Module) -> float:
    """Train `alone`, the model as it was, on the same batches without any group. Answer: how far from it all
    parameters are now, relative to their norm."""
    links = links_of(training.network, alone)
    optimizer = training.optimizer(alone)
    for batch in training.steps():
        optimizer.zero_grad()
        cross_entropy_part(apply_chain(links, batch.inputs), batch).backward()
        optimizer.step()
    return _distance(training.model, alone)


def _distance(found: nn.Module, wanted: nn.Module) -> float:
    pairs: list[tuple[Tensor, Tensor]] = list(zip(found.parameters(), wanted.parameters(), strict=True))
    difference = sum(float((own.detach().double() - other.detach()).square().sum()) for own, other in pairs)
    return float((difference / sum(float(other.detach().double().square().sum()) for _, other in pairs)) ** 0.5)
