"""Pipelines and partitioned operators: stages that train in lockstep, on a virtual clock and among processes."""
