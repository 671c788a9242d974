"""What the papers on pipelines and partitioned operators claim, judged from the suite's records.

Levels are the papers' headlines as far as this suite can show them; where a paper's own number is of its own cluster,
the claim is its direction. Those of the four that split operators stand in `split_study`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from analysis.claims import CellValue, ClaimRow, Formula, Level, judge
from analysis.pipelines.rows import PipelineRow
from analysis.sharing.rows import CROSSOVER
from analysis.stats import Interval, exactly, paired_ratio, ratio_by_repeat
from analysis.study import Evidence, Study
from suites.parallelism.cells import NAME
from suites.parallelism.grid import DAPPLE, PIPEMARE
from suites.parallelism.split_study import split_claims

Rows = tuple[PipelineRow, ...]
Ratio = Callable[[PipelineRow, PipelineRow], Interval | None]


def claims(evidence: Evidence) -> Iterable[ClaimRow]:
    """In the order of the systems, then what is claimed of the executor, then of sharing."""
    if NAME not in evidence.suites:
        return
    rows = tuple(row for row in evidence.pipelines if row.suite == NAME)
    yield from _of_papers(rows, evidence)
    yield from split_claims(evidence)
    yield from _of_executor(rows)
    yield judge(
        Level(
            claim="Two pipelined jobs in turns pass by pass reach 0.95 of the predicted gain",
            quantity="Measured over predicted gain",
            low=0.95,
            formula=Formula.FIFO_SHARE,
        ),
        list(_shares(evidence)),
    )


def _of_papers(rows: Rows, evidence: Evidence) -> Iterator[ClaimRow]:
    yield judge(
        Level(
            claim="GPipe (Huang et al., NeurIPS 2019): idle time is negligible (≤ 5 %) with 4 micro-batches per stage",
            quantity="Idle share of all ranks' time",
            high=0.05,
            formula=Formula.IDLE,
            scale=100.0,
            unit=" %",
        ),
        [
            CellValue(row.cell, row.bubble, (row.ids,))
            for row in rows
            if row.group == "clock-16" and row.bubble is not None
        ],
    )
    yield judge(
        _over("PipeDream's plan (Narayanan et al., SOSP 2019) is at least as fast as data parallelism"),
        list(_against(rows, "planned", "pipedream-planner", "data-parallel", _throughput)),
    )
    yield judge(
        Level(
            claim="DAPPLE (Fan et al., PPoPP 2021) needs at least 12 % less memory than GPipe without recompute",
            quantity="Its largest device's memory over GPipe's",
            high=0.88,
            formula=Formula.MEMORY,
        ),
        list(_against(rows, "clock", DAPPLE, "gpipe", _memory)),
    )
    yield judge(
        _over("PipeMare (Yang et al., MLSys 2021) computes more samples per second than GPipe"),
        list(_against(rows, "clock", PIPEMARE, "gpipe", _throughput)),
    )
    yield judge(
        Level(
            claim="PipeMare reaches the synchronous target within 5 % more steps, on digits and on text",
            quantity="Its steps to the target over those with a flush",
            high=1.05,
            formula=Formula.STEPS_TO_TARGET,
        ),
        list(_steps_to_target(evidence, PIPEMARE)),
    )
    yield judge(
        _over("Stanza (Wu et al., 2018): VGG's layers in two stages beat data parallelism"),
        [
            found
            for found in _against(rows, "planned", "stanza", "data-parallel", _throughput)
            if found.cell.partition("/")[2].startswith("vgg")
        ],
    )


def _of_executor(rows: Rows) -> Iterator[ClaimRow]:
    measured = [row for row in rows if row.group == "paced" and row.is_measured]
    yield judge(
        Level(
            claim="On the paced link ranks are busy for the share of time that the virtual clock says, within 2 %",
            quantity="Busy share measured over the clock's",
            low=0.98,
            high=1.02,
            formula=Formula.BUSY_BY_CLOCK,
        ),
        [found for row in measured for found in _busy_ratio(row)],
    )
    yield judge(
        Level(
            claim="On the paced link a step takes what the virtual clock says, within 5 %",
            quantity="Measured over predicted step",
            low=0.95,
            high=1.05,
            formula=Formula.STEP_BY_CLOCK,
        ),
        [found for row in measured for found in _step_ratio(row)],
    )
    yield judge(
        Level(
            claim="Every rank held as many activations as its schedule's formula says",
            quantity="Cells in which all ranks did",
            low=1.0,
            formula=Formula.STASHES,
        ),
        [_as_by_formula(row) for row in rows if row.facts.peak_stash],
    )
    yield judge(
        Level(
            claim="Ours takes at most 1.03 times the step of torch.distributed.pipelining by the same schedule",
            quantity="Our step over torch's",
            high=1.03,
            formula=Formula.SPEED_UP,
        ),
        list(_against_torch(rows)),
    )


def _over(claim: str) -> Level:
    return Level(claim=claim, quantity="Its samples/s over the other's", low=1.0, formula=Formula.THROUGHPUT)


def _against(rows: Rows, group: str, own: str, other: str, ratio: Ratio) -> Iterator[CellValue]:
    """`ratio` of the cells of two labels in each group whose name begins with `group` and a hyphen, or is it."""
    places = {(row.group, row.workload, row.num_ranks): row for row in rows if row.label == other}
    for row in rows:
        rival = places.get((row.group, row.workload, row.num_ranks))
        in_group = row.group == group or row.group.startswith(f"{group}-")
        if row.label == own and rival is not None and in_group and (found := ratio(row, rival)) is not None:
            yield CellValue(row.cell, found, (row.ids, rival.ids))


def _throughput(row: PipelineRow, rival: PipelineRow) -> Interval:
    return exactly(row.samples_per_s / rival.samples_per_s, len(row.steps_s))


def _memory(row: PipelineRow, rival: PipelineRow) -> Interval:
    return exactly(max(row.facts.memory_bytes) / max(rival.facts.memory_bytes), len(row.steps_s))


def _as_by_formula(row: PipelineRow) -> CellValue:
    agrees = float(row.facts.peak_stash == row.facts.stash_formula)
    return CellValue(row.cell, exactly(agrees, len(row.steps_s)), (row.ids,))


def _busy_ratio(row: PipelineRow) -> Iterator[CellValue]:
    if row.bubbles and row.facts.bubble_clock is not None:
        clock = [1 - row.facts.bubble_clock] * len(row.bubbles)
        yield CellValue(row.cell, paired_ratio([1 - bubble for bubble in row.bubbles], clock), (row.ids,))


def _step_ratio(row: PipelineRow) -> Iterator[CellValue]:
    if row.facts.step_clock_s is not None:
        predicted_s = [row.facts.step_clock_s] * len(row.steps_s)
        yield CellValue(row.cell, paired_ratio(list(row.steps_s), predicted_s), (row.ids,))


def _against_torch(rows: Rows) -> Iterator[CellValue]:
    places = {
        (row.group, row.workload, row.facts.schedule): row for row in rows if row.label.startswith("torch-pipelining, ")
    }
    for row in rows:
        rival = places.get((row.group, row.workload, row.facts.schedule))
        if row.system != "ours" or rival is None:
            continue
        steps_s = [dict(zip(each.repeats, each.steps_s, strict=True)) for each in (row, rival)]
        if (ratio := ratio_by_repeat(*steps_s)) is not None:
            yield CellValue(row.cell, ratio, (row.ids, rival.ids))


def _steps_to_target(evidence: Evidence, label: str) -> Iterator[CellValue]:
    """Paired by seed; a run that never gets there makes the ratio infinite."""
    for study in evidence.targets:
        if study.suite != NAME:
            continue
        dense = study.dense.steps_by_repeat
        for row in study.rows:
            ratio = ratio_by_repeat(row.steps_by_repeat, dense)
            if row.strategy.startswith(f"{label}(rate_steps") and ratio is not None:
                ids = row.record_ids, study.dense.record_ids
                yield CellValue(f"{row.strategy}, {study.title}", ratio, ids)


def _shares(evidence: Evidence) -> Iterator[CellValue]:
    for pair in evidence.pairs:
        row = pair.row(CROSSOVER)
        if pair.suite == NAME and pair.group.startswith("two-jobs") and row is not None and row.bound_share is not None:
            # Of the virtual clock a repeat is as good as many.
            on_clock = "-clock" in pair.group
            share = exactly(row.bound_share.median, row.bound_share.n) if on_clock else row.bound_share
            yield CellValue(row.cell, share, (pair.alone_ids, row.record_ids))


STUDY = Study(suite=NAME, claims=claims)
