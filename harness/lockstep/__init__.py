"""Lockstep: all ranks of a job in one process, exact and without a clock."""
