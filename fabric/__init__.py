"""The network that ranks run over; `fabric.api` is its interface."""

from fabric.api import (
    Cluster,
    Counters,
    FabricError,
    FabricKind,
    FabricSpec,
    Host,
    build,
    command_prefix,
    format_rate,
    parse_rate,
)

__all__ = [
    "Cluster",
    "Counters",
    "FabricError",
    "FabricKind",
    "FabricSpec",
    "Host",
    "build",
    "command_prefix",
    "format_rate",
    "parse_rate",
]
