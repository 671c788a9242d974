"""What a plan comes to."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What to do with a plan; the worst of its reasons."""

    ADMIT = "admit"
    WARN = "warn"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why not simply ADMIT."""

    verdict: Verdict
    text: str
