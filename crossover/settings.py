"""What an arbiter is started with."""

from dataclasses import dataclass
from math import inf

from crossover import policies
from crossover.errors import Refused
from crossover.policies import Sharing
from crossover.protocol import check_job

GATHER_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Settings:
    """`jobs` are in turn order, which must be the same on every host.

    After `gather_limit_s` a declared job that has not come is not waited for any more; after `lease_limit_s` (None:
    never) a lease is withdrawn and its holder fenced.
    """

    jobs: tuple[str, ...]
    sharing: Sharing = Sharing.CROSSOVER
    lead_rounds: int = 0
    gather_limit_s: float = GATHER_LIMIT_S
    lease_limit_s: float | None = None

    def __post_init__(self) -> None:
        policies.new_token([check_job(job) for job in self.jobs])
        self.sharing.policy(self.lead_rounds)
        for name, limit_s in (("gather_limit_s", self.gather_limit_s), ("lease_limit_s", self.lease_limit_s)):
            if limit_s is not None and not 0 < limit_s < inf:
                raise Refused(f"{name} must be a positive number of seconds, not {limit_s}")
