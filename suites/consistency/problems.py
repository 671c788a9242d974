"""The papers' own problems: Hogwild!'s sparse regression without locks, and STRADS' blocks on the Lasso.

A seed draws the problem and the order, so every cell has repeats. Processes race in the first; the second is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from fabric.api import FabricKind, FabricSpec
from harness.problems.asked import BlockedLasso, Problem, SparseLogistic
from harness.trial import Trial

NAME = "consistency"
HOGWILD_WORKERS = (1, 2, 4, 8)
LASSOS = {
    "lasso-apart": BlockedLasso(num_workers=16, mixing=0.3, num_alike=2),
    "lasso-alike": BlockedLasso(num_workers=16, mixing=0.6, num_alike=30),
}
WAYS: Mapping[str, Callable[[BlockedLasso], BlockedLasso]] = {
    "petuum": lambda lasso: lasso,
    "no-check": lambda lasso: replace(lasso, strategy="petuum(coupling=1)"),
    "by-chance": lambda lasso: replace(lasso, by_chance=True),
    "staleness-2": lambda lasso: replace(lasso, strategy="petuum(staleness=2)"),
}


def problem_cells(seed: int) -> list[Trial]:
    """One trial of every way to solve each."""
    return [*without_locks(seed), *blocks(seed)]


def without_locks(seed: int) -> Iterator[Trial]:
    """Hogwild!: the same samples by one process and by several."""
    for count in HOGWILD_WORKERS:
        label = "1-worker" if count == 1 else f"{count}-workers"
        yield _cell("sparse-logistic", label, SparseLogistic(num_workers=count), FabricKind.NATIVE, seed)


def blocks(seed: int) -> Iterator[Trial]:
    """STRADS: sixteen coordinates at once by priority and check, by priority alone, by chance, and with staleness; of
    columns of which pairs or thirties are alike."""
    for group, lasso in LASSOS.items():
        for label, way in WAYS.items():
            yield _cell(group, label, way(lasso), FabricKind.LOCKSTEP, seed)


def _cell(group: str, label: str, problem: Problem, kind: FabricKind, seed: int) -> Trial:
    return Trial(
        suite=NAME,
        cell=f"{group}/problem/{label}",
        jobs=(),
        fabric=FabricSpec(kind=kind, num_hosts=1, rate_bps=None),
        problem=problem,
        seed=seed,
    )
