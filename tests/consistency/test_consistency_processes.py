"""Servers and workers over real sockets: no update lost, no read too old, and every loss named.

Workers are forked processes that push numbers in place of gradients, so that a run takes milliseconds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from forks import Fork
from patience import patience_s
from torch import Tensor, nn

from baselines.api import Consistency
from baselines.consistency.asp import Asp
from baselines.consistency.bsp import Bsp
from baselines.consistency.dynssp import DynSsp
from baselines.consistency.ssp import Ssp
from crossover.arbiter.roster import process_state
from harness.asynchrony.client import ServerLostError, ServerPlace, ServersLink, names_within, parts_of
from harness.asynchrony.cluster import OnLoss, VirtualCluster
from harness.asynchrony.parameters import ClockError, Parameters
from harness.asynchrony.server import ParameterServerProcess, ServerReport, WorkerFaultError, WorkerLostError
from harness.asynchrony.tally import StalenessTally
from harness.asynchrony.virtual import VirtualRun
from harness.asynchrony.wire import Frame, FrameKind, header_of

NUM_WORKERS, NUM_CLOCKS, NUMEL = 3, 8, 5
ADDRESS = "127.0.0.1"


def update_of(worker: int, clock: int, values: Tensor) -> Tensor:
    """Depends on what was read, so a read of something else ends in other numbers."""
    return torch.full((NUMEL,), worker + 1.0) + 0.25 * (values - clock)


def server_of(
    policy: Consistency, on_loss: OnLoss = OnLoss.STOP, start: int = 0, stop: int = NUMEL
) -> ParameterServerProcess:
    parameters = Parameters(torch.zeros(stop - start), NUM_WORKERS, policy.share)
    exact_reads = policy.is_synchronous
    return ParameterServerProcess(parameters, ADDRESS, num_clocks=NUM_CLOCKS, exact_reads=exact_reads, on_loss=on_loss)


def place_of(server: ParameterServerProcess, start: int = 0, stop: int = NUMEL) -> ServerPlace:
    return ServerPlace(ADDRESS, server.port, server.token, start, stop)


def work(worker: int, places: list[ServerPlace], policy: Consistency, before: Callable[[int], None]) -> None:
    """What a worker's process does; `before` comes before each of its clocks."""
    link, values = ServersLink(worker, places, [["all"]] * len(places)), torch.zeros(NUMEL)
    for clock in range(NUM_CLOCKS):
        if clock:
            values = link.pull(policy.must_include(clock))
        before(clock)
        link.push(clock, update_of(worker, clock, values))
    link.pull(NUM_CLOCKS - 1, is_last=True)
    link.close()


def in_turn(clock: int) -> None:
    """Nothing in between."""


def run(
    forked: Fork,
    policy: Consistency,
    before: Callable[[int, int], None] = lambda worker, clock: None,
    on_loss: OnLoss = OnLoss.STOP,
) -> tuple[ParameterServerProcess, ServerReport]:
    server = server_of(policy, on_loss)
    for worker in range(NUM_WORKERS):
        forked(lambda own=worker: work(own, [place_of(server)], policy, lambda clock: before(own, clock)))
    return server, server.serve()


@pytest.mark.parametrize("policy", [Bsp(), Ssp(0), DynSsp(0)], ids=str)
def test_without_staleness_processes_end_as_the_virtual_clock_does(policy: Consistency, forked: Fork) -> None:
    """Bit for bit: updates count in order of clock and worker, whoever comes first."""
    server, report = run(forked, policy)
    virtual = VirtualRun(
        VirtualCluster(num_workers=NUM_WORKERS, compute_s=1.0), policy, torch.zeros(NUMEL), update_of, NUM_CLOCKS
    )
    list(virtual)
    assert torch.equal(server.parameters.read(), virtual.parameters.read())
    assert report.tally.ahead == {0: NUM_WORKERS * NUM_CLOCKS}
    pushed = 4 * NUMEL * NUM_WORKERS * NUM_CLOCKS  # and as many answers, the last ones after the training included
    assert (report.num_sent_bytes, report.num_bytes) == (pushed, 2 * pushed)


@pytest.mark.parametrize("policy", [Asp(), Ssp(1), DynSsp(2)], ids=str)
def test_no_update_is_lost_or_applied_twice_and_none_runs_too_far_ahead(policy: Consistency, forked: Fork) -> None:
    """The server refuses a clock that is not the worker's next; a worker refuses a read that lacks what is promised."""

    def slow(worker: int, clock: int) -> None:
        time.sleep(0.01 if worker == 0 else 0.0)

    server, report = run(forked, policy, slow)
    assert server.parameters.clocks == [NUM_CLOCKS] * NUM_WORKERS
    assert [sum(own.values()) for own in report.tally.missed_by] == [NUM_CLOCKS] * NUM_WORKERS
    assert max(report.tally.ahead) <= (NUM_CLOCKS if policy.staleness is None else policy.staleness)
    assert sum(report.tally.ahead.values()) == NUM_WORKERS * NUM_CLOCKS


def test_a_read_of_bsp_holds_nothing_of_later_clocks() -> None:
    """A pull comes after its push, and meanwhile a worker that was answered first may have pushed again."""
    parameters = Parameters(torch.zeros(1), 2, Bsp().share)
    for worker, clock in ((0, 0), (1, 0), (1, 1)):
        parameters.push(worker, clock, torch.ones(1))
    assert parameters.read(up_to=0).tolist() == [1.0]
    assert parameters.read().tolist() == [1.5]


def test_two_servers_hold_the_model_together(forked: Fork) -> None:
    parts = parts_of(NUMEL, 2)
    servers = [server_of(Bsp(), start=start, stop=stop) for start, stop in parts]
    places = [place_of(server, *part) for server, part in zip(servers, parts, strict=True)]
    for worker in range(NUM_WORKERS):
        forked(lambda own=worker: work(own, places, Bsp(), in_turn))
    read_end, write_end = os.pipe()

    def second() -> None:
        servers[1].serve()
        os.write(write_end, bytes(servers[1].parameters.read().view(torch.uint8).tolist()))

    forked(second)
    servers[0].serve()
    servers[1].close()  # this process' copy of its listener
    rest = torch.frombuffer(bytearray(os.read(read_end, 1 << 16)), dtype=torch.float32)
    whole, _ = run(forked, Bsp())
    assert torch.equal(torch.cat([servers[0].parameters.read(), rest]), whole.parameters.read())


def dies(worker: int, clock: int) -> None:
    if (worker, clock) == (1, 3):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_dead_worker_is_named(forked: Fork) -> None:
    with pytest.raises(WorkerLostError, match=r"worker 1 is gone after 3 updates.*--on-loss continue"):
        run(forked, Asp(), dies)


@pytest.mark.parametrize("policy", [Asp(), Ssp(1), DynSsp(1)], ids=str)
def test_the_others_go_on_without_a_dead_worker(policy: Consistency, forked: Fork) -> None:
    """All of theirs is there, and what the dead one pushed before."""
    server, report = run(forked, policy, dies, OnLoss.CONTINUE)
    assert report.lost == [1]
    assert server.parameters.clocks == [NUM_CLOCKS, 3, NUM_CLOCKS]


def test_a_stopped_worker_keeps_the_others_for_as_long_as_it_is_stopped(forked: Fork) -> None:
    """SIGSTOP in mid-run: nothing breaks and nothing is lost, and the run ends soon after the worker goes on."""

    def stops(worker: int, clock: int) -> None:
        if (worker, clock) == (2, 4):
            stopped = os.getpid()
            resumed = os.fork()
            if resumed == 0:
                while process_state(stopped) not in "TZ":  # a signal that came before the stop would be lost
                    time.sleep(0.001)
                time.sleep(0.5)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(stopped, signal.SIGCONT)
                os._exit(0)
            os.kill(stopped, signal.SIGSTOP)

    server, report = run(forked, Ssp(1), stops)
    assert server.parameters.clocks == [NUM_CLOCKS] * NUM_WORKERS
    assert max(report.tally.waited_s[:2]) > 0.2  # of the half second: the machine may be late to stop it
    assert report.lost == []


LARGE = 8_000_000  # parameters, more bytes than the kernel holds for a socket


class Puller:
    """A worker of a large model, answer by answer: it has pushed once and asked for the parameters."""

    def __init__(self, worker: int, server: ParameterServerProcess) -> None:
        self.link = ServersLink(worker, [place_of(server, 0, LARGE)], [["all"]])
        self.link.push(0, torch.zeros(LARGE))
        (self.socket,) = self.link._sockets
        self.socket.sendall(header_of(FrameKind.PULL, worker, 0))

    def has_nothing_for(self, seconds: float) -> bool:
        return not select.select([self.socket], [], [], seconds)[0]

    def take(self) -> Tensor:
        return self.link._receive(0).payload


@pytest.fixture
def pullers() -> Iterator[list[Puller]]:
    """Both ask while nothing is sent yet, the first one first."""
    server = ParameterServerProcess(
        Parameters(torch.zeros(LARGE), 2, Bsp().share),
        ADDRESS,
        num_clocks=1,
        exact_reads=True,
        on_loss=OnLoss.CONTINUE,
    )
    serving = threading.Thread(target=server.serve)
    serving.start()
    # The answers wait for both pushes, so the order of the pulls is that of the answers.
    own = [Puller(worker, server) for worker in range(2)]
    yield own
    for puller in own:
        with contextlib.suppress(ServerLostError, OSError):  # one may be lost
            puller.link.close()
    serving.join()


def test_answers_leave_one_after_the_other(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr("harness.asynchrony.server.STALLED_S", 3600.0)
    first, second = request.getfixturevalue("pullers")
    assert second.has_nothing_for(0.3)
    assert first.take().numel() == 4 * LARGE
    assert second.take().numel() == 4 * LARGE


def test_an_answer_behind_that_of_a_lost_worker_leaves_at_once(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr("harness.asynchrony.server.STALLED_S", 3600.0)
    first, second = request.getfixturevalue("pullers")
    assert second.has_nothing_for(0.1)
    first.socket.shutdown(socket.SHUT_RDWR)
    assert not second.has_nothing_for(patience_s(20.0))
    assert second.take().numel() == 4 * LARGE


def test_a_worker_that_takes_nothing_lets_the_next_one_go_first(pullers: list[Puller]) -> None:
    first, second = pullers
    assert second.take().numel() == 4 * LARGE
    assert first.take().numel() == 4 * LARGE


def test_a_dead_server_is_reported_with_the_parameters_that_it_held(forked: Fork) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))  # 4, 2, 2 and 1 elements
    parameters = dict(model.named_parameters())
    parts = parts_of(9, 2)
    keys = [names_within(parameters, *part) for part in parts]
    assert keys == [["0.weight", "0.bias"], ["0.bias", "1.weight", "1.bias"]]
    servers = [server_of(Asp(), start=start, stop=stop) for start, stop in parts]
    pids = [forked(server.serve) for server in servers]
    link = ServersLink(0, [place_of(server, *part) for server, part in zip(servers, parts, strict=True)], keys)
    link.push(0, torch.zeros(9))
    link.pull(-1)
    os.kill(pids[1], signal.SIGKILL)

    def go_on() -> None:
        for clock in range(1, 1000):
            link.push(clock, torch.zeros(9))
            link.pull(-1)

    with pytest.raises(ServerLostError, match=r"server 1 is gone and with it elements 5 to 8: 0\.bias, 1\.weight"):
        go_on()
    for server in servers:
        server.close()  # this process' copies of their listeners


def test_strangers_are_turned_away_and_the_run_goes_on(forked: Fork) -> None:
    """With a wrong token, with one that is too long, and by another protocol."""
    server = server_of(Bsp())
    greetings = (
        header_of(FrameKind.HELLO, 0, 0, 16) + b"?" * 16,
        header_of(FrameKind.HELLO, 0, 0, 1 << 40),
        b"GET / HTTP/1.1\r\n\r\n" + b" " * 40,
    )
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(socket.create_connection((ADDRESS, server.port))) for _ in greetings]
        for stranger, greeting in zip(strangers, greetings, strict=True):
            stranger.sendall(greeting)
        for worker in range(NUM_WORKERS):
            forked(lambda own=worker: work(own, [place_of(server)], Bsp(), in_turn))
        server.serve()
        for stranger, greeting in zip(strangers, greetings, strict=True):
            with contextlib.suppress(ConnectionResetError):  # as it is where bytes were left unread
                assert stranger.recv(1) == b"", greeting
    assert server.parameters.clocks == [NUM_CLOCKS] * NUM_WORKERS


FAULTS = {
    "an update of 3 bytes": (FrameKind.PUSH, 0, b"abc", "an update of 3 bytes, where 20 are expected"),
    "a goodbye at once": (FrameKind.DONE, 0, b"", "its goodbye after 0 of 8 updates"),
    "an update beyond the last": (FrameKind.PUSH, NUM_CLOCKS, bytes(20), "a PUSH of clock 8, where the last one is 7"),
    "a pull of what it keeps itself": (FrameKind.PULL, 3, b"", "asks for clock 3 after 0 updates of its own"),
    "an update out of turn": (FrameKind.PUSH, 2, bytes(20), "worker 1 pushes clock 2 after 0 updates"),
    "a second greeting": (FrameKind.HELLO, 0, b"", "a frame of kind HELLO, which no worker sends"),
    "a server's frame": (FrameKind.PARAMETERS, 0, b"", "a frame of kind PARAMETERS, which no worker sends"),
    "more than it may": (FrameKind.PUSH, 0, bytes(21), "21 bytes; at most 20"),
    "no frame": (200, 0, b"", "a frame of kind 200"),
}


@pytest.mark.parametrize("on_loss", OnLoss)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_worker_that_breaks_the_protocol_ends_the_run_and_is_named(fault: str, on_loss: OnLoss) -> None:
    """A loss that the others go on without would train on what it has sent before."""
    kind, clock, payload, said = FAULTS[fault]
    server = server_of(Ssp(1), on_loss)
    with socket.create_connection((ADDRESS, server.port)) as worker:
        worker.sendall(header_of(FrameKind.HELLO, 1, 0, len(server.token)) + server.token)
        worker.sendall(header_of(kind, 1, clock, len(payload)) + payload)  # type: ignore[arg-type]
        with pytest.raises((WorkerFaultError, ClockError), match=said) as error:
            server.serve()
    assert re.match("(rank|worker) 1", str(error.value))


def test_two_processes_cannot_be_one_worker() -> None:
    server = server_of(Ssp(1), OnLoss.CONTINUE)
    places = [place_of(server)]
    links = [ServersLink(1, places, [["all"]]) for _ in range(2)]
    with pytest.raises(WorkerFaultError, match="rank 1 greets as a worker, and there is none or already one"):
        server.serve()
    for link in links:
        link._sockets[0].close()


def test_clients_that_only_connect_take_no_descriptor_that_workers_need(
    forked: Fork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may have 1,024 by default, and the server ended when they were used up."""
    monkeypatch.setattr("harness.asynchrony.server.MOST_UNKNOWN", 5)
    server = server_of(Bsp())
    began = len(os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as stack:
        for _ in range(3):  # the kernel keeps as many as there are workers until they are accepted
            for _ in range(NUM_WORKERS):
                stranger = stack.enter_context(socket.socket())
                stranger.setblocking(False)
                stranger.connect_ex((ADDRESS, server.port))
            for _ in range(NUM_WORKERS):
                server._accept()
        held = len(os.listdir("/proc/self/fd")) - began - 3 * NUM_WORKERS
        assert held == len(server._unknown) == 5 + NUM_WORKERS
        for worker in range(NUM_WORKERS):
            forked(lambda own=worker: work(own, [place_of(server)], Bsp(), in_turn))
        server.serve()
    assert server.parameters.clocks == [NUM_CLOCKS] * NUM_WORKERS


def test_a_paced_link_carries_no_faster_than_its_rate(forked: Fork) -> None:
    """8 pushes of 3 workers with 20 bytes each at 1 ms per byte: half a second on the inbound way alone."""
    cluster = VirtualCluster(num_workers=NUM_WORKERS, compute_s=1.0, beta_s_per_byte=1e-3)
    server = ParameterServerProcess(
        Parameters(torch.zeros(NUMEL), NUM_WORKERS, Asp().share),
        ADDRESS,
        num_clocks=NUM_CLOCKS,
        exact_reads=False,
        on_loss=OnLoss.STOP,
        paced_by=cluster,
    )
    start_s = time.monotonic()
    for worker in range(NUM_WORKERS):
        forked(lambda own=worker: work(own, [place_of(server)], Asp(), in_turn))
    server.serve()
    assert time.monotonic() - start_s >= NUM_WORKERS * NUM_CLOCKS * 4 * NUMEL * 1e-3


def test_what_lands_after_its_worker_was_lost_counts_no_more() -> None:
    """An update and a pull that were on their way over a modelled link."""
    server = server_of(Ssp(1), OnLoss.CONTINUE)
    server._push(0, push_of(0))
    server.parameters.lose(1)
    server._push(0, push_of(1))
    server._push(1, push_of(0))
    server._pull(1, Frame(FrameKind.PULL, 1, -1, torch.empty(0, dtype=torch.uint8)))
    assert server.parameters.clocks == [2, 0, 0]
    assert server.parameters.num_pushed == 2
    assert not server.report.tally.ahead
    server.close()


def push_of(clock: int) -> Frame:
    return Frame(FrameKind.PUSH, 0, clock, torch.ones(NUMEL).view(torch.uint8))


def test_a_bound_that_nobody_reaches_fits_into_a_pull() -> None:
    assert header_of(FrameKind.PULL, 0, Ssp(10**10).must_include(1)) == header_of(FrameKind.PULL, 0, -1)


def test_a_server_to_which_nothing_came_has_no_cost_per_byte() -> None:
    assert ServerReport(StalenessTally.of(1), cpu_s=1.0).cpu_s_per_mb is None
    assert ServerReport(StalenessTally.of(1), cpu_s=1.0, num_bytes=2_000_000).cpu_s_per_mb == 0.5


def unreachable(*_: object) -> None:
    raise OSError(errno.EHOSTUNREACH, "No route to host")


def test_a_worker_whose_host_is_gone_is_a_lost_worker() -> None:
    server = server_of(Asp(), OnLoss.CONTINUE)
    with socket.create_connection((ADDRESS, server.port)) as worker:
        worker.sendall(header_of(FrameKind.HELLO, 1, 0, len(server.token)) + server.token)
        server._accept()
        (seat,) = (key.data for key in server._selector.get_map().values() if key.data)
        while seat.worker is None:
            server._serve(seat, selectors.EVENT_READ)
        server._serve(seat, selectors.EVENT_READ)  # nothing is there, and nobody is lost by that
        assert server.report.lost == []
        seat.reader.read = unreachable
        server._serve(seat, selectors.EVENT_READ)
    assert server.report.lost == [1]
    server.close()


def test_a_connection_that_is_not_there_any_more_when_it_is_accepted_ends_no_server() -> None:
    server = server_of(Asp())
    server._accept()
    assert not any(key.data for key in server._selector.get_map().values())
    assert server.report.lost == []
    server.close()


def test_a_server_whose_host_is_gone_is_a_lost_server() -> None:
    server = server_of(Asp())
    link = ServersLink(0, [place_of(server)], [["all"]])
    link._readers[0].read = unreachable  # type: ignore[method-assign,assignment]
    with pytest.raises(ServerLostError, match="No route to host"):
        link.pull(-1)
    server.close()


def test_both_sides_ask_after_a_host_of_which_nothing_is_heard() -> None:
    server = server_of(Asp())
    link = ServersLink(0, [place_of(server)], [["all"]])
    server._accept()
    (seat,) = (key.data for key in server._selector.get_map().values() if key.data)
    for own in (seat.socket, *link._sockets):
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert 0 < own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < 300
        own.close()
    server.close()
