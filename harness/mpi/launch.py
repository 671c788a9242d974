"""Starts a command as MPI ranks on the hosts of the emulated cluster around, as `mpiexec` does with ssh.

    python -m harness.hosted --hosts 2 -- python -m harness.mpi.launch -- python program.py

MPICH's process manager runs on the first host and starts the others through this module in place of ssh. Libfabric over
TCP carries the messages, on the hosts' own interfaces: shared memory between hosts that are one machine would go past
the link, and UCX sees no interface in a network namespace.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fabric.api import FabricError
from fabric.links import UPLINK
from harness.hosted import addresses, on_host
from harness.mpi.library import MpiError, mpiexec

SHELL = Path(__file__).with_name("remote_shell.sh")
OVER_TCP = {
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "MPIR_CVAR_NOLOCAL": "1",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": UPLINK,
    "OMP_NUM_THREADS": "1",
}


def command_line(names: Sequence[str], command: Sequence[str]) -> list[str]:
    """What starts `command` on hosts `names`, a rank on each, from anywhere in the cluster around."""
    settings = [word for name, value in OVER_TCP.items() for word in ("-genv", name, value)]
    start = [str(mpiexec()), "-launcher", "ssh", "-launcher-exec", str(SHELL), "-hosts", ",".join(names), "-ppn", "1"]
    return on_host(names[0], [*start, *settings, *command])


def main(arguments: Sequence[str]) -> int:
    """Become mpiexec; the code of a refusal, with its reason on stderr, where that cannot be."""
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not command:
        print("error: name a command after --", file=sys.stderr)
        return 2
    try:
        line = command_line(list(addresses()), command)
        # In place of this process: signals reach mpiexec itself, and its exit code is ours.
        os.execvpe(line[0], line, {**os.environ, "CROSSOVER_BENCH_PYTHON": sys.executable})
    except (FabricError, MpiError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
