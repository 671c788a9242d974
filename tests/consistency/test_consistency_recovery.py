"""Servers and workers as processes are killed, all at once and at any moment, and go on: every clock counts once."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest
import torch
from forks import end
from torch import Tensor, nn

from baselines.api import Consistency
from baselines.consistency.asp import Asp
from baselines.consistency.bsp import Bsp
from baselines.consistency.ssp import Ssp
from crossover import Alone
from harness.asynchrony.client import ServerPlace, ServersLink, parts_of
from harness.asynchrony.cluster import OnLoss, VirtualCluster
from harness.asynchrony.parameters import Parameters
from harness.asynchrony.recovery import ServerStates, WorkerStates, last_common_version, versions_of
from harness.asynchrony.server import ParameterServerProcess
from harness.asynchrony.training import Training
from harness.asynchrony.virtual import VirtualRun
from harness.asynchrony.worker import train_on_servers
from harness.engine.checkpoint import CheckpointError
from harness.problems.shared_memory import forked as fork

NUM_WORKERS, NUM_CLOCKS, EVERY = 2, 12, 2
ADDRESS = "127.0.0.1"
NUMEL = NUM_WORKERS * NUM_CLOCKS


def counting() -> Training:
    """Every update adds 1 to an element of its own, that of its worker and of how many batches the worker has drawn. So
    the weights at the end are the counts, half each as workers weigh 1/P, and a worker that goes on with a state of
    another clock counts elsewhere."""
    model = nn.Linear(NUMEL, 1, bias=False)
    nn.init.zeros_(model.weight)

    def loss(worker: int, own: nn.Module) -> Tensor:
        return -own.get_parameter("weight")[0, worker * NUM_CLOCKS + training.num_drawn(worker)]

    training = Training(model, lambda parameters: torch.optim.SGD(parameters, lr=1.0), loss, NUM_WORKERS)
    return training


def learning() -> Training:
    """Momentum, dropout and data that go on: states which a worker must find again."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(NUMEL - 1, 1, bias=True), nn.Dropout(0.2))

    def loss(worker: int, own: nn.Module) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * worker + training.num_drawn(worker))
        inputs = torch.randn(4, NUMEL - 1, generator=generator)
        return nn.functional.mse_loss(own(inputs), inputs.sum(1, keepdim=True).sin())

    def build(parameters: Iterable[tuple[str, Tensor]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    training = Training(model, build, loss, NUM_WORKERS, seed=7)
    return training


def start(
    folder: Path,
    make: Callable[[], Training],
    policy: Consistency,
    num_servers: int,
    pushed: Callable[[int, int], object],
) -> list[int]:
    """All processes of the run, servers first, from the last version that is in `folder` on."""
    parts, version = parts_of(NUMEL, num_servers), last_common_version(folder, num_servers)
    servers = []
    for number, (first, last) in enumerate(parts):
        own = Parameters(make().values[first:last], NUM_WORKERS, policy.share)
        server = ParameterServerProcess(
            own, ADDRESS, num_clocks=NUM_CLOCKS, exact_reads=policy.is_synchronous, on_loss=OnLoss.CONTINUE
        )
        server.keep(ServerStates(folder, number, num_servers, EVERY), version)
        servers.append(server)
    places = [ServerPlace(ADDRESS, own.port, own.token, *part) for own, part in zip(servers, parts, strict=True)]

    def serve(number: int) -> None:
        report = servers[number].serve()
        torch.save([sum(own.values()) for own in report.tally.missed_by], folder / f"counts-{number}.pt")

    def work(worker: int) -> None:
        training, link = make(), ServersLink(worker, places, [["all"]] * num_servers)
        train_on_servers(
            worker,
            training,
            link,
            policy,
            NUM_CLOCKS,
            turns=Alone(),
            lasts_until_s=lambda clock, since_s: since_s + 0.002 * (1 + worker),
            on_push=lambda clock: pushed(worker, clock),
            states=WorkerStates(folder, worker, num_servers),
        )
        pushed(worker, NUM_CLOCKS)
        link.close()
        torch.save(training.values, folder / f"end-{worker}.pt")

    pids = [fork(partial(serve, number)) for number in range(num_servers)]
    pids += [fork(partial(work, worker)) for worker in range(NUM_WORKERS)]
    for server in servers:
        server.close()  # this process' copies of their listeners
    return pids


def finish(pids: list[int]) -> None:
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * len(pids)


def kill_all(folder: Path, make: Callable[[], Training], policy: Consistency, num_servers: int, at: int) -> None:
    """Start, and kill everybody when all workers have come to clock `at` or beyond, whatever they do just then."""
    read_end, write_end = os.pipe()

    def pushed(worker: int, clock: int) -> None:
        if clock >= at:
            os.write(write_end, bytes([worker]))

    pids = start(folder, make, policy, num_servers, pushed)
    os.close(write_end)
    heard = set[int]()
    while len(heard) < NUM_WORKERS:
        told = os.read(read_end, 1)
        assert told, f"all have ended, and of workers only {heard} came to clock {at}"
        heard.update(told)
    os.close(read_end)
    for pid in pids:
        end(pid)


def five_moments(of: str) -> list[int]:
    """Clocks at random, the last early enough that nobody has ended."""
    return sorted(random.Random(of).sample(range(1, NUM_CLOCKS - 1), 5))


@pytest.mark.parametrize(("policy", "num_servers"), [(Asp(), 2), (Ssp(2), 2), (Bsp(), 1)], ids=str)
def test_no_update_is_lost_or_applied_twice(policy: Consistency, num_servers: int, tmp_path: Path) -> None:
    """Killed at five moments. Servers count pushes too: each has taken every clock of every worker once."""
    for at in five_moments(f"{policy} on {num_servers}"):
        kill_all(tmp_path, counting, policy, num_servers, at)
        # Who came to a clock had heard of the version before it, which was written by then.
        assert (last_common_version(tmp_path, num_servers) or 0) >= at - 1
    finish(start(tmp_path, counting, policy, num_servers, lambda worker, clock: None))
    for worker in range(NUM_WORKERS):
        counts = NUM_WORKERS * torch.load(tmp_path / f"end-{worker}.pt")
        assert counts.tolist() == [1.0] * NUMEL
    for number in range(num_servers):
        assert torch.load(tmp_path / f"counts-{number}.pt") == [NUM_CLOCKS] * NUM_WORKERS


def test_a_synchronous_run_that_was_killed_ends_with_the_bits_of_the_unbroken_one(tmp_path: Path) -> None:
    """Killed at five moments. As the virtual clock computes it, momentum, dropout and data included."""
    unbroken = learning()
    whole = VirtualRun(
        VirtualCluster(num_workers=NUM_WORKERS, compute_s=1.0), Bsp(), unbroken.values, unbroken.update, NUM_CLOCKS
    )
    list(whole)
    for at in five_moments("bits on 2"):
        kill_all(tmp_path, learning, Bsp(), 2, at)
    finish(start(tmp_path, learning, Bsp(), 2, lambda worker, clock: None))
    assert torch.equal(torch.load(tmp_path / "end-0.pt"), whole.parameters.read())


def test_a_worker_that_was_lost_comes_back_where_the_others_are(tmp_path: Path) -> None:
    """Versions that are complete without it stay so; from then on each of its clocks counts once. The bound of SSP lets
    the other one get to clock 8 only when the loss is known."""

    def dies(worker: int, clock: int) -> None:
        if (worker, clock) == (1, 2):
            os._exit(9)
        if (worker, clock) == (0, 8):
            os.write(write_end, b"!")

    read_end, write_end = os.pipe()
    pids = start(tmp_path, counting, Ssp(2), 1, dies)
    os.close(write_end)
    assert os.read(read_end, 1) == b"!"
    os.close(read_end)
    for pid in pids:
        end(pid)
    back_at = versions_of(tmp_path, 0)[-1]
    assert back_at > 3  # the others had gone on without it
    finish(start(tmp_path, counting, Ssp(2), 1, lambda worker, clock: None))
    own, lost = (NUM_WORKERS * torch.load(tmp_path / "end-0.pt")).split(NUM_CLOCKS)
    assert own.tolist() == [1.0] * NUM_CLOCKS
    # Its data go on after the three batches that it had drawn.
    assert lost.tolist() == [1.0] * (3 + NUM_CLOCKS - back_at) + [0.0] * (back_at - 3)
    assert torch.load(tmp_path / "counts-0.pt") == [NUM_CLOCKS, 3 + NUM_CLOCKS - back_at]


def test_files_that_nobody_can_ask_for_are_removed(tmp_path: Path) -> None:
    finish(start(tmp_path, counting, Bsp(), 1, lambda worker, clock: None))
    assert versions_of(tmp_path, 0) == [NUM_CLOCKS]
    assert len(list(tmp_path.glob("worker-0.*"))) <= EVERY + 1


def test_states_of_another_model_are_refused() -> None:
    """Such as the part that one of two servers held, where there is one server now."""
    half, whole = (Parameters(torch.zeros(num), NUM_WORKERS, Asp().share) for num in (NUMEL // 2, NUMEL))
    with pytest.raises(CheckpointError, match=rf"{NUMEL // 2} parameters; here are {NUM_WORKERS} and {NUMEL}"):
        whole.load_state_dict(half.state_dict())


def test_states_of_another_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"server 0 has written versions \[\] and not 4"):
        ServerStates(tmp_path, 0).load(4)
    with pytest.raises(CheckpointError, match="worker 1 has written clocks"):
        WorkerStates(tmp_path, 1).load(4, counting(), was_lost=False)
    with pytest.raises(CheckpointError, match="every is 0; write each 1 or more"):
        ServerStates(tmp_path, 0, every=0)
