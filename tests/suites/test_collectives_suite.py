"""Collectives: what times come to, which sizes are timed, what records and claims say, where a library is missing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist
from patience import patience_s
from torch.distributed import distributed_c10d

from analysis.claims import ClaimRow, Outcome
from analysis.figures import drawings
from analysis.report import render_page
from analysis.summary import every_claim, summarise
from fabric.cluster import FabricError, FabricKind, FabricSpec
from fabric.collectives import Collective, load_of
from harness.bench import Bench
from harness.checks.trial import check
from harness.collectives import launch, ranks
from harness.collectives.launch import command_line, facts_of
from harness.collectives.libraries import Run, TorchLibrary
from harness.hosted import STORE
from harness.trial import TimedCollective, Trial, TrialError
from harness.validity import EvidenceKind, evidence_of
from results.collectives import LARGE_BYTES, CollectiveFacts, Operation, SizeTimes, bus_factor
from results.record import FabricFacts, Record, Status, read_record, write_record
from suites.api import Options
from suites.cli import main
from suites.collectives.grid import NAME, cells, grid
from suites.collectives.study import STUDY
from suites.earlier import finished_before
from suites.expected import expected_each_s, expected_s
from suites.folders import FolderError
from suites.repeats import next_repeat, timed_cells

RATE_BPS = 200e6
ALPHA_S, NUM_RANKS = 1e-3, 4


class Clocked:
    """A library on a line of 200 Mbit/s, on a clock of its own; it has no point-to-point."""

    rank, size = 0, NUM_RANKS

    def __init__(self) -> None:
        self.now_s = 0.0

    def prepare(self, operation: Operation, num_bytes: int) -> Run | None:
        if operation is Operation.POINT_TO_POINT:
            return None

        def run() -> None:
            self.now_s += ALPHA_S + bus_factor(operation, self.size) * num_bytes * 8 / RATE_BPS

        return run

    def largest(self, value: float) -> float:
        return value


def timed(monkeypatch: pytest.MonkeyPatch, operation: Operation) -> tuple[SizeTimes, ...]:
    library = Clocked()
    monkeypatch.setattr(ranks, "perf_counter", lambda: library.now_s)
    return tuple(ranks.time_operation(library, operation, 8.0))


@pytest.mark.parametrize("fails", [False, True])
def test_a_rank_has_left_its_groups_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    def broken(*_: object) -> Run:
        raise OSError("no memory")

    for name, value in {"RANK": "0", "WORLD_SIZE": "1", STORE: f"{tmp_path}/store"}.items():
        monkeypatch.setenv(name, value)
    # A rank wraps it for good, and this process is not one.
    monkeypatch.setattr(distributed_c10d, "_new_process_group_helper", distributed_c10d._new_process_group_helper)
    if fails:
        monkeypatch.setattr(TorchLibrary, "prepare", broken)
    with pytest.raises(OSError, match="no memory") if fails else nullcontext():
        ranks.main("gloo", Operation.ALL_TO_ALL, tmp_path / "timed.json", seconds=1e-6)
    assert not dist.is_initialized()
    assert (tmp_path / "timed.json").exists() is not fails


def made(trial: Trial, alpha_s: float = ALPHA_S, share: float = 0.95) -> Record:
    """A record of a cell by a formula of times. Nothing here was measured."""
    asked, num_ranks = trial.collective, trial.num_ranks
    assert asked is not None
    assert trial.fabric.rate_bps
    beta_s = bus_factor(asked.operation, num_ranks) * 8 / (share * trial.fabric.rate_bps)
    sizes = tuple(
        SizeTimes(num_bytes=size, row_length=1, times_s=(alpha_s + beta_s * size,) * 3) for size in ranks.SIZES
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("harness.collectives.trial.why_not_here", lambda *_: None)
        patched.setattr("harness.collectives.trial.run_collective", lambda *_: facts_of(asked, num_ranks, sizes))
        with Bench() as bench:
            return bench.run(trial)


@pytest.mark.parametrize("operation", [one for one in Operation if one is not Operation.POINT_TO_POINT])
def test_sizes_that_would_take_too_long_are_left_out(monkeypatch: pytest.MonkeyPatch, operation: Operation) -> None:
    """25 MB in four rows take at most 6.0 s, 67 MB at least 8.05 s."""
    sizes = timed(monkeypatch, operation)
    assert sizes[-1].num_bytes == LARGE_BYTES
    assert all(len(own.times_s) == ranks.NUM_ROWS for own in sizes)


def test_an_operation_that_a_library_does_not_have_has_no_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timed(monkeypatch, Operation.POINT_TO_POINT) == ()


@pytest.mark.parametrize("operation", [one for one in Operation if one is not Operation.POINT_TO_POINT])
def test_bus_bandwidth_is_held_against_the_line_and_algorithm_bandwidth_is_not(
    monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    facts = facts_of(TimedCollective(library="clocked", operation=operation), NUM_RANKS, timed(monkeypatch, operation))
    algorithm_bps = facts.sizes[-1].algorithm_bps
    assert facts.bus_bps(LARGE_BYTES) == pytest.approx(bus_factor(operation, NUM_RANKS) * algorithm_bps)
    assert facts.bus_bps(LARGE_BYTES) == pytest.approx(RATE_BPS, rel=2e-3)  # α is 1 ms of 0.75 s or more
    assert facts.alpha_s == pytest.approx(ALPHA_S)
    assert facts.beta_s_per_byte == pytest.approx(bus_factor(operation, NUM_RANKS) * 8 / RATE_BPS)


def test_bus_factors_are_those_of_the_table_of_collectives() -> None:
    """There all-gather counts a rank's part, here the whole, P parts."""
    assert bus_factor(Operation.ALL_REDUCE, 8) == load_of(Collective.ALL_REDUCE, 8).link_bytes
    assert bus_factor(Operation.ALL_GATHER, 8) == load_of(Collective.ALL_GATHER, 8).link_bytes / 8
    assert bus_factor(Operation.POINT_TO_POINT, 8) == load_of(Collective.TRANSFER, 8).link_bytes


def test_every_library_is_started_by_its_own_launcher() -> None:
    spec = FabricSpec(kind=FabricKind.EMULATED, num_hosts=2, rate_bps=RATE_BPS)
    program = [sys.executable, "-m", "harness.collectives.ranks"]
    assert "--everywhere" in command_line("gloo", spec, program)
    assert "harness.mpi.launch" in command_line("mpi", spec, program)
    assert "harness.lab.horovod_hosts" in command_line("horovod", spec, program)
    native = FabricSpec(kind=FabricKind.NATIVE, num_hosts=2, rate_bps=None)
    assert {"harness.hosted", "--native"} < set(command_line("nccl", native, program))


def test_every_cell_can_run_on_its_fabric_and_is_refused_with_a_remedy_elsewhere() -> None:
    for trial in grid(Options(repeats=1)):
        check(trial)
    native = grid(Options(repeats=1, fabric=FabricKind.NATIVE))
    assert {trial.collective.library for trial in native if trial.collective} == {"nccl"}
    (paced, *_) = grid(Options(repeats=1, fabric=FabricKind.PACED))
    with pytest.raises(TrialError, match="no wire to be timed; use emulated"):
        check(paced)
    with pytest.raises(TrialError, match="use gloo, mpi, horovod"):
        check(next(cells(Options(), 1.0, ("ucc",))))
    with pytest.raises(TrialError, match="use 2 or more"):
        check(next(cells(Options(num_hosts=1), 1.0)))


def test_a_trial_has_jobs_or_a_collective() -> None:
    (trial, *_) = grid(Options(repeats=1))
    with pytest.raises(TrialError, match="or traffic, or a collective"):
        replace(trial, collective=None)


def test_a_library_that_is_not_here_is_skipped_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "why_no_mpi", lambda: "mpi4py is not installed; run pip")
    (trial, *_) = cells(Options(), 1.0, ("mpi",))
    with Bench() as bench:
        record = bench.run(trial)
    assert (record.status, record.reason) == (Status.SKIPPED, "mpi4py is not installed; run pip")


def test_ranks_that_end_badly_make_an_error_with_what_they_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> CollectiveFacts:
        raise FabricError("gloo all-reduce on 2 hosts ended with code 1: no route")

    monkeypatch.setattr("harness.collectives.trial.run_collective", failing)
    (trial, *_) = cells(Options(), 1.0, ("gloo",))
    with Bench() as bench:
        record = bench.run(trial)
    assert record.status is Status.ERROR
    assert "no route" in record.reason


def test_ranks_that_take_too_long_end_with_their_launcher_in_whatever_session_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = tmp_path / "rank"
    launcher = f"setsid sleep {patience_s(60):.0f} & echo $! > {started}; wait"
    monkeypatch.setattr(launch, "command_line", lambda *_: ["sh", "-c", launcher])
    spec = FabricSpec(kind=FabricKind.NATIVE, num_hosts=2, rate_bps=None)
    with pytest.raises(FabricError, match="on 2 hosts did not end within"):
        launch.run_collective(TimedCollective(library="nccl", operation=Operation.ALL_REDUCE), spec, patience_s(1))
    assert not Path(f"/proc/{started.read_text().strip()}").exists()


def test_a_record_comes_back_from_its_file_and_is_not_measured_again(tmp_path: Path) -> None:
    (trial, *_) = grid(Options(repeats=1))
    record = made(trial)
    path = write_record(record, tmp_path)
    assert read_record(path) == record
    assert finished_before(trial, tmp_path) == record
    told = json.loads(path.read_text())
    del told["trial"]["collective"], told["trial"]["on_loss"]  # as of a checkout that did not have them
    path.write_text(json.dumps(told))
    with pytest.raises(FolderError, match="cannot be read by this checkout"):
        finished_before(trial, tmp_path)
    assert evidence_of(record) is EvidenceKind.REAL


def test_repeats_go_on_until_the_largest_size_is_known() -> None:
    (trial, *_) = grid(Options(repeats=1))
    records = [made(replace(trial, repeat=repeat)) for repeat in range(6)]
    assert next_repeat(timed_cells([trial]), records[:5], 5)
    assert next_repeat(timed_cells([trial]), records, 6) == []


def test_expected_seconds_hold_every_row_and_no_calibration() -> None:
    trials = grid(Options(repeats=1))
    assert expected_each_s(trials) == [expected_s(trial) for trial in trials]
    short = next(cells(Options(), 0.2))
    assert expected_s(short) < expected_s(trials[0])


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """MPI's α a tenth of gloo's; Horovod's bandwidth too low."""
    given = {"gloo": (1e-3, 0.95), "mpi": (1e-4, 0.95), "horovod": (5e-3, 0.8)}
    found = []
    for trial in grid(Options(repeats=1)):
        assert trial.collective is not None
        one = made(trial, *given[trial.collective.library])
        # Eight: that one of three cells misses counts at 98.3 %, for which six are too few.
        found += [replace(one, id=f"{one.id[:-1]}{repeat}", repeat=repeat) for repeat in range(8)]
    return found


def test_claims_follow_from_the_records(records: Sequence[Record]) -> None:
    rows = every_claim(records, (STUDY,))[NAME]
    assert [_said(row) for row in rows] == [
        ("gloo", Outcome.MET),
        ("gloo", Outcome.MET),
        ("MPI", Outcome.MET),
        ("MPI", Outcome.MET),
        ("Horovod", Outcome.MISSED),
        ("Horovod", Outcome.MISSED),
        ("MPI's", Outcome.MET),
    ]


def _said(row: ClaimRow) -> tuple[str, Outcome]:
    return row.claim.partition(" ")[0].rstrip(":"), row.outcome


def test_the_figure_has_a_line_for_each_library_and_the_page_a_row(records: Sequence[Record]) -> None:
    drawn = (Operation.BROADCAST, Operation.POINT_TO_POINT)
    summary = summarise(
        [one for one in records if one.collective and one.collective.operation in drawn], studies=(STUDY,)
    )
    (drawing,) = drawings(summary)
    panels = [axes for axes in drawing.figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == [one.value for one in drawn]
    assert set(drawing.record_ids) == {identity for row in summary.collectives for identity in row.ids}
    lines = {line.get_color() for line in panels[0].lines}
    assert len(lines) == 1 + 3  # the line's rate and three libraries
    page = render_page(summary, [drawing])
    assert page.count("Sizes of ") == len(summary.collectives)
    assert 'href="#collectives"' in page


def test_an_unknown_library_is_refused_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collectives", "--library", "ucc"]) == 2
    assert "use gloo, mpi, horovod" in capsys.readouterr().err


def test_the_command_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def skipped(bench: Bench, trial: Trial, on_event: object) -> Record:
        fabric = FabricFacts(kind="emulated", label="emulated", num_hosts=2)
        return Record(
            id=trial.id,
            suite=trial.suite,
            cell=trial.cell,
            repeat=0,
            seed=1,
            status=Status.SKIPPED,
            reason="a test",
            fabric=fabric,
        )

    monkeypatch.setattr(Bench, "run", skipped)
    assert main(["collectives", "--library", "gloo"]) == 1
    told = capsys.readouterr().err
    num_operations = len(Operation)
    assert [f"{done}/{num_operations} trials" in told for done in range(1, num_operations + 1)] == [
        True
    ] * num_operations


@pytest.mark.parametrize("seconds", ["nan", "-1", "0", "inf"])
def test_seconds_that_no_row_can_take_are_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collectives", f"--seconds={seconds}"]) == 2
    assert "give seconds above 0" in " ".join(capsys.readouterr().err.split())


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(Bench, "run", lambda *_: pytest.fail("it was measured"))
    assert main(["collectives", "--out", str(tmp_path / "file" / "records")]) == 2
    assert "name another folder with --out" in " ".join(capsys.readouterr().err.split())
