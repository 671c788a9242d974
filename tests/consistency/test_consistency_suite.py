"""The suite asks every policy on every cluster, with equal seeds, and its claims judge pairs of them."""

from analysis.claims import Outcome
from analysis.study import Evidence
from analysis.targets.rows import Price, TargetRow, TargetStudy
from baselines.strategy import parse_strategy
from harness.checks.trial import check
from suites.api import Options
from suites.consistency.grid import CLUSTERS, POLICIES, REPEATS, SUITE
from suites.consistency.study import STUDY


def test_every_policy_meets_every_cluster_with_the_same_seeds() -> None:
    trials = [trial for trial in SUITE.grid(Options()) if trial.jobs]
    assert len(trials) == len(CLUSTERS) * len(POLICIES) * REPEATS
    assert len({trial.seed for trial in trials}) == REPEATS
    for trial in trials[: len(CLUSTERS) * len(POLICIES)]:
        check(trial)


def test_other_workers_and_policies_can_be_asked_for() -> None:
    trials = SUITE.grid(Options(num_hosts=8, strategies=("ssp(staleness=8)",), repeats=2))
    assert {trial.cluster.num_workers for trial in trials if trial.cluster} == {8}
    assert len(trials) == 2 * len(CLUSTERS)


def test_another_rate_is_that_of_the_servers_link() -> None:
    trials = [trial for trial in SUITE.grid(Options(rate_bps=1e8, rate_given=True)) if trial.cluster]
    assert {trial.cluster.beta_s_per_byte for trial in trials if trial.cluster} == {8 / 1e8}
    assert {trial.fabric.rate_bps for trial in trials} == {1e8}
    unshaped = SUITE.grid(Options(rate_bps=None, rate_given=True))[0]
    assert unshaped.cluster is not None
    assert unshaped.cluster.beta_s_per_byte == 0.0


def test_one_step_can_be_asked_for() -> None:
    check(SUITE.grid(Options(num_steps=1))[0])


def row(strategy: str, times_s: list[float], *, dense: bool = False) -> TargetRow:
    assert parse_strategy(strategy)
    return TargetRow(
        name=strategy,
        strategy=strategy,
        optimizer="sgd",
        final=None,
        final_accuracy=None,
        final_loss=None,
        prices=tuple(Price(repeat=r, steps=10, num_bytes=None, time_s=time_s) for r, time_s in enumerate(times_s)),
        course=None,
        clock="virtual",
        is_dense=dense,
    )


def evidence(own_s: list[float], strategy: str = "ssp(staleness=3)") -> Evidence:
    rows = (row("bsp", [10.0] * len(own_s), dense=True), row(strategy, own_s))
    study = TargetStudy(
        suite="consistency", workload="w", where="4 ranks, straggler", evidence="lockstep", num_workers=4,
        metric="accuracy", target=0.9, rule="", rows=rows,
    )  # fmt: skip
    return Evidence(suites=frozenset({"consistency"}), targets=(study,))


def test_a_claim_is_met_only_where_the_whole_interval_lies_above_one() -> None:
    sooner, later, mixed, few = [8.0] * 8, [12.0] * 8, [8.0, 12.0] * 4, [8.0] * 5
    outcomes = [next(iter(STUDY.claims(evidence(own)))).outcome for own in (sooner, later, mixed, few)]
    assert outcomes == [Outcome.MET, Outcome.MISSED, Outcome.UNDECIDED, Outcome.UNDECIDED]


def test_ssp_is_not_judged_by_runs_that_compress_too() -> None:
    found = list(STUDY.claims(evidence([8.0] * 8, "ssp(staleness=3)+topk(density=0.01)+error-feedback")))
    assert not found[0].cells


def test_other_suites_are_not_judged() -> None:
    assert list(STUDY.claims(Evidence(suites=frozenset({"quick"})))) == []
