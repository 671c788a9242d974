"""Step times as terminal tables: measured cells beside their predictions, rates at which methods pay, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group

from analysis import terminal
from analysis.stats import Interval
from analysis.steps.adapting import AdaptedRow
from analysis.steps.rows import ErrorRow, StepRow, StudyRow
from analysis.terminal import Column
from analysis.wording import NOT_KNOWN, interval, number, percent, size


def _percent(share: float | None) -> str:
    return NOT_KNOWN if share is None else percent(share)


def _ms(seconds: float | None) -> str:
    return number(None if seconds is None else seconds * 1e3)


# Heading, rank (0 stays longest on a narrow terminal), text of one row.
COLUMNS: tuple[tuple[str, int, Callable[[StepRow], str]], ...] = (
    ("workers", 1, lambda row: str(row.place.num_workers)),
    ("Gbit/s", 1, lambda row: number(row.place.gbit)),
    ("step, ms\n[95 %]", 0, lambda row: interval(row.step_time_s, 1e3)),
    ("predicted\nms", 2, lambda row: _ms(row.predicted_s)),
    ("error", 3, lambda row: _percent(row.error)),
    ("scaling\nefficiency", 4, lambda row: _percent(row.efficiency.median if row.efficiency else None)),
    ("exposed\nms", 5, lambda row: _ms(row.phases.exposed_s)),
    ("messages", 6, lambda row: number(row.num_messages)),
    ("control\nrounds", 8, lambda row: number(row.num_control_rounds)),
    ("n", 7, lambda row: str(row.num_repeats)),
)


def step_tables(studies: Sequence[StudyRow], errors: Sequence[ErrorRow], width: int) -> Iterator[Group]:
    """Every table of step times: a network's cells and where its methods pay, the errors last."""
    for study in studies:
        if study.measured:
            yield study_table(study, width)
        if study.pays:
            yield pays_table(study, width)
    if errors:
        yield error_table(errors, width)


def study_table(study: StudyRow, width: int) -> Group:
    """Measured cells of one network, by workers and rate."""
    rows = study.measured
    columns = [Column(heading, tuple(map(cell, rows)), rank) for heading, rank, cell in COLUMNS]
    filled = [column for column in columns if set(column.cells) != {NOT_KNOWN}]
    table = terminal.table("method", [row.name for row in rows], filled, width)
    note = "Error: predicted over measured, less one. Efficiency: the step of one worker alone over this one."
    return terminal.titled(f"{study.suite}: {study.title}", table, width, [note])


def pays_table(study: StudyRow, width: int) -> Group:
    """Methods down, numbers of workers across: the Gbit/s at which each beats the reference."""
    names = list(dict.fromkeys(pays.name for pays in study.pays))
    workers = sorted({pays.num_workers for pays in study.pays})
    texts = {(pays.name, pays.num_workers): pays.text for pays in study.pays}
    columns = [
        Column(f"{count}\nworkers", tuple(texts.get((name, count), NOT_KNOWN) for name in names), place)
        for place, count in enumerate(workers)
    ]
    table = terminal.table("method", names, columns, width)
    basis = " and ".join(sorted({pays.basis for pays in study.pays}))
    title = f"{study.suite}: {study.title}, Gbit/s at which a method beats {study.reference} ({basis})"
    return terminal.titled(title, table, width)


def error_table(errors: Sequence[ErrorRow], width: int) -> Group:
    """How far predictions lie from measurements."""
    columns = [
        Column("cells", tuple(str(row.num_cells) for row in errors), 2),
        Column("median\nerror", tuple(percent(row.median.median) for row in errors), 0),
        Column("p95", tuple(percent(row.p95.median) for row in errors), 1),
        Column("worst", tuple(percent(row.worst) for row in errors), 3),
        Column("bias", tuple(percent(row.bias) for row in errors), 5),
        Column("τ", tuple(number(row.tau.median if row.tau else None) for row in errors), 4),
        Column("pairs", tuple(str(row.num_pairs) for row in errors), 6),
    ]
    table = terminal.table("of", [row.of for row in errors], columns, width)
    note = "τ: Kendall's, over pairs of methods in one place whose measured intervals are disjoint."
    return terminal.titled("Predicted against measured step times", table, width, [note])


def adapted_table(rows: Sequence[AdaptedRow], width: int) -> Group:
    """What strategies were bound to and what tuners kept, a row a cell."""
    columns = [
        Column("α, ms\n[95 %]", tuple(interval(row.alpha_s, 1e3) for row in rows), 2),
        Column("1/β\na second", tuple(_rate(row) for row in rows), 3),
        Column("bound\nat", tuple(row.bound_text or NOT_KNOWN for row in rows), 4),
        Column("again\nat most", tuple(str(row.num_rebound) if row.bound_at else NOT_KNOWN for row in rows), 5),
        Column("tried", tuple(str(row.num_tried or NOT_KNOWN) for row in rows), 6),
        Column("as written\nms", tuple(_median_ms(row.written_s) for row in rows), 7),
        Column("kept\nms", tuple(_median_ms(row.kept_s) for row in rows), 1),
        Column("settings\nkept", tuple("\n".join(row.kept_texts) or NOT_KNOWN for row in rows), 0),
        Column("n", tuple(str(row.num_repeats) for row in rows), 8),
    ]
    filled = [column for column in columns if set(column.cells) != {NOT_KNOWN}]
    labels = [f"{row.name} · {row.where}" for row in rows]
    note = (
        "Bound: planned with these costs from that step on. Step times are a tuner's, from its trials in the warm-up."
    )
    return terminal.titled("Chosen while training", terminal.table("method", labels, filled, width), width, [note])


def _rate(row: AdaptedRow) -> str:
    beta = row.beta_s_per_byte
    return size(1 / beta.median) if beta is not None and beta.median else NOT_KNOWN


def _median_ms(value: Interval | None) -> str:
    return _ms(value.median if value is not None else None)
