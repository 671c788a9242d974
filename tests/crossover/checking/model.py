"""How the world goes on: which events are possible, and what each does, by the arbiter's own rules.

A worker's step: its batch is there → (its job's messages of the step before have arrived) → it asks → it holds →
it releases → its messages travel, once all workers of its job have come so far. `checking.promises` says what
must hold.
"""

from collections.abc import Iterator
from math import inf

from checking.promises import Violation, check_lease, turn_begun
from checking.scenario import Scenario, name, number
from checking.world import GONE, HOLDING, Event, Kind, Stage, Worker, World, placed
from crossover import tokens
from crossover.policies import Extent, queue_of
from crossover.protocol import Resource
from crossover.tokens import Grant, Phase, Token


class Model:
    """A scenario's possible histories; it has no state of its own."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._hosts, self._jobs = range(scenario.num_hosts), range(len(scenario.num_steps))
        self._settings = [scenario.settings(host) for host in self._hosts]
        self._policies = [settings.policy(Resource.DEVICE) for settings in self._settings]
        self._link_policies = [settings.policy(Resource.LINK) for settings in self._settings]
        self._extent = scenario.turn_extent
        self._asides, self._pauses = dict(scenario.asides), dict(scenario.pauses)
        self._skips = {job: (at, by) for job, at, by in scenario.skips}
        self._deaths = {job: (host, at) for job, host, at in scenario.deaths}

    def start(self) -> World:
        """Nobody has come."""
        scenario = self.scenario
        absent = [self._empty_token(host, frozenset(scenario.late)) for host in self._hosts]
        worker = Worker(Stage.OUT, (0,) * len(self._jobs))
        return World(
            tokens=tuple(absent),
            links=tuple(absent) if scenario.link_turns else (),
            workers=((worker,) * len(self._jobs),) * len(self._hosts),
            rosters=(frozenset(),) * len(self._hosts),
            restarts=scenario.restarts or (0,) * len(self._hosts),
            num_done=(0,) * len(self._jobs),
            rounds=((),) * len(self._jobs),
            latest=(((-1, -1),) * len(self._jobs),) * len(self._hosts),
        )

    def enabled(self, world: World) -> list[Event]:
        """What may happen next; nothing only if all have left, or as a deadlock."""
        events = [
            Event(kind, host, job) for host in self._hosts for job in self._jobs for kind in self._of(world, host, job)
        ]
        events += [Event(Kind.COMPLETE, -1, job) for job in self._jobs if self._can_complete(world, job)]
        for host, left in enumerate(world.restarts):
            if left and any(worker.stage not in (Stage.OUT, *GONE) for worker in world.workers[host]):
                events.append(Event(Kind.RESTART, host, -1))
        if self.scenario.passes_over:
            events += [Event(Kind.PASS, host, job) for host in self._hosts for job in self._awaited(world, host)]
        if self._wake_s(world) < inf:
            events.append(Event(Kind.TICK, -1, -1))
        return events

    def after(self, world: World, event: Event) -> World:
        """The world once the event has happened. Raises `Violation`."""
        kind, host, job = event
        if kind is Kind.TICK:
            world = world._replace(now_s=self._wake_s(world))
            for each in self._hosts:
                world = self._settled(world, each)
            return world
        if kind is Kind.COMPLETE:
            return self._completed(world, job)
        if kind is Kind.RESTART:
            return self._restarted(world, host)
        happened = self._happened(world, kind, host, job)
        # Policies decide by the token and the time: one that is as it was has been lent already.
        return happened if happened.tokens[host] is world.tokens[host] else self._settled(happened, host)

    def waits(self, world: World) -> list[str]:
        """What each worker that has not left is at."""
        lines = []
        for host in self._hosts:
            for job, worker in enumerate(world.workers[host]):
                if worker.stage not in GONE:
                    missing = worker.step > world.num_done[job]
                    lines.append(
                        f"host {host}: {name(job)} {worker.stage}"
                        + (f", and its messages of step {worker.step - 1} have not arrived" if missing else "")
                    )
        return lines

    def _of(self, world: World, host: int, job: int) -> Iterator[Kind]:
        worker = world.workers[host][job]
        if worker.stage in GONE:
            return
        if self._may_die(world, host, job):
            yield Kind.DIE
        if not worker.is_connected and worker.stage not in HOLDING:
            yield Kind.REJOIN
        arrived = worker.step <= world.num_done[job]
        match worker.stage:
            case Stage.OUT if not world.rosters[host]:
                yield Kind.JOIN
            case Stage.JOINED | Stage.PAUSED if worker.is_connected:
                yield from self._coming_back(world, worker, job)
            case Stage.LOADING:
                yield from self._between_steps(worker, host, job, arrived)
            case Stage.READY if worker.is_connected and arrived:
                yield Kind.ASK
            case Stage.COMPUTING:
                yield Kind.FORWARD if self._extent is Extent.FORWARD else Kind.COMPUTE
            case Stage.BACKWARD:
                yield Kind.COMPUTE
            case Stage.SENDING if arrived:
                yield Kind.ARRIVE
            case Stage.ASIDE:
                yield Kind.RETURN

    def _between_steps(self, worker: Worker, host: int, job: int, arrived: bool) -> Iterator[Kind]:
        evaluates = host == 0 and not worker.has_evaluated and self._asides.get(job) == worker.step
        skips = not worker.has_skipped and job in self._skips and self._skips[job][0] == worker.step
        pauses = not worker.has_paused and self._pauses.get(job) == worker.step
        is_last = worker.step == self.scenario.num_steps[job]
        if evaluates and arrived and worker.is_connected:
            yield Kind.EVALUATE
        elif not evaluates and skips and worker.is_connected and (arrived or not self.scenario.link_turns):
            yield Kind.SKIP
        elif not evaluates and not skips and pauses and worker.is_connected:
            yield Kind.PAUSE
        elif not evaluates and not skips and not pauses and not is_last:
            yield Kind.LOAD
        elif not evaluates and not skips and not pauses and arrived:
            yield Kind.LEAVE

    def _coming_back(self, world: World, worker: Worker, job: int) -> Iterator[Kind]:
        """What a worker does with all the others of its job: a dead one keeps nobody waiting here."""
        others = [row[job] for row in world.workers if row[job].stage is not Stage.DEAD]
        if worker.stage is Stage.PAUSED and all(other.has_paused for other in others):
            yield Kind.RESUME
        if worker.stage is Stage.JOINED and all(other.num_entries >= worker.num_entries for other in others):
            yield Kind.AGREE

    def _may_die(self, world: World, host: int, job: int) -> bool:
        if job not in self._deaths:
            return False
        first, at = self._deaths[job]
        return any(row[job].stage is Stage.DEAD for row in world.workers) or (
            host == first and world.workers[host][job].step >= at
        )

    def _can_complete(self, world: World, job: int) -> bool:
        num_done = world.num_done[job]
        for row in world.workers:
            if row[job].step <= num_done or row[job].stage is Stage.DEAD:
                return False
        return all(token.seat(name(job)).phase is Phase.HOLDING for token in world.links)

    def _awaited(self, world: World, host: int) -> list[int]:
        """The job whose turn it is, where another one waits and it does not come."""
        token = world.tokens[host]
        front = next(iter(queue_of(token)), None)
        if world.rosters[host] or token.holders or not token.is_open or front is None or front.phase is not Phase.IDLE:
            return []
        return [number(front.job)] if any(seat.phase is Phase.WAITING for seat in token.seats) else []

    def _wake_s(self, world: World) -> float:
        wakes = (policy.wake_s(token, world.now_s) for policy, token in zip(self._policies, world.tokens, strict=True))
        return min(wakes)

    def _happened(self, world: World, kind: Kind, host: int, job: int) -> World:
        """The event's own effect, before the token is lent again."""
        worker, token, who = world.workers[host][job], world.tokens[host], name(job)
        match kind:
            case Kind.JOIN:
                return self._joined(world, host, job)
            case Kind.AGREE:
                return self._agreed(world, host, job)
            case Kind.LOAD:
                return world.with_worker(host, job, worker._replace(stage=Stage.READY))
            case Kind.ASK:
                world = world.with_token(host, tokens.ask(token, who))
                return world.with_worker(host, job, worker._replace(stage=Stage.ASKED, passed=(0,) * len(self._jobs)))
            case Kind.EVALUATE:
                world = world.with_token(host, tokens.ask(token, who, aside=True))
                return world.with_worker(host, job, worker._replace(stage=Stage.ASKED_ASIDE, has_evaluated=True))
            case Kind.FORWARD | Kind.COMPUTE | Kind.ARRIVE | Kind.RETURN:
                return self._ended(world, kind, host, job)
            case Kind.PASS:
                return world.with_token(host, tokens.pass_over(token, who))
            case Kind.SKIP:
                return self._skipped(world, host, job, self._skips[job][1], worker._replace(has_skipped=True))
            case Kind.PAUSE:
                world = world.with_token(host, tokens.pass_over(token, who))
                return world.with_worker(host, job, worker._replace(stage=Stage.PAUSED, has_paused=True))
            case Kind.RESUME:
                world = self._skipped(world, host, job, 1, worker)
                return world.with_worker(host, job, self._entered(world, host, job))
            case Kind.LEAVE | Kind.DIE:
                stage = Stage.LEFT if kind is Kind.LEAVE else Stage.DEAD
                world = world.with_token(host, tokens.leave(token, who))
                rosters = placed(world.rosters, host, world.rosters[host] - {job})
                world = self._with_link(world, host, tokens.leave(world.links[host], who)) if world.links else world
                return world._replace(rosters=rosters).with_worker(host, job, worker._replace(stage=stage))
        return self._rejoined(world, host, job)

    def _joined(self, world: World, host: int, job: int) -> World:
        worker, who = world.workers[host][job], name(job)
        token = tokens.join(world.tokens[host], who)
        if world.links:
            world = self._with_link(world, host, tokens.join(world.links[host], who, token.seat(who).next_round))
        world = world.with_token(host, token)
        if job in self.scenario.late:
            return world.with_worker(host, job, self._entered(world, host, job))
        return world.with_worker(host, job, worker._replace(stage=Stage.LOADING))

    def _entered(self, world: World, host: int, job: int) -> Worker:
        """The worker with a place in the queue; where its job does not agree on one, that is its own."""
        worker, entry = world.workers[host][job], world.tokens[host].seat(name(job)).next_round
        stage = Stage.JOINED if self.scenario.agrees else Stage.LOADING
        return worker._replace(stage=stage, next_round=entry, entry=entry, num_entries=worker.num_entries + 1)

    def _agreed(self, world: World, host: int, job: int) -> World:
        worker = world.workers[host][job]._replace(stage=Stage.LOADING)
        missing = max(row[job].entry for row in world.workers) - worker.entry
        if not missing:
            return world.with_worker(host, job, worker)
        return self._skipped(world, host, job, missing, worker)

    def _skipped(self, world: World, host: int, job: int, num_rounds: int, worker: Worker) -> World:
        world = world.with_token(host, tokens.skip(world.tokens[host], name(job), num_rounds))
        if world.links:
            world = self._with_link(world, host, tokens.skip(world.links[host], name(job), num_rounds))
        return world.with_worker(host, job, worker._replace(next_round=worker.next_round + num_rounds))

    def _ended(self, world: World, kind: Kind, host: int, job: int) -> World:
        """A part of a turn, or a lease aside, is over."""
        worker = world.workers[host][job]
        sends = kind is Kind.COMPUTE
        releases = kind is not Kind.COMPUTE or self._extent is Extent.BACKWARD
        if sends and world.links:
            world = self._with_link(world, host, tokens.ask(world.links[host], name(job)))
        if releases and worker.is_connected:
            token = tokens.release(world.tokens[host], name(job), worker.generation)
            world = world.with_token(host, token)
        counts = releases and kind is not Kind.RETURN
        stage = {Kind.FORWARD: Stage.BACKWARD, Kind.COMPUTE: Stage.SENDING}.get(kind, Stage.LOADING)
        if sends and self._extent is not Extent.MESSAGES:
            stage = Stage.LOADING
        ended = worker._replace(stage=stage, step=worker.step + sends, next_round=worker.next_round + counts)
        return world.with_worker(host, job, ended)

    def _completed(self, world: World, job: int) -> World:
        """The messages of a step are there, everywhere."""
        world = world._replace(num_done=placed(world.num_done, job, world.num_done[job] + 1))
        for host, token in enumerate(world.links):
            released = tokens.release(token, name(job), token.seat(name(job)).generation)
            world = self._with_link(world, host, released)
        return world

    def _with_link(self, world: World, host: int, token: Token) -> World:
        token, grants = tokens.settle(token, self._link_policies[host])
        if len(token.holders) > 1 and self.scenario.sharing.takes_turns:
            raise Violation(
                f"{' and '.join(token.holders)} hold the link of host {host} at once ({len(grants)} grants)"
            )
        return world._replace(links=placed(world.links, host, token))

    def _empty_token(self, host: int, never_awaited: frozenset[int]) -> Token:
        token = self._settings[host].token()
        for job in sorted(never_awaited):
            token = tokens.leave(token, name(job))
        return token

    def _restarted(self, world: World, host: int) -> World:
        """A new arbiter, which knows from the roster who sat here and grants nothing until all those have come."""
        row = world.workers[host]
        outside = {job for job in self._jobs if row[job].stage in GONE}
        outside |= {job for job in self.scenario.late if row[job].stage is Stage.OUT}
        seated = frozenset(job for job in self._jobs if row[job].stage not in (Stage.OUT, *GONE))
        workers = tuple(
            worker._replace(is_connected=False, passed=(0,) * len(self._jobs)) if job in seated else worker
            for job, worker in enumerate(row)
        )
        return world.with_token(host, self._empty_token(host, frozenset(outside)))._replace(
            workers=placed(world.workers, host, workers),
            rosters=placed(world.rosters, host, seated),
            restarts=placed(world.restarts, host, world.restarts[host] - 1),
        )

    def _rejoined(self, world: World, host: int, job: int) -> World:
        worker, who = world.workers[host][job], name(job)
        token = tokens.join(world.tokens[host], who, worker.next_round, worker.generation)
        if worker.stage in (Stage.ASKED, Stage.ASKED_ASIDE):
            token = tokens.ask(token, who, aside=worker.stage is Stage.ASKED_ASIDE)
        if worker.stage is Stage.PAUSED:
            token = tokens.pass_over(token, who)
        world = world.with_token(host, token).with_worker(host, job, worker._replace(is_connected=True))
        return world._replace(rosters=placed(world.rosters, host, world.rosters[host] - {job}))

    def _settled(self, world: World, host: int) -> World:
        """Lend the token as the arbiter would."""
        if world.rosters[host]:
            return world
        token, grants = tokens.settle(world.tokens[host], self._policies[host], world.now_s)
        world = world.with_token(host, token)
        for grant in grants:
            world = self._granted(world, host, grant)
        return world

    def _granted(self, world: World, host: int, grant: Grant) -> World:
        job, row = number(grant.job), world.workers[host]
        check_lease(self.scenario, row, host, job, grant)
        stage = Stage.ASIDE if grant.aside else Stage.COMPUTING
        holder = row[job]._replace(stage=stage, generation=grant.generation, next_round=grant.round)
        world = world.with_worker(host, job, holder)
        return world if grant.aside or self.scenario.passes_over else turn_begun(self.scenario, world, host, grant)
