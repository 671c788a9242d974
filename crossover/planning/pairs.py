"""Many jobs, several devices: the plans of the pairs that are worth it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from crossover.errors import Refused
from crossover.planning.admission import Plan, plan
from crossover.planning.pairing import place
from crossover.planning.profiles import JobProfile
from crossover.planning.terms import Terms
from crossover.planning.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Pairing:
    """Who is on which device: `plans[d]` is that of device d, or None for a job alone there. `throughput` is the sum of
    the devices' gains; jobs that wait have no device."""

    devices: tuple[tuple[str, ...], ...]
    plans: tuple[Plan | None, ...]
    waiting: tuple[str, ...]
    throughput: float


def pair(
    profiles: Sequence[JobProfile],
    num_devices: int | None = None,
    terms: Terms | None = None,
    *,
    device_memory_bytes: int | None = None,
) -> Pairing:
    """Place jobs so that the sum of predicted gains is greatest; a pair that `plan` refuses is none, and neither is one
    with different numbers of workers."""
    names = [profile.name for profile in profiles]
    if not names or len(set(names)) != len(names):
        raise Refused(f"pair jobs with different names, not {names}")
    plans = {
        (i, j): plan([profiles[i], profiles[j]], terms, device_memory_bytes=device_memory_bytes)
        for i, j in combinations(range(len(profiles)), 2)
        if profiles[i].world == profiles[j].world
    }

    def gain(i: int, j: int) -> float | None:
        found = plans.get((i, j))
        return None if found is None or found.verdict is Verdict.REFUSE else found.gain

    placed = place(len(profiles), gain, num_devices)
    return Pairing(
        tuple(tuple(names[job] for job in device) for device in placed.devices),
        tuple(plans[device[0], device[1]] if len(device) == 2 else None for device in placed.devices),
        tuple(names[job] for job in placed.waiting),
        placed.throughput,
    )
