"""The grid of the suite `gpu`: what it asks for with and without a GPU."""

from __future__ import annotations

from crossover import ReleasePoint, Sharing
from fabric.api import FabricKind
from harness.checks.trial import check
from harness.precision import Precision
from models.workload import Device
from suites.api import Options
from suites.gpu.grid import SUITE


def test_without_wishes_it_is_for_a_gpu_whatever_the_fabric_of_other_suites() -> None:
    assert SUITE.fabric is FabricKind.PACED
    trials = SUITE.grid(Options())
    assert {(trial.fabric.kind, trial.world, trial.fabric.num_virtual) for trial in trials} == {
        (FabricKind.PACED, 1, 8),
        (FabricKind.NATIVE, 1, 0),
    }
    assert {trial.cell.partition("/")[0] for trial in trials if trial.fabric.kind is FabricKind.NATIVE} == {"one-rank"}
    workloads = {job.workload for trial in trials for job in trial.jobs}
    assert {workload.device for workload in workloads} == {Device.CUDA}
    precisions = {job.precision for trial in trials for job in trial.jobs}
    assert precisions == {Precision.FLOAT32, Precision.BFLOAT16}
    assert {workload.network for workload in workloads} == {"resnet50", "bert_base"}


def test_every_group_begins_with_its_denominator_and_cells_are_told_apart() -> None:
    trials = SUITE.grid(Options(repeats=1))
    assert len({trial.id for trial in trials}) == len(trials)
    groups: dict[str, list[Sharing]] = {}
    for trial in trials:
        check(trial)
        if trial.sharing is not None:
            groups.setdefault(trial.cell.rpartition("/")[0], []).append(trial.sharing)
    assert {own[0] for own in groups.values()} == {Sharing.EXCLUSIVE}
    assert {trial.release for trial in trials} == set(ReleasePoint)


def test_each_job_runs_alone_by_the_engine_and_by_ddp() -> None:
    alone: dict[str, set[str]] = {}
    for trial in SUITE.grid(Options(repeats=1, rate_bps=100e9, rate_given=True)):
        if trial.sharing is None:
            alone.setdefault(trial.cell.rpartition("/")[0], set()).add(trial.jobs[0].system)
    groups = ("alone-100", "one-rank")
    assert alone == {
        f"{group}/{job}-synthetic": {"ours", "torch-ddp"} for group in groups for job in ("resnet50", "bert_base")
    }


def test_smoke_on_the_cpu_asks_the_same_of_tiny_networks() -> None:
    tiny, full = SUITE.grid(Options(smoke=True)), SUITE.grid(Options(repeats=1, rate_bps=25e9, rate_given=True))
    assert {job.workload.device for trial in tiny for job in trial.jobs} == {Device.CPU}
    assert [(t.sharing, t.release) for t in tiny] == [(t.sharing, t.release) for t in full]


def test_smoke_on_a_gpu_stays_on_it() -> None:
    trials = SUITE.grid(Options(smoke=True, device=Device.CUDA, fabric=FabricKind.PACED))
    assert {job.workload.device for trial in trials for job in trial.jobs} == {Device.CUDA}


def test_hosts_are_the_ranks_of_the_ring_and_a_rate_replaces_the_suites_own() -> None:
    trials = SUITE.grid(Options(num_hosts=16, rate_bps=50e9, rate_given=True, repeats=1))
    assert {(trial.world, trial.fabric.num_ranks, trial.fabric.rate_bps) for trial in trials} == {
        (1, 16, 50e9),
        (1, 1, None),
    }
    unshaped = SUITE.grid(Options(rate_given=True, repeats=1))
    assert {(trial.fabric.rate_bps, trial.axis) for trial in unshaped} == {(None, "")}
