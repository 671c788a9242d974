"""What flows did in the packet engine: raw times and bytes of each, counts of the switches, a queue over time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """Flows of one group, in the order in which they were made.

    `start_s` and `end_s` (None: not ended) are moments, `alone_s` how long each would take by itself at line rate.
    `before_bytes` had arrived in order when counting began, `delivered_bytes` by the end. `round_trip_s` is the mean
    over a flow's acknowledgements (None: there were none).
    """

    name: str
    num_bytes: tuple[float, ...]
    start_s: tuple[float, ...]
    end_s: tuple[float | None, ...]
    alone_s: tuple[float, ...]
    before_bytes: tuple[float, ...]
    delivered_bytes: tuple[float, ...]
    round_trip_s: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficFacts:
    """A run of the packet engine until `now_s`.

    Counts are over all switches and flows. `mean_queue_bytes` is that of the watched port over the time from `from_s`
    on; `times_s`, `queue_bytes` and `num_pauses` (so far, all switches) are samples of it. `mark_bytes` is the queue
    from which switches mark (None: never), `least_round_trip_s` that of a packet of the longest path
    where nobody else sends. `circle` are links of lossless switches that wait for each other, in order;
    empty where none do.
    """

    groups: tuple[GroupFacts, ...]
    from_s: float
    now_s: float
    num_events: int
    num_resent: int
    num_timeouts: int
    num_drops: int
    num_marks: int
    num_paused: int
    mean_queue_bytes: float
    mark_bytes: float | None
    least_round_trip_s: float
    times_s: tuple[float, ...] = ()
    queue_bytes: tuple[int, ...] = ()
    num_pauses: tuple[int, ...] = ()
    circle: tuple[int, ...] = ()
