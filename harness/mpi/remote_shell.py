#!/usr/bin/env python3
"""In place of ssh for mpiexec on emulated hosts: a command line on a host of the cluster around."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from harness.mpi.launch import remote_shell  # noqa: E402

remote_shell(sys.argv[1:])
