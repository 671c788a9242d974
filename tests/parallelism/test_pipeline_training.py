import copy
import random
from dataclasses import replace

import pytest
import torch
from one_device import NUM_LINKS, distance, even_stages, model_and_steps, sgd, train_alone, train_lockstep
from torch import Tensor

from baselines.parallelism.api import ParallelismError, PipelineSchedule
from baselines.parallelism.dapple import Dapple, WarmUpPolicy
from baselines.parallelism.gpipe import GPipe
from baselines.parallelism.interleaved import Interleaved
from baselines.parallelism.pipedream import PipeDream
from baselines.parallelism.plans import PlannedStage
from baselines.strategy import parse_strategy
from harness.parallel.pipeline import PipelineJob, drive, open_ranks
from harness.parallel.rank_program import RankRun, ReceiveFrom, Request
from harness.parallel.stages import micro_batches_of
from models.values import Batch

pytestmark = pytest.mark.slow


def job_of(network: str, num_stages: int, schedule: PipelineSchedule) -> PipelineJob:
    stages = even_stages(NUM_LINKS[network], num_stages)
    return PipelineJob(network=network, stages=stages, schedule=schedule, make_optimizer=sgd)


EVERY_SCHEDULE: list[tuple[int, PipelineSchedule]] = [
    (2, GPipe()),
    (3, GPipe(recompute=True)),
    (3, Dapple(WarmUpPolicy.B)),
    (4, Dapple()),
    (4, Interleaved(2)),
]


# The cheapest network by all of them; batch normalisation is kept from a second forward, and a tied weight's gradients
# meet over the longest pipeline and from ranks with two stages each.
@pytest.mark.parametrize(
    ("network", "cases"),
    [("lstm_lm", EVERY_SCHEDULE), ("resnet20", EVERY_SCHEDULE[1::3]), ("bert_tiny", EVERY_SCHEDULE[3:])],
)
def test_synchronous_schedules_give_the_weights_of_one_device(
    network: str, cases: list[tuple[int, PipelineSchedule]]
) -> None:
    # 1e-5 of all weights after 20 steps is the project's bound. What differs is the order in which a tied weight's two
    # gradients are added, and the kernel that an LSTM's forward takes where nothing is kept (GPipe with recompute).
    model, steps = model_and_steps(network, num_steps=20, num_micro_batches=4)
    alone = train_alone(copy.deepcopy(model), steps)
    for num_stages, schedule in cases:
        found, losses = train_lockstep(job_of(network, num_stages, schedule), model, steps)
        assert distance(found, alone) < 1e-5, schedule
        assert len(losses) == 20


@pytest.mark.parametrize(("network", "counts"), [("bert_tiny", (3, 1)), ("lstm_lm", (2, 4)), ("lstm_lm", (5, 7))])
def test_replicas_of_a_stage_give_the_weights_of_one_device(network: str, counts: tuple[int, int]) -> None:
    # (3, 1) is Stanza's separation: many devices for the first layers, one for the last; (5, 7) do not divide the 12
    # samples of a micro-batch. No batch normalisation here, whose statistics would be those of a slice.
    model, steps = model_and_steps(network, num_steps=20, num_micro_batches=2, batch_size=24)
    alone = train_alone(copy.deepcopy(model), steps)
    stages = tuple(
        PlannedStage(stage.first, stage.stop, count)
        for stage, count in zip(even_stages(NUM_LINKS[network], 2), counts, strict=True)
    )
    job = PipelineJob(network=network, stages=stages, schedule=Dapple(), make_optimizer=sgd)
    found, _ = train_lockstep(job, model, steps)  # also checks that replicas agree, bit for bit
    assert distance(found, alone) < 1e-5


def test_an_optimizer_finds_the_networks_names_in_every_stage() -> None:
    make = parse_strategy("lars(lr=1.0, trust=0.01, exclude='embedding,layers.1')").optimizer.build
    model, steps = model_and_steps("lstm_lm", num_steps=2, num_micro_batches=2)
    found, _ = train_lockstep(replace(job_of("lstm_lm", 2, GPipe()), make_optimizer=make), model, steps)
    assert distance(found, train_alone(copy.deepcopy(model), steps, make)) < 1e-5


def test_the_order_in_which_ranks_move_changes_nothing() -> None:
    model, steps = model_and_steps("lstm_lm", num_steps=1, num_micro_batches=4)
    job = job_of("lstm_lm", 4, Dapple())
    wanted, _ = train_lockstep(job, model, steps)
    chance = random.Random(0)
    opened = open_ranks(job, model, steps[0])
    drive([rank.run(steps[0]) for rank in opened.ranks], lambda number: chance.sample(range(4), 4))
    found = opened.parameters()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@pytest.mark.parametrize("schedule", [GPipe(), Dapple(), Interleaved(2), PipeDream()])
def test_messages_asked_for_ahead_are_those_waited_for_in_the_same_order(schedule: PipelineSchedule) -> None:
    model, steps = model_and_steps("lstm_lm", num_steps=1, num_micro_batches=4, batch_size=16)
    counts = (2, 1, 2, 1)  # of two ranks with two stages each, or of four
    stages = tuple(
        PlannedStage(stage.first, stage.stop, count) for stage, count in zip(even_stages(4, 4), counts, strict=True)
    )
    job = PipelineJob(network="lstm_lm", stages=stages, schedule=schedule, make_optimizer=sgd)
    opened = open_ranks(job, model, steps[0])
    ahead = [list(rank.receives(steps[0])) for rank in opened.ranks]
    waited: list[list[Request]] = [[] for _ in opened.ranks]

    def noting(number: int, run: RankRun) -> RankRun:
        answer: Tensor | None = None
        while True:
            try:
                request = run.send(answer)
            except StopIteration:
                return
            if isinstance(request, ReceiveFrom):
                waited[number].append(request)
            answer = yield request

    drive([noting(number, rank.run(steps[0])) for number, rank in enumerate(opened.ranks)])
    assert ahead == waited
    assert all(ahead)


def test_recomputing_repeats_dropout_and_leaves_running_statistics_alone() -> None:
    model, steps = model_and_steps("resnet20", num_steps=2, num_micro_batches=2)
    runs: list[dict[str, Tensor]] = []
    for schedule in (GPipe(), GPipe(recompute=True)):
        opened = open_ranks(job_of("resnet20", 2, schedule), model, steps[0])
        drive([rank.run(steps[0]) for rank in opened.ranks])
        buffers = {
            f"{worker.stage.stage}.{name}": value
            for worker in opened.workers
            for name, value in worker.stage.module.named_buffers()
        }
        runs.append(buffers | opened.parameters())
    assert all(torch.equal(runs[0][name], value) for name, value in runs[1].items())


def test_more_stages_than_layers_and_more_replicas_than_samples_are_refused() -> None:
    model, steps = model_and_steps("lstm_lm", num_steps=1, num_micro_batches=4)
    five = (*even_stages(4, 4), PlannedStage(4, 5))
    with pytest.raises(ParallelismError, match="5 stages for 4 layers"):
        open_ranks(PipelineJob(network="lstm_lm", stages=five, schedule=GPipe(), make_optimizer=sgd), model, steps[0])
    two = (PlannedStage(0, 2, 4), PlannedStage(2, 4))
    with pytest.raises(ParallelismError, match="4 replicas for a micro-batch of 3"):
        open_ranks(PipelineJob(network="lstm_lm", stages=two, schedule=GPipe(), make_optimizer=sgd), model, steps[0])
    with pytest.raises(ParallelismError, match="3 stages, 2 per rank"):
        open_ranks(job_of("lstm_lm", 3, Interleaved(2)), model, steps[0])
    uneven = tuple(PlannedStage(index, index + 1, 1 + (index == 3)) for index in range(4))
    job = PipelineJob(network="lstm_lm", stages=uneven, schedule=Interleaved(2), make_optimizer=sgd)
    with pytest.raises(ParallelismError, match="share a rank"):
        job.layout()


def test_a_batch_smaller_than_the_micro_batches_is_refused() -> None:
    batch = Batch((torch.zeros(4, 1),), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ParallelismError, match="a batch of 4 samples has no 8 micro-batches; use at most 4"):
        micro_batches_of(batch, 8)
    with pytest.raises(ParallelismError, match="does not divide into 3 micro-batches; use a batch of 3"):
        micro_batches_of(batch, 3)


def test_a_tied_weight_is_refused_where_its_stages_would_differ_in_versions() -> None:
    model, steps = model_and_steps("bert_tiny", num_steps=1, num_micro_batches=1)
    with pytest.raises(ParallelismError, match=r"word_embeddings.weight is one weight in two stages"):
        train_lockstep(job_of("bert_tiny", 2, PipeDream()), model, steps)
