from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path

import pytest
from planning_jobs import job

from crossover import Refused
from crossover.commands import plan as command
from crossover.commands.plan import size_bytes
from crossover.planning import write_profile
from crossover.settings import Settings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "profiles"
RESNET, VGG, BERT = (str(EXAMPLES / f"{name}.json") for name in ("resnet50", "vgg16", "bert"))


def crossover_plan(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="crossover plan")
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))


@pytest.fixture
def busy(tmp_path: Path) -> str:
    path = tmp_path / "busy.json"
    write_profile(job("busy", 0.1, 0.001, 0.1), path)
    return str(path)


def test_the_verdict_comes_first_then_reasons_then_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert crossover_plan(RESNET, BERT, "--memory", "16GiB") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "WARN  gain 1.04 by crossover, against one job after the other"
    assert "resnet50 takes 5.09 times as long as alone" in lines[1]
    assert [line.split()[0] for line in lines if line.startswith(("resnet50", "bert"))] == ["resnet50", "bert"]
    assert "T* 756.4 ms, bound by communication" in "\n".join(lines)
    assert "memory: 5.4 GiB of 16.0 GiB" in "\n".join(lines)
    assert "\x1b" not in "\n".join(lines)


def test_a_refusal_is_told_by_the_exit_code_and_writes_no_settings(
    busy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "settings.json"
    assert crossover_plan(busy, busy, "--settings-out", str(out)) == 3
    assert capsys.readouterr().out.startswith("REFUSE")
    assert not out.exists()
    assert crossover_plan(RESNET, BERT, "--memory", "1GB") == 3


def test_the_settings_written_are_what_arbiters_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "settings.json"
    assert crossover_plan(RESNET, BERT, "--sharing", "weighted", "--settings-out", str(out)) == 0
    settings = Settings.from_json(out.read_text())
    assert settings.jobs == ("resnet50", "bert")
    assert settings.shares[0] > settings.shares[1]
    with pytest.raises(Refused, match="cannot write"):
        crossover_plan(RESNET, BERT, "--settings-out", str(tmp_path / "none" / "settings.json"))


def test_json_holds_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert crossover_plan(RESNET, VGG, BERT, "--json", "--sharing", "cassini") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["verdict"] in ("admit", "warn")
    assert [job["profile"]["name"] for job in values["jobs"]] == ["resnet50", "vgg16", "bert"]
    assert len(values["settings"]["beats"]) == 3
    assert values["gain"] <= values["bound"]["gain"] * 1.01


def test_a_file_named_twice_is_two_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert crossover_plan(RESNET, RESNET, RESNET, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["settings"]["jobs"] == ["resnet50", "resnet50-2", "resnet50-3"]


def test_devices_are_shared_by_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "shared.json"
    assert crossover_plan(RESNET, VGG, BERT, "--devices", "2", "--settings-out", str(out)) == 0
    assert "throughput 2.14 on 2 devices" in capsys.readouterr().out
    assert Settings.from_json((tmp_path / "shared-2.json").read_text()).jobs == ("vgg16", "bert")
    assert crossover_plan(RESNET, VGG, BERT, "--devices", "1", "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["waiting"] == ["resnet50"]
    assert values["devices"][0]["plan"]["verdict"] == "admit"


def test_everybody_alone_where_there_are_devices_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert crossover_plan(RESNET, VGG, "--devices", "4") == 0
    assert capsys.readouterr().out.count("alone") == 3


PAGE = (EXAMPLES.parents[1] / "docs" / "guide" / "planning.md").read_text()
SHOWN = re.findall(r"^crossover plan (examples/[^\n]*)\n```\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("line", "output"), SHOWN, ids=[line for line, _ in SHOWN])
def test_the_guide_shows_what_is_printed(
    line: str, output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES.parents[1])
    words = shlex.split(line.replace("examples/profiles/*.json", " ".join(sorted((BERT, RESNET, VGG)))))
    assert crossover_plan(*words) == 0
    assert capsys.readouterr().out == output


def test_the_guide_shows_a_plan_and_a_pairing() -> None:
    assert len(SHOWN) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((RESNET,), "two or more jobs"),
        ((RESNET, BERT, "--handover-us", "-1"), "hand-over"),
        ((RESNET, BERT, "--weights", "1,2"), "weighted"),
        ((RESNET, BERT, "--devices", "0"), "0 devices"),
        ((RESNET, BERT, "--devices", "1", "--weights", "1,2"), "leave out"),
        ((RESNET, BERT, "--devices", "1", "--settings-out", "/"), "cannot write /: give the name of a file"),
        (("none.json", BERT), r"none\.json"),
    ],
)
def test_bad_requests_are_refused_with_a_remedy(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(Refused, match=message):
        crossover_plan(*words)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16GiB", 16 << 30),
        ("16gib", 16 << 30),
        ("16 G", 16 * 10**9),
        ("1.5GB", 15 * 10**8),
        ("1024", 1024),
        ("8MiB", 8 << 20),
    ],
)
def test_sizes_are_read_with_their_units(text: str, size: int) -> None:
    assert size_bytes(text) == size


def test_a_size_beyond_all_numbers_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="more than any device has"):
        size_bytes("9" * 400)


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 PB", "1e9", "16iB"])
def test_other_sizes_are_not(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a size"):
        size_bytes(text)


@pytest.mark.parametrize(
    "words", [("--weights", "1,x"), ("--weights", "0,1"), ("--sharing", "chess"), ("--memory", "much")]
)
def test_options_that_cannot_be_read_are_wrong_usage(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        crossover_plan(RESNET, BERT, *words)
    assert ended.value.code == 2
