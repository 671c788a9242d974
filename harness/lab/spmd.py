"""Ranks that a launcher started: who this process is, by its environment.

torchrun, horovodrun, mpirun and srun start one process a rank, on one machine or many, and tell it
in the environment which rank it is. Only this module reads that.

Ranks on one machine meet in a folder of rank 0's, which it hands out under the name of the run (`Placement.run`).
Ranks on several machines meet at MASTER_ADDR and MASTER_PORT, as torch's own `env://`. torchrun sets both. Under Slurm
the address is the first of its list of nodes, which has rank 0 unless tasks are distributed arbitrarily. srun, mpirun
and horovodrun give the run a number, of which the port is made. mpirun, mpiexec and horovodrun do not say where rank 0
is, so MASTER_ADDR has to be set, and under MPICH's mpiexec MASTER_PORT too.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

FIRST_PORT, NUM_PORTS = 10_000, 10_000  # below the ports that labs and the kernel take
THIS_MACHINE = "127.0.0.1"
NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")


class LaunchError(ValueError):
    """A launcher's environment that cannot be used, or a request that does not fit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One of `world` ranks; `local_rank` of `num_local` on this machine.

    `run` names the run where all its ranks are on this machine, and no other run there has the name. Where it is empty,
    all ranks can reach a store at `address`:`port`: rank 0 serves it where `serves_store`, else the launcher does.
    `attempt` counts the launcher's restarts. `interface` is the network interface that the user wants gloo to use,
    empty for the one that leads to `address`.
    """

    launcher: str
    rank: int
    world: int
    local_rank: int
    num_local: int
    address: str
    port: int
    serves_store: bool
    run: str = ""
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
    run: tuple[str, ...] = ()  # together they tell this run from others, and are equal on all its ranks


_LAUNCHERS = (
    _Variables("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", needed="MASTER_ADDR"),
    _Variables(
        "horovodrun",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        needed="HOROVOD_SIZE",
        run=("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    ),
    _Variables(
        "mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        needed="OMPI_COMM_WORLD_SIZE",
        run=("PMIX_NAMESPACE",),
    ),
    # A batch script has SLURM_PROCID too; only the processes of a step have the step's size.
    _Variables(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
        needed="SLURM_STEP_NUM_TASKS",
        run=("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
    # MPICH, Intel MPI and their like; srun sets PMI's too and stands before it.
    _Variables("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", needed="PMI_SIZE"),
)


def own_placement() -> Placement | None:
    """This process's placement; None when no launcher started it. Raises: LaunchError."""
    return placement(os.environ)


def placement(environment: Mapping[str, str]) -> Placement | None:
    """The placement that `environment` describes; None without a launcher.

    Raises: LaunchError for numbers that are none, or without a place where the ranks can meet.
    """
    # In order: a launcher further down may have started this one, and left its variables behind.
    for names in _LAUNCHERS:
        if names.rank in environment and names.world in environment and names.needed in environment:
            return _read(environment, names)
    return None


def is_spoken_for(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the first rank of this machine says what is wrong with a request: all ranks there find the same."""
    return bool(rank_said(environment)) and not any(
        names.needed in environment and environment.get(names.local_rank) == "0" for names in _LAUNCHERS
    )


def rank_said(environment: Mapping[str, str] = os.environ) -> str:
    """`rank 3: ` where a launcher started this process as another than rank 0, else empty."""
    ranks = (environment.get(names.rank, "0") for names in _LAUNCHERS if names.needed in environment)
    return next((f"rank {rank}: " for rank in ranks if rank != "0"), "")


def _read(environment: Mapping[str, str], names: _Variables) -> Placement:
    rank, world = _number(environment, names.rank), _number(environment, names.world)
    if not 0 <= rank < world:
        raise LaunchError(f"{names.rank}={rank} is not a rank of {names.world}={world}; ranks count from 0")
    is_here = names.num_local in environment and _number(environment, names.num_local) == world
    address = THIS_MACHINE if is_here else environment.get("MASTER_ADDR") or _address(environment, names)
    port = 0 if is_here else _port(environment, names)
    if not is_here and not (address and port):
        name, what = ("MASTER_PORT", "a free port on") if address else ("MASTER_ADDR", "the name or address of")
        raise LaunchError(
            f"{names.launcher} started rank {rank} of {world} on several machines, but {name} is not set, and nothing "
            f"else tells where the ranks meet; set it for all ranks to {what} the machine of rank 0"
        )
    # torchrun's agent may hold the store open at that port already, where rank 0 must not serve another.
    agent_serves = environment.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True"
    return Placement(
        launcher=names.launcher,
        rank=rank,
        world=world,
        local_rank=_number(environment, names.local_rank, default=rank),
        num_local=_number(environment, names.num_local, default=world),
        address=address,
        port=port,
        serves_store=rank == 0 and not agent_serves,
        run=_run(environment, names) if is_here else "",
        attempt=_number(environment, "TORCHELASTIC_RESTART_COUNT", default=0),
        interface=environment.get("GLOO_SOCKET_IFNAME", ""),
    )


def _run(environment: Mapping[str, str], names: _Variables) -> str:
    """The same for all ranks of this run, and for no other run of this machine that lives."""
    told = [environment[name] for name in names.run if environment.get(name)]
    told = told or [str(_launcher_pid(names)), environment.get("MASTER_PORT", "")]
    return " ".join([names.launcher, *told])


def _launcher_pid(names: _Variables) -> int:
    """The process that started the ranks on this machine: the nearest one above that is no rank itself, since a rank
    may have been started through a shell."""
    for above in psutil.Process().parents():
        try:
            if names.rank not in above.environ():
                return int(above.pid)
        except psutil.Error:  # another user's, such as Slurm's own
            return int(above.pid)
    return os.getppid()


def _address(environment: Mapping[str, str], names: _Variables) -> str:
    """Where rank 0 is, as far as the launcher lets one know; else empty."""
    if names.launcher != "srun":
        return ""
    listed = next((environment[name] for name in NODE_LISTS if environment.get(name)), "")
    return first_host(listed) or environment.get("SLURM_LAUNCH_NODE_IPADDR", "")


def first_host(nodes: str) -> str:
    """The first of Slurm's `nodes`: `gpu07` of `gpu[07-09,12],login1`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0]) if first else ""


def _port(environment: Mapping[str, str], names: _Variables) -> int:
    """MASTER_PORT, or one made of what tells this run from others; 0 where nothing does."""
    if "MASTER_PORT" in environment:
        return _number(environment, "MASTER_PORT")
    run = [environment[name] for name in names.run if environment.get(name)]
    # Every rank makes the same port of the same words, without talking.
    return FIRST_PORT + zlib.crc32(" ".join(run).encode()) % NUM_PORTS if run else 0


def _number(environment: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    """The number at the start of a variable: Slurm writes tasks a node as `2(x3),1`."""
    if name not in environment and default is not None:
        return default
    text = environment.get(name, "")
    match = re.match(r"\d+", text)
    if match is None:
        raise LaunchError(f"{name}={text!r} is no number; let torchrun, horovodrun, mpirun or srun set it")
    return int(match.group())
