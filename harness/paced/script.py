"""A user's script as rank 0 among virtual peers: whatever process group it asks for is a paced one.

`install` is called when torch has been imported and before the script goes on. It replaces two functions inside
torch.distributed (written against torch 2.13): where ranks meet, since nobody comes, and where a group's backend is
made, since every one is `paced`. The link's process is started with the first group and ends with the script. What
steps took is printed when the script ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from time import perf_counter
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.optim.optimizer import register_optimizer_step_post_hook

from fabric.cluster import FabricError
from fabric.paced import PACED, paced_link
from harness.lab.scratch import Scratch
from harness.paced.group import register
from harness.paced.link_client import LinkClient
from harness.paced.pacing import PacedTraffic, Pacing
from harness.paced.settings import ScriptPace
from harness.paced.steps import SometimesFree, StepMeter, report_of

ROOT = Path(__file__).resolve().parents[2]


class PacedScript:
    """The process of a paced script."""

    def __init__(self, pace: ScriptPace) -> None:
        self._pace = pace
        self._traffic = PacedTraffic()
        self._meter = StepMeter(self._traffic, perf_counter)
        self._socket: Path | None = None

    @property
    def _size(self) -> int:
        return self._pace.spec.num_ranks

    def meet(
        self, url: str, rank: int = -1, world_size: int = -1, **asked: Any
    ) -> Iterator[tuple[dist.Store, int, int]]:
        """In place of torch's rendezvous: nobody else comes."""
        own_rank = int(os.environ.get("RANK", "0")) if rank < 0 else rank
        size = int(os.environ.get("WORLD_SIZE", str(self._size))) if world_size < 0 else world_size
        self._check_place(own_rank, size)
        # A store in memory: nobody else will ever look into it.
        yield dist.HashStore(), 0, self._size

    def _check_place(self, rank: int, size: int) -> None:
        """Raises: FabricError where the script is to be another rank, or one of another number of ranks."""
        if rank != 0:
            raise FabricError(
                f"the script asks to be rank {rank}, and a paced script is rank 0, the only real one; start it once, "
                "without torchrun or spawned ranks"
            )
        if size != self._size:
            raise FabricError(
                f"the script asks for {size} ranks, and is paced among {self._size}; pace it with --hosts {size}, or "
                "let it take WORLD_SIZE from the environment"
            )

    def pacing(self) -> Pacing:
        """For a default group: the link, whose process is started if it is not there yet."""
        link = paced_link(self._pace.spec)
        assert link is not None
        if self._socket is None:
            self._socket = _start_link()
            register_optimizer_step_post_hook(lambda optimizer, *_: self._meter.ended(optimizer))
            at_end(self._report)
        carrier = SometimesFree(LinkClient(self._socket), self._meter)
        return Pacing(link, carrier, is_virtual=True, traffic=self._traffic)

    def redirect(self, make_group: Any) -> Any:
        """`make_group` of torch with `paced` in place of the backend asked for."""

        def paced(size: int, rank: int, ranks: list[int], backend: object, *others: Any, **named: Any) -> Any:
            is_default = not ranks
            if is_default:
                self._check_place(rank, size)
            named |= {"backend_options": self.pacing() if is_default else None, "device_id": None}
            return make_group(size, rank, ranks, dist.Backend(PACED), *others, **named)

        return paced

    def _report(self) -> None:
        report = report_of(self._pace.spec, self._meter.steps)
        print(report.text(), file=sys.stderr)
        if self._pace.report is not None:
            report.write(self._pace.report)


def install(pace: ScriptPace) -> None:
    """Have every process group of this process paced."""
    register()
    script = PacedScript(pace)
    # Replaced in the module that looks them up by name at each call.
    distributed_c10d.rendezvous = script.meet
    distributed_c10d._new_process_group_helper = script.redirect(distributed_c10d._new_process_group_helper)


def _start_link() -> Path:
    scratch = Scratch()
    at_end(scratch.remove)
    socket = scratch.path / "link"
    command = [sys.executable, "-P", "-m", "harness.paced.link_server", str(socket), str(os.getpid())]
    server = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE)
    at_end(server.terminate)
    assert server.stdout is not None
    # Connecting before the socket is bound would fail, and polling for it would guess at a time.
    if (said := server.stdout.readline().decode().strip()) != "ready":
        raise FabricError(
            said or f"the link's process at {socket} did not start; is the folder of temporary files writable?"
        )
    return socket


def at_end(call: Callable[[], object]) -> None:
    """Call it when this process ends, before what was registered earlier. Unlike with `atexit`, a worker of
    multiprocessing calls its own too, and a forked child none of its parent's."""
    Finalize(None, call, exitpriority=1)
