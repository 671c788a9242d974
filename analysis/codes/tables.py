"""Tables of compression for the terminal: bits and seconds by method, rates at which it pays, times to the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Group

from analysis import terminal
from analysis.codes.rows import CompressionStudy, MethodRow, SoonerRow
from analysis.terminal import Column
from analysis.wording import NOT_KNOWN, factor, interval, number, plural


def bits(row: MethodRow) -> str:
    """Bits sent, marked where a warm-up's are among them."""
    return number(row.bits) + (" *" if row.bits_with_warm_up else "")


def milliseconds(seconds: float | None) -> str:
    """Of a step."""
    return number(None if seconds is None else seconds * 1e3)


# Heading, rank (0 stays longest on a narrow terminal), text of one row.
COLUMNS: tuple[tuple[str, int, Callable[[MethodRow], str]], ...] = (
    ("bits a\nparameter", 0, bits),
    ("by its\npaper", 3, lambda row: number(row.theory_bits)),
    ("code over\nfp32's", 4, lambda row: NOT_KNOWN if row.ratio is None else f"1/{number(row.ratio)}"),
    ("step, ms\n[95 %]", 1, lambda row: interval(row.step_time_s, 1e3)),
    ("predicted\nms", 6, lambda row: milliseconds(row.predicted_s)),
    ("compress\nms", 2, lambda row: milliseconds(row.compress_s)),
    ("decompress\nms", 2, lambda row: milliseconds(row.phases.decompress_s)),
    ("exposed\nms", 5, lambda row: milliseconds(row.phases.exposed_s)),
    ("n", 7, lambda row: str(len(row.by_repeat))),
)


def sooner_text(row: SoonerRow) -> str:
    """The gain where it was trained, or that the target was not reached."""
    if row.home is not None:
        return factor(row.home)
    return f"reached in {row.num_reached} of {plural(row.num_repeats, 'repeat')}"


def compression_tables(study: CompressionStudy, width: int) -> Iterator[Group]:
    """One table a place, then where methods pay and who reaches the target sooner."""
    for place in dict.fromkeys(row.place for row in study.rows):
        rows = [row for row in study.rows if row.place == place and row.was_run]
        if rows:
            columns = [Column(heading, tuple(map(cell, rows)), rank) for heading, rank, cell in COLUMNS]
            filled = [column for column in columns if set(column.cells) != {NOT_KNOWN}]
            table = terminal.table("method", [row.name for row in rows], filled, width)
            notes = list(_notes(rows))
            yield terminal.titled(f"compression: {place.describe()} ({rows[0].evidence})", table, width, notes)
    if study.pays:
        columns = [
            Column("workers", tuple(str(one.num_workers) for one in study.pays), 3),
            Column("pays at Gbit/s", tuple(one.threshold.text for one in study.pays), 0, "left"),
            Column("unshaped", tuple(factor(one.unshaped) for one in study.pays), 2),
            Column("steps", tuple(one.threshold.basis for one in study.pays), 1, "left"),
        ]
        labels = [f"{one.workload}: {one.name}" for one in study.pays]
        table = terminal.table("method", labels, columns, width)
        note = "Against the better of tuned float32 and half, a half against float32; a gain of 1 % or less is none."
        yield terminal.titled("Links on which compression pays", table, width, [note])
    if study.sooner:
        columns = [
            Column("float32's time\nover its own", tuple(map(sooner_text, study.sooner)), 0),
            Column("sooner at\nGbit/s", tuple(r.threshold.text if r.threshold else NOT_KNOWN for r in study.sooner), 1),
        ]
        labels = [f"{row.workload}: {row.name}" for row in study.sooner]
        table = terminal.table("method", labels, columns, width)
        yield terminal.titled("Time to the target", table, width)


def _notes(rows: list[MethodRow]) -> Iterator[str]:
    if any(row.bits_with_warm_up for row in rows):
        yield "*: a rising density's steps among them."
    for reason in dict.fromkeys(row.charge.reason for row in rows if row.charge and not row.charge.is_charged):
        yield f"{reason[0].upper()}{reason[1:]}."
