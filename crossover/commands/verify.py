r"""Check that a script trains the same weights in turns as without them.

The command runs twice: as it is, and then in turns with a second copy of itself
(--alone: in turns with nobody), under `crossover run`. Every attachment of
every worker writes a digest of its weights when it is closed, and the digests
are compared bit by bit. If they differ, the command runs once more without
turns: a script whose two plain runs differ is not deterministic, and nothing
can be said about it.

The command must call crossover.attach, and must run to its end with a short
training. Its two copies run in this folder at the same time: where they would
overwrite each other's files, use --alone.

examples:
  crossover verify "torchrun --standalone --nproc-per-node 2 train.py --steps 50"
  crossover verify --alone "python train.py --epochs 1"

exit codes: 0 the same weights; 1 others, or no turn was taken; 2 wrong usage,
nothing to compare, or a script that is not deterministic; 143 terminated; else
that of a run that failed.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from crossover.arbiter.listening import socket_place
from crossover.commands.launching import check_room, parse_job
from crossover.digests import DIGESTS
from crossover.errors import Refused
from crossover.supervisor import KILLED, ending_with_me, supervised

_JOBS = ("a", "b")
_REMEDY = "free some of it, or set TMPDIR"


@dataclass(frozen=True, slots=True)
class Digest:
    """What one attachment of one worker came to: `worker` is RANK-NUMBER."""

    worker: str
    sha256: str
    num_turns: int


class RunFailed(Exception):
    """A run of the command ended with `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `crossover verify`."""
    parser.add_argument("job_command", metavar="COMMAND", help="the command with its arguments, in quotes")
    parser.add_argument("--alone", action="store_true", help="take turns with nobody instead of with a copy")


def run(arguments: argparse.Namespace) -> int:
    """Run, compare, and say the verdict in one line."""
    command = parse_job(f"{_JOBS[0]}={arguments.job_command}")
    jobs = _JOBS[:1] if arguments.alone else _JOBS
    with (
        _terminated_in_order(),
        TemporaryDirectory(prefix="crossover-verify-") as folder,  # the digests', in TMPDIR however long that is
        TemporaryDirectory(prefix="crossover-verify-", dir=socket_place()) as sockets,
    ):
        check_room(Path(folder), _REMEDY)
        try:
            plain = _run_plain(command.words, Path(folder, "plain"))
            shared = _run_in_turns(command.words, jobs, Path(folder), Path(sockets))
            differing = sorted({name for digests in shared for name in differences(plain, digests)})
            if differing and differences(plain, _run_plain(command.words, Path(folder, "again"))):
                print("crossover: two runs without turns differ: seed the script, then verify again", file=sys.stderr)
                return 2
        except RunFailed as failure:
            print(f"crossover: the command failed with exit code {failure.code}", file=sys.stderr)
            return failure.code
    return verdict(plain, shared, differing)


def differences(one: list[Digest], other: list[Digest]) -> list[str]:
    """The workers whose weights differ, or that only one of the runs had."""
    ours, theirs = ({digest.worker: digest.sha256 for digest in digests} for digests in (one, other))
    return [worker for worker in sorted(ours | theirs) if ours.get(worker) != theirs.get(worker)]


def verdict(plain: list[Digest], shared: list[list[Digest]], differing: list[str]) -> int:
    """Print it; the exit code."""
    num_turns = sum(digest.num_turns for digests in shared for digest in digests)
    if differing:
        print(f"crossover: turns change the weights of workers {', '.join(differing)} (RANK-NUMBER of the attachment)")
        return 1
    if not num_turns:
        print("crossover: the weights are the same, but no turn was taken: attach before the first forward")
        return 1
    print(f"crossover: the same weights, bit by bit: {len(plain)} digests per run, {num_turns} turns")
    return 0


def _run_plain(words: tuple[str, ...], folder: Path) -> list[Digest]:
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CROSSOVER_")}
    _run_to_its_end(words, {**environment, DIGESTS: str(folder)})
    found = _read(folder)
    if not found:
        raise Refused("the command wrote no digest: it must call crossover.attach(model, optimizer) and run to its end")
    return found


def _run_in_turns(words: tuple[str, ...], jobs: tuple[str, ...], folder: Path, sockets: Path) -> list[list[Digest]]:
    """Each job's command sets the folder for its own digests: `crossover run` gives all jobs one environment."""
    folders = [folder / f"job-{job}" for job in jobs]
    for own in folders:
        own.mkdir()
    texts = [f"{job}={shlex.join(['env', f'{DIGESTS}={own}', *words])}" for job, own in zip(jobs, folders, strict=True)]
    command = [sys.executable, "-m", "crossover", "run", "--socket", str(sockets / "arbiter.sock"), *texts]
    _run_to_its_end(command, os.environ)
    return [_read(own) for own in folders]


def _run_to_its_end(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Nothing of the command goes on after this, or after this process. Raises `RunFailed`."""
    with subprocess.Popen([*supervised(ending_with_me()), *command], env=environment) as process:
        try:
            code = process.wait()
        finally:
            process.terminate()
            process.wait()
    if code:
        raise RunFailed(code if code > 0 else KILLED - code)


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """While the block lasts, SIGTERM ends it as an exception does, so that it can tidy up."""

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(KILLED + number)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _read(folder: Path) -> list[Digest]:
    """What the run wrote. A disk that filled up meanwhile may lack a worker's digest, which is no difference."""
    check_room(folder, _REMEDY)
    told = ((path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json")))
    return [Digest(worker, found["sha256"], found["num_turns"]) for worker, found in told]
