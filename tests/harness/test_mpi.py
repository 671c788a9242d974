"""A strategy over MPI ends with the weights that it has over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from forked_ranks import forked
from patience import patience_s

from baselines.api import AllReduce, Payload
from harness.mpi import launch
from harness.mpi.library import MpiError, load_mpi, mpiexec, why_no_mpi
from harness.mpi.remote_shell import command_on_host
from harness.mpi.transport import MpiTransport

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
needs_mpi = pytest.mark.skipif(why_no_mpi() is not None, reason=str(why_no_mpi()))


@needs_mpi
@pytest.mark.slow
def test_two_ranks_over_mpi_have_the_weights_of_two_over_gloo(tmp_path: Path) -> None:
    line = [mpiexec(), "-n", "2", sys.executable, RANKS, tmp_path, *STRATEGIES]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{RANKS.parent}"}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=patience_s(150), check=False)
    assert done.returncode == 0, done.stderr
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert told[0] == told[1]
    for text in STRATEGIES:
        assert told[0][text]["mpi"] == told[0][text]["gloo"], text


@needs_mpi
def test_what_mpi_cannot_sum_is_refused_with_a_remedy() -> None:
    def run(_: int) -> str:
        told, transport = SimpleQueue[Payload | Exception](), MpiTransport(1)
        transport.start(AllReduce(torch.zeros(3, dtype=torch.bfloat16)), 0, told.put)
        transport.close()
        return str(told.get())

    ((_, told),) = forked(run, 1)  # MPI starts once in a process
    assert told == "MPI sums no torch.bfloat16; use a compressor whose payloads are gathered, or gloo"


@needs_mpi
def test_operations_that_end_in_one_look_are_all_told() -> None:
    def run(_: int) -> list[float]:
        told, transport = SimpleQueue[Any](), MpiTransport(3)
        with transport._changed:  # nobody looks before all are begun
            for lane in range(3):
                transport.start(AllReduce(torch.full((2,), lane + 1.0)), lane, told.put)
        sums = sorted(float(told.get(timeout=patience_s(20))[0][0]) for _ in range(3))
        transport.close()
        return sums

    ((_, sums),) = forked(run, 1)
    assert sums == [1.0, 2.0, 3.0]


class FailingMpi:
    """In place of mpi4py's module: requests say what becomes of them."""

    Exception, THREAD_MULTIPLE = RuntimeError, 3
    IN_PLACE = SUM = None

    def __init__(self, *requests: RuntimeError | None) -> None:
        self._requests = list(requests)
        self.COMM_WORLD = self.Request = self

    def Query_thread(self) -> int:
        return self.THREAD_MULTIPLE

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 2

    def Dup(self) -> FailingMpi:
        return self

    def Free(self) -> None:
        """Nothing is held."""

    def Iallreduce(self, *_: object, op: object) -> RuntimeError | None:
        return self._requests.pop(0)

    def Testall(self, requests: list[RuntimeError | None]) -> bool:
        for error in requests:
            if error is not None:
                raise error
        return True


def test_an_operation_that_fails_under_way_is_told_and_the_next_one_is_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = RuntimeError("the peer is gone")
    monkeypatch.setattr("harness.mpi.transport.load_mpi", lambda: FailingMpi(lost, None))
    transport, told = MpiTransport(1), SimpleQueue[Payload | Exception]()
    transport.start(AllReduce(torch.ones(2)), 0, told.put)
    assert told.get(timeout=patience_s(10)) is lost
    transport.start(AllReduce(torch.ones(2)), 0, told.put)
    assert not isinstance(told.get(timeout=patience_s(10)), Exception)
    transport.close()


def test_without_an_mpi_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MpiError, match="pip install mpi4py mpich"):
        load_mpi()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(MpiError, match="pip install mpi4py mpich"):
        mpiexec()


@pytest.mark.parametrize(
    ("words", "reason"), [(["--"], "name a command after --"), (["--", "true"], "no emulated cluster around")]
)
def test_what_mpiexec_cannot_start_is_refused_with_the_reason(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch.main(words) == 2
    assert reason in capsys.readouterr().err


def test_in_place_of_ssh_a_command_line_becomes_words_on_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CROSSOVER_BENCH_HOSTS", "host0=11,host1=12")
    line = command_on_host(["-x", "host1", '"/bin/proxy"', "--name", '"two words"'])
    assert "--target=12" in line
    assert line[-3:] == ["/bin/proxy", "--name", "two words"]
