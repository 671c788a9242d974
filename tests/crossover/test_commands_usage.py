"""The sums, rates and profiles that the commands make of an arbiter's statuses: pure values."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.commands.profiling import measured_steps, phase_starts, profile_from
from crossover.commands.sockets import settle_socket
from crossover.commands.texts import aligned, clock, milliseconds, percent, seconds
from crossover.commands.top import bar
from crossover.commands.usage import Ledger, Use, is_idle, rates
from crossover.errors import Refused
from crossover.protocol import Resource
from crossover.settings import Settings
from crossover.status import HostStatus, SeatStatus, TokenStatus
from crossover.tokens import Phase

SETTINGS = Settings(jobs=("a", "b"))


def seat(job: str, num_turns: int, held_s: float, waited_s: float = 0.0, phase: Phase = Phase.IDLE) -> SeatStatus:
    return SeatStatus(job, phase, num_turns, num_turns, held_s, waited_s, since_s=0.0, pid=1)


def host(uptime_s: float, *seats: SeatStatus, pid: int = 1) -> HostStatus:
    device = TokenStatus("device 0", Resource.DEVICE, "0", True, 1, seats)
    return HostStatus(pid, uptime_s, SETTINGS, (device, replace(device, name="link 0", resource=Resource.LINK)))


def test_sums_go_on_over_a_replaced_arbiter_and_links_do_not_count() -> None:
    ledger = Ledger()
    ledger.observe(host(1.0, seat("a", 0, 0.0), seat("b", 0, 0.0)))
    ledger.observe(host(2.0, seat("a", 4, 0.5), seat("b", 4, 0.25, 0.5)))
    ledger.observe(host(0.5, seat("a", 1, 0.25), seat("b", 0, 0.0, 0.25), pid=2))
    assert ledger.of_job("a") == Use(5, 0.75, 0.0)
    assert ledger.of_job("b") == Use(4, 0.25, 0.75)
    assert ledger.of_job("nobody") == Use()


def test_what_was_there_before_does_not_count() -> None:
    ledger = Ledger(host(5.0, seat("a", 100, 3.0), seat("b", 100, 3.0)))
    assert ledger.of_job("a") == Use()
    ledger.observe(host(6.0, seat("a", 104, 3.5), seat("b", 100, 3.0)))
    assert ledger.of_job("a") == Use(4, 0.5, 0.0)


def test_busy_is_taken_from_the_first_turn_to_the_last() -> None:
    ledger = Ledger()
    for uptime_s, turns, held_s in ((1.0, 0, 0.0), (10.0, 1, 0.5), (12.0, 4, 2.0), (60.0, 4, 2.0)):
        ledger.observe(host(uptime_s, seat("a", turns, held_s), seat("b", 0, 0.0)))
    assert ledger.busy() == {"device 0": pytest.approx(1.5 / 2.0)}
    assert Ledger().busy() == {}


def test_several_devices_of_a_job_are_one_job() -> None:
    one = host(1.0, seat("a", 4, 1.0, 0.5), seat("b", 0, 0.0))
    other = replace(one.tokens[0], name="device 1", seats=(seat("a", 5, 2.0, 1.5), seat("b", 0, 0.0)))
    ledger = Ledger()
    ledger.observe(replace(one, tokens=(one.tokens[0], other)))
    assert ledger.of_job("a") == Use(5, 1.5, 1.0)


def test_rates_are_of_the_time_between_or_since_the_beginning() -> None:
    before, after = host(10.0, seat("a", 10, 1.0, 1.0)), host(12.0, seat("a", 14, 2.0, 1.5))
    (device, _) = rates(before, after)
    (job,) = device.jobs
    assert (job.turns_per_s, job.held, job.waited, job.turn_s) == (2.0, 0.5, 0.25, 0.25)
    (device, _) = rates(replace(before, pid=7), after)
    assert device.jobs[0].held == pytest.approx(2.0 / 12.0)


def test_gain_is_what_the_turns_would_have_taken_alone() -> None:
    (device, _) = rates(
        host(1.0, seat("a", 0, 0.0), seat("b", 0, 0.0)), host(2.0, seat("a", 20, 0.4), seat("b", 20, 0.6))
    )
    assert device.busy == pytest.approx(1.0)
    assert device.gain({"a": 0.04, "b": 0.04}) == pytest.approx(1.6)
    assert device.gain({"a": 0.04}) is None


def test_only_a_host_where_nobody_sits_is_idle() -> None:
    gone, absent = (seat("a", 1, 1.0, phase=phase) for phase in (Phase.LEFT, Phase.ABSENT))
    assert is_idle(host(1.0, gone, absent))
    assert not is_idle(host(1.0, gone, seat("b", 0, 0.0, phase=Phase.WAITING)))


@given(
    compute_s=st.floats(0.001, 1.0),
    rest_s=st.floats(0.001, 1.0),
    looks_s=st.lists(st.floats(0.0, 1.0), min_size=30, max_size=60),
)
def test_a_steady_job_is_profiled_exactly_whenever_it_is_looked_at(
    compute_s: float, rest_s: float, looks_s: list[float]
) -> None:
    step_s = compute_s + rest_s
    starts = []
    for index, part in enumerate(looks_s):
        at_s = (2 * index + part) * step_s
        num_turns, inside_s = math.floor(at_s / step_s), at_s % step_s
        holding = inside_s < compute_s
        status = SeatStatus(
            job="a",
            phase=Phase.HOLDING if holding else Phase.IDLE,
            next_round=0,
            num_turns=num_turns + (not holding),
            held_s=num_turns * compute_s + min(inside_s, compute_s),
            waited_s=0.0,
            since_s=inside_s if holding else inside_s - compute_s,
            pid=1,
        )
        starts += phase_starts(host(at_s, status), "a")
    assert measured_steps(starts)
    profile = profile_from("a", starts)
    assert profile.compute_s == pytest.approx(compute_s, rel=1e-3)
    assert profile.solo_s == pytest.approx(step_s, rel=1e-3)
    assert profile.exposed_s == pytest.approx(rest_s, rel=2e-2, abs=1e-3 * step_s)


def test_a_job_that_was_never_seen_has_no_profile() -> None:
    with pytest.raises(Refused, match="took too few turns"):
        profile_from("a", [])


def test_a_free_socket_is_settled_at_once(tmp_path: object) -> None:
    told: list[str] = []
    assert settle_socket(f"{tmp_path}/nobody.sock", SETTINGS, told.append) is None
    assert told == []


def test_numbers_are_short_and_columns_aligned() -> None:
    assert [percent(part) for part in (0, 0.0123, 0.5, 1.0)] == ["0 %", "1.2 %", "50 %", "100 %"]
    assert [milliseconds(0.04521), milliseconds(None)] == ["45.2 ms", "–"]
    assert [seconds(12.34), seconds(3723)] == ["12.3 s", "1:02:03"]
    assert [clock(5), clock(125), clock(3725)] == ["0:05", "2:05", "1:02:05"]
    assert aligned([("job", "n"), ("resnet", "10")]) == ["job      n", "resnet  10"]
    assert [bar(part) for part in (0, 0.5, 1.7)] == ["░" * 10, "█" * 5 + "░" * 5, "█" * 10]
