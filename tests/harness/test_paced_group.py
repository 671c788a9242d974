"""The backend `paced` among virtual peers on a virtual clock: values, times, refusals, DDP and the engine."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from clocked_link import LINK, ClockedLink, Driven, Lost, virtual_world
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import awkward, loss_at
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.nn.parallel import DistributedDataParallel

from baselines.api import AllGather, AllReduce, Broadcast, Gather, Payload, Primitive
from baselines.strategy import parse_strategy
from fabric.cluster import FabricError
from fabric.collectives import Collective
from fabric.paced import PACED, PacedLink
from harness.engine.engine import Engine, EngineError
from harness.engine.transport import CONTROL, ProcessGroupTransport
from harness.lockstep.collectives import perform
from harness.lockstep.ranks import Lockstep, replicas
from harness.paced.group import PacedGroup
from harness.paced.link_client import Paid
from harness.paced.pacing import Pacing
from harness.paced.work import Both, PacedWork
from harness.trace import Recorder

ALL_REDUCE_S = LINK.seconds(Collective.ALL_REDUCE, 1_000_000)


def megabyte() -> Tensor:
    return torch.zeros(250_000)


def all_reduce(group: dist.ProcessGroup | None = None) -> torch.futures.Future[Any]:
    work = dist.all_reduce(megabyte(), group=group, async_op=True)
    assert work is not None
    return work.get_future()


# ---- values


@given(st.sampled_from([torch.int32, torch.uint8, torch.float32]), st.integers(1, 40), st.sampled_from([2, 4, 8]))
def test_virtual_peers_give_what_equal_ranks_give(dtype: torch.dtype, numel: int, world: int) -> None:
    """Whole numbers, so that no sum is rounded."""
    value = torch.arange(numel).to(dtype)
    makers: list[Callable[[Tensor], Primitive]] = [AllReduce, AllGather, Gather, Broadcast]
    with virtual_world(Driven(ClockedLink()), LINK.among(world)):
        transport = ProcessGroupTransport(1)
        for make in makers:
            expected = perform([make(value.clone()) for _ in range(world)])[0]
            told: list[Payload | Exception] = []
            transport.start(make(value.clone()), 0, told.append)
            (answer,) = told
            assert isinstance(answer, tuple)
            assert len(answer) == len(expected)
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(answer, expected, strict=True))
        transport.close()


@pytest.mark.parametrize(("lane", "size_scale"), [(0, 1), (CONTROL, 500)])
def test_rounds_of_control_have_the_link_at_full_size_where_tensors_are_scaled(lane: int, size_scale: int) -> None:
    with virtual_world(Driven(ClockedLink())):
        transport = ProcessGroupTransport(1, size_scale=500)
        whole = dist.group.WORLD
        assert isinstance(whole, PacedGroup)
        before_s = whole.pacing.traffic.link_s
        transport.start(Gather(megabyte()), lane, lambda answer: None)
        full_size = dataclasses.replace(LINK, rate_bps=size_scale * 1e9)
        expected_s = full_size.seconds(Collective.GATHER, 1_000_000)
        assert whole.pacing.traffic.link_s - before_s == pytest.approx(expected_s)
        transport.close()


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (dist.ReduceOp.SUM, 24.0),
        (dist.ReduceOp.PRODUCT, 3.0**8),
        (dist.ReduceOp.AVG, 3.0),
        (dist.ReduceOp.MAX, 3.0),
        (dist.ReduceOp.MIN, 3.0),
    ],
)
def test_reductions_of_equal_tensors(operation: Any, expected: float) -> None:
    with virtual_world(Driven(ClockedLink())):
        for reduce in (dist.all_reduce, lambda tensor, op: dist.reduce(tensor, 0, op)):
            tensor = torch.full((5,), 3.0)
            reduce(tensor, operation)
            assert torch.equal(tensor, torch.full((5,), expected))
        elsewhere = torch.full((5,), 3.0)
        dist.reduce(elsewhere, 3, operation)
        assert torch.equal(elsewhere, torch.full((5,), 3.0))


def test_gathering_gives_copies_in_every_form() -> None:
    with virtual_world(Driven(ClockedLink())):
        own, whole, objects = torch.arange(3.0), torch.zeros(24), [None] * 8
        dist.all_gather_single(whole, own)
        assert torch.equal(whole, own.repeat(8))
        dist.all_gather_object(objects, {"rank": 0})
        assert objects == [{"rank": 0}] * 8
        scattered = torch.zeros(3)
        dist.scatter(scattered, [own * rank for rank in range(8)], src=0)
        assert torch.equal(scattered, own * 0)


# ---- refusals


def shards() -> None:
    whole = torch.zeros(24)
    dist.all_gather_single(whole, whole[:3])


REFUSED: dict[str, Callable[[], object]] = {
    "a broadcast from rank 3": lambda: dist.broadcast(torch.zeros(2), src=3),
    "a message from rank 1": lambda: dist.recv(torch.zeros(2), src=1),
    "a message from any rank": lambda: dist.recv(torch.zeros(2)),
    "a scatter from rank 2": lambda: dist.scatter(torch.zeros(2), src=2),
    "an all-gather of": lambda: dist.all_gather([torch.zeros(2 + r) for r in range(8)], torch.zeros(2)),
    "an all-gather in place": shards,
    "a reduce-scatter": lambda: dist.reduce_scatter_single(torch.zeros(1), torch.zeros(8)),
    "an all-to-all": lambda: dist.all_to_all_single(torch.zeros(8), torch.zeros(8)),
    "equal tensors is": lambda: dist.all_reduce(torch.zeros(2, dtype=torch.int32), dist.ReduceOp.BXOR),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_needs_a_peer_that_holds_something_is_refused_before_it_is_paid(said: str) -> None:
    link = ClockedLink()
    with virtual_world(Driven(link)), pytest.raises(FabricError, match=f"{said}.*real ranks"):
        REFUSED[said]()
    assert link.now_s == 0.0


def test_a_backend_without_its_link_says_where_one_comes_from() -> None:
    with virtual_world(Driven(ClockedLink())):
        pass
    with pytest.raises(FabricError, match="crossover-bench pace"):
        dist.init_process_group(PACED, store=dist.HashStore(), rank=0, world_size=8)


# ---- times


@pytest.mark.parametrize(
    ("run", "collective", "num_bytes"),
    [
        (lambda t: dist.all_reduce(t), Collective.ALL_REDUCE, 4_000),
        (lambda t: dist.reduce(t, 0), Collective.REDUCE, 4_000),
        (lambda t: dist.broadcast(t, 0), Collective.BROADCAST, 4_000),
        (lambda t: dist.all_gather([torch.zeros(1000) for _ in range(8)], t), Collective.ALL_GATHER, 4_000),
        (lambda t: dist.all_gather_single(torch.zeros(8000), t), Collective.ALL_GATHER, 4_000),
        (lambda t: dist.gather(t, [torch.zeros(1000) for _ in range(8)]), Collective.GATHER, 4_000),
        (lambda t: dist.scatter(t, [torch.zeros(1000) for _ in range(8)]), Collective.SCATTER, 4_000),
        (lambda t: dist.send(t, 1), Collective.TRANSFER, 4_000),
        (lambda t: dist.barrier(), Collective.BARRIER, 0),
    ],
)
def test_every_operation_takes_its_time_of_the_table(
    run: Callable[[Tensor], object], collective: Collective, num_bytes: int
) -> None:
    link = ClockedLink()
    with virtual_world(Driven(link)) as pacing:
        run(torch.zeros(1000))
    assert link.now_s == pytest.approx(LINK.seconds(collective, num_bytes))
    assert pacing.traffic.link_s == pytest.approx(link.now_s)
    assert pacing.traffic.num_messages == 1


def test_an_operation_is_complete_when_its_link_time_is_over_and_not_before() -> None:
    link = ClockedLink()
    with virtual_world(link.carrier()):
        ended_s: list[float] = []
        all_reduce().add_done_callback(lambda future: ended_s.append(link.now_s))
        assert ended_s == []
        link.run()
        assert ended_s == pytest.approx([ALL_REDUCE_S])


def test_a_groups_collectives_follow_each_other_and_two_groups_share_the_link_fairly() -> None:
    link, ended_s = ClockedLink(), list[float]()
    with virtual_world(link.carrier()):
        for group in (None, None, dist.new_group()):
            all_reduce(group).add_done_callback(lambda future: ended_s.append(link.now_s / ALL_REDUCE_S))
        link.run()
    assert ended_s == pytest.approx([2, 2, 3])


def test_a_group_of_some_ranks_pays_for_these() -> None:
    link = ClockedLink()
    with virtual_world(Driven(link)):
        dist.all_reduce(megabyte(), group=dist.new_group([0, 1, 5]))
    assert link.now_s == pytest.approx(LINK.among(3).seconds(Collective.ALL_REDUCE, 1_000_000))


def test_coalesced_operations_are_one_message() -> None:
    link = ClockedLink()
    with virtual_world(Driven(link)) as pacing:
        tensors = [torch.ones(1000) for _ in range(4)]
        with _coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert all(torch.equal(tensor, torch.full((1000,), 8.0)) for tensor in tensors)
    assert pacing.traffic.num_messages == 1
    assert link.now_s == pytest.approx(LINK.seconds(Collective.ALL_REDUCE, 16_000))


# ---- errors


@pytest.mark.parametrize("order", [("carried", "paid"), ("paid", "carried")])
def test_an_answer_comes_when_it_is_both_carried_and_paid(order: tuple[str, str]) -> None:
    both = Both("answer", None)
    for part in order:
        assert not both.future.done()
        getattr(both, part)(None)
    assert both.future.value() == "answer"


def test_the_first_error_is_told_once() -> None:
    both = Both("answer", None)
    both.paid(FabricError("the link has ended"))
    both.carried(RuntimeError("a peer has gone"))
    with pytest.raises(FabricError, match="the link has ended"):
        both.future.wait()


def test_whoever_waits_for_a_lost_link_is_told() -> None:
    with virtual_world(Lost()), pytest.raises(FabricError, match="the link has ended"):
        dist.all_reduce(torch.zeros(3))


def test_an_engine_says_that_its_link_has_gone() -> None:
    strategy, model = parse_strategy("single-bucket"), awkward()
    with virtual_world(Lost()):
        engine = Engine(model, strategy, ProcessGroupTransport.of(strategy), recorder=Recorder())
        engine.begin_step()
        loss_at(0)(0, model).backward()
        engine.end_backward()
        with pytest.raises(EngineError, match="the link has ended"):
            engine.wait()
        engine.close()


# ---- training


@pytest.mark.parametrize("world", [2, 8])
@pytest.mark.parametrize(
    "text",
    ["fixed-buckets", "tensor-fusion+half", "single-bucket+topk(density=0.2)+error-feedback", "unfused+all-gather"],
)
def test_the_engine_among_virtual_peers_trains_as_equal_ranks_do(text: str, world: int) -> None:
    """Bytes are equal, and with two ranks weights bit for bit; eight equal numbers added one by one are rounded."""
    strategy, model, link = parse_strategy(text), awkward(), ClockedLink()
    exact = Lockstep(replicas(awkward(), world), strategy, seed=7)
    with virtual_world(Driven(link), LINK.among(world)):
        engine = Engine(model, strategy, ProcessGroupTransport.of(strategy), recorder=Recorder(), seed=7)
        optimizer = strategy.optimizer.build(model.parameters())
        for step in range(3):
            exact.step(lambda rank, model, step=step: loss_at(step)(0, model))
            engine.begin_step()
            loss_at(step)(0, model).backward()
            engine.end_backward()
            engine.wait()
            optimizer.step()
            optimizer.zero_grad()
        engine.close()
    if world == 2:
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, exact.models[0].get_parameter(name)), name
    assert engine.traffic.wire_bytes["gradient"] == pytest.approx(exact.traffic.wire_bytes["gradient"])
    assert link.now_s > 0


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 3))


HOOKS: dict[str, Callable[[DistributedDataParallel], None]] = {
    "none": lambda model: None,
    "fp16": lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook),
    "powersgd": lambda model: model.register_comm_hook(PowerSGDState(None, 1, 2), powerSGD_hook),
}


@pytest.mark.parametrize("hook", HOOKS)
def test_raw_ddp_trains_among_virtual_peers_and_pays_for_its_bytes(hook: str) -> None:
    """Equal gradients have themselves as mean, so plain DDP trains as the model alone; a hook rounds."""
    alone, link = small(), ClockedLink()
    with virtual_world(Driven(link)) as pacing:
        wrapped = DistributedDataParallel(small())
        HOOKS[hook](wrapped)
        for model in (alone, wrapped):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(4):
                before = pacing.traffic.num_bytes
                inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
                model(inputs).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        num_bytes = 4 * sum(parameter.numel() for parameter in alone.parameters())
        expected = {"none": 1.75 * num_bytes, "fp16": 1.75 * num_bytes / 2, "powersgd": None}[hook]
        if expected is not None:
            assert pacing.traffic.num_bytes - before == pytest.approx(expected)
    if hook == "none":
        for mine, theirs in zip(wrapped.module.parameters(), alone.parameters(), strict=True):
            assert torch.equal(mine, theirs)
    assert all(torch.isfinite(parameter).all() for parameter in wrapped.parameters())
    assert link.now_s > 0


class Held:
    """A carrier that serves when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Paid] = []

    def carry(self, flow: Hashable, work_s: float, paid: Paid) -> None:
        self.asked.append(paid)

    def close(self) -> None:
        """Nothing is held."""


class Handed:
    """In place of gloo: what it was handed, in order."""

    def __init__(self) -> None:
        self.tags: list[int] = []

    def send(self, tensors: list[Tensor], to: int, tag: int) -> PacedWork:
        self.tags.append(tag)
        ended = torch.futures.Future[None]()
        ended.set_result(None)
        return PacedWork(ended)


def test_what_one_answer_hands_over_waits_for_the_one_before() -> None:
    """Two threads may tell of two answers at once."""
    carrier = Held()

    class Slow(Handed):
        def send(self, tensors: list[Tensor], to: int, tag: int) -> PacedWork:
            if tag == 0:
                later.start()
                later.join(timeout=0.2)  # handing over the second one now would put it first
            return super().send(tensors, to, tag)

    later = threading.Thread(target=lambda: carrier.asked[1](None))
    inner = Slow()
    group = PacedGroup("sends", 0, 2, Pacing(LINK, carrier, is_virtual=False), inner)  # type: ignore[arg-type]
    works = [group.send([torch.zeros(2)], 1, tag) for tag in (0, 1)]
    carrier.asked[0](None)
    for work in works:
        work.wait()
    later.join()
    assert inner.tags == [0, 1]


def test_a_message_that_cannot_be_handed_over_fails_and_the_next_one_does_not() -> None:
    carrier = Held()

    class Refusing(Handed):
        def send(self, tensors: list[Tensor], to: int, tag: int) -> PacedWork:
            if tag == 0:
                raise RuntimeError("the peer is gone")
            return super().send(tensors, to, tag)

    inner = Refusing()
    group = PacedGroup("sends", 0, 2, Pacing(LINK, carrier, is_virtual=False), inner)  # type: ignore[arg-type]
    works = [group.send([torch.zeros(2)], 1, tag) for tag in (0, 1)]
    for paid in carrier.asked:
        paid(None)
    with pytest.raises(RuntimeError, match="the peer is gone"):
        works[0].wait()
    assert works[1].wait()


def test_a_rank_alone_pays_nothing() -> None:
    link = ClockedLink()
    with virtual_world(Driven(link), PacedLink(1, 1e-3, 1e6)) as pacing:
        dist.all_reduce(torch.ones(10))
    assert (link.now_s, pacing.traffic.num_messages) == (0.0, 0)


def test_ddp_asks_the_link_for_the_time_that_our_fixed_buckets_ask_for() -> None:
    """Buckets of 512 B, once both have laid them out anew after the first step: as many messages, and no byte more."""
    asked = {}
    for system in ("ddp", "ours"):
        with virtual_world(Driven(ClockedLink())) as pacing:
            model = small()
            if system == "ddp":
                trained: nn.Module = DistributedDataParallel(model, bucket_cap_mb=512 / 2**20)
            else:
                strategy = parse_strategy("fixed-buckets(bucket_bytes=512, first_bucket_bytes=512)")
                engine = Engine(model, strategy, ProcessGroupTransport.of(strategy), recorder=Recorder())
                trained = model
            for _ in range(4):
                traffic, before = pacing.traffic, dataclasses.astuple(pacing.traffic)
                loss = trained(torch.ones(4, 6)).square().mean()
                if system == "ours":
                    engine.begin_step()
                loss.backward()
                if system == "ours":
                    engine.end_backward()
                    engine.wait()
                step_asked = [now - then for now, then in zip(dataclasses.astuple(traffic), before, strict=True)]
            asked[system] = step_asked
            if system == "ours":
                engine.close()
    assert asked["ddp"][0] > 1
    assert asked["ddp"] == pytest.approx(asked["ours"])
