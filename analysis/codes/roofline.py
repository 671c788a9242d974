"""How fast compressors are beside what moving their bytes takes: rows, table and figure from a saved benchmark run.

Reads the JSON that pytest-benchmark saves from `benchmarks/test_compression.py`, whose `extra_info` holds everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_COPIES = 0.5  # where the axis starts
ROUNDS = 8  # of `benchmarks/roofline.py`, which keeps the best


class SpeedError(ValueError):
    """A file that holds no such run; the message says how to make one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow:
    """One compressor on one device, encoding and decoding together, in copies of the float32 tensor of `numel`.

    `roofline_copies` is what moving the bytes alone takes; `extra_memory_tensors` and `state_tensors` are in sizes of
    the tensor, peak beside it and kept between steps.
    """

    method: str
    device: str
    numel: int
    copy_s: float
    copies: float
    target_copies: float | None
    roofline_copies: float
    bytes_per_element: float
    extra_memory_tensors: float
    state_tensors: float

    @property
    def meets_target(self) -> bool:
        """Whether it is as fast as was asked, or nothing was asked."""
        return self.target_copies is None or self.copies <= self.target_copies


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRun:
    """A saved run: its rows, fastest first, and where and when it was made."""

    rows: tuple[SpeedRow, ...]
    processor: str
    date: str


def read_run(path: Path, device: str = "cpu") -> SpeedRun:
    """The compressors of one saved run. Raises: SpeedError, OSError."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        found = [bench["extra_info"] for bench in saved["benchmarks"] if "state_tensors" in bench["extra_info"]]
        rows = [SpeedRow(**{name: info[name] for name in SpeedRow.__dataclass_fields__}) for info in found]
        processor = str(saved["machine_info"]["cpu"].get("brand_raw", "unknown processor"))
        date = str(saved["datetime"])[:10]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise SpeedError(f"{path} is no saved benchmark run of compressors ({error!r}); {_remedy()}") from error
    chosen = sorted((row for row in rows if row.device == device), key=lambda row: row.copies)
    if not chosen:
        raise SpeedError(f"{path} has no compressor on {device}; {_remedy()}")
    return SpeedRun(rows=tuple(chosen), processor=processor, date=date)


def table(run: SpeedRun) -> Iterator[str]:
    """Lines of a Markdown table, and a line on where the numbers come from."""
    yield "| method | copies | target | roofline | bytes per element | extra memory | state |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for row in run.rows:
        target = "" if row.target_copies is None else f"≤ {row.target_copies:g}" + ("" if row.meets_target else " ✗")
        yield (
            f"| `{row.method}` | {row.copies:.1f} | {target} | {row.roofline_copies:.1f} | "
            f"{row.bytes_per_element:.3g} | {row.extra_memory_tensors:.2f} | {row.state_tensors:.2g} |"
        )
    copies_ms = sorted(1e3 * row.copy_s for row in run.rows)
    yield ""
    yield (
        f"{run.rows[0].numel / 1e6:.1f} million elements on {run.rows[0].device}, {run.processor}, {run.date}; a copy "
        f"took {copies_ms[0]:.1f}–{copies_ms[-1]:.1f} ms. Each number is the best of {ROUNDS} rounds, in one run."
    )


def figure(run: SpeedRun) -> Figure:
    """A dot a compressor on a log axis, a tick where moving the bytes alone would end, a diamond at its target.

    No bars: a log axis has no zero to start them from. The line from tick to dot shows a quotient, which it can.
    """
    from matplotlib.lines import Line2D

    from analysis import theme

    with theme.style():
        drawn, axes = theme.bars(len(run.rows), extra_in=0.3)
        dot: dict[str, Any] = {"marker": "o", "markersize": 4.5, "linestyle": "none"}
        measured, slower = dot | {"color": theme.palette()[0]}, dot | {"color": theme.palette()[3]}
        for place, row in enumerate(run.rows):
            axes.plot([row.roofline_copies, row.copies], [place] * 2, color=theme.neutral(), linewidth=0.9)
            axes.plot([row.roofline_copies] * 2, [place - 0.3, place + 0.3], color=theme.INK, linewidth=1.6)
            axes.plot(row.copies, place, **(measured if row.meets_target else slower))
            if row.target_copies is not None:
                axes.plot(row.target_copies, place, **theme.diamond())
        theme.names(axes, [row.method for row in run.rows])
        axes.set_xscale("log")
        axes.set_xlim(LEAST_COPIES, 2 * max(max(row.copies, row.target_copies or 0) for row in run.rows))
        axes.xaxis.set_major_formatter("{x:g}")
        x_label = f"copies of the tensor (log; best of {ROUNDS})"
        theme.label(axes, "Encoding and decoding, beside moving the bytes", x_label)
        handles = [
            Line2D([], [], label="measured", **measured),
            Line2D([], [], color=theme.INK, linewidth=1.6, label="bytes alone"),
            Line2D([], [], label="target", **theme.diamond()),
        ]
        if not all(row.meets_target for row in run.rows):
            handles.append(Line2D([], [], label="slower than its target", **slower))
        theme.legend(drawn, handles, columns=3)
    return drawn


def _remedy() -> str:
    return "make one with make benchmark ARGS='-k test_compression.py'"
