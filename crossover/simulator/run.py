"""One simulated run: clock, tokens, devices, link, and the jobs' steps between them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf

from crossover import tokens
from crossover.errors import Refused
from crossover.policies import Extent, link_policy
from crossover.simulator.conditions import Arrival, LinkSharing, Rules
from crossover.simulator.fluid import Action, Agenda, Fluid
from crossover.simulator.outcome import Deadlock, SimulatedMessage, SimulatedTurn, SimulationResult
from crossover.simulator.steps import StepShape
from crossover.tokens import Grant, Phase, Token


class Simulation:
    """A run under way; what falls on one instant happens in the order in which it was planned."""

    def __init__(self, shapes: Sequence[StepShape], num_rounds: Sequence[int], rules: Rules) -> None:
        _check(shapes, num_rounds, rules)
        self._shapes, self._num_rounds, self._rules = shapes, num_rounds, rules
        orders = rules.orders or (tuple(range(len(shapes))),)
        # Hosts that are alike do the same at the same time: one of them is simulated and copied at the end.
        self._orders = orders[:1] if rules.is_symmetric else orders
        self._hosts = range(len(self._orders))
        self.agenda = Agenda()
        self.link = Fluid(self.agenda)
        self.devices = [Fluid(self.agenda) for _ in self._hosts]
        self.turns: list[SimulatedTurn] = []
        self.messages: list[SimulatedMessage] = []
        self.makespan_s: float = 0
        arrivals = rules.arrivals or (Arrival(),) * len(shapes)
        # Nobody waits for a job that is not announced: its seat is left until it arrives.
        late = [job for job, arrival in enumerate(arrivals) if not arrival.awaited]
        self._tokens = [self._new_token(order, late) for order in self._orders]
        self._link_policy = link_policy(rules.policy)
        senders = {job for job, shape in enumerate(shapes) if shape.buckets}
        self._link_tokens = [
            self._new_token(tuple(job for job in order if job in senders), late)
            for order in self._orders
            if senders and rules.link is LinkSharing.FIFO
        ]
        self._leases: Counter[int] = Counter()  # job: hosts where it has the link
        self._unfinished: Counter[tuple[int, int]] = Counter()  # (host, job): parts of its step that are not over
        self._taken: Counter[tuple[int, int]] = Counter()  # (host, job): turns so far
        self._begun: dict[tuple[int, int], tuple[int, float]] = {}
        self._ready: Counter[tuple[int, int]] = Counter()  # (job, bucket): hosts where it is ready
        self._pending: list[tuple[int, int]] = []  # (job, bucket) that could travel, oldest first
        self._flights: Counter[int] = Counter()
        self._arrived: Counter[int] = Counter()  # job: messages so far
        self._wakes_s = [inf] * len(self._orders)
        self._staying = {(host, job) for host in self._hosts for job in range(len(shapes))}
        self._plans = {where: self._milestones(*where) for where in self._staying}
        for job, arrival in enumerate(arrivals):
            self.agenda.plan(arrival.at_s, partial(self._arrive, job, arrival))

    def finish(self) -> None:
        """Go on until every job has left. Raises `Deadlock` if that never happens."""
        while self._staying:
            self.advance()

    def advance(self) -> None:
        """Do what comes next."""
        if not self.agenda.advance():
            raise Deadlock(f"deadlock at {self.agenda.now_s} s: {'; '.join(self._waits())}")

    def outcome(self) -> SimulationResult:
        """What has happened so far."""
        copies = len(self._rules.orders) if self._rules.is_symmetric else 1
        turns = sorted(self.turns, key=lambda turn: turn.start_s)
        if copies > 1:
            turns = [replace(turn, host=host) for turn in turns for host in range(copies)]
        messages = sorted(self.messages, key=lambda message: message.start_s)
        busy_s = self.devices[0].busy_s
        return SimulationResult(tuple(turns), tuple(messages), self.makespan_s, busy_s, self.link.busy_s)

    def _new_token(self, order: tuple[int, ...], late: list[int]) -> Token:
        shares = {str(job): share for job, share in enumerate(self._rules.shares) if job in order}
        token = tokens.new_token([str(job) for job in order], shares)
        for job in late:
            token = tokens.leave(token, str(job)) if job in order else token
        return token

    def _milestones(self, host: int, job: int) -> list[tuple[float, Action]]:
        shape = self._shapes[job]
        milestones = [
            (bucket.ready_s, partial(self._bucket_ready, job, index)) for index, bucket in enumerate(shape.buckets)
        ]
        if self._rules.extent is Extent.FORWARD:
            milestones.append((shape.forward_s or 0, partial(self._release, host, job)))
            # Stable, so a bucket that is ready as forward ends goes before the release, as it was planned.
            milestones.sort(key=lambda milestone: milestone[0])
        return [*milestones, (shape.compute_s, partial(self._end_compute, host, job))]

    def _arrive(self, job: int, arrival: Arrival) -> None:
        """All workers of a job join, at one round that nobody has passed."""
        entry = arrival.first_round
        if not arrival.awaited:
            entry = max(entry, *(tokens.entry_round(token, str(job)) for token in self._tokens))
        for host in self._hosts:
            if self._link_tokens and self._shapes[job].buckets:
                self._settle_link(host, tokens.join(self._link_tokens[host], str(job), entry))
            self._tokens[host] = tokens.join(self._tokens[host], str(job), entry)
            self._step_over(host, job)

    def _step_over(self, host: int, job: int) -> None:
        """The job's messages have arrived: the next turn is asked for when the batch is there."""
        stall = self._rules.stall
        if stall is None:
            self._ask(host, job)
            return
        next_round = self._tokens[host].seat(str(job)).next_round
        self._settle(host, self._tokens[host])
        self.agenda.plan(self.agenda.now_s + stall(host, job, next_round), partial(self._ask, host, job))

    def _ask(self, host: int, job: int) -> None:
        self._settle(host, tokens.ask(self._tokens[host], str(job)))

    def _settle(self, host: int, token: Token) -> None:
        now_s = self.agenda.now_s
        self._tokens[host], grants = tokens.settle(token, self._rules.policy, now_s)
        for grant in grants:
            if self._rules.handover_s:
                self.agenda.plan(now_s + self._rules.handover_s, partial(self._compute, host, grant))
            else:
                self._compute(host, grant)
        wake_s = self._rules.policy.wake_s(self._tokens[host], now_s)
        # Each event before it asks for the same moment again; one entry on the agenda is enough.
        if wake_s < inf and wake_s != self._wakes_s[host]:
            self._wakes_s[host] = wake_s
            self.agenda.plan(wake_s, partial(self._wake, host))

    def _wake(self, host: int) -> None:
        self._settle(host, self._tokens[host])

    def _compute(self, host: int, grant: Grant) -> None:
        job = int(grant.job)
        self._begun[host, job] = (grant.round, self.agenda.now_s)
        # Computation and messages are two parts, which may end in either order.
        self._unfinished[host, job] = 2 if self._shapes[job].buckets else 1
        plan = self._plans[host, job]
        if self._rules.stretch is not None:
            factor = self._rules.stretch(host, job, grant.round)
            plan = [(amount * factor, action) for amount, action in plan]
        self.devices[host].add(plan)

    def _end_compute(self, host: int, job: int) -> None:
        round_, start_s = self._begun[host, job]
        self.turns.append(SimulatedTurn(host, job, round_, start_s, self.agenda.now_s))
        if self._rules.extent is Extent.BACKWARD:
            self._release(host, job)
        self._end_part(host, job)

    def _release(self, host: int, job: int) -> None:
        self._settle(host, _released(self._tokens[host], job))

    def _end_part(self, host: int, job: int) -> None:
        """Computation or messages of a step are over on a host; with both, the step is."""
        self._unfinished[host, job] -= 1
        if self._unfinished[host, job]:
            return
        if self._rules.extent is Extent.MESSAGES:
            self._tokens[host] = _released(self._tokens[host], job)
        self._taken[host, job] += 1
        if self._taken[host, job] < self._num_rounds[job]:
            self._step_over(host, job)
        else:
            self._leave(host, job)

    def _leave(self, host: int, job: int) -> None:
        self._staying.discard((host, job))
        self.makespan_s = self.agenda.now_s
        if self._link_tokens and self._shapes[job].buckets:
            self._settle_link(host, tokens.leave(self._link_tokens[host], str(job)))
            self._send()
        self._settle(host, tokens.leave(self._tokens[host], str(job)))

    def _bucket_ready(self, job: int, index: int) -> None:
        """A bucket is there on one more host; with the last one its collective can begin."""
        self._ready[job, index] += 1
        if self._ready[job, index] < len(self._hosts):
            return
        self._ready[job, index] = 0
        self._pending.append((job, index))
        if self._link_tokens and self._arrived[job] % len(self._shapes[job].buckets) == 0 == self._flights[job]:
            for host, token in enumerate(self._link_tokens):
                if token.seat(str(job)).phase is Phase.IDLE:
                    self._settle_link(host, tokens.ask(token, str(job)))
        self._send()

    def _settle_link(self, host: int, token: Token) -> None:
        self._link_tokens[host], grants = tokens.settle(token, self._link_policy, self.agenda.now_s)
        for grant in grants:
            self._leases[int(grant.job)] += 1

    def _send(self) -> None:
        """Start what may travel now."""
        # A copy, since what is sent is taken out on the way.
        for job, index in tuple(self._pending):
            if self._may_travel(job):
                self._pending.remove((job, index))
                self._flights[job] += 1
                arrival = partial(self._message_arrived, job, index, self.agenda.now_s)
                self.link.add([(self._shapes[job].buckets[index].link_s, arrival)])
        self._disturb()

    def _may_travel(self, job: int) -> bool:
        if self._rules.link is LinkSharing.ARRIVAL:
            return not self.link.num_works
        return self._flights[job] < self._rules.in_flight and (
            not self._link_tokens or self._leases[job] == len(self._hosts)
        )

    def _disturb(self) -> None:
        if self._rules.interference:
            # Whosever message it is: they all take the same processor's time.
            speed = 1 / (1 + self._rules.interference) if self.link.num_works else 1
            for device in self.devices:
                device.set_speed(speed)

    def _message_arrived(self, job: int, index: int, start_s: float) -> None:
        step, position = divmod(self._arrived[job], len(self._shapes[job].buckets))
        self.messages.append(SimulatedMessage(job, step, index, start_s, self.agenda.now_s))
        self._arrived[job] += 1
        self._flights[job] -= 1
        if position + 1 < len(self._shapes[job].buckets):
            self._send()
            return
        if self._link_tokens:
            self._leases[job] = 0
            for host, token in enumerate(self._link_tokens):
                self._settle_link(host, _released(token, job))
        self._send()
        for host in self._hosts:
            self._end_part(host, job)

    def _waits(self) -> list[str]:
        kinds = (("device", self._tokens), ("link", self._link_tokens))
        return [
            f"host {host}'s {kind}: "
            + ", ".join(f"job {seat.job} {seat.phase}" for seat in token.seats if seat.phase is not Phase.LEFT)
            for kind, all_tokens in kinds
            for host, token in enumerate(all_tokens)
        ]


def _released(token: Token, job: int) -> Token:
    return tokens.release(token, str(job), token.seat(str(job)).generation)


def _check(shapes: Sequence[StepShape], num_rounds: Sequence[int], rules: Rules) -> None:
    if not shapes or len(shapes) != len(num_rounds) or min(num_rounds) < 1:
        raise Refused(f"give every one of {len(shapes)} jobs at least 1 round, not {list(num_rounds)}")
    for name, values in (("shares", rules.shares), ("arrivals", rules.arrivals)):
        if values and len(values) != len(shapes):
            raise Refused(f"give {name} to all of {len(shapes)} jobs or to none, not {values}")
    if any(sorted(order) != list(range(len(shapes))) for order in rules.orders):
        raise Refused(f"an order names each of {len(shapes)} jobs once, by number from 0, not {rules.orders}")
    if rules.extent is Extent.FORWARD and any(shape.forward_s is None for shape in shapes):
        raise Refused("a turn that ends with the forward pass (tick-tock) needs forward_s of every job")
