"""Paced collectives: what they give, what they cost on a virtual clock, and what is left when the link goes."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import awkward, loss_at

from baselines.api import AllGather, AllReduce, Broadcast, Gather, Payload, Primitive, Transfer
from baselines.strategy import parse_strategy
from fabric.api import FabricError, FabricKind, FabricSpec
from fabric.paced import PacedLink, Pattern
from harness.engine.engine import Engine, EngineError
from harness.engine.transport import Done
from harness.lab.fluid_server import shared_fluid
from harness.lab.link_client import LinkClient, Paid
from harness.lab.pacing import (
    SWITCH_INTERVAL_S,
    PacedTransport,
    VirtualRing,
    link_model,
    open_transport,
    pacing_of,
)
from harness.lab.services import check_paced
from harness.lockstep.collectives import perform
from harness.lockstep.ranks import Lockstep, replicas
from harness.trace import Recorder
from harness.trial import Job, Trial
from models.fluid import FluidDevice
from models.workload import WorkloadSpec

LINK = PacedLink(num_ranks=8, alpha_s=1e-4, rate_bps=1e9)
VIRTUAL = FabricSpec(kind=FabricKind.PACED, num_hosts=1, num_virtual=8, rate_bps=1e9, alpha_s=1e-4)


class ClockedLink:
    """A host's link on a virtual clock; each job has its own carrier on it."""

    def __init__(self) -> None:
        self.now_s, self._fluid, self._waiting = 0.0, FluidDevice(linger_s=0), dict[int, Paid]()
        self._num_flows = 0

    def carrier(self) -> ClockedCarrier:
        return ClockedCarrier(self)

    def new_flow(self) -> int:
        self._num_flows += 1
        return self._num_flows

    def submit(self, flow: int, work_s: float, paid: Paid) -> None:
        self._waiting[flow] = paid
        self._fluid.submit(flow, work_s, follows=False, now_s=self.now_s)

    def run(self) -> None:
        """Let time pass until nothing is under way."""
        while (event_s := self._fluid.next_event_s()) is not None:
            self.now_s = event_s
            for flow in self._fluid.collect_finished(event_s):
                self._waiting.pop(flow)(None)


class ClockedCarrier:
    def __init__(self, link: ClockedLink) -> None:
        self._link, self._flows = link, dict[int, int]()

    def carry(self, flow: int, work_s: float, paid: Paid) -> None:
        number = self._flows.setdefault(flow, self._link.new_flow())
        self._link.submit(number, work_s, paid)

    def close(self) -> None:
        """Nothing is held."""


class Lost:
    """A carrier whose link has gone."""

    def carry(self, flow: int, work_s: float, paid: Paid) -> None:
        paid(FabricError("the link has ended"))

    def close(self) -> None:
        """Nothing is held."""


class Later:
    """A transport that answers when it is told to."""

    rank, world = 0, 8

    def __init__(self) -> None:
        self.asked: list[tuple[Primitive, Done]] = []

    def start(self, primitive: Primitive, lane: int, done: Done) -> None:
        self.asked.append((primitive, done))

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def paced() -> Iterator[Callable[..., PacedTransport]]:
    """Makes transports of a paced link, and closes them."""
    made: list[PacedTransport] = []

    def make(carrier: Any, inner: Any = None, link: PacedLink = LINK) -> PacedTransport:
        made.append(PacedTransport(inner or VirtualRing(link.num_ranks), link, carrier, 2))
        return made[-1]

    yield make
    for transport in reversed(made):
        transport.close()


def megabyte() -> AllReduce:
    return AllReduce(torch.zeros(250_000))


ALL_REDUCE_S = LINK.seconds(Pattern.ALL_REDUCE, 1_000_000)


# ---- values


@given(st.sampled_from([torch.int32, torch.uint8, torch.float32]), st.integers(1, 40), st.sampled_from([2, 4, 8]))
def test_virtual_peers_give_what_equal_ranks_give(dtype: torch.dtype, numel: int, world: int) -> None:
    """Whole numbers, so that no sum is rounded."""
    value = torch.arange(numel).to(dtype)
    makers: list[Callable[[torch.Tensor], Primitive]] = [AllReduce, AllGather, Gather, Broadcast]
    for make in makers:
        expected = perform([make(value.clone()) for _ in range(world)])[0]
        told: list[Payload | Exception] = []
        VirtualRing(world).start(make(value.clone()), 0, told.append)
        (answer,) = told
        assert isinstance(answer, tuple)
        assert len(answer) == len(expected)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(answer, expected, strict=True))


def test_virtual_peers_cannot_shift_what_they_do_not_hold() -> None:
    told: list[Payload | Exception] = []
    VirtualRing(4).start(Transfer(torch.zeros(2), 1, torch.zeros(2), 3), 0, told.append)
    (error,) = told
    assert isinstance(error, FabricError)
    assert "all-reduce" in str(error)


@pytest.mark.parametrize("world", [2, 8])
@pytest.mark.parametrize(
    "text",
    ["fixed-buckets", "tensor-fusion+half", "single-bucket+topk(density=0.2)+error-feedback", "unfused+all-gather"],
)
def test_the_engine_among_virtual_peers_trains_as_equal_ranks_do(
    text: str, world: int, paced: Callable[..., Any]
) -> None:
    """Bytes are equal, and with two ranks weights bit for bit; eight equal numbers added one by one are rounded."""
    strategy, model, link = parse_strategy(text), awkward(), ClockedLink()
    exact = Lockstep(replicas(awkward(), world), strategy, seed=7)
    engine = Engine(model, strategy, paced(Driven(link), link=PacedLink(world, 1e-4, 1e9)), recorder=Recorder(), seed=7)
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


class Driven(ClockedCarrier):
    """A carrier whose clock runs on at once."""

    def __init__(self, link: ClockedLink) -> None:
        super().__init__(link)
        self._lock = threading.Lock()

    def carry(self, flow: int, work_s: float, paid: Paid) -> None:
        with self._lock:
            super().carry(flow, work_s, paid)
            self._link.run()


# ---- times


def test_an_operation_takes_its_link_time_and_not_more(paced: Callable[..., Any]) -> None:
    link, ended_s = ClockedLink(), list[float]()
    paced(link.carrier()).start(megabyte(), 0, lambda answer: ended_s.append(link.now_s))
    assert ended_s == []
    link.run()
    assert ended_s == pytest.approx([ALL_REDUCE_S])


def test_two_jobs_at_once_share_the_link_fairly(paced: Callable[..., Any]) -> None:
    link, ended_s = ClockedLink(), dict[str, float]()
    for name in "ab":
        paced(link.carrier()).start(megabyte(), 0, lambda answer, name=name: ended_s.update({name: link.now_s}))
    link.run()
    assert ended_s == pytest.approx({"a": 2 * ALL_REDUCE_S, "b": 2 * ALL_REDUCE_S})


def test_a_job_that_comes_first_and_keeps_the_link_loses_nothing(paced: Callable[..., Any]) -> None:
    """With link turns the second job starts when the first one is done."""
    link, ended_s = ClockedLink(), list[float]()
    first, second = paced(link.carrier()), paced(link.carrier())

    def then(answer: object) -> None:
        ended_s.append(link.now_s)
        second.start(megabyte(), 0, lambda answer: ended_s.append(link.now_s))

    first.start(megabyte(), 0, then)
    link.run()
    assert ended_s == pytest.approx([ALL_REDUCE_S, 2 * ALL_REDUCE_S])


def test_without_bytes_or_steps_nothing_is_paid_and_nobody_waits(tmp_path: Path) -> None:
    with link_at(tmp_path) as path:
        client = LinkClient(path, (0,))
        told: list[object] = []
        client.carry(0, 0.0, told.append)
        assert told == [None]
        client.close()


def test_the_link_model_of_a_record_is_the_one_asked_for() -> None:
    model = link_model(VIRTUAL)
    assert model is not None
    assert model.alpha_s == pytest.approx(14e-4)
    assert model.all_reduce_s(1_000_000) == pytest.approx(ALL_REDUCE_S)
    assert link_model(FabricSpec(kind=FabricKind.NATIVE, rate_bps=None)) is None


# ---- order and errors


@pytest.mark.parametrize("carried_first", [True, False])
def test_an_answer_comes_when_it_is_both_carried_and_paid(carried_first: bool, paced: Callable[..., Any]) -> None:
    link, inner, told = ClockedLink(), Later(), list[object]()
    paced(link.carrier(), inner).start(megabyte(), 0, told.append)
    ((primitive, done),) = inner.asked
    steps: list[Callable[[], None]] = [lambda: done((primitive.tensor,)), link.run]
    for step in steps if carried_first else reversed(steps):
        assert told == []
        step()
    assert len(told) == 1


def test_the_first_error_is_told_once(paced: Callable[..., Any]) -> None:
    inner, told = Later(), list[object]()
    paced(Lost(), inner).start(megabyte(), 0, told.append)
    inner.asked[0][1](RuntimeError("a peer has gone"))
    (error,) = told
    assert isinstance(error, FabricError)


def test_a_job_that_communicates_by_itself_is_refused_by_name() -> None:
    trial = Trial(
        suite="test",
        cell="test",
        jobs=(Job(name="a", workload=WorkloadSpec(network="resnet20"), system="torch-ddp"),),
        fabric=VIRTUAL,
    )
    with pytest.raises(FabricError, match="torch-ddp"):
        check_paced(trial)


def test_threads_change_hands_quickly_while_a_paced_transport_is_open() -> None:
    before_s = sys.getswitchinterval()
    transport = PacedTransport(VirtualRing(8), LINK, Lost(), 1)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    transport.close()
    assert sys.getswitchinterval() == pytest.approx(before_s)


# ---- the link's own process


@contextmanager
def link_at(folder: Path) -> Iterator[Path]:
    """A host's link in a process of its own, in a private folder."""
    with shared_fluid(folder / "private" / "link", FluidDevice(linger_s=0)) as path:
        yield Path(path)


def test_answers_come_no_sooner_than_the_link_allows_and_in_order(tmp_path: Path) -> None:
    with link_at(tmp_path) as path:
        client, told = LinkClient(path, (0, 1)), SimpleQueue[int]()
        begun_s = time.monotonic()
        for number in range(5):
            client.carry(0, 0.004, lambda error, number=number: told.put(number))
        assert [told.get(timeout=10) for _ in range(5)] == list(range(5))
        assert time.monotonic() - begun_s >= 0.02
        client.close()


def test_two_clients_share_the_link(tmp_path: Path) -> None:
    with link_at(tmp_path) as path:
        clients, told = [LinkClient(path, (0,)) for _ in range(2)], SimpleQueue[float]()
        begun_s = time.monotonic()
        for client in clients:
            client.carry(0, 0.03, lambda error: told.put(time.monotonic()))
        ends_s = [told.get(timeout=10) - begun_s for _ in clients]
        assert max(ends_s) >= 0.06  # two pieces of 30 ms cannot be over before
        for client in clients:
            client.close()


def test_the_links_socket_is_private_and_goes_with_it(tmp_path: Path) -> None:
    with link_at(tmp_path) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()


def test_whoever_waits_for_a_link_that_dies_is_told(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    with link_at(tmp_path) as path:
        (server,) = set(psutil.Process().children()) - before
        client, told = LinkClient(path, (0, 1)), SimpleQueue[object]()
        client.carry(0, 30.0, told.put)
        client.carry(1, 30.0, told.put)
        server.send_signal(signal.SIGKILL)
        errors = [told.get(timeout=10) for _ in range(2)]
        client.carry(0, 1.0, told.put)
        errors.append(told.get(timeout=10))
        assert [type(error) for error in errors] == [FabricError] * 3
        client.close()


def test_an_engine_says_that_its_link_has_gone(paced: Callable[..., Any]) -> None:
    strategy, model = parse_strategy("single-bucket"), awkward()
    engine = Engine(model, strategy, paced(Lost()), recorder=Recorder())
    engine.begin_step()
    loss_at(0)(0, model).backward()
    engine.end_backward()
    with pytest.raises(EngineError, match="the link has ended"):
        engine.wait()
    engine.close()


def test_a_transport_without_its_link_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FabricError, match="run the trial again"):
        open_transport(1, pacing_of(VIRTUAL, str(tmp_path / "link")))


def test_clients_leave_no_descriptor_and_no_thread_behind(tmp_path: Path) -> None:
    own = psutil.Process(os.getpid())
    with link_at(tmp_path) as path:
        LinkClient(path, (0,)).close()
        before = own.num_fds(), threading.active_count()
        for _ in range(10):
            LinkClient(path, (0, 1, -1)).close()
        assert (own.num_fds(), threading.active_count()) == before


def test_a_link_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        before = psutil.Process().children()
        with link_at(tmp_path):
            (server,) = [child for child in psutil.Process().children() if child not in before]
            os.write(write_end, str(server.pid).encode())
            os.kill(os.getpid(), signal.SIGKILL)
    server = psutil.Process(int(os.read(read_end, 20)))
    os.waitpid(pid, 0)
    assert not psutil.wait_procs([server], timeout=10)[1]
    for end in (read_end, write_end):
        os.close(end)
