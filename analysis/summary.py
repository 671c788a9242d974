"""Records in, `Summary` out: the one place where numbers are made; everything else only shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from analysis.adapting import adapted_rows
from analysis.cells import SIMULATED, cells
from analysis.claims import SUITE as CLAIMED_BY
from analysis.claims import claims
from analysis.compression import compression_study
from analysis.compression_claims import compression_claims
from analysis.optimisers import optimisers
from analysis.rows import OutcomeRow, ProvenanceRow, SettingRow, Summary
from analysis.shared_rows import PairRow
from analysis.sharing import pairs
from analysis.step_claims import step_claims
from analysis.steps import error_rows, step_rows, studies
from analysis.sweeps import sweeps
from analysis.targets import target_studies
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
    ran = [group for group in groups if group[0].fabric.label != SIMULATED]
    setting_rows = settings(ran, baseline or Baseline(), generator)
    every_pair = pairs(ran, generator)
    setting_rows = _without_rivals(setting_rows, every_pair)
    pair_rows = tuple(pair for pair in every_pair if not pair.axis)
    curves, optimised = sweeps(every_pair), optimisers(every_pair, generator)
    suites = tuple(sorted({record.suite for record in everything}))
    timed = step_rows(groups, generator)
    errors = error_rows(timed)
    judged = claims(every_pair, curves, optimised, generator) if CLAIMED_BY in suites else ()
    targets = target_studies(ran)
    compressed = compression_study(groups, targets, generator)
    judged = (
        *judged,
        *step_claims(timed, errors, suites, generator),
        *compression_claims(compressed, targets, generator),
    )
    return Summary(
        suites=suites,
        num_records=len(everything),
        verdicts=verdicts(setting_rows, pair_rows),
        settings=setting_rows,
        pairs=pair_rows,
        sweeps=curves,
        optimisers=optimised,
        claims=judged,
        studies=studies(timed),
        errors=errors,
        targets=targets,
        compression=compressed,
        adapted=adapted_rows(ran, generator),
        outcomes=outcomes(groups),
        provenance=provenance(everything),
    )


def _without_rivals(settings: Sequence[SettingRow], pairs: Sequence[PairRow]) -> tuple[SettingRow, ...]:
    """Settings that hold more than the rival of a pair, which is shown beside its pair."""
    rivals = {i for pair in pairs if pair.rival is not None for i in pair.rival.record_ids}
    return tuple(s for s in settings if not {i for row in s.competitors for i in row.record_ids} <= rivals)


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
