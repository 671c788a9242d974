"""Watches the ranks of one task: lets them go together, passes on progress, notices every end."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable, Sequence
from time import monotonic

from harness.messages import Answer, Ending, Event, LinkTimes, Task
from harness.rank import RankResult
from harness.rank_process import RankProcess


class LauncherGone(Exception):
    """The launcher hung up in mid-task; there is nobody left to work for."""


class Watch:
    """`go` is the write end that the ranks wait for; `commands` the launcher's line, watched for its end."""

    def __init__(
        self, task: Task, ranks: Sequence[RankProcess], *, go: int, commands: int, say: Callable[[Event], None]
    ) -> None:
        self._task, self._ranks, self._go, self._say = task, ranks, go, say
        self._commands = commands
        self._num_ready = 0
        self._results: dict[int, RankResult] = {}
        self._links: dict[int, LinkTimes] = {}
        self._running = set(range(len(ranks)))
        self._failure: str | None = None

    def until_done(self) -> Answer:
        """Serve events until every rank has ended well, one has failed, or time is up.

        Raises: LauncherGone.
        """
        deadline_s = monotonic() + self._task.timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._commands, selectors.EVENT_READ, (-1, "commands"))
            for number, rank in enumerate(self._ranks):
                selector.register(rank.pipe, selectors.EVENT_READ, (number, "pipe"))
                selector.register(rank.pidfd, selectors.EVENT_READ, (number, "end"))
            while self._running and self._failure is None:
                events = selector.select(deadline_s - monotonic())
                if not events:
                    return Answer(ending=Ending.TIMEOUT, reason=self._late())
                for key, _ in sorted(events, key=lambda event: event[0].data[1] != "pipe"):
                    self._serve(selector, *key.data)
        if self._failure is not None:
            return Answer(ending=Ending.FAILED, reason=self._failure)
        ranks = tuple(self._results[number] for number in sorted(self._results))
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
        if number not in self._results and number not in self._links and self._failure is None:
            self._fail(rank, how)

    def _take(self, number: int, event: Event) -> None:
        rank = self._ranks[number]
        match event.kind:
            case "ready":
                self._num_ready += 1
                if self._num_ready == len(self._ranks):
                    os.close(self._go)
                    self._go = -1
            case "step":
                rank.last_step = event.step
                if rank.place.rank == 0 and rank.place.job == 0:
                    self._say(event)
            case "result":
                assert event.result is not None
                self._results[number] = event.result
            case "links":
                assert event.links is not None
                self._links[number] = event.links
            case "error":
                self._fail(rank, f"failed: {event.message}")

    def _fail(self, rank: RankProcess, how: str) -> None:
        where = f"{rank.name} on {rank.place.host.name}"
        when = f"after step {rank.last_step}" if rank.last_step >= 0 else "before its first step"
        self._failure = f"{where} {how} {when}"

    def _late(self) -> str:
        waiting = ", ".join(f"{self._ranks[n].name} at step {self._ranks[n].last_step}" for n in sorted(self._running))
        return f"not done after {self._task.timeout_s:g} s ({waiting}); allow more time or fewer steps"

    def close(self) -> None:
        """Let ranks that still wait go (they are about to be ended)."""
        if self._go >= 0:
            os.close(self._go)
            self._go = -1
