"""Whether jobs should share: what they would gain, what each would pay, and whether they fit.

`plan` forecasts the steady state with the scheduler's own rules on a virtual clock (`crossover.simulator.forecast`),
beside the bound T* of `crossover.theory`, and judges it:

- REFUSE, when a step of every job takes longer together than one after the other (T > Σt), or memory does not suffice;
- WARN, when a job runs at less than its k-th part of a device (r_i t_i < 1/k, the sharing incentive), when next to
  nothing is gained, or when something that was asked for cannot be known;
- ADMIT otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from crossover.errors import Refused
from crossover.planning.memory import Memory, memory_of, memory_reasons
from crossover.planning.profiles import JobProfile
from crossover.planning.terms import NOISE, Terms, predict, settings_for
from crossover.planning.verdicts import Reason, Verdict
from crossover.policies import Sharing
from crossover.settings import Settings
from crossover.simulator import Forecast
from crossover.theory import Bound, JobCost, bound

WORTHWHILE_GAIN = 1.02


@dataclass(frozen=True, slots=True)
class JobOutlook:
    """What sharing means for one job: its step time, how many times longer that is than alone, steps per second, and
    its speed as a part of its fair share, a k-th of its speed alone (below 1 it would be better off by itself for a
    k-th of the time)."""

    profile: JobProfile
    step_s: float
    slowdown: float
    rate_hz: float
    of_fair_share: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A prediction and a verdict. `settings` start the arbiters accordingly."""

    terms: Terms
    bound: Bound
    period_s: float
    gain: float
    jobs: tuple[JobOutlook, ...]
    device_busy: float
    link_busy: float
    memory: Memory
    settings: Settings
    notes: tuple[str, ...]
    reasons: tuple[Reason, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of the reasons, ADMIT without any."""
        return max((reason.verdict for reason in self.reasons), key=list(Verdict).index, default=Verdict.ADMIT)


def plan(
    profiles: Sequence[JobProfile],
    terms: Terms | None = None,
    *,
    device_memory_bytes: int | None = None,
    weights: Sequence[float] = (),
) -> Plan:
    """Predict and judge jobs that share a device. `weights` are for `weighted` sharing.

    Raises `Refused` for a single job, names that are not different, or terms that do not fit the profiles.
    """
    terms = terms or Terms()
    names = [profile.name for profile in profiles]
    if len(profiles) < 2 or len(set(names)) != len(names):
        raise Refused(f"plan two or more jobs with different names, not {names}")
    settings, notes = settings_for(profiles, terms, weights)
    found = predict(profiles, terms, settings)
    jobs = tuple(
        JobOutlook(profile, slowdown * profile.solo_s, slowdown, 1 / (slowdown * profile.solo_s), len(names) / slowdown)
        for profile, slowdown in zip(profiles, found.slowdowns, strict=True)
    )
    memory = memory_of(profiles, terms.sharing, device_memory_bytes)
    best = bound([_least_cost(profile) for profile in profiles])
    reasons = (
        *_gain_reasons(profiles, terms, found),
        *_fairness_reasons(jobs, terms),
        *memory_reasons(memory),
        *_world_reasons(profiles),
    )
    return Plan(
        terms,
        best,
        found.period_s,
        found.gain,
        jobs,
        found.device_busy,
        found.link_busy,
        memory,
        settings,
        (*notes, *_exposed_notes(profiles, best)),
        reasons,
    )


def _gain_reasons(profiles: Sequence[JobProfile], terms: Terms, found: Forecast) -> tuple[Reason, ...]:
    in_turn_s = sum(profile.solo_s for profile in profiles)
    if found.gain < 1 - NOISE:
        together_s = in_turn_s / found.gain
        text = (
            f"{100 * (1 / found.gain - 1):.2g} % longer than one job after the other: a step of each takes "
            f"{1e3 * together_s:.3f} ms together, {1e3 * in_turn_s:.3f} ms in a row (T > Σt)"
        )
        return (Reason(Verdict.REFUSE, f"{text}; {_why_little(profiles, terms)}"),)
    if found.gain < WORTHWHILE_GAIN:
        return (Reason(Verdict.WARN, f"gains {100 * (found.gain - 1):.1f} %: {_why_little(profiles, terms)}"),)
    return ()


def _why_little(profiles: Sequence[JobProfile], terms: Terms) -> str:
    if terms.sharing in (Sharing.EXCLUSIVE, Sharing.HOLD):
        return f"{terms.sharing} runs one job at a time, by design"
    solo_s = sum(profile.solo_s for profile in profiles)
    # Two per cent of idle time are too little to gain from.
    if sum(profile.compute_s for profile in profiles) > 0.98 * solo_s:
        return "these jobs hide their communication themselves, the device is busy already"
    if sum(profile.communication_s for profile in profiles) > 0.98 * solo_s:
        return "the link is busy already; pair each with a job that computes more"
    return "what one leaves idle, another one does not need"


def _fairness_reasons(jobs: Sequence[JobOutlook], terms: Terms) -> tuple[Reason, ...]:
    if terms.sharing in (Sharing.EXCLUSIVE, Sharing.MURI):  # who waits for another group does not run at all
        return ()
    remedy = "; weighted sharing gives it more turns" if terms.sharing is Sharing.CROSSOVER else ""
    return tuple(
        Reason(
            Verdict.WARN,
            f"{job.profile.name} takes {job.slowdown:.2f} times as long as alone, its fair share would be {len(jobs)}"
            f"{remedy}",
        )
        for job in jobs
        if job.of_fair_share < 1 - 1e-3
    )


def _world_reasons(profiles: Sequence[JobProfile]) -> tuple[Reason, ...]:
    if len({profile.world for profile in profiles}) == 1:
        return ()
    worlds = ", ".join(f"{profile.name} {profile.world}" for profile in profiles)
    return (Reason(Verdict.WARN, f"jobs of different numbers of workers ({worlds}): only some devices are shared"),)


def _least_cost(profile: JobProfile) -> JobCost:
    """What the job needs for certain: of time off the device that was not told apart, none may be the link's."""
    return replace(profile.cost, communication_s=0.0) if profile.exposed_only else profile.cost


def _exposed_notes(profiles: Sequence[JobProfile], best: Bound) -> tuple[str, ...]:
    exposed = [profile.name for profile in profiles if profile.exposed_only]
    if not exposed:
        return ()
    return (
        f"the gain may err either way: all time of {', '.join(exposed)} off the device counts as messages; it is up to "
        f"{best.gain:.2f} where that is latency or loading, and less where computation hides more messages",
    )
