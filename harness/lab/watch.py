"""Watches the ranks of one task: lets them go together, passes on progress, notices every end."""

from __future__ import annotations

import os
import re
import selectors
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from harness.asynchrony.cluster import OnLoss
from harness.lab.meeting import StrangerError
from harness.lab.messages import Answer, Ending, Event, LinkTimes, Task, failed
from harness.lab.rank import RankResult
from harness.lab.rank_process import RankProcess

ECHO = re.compile(
    r"EngineError|DistBackendError|HorovodInternalError|connection (closed|reset)|broken pipe|(Server|Worker)LostError"
    r"|StrangerError|gloo::IoException",
    re.I,
)
SERVER_LOST, STRANGER = "ServerLostError", StrangerError.__name__
NO_PEER = "gloo::IoException"  # of Horovod, whose own thread throws it
ECHO_S = 1.0  # within which the rank that is the cause has ended, once its peers have noticed


class LauncherGone(Exception):
    """The launcher hung up in mid-task; there is nobody left to work for."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What became of rank `number`. An echo is what a rank says when its peer is gone."""

    number: int
    reason: str
    is_echo: bool


class Watch:
    """`go` is the write end that the ranks wait for; `commands` the launcher's line, watched for its end."""

    def __init__(
        self, task: Task, ranks: Sequence[RankProcess], *, go: int, commands: int, say: Callable[[Event], None]
    ) -> None:
        self._task, self._ranks, self._go, self._say = task, ranks, go, say
        self._commands = commands
        self._num_ready = 0
        self._results: dict[int, list[RankResult]] = {}  # in lockstep one process reports all ranks
        self._links: dict[int, LinkTimes] = {}
        self._running = set(range(len(ranks)))
        self._failures: list[Failure] = []
        self._until_s = monotonic() + task.timeout_s

    def until_done(self) -> Answer:
        """Serve events until every rank has ended well, one has failed, or time is up.

        A failure spreads: of several the first that is no echo of another is told.
        Raises: LauncherGone.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._commands, selectors.EVENT_READ, (-1, "commands"))
            for number, rank in enumerate(self._ranks):
                selector.register(rank.pipe, selectors.EVENT_READ, (number, "pipe"))
                selector.register(rank.pidfd, selectors.EVENT_READ, (number, "end"))
            while self._running and not self._is_explained():
                events = selector.select(self._until_s - monotonic())
                if not events:
                    break
                # Pipes before ends: what a rank said last is heard before its end is judged.
                for key, _ in sorted(events, key=lambda event: event[0].data[1] != "pipe"):
                    self._serve(selector, *key.data)
        if self._failures:
            reason = self._explanation()
            # A rank that ended by itself is the cause instead: to its peers its place is empty too.
            began = self._go < 0
            return failed(f"{STRANGER}: {reason}" if NO_PEER in reason and not began else reason)
        if self._running:
            return Answer(ending=Ending.TIMEOUT, reason=self._late())
        ranks = tuple(result for number in sorted(self._results) for result in self._results[number])
        links = tuple(self._links[number] for number in sorted(self._links))
        return Answer(ending=Ending.DONE, ranks=ranks, links=links)

    def _serve(self, selector: selectors.BaseSelector, number: int, what: str) -> None:
        if what == "commands":
            raise LauncherGone
        rank = self._ranks[number]
        if what == "pipe":
            events = rank.read()
            for event in events:
                self._take(number, event)
            return
        for descriptor in (rank.pipe, rank.pidfd):
            selector.unregister(descriptor)
        for event in rank.drain():
            self._take(number, event)
        self._running.discard(number)
        how = rank.ended_how()
        has_spoken = number in {failure.number for failure in self._failures}
        # A rank may be killed after it has told its result, and then nothing is missing.
        if number not in self._results and number not in self._links and not has_spoken and not self._goes_on(rank):
            self._fail(number, how)

    def _goes_on(self, rank: RankProcess) -> bool:
        """Whether the others are to train on without it; its server then names it in the record."""
        trial = self._task.trial
        if trial is None or trial.cluster is None or trial.on_loss is not OnLoss.CONTINUE:
            return False
        return rank.place.rank < trial.cluster.num_workers

    def _is_explained(self) -> bool:
        """Whether the cause is known; of a server's end also what was lost with it, which a worker says."""
        causes = [failure for failure in self._failures if not failure.is_echo]
        return bool(causes) and (not self._serves(causes[0].number) or bool(self._told_of_loss()))

    def _serves(self, number: int) -> bool:
        trial = self._task.trial
        if trial is None or trial.cluster is None or not trial.fabric.kind.has_processes:
            return False
        return self._ranks[number].place.rank >= trial.cluster.num_workers

    def _told_of_loss(self) -> str:
        return next((failure.reason for failure in self._failures if SERVER_LOST in failure.reason), "")

    def _explanation(self) -> str:
        # `False` sorts before `True`, and equal ones stay in the order in which they came.
        cause = min(self._failures, key=lambda failure: (failure.is_echo, STRANGER not in failure.reason))
        told = self._told_of_loss() if self._serves(cause.number) else ""
        return f"{cause.reason}; {told}" if told and told != cause.reason else cause.reason

    def _take(self, number: int, event: Event) -> None:
        rank = self._ranks[number]
        match event.kind:
            case "ready":
                self._num_ready += 1
                if self._num_ready == len(self._ranks):
                    # The end of the pipe is the signal: one close wakes all ranks, and no rank can miss it.
                    os.close(self._go)
                    self._go = -1
            case "step":
                rank.last_step = event.step
                if rank.place.rank == 0 and rank.place.job == 0:
                    self._say(event)
            case "result":
                assert event.result is not None
                self._results.setdefault(number, []).append(event.result)
            case "links":
                assert event.links is not None
                self._links[number] = event.links
            case "error":
                self._fail(number, f"failed: {event.message}")

    def _fail(self, number: int, how: str) -> None:
        rank = self._ranks[number]
        where = f"{rank.name} on {rank.place.host.name}"
        when = f"at or after step {rank.last_step}" if rank.last_step >= 0 else "before its first step"
        self._failures.append(Failure(number, f"{where} {how} {when}", bool(ECHO.search(how))))
        # An echo waits for its cause only as long as that needs to show; after that the echo itself is told.
        self._until_s = min(self._until_s, monotonic() + ECHO_S)

    def _late(self) -> str:
        waiting = ", ".join(f"{self._ranks[n].name} at step {self._ranks[n].last_step}" for n in sorted(self._running))
        return f"not done after {self._task.timeout_s:g} s ({waiting}); allow more time or fewer steps"

    def close(self) -> None:
        """Let ranks that still wait go (they are about to be ended)."""
        if self._go >= 0:
            os.close(self._go)
            self._go = -1
