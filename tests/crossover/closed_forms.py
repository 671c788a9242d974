"""The theory's gains of jobs that are alike, in closed form: what simulator and bounds are held against."""

from __future__ import annotations


def gain_without_overlap(ratio: float) -> float:
    """G of two or more identical jobs that communicate after they compute, ρ = m/c: 1+ρ up to ρ = 1, then 1+1/ρ."""
    return 1 + min(ratio, 1 / ratio if ratio else 0.0)


def gain_with_overlap(ratio: float, first_ready: float) -> float:
    """G of two or more identical jobs whose gradients leave evenly during backward, ρ = m/c.

    `first_ready` is f/c, the part of the computation before the first bucket is ready. A job alone takes
    max(c, f + m), so that G = max(1, f/c + ρ)/max(1, ρ), at most 1 + f/max(c, m), and 1 + f/c at ρ = 1.
    """
    return max(1.0, first_ready + ratio) / max(1.0, ratio)
