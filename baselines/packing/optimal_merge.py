"""Optimal merge: the partition of the gradients into messages with which the last message ends earliest.

Paper: no system of its own; the exact optimum of the problem that Shi et al., MG-WFBP, INFOCOM 2019, arXiv 1811.11141
state, and so the bound of every packing that neither cuts nor reorders. One link serves messages one after the other;
a message of n bytes takes α + β·n and starts when its last gradient is ready. With r_j the time at which the first j
gradients are ready, B(i, j) the bytes of gradients i+1 … j, and F_0 = 0, the earliest end of the first j is

    F_j = min over i < j of  max(F_i, r_j) + α + β·B(i, j),

since a message never ends earlier because those before it ended later. O(L²) in the worst case; going back from j,
the search ends where r_j + α + β·B(i, j) alone is later than the best found. Of equally early ends F_j the one of
fewest messages is taken, so each message ends as early as it can and then there are as few as can be.

No setting: α, β and the times are measured. Until it is bound, each tensor travels alone.

Differs from the problem as stated: number formats never mix, so where the format changes a message ends; the optimum
is over partitions that do so. The end of the last message counts, not when the next forward could begin: see the
orderings for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf
from typing import ClassVar, Self

from baselines.api import Card, Costs, Group, Packed, Segment, Slot


@dataclass(frozen=True, slots=True)
class OptimalMerge:
    card: ClassVar[Card] = Card(
        name="optimal-merge",
        slot=Slot.PACKING,
        summary="the merge with which the last message ends earliest, by an exact dynamic programme",
        paper="exact optimum of the problem in Shi et al., MG-WFBP, INFOCOM 2019",
    )
    rank_invariant: ClassVar[bool] = True
    slices: ClassVar[bool] = False
    costs: Costs | None = field(default_factory=lambda: None)  # a factory: texts cannot set it, `replace` can

    def bind(self, costs: Costs) -> Self:
        """The same policy, planning with `costs`."""
        return replace(self, costs=costs)

    def pack(self, ready: Sequence[Segment]) -> Packed:
        """The optimal partition, or each tensor alone before it is bound. Raises: ValueError if bound to another
        layout."""
        if self.costs is None:
            return Packed(tuple((segment,) for segment in ready))
        if len(ready) != len(self.costs.backward_s):
            raise ValueError(
                f"optimal-merge is bound to the times of {len(self.costs.backward_s)} gradients and asked about "
                f"{len(ready)}; bind it to costs of this layout"
            )
        return Packed(merge_optimally(ready, self.costs))


def merge_optimally(segments: Sequence[Segment], costs: Costs) -> tuple[Group, ...]:
    """The messages that end earliest, for gradients in ready order, `costs.backward_s` one time a segment."""
    formats = [segment.dtype for segment in segments]
    sizes = [segment.nbytes for segment in segments]
    best = [(0.0, 0, 0)]  # of the first j gradients: when they have been sent, in how many messages, start of the last
    for stop, ready_s in enumerate(accumulate(costs.backward_s), start=1):
        earliest, nbytes = (inf, 0, 0), 0
        for start in range(stop - 1, -1, -1):
            nbytes += sizes[start]
            message_s = costs.message_s(nbytes)
            if formats[start] != formats[stop - 1] or ready_s + message_s > earliest[0]:
                break
            free_s, num_messages, _ = best[start]
            earliest = min(earliest, (max(free_s, ready_s) + message_s, num_messages + 1, start))
        best.append(earliest)
    groups: list[Group] = []
    stop = len(segments)
    while stop:
        start = best[stop][2]
        groups.append(tuple(segments[start:stop]))
        stop = start
    return tuple(reversed(groups))
