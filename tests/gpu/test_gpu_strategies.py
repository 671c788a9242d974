"""Strategies on GPU tensors beside the same ones on CPU tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from clocked_link import LINK, ClockedLink, Driven, virtual_world
from test_lockstep_contract import compressions, with_what_it_needs
from tiny_models import awkward, inputs_of
from torch import Tensor, nn
from torch.nn import functional

from baselines.strategy import parse_strategy
from harness.engine.engine import Engine
from harness.engine.transport import ProcessGroupTransport
from harness.lockstep.ranks import Lockstep, replicas
from harness.trace import Recorder

NUM_STEPS = 3
BUCKETS = "fixed-buckets(bucket_bytes=200, first_bucket_bytes=100)"


def given_gradients(step: int) -> Callable[[int, nn.Module], Tensor]:
    """A loss whose gradients are the same numbers on every device."""

    def loss(rank: int, model: nn.Module) -> Tensor:
        dice = torch.Generator().manual_seed(1000 * step + rank)
        return sum(
            ((p * torch.randn(p.shape, generator=dice).to(p.device)).sum() for p in model.parameters()),
            torch.zeros((), device=next(model.parameters()).device),
        )

    return loss


def trained(compression: str, device: str) -> Lockstep:
    strategy = with_what_it_needs(compression)
    assert strategy is not None, compression
    ranks = Lockstep(replicas(awkward().to(device), 3), strategy, seed=7)
    for step in range(NUM_STEPS):
        ranks.step(given_gradients(step))
    return ranks


@pytest.mark.parametrize("compression", [text for text in compressions() if with_what_it_needs(text)])
def test_the_same_gradients_give_the_same_weights_and_bytes(compression: str) -> None:
    """Sums are taken in another order on a GPU, so norms and means differ in their last bits."""
    here, there = trained(compression, "cpu"), trained(compression, "cuda")
    sent_there, sent_here = there.traffic.wire_bytes, here.traffic.wire_bytes
    assert all(sent_there[tag] == sent_here[tag] for tag in ("gradient", "control"))  # NCCL has no frames of TCP
    first, *others = there.models
    for name, parameter in first.named_parameters():
        assert parameter.is_cuda
        for other in others:
            assert torch.equal(other.get_parameter(name), parameter), f"{name} differs over ranks"
        expected = here.models[0].get_parameter(name)
        torch.testing.assert_close(parameter.cpu(), expected, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def loss_on_gpu(step: int, model: nn.Module) -> Tensor:
    batch = inputs_of(step, 0).cuda()
    return functional.mse_loss(model(batch), batch)


@pytest.mark.parametrize(
    "text",
    [
        BUCKETS,
        "tensor-fusion+half",
        "single-bucket+topk(density=0.2)+error-feedback",
        "unfused+all-gather",
        "unfused+powersgd(rank=1)+error-feedback",
        "slices(slice_elements=8)+p3",
    ],
)
def test_the_engine_trains_among_virtual_peers_as_equal_ranks_do(text: str) -> None:
    strategy, model, link = parse_strategy(text), awkward().cuda(), ClockedLink()
    exact = Lockstep(replicas(awkward().cuda(), 2), strategy, seed=7)
    with virtual_world(Driven(link), LINK.among(2)):
        engine = Engine(model, strategy, ProcessGroupTransport.of(strategy), recorder=Recorder(), seed=7)
        train(engine, model, lambda step: exact.step(lambda rank, own: loss_on_gpu(step, own)))
        engine.close()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, exact.models[0].get_parameter(name)), name
    assert engine.traffic.wire_bytes["gradient"] == pytest.approx(exact.traffic.wire_bytes["gradient"])
    assert link.now_s > 0


@pytest.mark.parametrize("text", [BUCKETS, "unfused", "single-bucket"])
def test_one_rank_over_nccl_trains_as_the_model_alone(text: str, one_rank: None) -> None:
    strategy, model = parse_strategy(text), awkward().cuda()
    alone = copy.deepcopy(model)
    optimizer = strategy.optimizer.build(alone.parameters())

    def step_alone(step: int) -> None:
        loss_on_gpu(step, alone).backward()
        alone.unused.grad = torch.zeros_like(alone.unused)
        optimizer.step()
        optimizer.zero_grad()

    engine = Engine(model, strategy, ProcessGroupTransport.of(strategy), recorder=Recorder(), seed=7)
    train(engine, model, step_alone)
    engine.close()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, alone.get_parameter(name)), name


def train(engine: Engine, model: nn.Module, beside: Callable[[int], object]) -> None:
    optimizer = engine.strategy.optimizer.build(model.parameters())
    for step in range(NUM_STEPS):
        beside(step)
        engine.begin_step()
        loss_on_gpu(step, model).backward()
        engine.end_backward()
        engine.wait()
        optimizer.step()
        optimizer.zero_grad()
