"""How the simulated jobs share: the policy, the link, and what disturbs them."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from math import isfinite

from crossover.errors import Refused
from crossover.policies import Extent, Turns
from crossover.tokens import Policy

Disturbance = Callable[[int, int, int], float]
"""A number for (host, job, round)."""


class LinkSharing(StrEnum):
    """How jobs share the link.

    `fifo` are link turns, in the device's order: a job's messages of one step have the link to themselves, from the
    first to the last. `fair` is processor sharing among the messages in flight, as TCP does. `arrival` is an ideal
    link, first come first served message by message, that needs no turns.
    """

    FIFO = "fifo"
    FAIR = "fair"
    ARRIVAL = "arrival"


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a job comes, and the round it wants to enter at. One that is not `awaited` joins the others under way."""

    at_s: float = 0.0
    first_round: int = 0
    awaited: bool = True


@dataclass(frozen=True, slots=True)
class Rules:
    """How the jobs share, by default in strict turns on one host.

    - `extent`: what a turn lasts until; `shares[i]`: turns of job i in a cycle of the queue (empty: one each).
    - `orders`: each host's turn order as job numbers (empty: one host, jobs as given).
    - `in_flight`: how many messages of a job travel at once.
    - `handover_s`: idle time of the device before each turn; `interference`: σ, while messages travel computation
      runs at 1/(1+σ).
    - `arrivals[i]`: when job i comes (empty: all at 0).
    - `stretch` multiplies a turn's computation (jitter, stragglers); `stall` is how many seconds after its messages a
      job's next batch is ready (loaders). Both are called once a turn.
    """

    policy: Policy = field(default_factory=Turns)
    _: KW_ONLY
    extent: Extent = Extent.BACKWARD
    link: LinkSharing = LinkSharing.FIFO
    shares: tuple[int, ...] = ()
    orders: tuple[tuple[int, ...], ...] = ()
    in_flight: int = 1
    handover_s: float = 0
    interference: float = 0
    arrivals: tuple[Arrival, ...] = ()
    stretch: Disturbance | None = None
    stall: Disturbance | None = None

    def __post_init__(self) -> None:
        for name, value in (("handover_s", self.handover_s), ("interference", self.interference)):
            if not (isfinite(value) and value >= 0):
                raise Refused(f"{name} must be 0 or more, not {value}")
        if self.in_flight < 1:
            raise Refused(f"in_flight must be 1 or more messages, not {self.in_flight}")

    @property
    def is_symmetric(self) -> bool:
        """Whether all hosts do the same at the same time, so that one speaks for all."""
        return len(set(self.orders)) <= 1 and self.stretch is None and self.stall is None
