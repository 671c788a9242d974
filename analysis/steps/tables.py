"""Step times as terminal tables: measured cells beside their predictions, rates at which methods pay, errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.stats import Interval
from analysis.steps.adapting import AdaptedRow
from analysis.steps.rows import ErrorRow, StepRow, StudyRow
from analysis.terminal import Column, ColumnOf, Listing, columns_of
from analysis.wording import NOT_KNOWN, interval, number, percent, size


def _percent(share: float | None) -> str:
    return NOT_KNOWN if share is None else percent(share)


def _ms(seconds: float | None) -> str:
    return number(None if seconds is None else seconds * 1e3)


COLUMNS: tuple[ColumnOf[StepRow], ...] = (
    ColumnOf("workers", 1, lambda row: str(row.place.num_workers)),
    ColumnOf("Gbit/s", 1, lambda row: number(row.place.gbit)),
    ColumnOf("step, ms\n[95 %]", 0, lambda row: interval(row.step_time_s, 1e3)),
    ColumnOf("predicted\nms", 2, lambda row: _ms(row.predicted_s)),
    ColumnOf("error", 3, lambda row: _percent(row.error)),
    ColumnOf("scaling\nefficiency", 4, lambda row: _percent(row.efficiency.median if row.efficiency else None)),
    ColumnOf("exposed\nms", 5, lambda row: _ms(row.phases.exposed_s)),
    ColumnOf("messages", 6, lambda row: number(row.num_messages)),
    ColumnOf("control\nrounds", 8, lambda row: number(row.num_control_rounds)),
    ColumnOf("n", 7, lambda row: str(row.num_repeats)),
)
ERRORS: tuple[ColumnOf[ErrorRow], ...] = (
    ColumnOf("cells", 2, lambda row: str(row.num_cells)),
    ColumnOf("median\nerror", 0, lambda row: percent(row.median.median)),
    ColumnOf("p95", 1, lambda row: percent(row.p95.median)),
    ColumnOf("worst", 3, lambda row: percent(row.worst)),
    ColumnOf("bias", 5, lambda row: percent(row.bias)),
    ColumnOf("τ", 4, lambda row: number(row.tau.median if row.tau else None)),
    ColumnOf("pairs", 6, lambda row: str(row.num_pairs)),
)
ADAPTED: tuple[ColumnOf[AdaptedRow], ...] = (
    ColumnOf("α, ms\n[95 %]", 2, lambda row: interval(row.alpha_s, 1e3)),
    ColumnOf("1/β\na second", 3, lambda row: _rate(row)),
    ColumnOf("bound\nat", 4, lambda row: row.bound_text or NOT_KNOWN),
    ColumnOf("again\nat most", 5, lambda row: str(row.num_rebound) if row.bound_at else NOT_KNOWN),
    ColumnOf("tried", 6, lambda row: str(row.num_tried or NOT_KNOWN)),
    ColumnOf("as written\nms", 7, lambda row: _median_ms(row.written_s)),
    ColumnOf("kept\nms", 1, lambda row: _median_ms(row.kept_s)),
    ColumnOf("settings\nkept", 0, lambda row: "\n".join(row.kept_texts) or NOT_KNOWN),
    ColumnOf("n", 8, lambda row: str(row.num_repeats)),
)


def step_tables(
    studies: Sequence[StudyRow], errors: Sequence[ErrorRow], adapted: Sequence[AdaptedRow]
) -> Iterator[Listing]:
    """A network's measured cells and where its methods pay, then the errors, then what strategies chose."""
    for study in studies:
        if study.measured:
            note = "Error: predicted over measured, less one. Efficiency: the step of one worker alone over this one."
            yield Listing(
                title=f"{study.suite}: {study.title}",
                heading="method",
                labels=tuple(row.name for row in study.measured),
                ran=tuple(row.ran for row in study.measured),
                columns=columns_of(COLUMNS, study.measured),
                notes=(note,),
            )
        if study.pays:
            yield pays_table(study)
    if errors:
        yield Listing(
            title="Predicted against measured step times",
            heading="of",
            labels=tuple(row.of for row in errors),
            columns=columns_of(ERRORS, errors),
            notes=(
                "τ: Kendall's, over pairs of methods in one place that differ by more than their intervals and 1 %.",
            ),
        )
    if adapted:
        note = (
            "Bound: planned with these costs from that step on. Step times are a tuner's, from trials in the warm-up."
        )
        yield Listing(
            title="Chosen while training",
            heading="method",
            labels=tuple(f"{row.name} · {row.where}" for row in adapted),
            ran=tuple(row.ran for row in adapted),
            columns=columns_of(ADAPTED, adapted),
            notes=(note,),
        )


def pays_table(study: StudyRow) -> Listing:
    """Methods down, numbers of workers and kinds of links across: the Gbit/s at which each beats the reference."""
    names = tuple(dict.fromkeys(pays.name for pays in study.pays))
    texts = {(pays.name, pays.column): pays.text for pays in study.pays}
    columns = (
        Column("\n".join(column), tuple(texts.get((name, column), NOT_KNOWN) for name in names), place)
        for place, column in enumerate(dict.fromkeys(column for _, column in texts))
    )
    basis = " and ".join(sorted({pays.basis for pays in study.pays}))
    title = f"{study.suite}: {study.title}, Gbit/s at which a method beats {study.reference} ({basis})"
    return Listing(title=title, heading="method", labels=names, columns=tuple(columns))


def _rate(row: AdaptedRow) -> str:
    beta = row.beta_s_per_byte
    return size(1 / beta.median) if beta is not None and beta.median else NOT_KNOWN


def _median_ms(value: Interval | None) -> str:
    return _ms(value.median if value is not None else None)
