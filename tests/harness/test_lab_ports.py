"""Where the ranks of a lab meet: at ports that nothing else of the machine has or is given."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from fabric.api import FabricError
from harness.lab import process
from harness.lab.process import FIRST_PORT, NUM_PORTS, PORTS_A_TASK, free_ports


@pytest.fixture
def listens() -> Iterator[int]:
    """A port of the labs' range at which something listens; the two before it are free."""
    with ExitStack() as stack:
        for port in range(FIRST_PORT + 2, FIRST_PORT + NUM_PORTS):
            taken = stack.enter_context(socket.socket())
            try:
                taken.bind(("", port))
            except OSError:
                continue
            taken.listen()
            yield port
            return


def test_a_port_in_use_is_passed_over(listens: int) -> None:
    assert free_ports(listens - FIRST_PORT, 1) != listens


def test_all_jobs_of_a_trial_find_theirs_free(listens: int) -> None:
    first = free_ports(listens - 1 - FIRST_PORT, 2)
    assert first not in (listens - 1, listens)


def test_they_lie_below_those_of_outgoing_connections() -> None:
    """A port of Linux's own range (from 32768 by default) is free when it is looked at, and a connection's later."""
    assert FIRST_PORT + NUM_PORTS + PORTS_A_TASK <= 32_768


def test_none_left_is_said(listens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "FIRST_PORT", listens)
    monkeypatch.setattr(process, "NUM_PORTS", 1)
    with pytest.raises(FabricError, match=r"no free ports .* end what listens there"):
        free_ports(0, 1)
