from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_jobs import job, times_s

from crossover import Refused
from crossover.planning import Terms, best_pairs, groups_of, interleave, muri_groups, pair, place, stages_of
from crossover.simulator import LinkSharing
from crossover.theory import JobCost

Pairs = tuple[tuple[int, int], ...]
FREE = Terms(link=LinkSharing.FIFO, handover_s=0)


def matchings(jobs: tuple[int, ...]) -> Iterator[Pairs]:
    """All ways to pair some of the jobs."""
    if len(jobs) < 2:
        yield ()
        return
    first, *rest = jobs
    yield from matchings(tuple(rest))
    for partner in rest:
        for others in matchings(tuple(other for other in rest if other != partner)):
            yield ((first, partner), *others)


@st.composite
def weighted(draw: st.DrawFn) -> tuple[int, dict[tuple[int, int], float]]:
    num_jobs = draw(st.integers(1, 7))
    pairs = [(i, j) for i in range(num_jobs) for j in range(i + 1, num_jobs)]
    return num_jobs, {pair: draw(st.integers(-20, 100)) / 100 for pair in pairs if draw(st.booleans())}


@given(weighted(), st.integers(0, 3))
@settings(max_examples=150, deadline=None)  # the first one imports networkx
def test_pairs_are_as_good_as_any(problem: tuple[int, dict[tuple[int, int], float]], most: int) -> None:
    num_jobs, weights = problem
    found = best_pairs(num_jobs, weights, most)
    assert len(found) <= most
    assert len({job for pair in found for job in pair}) == 2 * len(found)
    allowed = (chosen for chosen in matchings(tuple(range(num_jobs))) if len(chosen) <= most)
    best = max(sum(weights.get(pair, -1.0) for pair in chosen) for chosen in allowed)
    assert sum(weights[pair] for pair in found) == pytest.approx(best)


@given(weighted(), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_a_placement_is_as_good_as_any(problem: tuple[int, dict[tuple[int, int], float]], num_devices: int) -> None:
    num_jobs, weights = problem
    placed = place(num_jobs, lambda i, j: 1 + weights[i, j] if (i, j) in weights else None, num_devices)
    seated = [job for device in placed.devices for job in device]
    assert sorted([*seated, *placed.waiting]) == list(range(num_jobs))
    assert len(placed.devices) <= num_devices
    assert not placed.waiting or len(placed.devices) == num_devices
    best = max(
        min(num_devices, num_jobs - len(chosen)) + sum(weights.get(pair, -1.0) for pair in chosen)
        for chosen in matchings(tuple(range(num_jobs)))
        if len(chosen) <= num_devices
    )
    assert placed.throughput == pytest.approx(best)


def test_greedy_pairs_would_be_worse() -> None:
    assert best_pairs(4, {(1, 2): 0.9, (0, 1): 0.6, (2, 3): 0.6}) == ((0, 1), (2, 3))


def test_jobs_share_only_where_devices_are_short() -> None:
    gain = {(0, 1): 1.5, (0, 2): 1.2, (1, 2): 1.4}
    assert place(3, lambda i, j: gain[i, j], 3).devices == ((0,), (1,), (2,))
    assert place(3, lambda i, j: gain[i, j], 2).devices == ((0, 1), (2,))
    assert place(3, lambda i, j: gain[i, j], 1).waiting == (2,)
    assert place(3, lambda i, j: gain[i, j]).devices == ((0, 1), (2,))
    with pytest.raises(Refused, match="0 devices"):
        place(3, lambda i, j: 2.0, 0)


def test_complementary_jobs_are_paired_and_what_gains_nothing_stays_alone() -> None:
    computing = job("computing", 0.9, 0.1, 0.9)
    sending = job("sending", 0.1, 0.9, 1.0)
    busy = job("busy", 1.0, 0.01, 1.0)
    found = pair([busy, computing, sending], terms=FREE)
    assert found.devices == (("busy",), ("computing", "sending"))
    assert found.plans[0] is None
    assert found.plans[1] is not None
    assert found.throughput == pytest.approx(1 + found.plans[1].gain)


def test_a_pair_that_does_not_fit_into_memory_or_has_other_workers_is_none() -> None:
    first, second = (job(name, 0.5, 0.5, activations_bytes=10, parameters_bytes=60) for name in "ab")
    assert pair([first, second], 1, FREE).devices == (("a", "b"),)
    assert pair([first, second], 1, FREE, device_memory_bytes=100).waiting == ("b",)
    apart = [job("a", 0.5, 0.5, world=2), job("b", 0.5, 0.5, world=4)]
    assert pair(apart, 1, FREE).waiting == ("b",)


# Muri's published stage times in milliseconds: (device, network) at 8 and 32 GPUs.
BERT_8, GPT2_8, VGG_8, VGG_32 = (167, 59), (419, 49), (75, 66), (67, 131)


def test_muris_published_jobs_interleave_as_by_hand() -> None:
    """Slots: 167 beside VGG's 66 of network, then 75 beside BERT's 59."""
    found = interleave([BERT_8, VGG_8])
    assert found.period_s == 167 + 75
    assert found.efficiency == pytest.approx((167 + 59 + 75 + 66) / (2 * 242))
    assert sorted(found.offsets) == [0, 1]


def test_muri_groups_its_published_jobs_by_efficiency() -> None:
    assert muri_groups([BERT_8, GPT2_8, VGG_8]) == ((0, 2), (1,))
    assert muri_groups([BERT_8, GPT2_8, VGG_8, VGG_32]) == ((0, 3), (1, 2))


def test_three_resources_hold_three_jobs() -> None:
    vgg = (82, 75, 66)
    found = interleave([vgg] * 3)
    assert found.period_s == 3 * 82
    assert found.efficiency == pytest.approx(sum(vgg) / (3 * 82))
    assert muri_groups([vgg] * 3) == ((0, 1, 2),)
    assert muri_groups([vgg] * 4) in (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)))


def test_muri_counts_the_input_stage_where_profiles_have_it() -> None:
    plain = job("a", 0.2, 0.1)
    loading = job("b", 0.1, 0.1, 0.3)
    assert stages_of([plain, loading]) == [(0.2, 0.1), (0.1, 0.1)]
    fed = type(loading)(name="c", compute_s=0.1, communication_s=0.1, solo_s=0.3, loading_s=0.05)
    assert stages_of([plain, fed]) == [(0.0, 0.2, 0.1), (0.05, 0.1, 0.1)]


def test_muri_leaves_jobs_alone_that_gain_nothing() -> None:
    assert groups_of([JobCost(1, 0, 1)] * 2) == ((0,), (1,))
    assert groups_of([JobCost(1, 1, 2)] * 3) in (((0, 1), (2,)), ((0, 2), (1,)), ((0,), (1, 2)))


def test_more_jobs_than_resources_do_not_interleave() -> None:
    with pytest.raises(Refused, match="1 to 2 jobs"):
        interleave([VGG_8] * 3)


@given(st.lists(st.tuples(times_s, times_s, times_s), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_muri_groups_are_a_partition_and_gain(jobs: list[tuple[float, float, float]]) -> None:
    groups = muri_groups(jobs)
    assert sorted(job for group in groups for job in group) == list(range(len(jobs)))
    for group in groups:
        found = interleave([jobs[job] for job in group])
        assert 0 < found.efficiency <= 1 + 1e-9
        assert found.period_s <= sum(sum(jobs[job]) for job in group) * (1 + 1e-9)
