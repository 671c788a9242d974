"""Records in, `Summary` out: the one place where numbers are made; everything else only shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from analysis.cells import cells
from analysis.rows import OutcomeRow, ProvenanceRow, Summary
from analysis.sharing import pairs
from analysis.training import Baseline, settings
from analysis.verdict import verdicts
from results.record import Environment, Record, Status

SEED = 20210314


class NoRecordsError(ValueError):
    """There is nothing to summarise."""


def summarise(
    records: Iterable[Record], *, baseline: Baseline | None = None, rng: np.random.Generator | None = None
) -> Summary:
    """Everything the records say.

    `baseline` names what ratios are taken against (torch DDP by default). `rng` drives the
    bootstrap; without one a fixed seed is used, so the same records give the same report.
    Raises: NoRecordsError if there are none.
    """
    everything = list(records)
    if not everything:
        raise NoRecordsError("no records to report on; run a suite first, e.g. make bench-quick")
    generator = rng or np.random.default_rng(SEED)
    groups = cells(everything)
    setting_rows = settings(groups, baseline or Baseline(), generator)
    pair_rows = pairs(groups, generator)
    return Summary(
        suites=tuple(sorted({record.suite for record in everything})),
        num_records=len(everything),
        verdicts=verdicts(setting_rows, pair_rows),
        settings=setting_rows,
        pairs=pair_rows,
        outcomes=outcomes(groups),
        provenance=provenance(everything),
    )


def outcomes(groups: Iterable[Sequence[Record]]) -> tuple[OutcomeRow, ...]:
    """Every trial that was skipped or failed, with its reason. None is dropped."""
    rows = []
    for records in groups:
        reasons = Counter((record.status, record.reason) for record in records if record.status is not Status.OK)
        rows += [
            OutcomeRow(
                cell=records[0].cell,
                status=status,
                reason=reason or "no reason was recorded",
                num_repeats=count,
                num_tried=len(records),
            )
            for (status, reason), count in sorted(reasons.items())
        ]
    return tuple(rows)


def provenance(records: Iterable[Record]) -> tuple[ProvenanceRow, ...]:
    """The environments that differ in more than their start time, with the earliest start of each."""
    counts: dict[tuple[object, ...], list[Environment]] = {}
    for record in records:
        env = record.environment
        versions = tuple(sorted(env.versions.items()))
        key = (env.commit, env.dirty, env.machine, env.num_cores, env.memory_bytes, env.device, versions)
        counts.setdefault(key, []).append(env)
    return tuple(
        ProvenanceRow(environment=min(group, key=lambda env: env.started_at), num_records=len(group))
        for group in counts.values()
    )
