"""Codes to servers and codes back: nothing is lost over workers and servers, bytes are as documented."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
import torch
from driven_ranks import Ranks, parameters_of
from torch import Tensor

from baselines.api import Card, Compressor, Context, Exchange, How, Message, Reduced, Reduction, Scope, Slot, State
from baselines.codec import gathered
from baselines.compression.double_squeeze import DoubleSqueeze
from baselines.compression.error_feedback import ErrorFeedback
from baselines.compression.half import Half
from baselines.compression.natural import Natural
from baselines.compression.onebit import OneBit
from baselines.compression.qsgd import Qsgd
from baselines.compression.sbc import Sbc
from baselines.compression.terngrad import TernGrad
from baselines.compression.topk import TopK
from baselines.compression.uncompressed import Uncompressed
from baselines.exchange.all_reduce import RingAllReduce
from baselines.exchange.parameter_server import ParameterServer
from baselines.strategy import parse_strategy
from baselines.text import TextError
from harness.lockstep.collectives import perform

SHAPES = ((7, 3), (5,), (2, 2, 3), (1, 4), (), (11, 2))
EXCHANGES = (RingAllReduce(), ParameterServer(), ParameterServer(servers=1), ParameterServer(servers=2))
PLACES = [
    (exchange, world)
    for exchange, world in itertools.product(EXCHANGES, (2, 3, 4, 5))
    if not (isinstance(exchange, ParameterServer) and exchange.servers >= world)
]
CODES = (TopK(density=0.1), OneBit(), OneBit(per="message"), Qsgd(), Qsgd(bits=8, coding="elias"), Sbc(density=0.1))
EVERYWHERE = pytest.mark.parametrize(
    ("exchange", "world"), PLACES, ids=lambda value: f"{value.card.name}" if hasattr(value, "card") else str(value)
)


def random_grads(ranks: Ranks, seed: int) -> list[Tensor]:
    """One a worker, over several orders of magnitude."""
    dice = torch.Generator().manual_seed(seed)
    shape = (ranks.num_workers, ranks.numel)
    return list(torch.randn(shape, generator=dice) * 10.0 ** (3 * torch.rand(shape, generator=dice) - 2))


def squeezing(codec: Compressor, world: int, exchange: Exchange) -> Ranks:
    return Ranks(ErrorFeedback(DoubleSqueeze(codec)), world, parameters_of(SHAPES), exchange=exchange)


@EVERYWHERE
def test_a_code_that_loses_nothing_gives_the_plain_mean(exchange: Exchange, world: int) -> None:
    """Bit for bit: servers add the workers' parts in order of rank, from a residual of zeros."""
    ranks = squeezing(TopK(density=1.0), world, exchange)
    for step in range(3):
        grads = random_grads(ranks, step)
        expected = torch.stack([grad / ranks.num_workers for grad in grads])
        total = expected[0]
        for part in expected[1:]:
            total = total + part
        for reduced in ranks.reduce(grads)[: ranks.num_workers]:
            assert torch.equal(reduced.value, total)
    for rank, key in itertools.product(range(world), ("residual", "server_residual")):
        assert not ranks.kept(rank, key).any()


@EVERYWHERE
@pytest.mark.parametrize("codec", CODES, ids=lambda codec: codec.card.name)
def test_applied_and_all_residuals_are_the_sum_of_mean_gradients(
    codec: Compressor, exchange: Exchange, world: int
) -> None:
    """To 1e-6 of the largest Σ|g| there is: every step adds and subtracts in float32 a few times."""
    ranks = squeezing(codec, world, exchange)
    given, magnitude, applied = torch.zeros(3, ranks.numel, dtype=torch.float64)
    for step in range(3):
        grads = random_grads(ranks, step)
        given += torch.stack(grads).double().mean(0)
        magnitude += torch.stack(grads).double().abs().mean(0)
        first, *others = (reduced.value for reduced in ranks.reduce(grads)[: ranks.num_workers])
        assert all(torch.equal(first, other) for other in others)
        applied += first
    left = sum(ranks.kept(rank, "residual") + ranks.kept(rank, "server_residual") for rank in range(world))
    assert isinstance(left, Tensor)
    assert left.abs().max() > 0  # something was lost, so that there was something to keep
    assert bool(((applied + left - given).abs() <= 1e-6 * magnitude.amax()).all())


@EVERYWHERE
def test_a_server_keeps_the_residual_of_its_rows_alone(exchange: Exchange, world: int) -> None:
    ranks = squeezing(TopK(density=0.1), world, exchange)
    ranks.reduce(random_grads(ranks, 0))
    servers = range(ranks.num_workers if ranks.num_workers < world else 0, world)
    for parameter in ranks.parameters:
        num_rows = parameter.shape[0] if parameter.shape else 1
        owner = torch.tensor([row * len(servers) // num_rows for row in range(num_rows)])
        owner = servers.start + owner.repeat_interleave(parameter.numel // num_rows)
        for rank in range(world):
            residual = ranks.states[rank][parameter.name]["server_residual"]
            assert not residual[owner != rank].any()
    if ranks.num_workers > 1:  # the top-k of one worker's top-k is all of it
        assert any(ranks.kept(rank, "server_residual").any() for rank in servers)


def test_results_and_residuals_do_not_depend_on_how_rows_are_grouped() -> None:
    """1-bit by row sees no message, so another grouping each step changes nothing, bit for bit."""
    a, b, c, d, e, f = parameters_of(SHAPES)
    groupings: Sequence[Sequence[Sequence[object]]] = (
        [[a, b, c, d, e, f]],
        [[a], [b, c], [d, e, f]],
        [[f, a], [e, b], [d, c]],
        [[c], [e], [a], [f], [d], [b]],
    )
    same, other = (squeezing(OneBit(), 3, RingAllReduce()) for _ in range(2))
    for step, cuts in enumerate(groupings):
        grads = random_grads(same, step)
        one, two = same.reduce(grads), other.reduce(grads, cuts)  # type: ignore[arg-type]
        assert torch.equal(one[0].value, two[0].value)
    for rank, key in itertools.product(range(3), ("residual", "server_residual")):
        assert torch.equal(same.kept(rank, key), other.kept(rank, key))
        assert same.kept(rank, key).any()


def test_nothing_is_lost_where_messages_cut_through_rows() -> None:
    parameters = parameters_of(((6, 5), (9,)))
    ranks = Ranks(ErrorFeedback(DoubleSqueeze(TopK(density=0.2))), 4, parameters)
    matrix, vector = parameters
    cut = [
        [replace(matrix, start=0, stop=7)],
        [replace(matrix, start=7, stop=23), replace(vector, start=4, stop=9)],
        [replace(matrix, start=23, stop=30), replace(vector, start=0, stop=4)],
    ]
    given, applied = torch.zeros(2, ranks.numel, dtype=torch.float64)
    for step, cuts in enumerate([cut, [parameters], cut]):
        grads = random_grads(ranks, step)
        given += torch.stack(grads).double().mean(0)
        applied += ranks.reduce(grads, cuts)[0].value
    left = sum(ranks.kept(rank, "residual") + ranks.kept(rank, "server_residual") for rank in range(4))
    torch.testing.assert_close(applied + left, given, rtol=0, atol=1e-6 * float(given.abs().max()))


def code_bytes(rows: Sequence[int], row: int) -> int:
    """1-bit by row, for so many rows of each parameter."""
    numel = sum(rows) * row
    return -(-numel // 8) + 8 * sum(rows)


@pytest.mark.parametrize("world", [2, 3, 4, 5])
def test_every_rank_as_a_server_sends_a_code_of_its_share_to_each_other_twice(world: int) -> None:
    """2(P−1) codes of n/P elements, and before replies a size of 8 bytes to each other rank."""
    for exchange in (RingAllReduce(), ParameterServer()):
        ranks = Ranks(DoubleSqueeze(OneBit()), world, parameters_of([(2 * world, 24), (world, 24)]), exchange=exchange)
        ranks.reduce(random_grads(ranks, 0))
        assert ranks.sent == [2 * (world - 1) * code_bytes([2, 1], 24) + 8 * (world - 1)] * world


def test_gathered_replies_are_as_long_as_the_longest_one() -> None:
    """7 rows over 3 servers are 3, 2 and 2; all-gather sends the longest reply for each, servers just their own."""
    sizes = [code_bytes([rows], 5) for rows in (3, 2, 2)]
    for exchange, replies in ((RingAllReduce(), [max(sizes)] * 3), (ParameterServer(), sizes)):
        ranks = Ranks(DoubleSqueeze(OneBit()), 3, parameters_of([(7, 5)]), exchange=exchange)
        ranks.reduce(random_grads(ranks, 0))
        assert ranks.sent == [sum(sizes) - sizes[rank] + 2 * replies[rank] + 2 * 8 for rank in range(3)]


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (3, 1), (2, 2), (3, 2)])
def test_dedicated_servers_get_a_code_from_each_worker_and_send_each_the_reply(workers: int, servers: int) -> None:
    world = workers + servers
    exchange = ParameterServer(servers=servers)
    ranks = Ranks(DoubleSqueeze(OneBit()), world, parameters_of([(4 * servers, 16)]), exchange=exchange)
    ranks.reduce(random_grads(ranks, 0))
    code = code_bytes([4], 16)
    header = 8 * (world - 1)
    assert ranks.sent == [servers * code + header] * workers + [workers * code + header] * servers


@dataclass(frozen=True, slots=True)
class Loud:
    """A code of no bytes at all where no element is 1 or more; counts its bytes."""

    card: ClassVar[Card] = Card(name="loud", slot=Slot.COMPRESSION, summary="for tests", paper="textbook, none")
    lossy: ClassVar[bool] = True
    equal_sizes: ClassVar[bool] = False
    how: ClassVar[How] = How.CONCAT
    scope: ClassVar[Scope] = Scope.ELEMENT
    encoded: list[int] = field(default_factory=list, compare=False)

    def init(self, name: str, parameter: Tensor) -> State:
        return {}

    def encode(self, values: Tensor, ctx: Context) -> Tensor:
        data = values.clone().view(torch.uint8) if bool((values >= 1).any()) else values[:0].view(torch.uint8)
        self.encoded.append(data.numel())
        return data

    def add_decoded(self, data: Tensor, total: Tensor, ctx: Context) -> None:
        if data.numel():
            total.add_(data.view(torch.float32))

    def reduce(self, grad: Tensor, states: object, ctx: Context) -> Reduction:
        return gathered(self, grad, ctx)

    def wire_bytes(self, numel: int, world: int) -> float:
        return 4.0 * numel


@pytest.mark.parametrize("exchange", [RingAllReduce(), ParameterServer(), ParameterServer(servers=1)])
def test_a_reply_of_no_bytes_is_a_mean_of_zeros(exchange: Exchange) -> None:
    """Not the worker's own gradient, which would set the replicas apart."""
    ranks = Ranks(ErrorFeedback(DoubleSqueeze(Loud())), 3, parameters_of([(4,)]), exchange=exchange)
    total, left = torch.zeros(2, 4)
    for _ in range(2):
        for reduced in ranks.reduce([torch.full((4,), 0.1 * (rank + 1)) for rank in range(ranks.num_workers)]):
            assert not reduced.value.any()
        total += 0.1 * (ranks.num_workers + 1) / 2
    for rank in range(3):
        left += ranks.kept(rank, "residual") + ranks.kept(rank, "server_residual")
    torch.testing.assert_close(left, total)


@pytest.mark.parametrize("exchange", [ParameterServer(), ParameterServer(servers=2)])
def test_codes_of_any_length_tell_every_rank_their_sizes_first(exchange: ParameterServer) -> None:
    """8 bytes a server to each other rank; then each way the codes as long as they are."""
    codec = Loud()
    ranks = Ranks(DoubleSqueeze(codec), 4, parameters_of([(8,)]), exchange=exchange)
    grads = random_grads(ranks, 0)
    grads[0].fill_(0.0)
    grads[1].fill_(9.0)
    reduced = ranks.reduce(grads)
    num_servers, num_workers = exchange.servers or 4, ranks.num_workers
    headers = 8 * num_servers * 3 + 8 * 3
    first, second = ranks.sent[0] - headers, ranks.sent[1] - headers
    assert torch.equal(reduced[0].value, reduced[1].value)
    share = 4 * 8 // num_servers
    served = 0 if exchange.servers else (num_workers - 1) * share  # replies of this rank as a server
    assert (first, second) == (served, served + (num_servers - (exchange.servers == 0)) * share)


class Arrivals(Ranks):
    """Two messages at once: the codes of the second reach the servers before or after those of the first."""

    def results(self, grads: Sequence[Tensor], *, swapped: bool) -> list[Tensor]:
        messages = [Message(index, (segment,)) for index, segment in enumerate(self.parameters)]
        runs = [[self._run(rank, g.clone(), m) for rank, g in enumerate(grads)] for m in messages]
        asked = [self._ask(own, [None] * self.world)[0] for own in runs]
        found: list[list[Reduced]] = [[], []]
        while not all(found):
            for place in (1, 0) if swapped else (0, 1):
                answers = perform([tagged.primitive for tagged in asked[place]])
                asked[place], found[place] = self._ask(runs[place], list(answers))
        return [result.value for own in found for result in own]


@pytest.mark.parametrize("codec", [Natural(), Qsgd(), TernGrad()], ids=lambda codec: codec.card.name)
@pytest.mark.parametrize("exchange", [RingAllReduce(), ParameterServer(servers=1)], ids=lambda own: own.card.name)
def test_a_code_that_draws_does_not_depend_on_whose_codes_arrive_first(codec: Compressor, exchange: Exchange) -> None:
    both = [Arrivals(DoubleSqueeze(codec), 3, parameters_of([(40,), (40,)]), exchange=exchange) for _ in range(2)]
    grads = list(torch.randn(3, 40, generator=torch.Generator().manual_seed(2)))
    one, two = (ranks.results(grads, swapped=swapped) for ranks, swapped in zip(both, (False, True), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    for rank in range(3):
        assert torch.equal(both[0].kept(rank, "server_residual"), both[1].kept(rank, "server_residual"))


def test_onebit_decodes_what_it_would_gather_when_there_is_one_rank() -> None:
    """One server gets one code: its reply is the code of a code, which 1-bit leaves as it is."""
    grad = torch.tensor([-1.0, -2.0, 3.0, 5.0])
    (reduced,) = Ranks(DoubleSqueeze(OneBit()), 1, parameters_of([(4,)])).reduce([grad])
    assert reduced.value.tolist() == [-1.5, -1.5, 4.0, 4.0]


def test_a_gradient_that_is_not_a_number_reaches_every_worker() -> None:
    for codec in CODES:
        ranks = squeezing(codec, 3, RingAllReduce())
        grads = random_grads(ranks, 0)
        grads[1][4] = torch.nan
        for reduced in ranks.reduce(grads):
            assert reduced.value.isnan().any(), codec.card.name


@pytest.mark.parametrize("inner", [Half(), Uncompressed(), ErrorFeedback(TopK())], ids=lambda inner: inner.card.name)
def test_what_is_no_code_is_refused_by_name(inner: Compressor) -> None:
    with pytest.raises(ValueError, match=f"around {inner.card.name}: .*error-feedback after double-squeeze"):
        DoubleSqueeze(inner)


@pytest.mark.parametrize("exchange", ["ring", "tree", "hierarchical", "all-gather"])
def test_an_exchange_without_servers_is_refused_with_the_remedy(exchange: str) -> None:
    with pytest.raises(TextError, match=r"use all-reduce \(every rank serves\) or parameter-server"):
        parse_strategy(f"onebit+double-squeeze+error-feedback+{exchange}")


def test_shares_cover_every_element_once() -> None:
    """Seen from outside: with a code that loses nothing every server's reply fills other elements."""
    for world in (1, 2, 5, 8):
        ranks = Ranks(DoubleSqueeze(TopK(density=1.0)), world, parameters_of(SHAPES))
        grads = [torch.arange(1.0, ranks.numel + 1)] * world
        assert torch.equal(ranks.reduce(grads)[0].value, grads[0] / world * world)


def test_a_message_of_one_small_parameter_leaves_servers_without_a_share() -> None:
    parameters = parameters_of([()])
    ranks = Ranks(ErrorFeedback(DoubleSqueeze(OneBit())), 4, parameters)
    reduced = ranks.reduce([torch.tensor([float(rank)]) for rank in range(4)])
    assert [float(r.value) for r in reduced] == [1.5] * 4
    assert Message(0, parameters).numel == 1
