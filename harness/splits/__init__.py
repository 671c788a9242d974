"""Partitioned operators as jobs of a trial: planned, timed on a virtual clock, trained in lockstep and replayed."""
