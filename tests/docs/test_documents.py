"""The pages say what is there: links, targets, commands, the tree."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from pages import PAGES, ROOT, bench_commands, blocks, name_of, prose

from suites.catalogue import all_suites
from suites.cli import main

EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=name_of)
COMMANDS = sorted({shlex.join(command) for page in PAGES for command in bench_commands(page.read_text())})
CHEAP = [
    ["list"],
    ["list", "--json"],
    ["run", "quick", "--dry-run"],
    ["run", "quick", "--dry-run", "--json", "--smoke"],
    ["doctor", "--json"],
]


@EVERY_PAGE
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", prose(page.read_text())):
        assert (page.parent / target).exists(), f"{name_of(page)}: {target}"


@pytest.mark.parametrize("name", ["paced", "parallelism"])
def test_snippets_of_plain_values_run_as_they_stand(name: str) -> None:
    page = (ROOT / "docs" / "guide" / f"{name}.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert snippets
    for snippet in snippets:
        exec(snippet, {})


@EVERY_PAGE
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z%-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = targets | {f"bench-{suite}" for suite in all_suites()}
    for target in re.findall(r"(?:`|^)make ([a-z][a-z-]*[a-z])(?![\w<%-])", page.read_text(), re.MULTILINE):
        assert target in known, f"{name_of(page)}: make {target}"


@EVERY_PAGE
def test_no_page_names_a_folder_of_one_machine(page: Path) -> None:
    found = re.findall(r"(?<![\w.)])/(?:work|root|home|tmp|opt|mnt|srv)/\S*", page.read_text())
    assert not found


COMMAND_NAMES = (
    "run", "list", "report", "compare", "doctor", "predict", "pace", "emulate", "collectives", "plan-parallel", "paper",
    "claims",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shown_is_understood(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line is parsed; what it would start is not."""
    for name in (
        "run.run_suite",
        "listing.show",
        "report.report_on",
        "report.compare_folders",
        "doctor.examine",
        "predict.predict_command",
        "pace.pace_script",
        "emulate.run_emulated",
        "collectives.measure_collectives",
        "plan_parallel.plan_parallel_command",
        "paper.make_paper",
        "claims.write_sheet",
    ):
        monkeypatch.setattr(f"suites.commands.{name}", lambda *_, **__: 0)
    assert main(shlex.split(command)) == 0


def test_the_pages_show_commands() -> None:
    shown = {command.partition(" ")[0] for command in COMMANDS}
    assert shown == {*COMMAND_NAMES}


@pytest.mark.parametrize("command", CHEAP, ids=" ".join)
def test_cheap_commands_work(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert shown
    if "--json" in command:
        assert json.loads(shown)


@pytest.mark.parametrize("command", ["", *COMMAND_NAMES])
def test_every_command_helps(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*filter(None, [command]), "--help"])
    assert ended.value.code == 0
    assert "crossover-bench" in capsys.readouterr().out


def test_the_tree_in_the_readme_is_the_tree() -> None:
    (tree,) = (block for block in blocks((ROOT / "README.md").read_text(), "") if "the questions" in block)
    named = re.findall(r"\b([a-z]+)/", re.sub(r"one file each:.*", "", tree))
    assert all((ROOT / name).is_dir() for name in named)
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages <= set(named)


def test_the_first_screen_has_the_two_commands_and_the_way_in() -> None:
    screen = (ROOT / "README.md").read_text().partition("\n## ")[0]
    for part in ("make bench-quick", "make test", "<!-- quick:begin -->", "Add a baseline in one file", "suites/"):
        assert part in screen


@pytest.mark.parametrize("suite", all_suites())
def test_every_suite_has_a_page_with_its_question(suite: str) -> None:
    page = " ".join((ROOT / "suites" / suite.replace("-", "_") / "README.md").read_text().split())
    assert all_suites()[suite].question in page


def test_decisions_are_numbered_and_listed() -> None:
    """Numbers are given before decisions are written, so one may be missing; none is given twice."""
    folder = ROOT / "docs" / "decisions"
    records = {int(path.name[:4]): path for path in sorted(folder.glob("[0-9]*.md"))}
    assert len(records) == len(list(folder.glob("[0-9]*.md")))
    index = (folder / "README.md").read_text()
    for number, path in records.items():
        title = path.read_text().partition("\n")[0].removeprefix(f"# {number}. ")
        assert f"{number}. [{title}]({path.name})" in index
