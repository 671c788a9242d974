"""The suite parallelism."""
