"""Which device a worker computes on, what its idleness means, and how a job's workers agree."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from crossover.errors import Refused
from crossover.integrations import ReleasePoint, Team

LOCAL_RANKS = ("LOCAL_RANK", "HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
NCCL_IS_STRICT = "NCCL's collectives need the device's own processors, so they must come in one order on every host"


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter is; it must be there before it is attached."""
    first = next(model.parameters(), None)
    if first is None:
        raise Refused(f"{type(model).__name__} has no parameters: attach the model that is trained")
    if first.device.type not in ("cpu", "cuda"):
        raise Refused(f"the model is on {first.device}: attach it when it is on its CPU or CUDA device")
    return first.device


def device_name(device: torch.device, rank: int | None) -> str:
    """The device's name among those of its host: a GPU's own identity, whatever the job calls it; for a CPU, the
    worker's place on its host (or its `rank` where no launcher says), so that jobs of one layout meet."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_properties(device).uuid).replace("-", "")
    place = next((os.environ[name] for name in LOCAL_RANKS if name in os.environ), None)
    return place if place is not None else str(rank or 0)


def num_local_workers(world: int | None = None) -> int | None:
    """How many of the job's `world` workers are on this host, by its launcher; None where none says.

    Never too few: with too few, others would go on without a worker that is still to come.
    """
    given = next((os.environ[name] for name in LOCAL_SIZES if name in os.environ), "")
    if not given.isdecimal() or not int(given):
        return None
    return int(given) if world is None else min(int(given), world)


def thread_warning(device: torch.device, num_local: int | None) -> str:
    """What to say where the job's workers on this host have more threads than processors; empty otherwise."""
    num_threads, num_cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    if device.type != "cpu" or (num_local or 1) * num_threads <= max(num_cores, num_local or 1):
        return ""
    return (
        f"{num_local or 1} workers of this job with {num_threads} threads each share {num_cores} processors, which can "
        f"make a step many times longer: start it with OMP_NUM_THREADS={max(1, num_cores // (num_local or 1))}"
    )


def synchronizing(device: torch.device) -> Callable[[], None]:
    """What waits until the device has done everything in the current stream, with the messages that it waits for."""
    if device.type == "cpu":
        return lambda: None
    return lambda: torch.cuda.current_stream(device).synchronize()


def idling(device: torch.device, release: ReleasePoint) -> Callable[[], None]:
    """What comes before a release. Messages travel on streams of their own: nobody waits for them here."""
    return synchronizing(device) if release is ReleasePoint.EVENT else lambda: None


def process_group_team(device: torch.device, group: Any) -> Team:
    """The workers of a process group (None: the default one)."""
    dist = torch.distributed
    backend = dist.get_backend(group)
    where = device if "nccl" in backend else torch.device("cpu")

    def agree(entry: int) -> int:
        latest = torch.tensor(entry, dtype=torch.int64, device=where)
        dist.all_reduce(latest, dist.ReduceOp.MAX, group=group)
        return int(latest)

    strict = NCCL_IS_STRICT if "nccl" in backend else ""
    world = dist.get_world_size(group)
    name = device_name(device, dist.get_rank(group))
    return Team(
        agree=agree if world > 1 else None,
        device=name,
        strict=strict,
        num_local=num_local_workers(world),
        world=world,
    )


def check_supported(models: tuple[nn.Module, ...], optimizers: tuple[Optimizer, ...]) -> None:
    """Refuse what sends messages in the middle of a turn, at the root of a model or anywhere in it."""
    objects = (*(part for model in models for part in model.modules()), *optimizers)
    names = {kind.__name__ for one in objects for kind in type(one).__mro__}
    if sharded := names & {"FullyShardedDataParallel", "FSDPModule"}:
        raise Refused(f"{sharded.pop()} gathers parameters inside forward: use DistributedDataParallel, or ZeRO 1-2")
    if "ZeroRedundancyOptimizer" in names:
        raise Refused("ZeroRedundancyOptimizer sends parameters inside step(): use DeepSpeed's ZeRO 1-2")
    for model in models:
        for name, parameter in model.named_parameters():
            if any(kind.__name__ == "DTensor" for kind in type(parameter).__mro__):
                raise Refused(
                    f"parameter {name} is a DTensor: tensor parallelism and sharding send messages inside forward and "
                    "backward, so they cannot take turns: use DistributedDataParallel, or ZeRO 1-2"
                )
