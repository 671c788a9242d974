"""What a plan takes for granted, the settings that its rule needs, and the forecast under both."""

from collections.abc import Sequence
from dataclasses import dataclass

from crossover.errors import Refused
from crossover.planning.cassini import shifts_of
from crossover.planning.muri import muri_groups, stages_of
from crossover.planning.profiles import JobProfile
from crossover.planning.rates import forecast_speeds, whole_shares
from crossover.policies import Sharing
from crossover.settings import Settings
from crossover.simulator import Forecast, LinkSharing, forecast

HANDOVER_S = 100e-6  # release to the next job's start on an idle machine
NOISE = 1e-6  # relative: what is no difference


@dataclass(frozen=True, slots=True)
class Terms:
    """What is taken for granted: the rule, how the link is shared, a hand-over's cost, and interference σ (computation
    runs at 1/(1+σ) while messages travel).

    `link` is what flows do by themselves; link turns (`fifo`) are for jobs whose own senders take them, which DDP,
    Horovod and DeepSpeed cannot.
    """

    sharing: Sharing = Sharing.CROSSOVER
    link: LinkSharing = LinkSharing.FAIR
    handover_s: float = HANDOVER_S
    interference: float = 0.0
    num_hosts: int = 1

    @property
    def fair_link(self) -> bool:
        """Whether messages of several jobs share the link: only some rules have link turns."""
        return self.link is LinkSharing.FAIR or not self.sharing.gates_link

    def __post_init__(self) -> None:
        if not (0 <= self.handover_s < float("inf") and 0 <= self.interference < float("inf")):
            raise Refused(
                f"hand-over {self.handover_s} s and interference {self.interference} must be 0 or more, and finite"
            )


def settings_for(
    profiles: Sequence[JobProfile], terms: Terms, weights: Sequence[float]
) -> tuple[Settings, tuple[str, ...]]:
    """The rule's own parameters, computed, and what to say about them."""
    jobs = tuple(profile.name for profile in profiles)
    if weights and terms.sharing is not Sharing.WEIGHTED:
        raise Refused(f"weights {list(weights)} under {terms.sharing}: give them to weighted sharing")
    match terms.sharing:
        case Sharing.WEIGHTED:
            return _weighted(profiles, terms, weights)
        case Sharing.MURI:
            numbers = muri_groups(stages_of(profiles))
            groups = tuple(tuple(jobs[number] for number in group) for group in numbers)
            return Settings(jobs=jobs, sharing=terms.sharing, groups=groups), (
                "groups, one after the other: " + "; ".join(" + ".join(group) for group in groups),
            )
        case Sharing.CASSINI:
            shifts = shifts_of([profile.shape() for profile in profiles])
            note = f"compatibility: link {shifts.link_score:.3f}, device {shifts.device_score:.3f}"
            periods = ", ".join(f"{1e3 * beat.period_s:.1f}" for beat in shifts.beats)
            note += f"; periods {periods} ms"
            return Settings(jobs=jobs, sharing=terms.sharing, beats=shifts.beats), (note,)
        case _:
            return Settings(jobs=jobs, sharing=terms.sharing), ()


def _weighted(
    profiles: Sequence[JobProfile], terms: Terms, weights: Sequence[float]
) -> tuple[Settings, tuple[str, ...]]:
    jobs = tuple(profile.name for profile in profiles)
    shares = whole_shares(
        [profile.cost for profile in profiles],
        weights,
        handover_s=terms.handover_s,
        interference=terms.interference,
        speeds_of=forecast_speeds(
            [profile.shape() for profile in profiles],
            link=terms.link,
            handover_s=terms.handover_s,
            interference=terms.interference,
        ),
    )
    turns = ", ".join(f"{job} {count}" for job, count in zip(jobs, shares.turns, strict=True))
    note = f"turns in a cycle: {turns}; {100 * shares.loss:.1f} % below the rates of the linear programme"
    return Settings(jobs=jobs, sharing=Sharing.WEIGHTED, shares=shares.turns), (note,)


def predict(profiles: Sequence[JobProfile], terms: Terms, settings: Settings) -> Forecast:
    """The steady state under these settings."""
    numbers = {profile.name: number for number, profile in enumerate(profiles)}
    return forecast(
        [profile.shape() for profile in profiles],
        terms.sharing,
        link=LinkSharing.FAIR if terms.fair_link else terms.link,
        handover_s=terms.handover_s,
        interference=terms.interference,
        num_hosts=terms.num_hosts,
        shares=settings.shares,
        groups=[[numbers[job] for job in group] for group in settings.groups],
        beats=settings.beats,
    )
