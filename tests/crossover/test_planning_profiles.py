from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_jobs import costs, job

from crossover import JobCost, Refused
from crossover.planning import JobProfile, profile_of, read_profile, write_profile
from crossover.planning.profiles import shape_of

PROFILE = JobProfile(
    name="net",
    compute_s=0.2,
    communication_s=0.15,
    solo_s=0.3,
    buckets=((0.1, 0.05), (0.2, 0.1)),
    forward_s=0.07,
    loading_s=0.01,
    parameters_bytes=100,
    gradients_bytes=100,
    optimizer_bytes=200,
    activations_bytes=1000,
    world=8,
    source="by hand",
)


def test_a_profile_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "net.json"
    write_profile(PROFILE, path)
    assert read_profile(path) == PROFILE
    assert [entry.name for entry in path.parent.iterdir()] == ["net.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema"),
        ({"colour": 1}, "colour"),
        ({"compute_s": "0.2"}, "compute_s"),
        ({"compute_s": True}, "compute_s"),
        ({"compute_s": -1}, "compute_s"),
        ({"compute_s": float("nan")}, "compute_s"),
        ({"solo_s": 0.1}, "solo_s"),
        ({"solo_s": 0.4}, "solo_s"),
        ({"forward_s": 0.21}, "forward_s"),
        ({"buckets": [[0.1, 0.05]]}, "communication_s"),
        ({"buckets": [[0.1, 0.05, 1]]}, "ready_s, link_s"),
        ({"buckets": {}}, "ready_s, link_s"),
        ({"world": 0}, "world"),
        ({"world": 1.5}, "world"),
        ({"activations_bytes": -1}, "activations_bytes"),
        ({"parameters_bytes": 10**400}, "parameters_bytes"),
        ({"compute_s": 10**400}, "compute_s"),
        ({"name": ""}, "job"),
        ({"name": None}, "name"),
        ({"source": 3}, "source"),
        ({"exposed_only": 0}, "exposed_only"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(json.dumps(json.loads(PROFILE.to_json()) | change))
    with pytest.raises(Refused, match=message) as refused:
        read_profile(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 50_000, b" " * (1 << 20) + b"{}", b'{"schema": 1}']
)
def test_what_is_no_profile_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_bytes(data)
    with pytest.raises(Refused, match=r"net\.json is not a profile"):
        read_profile(path)


def test_a_missing_file_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="crossover run --profile"):
        read_profile(tmp_path / "none.json")


def test_measured_times_become_medians() -> None:
    profile = profile_of(
        "net",
        turns_s=[0.2, 0.21, 0.9],
        steps_s=[0.3, 0.31, 1.0],
        messages_s=[0.15, 0.16, 0.17],
        forwards_s=[0.07, 0.08, 0.09],
        world=4,
        memory={"parameters_bytes": 5},
        source="2 hosts",
    )
    assert profile == JobProfile(
        name="net",
        compute_s=0.21,
        communication_s=0.16,
        solo_s=0.31,
        forward_s=0.08,
        parameters_bytes=5,
        world=4,
        source="2 hosts; medians of 3 steps",
    )


def test_without_times_of_messages_only_the_exposed_part_is_known_and_said() -> None:
    profile = profile_of("net", turns_s=[0.2] * 3, steps_s=[0.3] * 3)
    assert profile.communication_s == pytest.approx(0.1)
    assert profile.exposed_only


def test_a_turn_that_noise_makes_longer_than_its_step_raises_the_step() -> None:
    assert profile_of("net", turns_s=[0.101] * 3, steps_s=[0.1] * 3).solo_s == 0.101
    with pytest.raises(Refused, match="cannot hold"):
        profile_of("net", turns_s=[0.2] * 3, steps_s=[0.1] * 3)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(Refused, match="2 steps measured"):
        profile_of("net", turns_s=[0.1] * 3, steps_s=[0.1] * 2)


@given(costs())
def test_a_shape_made_of_costs_costs_that(cost: JobCost) -> None:
    made = shape_of(cost).cost()
    assert made.compute_s == cost.compute_s
    assert made.communication_s == pytest.approx(cost.communication_s)
    assert made.solo_s == pytest.approx(cost.solo_s)


@given(costs(), st.floats(0.001, 1))
def test_time_that_nobody_accounts_for_is_counted_as_the_links(cost: JobCost, latency_s: float) -> None:
    slow = JobCost(cost.compute_s, cost.communication_s, cost.compute_s + cost.communication_s + latency_s)
    made = shape_of(slow).cost()
    assert made.solo_s == pytest.approx(slow.solo_s)
    assert made.communication_s == pytest.approx(cost.communication_s + latency_s)


def test_what_stays_between_turns_is_everything_but_activations() -> None:
    assert PROFILE.state_bytes == 400
    assert job("a", 0.1, 0.2).exposed_s == pytest.approx(0.2)
