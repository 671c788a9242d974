"""The limit that no turns can pass, beside T*, which a link in other hands can."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_sharing import Group, Work, record

from analysis.sharing.limits import fifo_share, limit_share, without_impossible
from analysis.sharing.rows import AT_ONCE, CROSSOVER
from crossover import Sharing
from results.record import JobCosts, Prediction, RankTimes, Record, Status
from suites.reports import summary_of

RATE_BPS = 200e6
GROUP = Group(name="heterogeneous", work=(Work(), Work("vgg16-replay", 0.05, 0.18)))


def one(policy: str, steps_s: tuple[float, ...], *, costs: tuple[JobCosts, ...] = (), messages: float = 4.0,
        wire_s: tuple[float, ...] = (0.02, 0.03)) -> Record:  # fmt: skip
    """A record whose jobs take these steps, with as many bytes as the line carries in `wire_s`."""
    made = record(GROUP, policy, 0, np.random.default_rng(1))
    jobs = tuple(
        replace(
            job,
            ranks=(RankTimes(rank=0, warmup_s=(), steps_s=(step_s,) * 4),),
            num_messages=messages,
            wire_bytes={"gradient": size_s * RATE_BPS / 8},
            costs=costs[place] if costs else None,
            start_s=0.0,
            end_s=0.0,
        )
        for place, (job, step_s, size_s) in enumerate(zip(made.jobs, steps_s, wire_s, strict=True))
    )
    return replace(made, jobs=jobs)


COSTS = (
    JobCosts(compute_s=0.04, communication_s=0.025, solo_s=0.06),
    JobCosts(compute_s=0.05, communication_s=0.05, solo_s=0.09),
)
SOLO = one("exclusive", (0.06, 0.09), costs=COSTS)


def test_the_share_is_the_busiest_resource_s() -> None:
    assert limit_share(SOLO, one(CROSSOVER, (0.1, 0.1))) == pytest.approx(0.09 / 0.1)
    link = one(CROSSOVER, (0.1, 0.1), wire_s=(0.05, 0.045))
    assert limit_share(SOLO, link) == pytest.approx(0.095 / 0.1)
    chain = one(CROSSOVER, (0.5, 0.09), messages=1.0)
    assert limit_share(SOLO, chain) == pytest.approx((0.05 + 0.03) / 0.09)
    assert fifo_share(SOLO, one(CROSSOVER, (0.1, 0.1))) == pytest.approx(0.09 / 0.1)


def test_a_paced_link_is_held_by_payload_and_starts_and_carries_no_framing() -> None:
    here = one(CROSSOVER, (0.1, 0.1), wire_s=(0.04, 0.045))
    framed = tuple(
        replace(job, wire_bytes={**job.wire_bytes, "framing": 0.01 * RATE_BPS / 8}, num_rounds=7.0) for job in here.jobs
    )
    there = replace(here.fabric, alpha_s=14e-3, num_hosts=1, num_virtual=7)  # 14 rounds of 1 ms among 8 ranks
    paced = replace(here, jobs=framed, fabric=replace(there, kind="paced"))
    sockets = replace(here, jobs=framed, fabric=replace(there, kind="emulated"))
    assert limit_share(SOLO, paced) == pytest.approx((0.04 + 0.045 + 2 * 0.007) / 0.1)
    assert limit_share(SOLO, sockets) == pytest.approx((0.05 + 0.055) / 0.1)


def test_t_star_can_be_passed_where_the_limit_is_not() -> None:
    slow_start = tuple(replace(cost, communication_s=2 * cost.communication_s) for cost in COSTS)
    solo = one("exclusive", (0.06, 0.09), costs=slow_start)
    here = one("crossover/fair", (0.1, 0.1))
    fifo, limit = fifo_share(solo, here), limit_share(solo, here)
    assert fifo is not None
    assert limit is not None
    assert limit < 1 < fifo


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(1.0, 3.0)), min_size=2, max_size=2),
    st.booleans(),
)
def test_jobs_that_keep_to_device_link_and_their_own_chains_never_pass_it(
    jobs: list[tuple[float, float, float]], one_message: bool
) -> None:
    """Rates that any policy may give, as long as no resource is in use for more than all of the time."""
    costs = tuple(JobCosts(compute_s=c, communication_s=2 * w, solo_s=c + 2 * w) for c, w, _ in jobs)
    chains = [c + (w if one_message else 0.0) for c, w, _ in jobs]
    slowest = [max(chain, c, w) * factor for chain, (c, w, factor) in zip(chains, jobs, strict=True)]
    use = max(sum(job[kind] / t for job, t in zip(jobs, slowest, strict=True)) for kind in (0, 1))
    steps = tuple(t * max(1.0, use) for t in slowest)
    solo = one("exclusive", tuple(cost.solo_s for cost in costs), costs=costs)
    here = one(CROSSOVER, steps, messages=1.0 if one_message else 4.0, wire_s=tuple(w for _, w, _ in jobs))
    share = limit_share(solo, here)
    assert share is not None
    assert share <= 1 + 1e-9


def test_a_gain_above_the_limit_is_invalid_is_listed_and_does_not_count() -> None:
    fast = one(CROSSOVER, (0.08, 0.08))  # the device would have to work 90 of 80 ms
    kept, judged = without_impossible([SOLO, fast])
    assert (kept.status, judged.status) == (Status.OK, Status.INVALID)
    found = summary_of([SOLO, fast])
    assert found.pairs[0].row(CROSSOVER) is None
    assert [(row.status, "hard limit" in row.reason) for row in found.outcomes] == [(Status.INVALID, True)]


def test_a_run_is_held_against_its_own_costs_and_not_those_of_another_read_beside_it() -> None:
    later = replace(SOLO.environment, started_at="2027-07-21T08:00:00")
    twice = tuple(JobCosts(compute_s=2 * c.compute_s, communication_s=0.05, solo_s=2 * c.solo_s) for c in COSTS)
    slow = [one("exclusive", (0.12, 0.18), costs=twice), one(CROSSOVER, (0.2, 0.2))]
    found = summary_of([SOLO, one(CROSSOVER, (0.1, 0.1)), *(replace(record, environment=later) for record in slow)])
    assert found.outcomes == ()
    (pair,) = found.pairs
    row = pair.row(CROSSOVER)
    assert row is not None
    assert [paired.limit_share for paired in row.paired] == pytest.approx([0.9, 0.9])


def test_t_star_is_of_the_exclusive_trial_that_counts_and_not_of_an_attempt_before_it() -> None:
    before = Prediction(source="of an invalid attempt", period_s=9.0, gain=9.0)
    (pair,) = summary_of([SOLO, replace(one(CROSSOVER, (0.1, 0.1)), prediction=before)]).pairs
    row = pair.row(CROSSOVER)
    assert row is not None
    assert row.bound is not None
    assert row.period_s is not None
    assert (row.bound.median, row.period_s.median) == pytest.approx((0.15 / 0.09, 0.09))
    assert row.prediction_source != before.source


@pytest.mark.parametrize("policy", ["naive", "cassini", "tick-tock"])
def test_jobs_that_compute_at_once_are_bound_by_link_and_chains_alone(policy: str) -> None:
    """What a turn takes holds the host's work, which they overlap."""
    fast = one(policy, (0.08, 0.08))
    assert without_impossible([SOLO, fast])[1].status is Status.OK
    share, in_turns = limit_share(SOLO, fast), limit_share(SOLO, one(CROSSOVER, (0.08, 0.08)))
    assert share is not None
    assert in_turns is not None
    assert share < 1 < in_turns
    assert without_impossible([SOLO, one(policy, (0.01, 0.01))])[1].status is Status.INVALID


def test_the_names_of_those_that_compute_at_once_are_the_schedulers() -> None:
    """Analysis reads records alone, so it has them as words."""
    assert {policy.value for policy in Sharing if policy.computes_at_once} == AT_ONCE


def test_without_costs_there_is_no_limit() -> None:
    bare = one("exclusive", (0.06, 0.09))
    assert limit_share(bare, one(CROSSOVER, (0.01, 0.01))) is None
    assert without_impossible([bare, one(CROSSOVER, (0.01, 0.01))])[1].status is Status.OK


def test_rows_hold_both_and_the_gain_that_the_limit_allows() -> None:
    (pair,) = summary_of([SOLO, one(CROSSOVER, (0.1, 0.1))]).pairs
    row = pair.row(CROSSOVER)
    assert row is not None
    assert row.throughput is not None
    assert row.limit is not None
    assert row.limit_share is not None
    assert row.limit.median == pytest.approx(row.throughput.median / row.limit_share.median)
