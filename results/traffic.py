"""What flows did on a simulated network: raw times and bytes of each, counts of the switches, a queue over time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """Flows of one group, in the order in which they were made.

    `start_s` and `end_s` (None: not ended) are moments, `alone_s` how long each would take by itself at line rate.
    `before_bytes` had arrived in order when counting began, `delivered_bytes` by the end. `round_trip_s` is the mean
    over a flow's acknowledgements (None: there were none). Once a group and those before it are there, what waits for
    it takes `use_s`.
    """

    name: str
    num_bytes: tuple[float, ...]
    start_s: tuple[float, ...]
    end_s: tuple[float | None, ...]
    alone_s: tuple[float, ...]
    before_bytes: tuple[float, ...]
    delivered_bytes: tuple[float, ...]
    round_trip_s: tuple[float | None, ...]
    use_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficFacts:
    """A run of flows until `now_s`. `is_drawn` says whether a seed drew anything of it.

    Fluids have no packets: what follows `is_drawn` is the packet engine's and keeps its defaults, but for
    `circuit_bytes`, which went over circuits where there are some. Counts are over all switches and flows.
    `mean_queue_bytes` is that of the watched port over the time from `from_s` on; `times_s`, `queue_bytes` and
    `num_pauses` (so far, all switches) are samples of it. `mark_bytes` is the queue from which switches mark (None:
    never), `least_round_trip_s` that of a packet of the longest path where nobody else sends. `circle` are links of
    lossless switches that wait for each other, in order; empty where none do.
    """

    groups: tuple[GroupFacts, ...]
    from_s: float
    now_s: float
    is_drawn: bool = True
    circuit_bytes: float | None = None
    num_events: int = 0
    num_resent: int = 0
    num_timeouts: int = 0
    num_drops: int = 0
    num_marks: int = 0
    num_paused: int = 0
    mean_queue_bytes: float = 0.0
    mark_bytes: float | None = None
    least_round_trip_s: float = 0.0
    times_s: tuple[float, ...] = ()
    queue_bytes: tuple[int, ...] = ()
    num_pauses: tuple[int, ...] = ()
    circle: tuple[int, ...] = ()
