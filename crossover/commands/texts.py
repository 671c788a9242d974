"""Numbers and tables as text."""

from collections.abc import Sequence
from datetime import timedelta


def percent(part: float) -> str:
    """`45 %`; one decimal below ten."""
    return f"{100 * part:.0f} %" if part >= 0.0995 or part < 0.0005 else f"{100 * part:.1f} %"


def milliseconds(time_s: float | None) -> str:
    """`45.2 ms`; a dash for what is unknown."""
    return "–" if time_s is None else f"{1000 * time_s:.1f} ms"


def seconds(time_s: float) -> str:
    """`12.3 s`, from an hour on `1:02:03`."""
    return f"{time_s:.1f} s" if time_s < 3600 else str(timedelta(seconds=round(time_s)))


def clock(time_s: float) -> str:
    """`2:05`, `1:02:05`."""
    minutes, rest_s = divmod(int(time_s), 60)
    return f"{minutes}:{rest_s:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest_s:02}"


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Lines of columns two spaces apart; the first `left` columns flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if index < left else f"{cell:>{width}}"
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
