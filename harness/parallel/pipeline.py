"""A pipelined training run in one process: every rank of every stage in lockstep, exact and without a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from baselines.parallelism.api import ParallelismError, PipelineSchedule
from baselines.parallelism.plans import PlannedStage, check_stages
from baselines.parallelism.programs import PipelineProgram, program_of
from baselines.strategy import Strategy
from harness.parallel.rank_program import (
    PipelineRank,
    RankLayout,
    RankRun,
    ReceiveFrom,
    Request,
    SegmentTurns,
    SendTo,
    SumOver,
)
from harness.parallel.stage_worker import MakeOptimizer, StageWorker
from harness.parallel.stages import MicroBatch, cut


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineJob:
    """What a pipeline trains, and how. Stage s lives on pipeline rank s mod the number of ranks.

    `make_optimizer` is called once per stage replica, with the network's parameter names; momentum and the like stay
    with the stage. Among processes, replicas sum their gradients by `strategy`'s packing, ordering, compression and
    exchange (None: as one plain sum).
    """

    network: str
    stages: tuple[PlannedStage, ...]
    schedule: PipelineSchedule
    make_optimizer: MakeOptimizer
    seed: int = 0
    strategy: Strategy | None = None

    @property
    def num_ranks(self) -> int:
        """Pipeline ranks, replicas not counted."""
        return len(self.stages) // self.schedule.stages_per_rank

    def layout(self) -> RankLayout:
        """Raises: ParallelismError if stages do not divide over ranks, or those of a rank differ in replicas."""
        per_rank = self.schedule.stages_per_rank
        if len(self.stages) % per_rank:
            raise ParallelismError(f"{len(self.stages)} stages, {per_rank} per rank; use a multiple of {per_rank}")
        counts = [stage.num_replicas for stage in self.stages]
        for index, count in enumerate(counts):
            if count != counts[index % self.num_ranks]:
                raise ParallelismError(f"stages {index % self.num_ranks} and {index} share a rank; give both {count}")
        return RankLayout(tuple(counts[: self.num_ranks]))


@dataclass(slots=True)
class PipelineRanks:
    """The ranks of a job, each with its workers. `tied` are the groups of stages that have a weight in common."""

    job: PipelineJob
    program: PipelineProgram
    ranks: list[PipelineRank]
    tied: frozenset[tuple[int, ...]]
    workers: list[StageWorker] = field(default_factory=list)

    def parameters(self) -> dict[str, Tensor]:
        """The newest weights of all stages by the network's names. Raises: AssertionError if replicas differ."""
        found: dict[str, Tensor] = {}
        for worker in self.workers:
            for name, value in worker.parameters().items():
                assert name not in found or torch.equal(found[name], value), f"replicas of {name} differ"
                found[name] = value
        return found


def open_ranks(
    job: PipelineJob,
    model: nn.Module,
    data: Sequence[MicroBatch],
    *,
    only: int | None = None,
    turns: SegmentTurns | None = None,
) -> PipelineRanks:
    """Build the ranks of `job` (or `only` one of them) for programs of `len(data)` micro-batches.

    Raises: ParallelismError if stages, schedule, replicas and micro-batches do not fit each other.
    """
    layout = job.layout()
    check_stages(job.stages, job.stages[-1].stop, len(data[0].inputs))
    program = program_of(job.schedule, job.num_ranks, len(data))
    cut_stages = cut(job.network, model, job.stages, data[0].inputs[:1])
    if not job.schedule.synchronous and any(stage.tied for stage in cut_stages):
        name = next(iter(next(stage.tied for stage in cut_stages if stage.tied)))
        raise ParallelismError(
            f"{name} is one weight in two stages, whose versions {job.schedule.card.name} would let differ; use a "
            "synchronous schedule, or a network without tied weights"
        )
    shapes = tuple(stage.output_shape for stage in cut_stages)
    tied = frozenset(stages for stage in cut_stages for stages in stage.tied.values())
    opened = PipelineRanks(job, program, [], tied)
    for rank in range(layout.world) if only is None else (only,):
        pipeline_rank, replica = layout.seat_of(rank)
        own_stages = cut(job.network, model, job.stages, data[0].inputs[:1])  # each rank's own copies
        workers = {}
        for index in range(pipeline_rank, len(own_stages), job.num_ranks):
            workers[index] = StageWorker(
                own_stages[index],
                program.ranks[pipeline_rank],
                job.schedule,
                job.make_optimizer,
                shapes=shapes,
                seed=job.seed * 1024 + replica,
            )
        opened.ranks.append(PipelineRank(rank, layout, program, workers, turns))
        opened.workers.extend(workers.values())
    return opened


def run_lockstep(opened: PipelineRanks, data: Sequence[MicroBatch]) -> float:
    """Run the program once on all ranks: a step of a synchronous schedule, or a whole run of any other. Answer: the sum
    of the micro-batches' losses, which for a synchronous schedule is the mean loss of the step."""
    for worker in opened.workers:
        worker.losses.clear()
    drive([rank.run(data) for rank in opened.ranks])
    if opened.job.schedule.synchronous:
        for worker in opened.workers:
            worker.next_step()
    return sum(loss for worker in opened.workers for loss in worker.losses.values())


def drive(runs: Sequence[RankRun], order: Callable[[int], Sequence[int]] | None = None) -> None:
    """Run ranks in one process until all have ended: whoever can go on, goes on.

    `order(round)` says in which order ranks are tried, for tests. Raises: RuntimeError if all wait.
    """
    post = _PostOffice()
    waiting: dict[int, Request] = {}
    for rank, run in enumerate(runs):
        _advance(rank, run, None, waiting)
    num_rounds = 0
    while waiting:
        moved = False
        for rank in order(num_rounds) if order else range(len(runs)):
            while rank in waiting and post.can_answer(rank, waiting[rank]):
                _advance(rank, runs[rank], post.answer(rank, waiting[rank]), waiting)
                moved = True
        num_rounds += 1
        if not moved:
            raise RuntimeError(f"all ranks wait: {waiting}")


def _advance(rank: int, run: RankRun, answer: Tensor | None, waiting: dict[int, Request]) -> None:
    try:
        waiting[rank] = run.send(answer)
    except StopIteration:
        waiting.pop(rank, None)


@dataclass(slots=True)
class _Summing:
    """A sum under way: parts by rank, and how many ranks have taken the answer."""

    parts: dict[int, Tensor] = field(default_factory=dict)
    num_taken: int = 0


@dataclass(slots=True)
class _PostOffice:
    """What is on its way between the ranks of one process."""

    mail: dict[tuple[int, int, tuple[int, ...]], Tensor] = field(default_factory=dict)
    sums: dict[tuple[tuple[int, ...], tuple[int, ...]], _Summing] = field(default_factory=dict)

    def can_answer(self, rank: int, request: Request) -> bool:
        if isinstance(request, ReceiveFrom):
            return (request.rank, rank, request.tag) in self.mail
        if isinstance(request, SumOver):
            summing = self.sums.setdefault((request.ranks, request.tag), _Summing())
            summing.parts[rank] = request.tensor
            return len(summing.parts) == len(request.ranks)
        return True

    def answer(self, rank: int, request: Request) -> Tensor | None:
        if isinstance(request, SendTo):
            self.mail[rank, request.rank, request.tag] = request.tensor
            return None
        if isinstance(request, ReceiveFrom):
            return self.mail.pop((request.rank, rank, request.tag))
        summing = self.sums[request.ranks, request.tag]
        total = summing.parts[request.ranks[0]].clone()  # in order of ranks, so every rank has the same bits
        for other in request.ranks[1:]:
            total += summing.parts[other]
        summing.num_taken += 1
        if summing.num_taken == len(request.ranks):
            del self.sums[request.ranks, request.tag]
        return total
