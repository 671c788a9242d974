"""What must hold, checked with every event of a schedule:

- one holder a host, where the sharing takes turns, also across a replacement of the arbiter;
- the same step has the same round on every host, and turns go in the order of (pass, seat), which together mean the
  same order on all hosts; a late job may be passed by `lead_rounds`;
- nobody waits for its turn while another one has more than `Scenario.most_passed`;
- a lease is younger than all that live workers of the host have had;
- something can happen until all have left.
"""

from checking.scenario import ORDERED, Scenario, name, number
from checking.world import GONE, HOLDING, Stage, Worker, World, placed
from crossover.errors import CrossoverError
from crossover.tokens import Grant


class Violation(CrossoverError):
    """Something that must hold does not."""


def check_lease(scenario: Scenario, row: tuple[Worker, ...], host: int, job: int, grant: Grant) -> None:
    """One holder; the lease goes to who waits for it, for its next round, and is younger than all before."""
    holders = [name(other) for other, worker in enumerate(row) if worker.stage in HOLDING]
    if holders and scenario.sharing.takes_turns:
        raise Violation(f"{name(job)} gets the token of host {host} that {', '.join(holders)} holds")
    expected = Stage.ASKED_ASIDE if grant.aside else Stage.ASKED
    is_next = grant.round == row[job].next_round or scenario.passes_over
    if row[job].stage is not expected or not is_next:
        raise Violation(f"{grant} on host {host} goes to {name(job)}, which {row[job].stage}: {row[job]}")
    if any(worker.generation >= grant.generation for worker in row if worker.stage not in GONE):
        raise Violation(f"lease {grant.generation} of {name(job)} on host {host} is not younger than all before it")


def turn_begun(scenario: Scenario, world: World, host: int, grant: Grant) -> World:
    """The world's memory of turns with one more, which has its round and its place in the queue."""
    job = number(grant.job)
    step, rounds = world.workers[host][job].step, world.rounds[job]
    if step == len(rounds):
        world = world._replace(rounds=placed(world.rounds, job, (*rounds, grant.round)))
    elif rounds[step] != grant.round:
        raise Violation(
            f"step {step} of {name(job)} is its round {grant.round} on host {host} and {rounds[step]} elsewhere"
        )
    return _in_order(scenario, world, host, grant) if scenario.sharing in ORDERED else world


def _in_order(scenario: Scenario, world: World, host: int, grant: Grant) -> World:
    job = number(grant.job)
    seats, row = world.tokens[host].seats, world.workers[host]
    places = {seat.job: place for place, seat in enumerate(seats)}
    stride = seats[places[grant.job]].stride
    slack = scenario.lead_rounds * max(seat.stride for seat in seats)
    turn = (grant.round * stride, places[grant.job])
    for other, (passed, place) in enumerate(world.latest[host]):
        if row[other].stage not in GONE and (turn[0] + slack, turn[1]) < (passed, place):
            raise Violation(f"{name(job)}'s turn {grant.round} on host {host} comes after {name(other)}'s later one")
    if turn <= world.latest[host][job]:
        raise Violation(f"{name(job)} has its turn {grant.round} on host {host} twice")
    world = world._replace(latest=placed(world.latest, host, placed(world.latest[host], job, turn)))
    for other, worker in enumerate(row):
        due = (worker.next_round - 1) * seats[places[name(other)]].stride
        if worker.stage is Stage.ASKED and turn[0] > due:
            world = _passed(scenario, world, host, other, job)
    return world


def _passed(scenario: Scenario, world: World, host: int, waiting: int, passing: int) -> World:
    """One more turn of `passing` within the last cycle before the turn that `waiting` waits for."""
    worker = world.workers[host][waiting]
    num_turns = worker.passed[passing] + 1
    if num_turns > scenario.most_passed(waiting, passing):
        raise Violation(f"{name(waiting)} waits on host {host} while {name(passing)} has {num_turns} turns")
    return world.with_worker(host, waiting, worker._replace(passed=placed(worker.passed, passing, num_turns)))
