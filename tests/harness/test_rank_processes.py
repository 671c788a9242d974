"""What is left when a rank process cannot be started."""

from __future__ import annotations

import errno
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from lab_tasks import spec_of, task

from fabric.api import Cluster, build
from harness.lab import rank_process
from harness.lab.process import Lab
from harness.lab.rank import Place

NATIVE = spec_of("native")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Hosts that nobody enters: the ranks of these tests do not train."""
    built = build(NATIVE)
    yield built
    built.close()


def places(cluster: Cluster) -> list[Place]:
    return [
        Place(job=0, rank=rank, host=host, slot=rank, rendezvous_address="", rendezvous_port=0)
        for rank, host in enumerate(cluster.hosts)
    ]


@pytest.mark.parametrize("name", ["fork", "pidfd_open"])
def test_a_rank_that_cannot_be_started_leaves_none_of_those_before_it(
    name: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = psutil.Process()
    before = own.children(), own.num_fds()
    really, calls = getattr(os, name), list[Any]()

    def second_fails(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(errno.EAGAIN, "there are too many")
        return really(*arguments)

    monkeypatch.setattr(rank_process, "_child", lambda *place: signal.pause())
    monkeypatch.setattr(os, name, second_fails)
    with pytest.raises(OSError, match="too many"):
        Lab(io.BytesIO(), io.BytesIO(), tmp_path)._run(task(NATIVE), cluster, places(cluster))
    assert (own.children(), own.num_fds()) == before
