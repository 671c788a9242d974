"""The state of all hosts at one moment, as a value, and what a schedule may do next."""

from enum import StrEnum
from typing import NamedTuple, TypeVar

from checking.scenario import name
from crossover.tokens import Token

T = TypeVar("T")


class Stage(StrEnum):
    """Where a worker is in its step."""

    OUT = "has not come"
    JOINED = "waits for its other workers' rounds"
    PAUSED = "is out of the queue"
    LOADING = "loads a batch"
    READY = "has its batch"
    ASKED = "waits for its turn"
    COMPUTING = "computes in its turn"
    BACKWARD = "computes after its turn"
    SENDING = "holds its turn until its messages arrive"
    ASKED_ASIDE = "waits for a lease aside"
    ASIDE = "holds a lease aside"
    LEFT = "has left"
    DEAD = "is dead"


HOLDING = (Stage.COMPUTING, Stage.SENDING, Stage.ASIDE)
GONE = (Stage.LEFT, Stage.DEAD)


class Kind(StrEnum):
    """What can happen."""

    JOIN = "joins"
    AGREE = "agrees on a round"
    LOAD = "has its batch"
    ASK = "asks for its turn"
    FORWARD = "ends its forward pass"
    COMPUTE = "ends its computation"
    ARRIVE = "gives its turn back, its messages have arrived"
    COMPLETE = "messages arrive"
    EVALUATE = "asks for a lease aside"
    RETURN = "gives the lease aside back"
    SKIP = "skips rounds"
    PAUSE = "leaves the queue"
    RESUME = "comes back into the queue"
    LEAVE = "leaves"
    DIE = "dies"
    RESTART = "arbiter is replaced"
    REJOIN = "rejoins"
    PASS = "is passed over"
    TICK = "time passes"


class Event(NamedTuple):
    """One step of a schedule; host or job is −1 where it concerns all."""

    kind: Kind
    host: int
    job: int

    def __str__(self) -> str:
        where = f"host {self.host}: " if self.host >= 0 else ""
        return f"{where}{f'{name(self.job)} ' if self.job >= 0 else ''}{self.kind}"


class Worker(NamedTuple):
    """One job's process on one host.

    `step` counts the steps whose messages it has begun to send, `next_round` is its own idea of its next turn,
    `generation` its last lease's, `entry` the round at which it came in last, `num_entries` how often it has, and
    `passed[i]` how many turns job i had since it asked for its own.
    """

    stage: Stage
    passed: tuple[int, ...]
    step: int = 0
    next_round: int = 0
    generation: int = 0
    entry: int = 0
    num_entries: int = 0
    is_connected: bool = True
    has_evaluated: bool = False
    has_skipped: bool = False
    has_paused: bool = False


class World(NamedTuple):
    """Everything that decides what can happen.

    `tokens[h]`, `links[h]` (empty: no link turns), `workers[h][j]`; `rosters[h]`: jobs that a new arbiter awaits before
    it grants anything; `restarts[h]` still to come; `num_done[j]`: steps whose messages have arrived everywhere;
    `rounds[j]`: the round of each step so far; `latest[h][j]`: where in the queue its latest turn was, (pass, seat).
    """

    tokens: tuple[Token, ...]
    links: tuple[Token, ...]
    workers: tuple[tuple[Worker, ...], ...]
    rosters: tuple[frozenset[int], ...]
    restarts: tuple[int, ...]
    num_done: tuple[int, ...]
    rounds: tuple[tuple[int, ...], ...]
    latest: tuple[tuple[tuple[int, int], ...], ...]
    now_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether every worker has left or is dead."""
        return all(worker.stage in GONE for row in self.workers for worker in row)

    def with_worker(self, host: int, job: int, worker: Worker) -> "World":
        """The same with one worker changed."""
        row = self.workers[host]
        return self._replace(workers=placed(self.workers, host, placed(row, job, worker)))

    def with_token(self, host: int, token: Token) -> "World":
        """The same with one host's device token changed."""
        return self._replace(tokens=placed(self.tokens, host, token))


def placed(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    """The tuple with one value exchanged."""
    return (*values[:index], value, *values[index + 1 :])
