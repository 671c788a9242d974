"""A worker that is stopped for five seconds in a run of processes: nothing breaks, and nobody passes its bound."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from baselines.api import Consistency
from baselines.consistency.asp import Asp
from baselines.consistency.bsp import Bsp
from baselines.consistency.dynssp import DynSsp
from baselines.consistency.ssp import Ssp
from harness.asynchrony.client import ServerPlace, ServersLink
from harness.asynchrony.cluster import OnLoss
from harness.asynchrony.parameters import Parameters
from harness.asynchrony.server import ParameterServerProcess

NUM_WORKERS, NUM_CLOCKS, STOPPED_S = 3, 20, 5.0
ADDRESS = "127.0.0.1"


def fork(run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(0)
    return pid


def work(worker: int, place: ServerPlace, policy: Consistency) -> None:
    """A clock every 20 ms."""
    link, update = ServersLink(worker, [place], [["all"]]), torch.ones(4)
    for clock in range(NUM_CLOCKS):
        if clock:
            link.pull(policy.must_include(clock))
        time.sleep(0.02)
        if (worker, clock) == (2, 5):
            stop_myself()
        link.push(clock, update)
    link.pull(NUM_CLOCKS - 1, is_last=True)
    link.close()


def stop_myself() -> None:
    parent = os.getpid()
    if os.fork() == 0:
        time.sleep(STOPPED_S)
        os.kill(parent, signal.SIGCONT)
        os._exit(0)
    os.kill(parent, signal.SIGSTOP)


@pytest.mark.parametrize("policy", [Bsp(), Ssp(2), DynSsp(2), Asp()], ids=str)
def test_a_worker_that_is_stopped_for_five_seconds_keeps_the_others_at_their_bound(policy: Consistency) -> None:
    """Those that may not wait for ever run ahead by their staleness and then wait for the rest of the five seconds."""
    values: Tensor = torch.zeros(4)
    server = ParameterServerProcess(
        Parameters(values, NUM_WORKERS, policy.share),
        ADDRESS,
        num_clocks=NUM_CLOCKS,
        exact_reads=policy.is_synchronous,
        on_loss=OnLoss.STOP,
    )
    place = ServerPlace(ADDRESS, server.port, server.token, 0, 4)
    pids = [fork(lambda own=worker: work(own, place, policy)) for worker in range(NUM_WORKERS)]  # type: ignore[misc]
    report = server.serve()
    for pid in pids:
        os.waitpid(pid, 0)
    assert server.parameters.clocks == [NUM_CLOCKS] * NUM_WORKERS
    assert report.lost == []
    if policy.staleness is None:
        assert max(report.tally.ahead) > 10  # the others were done while it was stopped
    else:
        assert max(report.tally.ahead) <= policy.staleness
        assert min(report.tally.waited_s[:2]) > STOPPED_S - 1.0 - 0.02 * policy.staleness
