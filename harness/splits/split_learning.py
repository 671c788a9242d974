"""The arithmetic of a split job in one process: its ranks in lockstep, and the same batches on one device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

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
    """What arithmetic gave; nothing in replay. `distance` is that of all parameters from those of one device that
    trained on the same batches, relative to their norm."""

    losses: list[float] = field(default_factory=list)
    evaluated: list[Evaluated] = field(default_factory=list)
    digest: str = ""
    num_parameters: int = 0
    distance: float | None = None


@dataclass(frozen=True, slots=True)
class _SplitTraining:
    """What all ranks of a split training have in common."""

    trial: Trial
    workload: Workload
    model: nn.Module
    splits: Sequence[Sequence[LayerSplit]]
    on_step: Callable[[int], None]

    @property
    def network(self) -> str:
        return self.trial.jobs[0].workload.network

    def steps(self) -> Iterator[MicroBatch]:
        """Whole batches, the same for every rank and for one device."""
        batches = self.workload.batches(rank=0, world=1, seed=self.trial.seed)
        for batch in islice(batches, self.trial.num_warmup + self.trial.num_steps):
            yield micro_batches_of(batch, 1)[0]

    def optimizer(self, network: nn.Module) -> Optimizer:
        return self.trial.jobs[0].resolve().optimizer.build(list(network.parameters()))


def learn_split(trial: Trial, splits: Sequence[Sequence[LayerSplit]], on_step: Callable[[int], None]) -> SplitLearnt:
    """Train job 0 of `trial` on all its ranks, then on one device. Raises: ParallelismError if it cannot be."""
    torch.manual_seed(rank_seed(trial.seed, 0))
    workload = open_workload(trial.jobs[0].workload)
    training = _SplitTraining(trial, workload, workload.build_model(trial.seed), splits, on_step)
    alone = copy.deepcopy(training.model)
    learnt = run_ranks(trial.world, lambda group: _train_rank(training, group))[0]
    learnt.digest = weights_digest(training.model)
    learnt.num_parameters = sum(parameter.numel() for parameter in training.model.parameters())
    _train_alone(training, alone)
    learnt.distance = _distance(training.model, alone)
    return learnt


def _train_rank(training: _SplitTraining, group: RankGroup) -> SplitLearnt:
    """Of one rank; the first one's whole weights go into the common model."""
    learnt, every = SplitLearnt(), training.trial.evaluate_every
    own = SplitNetwork(training.network, training.model, dimensions_of(training.splits, group.part.world), group)
    optimizer = training.optimizer(own)
    for step, batch in enumerate(training.steps(), start=1):
        optimizer.zero_grad()
        loss = own.loss(batch)
        own.backward(loss)
        optimizer.step()
        learnt.losses.append(float(loss.detach()))
        if every and step % every == 0:
            _gather(training, own, group)
            if group.part.rank == 0 and (found := training.workload.evaluate(training.model)) is not None:
                learnt.evaluated.append(Evaluated(step, None, found.loss, found.accuracy))
        if group.part.rank == 0:
            training.on_step(step - 1)
    _gather(training, own, group)
    return learnt


def _gather(training: _SplitTraining, own: SplitNetwork, group: RankGroup) -> None:
    """Put the weights together, with the first rank's statistics, into the common model."""
    whole = own.whole_parameters()
    if group.part.rank:
        return
    links = nn.ModuleList(link.module for link in links_of(training.network, training.model))
    # In the order of the links, in which both sides name a tied weight once.
    for target, value in zip(links.parameters(), whole, strict=True):
        target.data.copy_(value)
    for buffer, value in zip(links.buffers(), own.links.buffers(), strict=True):
        buffer.copy_(value)


def _train_alone(training: _SplitTraining, model: nn.Module) -> None:
    """The whole network without any group, by its chain of links."""
    links = links_of(training.network, model)
    optimizer = training.optimizer(model)
    for batch in training.steps():
        optimizer.zero_grad()
        cross_entropy_part(apply_chain(links, batch.inputs), batch).backward()
        optimizer.step()


def _distance(found: nn.Module, wanted: nn.Module) -> float:
    pairs: list[tuple[Tensor, Tensor]] = list(zip(found.parameters(), wanted.parameters(), strict=True))
    difference = sum(float((own.detach().double() - other.detach()).square().sum()) for own, other in pairs)
    return float((difference / sum(float(other.detach().double().square().sum()) for _, other in pairs)) ** 0.5)
