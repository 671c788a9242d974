"""Two ranks do the same over gloo and over the backend `paced`, whose link runs on a virtual clock of each rank.

For each scenario of SCENARIOS, rank r writes FOLDER/NAME-BACKEND-r.json: a digest of what it got, and the seconds that
its link was asked for. Pipelines and sharding are torch's own, imported where they run: that takes a second and a half,
and whoever collects the tests imports this file.
"""

from __future__ import annotations

import hashlib
import json
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from os import _exit, fork, waitpid
from pathlib import Path

import torch
import torch.distributed as dist
from clocked_link import ClockedLink, Driven
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.nn.parallel import DistributedDataParallel

from fabric.paced import PACED, PacedLink
from harness.garbage import lasting
from harness.paced.group import register
from harness.paced.pacing import Pacing

NUM_RANKS = 2
BACKENDS = ("gloo", PACED)
LINK = PacedLink(NUM_RANKS, alpha_s=1e-4, rate_bps=1e9)


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)]


def samples(step: int, rank: int) -> Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + rank))


def trained(model: nn.Module, rank: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        model(samples(step, rank)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def collectives(rank: int) -> Sequence[Tensor]:
    """Every operation that torch.distributed has for two ranks, on other values on each."""
    own, peer = torch.arange(6.0) + 10 * rank, 1 - rank
    kept = [own.clone() for _ in range(4)]
    dist.all_reduce(kept[0])
    dist.all_reduce(kept[1], dist.ReduceOp.MAX)
    dist.reduce(kept[2], 1)
    dist.broadcast(kept[3], 1)
    lists = [[torch.zeros(6) for _ in range(2)] for _ in range(2)]
    dist.all_gather(lists[0], own)
    dist.gather(own, lists[1] if rank == 1 else None, dst=1)
    whole, half, part = torch.zeros(12), torch.zeros(3), torch.zeros(6)
    dist.all_gather_single(whole, own)
    dist.reduce_scatter_single(half, own)
    dist.scatter(part, [own, own + 1] if rank == 0 else None, src=0)
    halves = [torch.zeros(3) for _ in range(2)]
    dist.reduce_scatter(halves[0], list(own.split(3)))
    dist.all_to_all_single(halves[1], own[:3].clone(), [2 - rank, 1 + rank], [2, 1] if rank == 0 else [1, 2])
    works = [dist.isend(own, peer, tag=7), dist.irecv(received := torch.zeros(6), peer, tag=7)]
    for work in works:
        work.wait()
    batch = [dist.P2POp(dist.isend, own, peer), dist.P2POp(dist.irecv, batched := torch.zeros(6), peer)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    with _coalescing_manager():
        for tensor in (several := [own.clone(), own + 1]):
            dist.all_reduce(tensor)
    objects: list[object] = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    dist.barrier()
    return [*kept, *lists[0], *lists[1], whole, half, part, *halves, received, batched, *several]


def powersgd(rank: int) -> Sequence[Tensor]:
    model = DistributedDataParallel(nn.Sequential(*layers()))
    model.register_comm_hook(PowerSGDState(None, 1, 2), powerSGD_hook)
    trained(model, rank)
    return list(model.parameters())


def gpipe(rank: int) -> Sequence[Tensor]:
    """Two stages, four micro-batches."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    part = nn.Sequential(*(layers()[:2] if rank == 0 else layers()[2:]))
    stage = PipelineStage(part, rank, NUM_RANKS, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda output, target: (output - target).square().mean())
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    for step in range(5):
        if rank == 0:
            schedule.step(samples(step, 0))
        else:
            schedule.step(target=torch.zeros(8, 4))
        optimizer.step()
        optimizer.zero_grad()
    return list(part.parameters())


def fsdp(rank: int) -> Sequence[Tensor]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(nn.Sequential(*layers()), device_id=torch.device("cpu"))
    trained(model, rank)
    with FullyShardedDataParallel.summon_full_params(model):
        return [parameter.detach().clone() for parameter in model.parameters()]


def fsdp2(rank: int) -> Sequence[Tensor]:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*layers())
    mesh = init_device_mesh("cpu", (NUM_RANKS,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    trained(model, rank)
    return [parameter.full_tensor() for parameter in model.parameters()]  # type: ignore[attr-defined]


SCENARIOS: dict[str, Callable[[int], Sequence[Tensor]]] = {
    own.__name__: own for own in (collectives, powersgd, gpipe, fsdp, fsdp2)
}


def run_rank(name: str, backend: str, rank: int, folder: Path) -> dict[str, object]:
    warnings.simplefilter("ignore")  # torch's own, about FSDP on a CPU
    register()
    link = ClockedLink()
    dist.init_process_group(
        backend,
        store=dist.FileStore(str(folder / f"store-{name}-{backend}"), NUM_RANKS),
        rank=rank,
        world_size=NUM_RANKS,
        pg_options=Pacing(LINK, Driven(link)) if backend == PACED else None,
    )
    digest = hashlib.sha256()
    for tensor in SCENARIOS[name](rank):
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    dist.barrier()
    return {"digest": digest.hexdigest(), "link_s": link.now_s}


def run_all(folder: Path) -> None:
    """Every rank in a process of its own, one scenario after the other."""
    with lasting():
        trained(nn.Sequential(*layers()), 0)  # torch imports most of itself with the first step
    for name in SCENARIOS:
        for backend in BACKENDS:
            pids = []
            for rank in range(NUM_RANKS):
                pid = fork()
                if pid == 0:
                    try:
                        told = run_rank(name, backend, rank, folder)
                        (folder / f"{name}-{backend}-{rank}.json").write_text(json.dumps(told))
                    except BaseException:  # noqa: BLE001  the process ends here
                        traceback.print_exc()
                        sys.stderr.flush()
                        _exit(1)
                    _exit(0)
                pids.append(pid)
            statuses = [waitpid(pid, 0)[1] for pid in pids]
            assert not any(statuses), f"failed: {name} over {backend}"
