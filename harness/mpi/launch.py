"""Starts a command as MPI ranks on the hosts of the emulated cluster around, as `mpiexec` does with ssh.

    python -m fabric.hosted --hosts 2 -- python -m harness.mpi.launch -- python program.py

MPICH's process manager runs on the first host and starts the others through this module in place of ssh. Libfabric over
TCP carries the messages, on the hosts' own interfaces: shared memory between hosts that are one machine would go past
the link, and UCX sees no interface in a network namespace.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fabric.hosted import addresses, on_host
from fabric.links import UPLINK
from harness.mpi.transport import MpiError

SHELL = Path(__file__).with_name("remote_shell.py")
OVER_TCP = {
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "MPIR_CVAR_NOLOCAL": "1",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": UPLINK,
    "OMP_NUM_THREADS": "1",
}


def mpiexec() -> Path:
    """The process manager beside this Python. Raises: MpiError if there is none."""
    path = Path(sys.prefix) / "bin" / "mpiexec.hydra"
    if not path.exists():
        raise MpiError(f"no {path}; run `pip install mpi4py mpich` in the project's .venv")
    return path


def command_line(names: Sequence[str], command: Sequence[str]) -> list[str]:
    """What starts `command` on hosts `names`, a rank on each, from anywhere in the cluster around."""
    settings = [word for name, value in OVER_TCP.items() for word in ("-genv", name, value)]
    start = [str(mpiexec()), "-launcher", "ssh", "-launcher-exec", str(SHELL), "-hosts", ",".join(names), "-ppn", "1"]
    return on_host(names[0], [*start, *settings, *command])


def main(arguments: Sequence[str]) -> None:
    """Become mpiexec."""
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    line = command_line(list(addresses()), command)
    os.execvp(line[0], line)


def remote_shell(arguments: Sequence[str]) -> None:
    """Become the command on a host, given as ssh is given it: `-x HOST WORD…`, words quoted for a shell."""
    host, *words = [word for word in arguments if word != "-x"]
    line = on_host(host, shlex.split(" ".join(words)))
    os.execvp(line[0], line)


if __name__ == "__main__":
    main(sys.argv[1:])
