"""`crossover verify`: the verdicts, on real scripts."""

import os
import shlex
import signal
import tempfile
from pathlib import Path

import pytest

from crossover.commands.main import main
from crossover.commands.verify import Digest, differences, verdict

SCRIPT = Path(__file__).parent / "verified_script.py"


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
    preloaded: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    manner: str,
    options: list[str],
    code: int,
    told: str,
) -> None:
    long = tmp_path / ("x" * 130)  # for a socket
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setenv("PYTHONPATH", str(SCRIPT.parents[2]))
    assert main(["verify", *options, shlex.join([*preloaded, str(SCRIPT), manner])]) == code
    assert told in "".join(capfd.readouterr())


def test_digests_go_to_tmpdir_though_a_socket_could_not(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or setting TMPDIR would not help against a full disk."""
    long, told = scratch / ("x" * 130), scratch / "told"
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    script = f"echo $CROSSOVER_DIGESTS > {told}; exit 7"
    assert main(["verify", "--alone", shlex.join(["sh", "-c", script])]) == 7
    assert Path(told.read_text().strip()).is_relative_to(long)
    assert list(long.iterdir()) == []


def test_a_verification_that_is_terminated_leaves_nothing(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("nobody took the signal")

    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    before = signal.signal(signal.SIGTERM, fail)
    script = f"echo $$ > {scratch / 'pid'}; kill -TERM {os.getpid()}; sleep 60 & wait"
    try:
        with pytest.raises(SystemExit) as ended:
            main(["verify", "--alone", shlex.join(["sh", "-c", script])])
        assert signal.getsignal(signal.SIGTERM) is fail
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143
    assert [path.name for path in scratch.iterdir()] == ["pid"]
    assert not Path("/proc", (scratch / "pid").read_text().strip()).exists()


def test_a_worker_that_only_one_run_had_is_a_difference() -> None:
    one = [Digest("0-0", "x", 0), Digest("1-0", "y", 0)]
    assert differences(one, one) == []
    assert differences(one, one[:1]) == ["1-0"]
    assert differences(one, [one[0], Digest("1-0", "z", 0)]) == ["1-0"]


def test_without_a_turn_equal_weights_prove_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    digest = [Digest("0-0", "x", 0)]
    assert verdict(digest, [digest], []) == 1
    assert "no turn was taken" in capsys.readouterr().out
