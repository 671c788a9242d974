"""Bytes of a step, without what is sent once: a planner's probes, much of a short run on a small model."""

from __future__ import annotations

from collections.abc import Mapping

from results.record import JobResult

GRADIENT = "gradient"
PROBE = "probe"
CONTROL = "control"  # of rounds in which ranks agree
FRAMING = "framing"  # what a library adds to payload


def bytes_a_step(wire_bytes: Mapping[str, float], interface_bytes: float | None = None) -> float | None:
    """By the host's interface where that is given, else as the engine counted them; None where neither is known."""
    if interface_bytes is not None:
        return interface_bytes - wire_bytes.get(PROBE, 0.0)
    return sum(size for tag, size in wire_bytes.items() if tag != PROBE) if wire_bytes else None


def counted_a_step(job: JobResult) -> float | None:
    """As the engine counted them, else by the interface."""
    return bytes_a_step(job.wire_bytes) if job.wire_bytes else job.interface_bytes
