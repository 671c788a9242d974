"""Horovod as itself, over its own gloo controller.

Paper: Sergeev and Del Balso, arXiv 1802.05799. `fusion_threshold_bytes` 0 turns fusion off;
`cycle_s` is the pause between negotiations (Horovod's default of 1 ms costs a busy machine a
third of its compute, so the suites say which they use). Ranks meet through Horovod's own
rendezvous server, which rank 0 runs; its address and secret travel through the default process group.

With `autotune` Horovod searches both itself (a threshold of 0–64 MB, a cycle of 1–100 ms, by
Bayesian optimisation of bytes per second), and the two settings above are not passed on, since
what is passed on is fixed. Tuned settings are tried for 5 · `autotune_steps` steps each, first
`autotune_warmup` times without looking, then `autotune_samples` + 1 times. The defaults are
Horovod's own and come to 1,224 steps, which have to be warm-up. What it chose is in the
session's notes. Response cache and flat rings are kept, so that nothing else is searched.

Micro-batches are Horovod's `backward_passes_per_step`.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import secrets
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from baselines.api import OptimizerSpec, size
from baselines.text import TextError
from harness.lab.meeting import PROOF_BYTES, PROOF_TIMEOUT_S, REMEDY, StrangerError, check_proofs, proof_of
from harness.precision import Precision
from harness.systems.api import PlainSession, RankSeat, Session, SystemCard

SAMPLES_A_TRIAL = 5  # Horovod's: the median of so many samples is what a setting scores
_ADDRESS_BYTES, _PORT_BYTES = 4, 2
NEVER = 1 << 30  # backward passes
REMADE = ("sgd", "adam")  # torch's own, whose groups say all that they do
NOT_SEARCHED = {
    "HOROVOD_CACHE_CAPACITY": "1024",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
    "HOROVOD_TORUS_ALLREDUCE": "0",
}


@dataclass(frozen=True, slots=True)
class Horovod:
    card: ClassVar[SystemCard] = SystemCard(
        name="horovod",
        summary="Horovod's DistributedOptimizer: negotiated tensor fusion",
        source="Sergeev and Del Balso, arXiv 1802.05799",
    )
    precisions: ClassVar[frozenset[Precision]] = frozenset({Precision.FLOAT32, Precision.BFLOAT16})
    fusion_threshold_bytes: int = size(128 * 1024 * 1024, "bytes")
    cycle_s: float = 0.001
    fp16: bool = False
    autotune: bool = False
    autotune_warmup: int = 3
    autotune_steps: int = 10
    autotune_samples: int = 20

    def __post_init__(self) -> None:
        if self.fusion_threshold_bytes < 0 or self.cycle_s < 0:
            raise TextError(
                f"horovod: fusion_threshold_bytes is {self.fusion_threshold_bytes} and cycle_s {self.cycle_s:g}; both "
                "must be 0 or more"
            )
        for name in ("autotune_warmup", "autotune_steps", "autotune_samples"):
            if getattr(self, name) < 1:
                raise TextError(f"horovod: {name} is {getattr(self, name)}; it must be at least 1")

    @property
    def num_warmup(self) -> int:
        """Steps until the autotuner has chosen; a trial ends with the first tensor of the step behind it."""
        num_trials = self.autotune_warmup + self.autotune_samples + 1
        return num_trials * (SAMPLES_A_TRIAL * self.autotune_steps + 1) if self.autotune else 0

    @property
    def compresses(self) -> bool:
        """With `fp16` halves travel."""
        return self.fp16

    def why_unavailable(self) -> str | None:
        """The reason where it is not installed, else None; does not import it."""
        if importlib.util.find_spec("horovod") is None:
            return "Horovod is not installed; install a C++ compiler and cmake, then run make setup again"
        return None

    def why_not_stepped(self, optimizer: OptimizerSpec) -> str | None:
        """All but torch's own optimizers."""
        return why_not_remade(optimizer)

    def prepare(self, model: nn.Module, seat: RankSeat) -> Session:
        """Start Horovod among the ranks of the default process group and wrap the optimizer in its own."""
        log = seat.scratch / f"autotune-{seat.rank}.csv" if self.autotune and seat.scratch else None
        os.environ.update(self._environment(log))
        hvd, server = connect(seat)
        compression = hvd.Compression.fp16 if self.fp16 else hvd.Compression.none
        optimizer = hvd.DistributedOptimizer(
            seat.strategy.optimizer.build(model.parameters()),
            named_parameters=model.named_parameters(),
            compression=compression,
            backward_passes_per_step=seat.accumulate,
        )
        return HorovodSession(
            model, optimizer, hvd, server, accumulate=seat.accumulate, clip_norm=seat.clip_norm, autotune_log=log
        )

    def _environment(self, log: Path | None) -> dict[str, str]:
        if not self.autotune:
            return {
                "HOROVOD_FUSION_THRESHOLD": str(self.fusion_threshold_bytes),
                "HOROVOD_CYCLE_TIME": str(self.cycle_s * 1e3),
            }
        # What an earlier trial of the same process has set would count as given, and not be searched.
        for fixed in ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME"):
            os.environ.pop(fixed, None)
        return {
            "HOROVOD_AUTOTUNE": "1",
            "HOROVOD_AUTOTUNE_LOG": str(log or ""),
            "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": str(self.autotune_warmup),
            "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": str(self.autotune_steps),
            "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": str(self.autotune_samples),
            **NOT_SEARCHED,
        }


class HorovodSession(PlainSession):
    """`synchronize` is the wait, `step` without it the update."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        hvd: Any,
        server: Any,
        *,
        accumulate: int = 1,
        clip_norm: float | None = None,
        autotune_log: Path | None = None,
    ) -> None:
        super().__init__(model, optimizer, clip_norm=clip_norm)
        self._hvd, self._server, self._autotune_log = hvd, server, autotune_log
        self._accumulate = accumulate
        self._synchronized = self._muted = False

    @property
    def notes(self) -> Mapping[str, str]:
        """What the autotuner has chosen so far, on rank 0, which alone writes its log."""
        log = self._autotune_log
        return autotuned(log) if log is not None and log.exists() else {}  # rank 0 alone writes it

    def wait(self) -> None:
        """Block until every gradient's all-reduce has ended."""
        if self._due and not self._synchronized and not self._muted:
            self._optimizer.synchronize()  # type: ignore[attr-defined]
            self._synchronized = True

    def update(self) -> None:
        """Wait, then step without Horovod's own wait."""
        if self._due:
            self.wait()
            with self._optimizer.skip_synchronize():  # type: ignore[attr-defined]
                super().update()
            self._synchronized = False

    def _clear(self) -> None:
        self.model.zero_grad()  # Horovod's own refuses while gradients have not been sent, as when muted

    def mute(self, muted: bool) -> None:
        """While muted, gradients are for so many backward passes more that none is sent."""
        self._muted = muted
        self._optimizer.set_backward_passes_per_step(NEVER if muted else self._accumulate)  # type: ignore[attr-defined]

    def exchange_once(self) -> None:
        """All gradients at once: Horovod's wait sends those that no backward has sent, zeros where there are none."""
        self._optimizer.synchronize()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Shut Horovod down, and once all ranks have, end the rendezvous server."""
        self._hvd.shutdown()
        dist.barrier()
        if self._server is not None:
            self._server.stop()


def autotuned(log: Path) -> dict[str, str]:
    """What a log of the autotuner says: a line a setting that was tried, and the best one once more at the end."""
    with log.open(newline="") as lines:
        rows = [{name.strip(): value.strip() for name, value in row.items()} for row in csv.DictReader(lines)]
    if not rows:
        return {"autotune": "nothing tried yet"}
    best = rows[-1]
    done = len(rows) > 1 and any(row == best for row in rows[:-1])
    return {
        "autotune": f"{len(rows) - done} settings tried{'' if done else ', not finished'}",
        "autotune_cycle_ms": best["cycle_time_ms"],
        "autotune_fusion_threshold_mb": best["tensor_fusion_threshold"],
    }


def why_not_remade(optimizer: OptimizerSpec) -> str | None:
    """The reason why Horovod cannot step `optimizer`, or None."""
    if optimizer.card.name in REMADE:
        return None
    return f"Horovod makes the optimizer anew of its groups, and rules and hooks are lost; use {' or '.join(REMADE)}"


def connect(seat: RankSeat) -> tuple[Any, Any]:
    """Start Horovod among the ranks of the default process group: its module, and on rank 0 the rendezvous server.

    Raises: StrangerError.
    """
    server = None
    told = torch.zeros(_ADDRESS_BYTES + _PORT_BYTES + PROOF_BYTES, dtype=torch.uint8)
    if seat.rank == 0:
        server = _Rendezvous(seat.host.address, seat.world)
        told = torch.frombuffer(bytearray(server.told), dtype=torch.uint8)
    dist.broadcast(told, src=0)
    said = bytes(told.numpy())
    secret, port = said[-PROOF_BYTES:], int.from_bytes(said[_ADDRESS_BYTES:-PROOF_BYTES], "big")
    os.environ.update(
        HOROVOD_RANK=str(seat.rank),
        HOROVOD_SIZE=str(seat.world),
        HOROVOD_LOCAL_RANK="0",
        HOROVOD_LOCAL_SIZE="1",
        HOROVOD_CROSS_RANK=str(seat.rank),
        HOROVOD_CROSS_SIZE=str(seat.world),
        # Horovod asks for http://ADDRESS:PORT/SCOPE/KEY; this puts the secret before the scope.
        HOROVOD_GLOO_RENDEZVOUS_ADDR=f"{socket.inet_ntoa(said[:_ADDRESS_BYTES])}:{port}/{secret.hex()}?",
        HOROVOD_GLOO_RENDEZVOUS_PORT="0",
        HOROVOD_GLOO_IFACE=seat.host.interface,
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_HOSTNAME=socket.gethostname(),
    )
    # Behind the environment, which Horovod reads when it starts.
    import horovod.torch as hvd

    hvd.init()
    _prove_ranks(hvd, secret)
    return hvd, server


class _Rendezvous:
    """Horovod's own server, on one address and for requests that begin with its secret; `told` is all three."""

    def __init__(self, address: str, world: int) -> None:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

        secret = secrets.token_bytes(PROOF_BYTES)

        class Handler(RendezvousHandler):  # type: ignore[misc]
            path: str

            def parse_request(self) -> bool:
                if not super().parse_request():
                    return False
                said, _, path = self.path.removeprefix("/").partition("?:0")
                if secrets.compare_digest(said.encode(), secret.hex().encode()):
                    self.path = path
                    return True
                self.send_error(403)
                return False

        self._server = RendezvousHTTPServer((address, 0), Handler, 0)
        # Names of no host: ranks are placed already, and the server only hands out numbers.
        names = ",".join(f"host{index}:1" for index in range(world))
        self._server.init(get_host_assignments(parse_hosts(names), world, world))
        port = self._server.server_address[1]
        self.told = socket.inet_aton(address) + port.to_bytes(_PORT_BYTES, "big") + secret
        self._thread = threading.Thread(target=self._server.serve_forever, name="rendezvous", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _prove_ranks(hvd: Any, secret: bytes) -> None:
    """Horovod's connections are gloo's, so its ranks prove themselves as those of a process group do."""
    rank, size, name = hvd.rank(), hvd.size(), "horovod"
    own = b"".join(proof_of(secret, name, rank, other) for other in range(size))
    handle = hvd.alltoall_async(torch.frombuffer(bytearray(own), dtype=torch.uint8), name=name)
    until_s = monotonic() + PROOF_TIMEOUT_S
    while not hvd.poll(handle):
        if monotonic() > until_s:
            raise StrangerError(f"rank {rank} got no proofs over Horovod within {PROOF_TIMEOUT_S:g} s; {REMEDY}")
        sleep(0.001)
    shown = bytes(hvd.synchronize(handle)[0].numpy())
    words = {other: shown[other * PROOF_BYTES : (other + 1) * PROOF_BYTES] for other in range(size)}
    check_proofs(secret, name, rank, words)
