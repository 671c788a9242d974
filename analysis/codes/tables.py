"""Tables of compression for the terminal: bits and seconds by method, rates at which it pays, times to the target."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.codes.rows import CompressionStudy, MethodRow, PaysBelow, SoonerRow
from analysis.terminal import ColumnOf, Listing, columns_of
from analysis.wording import NOT_KNOWN, factor, interval, number, plural


def bits(row: MethodRow) -> str:
    """Bits sent, marked where a warm-up's are among them."""
    return number(row.bits) + (" *" if row.bits_with_warm_up else "")


def milliseconds(seconds: float | None) -> str:
    """Of a step."""
    return number(None if seconds is None else seconds * 1e3)


COLUMNS: tuple[ColumnOf[MethodRow], ...] = (
    ColumnOf("bits a\nparameter", 0, bits),
    ColumnOf("by its\npaper", 3, lambda row: number(row.theory_bits)),
    ColumnOf("code over\nfp32's", 4, lambda row: NOT_KNOWN if row.ratio is None else f"1/{number(row.ratio)}"),
    ColumnOf("step, ms\n[95 %]", 1, lambda row: interval(row.step_time_s, 1e3)),
    ColumnOf("predicted\nms", 6, lambda row: milliseconds(row.predicted_s)),
    ColumnOf("compress\nms", 2, lambda row: milliseconds(row.compress_s)),
    ColumnOf("decompress\nms", 2, lambda row: milliseconds(row.phases.decompress_s)),
    ColumnOf("exposed\nms", 5, lambda row: milliseconds(row.phases.exposed_s)),
    ColumnOf("n", 7, lambda row: str(len(row.by_repeat))),
)
PAYS: tuple[ColumnOf[PaysBelow], ...] = (
    ColumnOf("workers", 3, lambda row: str(row.num_workers)),
    ColumnOf("pays at Gbit/s", 0, lambda row: row.threshold.text, "left"),
    ColumnOf("on", 4, lambda row: row.where, "left"),
    ColumnOf("unshaped", 2, lambda row: factor(row.unshaped)),
    ColumnOf("steps", 1, lambda row: row.threshold.basis, "left"),
)


def sooner_text(row: SoonerRow) -> str:
    """The gain where it was trained, or that the target was not reached."""
    if row.home is not None:
        return factor(row.home)
    return f"reached in {row.num_reached} of {plural(row.num_repeats, 'repeat')}"


SOONER: tuple[ColumnOf[SoonerRow], ...] = (
    ColumnOf("float32's time\nover its own", 0, sooner_text),
    ColumnOf("sooner at\nGbit/s", 1, lambda row: row.threshold.text if row.threshold else NOT_KNOWN),
)


def compression_tables(study: CompressionStudy) -> Iterator[Listing]:
    """One table a place, then where methods pay and who reaches the target sooner."""
    for place in dict.fromkeys(row.place for row in study.rows):
        rows = [row for row in study.rows if row.place == place and row.was_run]
        if rows:
            yield Listing(
                title=f"compression: {place.describe()} ({rows[0].evidence_text})",
                heading="method",
                labels=tuple(row.name for row in rows),
                ran=tuple(row.ran for row in rows),
                columns=columns_of(COLUMNS, rows),
                notes=tuple(_notes(rows)),
            )
    if study.pays:
        note = "Against the better of tuned float32 and half, a half against float32; a gain of 1 % or less is none."
        yield Listing(
            title="Links on which compression pays",
            heading="method",
            labels=tuple(f"{one.workload}: {one.name}" for one in study.pays),
            columns=columns_of(PAYS, study.pays),
            notes=(note,),
        )
    if study.sooner:
        yield Listing(
            title="Time to the target",
            heading="method",
            labels=tuple(f"{row.workload}: {row.name}" for row in study.sooner),
            columns=columns_of(SOONER, study.sooner),
        )


def _notes(rows: list[MethodRow]) -> Iterator[str]:
    if any(row.bits_with_warm_up for row in rows):
        yield "*: a rising density's steps among them."
    for reason in dict.fromkeys(row.charge.reason for row in rows if row.charge and not row.charge.is_charged):
        yield f"{reason[0].upper()}{reason[1:]}."
