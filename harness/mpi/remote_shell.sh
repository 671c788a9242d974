#!/bin/sh
# In place of ssh for mpiexec on emulated hosts: the words of a command line, on a host of the cluster around.
exec "$CROSSOVER_BENCH_PYTHON" -m harness.mpi.remote_shell "$@"
