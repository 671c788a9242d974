"""Jobs that pause, on two hosts with an arbiter each: nobody waits for them, and orders stay equal."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from patience import patience_s
from torch import nn

from crossover import CrossoverError, Participant, start
from crossover.attach import attach
from crossover.keeper import TurnKeeper

SOON_S = patience_s(20.0)
REST_LIMIT_S = patience_s(0.3)  # only a pause that is meant lasts so long
TURN_S = patience_s(0.02)  # two of them pass before a job that comes back is due: its workers must be quicker
HOSTS = (0, 1)


class Team:
    """The two workers of one job, which meet where an all-reduce would let them."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(len(HOSTS), timeout=SOON_S)
        self._told: list[int] = [0] * len(HOSTS)

    def agree_on(self, host: int) -> Callable[[int], int]:
        def agree(entry: int) -> int:
            self._told[host] = entry
            self.barrier.wait()
            latest = max(self._told)
            self.barrier.wait()
            return latest

        return agree


class Order:
    """The leases of a host's device in the order of their ends, and how many turns each job has had."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self._changed = threading.Condition()

    def note(self, job: str) -> None:
        with self._changed:
            self.jobs.append(job)
            self._changed.notify_all()

    def wait_for(self, job: str, num_more: int) -> bool:
        """Whether `job` gets that many more turns."""
        with self._changed:
            num_at_last = self.jobs.count(job) + num_more
            return self._changed.wait_for(lambda: self.jobs.count(job) >= num_at_last, SOON_S)


@contextmanager
def lab(folder: Path) -> Iterator[list[Path]]:
    with ExitStack() as stack:
        yield [stack.enter_context(start(folder / f"host{host}" / "x.sock")).path for host in HOSTS]


def run_all(workers: list[Callable[[], None]]) -> None:
    """Each in a thread of its own; the first error is raised."""
    errors: list[Exception] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except (AssertionError, CrossoverError, threading.BrokenBarrierError) as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SOON_S)
    assert not errors, errors
    assert not any(thread.is_alive() for thread in threads)


def keeper_of(path: Path, job: str, team: Team, host: int, order: Order) -> TurnKeeper:
    seat = Participant(path, job, agree=team.agree_on(host), wait_limit_s=SOON_S)
    return TurnKeeper(seat, wait=lambda: None, idle=lambda: order.note(job), rest_limit_s=REST_LIMIT_S)


def test_a_pause_on_all_hosts_lets_the_other_job_have_its_turn_and_rounds_stay_in_order(tmp_path: Path) -> None:
    """The pause lasts until the other job has had a turn on this host: if the turn were held, for ever."""
    teams, orders = {"a": Team(), "b": Team()}, [Order() for _ in HOSTS]
    num_steps = 6

    def train(paths: list[Path], job: str, host: int) -> None:
        keeper = keeper_of(paths[host], job, teams[job], host, orders[host])
        for step in range(num_steps):
            keeper.begin()
            keeper.rest()  # the update is done
            if job == "a" and step == 2:
                assert orders[host].wait_for("b", 1)
            keeper.begin()
            keeper.end()
            teams[job].barrier.wait()  # its messages
        assert keeper.statistics.num_turns == num_steps
        keeper.close()

    with lab(tmp_path) as paths:
        run_all([lambda job=job, host=host: train(paths, job, host) for job in teams for host in HOSTS])
    # The third turn of a is two leases: its update's, then b's turn, then the rest.
    assert orders[0].jobs == orders[1].jobs == list("abab" + "aba" + "ababab")


def test_a_declared_pause_lets_the_others_go_on_for_as_long_as_it_lasts_and_all_hosts_come_back_alike(
    tmp_path: Path,
) -> None:
    teams, orders = {"a": Team(), "b": Team()}, [Order() for _ in HOSTS]
    num_steps, is_over, must_end = 8, threading.Event(), threading.Event()

    def pausing(paths: list[Path], host: int) -> None:
        keeper = keeper_of(paths[host], "a", teams["a"], host, orders[host])
        for step in range(num_steps):
            if step == 4:
                with keeper.paused():
                    assert orders[host].wait_for("b", 5)
            keeper.begin()
            keeper.end()
            teams["a"].barrier.wait()
        if host == 0:
            is_over.set()
        keeper.close()

    def going_on(paths: list[Path], host: int) -> None:
        keeper = keeper_of(paths[host], "b", teams["b"], host, orders[host])
        for _ in range(10_000):
            keeper.begin()
            time.sleep(TURN_S)
            keeper.end()
            teams["b"].barrier.wait()
            # One host decides for both: it may be over between two looks.
            if host == 0 and is_over.is_set():
                must_end.set()
            teams["b"].barrier.wait()
            if must_end.is_set():
                break
        keeper.close()

    with lab(tmp_path) as paths:
        run_all(
            [lambda host=host: pausing(paths, host) for host in HOSTS]
            + [lambda host=host: going_on(paths, host) for host in HOSTS]
        )
    until_the_last_of_a = ["".join(order.jobs).rstrip("b") for order in orders]
    assert until_the_last_of_a[0] == until_the_last_of_a[1]
    assert until_the_last_of_a[0].startswith("abababab" + "bbbb")
    assert until_the_last_of_a[0].endswith("abababa")


def test_nobody_waits_for_the_pause_of_a_jobs_only_worker(tmp_path: Path) -> None:
    """The pause lasts until the other job has had five turns: in strict order it would get one."""
    model, order, is_over = nn.Linear(3, 2), Order(), threading.Event()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def other(path: Path) -> None:
        with Participant(path, "b", wait_limit_s=SOON_S) as seat:
            while not is_over.is_set():
                with seat.turn():
                    order.note("b")

    def pausing(path: Path) -> None:
        with attach(model, optimizer, job="a", path=path) as attachment:
            for step in range(6):
                optimizer.zero_grad()
                if step == 3:
                    assert order.wait_for("b", 5)
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
        is_over.set()
        assert attachment.statistics.num_turns == 7

    with start(tmp_path / "s.sock") as arbiter:
        run_all([lambda: other(arbiter.path), lambda: pausing(arbiter.path)])


@pytest.mark.parametrize("defer", [False, True], ids=["exact", "deferred"])
def test_a_thread_may_read_the_state_while_the_job_waits_for_its_turn(tmp_path: Path, defer: bool) -> None:
    """A second thread used to reach the arbiter in the middle of the first one's request."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    is_over, errors = threading.Event(), []

    def read() -> None:
        while not is_over.wait(1e-4):
            try:
                model.state_dict()
            except CrossoverError as error:
                errors.append(error)
                return

    def other(path: Path) -> None:
        with Participant(path, "b", wait_limit_s=SOON_S) as seat:
            while not is_over.is_set():
                with seat.turn():
                    time.sleep(1e-3)

    with start(tmp_path / "t.sock") as arbiter:
        threads = [threading.Thread(target=read), threading.Thread(target=other, args=(arbiter.path,))]
        attachment = attach(model, optimizer, job="a", path=arbiter.path, defer=defer)
        for thread in threads:
            thread.start()
        for _ in range(30):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        attachment.close()
        is_over.set()
        for thread in threads:
            thread.join(SOON_S)
    assert not errors
    # An update that waits may run early, under a lease aside, but no turn is lost or added.
    assert attachment.statistics.num_turns == 30 + (not defer)


def test_a_job_is_attached_once_in_a_process(tmp_path: Path) -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    with start(tmp_path / "t.sock") as arbiter:
        with attach(model, job="a", path=arbiter.path), pytest.raises(ValueError, match="all its models in one call"):
            attach(other, job="a", path=arbiter.path)
        attach(other, job="a", path=arbiter.path).close()
