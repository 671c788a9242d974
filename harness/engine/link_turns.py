"""Link turns: a job's messages of one step have the link to themselves, jobs in the device's order.

T* = max(Σc, Σm, max t) needs a link that is first come, first served; TCP shares it fairly, which
delays the job in front by what the job behind sends meanwhile. The lease is asked for with a
step's first message and given back when its last one is complete, by a thread of its own, since
waiting for a turn must not keep the communication thread from its work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from crossover import CrossoverError, LeaseLost, TurnTaking

_log = logging.getLogger(__name__)


class LinkTurns:
    """Takes link turns for an engine. `participant` belongs to this object's thread from now on."""

    def __init__(self, participant: TurnTaking) -> None:
        self._participant = participant
        self._commands: SimpleQueue[Callable[[CrossoverError | None], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="link turns", daemon=True)
        self._thread.start()

    def request(self, granted: Callable[[CrossoverError | None], None]) -> None:
        """Ask for the link; `granted` is called from another thread, with an error if it cannot be had,
        which may be that of the release before."""
        self._commands.put(granted)

    def release(self) -> None:
        """Give the link to the next job."""
        self._commands.put(None)

    def leave(self) -> None:
        """Take no more turns; the others go on without this job. Call it with no lease held."""
        self._commands.put(_leave)
        self._thread.join(timeout=10)

    def _run(self) -> None:
        with self._participant:
            lost = self._take_turns()
        if lost is None:
            return
        # Whoever asks for the link from now on would wait for ever.
        while (command := self._commands.get()) is not _leave:
            if command is not None:
                command(lost)

    def _take_turns(self) -> CrossoverError | None:
        """Until the job leaves, or until there are no more turns to be had: the reason."""
        while (command := self._commands.get()) is not _leave:
            assert command is not None, "released a link that was not requested"
            try:
                # This blocks for as long as other jobs send.
                lease = self._participant.acquire()
            except CrossoverError as error:
                command(error)
                return error
            command(None)
            if self._commands.get() is not None:
                return None  # left in mid-lease; leaving gives it back
            try:
                self._participant.release(lease)
            except LeaseLost as error:
                # The turn is over all the same: the link was shared for a while.
                _log.warning("a link turn ended without its lease: %s", error)
            except CrossoverError as error:
                return error
        return None


def _leave(error: CrossoverError | None) -> None:
    """Marks the end on the command queue."""
