"""Transports by name; each is one file with its rules and constants."""

from __future__ import annotations

from fabric.simulated.graph import NetworkError
from fabric.simulated.switches import FlowControl, Marking
from fabric.simulated.transports import (
    cubic,
    dcqcn,
    dcqcn_plus,
    dctcp,
    hpcc,
    infiniband,
    irn,
    roce,
    tcp,
    timely,
)  # fmt: skip
from fabric.simulated.transports.spec import Reliability, TransportSpec

__all__ = ["TRANSPORTS", "FlowControl", "Marking", "Reliability", "TransportSpec", "find_transport"]

TRANSPORTS: dict[str, TransportSpec] = {
    spec.name: spec
    for spec in (
        cubic.SPEC, dcqcn.SPEC, dcqcn_plus.SPEC, dctcp.SPEC, hpcc.SPEC, infiniband.SPEC, irn.SPEC, tcp.SPEC,
        roce.SPEC, roce.SPEC_V2, timely.SPEC,
    )
}  # fmt: skip


def find_transport(name: str) -> TransportSpec:
    """The transport called `name`; NetworkError naming all if there is none."""
    if name not in TRANSPORTS:
        raise NetworkError(f"{name!r} is no transport; use one of {', '.join(sorted(TRANSPORTS))}")
    return TRANSPORTS[name]
