"""What collectives' times come to, which sizes are timed, and what is said where a library is missing."""

from __future__ import annotations

import sys

import pytest

from fabric.cluster import FabricKind, FabricSpec
from fabric.collectives import Collective, load_of
from suites.cli import main
from suites.collectives import measure, ranks
from suites.collectives.libraries import Operation, Run
from suites.collectives.measure import bus_factor, command_line, fits_of, measured_of

RATE_BPS = 200e6
ALPHA_S, NUM_RANKS = 1e-3, 4


class Clocked:
    """A library on a line of 200 Mbit/s, on a clock of its own; it has no point-to-point."""

    rank, size = 0, NUM_RANKS

    def __init__(self) -> None:
        self.now_s, self.num_runs = 0.0, 0

    def prepare(self, operation: Operation, num_bytes: int) -> Run | None:
        if operation is Operation.POINT_TO_POINT:
            return None

        def run() -> None:
            self.num_runs += 1
            self.now_s += ALPHA_S + bus_factor(operation, self.size) * num_bytes * 8 / RATE_BPS

        return run

    def largest(self, value: float) -> float:
        return value


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[ranks.Timed]:
    library = Clocked()
    monkeypatch.setattr(ranks, "perf_counter", lambda: library.now_s)
    return list(ranks.time_library(library, 12.0))


def told(timed: list[ranks.Timed]) -> dict[str, object]:
    rows = [{"operation": own.operation, "num_bytes": own.num_bytes, "times_s": own.times_s} for own in timed]
    return {"library": "clocked", "num_ranks": NUM_RANKS, "timed": rows}


def test_sizes_that_would_take_too_long_and_operations_that_are_missing_are_left_out(timed: list[ranks.Timed]) -> None:
    """25 MB in six rows take 9.0 s by all-reduce, 67 MB take 24 s."""
    largest = {own.operation: own.num_bytes for own in timed}
    assert largest == {
        Operation.ALL_REDUCE: 25_000_000,
        Operation.ALL_GATHER: 25_000_000,
        Operation.BROADCAST: 25_000_000,
        Operation.ALL_TO_ALL: 25_000_000,
    }
    assert all(len(own.times_s) == ranks.NUM_ROWS for own in timed)


def test_bus_bandwidth_is_held_against_the_line_and_algorithm_bandwidth_is_not(timed: list[ranks.Timed]) -> None:
    measured = measured_of(told(timed))
    large = next(own for own in measured if own.operation is Operation.ALL_REDUCE and own.num_bytes == 25_000_000)
    assert large.bus_bps == pytest.approx(1.5 * large.algorithm_bps)
    assert large.bus_bps == pytest.approx(RATE_BPS, rel=1e-3)  # α is 1 ms of 1.5 s
    fits = fits_of(measured, RATE_BPS)
    for fit in fits:
        assert fit.share_of_line == pytest.approx(1.0, rel=2e-3)
        assert fit.link.alpha_s == pytest.approx(ALPHA_S)
        assert fit.link.beta_s_per_byte == pytest.approx(bus_factor(fit.operation, NUM_RANKS) * 8 / RATE_BPS)


def test_bus_factors_are_those_of_the_table_of_collectives() -> None:
    """There all-gather counts a rank's part, here the whole, P parts."""
    assert bus_factor(Operation.ALL_REDUCE, 8) == load_of(Collective.ALL_REDUCE, 8).link_bytes
    assert bus_factor(Operation.ALL_GATHER, 8) == load_of(Collective.ALL_GATHER, 8).link_bytes / 8
    assert bus_factor(Operation.POINT_TO_POINT, 8) == load_of(Collective.TRANSFER, 8).link_bytes


def test_every_library_is_started_by_its_own_launcher() -> None:
    spec = FabricSpec(kind=FabricKind.EMULATED, num_hosts=2, rate_bps=RATE_BPS)
    program = [sys.executable, "-m", "suites.collectives.ranks"]
    assert "--everywhere" in command_line("gloo", spec, program)
    assert "harness.mpi.launch" in command_line("mpi", spec, program)
    assert "harness.lab.horovod_hosts" in command_line("horovod", spec, program)
    assert "torch.distributed.run" in command_line("nccl", spec, program)


def test_a_library_that_is_not_here_is_skipped_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "why_no_mpi", lambda: "mpi4py is not installed; run pip")
    assert main(["collectives", "--library", "mpi"]) == 1
    assert "mpi: skipped: mpi4py is not installed; run pip" in capsys.readouterr().out


def test_an_unknown_library_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collectives", "--library", "ucc"]) == 2
    assert "use gloo, mpi, horovod, nccl" in capsys.readouterr().err
