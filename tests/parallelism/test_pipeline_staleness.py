"""PipeDream and PipeMare against loops that follow their staleness one mini-batch after the other."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from one_device import NUM_LINKS, distance, even_stages, loss_of, model_and_steps, sgd, train_lockstep
from torch import Tensor, nn
from torch.func import functional_call

from baselines.parallelism.api import Action, Backward, Forward, Update
from baselines.parallelism.pipedream import PipeDream
from baselines.parallelism.pipemare import PipeMare
from baselines.strategy import parse_strategy
from harness.parallel.pipeline import PipelineJob, open_ranks, run_lockstep
from harness.parallel.stage_worker import StageWorker
from harness.parallel.stages import MicroBatch, StageModule, cross_entropy_part
from models.chain import chain_of, names_of_parameters

pytestmark = pytest.mark.slow

Weights = dict[str, Tensor]
NUM_STEPS = 12  # beyond the longest delay, seven micro-batches, and the steps that flush
# In float64: steps of a small ResNet amplify rounding ten-thousandfold, and float32 would show nothing else.
CLOSE = 1e-9


class _Loss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, micro_batch: MicroBatch) -> Tensor:
        return loss_of(self.model, micro_batch)


def stage_of_each(network: str, model: nn.Module, num_stages: int) -> dict[str, int]:
    names = names_of_parameters(model, chain_of(network, model))
    stages = even_stages(NUM_LINKS[network], num_stages)
    return {
        name: index
        for index, stage in enumerate(stages)
        for own in names[stage.first : stage.stop]
        for name in own.values()
    }


def gradients(model: nn.Module, forward: Weights, backward: Weights | None, micro_batch: MicroBatch) -> Weights:
    """The loss's gradients with `forward` weights; with `backward` weights put in their place in between."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in forward.items()}
    loss = functional_call(_Loss(model), {f"model.{name}": leaf for name, leaf in leaves.items()}, (micro_batch,))
    for name, value in (backward or {}).items():
        leaves[name].data.copy_(value)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def start_of(model: nn.Module) -> Weights:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def simulate_pipedream(
    network: str, model: nn.Module, stream: Sequence[MicroBatch], num_stages: int, *, vertical: bool
) -> Weights:
    stage_of = stage_of_each(network, model, num_stages)
    history, momentum = [start_of(model)], dict[str, Tensor]()
    for index, micro_batch in enumerate(stream):
        depth = {name: num_stages if vertical else num_stages - stage for name, stage in stage_of.items()}
        stale = {name: history[max(0, index + 1 - depth[name])][name] for name in stage_of}
        found = gradients(model, stale, None, micro_batch)
        momentum = {name: value + 0.9 * momentum.get(name, torch.zeros(())) for name, value in found.items()}
        history.append({name: value - 0.05 * momentum[name] for name, value in history[-1].items()})
    return history[-1]


def simulate_pipemare(
    network: str, model: nn.Module, steps: Sequence[Sequence[MicroBatch]], num_stages: int, schedule: PipeMare
) -> Weights:
    stage_of = stage_of_each(network, model, num_stages)
    per_step, flushed = schedule.micro_batches_per_step, schedule.synchronous_steps
    delay = {name: 2 * (num_stages - (stage + 1)) + 1 for name, stage in stage_of.items()}  # in micro-batches
    history, momentum, drift = [start_of(model)], dict[str, Tensor](), dict[str, Tensor]()
    for step, micro_batches in enumerate(steps):
        total: Weights = {}
        for place, micro_batch in enumerate(micro_batches):
            since = (step - flushed) * per_step + place
            forward, backward = {}, {}
            for name in stage_of:
                version = step if step < flushed else flushed + max(0, since - delay[name]) // per_step
                forward[name] = history[version][name]
                newest, late = history[step][name], delay[name] / per_step
                backward[name] = newest - late * drift[name] if name in drift and step >= flushed else newest
            for name, value in gradients(model, forward, backward, micro_batch).items():
                total[name] = total[name] + value if name in total else value
        newest = {}
        for name, value in total.items():
            late = delay[name] / per_step
            power = 1 - min((step - flushed) / schedule.rate_steps, 1.0) if schedule.rate_steps else 0.0
            rate = 0.05 * (max(late, 1.0) ** -power if step >= flushed else 1.0)
            momentum[name] = value + 0.9 * momentum.get(name, torch.zeros(()))
            newest[name] = history[-1][name] - rate * momentum[name]
            if schedule.decay:
                decay = schedule.decay ** (1 / late)
                moved = (1 - decay) * (newest[name] - history[-1][name])
                drift[name] = decay * drift[name] + moved if name in drift else moved
        history.append(newest)
    return history[-1]


def job_of(network: str, num_stages: int, schedule: PipeDream | PipeMare) -> PipelineJob:
    stages = even_stages(NUM_LINKS[network], num_stages)
    return PipelineJob(network=network, stages=stages, schedule=schedule, make_optimizer=sgd)


@pytest.mark.parametrize(
    ("network", "num_stages", "vertical"),
    [("lstm_lm", 2, True), ("lstm_lm", 4, False), ("lstm_lm", 4, True), ("resnet20", 3, False)],
)
def test_pipedream_equals_a_simulation_of_its_staleness(network: str, num_stages: int, vertical: bool) -> None:
    model, steps = model_and_steps(network, num_steps=NUM_STEPS, num_micro_batches=1, batch_size=8, double=True)
    wanted = simulate_pipedream(
        network, copy.deepcopy(model), [step[0] for step in steps], num_stages, vertical=vertical
    )
    found, losses = train_lockstep(job_of(network, num_stages, PipeDream(vertical_sync=vertical)), model, steps)
    assert distance(found, wanted) < CLOSE
    assert len(losses) == NUM_STEPS


def test_pipedream_without_stashing_is_another_run() -> None:
    model, steps = model_and_steps("resnet20", num_steps=6, num_micro_batches=1, batch_size=4, double=True)
    right, _ = train_lockstep(job_of("resnet20", 4, PipeDream()), model, steps)
    wrong, _ = train_lockstep(job_of("resnet20", 4, PipeDream(stash=False)), model, steps)
    synced, _ = train_lockstep(job_of("resnet20", 4, PipeDream(vertical_sync=True)), model, steps)
    assert distance(wrong, right) > 1e-3
    assert distance(synced, right) > 1e-3


@pytest.mark.parametrize(
    ("network", "num_stages", "schedule"),
    [
        ("lstm_lm", 4, PipeMare(1, decay=0.0)),
        ("lstm_lm", 2, PipeMare(2)),
        ("lstm_lm", 4, PipeMare(2, rate_steps=5, synchronous_steps=2)),
        ("resnet20", 3, PipeMare(2, rate_steps=5, synchronous_steps=2)),
    ],
)
def test_pipemare_equals_a_simulation_of_its_staleness(network: str, num_stages: int, schedule: PipeMare) -> None:
    per_step = schedule.micro_batches_per_step
    model, steps = model_and_steps(network, num_steps=NUM_STEPS, num_micro_batches=per_step, batch_size=8, double=True)
    wanted = simulate_pipemare(network, copy.deepcopy(model), steps, num_stages, schedule)
    found, _ = train_lockstep(job_of(network, num_stages, schedule), model, steps)
    assert distance(found, wanted) < CLOSE


def test_pipemare_scales_the_rates_of_a_rule_that_sets_them() -> None:
    """Eight times a rate by linear scaling is the rate eight times as large, and both are scaled by the delay."""
    model, steps = model_and_steps("lstm_lm", num_steps=NUM_STEPS, num_micro_batches=1, batch_size=4)
    found = []
    for text in ("sgd(lr=0.01)+linear-scaling(times=8)", "sgd(lr=0.08)"):
        job = replace(job_of("lstm_lm", 4, PipeMare(1)), make_optimizer=parse_strategy(text).optimizer.build)
        found.append(train_lockstep(job, copy.deepcopy(model), steps)[0])
    assert distance(*found) == 0.0


def test_weights_exchanged_before_backward_give_the_products_of_the_new_ones() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
    names = {name: name for name, _ in module.named_parameters()}
    stage = StageModule(
        stage=0, module=copy.deepcopy(module), names=names, tied={}, output_shape=(2,), loss=cross_entropy_part
    )
    instructions = [Forward(0, 0, 0), Forward(0, 1, 0), Backward(0, 0, 0), Update(0, 1, 1), Backward(0, 1, 1)]
    worker = StageWorker(stage, instructions, PipeDream(stash=False), sgd, shapes=((2,), (1,)), seed=0)
    x, gradient = torch.randn(5, 3), torch.randn(5, 2)
    for action in instructions[:2]:
        assert isinstance(action, Forward)
        worker.forward(action, x, None)
    worker.backward(Backward(0, 0, 0), gradient)
    worker.update(Update(0, 1, 1))
    returned = worker.backward(Backward(0, 1, 1), gradient)
    first, second = (worker.parameters()[name] for name in ("0.weight", "2.weight"))  # after the update
    old_hidden = torch.relu(x @ module[0].weight.T).detach()
    back = (gradient @ second) * (old_hidden > 0)
    found = worker.gradients()
    # Rounding of float32 products of a handful of terms.
    torch.testing.assert_close(returned, back @ first, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found["2.weight"], gradient.T @ old_hidden, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found["0.weight"], back.T @ x, rtol=1e-5, atol=1e-6)


def test_versions_and_activations_that_exist_are_those_that_the_schedule_says() -> None:
    model, steps = model_and_steps("lstm_lm", num_steps=9, num_micro_batches=1, batch_size=4)
    stream = [step[0] for step in steps]
    opened = open_ranks(job_of("lstm_lm", 4, PipeDream()), model, stream)
    peaks = [0] * 4
    held = [0] * 4

    class Watching:
        def segment(self, action: Action) -> "Watching":
            return self

        def __enter__(self) -> None:
            return None

        def __exit__(self, *error: object) -> None:
            for index, worker in enumerate(opened.workers):
                peaks[index] = max(peaks[index], worker.num_versions)
                held[index] = max(held[index], worker.num_in_flight)

    for rank in opened.ranks:
        rank._turns = Watching()
    run_lockstep(opened, stream)
    assert peaks == [4, 3, 2, 1]
    assert held == [PipeDream().peak_stash(rank, 4, 9) for rank in range(4)]
