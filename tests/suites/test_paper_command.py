"""All suites into one folder: the plan, going on, the commit of the records, and the archive of old ones."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Command

from harness.environment import describe_environment
from results.files import write_json
from results.record import STARTED, Environment, FabricFacts, Record, Status, read_records, write_record
from suites.api import Options
from suites.catalogue import suite_of
from suites.commands import paper
from suites.commands.paper import chosen
from suites.commands.run import TOO_BUSY
from suites.expected import expected_run_s

TWO = ("--only", "consistency", "--only", "convergence")


def record(name: str, day: str) -> Record:
    return Record(
        id=name,
        suite="s",
        cell="g/w/m",
        repeat=0,
        seed=1,
        status=Status.SKIPPED,
        reason="a test",
        fabric=FabricFacts(kind="lockstep", label="lockstep", num_hosts=2),
        environment=Environment(commit="c", started_at=f"{day}T10:00:00+00:00"),
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """Suites are not run; what was asked of each is kept, and reports are not made."""
    seen: list[argparse.Namespace] = []

    def run(arguments: argparse.Namespace, runs: Path, *, reports: bool) -> int:
        assert not reports
        seen.append(arguments)
        return 130 if arguments.suite == "convergence" and len(seen) == 2 else 0

    monkeypatch.setattr(paper, "run_suite", run)
    monkeypatch.setattr(paper, "_conclude", lambda folder: None)
    return seen


def test_the_plan_says_how_long_each_suite_takes_and_runs_nothing(command: Command, tmp_path: Path) -> None:
    ended = command("paper", *TWO, "--dry-run", "--budget", "20m")
    assert ended.code == 0
    assert "2 suites" in ended.out
    assert "consistency" in ended.out
    assert not list(tmp_path.iterdir())


def test_the_plan_expects_of_a_suite_what_its_own_run_expects(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of trials in lockstep, which run one a core."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    among = re.search(r"^consistency +\d+ +([\d.]+) ", command("paper", *TWO, "--dry-run").out, re.MULTILINE)
    alone = re.search(r"about (\d+) min", command("run", "consistency", "--dry-run").out)
    assert among is not None
    assert alone is not None
    assert round(float(among[1])) == pytest.approx(int(alone[1]), abs=1)
    assert int(alone[1]) > 4


def test_suites_are_resumed_each_in_its_own_folder_and_an_interrupt_ends_the_run(
    command: Command, asked: list[argparse.Namespace]
) -> None:
    assert command("paper", *TWO, "--out", "all").code == 130
    assert command("paper", *TWO, "--out", "all", "--budget", "20m").code == 0
    assert [(own.suite, own.out, own.resume, own.budget) for own in asked] == [
        (name, Path("all") / name, True, budget) for budget in (None, "20m") for name in ("consistency", "convergence")
    ]


def test_records_of_two_commits_do_not_meet_in_one_folder(
    command: Command, asked: list[argparse.Namespace], tmp_path: Path
) -> None:
    write_json(tmp_path / "all" / STARTED, {"commit": "0123456789abcdef", "dirty": False, "started_at": ""})
    ended = command("paper", *TWO, "--out", "all")
    assert ended.code == 2
    assert "of commit 0123456789, and this is " in ended.words
    assert "--out" in ended.words
    write_json(tmp_path / "all" / STARTED, {"commit": describe_environment().commit, "dirty": False, "started_at": ""})
    command("paper", *TWO, "--out", "all")
    assert len(asked) == 2


def test_the_folder_of_all_suites_is_a_folder_of_records(tmp_path: Path) -> None:
    write_record(record("s.one.r00", "2026-11-21"), tmp_path / "s")
    write_json(tmp_path / STARTED, {"commit": "0123456789abcdef", "dirty": False, "started_at": ""})
    assert [own.id for own in read_records([tmp_path])] == ["s.one.r00"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"commit": 1}', "\0"])
def test_a_damaged_note_of_the_commit_is_named(
    command: Command, asked: list[argparse.Namespace], tmp_path: Path, content: str
) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / STARTED).write_text(content)
    ended = command("paper", *TWO, "--out", "all")
    assert (ended.code, asked) == (2, [])
    assert re.search(r"all/paper\.json does not say of which commit.*--out", ended.words)


def test_an_interrupted_run_says_how_it_goes_on(command: Command, asked: list[argparse.Namespace]) -> None:
    ended = command("paper", *TWO, "--out", "all")
    assert ended.code == 130
    assert "crossover-bench paper --only consistency --only convergence --out all" in ended.words


def test_a_machine_that_is_too_busy_ends_the_run_of_all_suites(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper, "run_suite", lambda arguments, runs, *, reports: TOO_BUSY)
    ended = command("paper", *TWO, "--out", "all")
    assert ended.code == TOO_BUSY
    assert "go on with: crossover-bench paper" in ended.words


def test_an_unknown_suite_is_refused_with_those_there_are(command: Command) -> None:
    ended = command("paper", "--only", "quik")
    assert ended.code == 2
    assert "'quik' is no suite" in ended.words
    assert "quick" in ended.words


def test_a_suite_for_a_gpu_is_left_out_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (True, False):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        names = [suite.name for suite in chosen(())]
        assert ("gpu" in names) is there
        assert {"quick", "crossover", "fusion", "ordering", "compression", "convergence"} < set(names)
    assert [suite.name for suite in chosen(("gpu",))] == ["gpu"]


def test_the_plan_names_the_suites_that_it_leaves_out(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(
        paper,
        "_planned",
        lambda suite, *_: paper.PlannedSuite(suite=suite, num_trials=1, expected_s=1.0, budget_s=1.0, num_recorded=0),
    )
    assert "left out (torch sees no GPU): gpu" in command("paper", "--dry-run").err
    assert "left out (not named with --only): " in command("paper", *TWO, "--dry-run").err


def test_what_has_no_clock_is_expected_to_run_one_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = suite_of("convergence").grid(Options(smoke=True))
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    alone_s = expected_run_s(trials, foresees=False)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert expected_run_s(trials, foresees=False) == pytest.approx(alone_s / 4)


def test_old_records_go_to_the_archive_under_their_day_and_new_ones_take_their_place(
    command: Command, tmp_path: Path
) -> None:
    reference, new = tmp_path / "results" / "reference" / "s", tmp_path / "all" / "s"
    write_record(record("later", "2026-11-22"), reference)
    write_record(record("old", "2026-11-21"), reference)
    write_record(record("new", "2026-12-01"), new)
    (new / "report.html").write_text("page")
    write_record(record("gone", "2026-11-23"), reference.parent / "t")
    lacking = command("paper", "--archive", "--out", "all")
    assert (lacking.code, "has no records of t" in lacking.words) == (2, True)
    (reference.parent / "t" / "gone.json").unlink()
    assert "leave out --only" in command("paper", "--archive", "--only", "quick", "--out", "all").words
    assert command("paper", "--archive", "--dry-run", "--out", "all").code == 0
    assert {own.id for own in read_records([reference])} == {"old", "later"}
    assert command("paper", "--archive", "--out", "all").code == 0
    assert not list(reference.parent.parent.glob(".reference-*"))
    archived = tmp_path / "results" / "archive" / "2026-11-21"
    assert {own.id for own in read_records([archived])} == {"old", "later"}
    assert [path.name for path in reference.iterdir()] == ["new.json"]
    again = command("paper", "--archive", "--out", "nothing")
    assert (again.code, "run `crossover-bench paper` first" in again.words) == (2, True)
    write_record(replace(record("new", "2026-11-21")), reference)
    assert "is there already" in command("paper", "--archive", "--out", "all").words
