"""The sheet of claims: the committed page is what the command writes, and a script without our code agrees with it."""

from __future__ import annotations

import ast
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_compression import compression_suite
from synthetic_sharing import crossover_suite
from synthetic_steps import Cell, alone, measured, predicted

from analysis.claims import Formula, Outcome
from analysis.sheet import operand, sheet
from analysis.stats import PREDICTION_ERROR
from analysis.summary import every_claim
from harness.garbage import lasting
from results.codec import to_jsonable
from results.record import RankTimes, Record, Status, read_record
from scripts.recompute_claims import differences, main, read_page
from scripts.recompute_claims import read_records as raw_records
from suites.catalogue import all_studies
from suites.cli import main as command_line
from suites.folders import FolderError, write_page
from suites.reports import records_of, sheet_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE, RECORDS = ROOT / "docs" / "claims.md", ROOT / "results" / "reference"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def raw() -> dict[str, Any]:
    """All reference records as JSON; nobody changes them."""
    with lasting():
        return raw_records(RECORDS)


def test_the_committed_page_is_what_the_command_writes(page: str) -> None:
    assert sheet_of(records_of([RECORDS])) == page, "run crossover-bench claims --out docs/claims.md"


def test_the_script_counts_a_copy_once_and_refuses_two_records_of_one_id(tmp_path: Path) -> None:
    for name in ("x.json", "x (1).json"):
        (tmp_path / name).write_text('{"id": "x", "jobs": []}')
    assert raw_records(tmp_path) == {"x": {"id": "x", "jobs": []}}
    (tmp_path / "y.json").write_text('{"id": "x", "jobs": [], "seed": 2}')
    with pytest.raises(ValueError, match=r"x \(1\)\.json and .*y\.json: two different records of x"):
        raw_records(tmp_path)


def test_the_page_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.md"
    write_page(path, "old")
    assert path.stat().st_mode & 0o777 == 0o644
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FolderError, match=r"cannot write .*page\.md \(No space left"):
        write_page(path, "new")
    assert [own.read_text() for own in tmp_path.iterdir()] == ["old"]


def test_a_link_leads_to_the_page_and_what_is_no_file_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    (tmp_path / "page.md").write_text("old")
    link.symlink_to("page.md")
    os.mkfifo(pipe)
    write_page(link, "new")
    assert ((tmp_path / "page.md").read_text(), link.is_symlink()) == ("new", True)
    assert command_line(["claims", str(RECORDS / "parity"), "--out", str(pipe)]) == 2
    assert "pipe (no regular file); name another file with --out" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(FolderError, match="no regular file"):
        write_page(pipe, "new")
    assert pipe.is_fifo()


def test_claims_are_printed_and_no_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "claims.md").write_text("old")
    monkeypatch.chdir(tmp_path)
    assert command_line(["claims", str(RECORDS / "parity")]) == 0
    assert capsys.readouterr().out.startswith("# Claims\n")
    assert (tmp_path / "docs" / "claims.md").read_text() == "old"
    assert command_line(["claims", str(RECORDS / "parity"), "--out", "docs/claims.md"]) == 0
    assert (tmp_path / "docs" / "claims.md").read_text().startswith("# Claims\n")


def full(fd: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_readme_quotes_the_overview_of_the_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    quoted = readme.partition("<!-- claims:begin -->\n")[2].partition("\n<!-- claims:end -->")[0]
    assert quoted.startswith("| suite | claims |")
    assert quoted in PAGE.read_text(encoding="utf-8"), "quote the table of docs/claims.md"


def test_an_independent_script_agrees_with_every_number_of_the_page_and_finds_what_was_changed(
    page: str, raw: dict[str, Any]
) -> None:
    assert list(differences(page, raw)) == []
    line = next(line for line in page.splitlines() if " | interval | " in line or " | range | " in line)
    cell, median, rest = line.split(" | ", 2)
    changed = page.replace(line, f"{cell} | {float(median) * 1.001 + 0.001:.5g} | {rest}")
    assert len(list(differences(changed, raw))) == 1
    claim = re.search(r"\*\*undecided\*\* · rule: every", page)
    assert claim is not None
    turned = page[: claim.start()] + "**met** · rule: every" + page[claim.end() :]
    assert len(list(differences(turned, raw))) == 2  # the verdict, and the overview's count


def test_the_script_imports_nothing_of_this_project() -> None:
    tree = ast.parse((ROOT / "scripts" / "recompute_claims.py").read_text(encoding="utf-8"))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} | {"scripts"}
    assert not {name.partition(".")[0] for name in found} & own


def steps() -> list[Record]:
    cells = [Cell("fusion", "resnet50", method, 4, gbit) for method in ("unfused", "mg-wfbp") for gbit in (5.0, 25.0)]
    names = ("unfused", "slices(slice_elements=2000000)+p3+at-pre-hook")
    ordered = [Cell("ordering", "vgg16", method, 4, 25.0) for method in names]
    far = Cell("fusion", "vgg16", "tensor-fusion(threshold_bytes=134217728, cycle_s=0.005)", 512, 25.0)
    return [*(one for cell in (*cells, *ordered) for one in measured(cell)), *alone(ordered[0]), predicted(far)]


def pipelines() -> list[Record]:
    """A schedule on the virtual clock, on a paced link a little slower, and torch's by the same one much faster."""
    clock = read_record(RECORDS / "parallelism" / "parallelism.clock_resnet50-replay_dapple.r00.json")
    paced = replace(clock.fabric, kind="paced", label="replay")

    def on_the_link(system: str, label: str, factor: float) -> Iterator[Record]:
        job, facts = clock.jobs[0], clock.jobs[0].pipeline
        assert facts is not None
        assert facts.bubble is not None
        for repeat in range(6):
            longer = factor * (1 + 0.001 * repeat)
            ranks = tuple(
                RankTimes(rank=rank.rank, warmup_s=rank.warmup_s, steps_s=tuple(longer * s for s in rank.steps_s))
                for rank in job.ranks
            )
            waiting = replace(facts, bubble=facts.bubble + 0.0005 * repeat)
            here = replace(job, system=system, ranks=ranks, pipeline=waiting, clock="measured")
            cell, name = f"paced/resnet50-replay/{label}", f"parallelism.paced-{system}.r{repeat:02}"
            yield replace(clock, id=name, cell=cell, repeat=repeat, fabric=paced, jobs=(here,))

    rival = on_the_link("torch-pipelining", "torch-pipelining, dapple", 0.8)
    return [clock, *on_the_link("ours", "dapple", 1.01), *rival]


def diverged() -> list[Record]:
    """Two of DGC's seeds diverged, and all of 4-bit QSGD's."""
    return [
        replace(one, status=Status.DIVERGED) if ("/DGC" in one.cell and one.repeat < 2) or "/QSGD" in one.cell else one
        for one in compression_suite()
    ]


def test_the_readme_quotes_the_predictors_error_on_the_page(page: str) -> None:
    block = page.split("### Predicted step times, paced")[1]
    said = re.search(r"Over (\d+) measured cells: median ([\d.]+) .*?, 95th percentile ([\d.]+) ", block)
    assert said is not None
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for part in (f"({said[1]} cells", f"{said[2]} % in the median", f"{said[3]} % at the 95th percentile"):
        assert part in readme


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(lambda: crossover_suite(only=("null", "rho-overlap")), id="sharing"),
        pytest.param(compression_suite, id="compression"),
        pytest.param(diverged, id="diverged"),
        pytest.param(steps, id="steps"),
        pytest.param(pipelines, id="pipelines"),
    ],
)
def test_the_script_agrees_on_records_with_decided_claims(records: object) -> None:
    assert callable(records)
    made: list[Record] = records()
    text = sheet_of(made)
    raw = {record.id: to_jsonable(record) for record in made}
    assert list(differences(text, raw)) == []
    says = {claim.says for claim in read_page(text, raw)}
    assert {"met", "missed"} <= says


def test_every_claim_of_every_suite_stands_on_the_page_once_whatever_was_measured(page: str) -> None:
    claims = every_claim(compression_suite(1)[:2], all_studies())
    titles = [row.claim for rows in claims.values() for row in rows]
    assert len(set(titles)) == len(titles)
    assert re.findall(r"^### (.*)$", page, re.MULTILINE) == titles
    assert {row.outcome for row in claims["crossover"]} == {Outcome.NOT_MEASURED}


def test_records_of_an_operand_are_told_together_where_they_differ_in_their_repeat() -> None:
    assert operand(("a.b.r00", "a.b.r01", "c")) == "`a.b.r{00,01}` + `c`"


def test_figures_without_a_formula_are_named_on_the_page_and_counted_by_the_script(
    page: str, raw: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = every_claim(pipelines(), all_studies())
    plain = {suite: [replace(row, formula=Formula.NONE) for row in rows] for suite, rows in claims.items()}
    text = sheet(plain, 13)
    with_figures = [row for rows in claims.values() for row in rows if row.cells]
    assert with_figures
    assert text.count(" · not recomputed\n") == len(with_figures)
    named = tmp_path / "claims.md"
    named.write_text(page.replace("figure: final loss of 1 over that of 2", "not recomputed"), encoding="utf-8")
    monkeypatch.setattr("scripts.recompute_claims.read_records", {RECORDS: raw}.get)
    assert main([str(named), str(RECORDS)]) == 0
    assert re.match(r"4 of \d+ claims with figures not recomputed: Half .*; (LAMB .*){3}", capsys.readouterr().out)


def test_a_figure_that_the_script_does_not_know_is_a_difference(page: str, raw: dict[str, Any]) -> None:
    changed = page.replace("figure: predicted step of 1 over that of 2", "figure: step of 2 as foretold")
    unknown = changed.count("as foretold")
    assert unknown > 0
    assert len(list(differences(changed, raw))) == unknown


def test_the_error_that_predictions_are_allowed_is_no_less_than_the_one_on_the_page(page: str) -> None:
    block = page.split("### Predicted step times, paced")[1]
    (shown,) = re.findall(r"^\| 95th percentile \| ([\d.]+) \|", block.split("\n### ")[0], re.MULTILINE)
    assert float(shown) / 100 <= PREDICTION_ERROR
