"""MPI as a transport of the engine, and ranks started by mpiexec on emulated hosts."""
