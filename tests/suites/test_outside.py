"""Plug-ins and suites from folders and packages outside the tree: found everywhere, without an edit.

The compressor is the tree's own TernGrad under another name; the suite trains it for some steps in lockstep, where
no process or network can be late.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import CHECKOUT, Command

from baselines import outside
from baselines.catalogue import CatalogueError, plugins
from harness.checks.trial import check
from models.workload import WorkloadSpec, open_workload
from results.codec import from_jsonable
from results.facts import Combine
from results.record import Record, read_records
from suites.api import Options
from suites.catalogue import SuiteError, all_suites, suite_of
from suites.compression.grid import LOW_RANK
from suites.convergence.grid import METHODS
from suites.convergence.methods import WITHOUT_ROW, added_methods
from suites.errors import is_about_the_request

NAME = "my-terngrad"
GRID = '''"""A toy: does TernGrad train at all?"""

from collections.abc import Sequence

from fabric.api import FabricKind, FabricSpec
from harness.trial import Job, Trial
from models.workload import WorkloadSpec
from results.facts import Role
from suites.api import Options, Suite, interleave

METHODS = {"dense": ("unfused", Role.DENSE), "ternary": ("unfused+my-terngrad(clip=3.0)", Role.METHOD)}


def grid(options: Options) -> Sequence[Trial]:
    fabric = FabricSpec(kind=FabricKind.LOCKSTEP, num_hosts=2, rate_bps=200e6, alpha_s=1e-4)
    workload = WorkloadSpec(network="lstm_lm", data="text", batch_size=4, sequence_length=8, num_evaluation=16)
    cells = [
        Trial(
            suite="toy",
            cell=f"tiny/{workload.label}/{name}",
            jobs=(Job(name="job", workload=workload, strategy=text, optimizer="sgd(lr=0.5)", role=role),),
            fabric=fabric,
            num_warmup=1,
            num_steps=11,
            evaluate_every=4,
        )
        for name, (text, role) in METHODS.items()
    ]
    return interleave(cells, options.repeats or 1)


SUITE = Suite(name="toy", question="Does it train?", grid=grid, fabric=FabricKind.LOCKSTEP)
'''
STUDY = '''"""What the toy claims."""

from collections.abc import Iterator

from analysis.claims import ClaimRow, Level, CellValue, judge
from analysis.stats import exactly
from analysis.study import Evidence, Study


def claims(evidence: Evidence) -> Iterator[ClaimRow]:
    """Two bits and a scale are at least ten times less than 32."""
    ratios = [CellValue(r.name, exactly(r.ratio, 1)) for r in evidence.compression.rows if not r.is_dense and r.ratio]
    claim = Level(claim="Ternary codes are ten times smaller", quantity="Float32 over the code", low=10.0)
    yield judge(claim, ratios)


STUDY = Study(suite="toy", codes=True, claims=claims)
'''


def terngrad() -> str:
    """The tree's own TernGrad under another name, as a plug-in from elsewhere."""
    own = (CHECKOUT / "baselines" / "compression" / "terngrad.py").read_text(encoding="utf-8")
    assert own.count('name="terngrad"') == 1
    return own.replace('name="terngrad"', f'name="{NAME}"')


def lay_out(folder: Path) -> Path:
    (folder / "toy").mkdir(parents=True)
    (folder / "terngrad.py").write_text(terngrad(), encoding="utf-8")
    (folder / "toy" / "grid.py").write_text(GRID, encoding="utf-8")
    (folder / "toy" / "study.py").write_text(STUDY, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a command line puts into the environment is gone after the test."""
    monkeypatch.setenv(outside.VARIABLE, "")


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(tmp_path_factory.mktemp("mine"))


def test_both_are_listed_and_the_step_is_predicted(command: Command, mine: Path) -> None:
    listed = json.loads(command("--plugins", mine, "list", "--json").out)
    assert {"name": "toy", "question": "Does it train?"} in listed["suites"]
    assert NAME in {entry["name"] for entry in listed["baselines"]}
    foretold = command(
        *("--plugins", mine, "predict", "--workload", "resnet50", "--strategies", NAME, "unfused"),
        *("--alpha", "1e-4", "--rates", "1gbit", "--hosts", "4", "--json"),
    )
    assert foretold.code == 0, foretold.err
    steps = {cell["strategy"]: cell["step_s"] for cell in json.loads(foretold.out)}
    assert steps[NAME] < steps["unfused"]


@pytest.mark.parametrize("suite", ["convergence", "compression"])
def test_a_compressor_that_no_table_names_is_trained_by_the_suites_with_its_defaults(suite: str, mine: Path) -> None:
    """All other cells stay what they were, by identity."""
    before = {trial.id: trial for trial in suite_of(suite).grid(Options())}
    outside.use((mine,))
    after = {trial.id: trial for trial in suite_of(suite).grid(Options())}
    assert {key: after[key] for key in before} == before
    added = {trial.cell: trial for key, trial in after.items() if key not in before}
    groups = {"convergence": {"4-ranks"}, "compression": {"converge", "rate-50", "rate-500", "rate-1000", "unshaped"}}
    names = {NAME: NAME, f"{NAME}, error feedback": f"{NAME}+error-feedback"}
    assert added.keys() == {f"{group}/resnet20-digits/{name}" for group in groups[suite] for name in names}
    for cell, trial in added.items():
        check(trial)
        assert trial.jobs[0].strategy.endswith(f"+{names[cell.rpartition('/')[2]]}")


def test_every_compressor_of_the_tree_has_a_row_or_a_reason_why_not() -> None:
    assert added_methods((*METHODS, LOW_RANK)) == ()
    assert not set(WITHOUT_ROW) - set(plugins())


@pytest.mark.slow
def test_the_suite_runs_and_its_report_holds_bits_claims_and_figures(
    command: Command, mine: Path, tmp_path: Path
) -> None:
    ran = command("--plugins", mine, "run", "toy", "--any-machine", "--out", tmp_path / "run", "--json")
    assert ran.code == 0, ran.err
    assert "2/2 trials" in ran.err  # said line by line: there is no terminal here
    records = {record.label: record for record in read_records([tmp_path / "run"]) if record.suite == "toy"}
    check_facts(records["ternary"])
    summary = json.loads(ran.out)
    (row,) = (row for row in summary["compression"]["rows"] if row["name"] == "ternary")
    # Two bits per element, the last byte of a tensor filled up, and a scale of four bytes per tensor.
    sizes = tensor_sizes(records["ternary"])
    assert row["theory_bits"] == pytest.approx(sum(8 * (4 + -(-size // 4)) for size in sizes) / sum(sizes))
    assert 2 < row["theory_bits"] <= row["bits"] * (1 + 1e-9)
    assert [claim["outcome"] for claim in summary["claims"]] == ["met"]

    reported = command("--plugins", mine, "report", tmp_path / "run", "--out", tmp_path / "page")
    assert reported.code == 0, reported.err
    page = (tmp_path / "page" / "report.html").read_text(encoding="utf-8")
    assert "Ternary codes are ten times smaller" in page
    assert re.search(r"<th scope=\"row\">ternary</th>", page)
    assert re.search(r"compression: .*\(lockstep\)", reported.out)
    assert list((tmp_path / "page" / "figures").glob("*.png"))


def check_facts(record: Record) -> None:
    (job,) = record.jobs
    assert job.code is not None
    assert (job.code.combine, job.code.lossy) == (Combine.CONCAT, True)
    (plugin,) = (own for own in job.plugins if own.name == NAME)
    assert {own.name: (own.value, own.given) for own in plugin.parameters} == {"clip": (3.0, "3.0")}
    assert record.started_at <= record.ended_at
    assert record.machine is not None


def tensor_sizes(record: Record) -> list[int]:
    spec = from_jsonable(WorkloadSpec, record.trial["jobs"][0]["workload"])
    return [parameter.numel() for parameter in open_workload(spec).build_model(seed=1).parameters()]


def test_without_the_option_nothing_of_it_is_known(command: Command) -> None:
    listed = json.loads(command("list", "--json").out)
    assert NAME not in {entry["name"] for entry in listed["baselines"]}
    assert command("run", "toy", "--dry-run").code == 2


def test_an_installed_package_names_itself_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path / "my_package")
    about = tmp_path / "my_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{outside.GROUP}]\nmine = my_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    outside._installed.cache_clear()
    try:
        assert "my_package" in outside.sources()
        assert plugins()[NAME].__module__ == "my_package.terngrad"
        assert "toy" in all_suites()
    finally:
        monkeypatch.undo()
        outside._installed.cache_clear()


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("broken.py", "import nothing_of_the_kind", "cannot be imported: No module named 'nothing_of_the_kind'"),
        ("again.py", "", "the name 'topk' is taken"),
        ("empty/grid.py", "SUITE = 3", "defines no SUITE"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_name(
    command: Command, tmp_path: Path, file: str, text: str, said: str
) -> None:
    path = tmp_path / "bad" / file
    path.parent.mkdir(parents=True)
    path.write_text(text or terngrad().replace(f'name="{NAME}"', 'name="topk"'), encoding="utf-8")
    ended = command("--plugins", tmp_path / "bad", "list")
    assert ended.code == 2
    assert said in ended.words


def test_a_folder_that_is_not_there_is_refused(command: Command) -> None:
    ended = command("--plugins", "/no/such/folder", "list")
    assert ended.code == 2
    assert "/no/such/folder: no such folder" in ended.words


def test_a_folder_of_the_environment_that_is_not_there_is_refused_too(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(outside.VARIABLE, "/no/such/folder")
    ended = command("list")
    assert ended.code == 2
    assert "CROSSOVER_BENCH_PLUGINS=/no/such/folder: no such folder; name one" in ended.words


def test_errors_of_plug_ins_and_suites_are_about_the_request() -> None:
    assert all(is_about_the_request(kind("x")) for kind in (outside.OutsideError, CatalogueError, SuiteError))
