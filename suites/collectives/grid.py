"""The suite `collectives`: what a library takes for a collective, small and large, and how much of the line it uses.

A cell is an operation of a library among emulated hosts, timed from 4 B to 256 MB as nccl-tests and the OSU benchmarks
do. NCCL goes around emulated links, so with `--fabric native` it alone is timed, on this machine's own GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fabric.api import FabricKind
from harness.trial import LIBRARIES, Collective, Trial
from results.collectives import Operation
from suites.api import Options, Suite, interleave

NAME = "collectives"
NUM_HOSTS, RATE_BPS = 2, 1e9
MOST_S, SMOKE_MOST_S = 15.0, 0.2
TIMEOUT_S = 240.0
NOT_IN = {("horovod", Operation.POINT_TO_POINT)}  # it sends nothing from rank to rank


def grid(options: Options) -> Sequence[Trial]:
    """Every library and operation, repeats interleaved; `--smoke` times small sizes once."""
    return interleave(list(cells(options, SMOKE_MOST_S if options.smoke else MOST_S)), options.num_repeats())


def cells(options: Options, most_s: float, libraries: Sequence[str] = ()) -> Iterator[Trial]:
    """One repeat of each operation of `libraries` (none named: all that the fabric can carry), largest rows `most_s`.

    Raises: FabricError.
    """
    fabric = options.fabric_spec(num_hosts=NUM_HOSTS, rate_bps=RATE_BPS)
    known = LIBRARIES.get(fabric.kind, LIBRARIES[FabricKind.EMULATED])  # elsewhere each cell says why not
    for operation in Operation:
        for library in libraries or known:
            if (library, operation) not in NOT_IN:
                yield Trial(
                    suite=NAME,
                    cell=f"hosts-{fabric.num_hosts}/{operation}/{library}",
                    jobs=(),
                    fabric=fabric,
                    collective=Collective(library=library, operation=operation, most_s=most_s),
                    seed=options.seed,
                    timeout_s=TIMEOUT_S,
                )


SUITE = Suite(
    name=NAME,
    question="What does each library take for a collective, and how much of the line does it use?",
    grid=grid,
    budget_s=2400.0,
)
