import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import takewhile
from pathlib import Path

import pytest
from PIL import Image
from synthetic_records import absent, quick_suite
from synthetic_sharing import crossover_suite

from analysis import theme
from analysis.figures import draw_all, drawings
from analysis.plots import overview, throughput
from analysis.report import render_page, write_all
from analysis.summary import NoRecordsError
from results.codec import to_jsonable
from results.record import Record, Status
from suites.catalogue import suite_of
from suites.cli import main as command_line
from suites.reports import summary_of

LEFT_OF_SPEED_UPS = 0.83  # of the axis; behind it they are written


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Two settings, of which one has two methods, one pair and the failures: every kind of figure, few of each."""
    left_out = ("real/bert_tiny-text/", "bert_base-replay", "digits+bert", "resnet50-replay/horovod")
    left_out += ("resnet50-replay/fixed", "resnet50-replay/tensor", "resnet50-replay/local")
    return [
        record for record in quick_suite(2) if record.jobs == () or not any(part in record.cell for part in left_out)
    ]


@pytest.fixture(scope="module")
def written(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path]:
    return write_all(summary_of(records), tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def printed(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The figures of the pair alone, for a page and for print: most of a figure's time is cutting its fonts."""
    return draw_all(
        summary_of([record for record in records if len(record.jobs) == 2]), tmp_path_factory.mktemp("print")
    )


@pytest.fixture(scope="module")
def page(written: tuple[list[Path], Path]) -> str:
    return written[1].read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Collects ids and open elements; a mismatch of nesting is an error."""

    VOID = frozenset({"meta", "path", "use", "rect", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.addresses += [values[name] or "" for name in ("href", "src", "xlink:href") if name in values]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def test_the_page_is_well_formed_and_its_ids_are_unique(page: str) -> None:
    tags = parsed(page)
    assert tags.open == []
    assert len(tags.ids) == len(set(tags.ids))


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    tags = parsed(page)
    assert all(address.startswith("#") for address in tags.addresses)
    assert {address[1:] for address in tags.addresses} <= set(tags.ids)
    assert "<script" not in page
    assert not re.search(r"url\((?!#)|@import", page)


def test_every_section_and_every_reason_is_there(page: str) -> None:
    for section in ("throughput", "convergence", "breakdown", "bytes", "sharing", "outcomes", "environment", "reading"):
        assert f'<section id="{section}">' in page
    assert "C++ compiler &amp; cmake &lt;3.14+&gt;" in page
    assert "rank 1 on host 1 was silent for 60 s" in page
    assert page.index("Undecided") < page.index('<section id="throughput">')


def test_text_from_records_cannot_become_markup(tmp_path: Path) -> None:
    hostile = absent("real/<b>x</b>/y", 0, Status.ERROR, "<script>alert(1)</script>")
    text = write_all(summary_of([hostile]), tmp_path)[1].read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<b>x</b>" not in text


HOSTILE = "x_$^\x1b[31m\x07=1+1\ud800"  # mathematics, colour, a bell, a formula, no letter


def test_names_are_plain_text_in_tables_figures_page_and_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, record in enumerate(quick_suite(num_repeats=1)[:2]):
        jobs = tuple(replace(job, name=HOSTILE, workload=f"{job.workload} {HOSTILE}") for job in record.jobs)
        named = to_jsonable(replace(record, cell=f"{record.cell}{HOSTILE}", jobs=jobs))
        (tmp_path / f"{number}.json").write_text(json.dumps(named))
    assert command_line(["report", str(tmp_path), "--csv"]) == 0
    shown = capsys.readouterr()
    texts = [
        shown.out,
        shown.err,
        *(path.read_text() for path in [*tmp_path.glob("tables/*"), tmp_path / "report.html"]),
    ]
    for text in texts:
        assert not re.search("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]", text)
    assert r"x_$^\x1b[31m\x07=1+1\ud800" in shown.out


def test_logarithmic_axes_write_powers_without_mathematics() -> None:
    figure, axes = theme.canvas(2.0)
    axes.loglog([1, 1e3], [1e-2, 1])
    theme.write_plain_powers(figure)
    labels = [label.get_text() for axis in (axes.xaxis, axes.yaxis) for label in axis.get_ticklabels()]
    assert {"10⁰", "10³", "10⁻²"} <= set(labels)


def test_an_unknown_back_end_of_matplotlib_is_no_obstacle() -> None:
    code = (
        "from analysis.figures import _import_matplotlib as go; go(); import matplotlib.pyplot, os; print(os.environ)"
    )
    named = {**os.environ, "MPLBACKEND": "nonsense"}
    done = subprocess.run([sys.executable, "-c", code], env=named, capture_output=True, text=True, check=False)
    assert (done.returncode, "'MPLBACKEND': 'nonsense'" in done.stdout) == (0, True), done.stderr


def test_the_same_records_give_the_same_page(
    records: list[Record], page: str, written: tuple[list[Path], Path]
) -> None:
    summary = summary_of(records)
    assert render_page(summary, list(drawings(summary))) == page
    assert sorted(path.name for path in written[1].parent.iterdir()) == ["figures", "report.html"]


def test_figures_of_an_earlier_report_go_and_what_others_put_there_stays(
    records: list[Record], written: tuple[list[Path], Path], printed: list[Path], tmp_path: Path
) -> None:
    """A later report of fewer records must not stand among pictures of others."""
    shutil.copytree(written[1].parent, tmp_path, dirs_exist_ok=True)
    figures = tmp_path / "figures"
    earlier = [figures / path.name for path in written[0]]
    stale = figures / "old-figure.png"
    stale.write_bytes(earlier[0].read_bytes())
    (figures / "old-figure.pdf").write_bytes(printed[1].read_bytes())
    own = {"notes.md": b"records: mine", "photo.pdf": b"%PDF-1.4 /Keywords (holiday)", "copy.svg": stale.read_bytes()}
    for name, held in own.items():
        (figures / name).write_bytes(held)
    Image.new("RGB", (2, 2)).save(figures / "photo.png")
    (figures / "linked.png").symlink_to(stale)
    (figures / "folder.png").mkdir()
    fewer = [record for record in records if len(record.jobs) == 2]
    later, _ = write_all(summary_of(fewer), tmp_path)
    assert set(later) < set(earlier)
    assert {path.suffix for path in later} == {".png"}
    assert {path.name for path in figures.iterdir()} == {path.name for path in later} | {
        *own, "photo.png", "linked.png", "folder.png",
    }  # fmt: skip


def test_no_records_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(NoRecordsError):
        write_all(summary_of([]), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_systems_without_a_ratio_come_last_in_the_overview(records: list[Record]) -> None:
    """As where a busy machine left a method and the baseline no repeat in common."""
    settings = summary_of(records).settings
    lost = settings[0].competitors[0].name
    unpaired = [
        replace(one, cells=tuple(replace(cell, speedup=None) if cell.name == lost else cell for cell in one.cells))
        for one in settings
    ]
    figure = overview(unpaired)
    assert figure is not None
    names = [label.get_text().replace("\n", "") for label in figure.axes[0].get_yticklabels()]
    assert names[-1].replace(" ", "") == lost.replace(" ", "")


def test_an_overview_of_many_settings_is_several_that_fit_the_page(records: list[Record]) -> None:
    summary = summary_of(records)
    many = replace(summary, settings=(summary.settings * 12)[:12])
    shown = list(takewhile(lambda one: one.topic == "overview", drawings(many)))
    assert [one.name for one in shown] == ["overview", "overview-2", "overview-3"]
    assert "settings 5 to 8 of 12" in shown[1].caption
    assert [len(one.figure.axes[0].get_xticklabels()) for one in shown] == [4, 4, 4]
    assert all(one.figure.get_figwidth() < 7 for one in shown)


def test_no_dot_of_a_repeat_lies_under_a_speed_up(records: list[Record]) -> None:
    one = summary_of(records).settings[0]
    first, *others = one.cells
    far = 1.5 * max(cell.samples_per_s.high for cell in one.cells)
    stretched = replace(one, cells=(replace(first, repeat_samples_per_s=(far,)), *others))
    figure = throughput(stretched, {cell.label: "black" for cell in one.cells})
    assert figure is not None
    assert figure.axes[0].transLimits.transform((far, 0))[0] < LEFT_OF_SPEED_UPS


def test_one_system_with_nothing_beside_it_has_no_bar(records: list[Record]) -> None:
    one = next(one for one in summary_of(records).settings if one.ideal is not None)
    ideal, system = one.ideal, one.competitors[0]
    assert ideal is not None
    palette = {system.label: "black"}
    assert throughput(replace(one, cells=(ideal, system)), palette) is not None
    assert throughput(replace(one, cells=(system,)), palette) is None


def test_the_heading_is_the_suites_own_question(records: list[Record]) -> None:
    page = render_page(summary_of(records), [])
    assert f"<h1>{suite_of('quick').question}</h1>" in page
    two = render_page(summary_of([*records, *crossover_suite()[:1]]), [])
    assert "<h1>Which communication optimisation pays here?</h1>" in two


def test_every_figure_of_a_page_is_png_and_names_its_records(written: tuple[list[Path], Path]) -> None:
    paths, _ = written
    names = [path.name for path in paths]
    kinds = ("throughput", "steps", "loss", "accuracy", "breakdown", "bytes")
    assert {f"{kind}-resnet20-digits.png" for kind in kinds} <= set(names)
    assert {"overview.png", "sharing-gain-1.png", "sharing-breakdown-1.png"} <= set(names)
    assert all(path.stat().st_size > 1000 for path in paths)
    assert {path.suffix for path in paths} == {".png"}
    with Image.open(paths[names.index("throughput-resnet20-digits.png")]) as image:
        assert "real-resnet20-digits-torch-ddp-0" in image.info["Source"]


def test_figures_alone_are_png_and_pdf_each(printed: list[Path]) -> None:
    stems = {path.stem for path in printed}
    assert stems
    assert {path.name for path in printed} == {f"{stem}.{kind}" for stem in stems for kind in ("png", "pdf")}


def test_importing_the_analysis_does_not_import_matplotlib() -> None:
    code = (
        "import sys, analysis.report, analysis.figures, analysis.tables, analysis.compare;"
        "sys.exit('matplotlib' in sys.modules or 'jinja2' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
