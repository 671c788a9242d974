"""Lockstep itself: bytes, update points, local statistics, and defects that it must notice."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from tiny_models import awkward, loss_at, random_arrivals
from torch import nn

from baselines.api import (
    Aggregate,
    Aggregated,
    AllReduce,
    Broadcast,
    ExchangeRun,
    Gather,
    Packed,
    Segment,
    Transfer,
)
from baselines.exchange.ring import Ring
from baselines.packing.tensor_fusion import TensorFusion
from baselines.packing.unfused import Unfused
from baselines.strategy import Strategy, parse_strategy
from harness.engine.dispatch import PlanError
from harness.lockstep.collectives import DisagreementError, Room, perform
from harness.lockstep.ranks import Lockstep, replicas

NUM_ELEMENTS = sum(p.numel() for p in awkward().parameters())


def trained(text: str | Strategy, world: int = 2, num_steps: int = 4) -> Lockstep:
    ranks = Lockstep(replicas(awkward(), world), parse_strategy(text) if isinstance(text, str) else text)
    for step in range(num_steps):
        ranks.step(loss_at(step))
    return ranks


@pytest.mark.parametrize("optimizer", ["sgd", "sgd(weight_decay=0.1)", "adam"])
@pytest.mark.parametrize("packing", ["unfused", "fixed-buckets", "tensor-fusion"])
def test_updating_parameter_by_parameter_equals_updating_after_all(packing: str, optimizer: str) -> None:
    after_all = trained(f"{packing}+{optimizer}+after-all").models[0]
    at_pre_hook = trained(f"{packing}+{optimizer}+at-pre-hook").models[0]
    for one, other in zip(after_all.parameters(), at_pre_hook.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("text", "share", "rounds"), [("unfused", 1.5, 6), ("unfused+half", 0.75, 6), ("unfused+all-gather", 3.0, 3)]
)
def test_bytes_and_rounds_are_those_of_the_algorithm(text: str, share: float, rounds: int) -> None:
    ranks = trained(text, world=4, num_steps=2)
    assert ranks.traffic.wire_bytes["gradient"] == pytest.approx(2 * share * 4 * NUM_ELEMENTS)
    layout = 2  # its broadcast among four, once
    assert ranks.traffic.num_rounds == rounds * ranks.traffic.num_messages + layout


def test_a_single_rank_sends_nothing() -> None:
    assert sum(trained("tensor-fusion", world=1).traffic.wire_bytes.values()) == 0


def test_messages_are_those_of_the_packing() -> None:
    num_tensors = len(list(awkward().parameters()))
    assert trained("unfused", num_steps=2).traffic.num_messages == 2 * num_tensors
    assert trained("single-bucket", num_steps=2).traffic.num_messages == 2
    assert trained("tensor-fusion(threshold_bytes=0)", num_steps=2).traffic.num_messages == 2 * num_tensors
    fused = trained("tensor-fusion", num_steps=2).traffic
    assert 2 <= fused.num_messages < 2 * num_tensors
    assert fused.wire_bytes["control"] > 0


def test_after_the_first_step_parameters_are_laid_out_as_they_became_ready_on_rank_0() -> None:
    ranks = Lockstep(replicas(awkward(), 2), parse_strategy("fixed-buckets"))
    arrivals = random_arrivals(ranks, seed=3)
    ranks.step(loss_at(0), arrivals=arrivals)
    assert [segment.name for segment in ranks.segments] == [name for rank, name in arrivals if rank == 0]


def test_normalisation_statistics_stay_local_to_a_rank() -> None:
    one, other = (model.get_buffer("norm.running_mean") for model in trained("unfused").models)
    assert not torch.equal(one, other)


def test_losses_are_those_before_the_update_in_order_of_rank() -> None:
    model = awkward()
    ranks = Lockstep(replicas(model, 2), parse_strategy("unfused"))
    expected = [float(loss_at(0)(rank, awkward()).detach()) for rank in range(2)]
    assert [float(loss) for loss in ranks.step(loss_at(0))] == expected


def test_replicas_that_differ_at_the_start_are_refused() -> None:
    with pytest.raises(ValueError, match="rank 1 differs"):
        Lockstep([awkward(0), awkward(1)], parse_strategy("unfused"))


@dataclasses.dataclass(frozen=True, slots=True)
class Forgetful(Unfused):
    """Loses the last tensor."""

    def pack(self, ready: Sequence[Segment]) -> Packed:
        return Packed(tuple((segment,) for segment in ready[:-1]))


@dataclasses.dataclass(frozen=True, slots=True)
class Idle(TensorFusion):
    """Never makes a message."""

    def pack(self, ready: Sequence[Segment]) -> Packed:
        return Packed((), look_again_s=0.001)


@dataclasses.dataclass(frozen=True, slots=True)
class Partial(Ring):
    """Rank 0 leaves the last step out."""

    def run(self, aggregate: Aggregate, rank: int, world: int) -> ExchangeRun:
        (tensor,) = aggregate.payload
        if rank > 0:
            yield AllReduce(tensor)
        return Aggregated(((tensor,),))


@pytest.mark.parametrize("packing", [Forgetful(), Idle()])
def test_a_packing_that_loses_elements_is_named(packing: Forgetful | Idle) -> None:
    strategy = dataclasses.replace(parse_strategy("unfused"), packing=packing)
    with pytest.raises(PlanError):
        trained(strategy)


def test_an_exchange_in_which_ranks_do_different_things_is_noticed() -> None:
    strategy = dataclasses.replace(parse_strategy("unfused"), exchange=Partial())
    with pytest.raises(DisagreementError, match="some ranks are done"):
        trained(strategy)


def test_primitives_of_different_kind_or_size_are_noticed() -> None:
    with pytest.raises(DisagreementError, match="AllReduce"):
        perform([AllReduce(torch.ones(2)), Broadcast(torch.ones(2))])
    with pytest.raises(DisagreementError, match="3"):
        perform([AllReduce(torch.ones(2)), AllReduce(torch.ones(3))])


def test_primitives_do_what_they_say() -> None:
    ranks = [torch.tensor([float(rank)]) for rank in range(3)]
    into = [torch.zeros(1) for _ in ranks]
    perform([Transfer(ranks[rank], (rank + 1) % 3, into[rank], (rank - 1) % 3) for rank in range(3)])
    assert [float(place) for place in into] == [2.0, 0.0, 1.0]
    assert [len(parts) for parts in perform([Gather(tensor) for tensor in ranks])] == [3, 0, 0]
    assert [float(total) for (total,) in perform([AllReduce(tensor) for tensor in ranks])] == [3.0, 3.0, 3.0]


def test_a_rank_that_asks_twice_is_noticed() -> None:
    seat = Room(2).seat(0)
    seat.start(AllReduce(torch.ones(1)), 0, lambda answer: None)
    with pytest.raises(DisagreementError, match="asks twice"):
        seat.start(AllReduce(torch.ones(1)), 0, lambda answer: None)


def test_frozen_parameters_are_not_sent() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 6))
    model[0].requires_grad_(False)
    ranks = Lockstep(replicas(model, 2), parse_strategy("unfused"))
    ranks.step(loss_at(0))
    assert {segment.name for segment in ranks.segments} == {"1.weight", "1.bias"}
