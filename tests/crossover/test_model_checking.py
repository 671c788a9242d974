"""The rules keep their promises under any schedule, and the checker finds what breaks them."""

from random import Random

import pytest
from checking import STRATEGIES, Kind, Model, Scenario, drawn, exhaust, model, play, shortened
from checking.__main__ import main

from crossover import tokens
from crossover.errors import Refused
from crossover.policies import Extent, Naive, Sharing, Turns
from crossover.tokens import Token

INVERTED = ((0, 1), (1, 0))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_schedule_breaks_a_promise(strategy: str) -> None:
    for seed in range(100):
        random = Random(f"{strategy} {seed}")
        _, finding = play(drawn(random), random, strategy)
        assert finding is None, f"seed {seed}: {finding}"


def test_drawn_scenarios_contain_every_sharing_and_every_kind_of_trouble() -> None:
    scenarios = [drawn(Random(seed)) for seed in range(300)]
    assert {scenario.sharing for scenario in scenarios} == set(Sharing)
    troubles = ("asides", "skips", "deaths", "restarts", "late", "pauses", "link_turns", "passes_over", "lead_rounds")
    for trouble in troubles:
        assert any(getattr(scenario, trouble) for scenario in scenarios), trouble


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(num_steps=(2, 2)),
        Scenario(num_steps=(2, 2), lead_rounds=1),
        Scenario(num_steps=(3, 1), sharing=Sharing.WEIGHTED, shares=(2, 1)),
        Scenario(num_steps=(2, 2), sharing=Sharing.HOLD),
        Scenario(num_steps=(2, 2), sharing=Sharing.TICK_TOCK),
        Scenario(num_steps=(2, 2), link_turns=True),
        Scenario(num_steps=(2, 2), late=(0,)),
        Scenario(num_steps=(2, 1), late=(0, 1), sharing=Sharing.HOLD),
        Scenario(num_steps=(2, 1), pauses=((0, 1), (1, 0))),
        Scenario(num_steps=(1, 1), late=(0,), pauses=((0, 0), (1, 0)), sharing=Sharing.HOLD),
        Scenario(num_steps=(2, 1), restarts=(1, 0), asides=((0, 1),)),
        Scenario(num_steps=(2, 2), deaths=((0, 0, 0),)),
    ],
    ids=lambda scenario: f"{scenario.sharing}{scenario.num_steps}",
)
def test_all_schedules_of_two_hosts_and_two_jobs_are_good(scenario: Scenario) -> None:
    coverage = exhaust(scenario)
    print(f"{coverage.num_states} states, {coverage.num_events} events")
    assert coverage.finding is None, coverage.finding
    assert coverage.num_states > 1000


@pytest.mark.parametrize("lead_rounds", [0, 1])
def test_holding_through_communication_in_opposite_orders_deadlocks_and_is_named(lead_rounds: int) -> None:
    sharing = Sharing.HOLD if not lead_rounds else Sharing.CROSSOVER
    scenario = Scenario(
        num_steps=(2, 2), sharing=sharing, lead_rounds=lead_rounds, extent=Extent.MESSAGES, orders=INVERTED
    )
    finding = exhaust(scenario).finding
    assert finding is not None
    assert finding.reason.startswith("deadlock: host 0: a holds its turn until its messages arrive")
    assert "host 1: a waits for its turn; host 1: b holds its turn" in finding.reason
    assert len(finding.trace) == 14  # four times: join, batch, ask; two computations


@pytest.mark.parametrize("lead_rounds", [0, 1])
def test_releasing_before_communication_bears_opposite_orders(lead_rounds: int) -> None:
    assert exhaust(Scenario(num_steps=(2, 2), lead_rounds=lead_rounds, orders=INVERTED)).finding is None


def test_holding_through_communication_must_not_let_a_late_job_be_passed() -> None:
    scenario = Scenario(num_steps=(2, 2), lead_rounds=1, extent=Extent.MESSAGES)
    finding = exhaust(scenario).finding
    assert finding is not None
    assert finding.reason.startswith("deadlock")
    assert exhaust(Scenario(num_steps=(2, 2), extent=Extent.MESSAGES)).finding is None


def test_random_schedules_find_the_deadlock_and_it_is_shortened() -> None:
    scenario = Scenario(num_steps=(3, 3), sharing=Sharing.HOLD, orders=INVERTED)
    findings = [finding for seed in range(50) if (finding := play(scenario, Random(seed))[1]) is not None]
    assert findings
    longest = max(findings, key=lambda finding: len(finding.trace))
    assert len(shortened(longest).trace) == 14
    assert shortened(longest, max_states=10) == longest


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(num_steps=(2, 2), link_turns=True, orders=INVERTED),
        Scenario(num_steps=(2, 2), sharing=Sharing.EXCLUSIVE, orders=INVERTED),
        Scenario(num_steps=(2, 2, 2), sharing=Sharing.SLOT_BARRIER, orders=((0, 1, 2), (2, 1, 0))),
    ],
    ids=["link turns", "exclusive", "slot barrier of three"],
)
def test_what_waits_for_messages_before_a_turn_ends_or_begins_needs_one_order(scenario: Scenario) -> None:
    findings = (play(scenario, Random(seed), "inverted arrivals")[1] for seed in range(300))
    finding = next((finding for finding in findings if finding is not None), None)
    assert finding is not None
    assert finding.reason.startswith("deadlock")


def test_workers_that_come_late_without_agreeing_on_a_round_count_differently() -> None:
    finding = exhaust(Scenario(num_steps=(2, 2), late=(0,), agrees=False)).finding
    assert finding is not None
    assert "is its round 1 on host 1 and 0 elsewhere" in finding.reason


@pytest.mark.parametrize("agrees", [True, False])
def test_jobs_that_come_back_under_hold_wait_for_each_other_unless_they_agree_on_a_round(
    monkeypatch: pytest.MonkeyPatch, agrees: bool
) -> None:
    # rounds are not compared, which would end the search before the deadlock
    monkeypatch.setattr(model, "turn_begun", lambda scenario, world, host, grant: world)
    finding = exhaust(Scenario(num_steps=(2, 2), late=(0, 1), agrees=agrees, sharing=Sharing.HOLD)).finding
    assert (finding is None) is agrees, finding
    assert finding is None or finding.reason.startswith("deadlock")


def test_nobody_may_be_passed_over_under_hold() -> None:
    scenario = Scenario(num_steps=(2, 2), sharing=Sharing.HOLD, passes_over=True)
    finding = exhaust(scenario).finding
    assert finding is not None
    assert finding.reason.startswith("deadlock")
    assert all(scenario.settings(host).passes_over_after_s is None for host in (0, 1))


def first_waiting(policy: Turns, token: Token, now_s: float) -> str | None:
    """Whoever waits, in the order of seats: a rule without turns."""
    return None if token.holders else Naive().choose(token, now_s)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [(Naive.choose, "gets the token of host 0 that"), (first_waiting, "comes after b's later one")],
    ids=["lends twice", "knows no turns"],
)
def test_a_broken_rule_is_found(monkeypatch: pytest.MonkeyPatch, broken: object, reason: str) -> None:
    monkeypatch.setattr(Turns, "choose", broken)
    finding = exhaust(Scenario(num_steps=(2, 2))).finding
    assert finding is not None
    assert reason in finding.reason


def test_an_arbiter_that_begins_its_leases_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    join = tokens.join
    monkeypatch.setattr(tokens, "join", lambda token, job, first_round=0, _=0: join(token, job, first_round))
    finding = exhaust(Scenario(num_steps=(2, 2), num_hosts=1, restarts=(1,))).finding
    assert finding is not None
    assert "is not younger" in finding.reason


def test_a_trace_leads_to_what_was_found() -> None:
    finding = exhaust(Scenario(num_steps=(1, 1), sharing=Sharing.HOLD, orders=INVERTED)).finding
    assert finding is not None
    model = Model(finding.scenario)
    world = model.start()
    for event in finding.trace:
        assert event in model.enabled(world)
        world = model.after(world, event)
    assert not model.enabled(world)
    assert not world.is_over
    assert "host 0: a joins" in str(finding)
    assert finding.trace[0].kind is Kind.JOIN


def test_the_command_prints_a_table_and_the_number_of_states(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schedules", "40", "--seed", "7", "--rounds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["sharing", "schedules", "events", "violations"]
    assert lines[len(Sharing) + 1].split()[:2] == ["all", "40"]
    assert "2 hosts, 2 jobs, 1 rounds" in lines[-1]


def test_impossible_scenarios_are_refused() -> None:
    with pytest.raises(Refused, match="at least 1 step"):
        Scenario(num_steps=(0,))
    with pytest.raises(Refused, match="an order of all jobs"):
        Scenario(num_steps=(1, 1), orders=((0, 1),))
    with pytest.raises(Refused, match="choose one"):
        Scenario(num_steps=(1, 1), link_turns=True, restarts=(1, 1))
    with pytest.raises(Refused, match="smaller"):
        exhaust(Scenario(num_steps=(2, 2)), max_states=100)
