"""A strategy over MPI ends with the weights that it has over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.mpi import launch
from harness.mpi.transport import MpiError, load_mpi

RANKS = Path(__file__).with_name("mpi_ranks.py")
ROOT = RANKS.parents[2]
STRATEGIES = (
    "fixed-buckets",
    "unfused+all-gather",
    "tensor-fusion",
    "single-bucket+topk(density=0.2)+error-feedback",
    "fixed-buckets+ring",
    "unfused+parameter-server",
    "fixed-buckets+tree",
)
needs_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None or not (Path(sys.prefix) / "bin" / "mpiexec.hydra").exists(),
    reason="no MPI: pip install mpi4py mpich",
)


@needs_mpi
@pytest.mark.slow
def test_two_ranks_over_mpi_have_the_weights_of_two_over_gloo(tmp_path: Path) -> None:
    line = [launch.mpiexec(), "-n", "2", sys.executable, RANKS, tmp_path, *STRATEGIES]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{RANKS.parent}"}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert told[0] == told[1]
    for text in STRATEGIES:
        assert told[0][text]["mpi"] == told[0][text]["gloo"], text


@needs_mpi
def test_what_mpi_cannot_sum_is_refused_with_a_remedy() -> None:
    code = (
        "import torch; from baselines.api import AllReduce; from harness.mpi.transport import MpiTransport\n"
        "told = []; transport = MpiTransport(1)\n"
        "transport.start(AllReduce(torch.zeros(3, dtype=torch.bfloat16)), 0, told.append); print(told[0])\n"
        "transport.close()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert "MPI sums no torch.bfloat16; use a compressor" in done.stdout, done.stderr


def test_without_an_mpi_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MpiError, match="pip install mpi4py mpich"):
        load_mpi()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(MpiError, match="pip install mpi4py mpich"):
        launch.mpiexec()
