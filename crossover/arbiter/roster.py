"""Who sat at an arbiter's tokens when it died, so that its replacement overtakes nobody.

The arbiter writes the roster, a file beside its socket, whenever a job joins or leaves, and removes it when it ends
after its jobs. A roster that is found is a dead arbiter's: its replacement lends nothing at a token before each process
on it has come back to its seat or is dead. So a job that was computing when the arbiter died is not joined by another
one. A process is known by its number and its birth, since numbers are used again.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crossover.errors import Refused
from crossover.protocol import Resource, check_device, check_job
from crossover.settings import Settings


@dataclass(frozen=True, slots=True)
class Place:
    """A job at a token: the process in its seat, or none when it has left (`is_here` false). `pid` 0 is a process in
    another PID namespace."""

    resource: Resource
    device: str
    job: str
    stint: int
    is_here: bool
    pid: int = 0
    birth_ticks: int = 0


@dataclass(frozen=True, slots=True)
class Roster:
    """An arbiter's settings, a generation that none of its leases had passed when this was written, and its places."""

    settings: Settings
    generation: int
    places: tuple[Place, ...]

    def to_json(self) -> str:
        """One line of JSON, which `from_json` reads."""
        places = [asdict(place) | {"resource": place.resource.name.lower()} for place in self.places]
        settings = json.loads(self.settings.to_json())
        return json.dumps({"settings": settings, "generation": self.generation, "places": places})

    @classmethod
    def from_json(cls, text: str) -> "Roster":
        """Raises `Refused` for anything that is not the JSON of a roster."""
        try:
            given: dict[str, Any] = json.loads(text)
            settings = Settings.from_json(json.dumps(given["settings"]))
            return cls(settings, int(given["generation"]), tuple(map(_place, given["places"])))
        except (TypeError, ValueError, AttributeError, KeyError, OverflowError, RecursionError) as error:
            raise Refused(f"{text[:200]!r} is no roster: {error}") from error


def roster_path(socket_path: Path) -> Path:
    """Where the roster of the arbiter at `socket_path` lies."""
    return socket_path.with_name(socket_path.name + ".roster")


def read_roster(path: Path) -> Roster | None:
    """What a dead arbiter left, if anything; `Refused` where it cannot be read."""
    try:
        return Roster.from_json(path.read_text())
    except FileNotFoundError:
        return None
    except Refused as error:
        raise Refused(f"{path} is of another version or damaged: end the jobs on it and remove it ({error})") from error


def write_roster(path: Path, roster: Roster) -> None:
    """Replace the file in one step; it is the owner's alone."""
    part = path.with_name(path.name + ".part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(roster.to_json())
    part.replace(path)


def strike(path: Path, resource: Resource, device: str, job: str) -> None:
    """Note in a dead arbiter's roster that the job has left; the folder must be locked."""
    roster = read_roster(path)
    if roster is not None:
        key = (resource, device, job)
        write_roster(path, Roster(roster.settings, roster.generation, _without(roster.places, key)))


def open_process(place: Place) -> int | None:
    """A descriptor of the place's process; None where it is dead, or cannot be seen from here."""
    if place.pid <= 0:
        return None
    with suppress(ProcessLookupError):
        fd = os.pidfd_open(place.pid)
        if birth_ticks(place.pid) == place.birth_ticks:  # looked up while the descriptor keeps the number from others
            return fd
        os.close(fd)
    return None


def birth_ticks(pid: int) -> int:
    """When the process began, in clock ticks since boot; 0 where it cannot be seen, or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def _without(places: Sequence[Place], key: tuple[Resource, str, str]) -> tuple[Place, ...]:
    left = Place(*key, stint=1, is_here=False)
    return tuple(left if (place.resource, place.device, place.job) == key else place for place in places)


def _place(given: dict[str, Any]) -> Place:
    resource = Resource[given["resource"].upper()]
    device, job = check_device(given["device"]), check_job(given["job"])
    numbers = {name: int(given[name]) for name in ("stint", "pid", "birth_ticks")}
    return Place(resource, device, job, is_here=bool(given["is_here"]), **numbers)
