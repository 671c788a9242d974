"""What a suite is, and what may be asked of it on the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from analysis.stats import FEWEST_FOR_LEVEL
from fabric.api import FabricKind, FabricSpec, NetworkSpec
from harness.asynchrony.cluster import OnLoss
from harness.trial import Trial
from models.workload import Device

ALPHA_S = 20e-6  # a step of a collective on a network card: 5 to 50 µs
FEWEST = FEWEST_FOR_LEVEL  # repeats at first; more come where that does not suffice (`suites.repeats`)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Command-line wishes; None and () leave a suite its own choice. `device` is for real compute.

    A `fabric` that is given is that of every cell; else what a cell needs decides: sockets, or a link without noise.
    """

    fabric: FabricKind | None = None
    num_hosts: int | None = None
    rate_bps: float | None = None
    rate_given: bool = False
    repeats: int | None = None
    num_steps: int | None = None
    strategies: tuple[str, ...] = ()
    data_path: str = ""
    batch_size: int | None = None  # samples per rank and step, where a cell really trains
    num_loaders: int | None = None  # loader processes per rank, on the user's own images
    device: Device = Device.CPU
    smoke: bool = False
    trace: bool = False
    seed: int = 1
    network: NetworkSpec | None = None
    on_loss: OnLoss | None = None

    def num_repeats(self, fewest: int = FEWEST) -> int:
        """How often every cell is run at first: as asked, once to show that it runs, else `fewest` times."""
        return self.repeats or (1 if self.smoke else fewest)

    def rate_or(self, usual_bps: float | None) -> float | None:
        """The rate that was asked for, or a cell's usual one; None: not limited."""
        return self.rate_bps if self.rate_given else usual_bps

    def fabric_spec(self, *, num_hosts: int, rate_bps: float | None) -> FabricSpec:
        """The fabric of a cell that computes, or that validates: real ranks on real sockets, so many and at this rate.

        The native fabric has no rate of its own, and a simulated network has those it is named with.
        Raises: FabricError.
        """
        rate = self.rate_or(rate_bps)
        if self.fabric in (FabricKind.NATIVE, FabricKind.SIMULATED) and not self.rate_given:
            rate = None
        hosts = num_hosts if self.num_hosts is None else self.num_hosts
        return FabricSpec(kind=self.fabric or FabricKind.EMULATED, num_hosts=hosts, rate_bps=rate, network=self.network)

    def paced_spec(
        self, *, num_workers: int, rate_bps: float | None, alpha_s: float = ALPHA_S, virtual: bool = True
    ) -> FabricSpec:
        """The fabric of a replayed cell: the modelled link of one real rank among `num_workers`, or of as many real
        ones where peers must hold something of their own (parameter servers, trees). Raises: FabricError.
        """
        if self.fabric not in (None, FabricKind.PACED):
            return self.fabric_spec(num_hosts=num_workers, rate_bps=rate_bps)
        workers = self.num_hosts or num_workers
        peers = workers if virtual and workers > 1 else 0
        return FabricSpec(  # a simulated network is refused there, like anything else that the model has not
            kind=FabricKind.PACED,
            network=self.network,
            num_hosts=1 if peers else workers,
            num_virtual=peers,
            rate_bps=self.rate_or(rate_bps),
            alpha_s=alpha_s,
        )


Grid = Callable[[Options], Sequence[Trial]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A question with the trials that answer it. Trials come in the order in which they should
    run: repeats of different cells interleaved, exclusive sharing before the others.

    `fabric` is the only one that it is for: another one on the command line is refused. `predicted` is a wider grid for
    the predictor alone: with `predicted_worlds`, the other numbers of workers for which its cells are predicted, it
    holds every measured cell that can be predicted. `budget_s` is how long its timed trials may take unless the command
    line says otherwise; what that does not suffice for is not run, and undecided."""

    name: str
    question: str
    grid: Grid
    fabric: FabricKind | None = None
    predicted: Grid | None = None
    predicted_worlds: tuple[int, ...] = ()
    budget_s: float = 1800.0


def interleave(cells: Sequence[Trial], repeats: int) -> list[Trial]:
    """Every cell once, then every cell again: repeat r of all cells lies close together in time.

    Each repeat has a seed of its own, the same for all cells, so that accuracy has a spread too.
    """
    return [replace(cell, repeat=repeat, seed=cell.seed + repeat) for repeat in range(repeats) for cell in cells]
