"""`crossover verify`: the verdicts, on real scripts."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience_s

from crossover.commands.verify import Digest, differences, verdict

SCRIPT = Path(__file__).parent / "verified_script.py"
LIMIT_S = patience_s(100.0)


@pytest.mark.parametrize(
    ("manner", "options", "code", "told"),
    [
        ("trains", [], 0, "the same weights, bit by bit: 1 digests per run, 10 turns"),
        ("different", [], 1, "turns change the weights of workers 0-0"),
        ("unseeded", ["--alone"], 2, "seed the script"),
        ("failing", [], 7, "failed with exit code 7"),
        ("unattached", [], 2, "the command wrote no digest"),
    ],
)
def test_a_script_is_judged_by_its_weights(
    preloaded: list[str], manner: str, options: list[str], code: int, told: str
) -> None:
    line = shlex.join([*preloaded, str(SCRIPT), manner])
    command = [sys.executable, "-m", "crossover", "verify", *options, line]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=SCRIPT.parents[2],
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[2])},
    )  # fmt: skip
    assert told in run.stdout + run.stderr
    assert run.returncode == code


def test_a_worker_that_only_one_run_had_is_a_difference() -> None:
    one = [Digest("0-0", "x", 0), Digest("1-0", "y", 0)]
    assert differences(one, one) == []
    assert differences(one, one[:1]) == ["1-0"]
    assert differences(one, [one[0], Digest("1-0", "z", 0)]) == ["1-0"]


def test_without_a_turn_equal_weights_prove_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    digest = [Digest("0-0", "x", 0)]
    assert verdict(digest, [digest], []) == 1
    assert "no turn was taken" in capsys.readouterr().out
