"""Speed of compressors: what is read from a saved run, the table and the figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.codes.roofline import SpeedError, figure, read_run, table


def saved(tmp_path: Path, **changes: Any) -> Path:
    """A run of two compressors, the second too slow, and of a kernel that is none."""
    info = {
        "method": "half", "device": "cpu", "numel": 25_500_000, "copy_s": 0.01, "copies": 2.5, "target_copies": 3,
        "roofline_copies": 1.5, "bytes_per_element": 2.0, "extra_memory_tensors": 0.01, "state_tensors": 0.0,
    }  # fmt: skip
    slow = info | {"method": "dgc", "copies": 21.0, "target_copies": 20} | changes
    path = tmp_path / "run.json"
    benches = [{"extra_info": slow}, {"extra_info": info}, {"extra_info": {"copies": 1.0}}]
    run = {"machine_info": {"cpu": {"brand_raw": "a core"}}, "datetime": "2026-01-02T03:04:05", "benchmarks": benches}
    path.write_text(json.dumps(run))
    return path


def test_rows_are_read_fastest_first(tmp_path: Path) -> None:
    run = read_run(saved(tmp_path))
    assert [(row.method, row.meets_target) for row in run.rows] == [("half", True), ("dgc", False)]
    assert (run.processor, run.date) == ("a core", "2026-01-02")


def test_the_table_marks_what_misses_its_target(tmp_path: Path) -> None:
    lines = list(table(read_run(saved(tmp_path))))
    assert lines[2] == "| `half` | 2.5 | ≤ 3 | 1.5 | 2 | 0.01 | 0 |"
    assert "| 21.0 | ≤ 20 ✗ |" in lines[3]
    assert "25.5 million elements on cpu, a core, 2026-01-02; a copy took 10.0–10.0 ms" in lines[-1]


def test_a_method_without_a_target_meets_it(tmp_path: Path) -> None:
    (_, other) = read_run(saved(tmp_path, target_copies=None)).rows
    assert other.meets_target


def test_the_figure_has_a_dot_a_method_a_diamond_a_target_and_no_bar(tmp_path: Path) -> None:
    drawn = figure(read_run(saved(tmp_path)))
    (axes,) = drawn.axes
    assert not axes.patches
    assert [line.get_xdata() for line in axes.lines if line.get_marker() == "o"] == [[2.5], [21.0]]
    assert axes.get_xlabel() == "copies of the tensor (log; best of 8)"
    assert "slower than its target" in [text.get_text() for text in drawn.legends[0].get_texts()]
    assert sum(line.get_marker() == "D" for line in axes.lines) == 2
    assert [label.get_text() for label in axes.get_yticklabels()] == ["half", "dgc"]


@pytest.mark.parametrize("text", ["", "{}", '{"benchmarks": []}'])
def test_a_file_that_is_no_such_run_is_refused_with_the_remedy(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(SpeedError, match="make benchmark"):
        read_run(path)
    with pytest.raises(SpeedError, match="no compressor on cuda"):
        read_run(saved(tmp_path), device="cuda")
