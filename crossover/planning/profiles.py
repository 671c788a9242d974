"""What a job costs alone: device, link and step time, and memory, as one JSON file a job.

    {"schema": 1, "name": "resnet50", "compute_s": 0.087, "communication_s": 0.143, "solo_s": 0.16, …, "source": "…"}

Times are of one step of one worker, in seconds, when the job has the device and the link to itself; memory is of one
device, in bytes, and 0 where it is not known. Reading is strict: an unknown or missing field, or a number that cannot
be, is `Refused` with its name.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

from crossover.errors import Refused
from crossover.planning.reading import json_object, read_field
from crossover.protocol import check_job
from crossover.simulator import Bucket, StepShape
from crossover.theory import JobCost

SCHEMA = 1
MAX_FILE_BYTES = 1 << 20
MIN_STEPS = 3
ROUNDING = 1e-6  # relative: what sums of decimal numbers may be off by


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """One job alone.

    `compute_s` is c, how long a step needs the device; `communication_s` is m, how long its messages need the link;
    `solo_s` is t, the whole step. `buckets` are the messages, as (ready after the turn began, time on a free link); a
    job without them is taken to send one message, begun so that it ends with the step. `forward_s` is the time up to
    the end of forward (for `tick-tock`), `loading_s` that of the input stage (for Muri's third resource). With
    `exposed_only`, all time off the device counts as communication, m = t − c: messages that computation hides are not
    in it, and latency and loading are. `world` is the number of workers, and `source` says where the numbers come from.
    """

    name: str
    compute_s: float
    communication_s: float
    solo_s: float
    buckets: tuple[tuple[float, float], ...] = ()
    forward_s: float | None = None
    loading_s: float = 0.0
    exposed_only: bool = False
    parameters_bytes: int = 0
    gradients_bytes: int = 0
    optimizer_bytes: int = 0
    activations_bytes: int = 0
    world: int = 1
    source: str = ""

    def __post_init__(self) -> None:
        check_job(self.name)
        _check_times(self)
        for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes"):
            if getattr(self, name) < 0:
                raise Refused(f"{self.name}: {name} is {getattr(self, name)}; give bytes, or 0 for unknown")
        if self.world < 1:
            raise Refused(f"{self.name}: world is {self.world}; give the number of workers, 1 or more")
        if self.buckets:
            _check_buckets(self)

    @property
    def cost(self) -> JobCost:
        """c, m and t, as `crossover.theory` wants them."""
        return JobCost(self.compute_s, self.communication_s, self.solo_s)

    @property
    def exposed_s(self) -> float:
        """e = t − c: communication (and waiting) that the job's own computation does not hide."""
        return self.solo_s - self.compute_s

    @property
    def state_bytes(self) -> int:
        """What stays on the device between turns: parameters, gradients and the optimizer's state."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes

    def shape(self) -> StepShape:
        """The step for the simulator; alone it takes `solo_s`."""
        if self.buckets:
            return StepShape(self.compute_s, tuple(Bucket(*bucket) for bucket in self.buckets), self.forward_s)
        return replace(shape_of(self.cost), forward_s=self.forward_s)

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "JobProfile":
        """Raises `Refused` for anything that is not a profile of this schema."""
        given = json_object(text)
        if given.pop("schema", None) != SCHEMA:
            raise Refused(f'a profile has "schema": {SCHEMA}; profile the job again with this version')
        known = {field.name for field in fields(cls)}
        missing = {"name", "compute_s", "communication_s", "solo_s"} - set(given)
        if (unknown := set(given) - known) or missing:
            raise Refused(f"unknown fields {sorted(unknown)}, missing {sorted(missing)}: a profile has {sorted(known)}")
        return cls(**{name: read_field(name, value) for name, value in given.items()})


def shape_of(cost: JobCost) -> StepShape:
    """A step of these costs that sends one message, begun so that it ends with the step.

    Where a step is longer than its parts together (t > c + m: latency, a slow loader), the rest counts as link time,
    which makes a forecast cautious; one that is measured a little shorter than a part of it is as long as that.
    """
    solo_s = max(cost.solo_s, cost.compute_s, cost.communication_s)
    ready_s = min(cost.compute_s, solo_s - cost.communication_s)
    return StepShape(cost.compute_s, (Bucket(ready_s, solo_s - ready_s),))


def read_profile(path: Path) -> JobProfile:
    """The profile in a file. Raises `Refused` naming the file and what is wrong with it."""
    try:
        with path.open("rb") as file:
            # One byte more than may be there: a path that a user names may be a device that never ends.
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise Refused(f"larger than {MAX_FILE_BYTES} bytes; a profile holds one job")
        return JobProfile.from_json(data.decode())
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}; `crossover run --profile DIR` writes profiles") from error
    except ValueError as error:
        raise Refused(f"{path} is not a profile: {error}") from error


def write_profile(profile: JobProfile, path: Path) -> None:
    """Write the profile, replacing what is there in one step."""
    write_text_whole(profile.to_json(), path)


def write_text_whole(text: str, path: Path) -> None:
    """Write a file that a reader sees whole or not at all, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)  # a full disk: leave no half of a file
        raise


def profile_of(
    name: str,
    *,
    turns_s: Sequence[float],
    steps_s: Sequence[float],
    messages_s: Sequence[float] = (),
    forwards_s: Sequence[float] = (),
    world: int = 1,
    memory: Mapping[str, Any] | None = None,
    source: str = "",
) -> JobProfile:
    """A profile from a job's own steps, measured alone and after its warm-up; medians.

    `turns_s` are times from a turn's beginning to the device's idleness (c), `steps_s` from a turn's beginning to the
    next one's (t), `messages_s` of all messages of a step when nothing computes (m), `forwards_s` from a turn's
    beginning to the end of forward. Without `messages_s` m is the time off the device, and the profile says so.
    `memory` has the profile's fields that end in _bytes. A step is never shorter than its parts: where noise says so
    (within 5 %), t is raised.
    """
    for what, times_s in (("turns", turns_s), ("steps", steps_s)):
        if len(times_s) < MIN_STEPS:
            raise Refused(f"{name}: {len(times_s)} {what} measured; run it for {MIN_STEPS} or more after the warm-up")
    compute_s, step_s = median(turns_s), median(steps_s)
    communication_s = median(messages_s) if messages_s else max(0.0, step_s - compute_s)
    # Medians of different quantities need not fit together exactly, but a twentieth is no noise.
    if max(compute_s, communication_s) > 1.05 * step_s:
        raise Refused(
            f"{name}: a step of {step_s:.6f} s cannot hold a turn of {compute_s:.6f} s and messages of "
            f"{communication_s:.6f} s: measure them in the same run, alone"
        )
    return JobProfile(
        name=name,
        compute_s=compute_s,
        communication_s=communication_s,
        solo_s=max(compute_s, communication_s, step_s),
        forward_s=min(median(forwards_s), compute_s) if forwards_s else None,
        world=world,
        exposed_only=not messages_s,
        source="; ".join(filter(None, (source, f"medians of {len(steps_s)} steps"))),
        **(memory or {}),
    )


def _check_times(profile: JobProfile) -> None:
    parts = {"compute_s": profile.compute_s, "communication_s": profile.communication_s, "loading_s": profile.loading_s}
    times = {**parts, "solo_s": profile.solo_s, "forward_s": profile.forward_s or 0.0}
    for name, time_s in times.items():
        if not (isfinite(time_s) and time_s >= 0):
            raise Refused(f"{profile.name}: {name} is {time_s}; give seconds, 0 or more")
    if profile.solo_s <= 0 or max(parts.values()) > profile.solo_s * (1 + ROUNDING):
        raise Refused(
            f"{profile.name}: a step alone (solo_s {profile.solo_s}) is longer than 0 and not shorter than its parts "
            f"{parts}: measure all in the same run"
        )
    if profile.forward_s is not None and profile.forward_s > profile.compute_s:
        raise Refused(f"{profile.name}: forward_s {profile.forward_s} is more than compute_s {profile.compute_s}")


def _check_buckets(profile: JobProfile) -> None:
    cost = profile.shape().cost()
    # The simulator reads buckets and the theory reads sums, so the two must not tell different stories.
    for name, of_buckets_s, given_s in (
        ("communication_s", cost.communication_s, profile.communication_s),
        ("solo_s", cost.solo_s, profile.solo_s),
    ):
        if abs(of_buckets_s - given_s) > 0.01 * profile.solo_s:
            raise Refused(
                f"{profile.name}: its buckets make {name} {of_buckets_s:.6f}, and it says {given_s:.6f}: "
                "they must agree within 1 % of a step, or leave the buckets out"
            )
