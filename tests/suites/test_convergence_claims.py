"""The hypotheses of the suite `convergence`, judged from rows whose steps, times and ends are written here."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from analysis.claims import Outcome
from analysis.study import Evidence
from analysis.targets.rows import HeldOutEnd, Price, TargetRow, TargetStudy
from results.facts import Role
from suites.convergence.study import CLAIMS, STUDY

EXACT, ACCURATE, LOSS, LATER, FEWER, QSGD, TOP_K = (claim.claim for claim in CLAIMS)
TEXTS = {
    "top-k 1 %": "fixed-buckets+topk(density=0.01)+error-feedback",
    "gTop-k 1 %": "fixed-buckets+gtopk(density=0.01)+error-feedback+tree",
    "DGC 0.1 %": "fixed-buckets+dgc(density=0.001, warmup_steps=18)",
    "QSGD 4 bit": "fixed-buckets+qsgd(bits=4, bucket=512)",
}
ROLES = {"dense": Role.DENSE, "fp16": Role.RIVAL}


def row(
    name: str, *, steps: Sequence[float] = (40,) * 6, ends: Sequence[float] = (0.5,) * 6, step_s: float = 0.1
) -> TargetRow:
    """`ends` are the last losses; an accuracy is what is left of 1."""
    return TargetRow(
        name=name, strategy=TEXTS.get(name, "fixed-buckets"), optimizer="sgd(lr=0.1)", final=None, final_accuracy=None,
        final_loss=None, course=None, clock="predicted", is_dense=name == "dense", role=ROLES.get(name, Role.METHOD),
        prices=tuple(Price(repeat=r, steps=n, num_bytes=None, time_s=n * step_s) for r, n in enumerate(steps)),
        ends=tuple(HeldOutEnd(repeat=r, accuracy=1 - loss, loss=loss) for r, loss in enumerate(ends)),
        record_ids=(f"convergence.{name}.r00",),
    )  # fmt: skip


def outcomes(*rows: TargetRow, metric: str = "accuracy", dense: TargetRow | None = None) -> dict[str, Outcome]:
    study = TargetStudy(
        suite="convergence", workload="resnet20-digits", where="4 ranks", evidence="lockstep", num_workers=4,
        metric=metric, target=0.4, rule="", rows=(dense or row("dense"), *rows),
    )  # fmt: skip
    found = STUDY.claims(Evidence(suites=frozenset({"convergence"}), targets=(study,)))
    return {own.claim: own.outcome for own in found}


def test_one_seed_with_another_number_is_not_the_same_number() -> None:
    own = outcomes(row("fusion"))
    assert own[EXACT] is Outcome.MET
    assert own[LATER] is Outcome.NOT_MEASURED
    assert outcomes(row("ordering", ends=[0.5] * 5 + [0.5 + 1e-9]))[EXACT] is Outcome.MISSED
    assert outcomes(row("ordering", ends=[0.5] * 5))[EXACT] is Outcome.MISSED, "a seed that did not end"


def test_half_is_judged_by_what_the_task_is_judged_by() -> None:
    close, far = row("fp16", ends=[0.504] * 6), row("fp16", ends=[0.52] * 6)
    assert outcomes(close)[ACCURATE] is Outcome.MET
    assert outcomes(far)[ACCURATE] is Outcome.MISSED
    assert outcomes(close)[LOSS] is Outcome.NOT_MEASURED
    assert outcomes(close, metric="loss")[LOSS] is Outcome.MET
    assert outcomes(far, metric="loss")[LOSS] is Outcome.MISSED


def test_half_is_not_close_where_seeds_diverge() -> None:
    some, every = row("fp16", ends=[math.inf] * 3 + [0.5] * 6), row("bf16", ends=[math.inf] * 9)
    dense = row("dense", ends=[0.5] * 9)
    assert outcomes(some, metric="loss", dense=dense)[LOSS] is Outcome.UNDECIDED
    assert outcomes(some, every, metric="loss", dense=dense)[LOSS] is Outcome.MISSED


@pytest.mark.parametrize(
    ("steps", "outcome"), [([40] * 6, Outcome.MET), ([36] * 6, Outcome.MISSED), ([math.inf] * 6, Outcome.MET)]
)
def test_later_is_in_steps_and_never_is_latest(steps: Sequence[float], outcome: Outcome) -> None:
    assert outcomes(row("top-k 1 %", steps=steps))[LATER] is outcome
    assert outcomes(row("QSGD 4 bit", steps=steps))[LATER] is Outcome.NOT_MEASURED


def test_seeds_in_which_neither_arrives_say_nothing_of_fewer_elements() -> None:
    never = [math.inf] * 3 + [60] * 6
    own, more = row("gTop-k 1 %", steps=never), row("top-k 1 %", steps=[math.inf] * 3 + [50] * 6)
    assert outcomes(own, more)[FEWER] is Outcome.MET
    assert outcomes(more, row("DGC 0.1 %", steps=[45] * 9))[FEWER] is Outcome.MISSED


def test_a_code_is_worth_it_only_against_the_better_of_float32_and_half() -> None:
    half = row("fp16", steps=[20] * 6)
    assert outcomes(row("QSGD 4 bit", step_s=0.06))[QSGD] is Outcome.MET
    assert outcomes(half, row("QSGD 4 bit", step_s=0.06))[QSGD] is Outcome.MISSED
    assert outcomes(row("top-k 1 %", step_s=0.098))[TOP_K] is Outcome.MISSED, "within the predictor's error"
