"""What a run of unequal workers adds up: how old reads were, what pushes missed, who waited how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.engine.checkpoint import Saved
from results.record import ConsistencyFacts


@dataclass(slots=True)
class StalenessTally:
    """What a run adds up.

    `ahead` counts reads by how many clocks the reader is ahead of the slowest worker; `missed_by` [workers] counts
    updates by how many others came between read and push; `waited_s` [workers] is time between a push and leave to
    go on.
    """

    waited_s: list[float]
    missed_by: list[Counter[int]]
    ahead: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, num_workers: int) -> StalenessTally:
        """An empty one."""
        return cls([0.0] * num_workers, [Counter() for _ in range(num_workers)])

    def facts(self, clocks: Sequence[int], lost: Sequence[int] = ()) -> ConsistencyFacts:
        """As a record holds it."""
        total: Counter[int] = sum(self.missed_by, Counter())
        return ConsistencyFacts(
            ahead=_by_text(self.ahead),
            missed=_by_text(total),
            missed_by=tuple(map(_by_text, self.missed_by)),
            waited_s=tuple(self.waited_s),
            clocks=tuple(clocks),
            lost=tuple(lost),
        )

    def state_dict(self) -> Saved:
        """For `torch.save`."""
        missed_by = [dict(own) for own in self.missed_by]
        return {"waited_s": list(self.waited_s), "missed_by": missed_by, "ahead": dict(self.ahead)}

    def load_state_dict(self, saved: Saved) -> None:
        """Go on from what `state_dict` gave."""
        self.waited_s, self.ahead = list(saved["waited_s"]), Counter(saved["ahead"])
        self.missed_by = [Counter(own) for own in saved["missed_by"]]


def _by_text(counts: Counter[int]) -> dict[str, int]:
    return {str(value): count for value, count in sorted(counts.items())}
