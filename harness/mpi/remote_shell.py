"""In place of ssh for mpiexec on emulated hosts: `[-x] HOST WORD…`, the words quoted for a shell."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from harness.hosted import on_host


def command_on_host(arguments: Sequence[str]) -> list[str]:
    """The command line that runs what ssh would have been asked for. Raises: FabricError for an unknown host."""
    host, *words = [word for word in arguments if word != "-x"]
    return on_host(host, shlex.split(" ".join(words)))


if __name__ == "__main__":
    line = command_on_host(sys.argv[1:])
    os.execvp(line[0], line)
