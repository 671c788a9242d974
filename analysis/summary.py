"""Records in, `Summary` out: the one place where numbers are made; everything else only shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from analysis.cells import SIMULATED, cells, is_shared, numbered
from analysis.claims import ClaimRow
from analysis.codes.findings import compression_study
from analysis.collectives.rows import collective_rows
from analysis.corrections import corrected
from analysis.flows.rows import flow_rows
from analysis.pipelines.rows import pipeline_rows
from analysis.pipelines.splits import split_rows
from analysis.pipelines.timelines import timeline_rows
from analysis.problems.rows import problem_rows
from analysis.rows import OutcomeRow, ProvenanceRow, SettingRow, Summary
from analysis.sharing.gains import pairs
from analysis.sharing.optimisers import optimisers
from analysis.sharing.rows import PairRow, PaperCase, SweepRow
from analysis.sharing.sweeps import sweeps
from analysis.sheet import claims_of
from analysis.steps.adapting import adapted_rows
from analysis.steps.rows import StepRow
from analysis.steps.times import error_rows, step_rows, step_studies
from analysis.study import Evidence, Study, suites_with
from analysis.targets.reached import target_studies
from analysis.targets.training import Baseline, settings
from analysis.verdict import verdicts
from analysis.wording import plural
from results.facts import CheckFacts
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
    given = numbered(records)
    groups = cells(corrected(given))
    suites = frozenset(record.suite for record in given)
    asked = [study for study in studies if study.suite in suites]
    evidence = evidence_of(given, groups, asked)
    ran = _ran(groups)
    setting_rows = _without_rivals(settings(ran, baseline or Baseline()), evidence.pairs)
    pair_rows = tuple(pair for pair in evidence.pairs if not pair.axis)
    return Summary(
        suites=tuple(sorted(suites)),
        questions=tuple(study.question for study in asked if study.question),
        num_records=len(given),
        verdicts=verdicts(setting_rows, pair_rows),
        settings=setting_rows,
        pairs=pair_rows,
        sweeps=evidence.sweeps,
        papers=tuple(case for study in asked for case in _papers(study, evidence.sweeps)),
        optimisers=evidence.optimised,
        claims=tuple(row for rows in claims_of(asked, evidence).values() for row in rows),
        studies=step_studies(_drawn(evidence.steps, asked), {study.suite: study.references for study in asked}),
        errors=evidence.errors,
        targets=evidence.targets,
        compression=evidence.compression,
        collectives=evidence.collectives,
        adapted=adapted_rows(ran),
        flows=evidence.flows,
        problems=evidence.problems,
        timelines=timeline_rows(groups),
        outcomes=outcomes(groups),
        provenance=provenance(given),
    )


def evidence_of(records: Sequence[Record], groups: Sequence[Sequence[Record]], studies: Sequence[Study]) -> Evidence:
    """What the records say by kind, for these studies; `groups` are their cells, corrected.

    Raises: NoRecordsError if there are none.
    """
    if not records:
        raise NoRecordsError("no records to report on; run a suite first, e.g. make bench-quick")
    ran = _ran(groups)
    every_pair, targets = pairs(ran), target_studies(ran)
    timed = step_rows(groups, suites_with(studies, lambda study: study.timed or study.curves))
    return Evidence(
        suites=frozenset(study.suite for study in studies),
        pairs=every_pair,
        sweeps=sweeps(every_pair),
        optimised=optimisers(every_pair),
        steps=timed,
        errors=error_rows(_drawn(timed, studies)),
        targets=targets,
        compression=compression_study(cells(records), targets, suites_with(studies, lambda study: study.codes)),
        pipelines=pipeline_rows(groups),
        collectives=collective_rows(groups),
        flows=flow_rows(groups),
        problems=problem_rows(groups),
        splits=split_rows(groups),
    )


def every_claim(records: Iterable[Record], studies: Sequence[Study]) -> dict[str, tuple[ClaimRow, ...]]:
    """Every claim of every study by suite, also of those without records. Raises: NoRecordsError if there are none."""
    given = numbered(records)
    return claims_of(studies, evidence_of(given, cells(corrected(given)), studies))


def _ran(groups: Sequence[Sequence[Record]]) -> list[Sequence[Record]]:
    # a prediction stands beside what ran; jobs that share a simulated network have run, on the virtual clock
    return [group for group in groups if group[0].fabric.label != SIMULATED or is_shared(group[0])]


def _drawn(rows: Sequence[StepRow], studies: Sequence[Study]) -> list[StepRow]:
    drawn = suites_with(studies, lambda study: study.curves)
    return [row for row in rows if row.place.suite in drawn]


def _papers(study: Study, curves: Sequence[SweepRow]) -> Iterator[PaperCase]:
    for figure in study.figures:
        accepted = tuple(sweep for sweep in curves if figure.accepts(sweep))
        yield PaperCase(name=figure.name, caption=figure.caption, level=figure.level, sweeps=accepted)


def _without_rivals(settings: Sequence[SettingRow], pairs: Sequence[PairRow]) -> tuple[SettingRow, ...]:
    """Settings that hold more than the rival of a pair, which is shown beside its pair."""
    rivals = {i for pair in pairs if pair.rival is not None for i in pair.rival.record_ids}
    return tuple(s for s in settings if not {i for row in s.competitors for i in row.record_ids} <= rivals)


def outcomes(groups: Iterable[Sequence[Record]]) -> tuple[OutcomeRow, ...]:
    """Every trial that was skipped, failed or invalid, with its reason. None is dropped."""
    rows = []
    for records in groups:
        invalid = _why_invalid(records)
        reasons = Counter(
            (record.status, invalid if _failed_checks(record) else record.reason)
            for record in records
            if record.status is not Status.OK
        )
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


def _failed_checks(record: Record) -> list[CheckFacts]:
    """Those that make it invalid. One may be invalid without, for what its figures say."""
    return [check for check in record.checks if not check.passes] if record.status is Status.INVALID else []


def _why_invalid(records: Iterable[Record]) -> str:
    """The checks that trials of a cell failed, each with its worst value: every attempt found another one."""
    failed: dict[str, list[CheckFacts]] = {}
    for check in (check for record in records for check in record.checks if not check.passes):
        failed.setdefault(check.quantity, []).append(check)
    return "; ".join(
        f"{quantity}: up to {max(check.found for check in checks):.1%} in {plural(len(checks), 'trial')}, "
        f"at most {checks[0].most:.0%} allowed"
        for quantity, checks in failed.items()
    )


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
