"""Micro-batches and clipping: every system and update point does what one process with one large batch does."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import forked
from lab_tasks import spec_of
from micro_batch_ranks import NUM_RANKS, loss_of, network, reference, run_rank, samples_of, told_by_ranks
from patience import patience_s
from small_network import NAME

from crossover import Sharing
from harness.bench import Bench
from harness.checks.trial import check
from harness.predict.layers import layers_of_workload
from harness.systems.deepspeed import DeepSpeed
from harness.trial import Job, Trial, TrialError
from models.workload import Device, WorkloadSpec
from results.record import Status

CLIP = 3.0
SYSTEMS: dict[str, dict[str, Any]] = {
    "unfused": {"strategy": "unfused"},
    "fixed buckets": {"strategy": "fixed-buckets(bucket_bytes=400, first_bucket_bytes=100)"},
    "tensor fusion": {"strategy": "tensor-fusion(cycle_s=0.001)"},
    "parameter server": {"strategy": "unfused+parameter-server"},
    "at pre-hook": {"strategy": "unfused+at-pre-hook"},
    "torch DDP": {"system": "torch-ddp"},
    "Horovod": {"system": "horovod(cycle_s=0.001)"},
    "DeepSpeed": {"system": "deepspeed"},
    "DeepSpeed, ZeRO 1": {"system": "deepspeed(zero=1)"},
    "DeepSpeed, ZeRO 1, overlapped": {"system": "deepspeed(zero=1, overlap_comm=True, bucket_mb=0.0001)"},
}
REFERENCE = "one process, one batch"
EAGER = "at pre-hook"
SLOW = tuple(name for name in SYSTEMS if name.startswith("DeepSpeed"))
FAST = tuple(name for name in SYSTEMS if name not in SLOW and (name != "Horovod" or find_spec("horovod")))
Lists = dict[str, list[float]]
Told = dict[tuple[str, int, float | None, int], Lists]
FABRIC = spec_of("native")
SMALL = WorkloadSpec(network=NAME, batch_size=2)
TIMED = WorkloadSpec(network="resnet50", device=Device.REPLAY, batch_size=8, size_scale=1000)


def scenarios_of(names: tuple[str, ...]) -> list[tuple[str, int, float | None]]:
    settings = ((1, CLIP), (3, None), (3, CLIP))
    return [(name, 1, None) for name in names if name == EAGER] + [
        (name, accumulate, clip_norm)
        for name in names
        for accumulate, clip_norm in settings
        if name != EAGER or clip_norm is None
    ]


def run(asked: list[tuple[str, int, float | None]], folder: Path) -> Told:
    """What both ranks of every scenario end with."""
    scenarios = [{**SYSTEMS[name], "accumulate": k, "clip_norm": clip_norm} for name, k, clip_norm in asked]
    ranks = told_by_ranks(run_rank, scenarios, folder)
    return {(*one, rank): told for rank, own in enumerate(ranks) for one, told in zip(asked, own, strict=True)}


@pytest.fixture(scope="module")
def references() -> Told:
    return {(REFERENCE, 1, clip_norm, 0): reference(clip_norm) for clip_norm in (None, CLIP)}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, references: Told) -> Told:
    alone = [[one] for one in scenarios_of(FAST) if one[0] == "Horovod"]  # which starts once in a process
    together = [one for one in scenarios_of(FAST) if one[0] != "Horovod"]
    for asked in (together, *alone):
        references = references | run(asked, tmp_path_factory.mktemp("fast"))
    return references


@pytest.fixture(scope="module")
def told_by_deepspeed(tmp_path_factory: pytest.TempPathFactory, references: Told) -> Told:
    if find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed: run 'make doctor'")
    folder = tmp_path_factory.mktemp("slow")

    def import_and_run(_: int) -> Told:
        DeepSpeed().preload()  # once for both ranks, and not into the tests' process
        return run(scenarios_of(SLOW), folder)

    ((code, told),) = forked(import_and_run, 1)
    assert code == 0
    return {**references, **told}


def check_against_reference(told: Told, name: str, accumulate: int, clip_norm: float | None) -> None:
    """Six steps of sums in another order: 1e-6 of a weight of order 1."""
    ranks = [told[name, accumulate, clip_norm, rank] for rank in range(NUM_RANKS)]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert ranks[0]["weights"] == pytest.approx(told[REFERENCE, 1, clip_norm, 0]["weights"], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("name", "accumulate", "clip_norm"), scenarios_of(FAST))
def test_it_equals_one_process_with_one_large_batch(
    told: Told, name: str, accumulate: int, clip_norm: float | None
) -> None:
    check_against_reference(told, name, accumulate, clip_norm)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "accumulate", "clip_norm"), scenarios_of(SLOW))
def test_deepspeed_equals_one_process_with_one_large_batch(
    told_by_deepspeed: Told, name: str, accumulate: int, clip_norm: float | None
) -> None:
    check_against_reference(told_by_deepspeed, name, accumulate, clip_norm)


def test_clipping_bites_in_some_steps_and_not_in_others(told: Told) -> None:
    """Else the tests above would not tell clipping from scaling, or from nothing."""
    free, clipped = (told[REFERENCE, 1, clip_norm, 0] for clip_norm in (None, CLIP))
    assert min(clipped["norms"]) < CLIP < max(clipped["norms"])
    assert clipped["weights"] != pytest.approx(free["weights"], rel=1e-3)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_ours_clips_as_torch_ddp_bit_for_bit(told: Told, accumulate: int) -> None:
    """Two summands have one order, and the norm is taken over the same tensors."""
    ours, theirs = (told[name, accumulate, CLIP, 0]["weights"] for name in ("unfused", "torch DDP"))
    assert ours == theirs


def test_the_loss_of_a_step_is_the_mean_of_its_micro_batches(told: Told) -> None:
    whole, cut = (told["unfused", accumulate, CLIP, 0]["losses"] for accumulate in (1, 3))
    assert cut == pytest.approx(whole, rel=1e-5)
    assert whole[0] == pytest.approx(float(loss_of(network(), samples_of(0, 0)).detach()), rel=1e-6)


@pytest.fixture(scope="module")
def alone(bench: Bench) -> str:
    record = bench.run(trial(("a",)))
    assert record.status is Status.OK, record.reason
    return record.jobs[0].weights_digest


@pytest.mark.parametrize("sharing", [Sharing.CROSSOVER, Sharing.TICK_TOCK, Sharing.HOLD, Sharing.NAIVE])
def test_shared_jobs_that_accumulate_and_clip_end_as_alone(bench: Bench, sharing: Sharing, alone: str) -> None:
    record = bench.run(trial(("a", "b"), sharing=sharing))
    assert record.status is Status.OK, record.reason
    assert {job.weights_digest for job in record.jobs} == {alone}
    assert {job.accumulate for job in record.jobs} == {2}


def trial(
    names: tuple[str, ...],
    *,
    strategy: str = "fixed-buckets",
    workload: WorkloadSpec = SMALL,
    accumulate: int = 2,
    **asked: Any,
) -> Trial:
    job = partial(Job, workload=workload, accumulate=accumulate, clip_norm=1.0)
    return Trial(
        suite="test",
        cell="test",
        jobs=tuple(job(name=name, strategy=strategy) for name in names),
        fabric=FABRIC,
        num_warmup=1,
        num_steps=5,
        timeout_s=patience_s(120.0),
        **asked,
    )


def test_more_micro_batches_compute_more_and_send_as_much(bench: Bench) -> None:
    """c is of all micro-batches of a step, and bytes are of one."""
    once, thrice = (
        bench.run(trial(("a",), workload=TIMED, accumulate=accumulate, num_cost_steps=2)) for accumulate in (1, 3)
    )
    assert once.status is thrice.status is Status.OK
    assert once.jobs[0].wire_bytes == thrice.jobs[0].wire_bytes
    assert thrice.jobs[0].costs is not None
    # Busy machines lengthen layers and never shorten them; a step gains only what the one before it ran late.
    layers = layers_of_workload(TIMED)
    assert thrice.jobs[0].costs.compute_s > 2 * (layers.forward_s + layers.backward_s)


def test_clipping_at_pre_hook_is_refused_with_the_reason() -> None:
    with pytest.raises(
        TrialError, match=r"clip_norm=1 needs the norm of all gradients, and at-pre-hook .* update after-all"
    ):
        check(trial(("a",), strategy="unfused+at-pre-hook"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"accumulate": 0}, "job a: accumulate is 0; a step has at least 1 micro-batch"),
        ({"num_steps": 0}, "job a: num_steps is 0; give at least 1"),
        ({"clip_norm": 0.0}, "job a: clip_norm is 0.0; give a positive norm"),
        ({"clip_norm": math.inf}, "job a: clip_norm is inf; give a positive norm"),
    ],
)
def test_wrong_numbers_are_named(wrong: dict[str, Any], message: str) -> None:
    job: Callable[..., Job] = partial(Job, name="a", workload=WorkloadSpec(network="resnet20"))
    with pytest.raises(TrialError, match=message):
        job(**wrong)
