"""Records in, `Summary` out: the one place where numbers are made; everything else only shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from analysis.adapting import adapted_rows
from analysis.cells import SIMULATED, cells
from analysis.codes.findings import compression_study
from analysis.pipelines.rows import pipeline_rows
from analysis.rows import OutcomeRow, ProvenanceRow, SettingRow, Summary
from analysis.sharing.gains import pairs
from analysis.sharing.optimisers import optimisers
from analysis.sharing.rows import PairRow, PaperCase, SweepRow
from analysis.sharing.sweeps import sweeps
from analysis.steps.times import error_rows, step_rows, step_studies
from analysis.study import Evidence, Study, suites_with
from analysis.targets.reached import target_studies
from analysis.targets.training import Baseline, settings
from analysis.verdict import verdicts
from results.record import Environment, Record, Status


class NoRecordsError(ValueError):
    """There is nothing to summarise."""


def summarise(records: Iterable[Record], *, studies: Sequence[Study] = (), baseline: Baseline | None = None) -> Summary:
    """Everything the records say.

    `studies` are what suites ask of their records; without any, every suite gets the general tables and figures.
    `baseline` names what ratios are taken against (default: the fastest cell that sends all bytes). Intervals depend on
    the records alone, so the same records give the same report.

    Raises: NoRecordsError if there are none.
    """
    everything = list(records)
    if not everything:
        raise NoRecordsError("no records to report on; run a suite first, e.g. make bench-quick")
    groups = cells(everything)
    ran = [group for group in groups if group[0].fabric.label != SIMULATED]
    suites = frozenset(record.suite for record in everything)
    asked = [study for study in studies if study.suite in suites]
    every_pair = pairs(ran)
    setting_rows = _without_rivals(settings(ran, baseline or Baseline()), every_pair)
    pair_rows = tuple(pair for pair in every_pair if not pair.axis)
    curves, timed = sweeps(every_pair), step_rows(groups, suites_with(asked, lambda study: study.curves))
    targets = target_studies(ran)
    evidence = Evidence(
        suites=suites,
        pairs=every_pair,
        sweeps=curves,
        optimised=optimisers(every_pair),
        steps=timed,
        errors=error_rows(timed),
        targets=targets,
        compression=compression_study(groups, targets, suites_with(asked, lambda study: study.codes)),
        pipelines=pipeline_rows(groups),
    )
    return Summary(
        suites=tuple(sorted(suites)),
        num_records=len(everything),
        verdicts=verdicts(setting_rows, pair_rows),
        settings=setting_rows,
        pairs=pair_rows,
        sweeps=curves,
        papers=tuple(case for study in asked for case in _papers(study, curves)),
        optimisers=evidence.optimised,
        claims=tuple(dict.fromkeys(claim for study in asked for claim in study.claims(evidence))),
        studies=step_studies(timed, {study.suite: study.references for study in asked}),
        errors=evidence.errors,
        targets=targets,
        compression=evidence.compression,
        adapted=adapted_rows(ran),
        outcomes=outcomes(groups),
        provenance=provenance(everything),
    )


def _papers(study: Study, curves: Sequence[SweepRow]) -> Iterator[PaperCase]:
    for figure in study.figures:
        accepted = tuple(sweep for sweep in curves if figure.accepts(sweep))
        yield PaperCase(name=figure.name, caption=figure.caption, level=figure.level, sweeps=accepted)


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
