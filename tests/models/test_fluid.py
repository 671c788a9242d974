"""Fluid sharing: work is conserved, shares are equal, lingering wastes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.fluid import FluidDevice


def run_all(jobs: dict[int, list[float]], *, host_gap_s: float = 0.0, linger_s: float = 0.002) -> dict[int, float]:
    """When each client ends its pieces of work, all started at 0 with `host_gap_s` between pieces."""
    device = FluidDevice(linger_s=linger_s)
    waiting = dict.fromkeys(jobs, 0.0)
    left = {client: list(pieces) for client, pieces in jobs.items()}
    ended: dict[int, float] = {}
    now_s = 0.0
    while len(ended) < len(jobs):
        for client in [c for c, at_s in waiting.items() if at_s <= now_s]:
            del waiting[client]
            device.submit(client, left[client].pop(0), follows=True, now_s=now_s)
        for client in device.collect_finished(now_s):
            if left[client]:
                waiting[client] = now_s + host_gap_s
            else:
                ended[client] = now_s
        events = [*waiting.values(), *([e] if (e := device.next_event_s()) is not None else [])]
        now_s = max(now_s, min(events, default=now_s))
    return ended


def test_one_client_is_served_at_full_speed() -> None:
    assert run_all({1: [0.1, 0.2]})[1] == pytest.approx(0.3)


def test_two_clients_are_served_at_half_speed() -> None:
    assert run_all({1: [0.1], 2: [0.1]}) == pytest.approx({1: 0.2, 2: 0.2})


def test_the_longer_one_speeds_up_when_the_shorter_leaves() -> None:
    assert run_all({1: [0.1], 2: [0.3]}, linger_s=0.0) == pytest.approx({1: 0.2, 2: 0.4})


def test_the_share_of_a_lingering_client_goes_to_the_others() -> None:
    assert run_all({1: [0.1], 2: [0.3]}, linger_s=0.01) == pytest.approx({1: 0.2, 2: 0.4})


def test_a_host_gap_shorter_than_the_linger_costs_nothing() -> None:
    gapped = run_all({1: [0.01] * 10, 2: [0.01] * 10}, host_gap_s=0.001)
    # The last piece cannot be credited beyond its own gap.
    assert max(gapped.values()) == pytest.approx(0.2, abs=0.0021)


def test_without_following_a_client_starts_afresh() -> None:
    device = FluidDevice(linger_s=1.0)
    device.submit(1, 0.1, follows=False, now_s=0.0)
    assert device.collect_finished(0.1) == [1]
    device.submit(1, 0.1, follows=False, now_s=0.15)
    assert device.next_event_s() == pytest.approx(0.25)


@given(
    st.dictionaries(st.integers(0, 5), st.lists(st.floats(0.001, 0.1), min_size=1, max_size=6), min_size=1, max_size=4),
    st.floats(0.0, 0.003),
)
def test_device_time_is_conserved(jobs: dict[int, list[float]], linger_s: float) -> None:
    """Clients that submit at once keep the device busy until the last ends, whatever the linger."""
    total = sum(map(sum, jobs.values()))
    ended = run_all(jobs, linger_s=linger_s)
    # A credit can only be handed on while someone has work: at most one linger at the end is lost.
    assert total - 1e-6 <= max(ended.values()) <= total + linger_s + 1e-6
    for client, pieces in jobs.items():
        assert ended[client] <= sum(pieces) * len(jobs) + linger_s + 1e-6


def test_work_behind_work_follows_it_at_once_however_late_one_looks() -> None:
    device = FluidDevice(linger_s=0.0)
    for work_s in (0.1, 0.2, 0.3):
        device.submit(1, work_s, follows=False, now_s=0.0)
    assert device.collect_finished(0.15) == [1]
    assert device.next_event_s() == pytest.approx(0.3)
    assert device.collect_finished(0.7) == [1, 1]
    assert device.next_event_s() is None
