"""Starts the rank program of a library on the hosts of a fabric, by the library's own launcher."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from crossover.supervisor import ending_with_me, supervised
from fabric.api import FabricError, FabricKind, FabricSpec
from fabric.run_module import module_command
from harness.calibrate import fit_link
from harness.mpi.library import why_no_mpi
from harness.trial import TimedCollective
from results.codec import from_jsonable
from results.collectives import CollectiveFacts, SizeTimes

LAUNCHERS = {"mpi": "harness.mpi.launch", "horovod": "harness.lab.horovod_hosts"}


def why_not_here(library: str, num_hosts: int) -> str | None:
    """The reason and the remedy where a library cannot be timed on this machine, or None."""
    if library == "mpi":
        return why_no_mpi()
    if library == "horovod" and importlib.util.find_spec("horovod") is None:
        return "Horovod is not installed; install a C++ compiler and cmake, then run make setup again"
    if library == "nccl":
        import torch

        num_gpus = torch.cuda.device_count()
        if num_gpus < num_hosts:
            return f"NCCL needs a GPU for each of {num_hosts} ranks, and there are {num_gpus}; run it where there are"
    return None


def run_collective(asked: TimedCollective, spec: FabricSpec, timeout_s: float) -> CollectiveFacts:
    """What its ranks measured, with α and β.

    Raises: FabricError if they ended badly, with what they said, or not in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "timed.json"
        words = [asked.library, asked.operation.value, str(out), str(asked.most_s)]
        ranks = module_command("harness.collectives.ranks", *words)
        line = command_line(asked.library, spec, ranks)
        try:
            done = _run(line, timeout_s)
        except subprocess.TimeoutExpired as error:
            raise FabricError(f"{asked.text} on {spec.num_hosts} hosts did not end within {timeout_s:g} s") from error
        if done.returncode != 0 or not out.exists():
            said = (done.stderr.strip() or done.stdout.strip())[-600:]
            raise FabricError(f"{asked.text} on {spec.num_hosts} hosts ended with code {done.returncode}: {said}")
        told = json.loads(out.read_text())
    sizes = from_jsonable(tuple[SizeTimes, ...], told["sizes"])
    if not sizes:
        raise FabricError(f"{asked.library} has no {asked.operation}; leave that cell out")
    return facts_of(asked, told["num_ranks"], sizes)


def _run(line: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a launcher until it ends; nothing of it goes on after this, or after this process.

    Raises: TimeoutExpired.
    """
    # A killed launcher alone would leave its ranks, which it starts in sessions of their own.
    command = [*supervised(ending_with_me()), *line]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        finally:
            process.terminate()
            process.wait()
    return subprocess.CompletedProcess(line, process.returncode, out, err)


def facts_of(asked: TimedCollective, num_ranks: int, sizes: tuple[SizeTimes, ...]) -> CollectiveFacts:
    """The times with α and β fitted to them."""
    link = fit_link({own.num_bytes: own.median_s for own in sizes}) if len(sizes) > 1 else None
    return CollectiveFacts(
        library=asked.library,
        operation=asked.operation,
        num_ranks=num_ranks,
        sizes=sizes,
        alpha_s=link.alpha_s if link else None,
        beta_s_per_byte=link.beta_s_per_byte if link else None,
        fit_residual=link.residual if link else None,
    )


def command_line(library: str, spec: FabricSpec, ranks: Sequence[str]) -> list[str]:
    """What starts a rank on every host, as the library's own launcher would."""
    if spec.kind is FabricKind.NATIVE:
        return module_command("harness.hosted", "--native", "--hosts", str(spec.num_hosts), "--", *ranks)
    rate = "none" if spec.rate_bps is None else f"{spec.rate_bps:.0f}bit"
    hosted = module_command("harness.hosted", "--hosts", str(spec.num_hosts), "--rate", rate)
    if library in LAUNCHERS:
        return [*hosted, "--", *module_command(LAUNCHERS[library], "--", *ranks)]
    return [*hosted, "--everywhere", "--", *ranks]
