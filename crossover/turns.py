"""What a training loop needs of a scheduler: turns to take, leases to give back."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from crossover.policies import Extent


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to use the resource until its release. `round` numbers the job's turns from 0."""

    generation: int
    round: int
    waited_s: float


class TurnTaking(ABC):
    """What a training loop needs of a scheduler, real or absent."""

    @property
    @abstractmethod
    def extent(self) -> Extent:
        """What the sharing wants a turn to last until."""

    @abstractmethod
    def acquire(self, *, aside: bool = False) -> Lease:
        """Wait for the job's turn. With `aside`, for a lease that is no turn: for what one worker does and the others
        do not, such as an evaluation; it moves no round."""

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """End the turn. The device must be idle: an event that is complete, not a call that has returned."""

    @abstractmethod
    def skip(self, num_rounds: int) -> None:
        """Give up the job's next turns; all its workers must, at the same round."""

    @abstractmethod
    def leave(self) -> None:
        """Take no more turns, so that the others need not wait. May be called again."""

    @abstractmethod
    def pause(self) -> None:
        """Keep the seat but leave the queue, between turns: nobody waits for this job until `resume`. Leases aside may
        be taken meanwhile."""

    @abstractmethod
    def resume(self) -> None:
        """Come back into the queue, all of the job's workers at the same round."""

    @contextmanager
    def turn(self, *, aside: bool = False) -> Iterator[Lease]:
        """One turn as a `with` block; it is released whatever happens inside."""
        lease = self.acquire(aside=aside)
        try:
            yield lease
        finally:
            self.release(lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.leave()


class Alone(TurnTaking):
    """A job that shares with nobody: every turn is its own at once."""

    def __init__(self) -> None:
        self._turns = self._leases = 0

    @property
    def extent(self) -> Extent:
        """The usual one: nobody waits."""
        return Extent.BACKWARD

    def acquire(self, *, aside: bool = False) -> Lease:
        """A lease without a wait."""
        self._leases += 1
        self._turns += not aside
        return Lease(generation=self._leases, round=self._turns - (not aside), waited_s=0.0)

    def release(self, lease: Lease) -> None:
        """Nothing to give back."""

    def skip(self, num_rounds: int) -> None:
        """Rounds that nobody else counts."""
        self._turns += num_rounds

    def pause(self) -> None:
        """No queue to leave."""

    def resume(self) -> None:
        """No queue to come back into."""

    def leave(self) -> None:
        """Nobody to tell."""
