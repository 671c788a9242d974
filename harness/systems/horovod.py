"""Horovod as itself, over its own gloo controller.

Paper: Sergeev and Del Balso, arXiv 1802.05799. `fusion_threshold_bytes` 0 turns fusion off;
`cycle_s` is the pause between negotiations (Horovod's default of 1 ms costs a busy machine a
third of its compute, so the suites say which they use). Ranks meet through Horovod's own
rendezvous server, which rank 0 runs; its address travels through the default process group.
"""

from __future__ import annotations

import importlib.util
import os
import socket
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from harness.systems.api import PlainSession, Seat, Session, SystemCard


@dataclass(frozen=True, slots=True)
class Horovod:
    card: ClassVar[SystemCard] = SystemCard(
        name="horovod",
        summary="Horovod's DistributedOptimizer: negotiated tensor fusion",
        source="Sergeev and Del Balso, arXiv 1802.05799",
    )
    fusion_threshold_bytes: int = 128 * 1024 * 1024
    cycle_s: float = 0.001
    fp16: bool = False

    def why_unavailable(self) -> str | None:
        if importlib.util.find_spec("horovod") is None:
            return "Horovod is not installed; install a C++ compiler and cmake, then run make setup again"
        return None

    def prepare(self, model: nn.Module, seat: Seat) -> Session:
        server = _meet(seat)
        os.environ["HOROVOD_FUSION_THRESHOLD"] = str(self.fusion_threshold_bytes)
        os.environ["HOROVOD_CYCLE_TIME"] = str(self.cycle_s * 1e3)
        import horovod.torch as hvd

        hvd.init()
        compression = hvd.Compression.fp16 if self.fp16 else hvd.Compression.none
        optimizer = hvd.DistributedOptimizer(
            seat.strategy.optimizer.build(model.parameters()),
            named_parameters=model.named_parameters(),
            compression=compression,
        )
        return HorovodSession(model, optimizer, hvd, server)


class HorovodSession(PlainSession):
    """`synchronize` is the wait, `step` without it the update."""

    def __init__(self, model: nn.Module, optimizer: Any, hvd: Any, server: Any) -> None:
        super().__init__(model, optimizer)
        self._hvd, self._server = hvd, server
        self._synchronized = False

    def wait(self) -> None:
        if self._due and not self._synchronized:
            self._optimizer.synchronize()  # type: ignore[attr-defined]
            self._synchronized = True

    def update(self) -> None:
        if self._due:
            self.wait()
            with self._optimizer.skip_synchronize():  # type: ignore[attr-defined]
                super().update()
            self._synchronized = False

    def close(self) -> None:
        self._hvd.shutdown()
        dist.barrier()
        if self._server is not None:
            self._server.stop()


def _meet(seat: Seat) -> Any:
    """Start Horovod's rendezvous server on rank 0, tell all ranks its port, set their environment."""
    server = None
    port = torch.zeros(1, dtype=torch.int64)
    if seat.rank == 0:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousServer

        server = RendezvousServer(verbose=0)
        port[0] = server.start()
        names = ",".join(f"host{index}:1" for index in range(seat.world))
        server.init(get_host_assignments(parse_hosts(names), seat.world, seat.world))
    dist.broadcast(port, src=0)
    os.environ.update(
        HOROVOD_RANK=str(seat.rank),
        HOROVOD_SIZE=str(seat.world),
        HOROVOD_LOCAL_RANK="0",
        HOROVOD_LOCAL_SIZE="1",
        HOROVOD_CROSS_RANK=str(seat.rank),
        HOROVOD_CROSS_SIZE=str(seat.world),
        HOROVOD_GLOO_RENDEZVOUS_ADDR=_first_address(seat),
        HOROVOD_GLOO_RENDEZVOUS_PORT=str(int(port[0])),
        HOROVOD_GLOO_IFACE=seat.host.interface,
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_HOSTNAME=socket.gethostname(),
    )
    return server


def _first_address(seat: Seat) -> str:
    """Rank 0's IPv4 address, on every rank."""
    octets = torch.tensor([int(part) for part in seat.host.address.split(".")], dtype=torch.int64)
    dist.broadcast(octets, src=0)
    return ".".join(str(int(octet)) for octet in octets)
