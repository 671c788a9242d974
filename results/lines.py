"""What a line of a given rate leaves to an all-reduce: the least that any exchange of dense gradients can take."""

from __future__ import annotations

PAYLOAD_SHARE = 0.957  # of a line's rate: what Ethernet, IP and TCP headers leave at an MTU of 1500


def line_s_per_byte(rate_bps: float, world: int) -> float:
    """Seconds a byte of a tensor by ring all-reduce, of which each rank sends 2(P−1)/P."""
    return 2 * (world - 1) / world * 8 / (PAYLOAD_SHARE * rate_bps)
