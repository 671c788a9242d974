"""The arithmetic of a pipelined job in one process: exactly what processes would train, evaluated on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from baselines.parallelism.api import Action, Update
from harness.lab.rank import Signals, rank_seed, weights_digest
from harness.loop import Evaluated
from harness.parallel.pipeline import PipelineRanks, open_ranks, run_lockstep
from harness.parallel.stages import links_of
from harness.parallel.trial_job import OpenedJob, open_job
from harness.trial import Trial


@dataclass(frozen=True, slots=True)
class Learnt:
    """What arithmetic gave; nothing in replay."""

    losses: tuple[float, ...] = ()
    evaluated: tuple[Evaluated, ...] = ()
    digest: str = ""
    num_parameters: int = 0


@dataclass(frozen=True, slots=True)
class _StageWeights:
    """A stage's weights by the network's names, and its running statistics in order."""

    parameters: Mapping[str, Tensor]
    buffers: tuple[Tensor, ...]


@dataclass(slots=True)
class _Snapshots:
    """Keeps each stage's weights after every `every`-th step of it: where steps overlap, stages reach one at different
    times. `versions_before` counts the updates of earlier runs of the program."""

    every: int
    ranks: PipelineRanks | None = None
    versions_before: int = 0
    taken: dict[int, dict[int, _StageWeights]] = field(default_factory=dict)

    @contextmanager
    def segment(self, action: Action) -> Iterator[None]:
        yield
        if isinstance(action, Update) and self.every:
            step = self.versions_before + action.version
            if step % self.every == 0:
                # The first replica to come keeps them: all have the same weights after an update.
                self.taken.setdefault(step, {}).setdefault(action.stage, self.weights_of(action.stage))

    def weights_of(self, stage: int) -> _StageWeights:
        """The stage's present ones, those of its first replica."""
        assert self.ranks is not None, "opened before it runs"
        # Replicas have the same weights, and statistics of their own samples; the first one's stand for all.
        worker = next(own for own in self.ranks.workers if own.stage.stage == stage)
        buffers = tuple(buffer.clone() for buffer in worker.stage.module.buffers())
        return _StageWeights(worker.parameters(), buffers)


def learn(trial: Trial, number: int, signals: Signals) -> Learnt:
    """Train job `number` in lockstep; the whole run of an asynchronous schedule is one program."""
    opened = open_job(trial, number)
    torch.manual_seed(rank_seed(trial.seed, 0))
    num_steps, steps = trial.num_warmup + trial.num_steps_of(number), opened.steps(trial.seed)
    # All of them at once: an asynchronous program reaches into later steps before earlier ones end.
    data = [next(steps) for _ in range(num_steps)]
    is_synchronous = opened.pipeline.schedule.synchronous
    runs = data if is_synchronous else [tuple(one for step in data for one in step)]
    snapshots = _Snapshots(trial.evaluate_every)
    ranks = snapshots.ranks = open_ranks(opened.pipeline, opened.model, runs[0], turns=snapshots)
    losses, evaluated = list[float](), list[Evaluated]()
    for run, micro_batches in enumerate(runs):
        snapshots.versions_before = run
        run_lockstep(ranks, micro_batches)
        losses += _losses(ranks, opened.num_micro_batches, len(micro_batches))
        signals.step(len(losses) - 1)
        evaluated += _evaluations(opened, snapshots)
    _load(opened, {stage: snapshots.weights_of(stage) for stage in range(len(opened.pipeline.stages))})
    num_parameters = sum(parameter.numel() for parameter in opened.model.parameters())
    return Learnt(tuple(losses), tuple(evaluated), weights_digest(opened.model), num_parameters)


def _evaluations(opened: OpenedJob, snapshots: _Snapshots) -> Iterator[Evaluated]:
    for step in sorted(snapshots.taken):
        _load(opened, snapshots.taken.pop(step))
        if (found := opened.workload.evaluate(opened.model)) is not None:
            yield Evaluated(step, None, found.loss, found.accuracy)


def _losses(ranks: PipelineRanks, per_step: int, num_micro_batches: int) -> list[float]:
    total = [0.0] * (num_micro_batches // per_step)
    for worker in ranks.workers:
        for micro_batch, loss in worker.losses.items():
            total[micro_batch // per_step] += loss
    return total


def _load(opened: OpenedJob, stages: Mapping[int, _StageWeights]) -> None:
    """Weights, and the statistics of each stage's first replica, into the whole network."""
    own = dict(opened.model.named_parameters())
    links = links_of(opened.pipeline.network, opened.model)
    for index, weights in stages.items():
        for name, value in weights.parameters.items():
            own[name].data.copy_(value)
        stage = opened.pipeline.stages[index]
        whole = nn.Sequential(*(link.module for link in links[stage.first : stage.stop]))
        for target, value in zip(whole.buffers(), weights.buffers, strict=True):
            target.copy_(value)
