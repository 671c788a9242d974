"""What an arbiter is started with."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from typing import Any

from crossover import tokens
from crossover.errors import Refused
from crossover.policies import Beat, Extent, Sharing, link_policy, policy_of
from crossover.protocol import Resource, check_job
from crossover.tokens import Policy, Token

GATHER_LIMIT_S = 300.0
IDLE_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`jobs` are in turn order, which must be the same on every host.

    `shares[i]` is how many turns job i has in a cycle (for `weighted`; empty: one each), `groups` are jobs that belong
    together (for `muri`), `beats[i]` says when job i's steps begin (for `cassini`). After `gather_limit_s` a declared
    job that has not come is not waited for any more; after `lease_limit_s` (None: never) a lease is withdrawn and its
    holder fenced; after `idle_limit_s` (None: never, as NCCL wants it) a job whose turn it is and that does not come
    for it is passed over (`passes_over_after_s`). Raises `Refused` for what does not fit together.
    """

    jobs: tuple[str, ...]
    sharing: Sharing = Sharing.CROSSOVER
    lead_rounds: int = 0
    shares: tuple[int, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    beats: tuple[Beat, ...] = ()
    gather_limit_s: float = GATHER_LIMIT_S
    lease_limit_s: float | None = None
    idle_limit_s: float | None = IDLE_LIMIT_S
    # made once: policies are compared and asked on every turn
    _policies: dict[Resource, Policy] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        # first, so that later messages may name them
        for job in self.jobs:
            check_job(job)
        _check_belongs("shares", self.shares, self.sharing, Sharing.WEIGHTED, len(self.jobs))
        _check_belongs("beats", self.beats, self.sharing, Sharing.CASSINI, len(self.jobs))
        if (strangers := {job for group in self.groups for job in group} - set(self.jobs)) or (
            self.groups and self.sharing is not Sharing.MURI
        ):
            raise Refused(
                f"groups {self.groups} under {self.sharing}: give them to muri, of jobs among {self.jobs}"
                f"{f', not {sorted(strangers)}' if strangers else ''}"
            )
        for name in ("gather_limit_s", "lease_limit_s", "idle_limit_s"):
            limit_s = getattr(self, name)
            if limit_s is None and name != "gather_limit_s":
                continue
            if limit_s is None or not (isfinite(limit_s) and limit_s > 0):
                raise Refused(f"{name} must be a positive number of seconds, not {limit_s}")
        # refuses jobs and shares that do not fit together
        self.token()
        beats = tuple(zip(self.jobs, self.beats, strict=True)) if self.beats else ()
        device = policy_of(self.sharing, lead_rounds=self.lead_rounds, groups=self.groups, beats=beats)
        self._policies[Resource.DEVICE] = device
        self._policies[Resource.LINK] = link_policy(device)

    def token(self) -> Token:
        """A token as these jobs find it at first."""
        return tokens.new_token(self.jobs, dict(zip(self.jobs, self.shares, strict=True)) if self.shares else None)

    @property
    def passes_over_after_s(self) -> float | None:
        """The idle limit in force. Under `hold` none: a turn held through an all-reduce is held on all hosts, and hosts
        that had passed over different jobs would wait for each other for ever."""
        return None if self.sharing.extent is Extent.MESSAGES else self.idle_limit_s

    def policy(self, resource: Resource) -> Policy:
        """The rule for a token of this kind."""
        return self._policies[resource]

    def to_json(self) -> str:
        """One line of JSON, which `from_json` reads."""
        return json.dumps({name: value for name, value in asdict(self).items() if not name.startswith("_")})

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        """Raises `Refused` for anything that is not the JSON of settings."""
        try:
            given: dict[str, Any] = json.loads(text)
            known = {item.name for item in fields(cls) if item.init}
            # a misspelt limit must not be taken for none
            if unknown := set(given) - known:
                raise Refused(f"unknown settings {sorted(unknown)}: use {sorted(known)}")
            return cls(**{name: _READERS.get(name, _as_it_is)(value) for name, value in given.items()})
        except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise Refused(f"settings {text[:200]!r} cannot be used: {error}") from error


def _as_it_is(value: Any) -> Any:
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "jobs": tuple,
    "sharing": Sharing,
    "shares": tuple,
    "groups": lambda groups: tuple(map(tuple, groups)),
    "beats": lambda beats: tuple(Beat(**beat) for beat in beats),
}


def _check_belongs(name: str, given: tuple[object, ...], sharing: Sharing, owner: Sharing, num_jobs: int) -> None:
    if given and (sharing is not owner or len(given) != num_jobs):
        raise Refused(f"{name} {given} under {sharing}: give them to {owner}, one a job ({num_jobs})")
    if owner is Sharing.CASSINI and sharing is owner and not given:
        raise Refused("cassini needs beats, a shift and a period a job: `crossover plan` computes them")
