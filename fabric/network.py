"""What is asked of a simulated network: which topology, which transport on it, and where the ranks are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FLUID = "fluid"  # no transport: every link carries all that it can


class HostChoice(StrEnum):
    """Where a job's ranks go: next to each other, as far apart as possible, or anywhere."""

    PACKED = "packed"
    SPREAD = "spread"
    RANDOM = "random"


class Paths(StrEnum):
    """Which path a flow takes: a hashed one of equally short ones, Hedera's first that fits, or the least loaded one.
    Where servers forward, a shortest in place of hashed ones."""

    ECMP = "ecmp"
    FIRST_FIT = "first-fit"
    LEAST_LOADED = "least-loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSpec:
    """A named network, e.g. `topology="fat-tree(k=8, gbit=25)"`, as text; `fabric.simulated.placed` builds it.

    `transport` is one of the packet engine's, or `fluid`. Jobs have a rank on each of the same hosts, or with
    `own_hosts` each job on hosts of its own, so that they share links alone. `num_failed` cables between switches, or
    between servers that forward, have failed; `seed` draws them, and the hosts of a random placement. `paths` are
    chosen when a job first sends in a pattern, without regard to other jobs.
    """

    topology: str
    transport: str = FLUID
    placement: HostChoice = HostChoice.PACKED
    own_hosts: bool = False
    num_failed: int = 0
    seed: int = 1
    paths: Paths = Paths.ECMP

    @property
    def placement_text(self) -> str:
        """The placement in words, for records."""
        draw = f" (draw {self.seed})" if self.placement is HostChoice.RANDOM and self.seed > 1 else ""
        return f"{self.placement}{draw}" + (", own hosts" if self.own_hosts else "")

    @property
    def network_text(self) -> str:
        """The topology with what has failed, and how paths are chosen unless they are hashed."""
        failed = f" less {self.num_failed} cables" if self.num_failed else ""
        return f"{self.topology}{failed}" + ("" if self.paths is Paths.ECMP else f", {self.paths} paths")
