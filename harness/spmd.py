"""Ranks that a launcher started: who this process is, by its environment.

torchrun, horovodrun, mpirun and srun start one process a rank, on one machine or many, and tell it
in the environment which rank it is. Only this module reads that. torchrun also says where the ranks
meet; for the others MASTER_ADDR and MASTER_PORT have to be set, as torch's own `env://` wants it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass


class LaunchError(ValueError):
    """A launcher's environment that cannot be used, or a request that does not fit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One of `world` ranks; `local_rank` of `num_local` on this machine.

    All ranks can reach a store at `address`:`port`: rank 0 serves it where `serves_store`, else the
    launcher does. `attempt` counts the launcher's restarts. `interface` is the network interface
    that the user wants gloo to use, empty for the one that leads to `address`.
    """

    launcher: str
    rank: int
    world: int
    local_rank: int
    num_local: int
    address: str
    port: int
    serves_store: bool
    attempt: int = 0
    interface: str = ""


@dataclass(frozen=True, slots=True)
class _Variables:
    launcher: str
    rank: str
    world: str
    local_rank: str
    num_local: str
    needed: str  # set by the launcher in every rank, and not by accident


_LAUNCHERS = (
    _Variables("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", needed="MASTER_ADDR"),
    _Variables(
        "horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", needed="HOROVOD_SIZE"
    ),
    _Variables(
        "mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        needed="OMPI_COMM_WORLD_SIZE",
    ),
    # A batch script has SLURM_PROCID too; only the processes of a step have the step's size.
    _Variables(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
        needed="SLURM_STEP_NUM_TASKS",
    ),
)


def own_placement() -> Placement | None:
    """This process's placement; None when no launcher started it. Raises: LaunchError."""
    return placement(os.environ)


def placement(environment: Mapping[str, str]) -> Placement | None:
    """The placement that `environment` describes; None without a launcher.

    Raises: LaunchError for numbers that are none, or without a place where the ranks can meet.
    """
    for names in _LAUNCHERS:
        if names.rank in environment and names.world in environment and names.needed in environment:
            return _read(environment, names)
    return None


def is_follower(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher started this process as another than rank 0, which speaks for all."""
    return any(names.needed in environment and environment.get(names.rank, "0") != "0" for names in _LAUNCHERS)


def _read(environment: Mapping[str, str], names: _Variables) -> Placement:
    rank, world = _number(environment, names.rank), _number(environment, names.world)
    if not 0 <= rank < world:
        raise LaunchError(f"{names.rank}={rank} is not a rank of {names.world}={world}; ranks count from 0")
    if "MASTER_ADDR" not in environment or "MASTER_PORT" not in environment:
        raise LaunchError(
            f"{names.launcher} started rank {rank} of {world}, but MASTER_ADDR or MASTER_PORT is not set; set them "
            "for all ranks to the host of rank 0 and a free port there"
        )
    agent_serves = environment.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True"
    return Placement(
        launcher=names.launcher,
        rank=rank,
        world=world,
        local_rank=_number(environment, names.local_rank, default=rank),
        num_local=_number(environment, names.num_local, default=world),
        address=environment["MASTER_ADDR"],
        port=_number(environment, "MASTER_PORT"),
        serves_store=rank == 0 and not agent_serves,
        attempt=_number(environment, "TORCHELASTIC_RESTART_COUNT", default=0),
        interface=environment.get("GLOO_SOCKET_IFNAME", ""),
    )


def _number(environment: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    """The number at the start of a variable: Slurm writes tasks a node as `2(x3),1`."""
    if name not in environment and default is not None:
        return default
    text = environment.get(name, "")
    match = re.match(r"\d+", text)
    if match is None:
        raise LaunchError(f"{name}={text!r} is no number; let torchrun, horovodrun, mpirun or srun set it")
    return int(match.group())
