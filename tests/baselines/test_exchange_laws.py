"""Laws of the exchanges that are written out in rounds: bytes and rounds exactly, sums, who serves what."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from baselines.api import Aggregate, AllToAll, Exchange, How, Payload, Primitive, Scope, Transfer
from baselines.exchange.hierarchical import Hierarchical
from baselines.exchange.parameter_server import ParameterServer
from baselines.exchange.ring import Ring
from baselines.exchange.tree import Tree
from baselines.optimizer.sgd import Sgd
from baselines.strategy import parse_strategy, why_illegal
from baselines.text import TextError
from harness.engine.traffic import sent_by
from harness.lockstep.collectives import DisagreementError, perform

SEEDS = st.integers(0, 2**31 - 1)


@dataclasses.dataclass
class Driven:
    """Each rank's result, the bytes each rank sent, and the rounds by kind of primitive."""

    totals: list[Tensor]
    sent: list[float]
    rounds: Counter[str]


def drive(exchange: Exchange, tensors: Sequence[Tensor]) -> Driven:
    """One sum, `tensors[r]` on rank r."""
    world = len(tensors)
    runs = [exchange.run(Aggregate((t.clone(),), How.SUM, "test"), rank, world) for rank, t in enumerate(tensors)]
    driven = Driven([], [0.0] * world, Counter())
    answers: list[Payload | None] = [None] * world
    while not driven.totals:
        asked: list[Primitive] = []
        for run, answer in zip(runs, answers, strict=True):
            try:
                asked.append(run.send(answer))  # type: ignore[arg-type]
            except StopIteration as end:
                driven.totals.append(end.value.parts[0][0])
        if asked:
            driven.rounds[type(asked[0]).__name__] += 1
            driven.sent = [n + sent_by(p, world).payload_bytes for n, p in zip(driven.sent, asked, strict=True)]
            answers = list(perform(asked))
    return driven


def whole_numbers(world: int, numel: int, seed: int = 0) -> list[Tensor]:
    """Summands that no order of summation rounds."""
    dice = torch.Generator().manual_seed(seed)
    return [torch.randint(-1000, 1000, (numel,), generator=dice).float() for _ in range(world)]


def assert_sums(totals: Sequence[Tensor], summands: Sequence[Tensor]) -> None:
    for total in totals:
        assert torch.equal(total, torch.stack(list(summands)).sum(0))


@given(world=st.integers(1, 17), numel=st.integers(1, 9), seed=SEEDS)
def test_a_tree_takes_twice_log_p_rounds_and_p_less_one_messages_each_way(world: int, numel: int, seed: int) -> None:
    tensors = whole_numbers(world, numel, seed)
    driven = drive(Tree(), tensors)
    depth = (world - 1).bit_length()
    assert driven.rounds == Counter({"Transfer": 2 * depth} if depth else {})
    assert sum(driven.sent) == 2 * (world - 1) * 4 * numel
    assert max(driven.sent) <= max(1, depth) * 4 * numel
    assert_sums(driven.totals, tensors)


@given(hosts=st.integers(1, 5), size=st.integers(1, 4), chunk=st.integers(1, 5), seed=SEEDS)
def test_hierarchical_bytes_and_rounds_are_those_of_its_page(hosts: int, size: int, chunk: int, seed: int) -> None:
    numel, world = hosts * chunk, hosts * size
    tensors = whole_numbers(world, numel, seed)
    driven = drive(Hierarchical(ranks_per_host=size), tensors)
    assert driven.rounds["Transfer"] == 2 * (size - 1) + 2 * (hosts - 1)
    between = 2 * (hosts - 1) / hosts * 4 * numel
    for rank, sent in enumerate(driven.sent):
        assert sent == pytest.approx(between + (size - 1) * 4 * numel if rank % size == 0 else 4 * numel)
    assert_sums(driven.totals, tensors)


@given(world=st.integers(1, 6), numel=st.integers(1, 30), seed=SEEDS)
def test_hierarchical_with_one_rank_a_host_is_the_ring(world: int, numel: int, seed: int) -> None:
    dice = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(numel, generator=dice) for _ in range(world)]
    one, other = drive(Hierarchical(), tensors), drive(Ring(), tensors)
    assert (one.sent, one.rounds) == (other.sent, other.rounds)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one.totals, other.totals, strict=True))


@given(numel=st.integers(0, 200), world=st.integers(1, 12), servers=st.integers(0, 11))
def test_shards_cover_a_message_once_and_are_balanced_within_one_element(numel: int, world: int, servers: int) -> None:
    if servers >= world:
        return
    sizes = ParameterServer(servers=servers).shard_sizes(numel, world)
    serving = sizes[world - servers :] if servers else sizes
    assert sum(sizes) == sum(serving) == numel
    assert len(sizes) == world
    assert max(serving) - min(serving) <= 1


@given(world=st.integers(1, 6), numel=st.integers(1, 30), seed=SEEDS)
def test_a_colocated_server_sends_the_others_parts_and_serves_its_own(world: int, numel: int, seed: int) -> None:
    server, tensors = ParameterServer(), whole_numbers(world, numel, seed)
    driven = drive(server, tensors)
    own = server.shard_sizes(numel, world)
    assert driven.rounds == Counter({"AllToAll": 2})
    assert driven.sent == [4.0 * (numel - own[rank] + (world - 1) * own[rank]) for rank in range(world)]
    assert_sums(driven.totals, tensors)


@given(workers=st.integers(1, 5), servers=st.integers(1, 4), numel=st.integers(1, 30), seed=SEEDS)
def test_dedicated_servers_sum_over_workers_alone(workers: int, servers: int, numel: int, seed: int) -> None:
    server, tensors = ParameterServer(servers=servers), whole_numbers(workers + servers, numel, seed)
    driven = drive(server, tensors)
    own = server.shard_sizes(numel, workers + servers)
    assert driven.rounds == Counter({"AllToAll": 2})
    assert driven.sent == [4.0 * numel] * workers + [4.0 * workers * size for size in own[workers:]]
    assert_sums(driven.totals[:workers], tensors[:workers])


@given(seed=SEEDS, world=st.integers(2, 5))
def test_servers_sum_in_order_of_rank(seed: int, world: int) -> None:
    """Bit for bit the sum that the all-gather exchange makes on every rank."""
    dice = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(23, generator=dice) for _ in range(world)]
    expected = tensors[0].clone()
    for tensor in tensors[1:]:
        expected += tensor
    assert all(torch.equal(total, expected) for total in drive(ParameterServer(), tensors).totals)


@pytest.mark.parametrize(
    ("exchange", "world", "message"),
    [
        (Hierarchical(ranks_per_host=2), 3, "ranks_per_host=2 does not divide 3 ranks"),
        (ParameterServer(servers=2), 2, "servers=2 of 2 ranks leaves no worker; use at most 1"),
    ],
)
def test_a_world_that_does_not_suit_is_refused(exchange: Exchange, world: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drive(exchange, whole_numbers(world, 4))


def test_what_one_sends_and_nobody_receives_is_noticed() -> None:
    with pytest.raises(DisagreementError, match="received"):
        perform([Transfer(torch.ones(2), 1), Transfer()])
    with pytest.raises(DisagreementError, match="received"):
        perform([Transfer(torch.ones(2), 1), Transfer(into=torch.ones(2), source=1)])
    with pytest.raises(DisagreementError, match=r"sends 2 .* receives 3"):
        perform([Transfer(torch.ones(2), 1), Transfer(into=torch.ones(3), source=0)])
    with pytest.raises(DisagreementError, match="different primitives"):
        perform([Transfer(), AllToAll((torch.ones(0),) * 2, (0, 0))])


def test_parts_that_are_not_awaited_are_noticed() -> None:
    none = torch.ones(0)
    with pytest.raises(DisagreementError, match=r"sends 2 .* receives 0"):
        perform([AllToAll((none, torch.ones(2)), (0, 0)), AllToAll((none, none), (0, 0))])
    with pytest.raises(DisagreementError, match="empty ones for itself"):
        perform([AllToAll((torch.ones(1), none), (1, 0)), AllToAll((none, none), (0, 0))])


def test_parts_arrive_where_they_are_sent() -> None:
    asked = [
        AllToAll(
            tuple(torch.full((0 if to == rank else 1 + to,), float(rank)) for to in range(3)),
            tuple(0 if source == rank else 1 + rank for source in range(3)),
        )
        for rank in range(3)
    ]
    for rank, answer in enumerate(perform(asked)):
        assert [part.tolist() for part in answer] == [
            [] if source == rank else [float(source)] * (1 + rank) for source in range(3)
        ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parameter-server(update='server')+half", "use update='worker' or uncompressed"),
        ("parameter-server(update='server')+tensor-fusion", "changes messages from step to step"),
        ("parameter-server(servers=-1)", "servers is -1"),
        ("parameter-server(update='both')", "use 'worker' or 'server'"),
        ("hierarchical(ranks_per_host=0)", "ranks_per_host is 0"),
        ("topk+parameter-server", "use all-reduce or all-gather"),
        ("topk+tree", "use all-reduce or all-gather"),
        ("topk+hierarchical", "use all-reduce or all-gather"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        parse_strategy(text)


class LayerWise(Sgd):
    @property
    def scope(self) -> Scope:
        return Scope.TENSOR


def test_an_optimizer_that_needs_whole_tensors_does_not_run_on_servers() -> None:
    strategy = parse_strategy("parameter-server(update='server')")
    assert why_illegal(strategy) is None
    assert "whole tensors" in (why_illegal(dataclasses.replace(strategy, optimizer=LayerWise())) or "")
