"""The network that ranks run over: ask with a `FabricSpec`, start a command behind its prefix, build in it.

    spec = FabricSpec(kind=FabricKind.EMULATED, num_hosts=4, rate_bps=parse_rate("200mbit"))
    lab = subprocess.Popen([*command_prefix(spec), sys.executable, "-m", "harness.lab"])

and in the lab, before it starts any thread:

    with build(spec) as cluster:
        if os.fork() == 0:
            cluster.enter(0)  # the child is on host 0 now
"""

from __future__ import annotations

from fabric.cluster import Cluster, Counters, FabricError, FabricKind, FabricSpec, Host
from fabric.enclosure import check_enclosure, enclosure
from fabric.native import LockstepCluster, NativeCluster
from fabric.network import HostChoice, NetworkSpec, Paths
from fabric.paced import PacedCluster
from fabric.rates import format_rate, parse_rate

__all__ = [
    "Cluster",
    "Counters",
    "FabricError",
    "FabricKind",
    "FabricSpec",
    "Host",
    "HostChoice",
    "NetworkSpec",
    "Paths",
    "build",
    "command_prefix",
    "format_rate",
    "parse_rate",
]


def command_prefix(spec: FabricSpec) -> list[str]:
    """Return what to put before a command line so that it can build this fabric: namespaces of its own, or nothing.

    The command becomes process 1 of them, so it should collect orphans, and everything inside ends with it. What ends
    the command with its caller is the caller's (`crossover.supervisor`). Raises FabricError if this machine cannot have
    the fabric.
    """
    if not spec.kind.is_enclosed:
        return []
    check_enclosure()
    return enclosure()


def build(spec: FabricSpec) -> Cluster:
    """Build the cluster asked for, and no other. Raises FabricError naming the alternative if it cannot be had."""
    if spec.kind is FabricKind.NATIVE:
        return NativeCluster(spec)
    if spec.kind is FabricKind.PACED:
        return PacedCluster(spec)
    if spec.kind is FabricKind.LOCKSTEP:
        return LockstepCluster(spec)
    if spec.kind is FabricKind.SIMULATED:
        raise FabricError("a simulated network has no hosts to build; `harness.simulated` runs trials on it")
    try:
        from fabric.emulated import EmulatedCluster
    except ImportError as error:
        raise FabricError(
            f"the emulated fabric needs the package pyroute2 ({error}); run `make setup`, "
            "or use the native fabric (--fabric native, --rate none)"
        ) from error
    return EmulatedCluster(spec)
