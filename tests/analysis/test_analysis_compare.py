import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from synthetic_records import EMULATED, shared, single

from analysis.compare import Change, CompareError, check_one_machine, compare, compare_hot_paths
from analysis.tables import comparison_table, comparisons_as_json
from results.record import FabricFacts, RankTimes, Record


def side(slower: float = 1.0, fabric: FabricFacts = EMULATED, num_repeats: int = 6, seed: int = 1) -> list[Record]:
    generator = np.random.default_rng(seed)
    records = [single("resnet20-digits", "unfused", n, generator, fabric) for n in range(num_repeats)]
    return [_stretched(record, slower) for record in records]


def _stretched(record: Record, factor: float) -> Record:
    job = record.jobs[0]
    ranks = tuple(replace(rank, steps_s=tuple(factor * step for step in rank.steps_s)) for rank in job.ranks)
    return replace(record, jobs=(replace(job, ranks=ranks),))


def test_the_same_records_are_within_noise() -> None:
    (found,) = compare(side(), side())
    assert found.change is Change.SAME
    assert found.bytes_ratio == 1.0


def test_bytes_that_one_side_did_not_count_have_no_ratio() -> None:
    bare = [replace(r, jobs=(replace(r.jobs[0], wire_bytes={}, interface_bytes=None),)) for r in side()]
    for before, after in ((side(), bare), (bare, side())):
        (found,) = compare(before, after)
        assert (found.bytes_ratio, found.change) == (None, Change.SAME)


@pytest.mark.parametrize(("factor", "change"), [(1.5, Change.SLOWER), (0.6, Change.FASTER)])
def test_a_large_change_is_named(factor: float, change: Change) -> None:
    (found,) = compare(side(), side(factor, seed=2))
    assert found.change is change
    assert found.time_ratio is not None
    assert found.time_ratio.low < factor * 1.05
    assert found.time_ratio.high > factor * 0.95


@pytest.mark.parametrize("num_repeats", [1, 2, 5])
def test_fewer_than_six_repeats_on_a_side_are_too_few(num_repeats: int) -> None:
    (found,) = compare(side(), side(2.0, num_repeats=num_repeats))
    assert found.change is Change.OPEN


def test_a_virtual_clock_needs_no_repeats() -> None:
    def exactly(step_s: float) -> list[Record]:
        (record,) = side(num_repeats=1)
        ranks = (RankTimes(rank=0, warmup_s=(), steps_s=(step_s,) * 3),)
        return [replace(record, jobs=(replace(record.jobs[0], ranks=ranks, clock="virtual"),))]

    assert [found.change for found in compare(exactly(0.1), exactly(0.2))] == [Change.SLOWER]


def test_cells_of_one_name_in_two_suites_are_two() -> None:
    other = [replace(record, suite="parity") for record in side(1.5, seed=2)]
    before = [*side(), *(replace(record, suite="parity") for record in side())]
    found = {one.suite: one.change for one in compare(before, [*side(), *other])}
    assert found == {"quick": Change.SAME, "parity": Change.SLOWER}


def test_a_cell_that_one_side_lacks_is_a_row_and_no_error() -> None:
    pair = shared(("resnet20-digits", "resnet20-digits"), "crossover", 0, np.random.default_rng(0))
    changes = {found.cell: found.change for found in compare([*side(), pair], side())}
    assert changes[pair.cell] is Change.ONLY_BEFORE


def test_different_machines_are_refused_unless_allowed() -> None:
    other = [replace(r, environment=replace(r.environment, machine="another machine")) for r in side()]
    with pytest.raises(CompareError, match="another machine"):
        compare(side(), other)
    assert compare(side(), other, allow_different=True)


def test_repeats_of_one_cell_on_two_machines_are_refused_where_a_clock_timed_them() -> None:
    other = [replace(r, environment=replace(r.environment, machine="another machine")) for r in side()]
    check_one_machine([*side(), *(replace(record, cell="real/another/cell") for record in other)])
    with pytest.raises(CompareError, match="another machine"):
        check_one_machine([*side(), *other])
    check_one_machine([replace(r, jobs=(replace(r.jobs[0], clock="virtual"),)) for r in (*side(), *other)])


# Medians of six processes, in µs: of a path that hardly varies, of one that does, and of one beside other work.
STEADY, VARIED, DISTURBED = (
    (412.1, 409.8, 415.0, 411.3, 418.9, 410.2),
    (96.4, 103.9, 99.1, 94.7, 101.8, 97.5),
    (51.0, 68.3, 49.9, 66.1, 50.4, 67.7),
)


def hot_paths(folder: Path, times: dict[str, Sequence[float]], cpu: str = "a processor") -> Path:
    """What pytest-benchmark writes, as far as it is read: a file for each process."""
    folder.mkdir()
    for number in range(max(map(len, times.values()))):
        run = {
            "machine_info": {"cpu": {"brand_raw": cpu, "count": 2}, "release": "6.18"},
            "benchmarks": [{"name": name, "stats": {"median": own[number] / 1e6}} for name, own in times.items()],
        }
        (folder / f"{number}.json").write_text(json.dumps(run))
    return folder


@pytest.mark.parametrize("slowed", ["steady", "varied"])
def test_a_hot_path_that_takes_30_percent_longer_is_slower_and_the_others_are_within_noise(
    tmp_path: Path, slowed: str
) -> None:
    times = {"steady": STEADY, "varied": VARIED, "disturbed": DISTURBED}
    again = {name: [1.3 * own if name == slowed else own for own in reversed(values)] for name, values in times.items()}
    again["disturbed"] = [66.0, 67.5, 50.2, 49.8, 68.0, 65.1]  # the median moves by 10 % of itself and more
    found = compare_hot_paths(hot_paths(tmp_path / "before", times), hot_paths(tmp_path / "after", again))
    assert {row.cell for row in found if row.change is Change.SLOWER} == {slowed}
    assert {row.cell for row in found if row.change is Change.SAME} == times.keys() - {slowed}


def test_hot_paths_of_few_processes_of_another_machine_or_damaged_decide_nothing(tmp_path: Path) -> None:
    before = hot_paths(tmp_path / "before", {"steady": STEADY, "gone": STEADY})
    few = hot_paths(tmp_path / "few", {"steady": [2 * own for own in STEADY[:5]], "new": STEADY[:5]})
    changes = {row.cell: row.change for row in compare_hot_paths(before, few)}
    assert changes == {"steady": Change.OPEN, "gone": Change.ONLY_BEFORE, "new": Change.ONLY_AFTER}
    other = hot_paths(tmp_path / "other", {"steady": STEADY}, cpu="another processor")
    with pytest.raises(CompareError, match=r"another processor.*--allow-different"):
        compare_hot_paths(before, other)
    assert compare_hot_paths(before, other, allow_different=True)
    (before / "0.json").write_text('{"benchmarks": [{}], "machine_info": {}}')
    with pytest.raises(CompareError, match="no whole run of benchmarks"):
        compare_hot_paths(before, few)


def test_different_fabrics_are_refused_unless_allowed() -> None:
    faster = side(fabric=replace(EMULATED, rate_bps=1e9))
    with pytest.raises(CompareError, match="1 Gbit/s"):
        compare(side(), faster)
    assert compare(side(), faster, allow_different=True)


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"batch_size": 96}, "batches of 96 after"), ({"accumulate": 3}, "× 3 after"), ({"workload": "vgg"}, "vgg with")],
)
def test_cells_of_different_work_are_refused_unless_allowed(changes: dict[str, Any], told: str) -> None:
    other = [replace(r, jobs=(replace(r.jobs[0], **changes),)) for r in side(3.0)]
    with pytest.raises(CompareError, match=told):
        compare(side(), other)
    assert compare(side(), other, allow_different=True)


def test_only_of_jobs_that_run_together_does_the_time_depend_on_the_number_of_steps() -> None:
    pair = shared(("resnet20-digits", "resnet20-digits"), "crossover", 0, np.random.default_rng(0))
    for record in (pair, *side(num_repeats=1)):
        other = replace(record, jobs=tuple(replace(job, num_steps=7) for job in record.jobs))
        if len(record.jobs) == 1:
            assert compare([record], [other])
            continue
        with pytest.raises(CompareError, match=r"7 steps of .* after"):
            compare([record], [other])


def test_a_comparison_prints_and_is_plain_json() -> None:
    found = compare(side(), side(num_repeats=1))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(comparison_table(found, console.width))
    assert "too few repeats" in console.export_text()
    assert comparisons_as_json(found)[0]["time_ratio"]["low"] is None
