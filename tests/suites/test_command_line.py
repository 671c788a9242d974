from __future__ import annotations

import importlib
import io
import json
import os
import pkgutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Command

import suites.commands.listing
from analysis.stats import StatsError
from baselines.api import UpdatePoint
from crossover import ArbiterAbsent, Refused, Sharing
from crossover.errors import Unavailable
from harness.precision import Precision
from results.codec import CodecError
from suites.cli import main as command_line
from suites.errors import is_about_the_request

ROOT = Path(suites.__path__[0]).parent
PACKAGES = ("suites", "harness", "baselines", "crossover", "fabric", "models", "results", "analysis")
# A request reaches the command line as another error of ours, or as a trial's reason; so these are defects there.
DEFECTS = {ArbiterAbsent, CodecError, Refused, StatsError, Unavailable}


def own_value_errors() -> set[type[ValueError]]:
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.rpartition(".")[2] != "__main__":
                importlib.import_module(module.name)
    found, unseen = set[type[ValueError]](), [ValueError]
    while unseen:
        children = unseen.pop().__subclasses__()
        found.update(child for child in children if child.__module__.partition(".")[0] in PACKAGES)
        unseen += children
    return found


def test_no_command_prints_help_and_is_an_error(command: Command) -> None:
    ended = command()
    assert ended.code == 2
    assert "crossover-bench run quick" in ended.err


@pytest.mark.parametrize("words", [(), ("run",), ("list",), ("report",), ("compare",), ("doctor",)])
def test_every_command_has_help(command: Command, words: tuple[str, ...]) -> None:
    ended = command(*words, "--help")
    assert ended.code == 0
    assert "usage: crossover-bench" in ended.out


def test_help_does_not_load_torch() -> None:
    code = "import sys; import suites.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ('cd "$0"; rmdir "$0"', "the working folder was deleted: change to another one"),
        ("ulimit -f 0", "a file may have 0 bytes, too few for records; raise the limit with `ulimit -f unlimited`"),
    ],
)
@pytest.mark.parametrize("words", [("pace", "--", "true"), ("run", "quick", "--smoke")])
def test_where_nothing_can_run_the_reason_is_told_before_libraries_abort(
    before: str, said: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    line = ["sh", "-c", f'{before}; exec "$@"', str(tmp_path), sys.executable, "-m", "suites", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"crossover-bench: {said}")
    assert done.stderr.count("\n") == 1


def test_list_shows_every_kind_of_entry(command: Command) -> None:
    ended = command("list")
    assert ended.code == 0
    for name in ("quick", "fixed-buckets", "torch-ddp", "bert_tiny", "crossover", "emulated"):
        assert name in ended.out
    assert "policy='a'" in ended.out  # as a text would set it


def test_list_as_json_has_the_same_entries(command: Command) -> None:
    ended = command("list", "--json")
    assert ended.code == 0
    found = json.loads(ended.out)
    assert found == json.loads(json.dumps(suites.commands.listing.rows()))
    assert {"suites", "baselines", "systems", "networks", "sharing", "fabrics"} <= set(found)


QUICK = str(ROOT / "results" / "reference" / "quick")
SHOWN = {  # each shows letters that the encoding does not have
    "list": ("ascii", ["list"]),
    "compare": ("latin-1", ["compare", QUICK, QUICK]),
    "predict": ("ascii", ["predict", "--workload", "resnet50", "--alpha", "5e-5", "--hosts", "2", "--rates", "1gbit"]),
}


@pytest.mark.parametrize(("encoding", "words"), SHOWN.values(), ids=SHOWN)
def test_letters_that_the_output_lacks_are_replaced(
    encoding: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown := io.BytesIO(), encoding=encoding))
    assert command_line(words) == 0
    sys.stdout.flush()
    assert b"?" in shown.getvalue()


@pytest.mark.parametrize("words", [["list"], ["list", "--json"]])
def test_an_output_that_nobody_reads_ends_a_command_with_141(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    read, written = os.pipe()
    os.close(read)
    with os.fdopen(written, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert command_line(words) == 141


def test_a_closed_output_is_no_error() -> None:
    words = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "suites", "list", "--json"]
    assert subprocess.run(words, cwd=ROOT, check=False).returncode == 0


def test_dry_run_prints_the_grid_and_runs_nothing(command: Command, tmp_path: Path) -> None:
    ended = command("run", "quick", "--dry-run", "--only", "real/resnet20-digits")
    assert ended.code == 0
    assert "torch-ddp" in ended.out
    assert not list(tmp_path.iterdir())


def test_dry_run_shows_each_group_once(command: Command) -> None:
    lines = command("run", "compression", "--dry-run", "--only", "replay-8-10").out.splitlines()
    groups = [line.split()[0] for line in lines if line.startswith("replay-8-10/")]
    assert len(groups) == len(set(groups)) > 1


def test_dry_run_as_json_gives_memory_and_time_of_every_cell(command: Command) -> None:
    ended = command("run", "quick", "--dry-run", "--json", "--only", "replay/")
    rows = json.loads(ended.out)
    assert rows
    assert all(row["memory_gb"] > 0 and row["expected_s"] > 0 and row["hosts"] in (4, 8) for row in rows)


def test_smoke_takes_as_many_steps_as_are_asked_for(command: Command) -> None:
    for steps, shown in (((), {5}), (("--steps", "30"), {30}), (("--steps", "2"), {2})):
        rows = json.loads(command("run", "quick", "--smoke", "--dry-run", "--json", *steps).out)
        assert {row["steps"] for row in rows} == shown


def test_only_keeps_the_cells_whose_name_contains_it(command: Command) -> None:
    rows = json.loads(command("run", "quick", "--dry-run", "--json", "--only", "replay-8-25/resnet50").out)
    assert {row["cell"].rpartition("/")[0] for row in rows} == {"replay-8-25/resnet50-replay"}


def test_a_defect_is_not_disguised_as_a_wrong_request(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("shapes do not match")

    monkeypatch.setattr(suites.commands.listing, "rows", fail)
    with pytest.raises(ValueError, match="shapes do not match"):
        command("list")


def test_ctrl_c_outside_a_run_ends_with_130(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites.commands.listing, "rows", lambda: signal.raise_signal(signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    ended = command("list")
    assert (ended.code, ended.err) == (130, "interrupted\n")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("module", ["suites.cli", "crossover.commands.main"])
def test_ctrl_c_during_the_imports_ends_with_130(module: str) -> None:
    package = module.partition(".")[0]
    program = f"""
import runpy, signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
runpy.run_module({package!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_every_value_error_of_ours_is_known_as_the_users_or_as_a_defect() -> None:
    shown = {kind for kind in own_value_errors() if is_about_the_request(kind.__new__(kind))}
    assert own_value_errors() - shown == DEFECTS


def test_the_catalogue_names_everything_that_a_trial_may_say_with_its_source() -> None:
    found = suites.commands.listing.rows()
    for kind, values in (("sharing", Sharing), ("precisions", Precision), ("update points", UpdatePoint)):
        assert [entry["name"] for entry in found[kind] if entry["name"] != "none"] == [value.value for value in values]
    assert {"loss-scale", "local-steps", "accumulate", "clip_norm"} == {entry["name"] for entry in found["step"]}
    for kind in ("sharing", "precisions", "update points", "step"):
        assert all(entry["summary"] and entry["source"] for entry in found[kind])
