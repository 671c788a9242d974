"""README's numbers come from records and from nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pages import ROOT

from analysis.figures import drawings
from analysis.rows import Summary
from analysis.wording import number
from results.record import Record, read_records, write_record
from scripts.readme_table import RECORDS, block, main, sharing_line, table
from suites.reports import summary_of

PAGE = "# Title\n\n<!-- quick:begin -->\nnothing yet\n<!-- quick:end -->\n\nthe rest\n"


def made_up(num_repeats: int) -> list[Record]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tests" / "analysis"))
        from synthetic_records import quick_suite

        made: Callable[..., list[Record]] = quick_suite
        return made(num_repeats=num_repeats)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return made_up(num_repeats=6)


@pytest.fixture(scope="module")
def summary(records: list[Record]) -> Summary:
    return summary_of(records)


def test_the_table_has_every_system_and_setting_with_its_interval(summary: Summary) -> None:
    heading, _, *rows = table(summary.settings)
    assert all(setting.key.workload in heading and setting.evidence in heading for setting in summary.settings)
    for setting in summary.settings:
        for row in setting.competitors:
            line = next(line for line in rows if line.startswith(f"| `{row.name}` |"))
            assert line.count("|") == heading.count("|")
            assert ("samples/s" if row.is_baseline else f"{row.speedup.low:.2g}"[:3] if row.speedup else "–") in line


def test_replayed_sizes_are_what_they_stand_for() -> None:
    page = "\n".join(table(summary_of(read_records([RECORDS])).settings))
    assert "`torch-ddp(bucket=6.29 MB)`" in page
    assert "12.6 kB" not in page  # the same bucket of tensors that are 500 times smaller


def test_only_what_lies_above_1_as_a_whole_is_bold(summary: Summary) -> None:
    page = "\n".join(table(summary.settings))
    for low in re.findall(r"\*\*[\d.,]+× \[([\d.,]+),", page):
        assert float(low.replace(",", "")) >= 1.0
    paying = [r for s in summary.settings for r in s.competitors if r.speedup and r.speedup.low > 1.0]
    assert page.count("**") == 2 * len([row for row in paying if not row.is_baseline]) > 0


def test_fewer_than_six_repeats_are_a_range_and_nothing_is_bold() -> None:
    thin = summary_of(made_up(num_repeats=3))
    text = block(thin, next(drawings(thin)))
    assert "n = 3" in text
    assert "their range, which decides nothing" in text
    assert "**" not in "\n".join(table(thin.settings))


def test_n_provenance_sharing_and_failures_are_said(summary: Summary) -> None:
    text = block(summary, next(drawings(summary)))
    assert "n = 6" in text
    assert "decides nothing" not in text
    assert all(pair.title in text for pair in summary.pairs)
    assert "that T* predicts" in text
    assert "skipped or failed" in text
    assert f"commit `{summary.provenance[0].environment.commit[:12]}`" in text


def test_n_of_a_pair_is_that_of_its_gains() -> None:
    """A repeat of exclusive with none of the policy beside it is in no gain."""
    records = [one for one in made_up(num_repeats=7) if one.sharing in ("", "exclusive") or one.repeat != 3]
    found = summary_of(records)
    assert {row.num_repeats for pair in found.pairs for row in pair.rows if row.is_reference} == {7}
    text = block(found, next(drawings(found)))
    assert [line.count(", 6 repeats)") for line in text.splitlines() if line.startswith("- ")] == [1] * len(found.pairs)


def test_what_t_star_predicts_is_of_the_repeats_that_are_held_against_it() -> None:
    """A repeat of exclusive alone is another day's machine."""
    made = made_up(num_repeats=7)
    (solo,) = (one for one in made if one.sharing == "exclusive" and one.repeat == 0 and "bert" not in one.cell)
    jobs = tuple(replace(job, costs=replace(job.costs, compute_s=9.0)) for job in solo.jobs if job.costs)
    slow = [replace(solo, id=f"slow-{repeat}", repeat=repeat, jobs=jobs) for repeat in range(7, 20)]
    pair = next(pair for pair in summary_of([*made, *slow]).pairs if "bert" not in pair.title)
    own, exclusive = pair.row("crossover"), pair.row("exclusive")
    assert own is not None
    assert exclusive is not None
    assert own.bound is not None
    assert exclusive.bound is not None
    assert own.bound.median != exclusive.bound.median
    assert f"of the {number(own.bound.median)}× that T* predicts" in sharing_line(pair)
    assert f"{number(exclusive.bound.median)}×" not in sharing_line(pair)


def test_the_script_fills_page_and_image_and_can_do_so_again(
    records: list[Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for record in records:
        if "bert" not in record.cell and "replay" not in record.cell:
            write_record(record, tmp_path / "records")
    (tmp_path / "README.md").write_text(PAGE)
    command = [str(tmp_path / "records"), "--root", str(tmp_path)]
    assert main(command) == 0  # prints, and changes nothing
    printed = capsys.readouterr().out
    assert ((tmp_path / "README.md").read_text(), (tmp_path / "docs").exists()) == (PAGE, False)
    command += ["--write"]
    assert main(command) == 0
    assert printed.strip() in (tmp_path / "README.md").read_text()
    first = (tmp_path / "README.md").read_text()
    assert main([*command, "--figure", "throughput-resnet20-digits"]) == 0
    second = (tmp_path / "README.md").read_text()
    for page in (first, second):
        assert page.startswith("# Title\n\n<!-- quick:begin -->\n![")
        assert page.endswith("<!-- quick:end -->\n\nthe rest\n")
        assert "nothing yet" not in page
    assert first.partition("| system")[2] == second.partition("| system")[2]
    assert (tmp_path / "docs" / "images" / "quick.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in (tmp_path / "docs" / "images").iterdir()] == ["quick.png"]


def test_missing_records_and_figures_are_said_with_the_remedy(
    records: list[Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none"), "--root", str(tmp_path)]) == 2
    assert "run a suite first" in capsys.readouterr().err
    write_record(records[0], tmp_path / "one")
    assert main([str(tmp_path / "one"), "--root", str(tmp_path), "--figure", "no-such"]) == 2
    assert "no figure 'no-such'; they fill: steps-" in capsys.readouterr().err


def test_the_readme_shows_what_the_reference_records_say() -> None:
    if not any(RECORDS.rglob("*.json")):
        pytest.skip("there are no reference records of the suite quick yet")
    page = (ROOT / "README.md").read_text()
    assert "\n".join(table(summary_of(read_records([RECORDS])).settings)) in page, (
        "run python -m scripts.readme_table --write"
    )
