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
from dataclasses import dataclass
from typing import Any

from crossover.arbiter.listening import PrivateFolder
from crossover.errors import Refused
from crossover.protocol import Resource, check_device, check_job
from crossover.settings import Settings
from crossover.supervisor import stat_fields


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """A job at a token: the process in its seat, or none when it has left (`is_here` false). `pid` 0 is a process in
    another PID namespace."""

    resource: Resource
    device: str
    job: str
    stint: int
    is_here: bool
    pid: int = 0
    birth_ticks: int = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON. Not `asdict`, which takes longer than all else at a join where many jobs sit."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"resource": self.resource.name.lower()}


@dataclass(frozen=True, slots=True)
class Roster:
    """An arbiter's settings, a generation that none of its leases had passed when this was written, and its entries."""

    settings: Settings
    generation: int
    entries: tuple[RosterEntry, ...]

    def to_json(self) -> str:
        """One line of JSON, which `from_json` reads."""
        entries = [entry.to_dict() for entry in self.entries]
        settings = json.loads(self.settings.to_json())
        return json.dumps({"settings": settings, "generation": self.generation, "entries": entries})

    @classmethod
    def from_json(cls, text: str) -> "Roster":
        """Raises `Refused` for anything that is not the JSON of a roster."""
        try:
            given: dict[str, Any] = json.loads(text)
            settings = Settings.from_json(json.dumps(given["settings"]))
            return cls(settings, int(given["generation"]), tuple(map(_entry, given["entries"])))
        except (TypeError, ValueError, AttributeError, KeyError, OverflowError, RecursionError) as error:
            raise Refused(f"{text[:200]!r} is no roster: {error}") from error


@dataclass(frozen=True, slots=True)
class RosterFile:
    """Where an arbiter's roster lies: a file of the owner's beside its socket."""

    folder: PrivateFolder
    socket_name: str

    @property
    def name(self) -> str:
        """The file's name in the folder."""
        return f"{self.socket_name}.roster"

    def __str__(self) -> str:
        return str(self.folder.path / self.name)

    def read(self) -> Roster | None:
        """What a dead arbiter left, if anything; `Refused` where it cannot be read."""
        try:
            return Roster.from_json(self.folder.read(self.name))
        except FileNotFoundError:
            return None
        except (Refused, OSError) as error:
            raise Refused(
                f"{self} is of another version or damaged: end the jobs on it and remove it ({error})"
            ) from error

    def write(self, roster: Roster) -> None:
        """Replace the file in one step. Raises OSError where there is no room."""
        self.folder.replace(self.name, roster.to_json())

    def strike(self, resource: Resource, device: str, job: str) -> None:
        """Note in a dead arbiter's roster that the job has left; the folder must be locked."""
        roster = self.read()
        if roster is not None:
            entries = _without(roster.entries, (resource, device, job))
            # no generation is given out here, so the old bound still holds
            self.write(Roster(roster.settings, roster.generation, entries))

    def remove(self) -> None:
        """Remove it, if it is there."""
        self.folder.remove(self.name)


def open_process(entry: RosterEntry) -> int | None:
    """A descriptor of the process in that seat; None where it is dead, or cannot be seen from here."""
    if entry.pid <= 0:
        return None
    with suppress(ProcessLookupError):
        # first the descriptor: from here on the number cannot be given to another process
        fd = os.pidfd_open(entry.pid)
        if birth_ticks(entry.pid) == entry.birth_ticks:  # looked up while the descriptor keeps the number from others
            return fd
        os.close(fd)
    return None


def may_live(entry: RosterEntry) -> bool:
    """Whether the process in that seat lives, or cannot be seen from here."""
    fd = open_process(entry)
    if fd is not None:
        os.close(fd)
    return entry.is_here and (fd is not None or not entry.pid)


def birth_ticks(pid: int) -> int:
    """When the process began, in clock ticks since boot; 0 where it cannot be seen, or is a zombie."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields and fields[0] != "Z" else 0


def process_state(pid: int) -> str:
    """The kernel's letter for what the process does: R runs, S sleeps, T is stopped, Z is a zombie; empty where it
    cannot be seen."""
    return next(iter(stat_fields(pid)), "")


def _without(entries: Sequence[RosterEntry], key: tuple[Resource, str, str]) -> tuple[RosterEntry, ...]:
    # whatever its stints were: it comes back behind those that stayed
    left = RosterEntry(*key, stint=1, is_here=False)
    return tuple(left if (entry.resource, entry.device, entry.job) == key else entry for entry in entries)


def _entry(given: dict[str, Any]) -> RosterEntry:
    resource = Resource[given["resource"].upper()]
    device, job = check_device(given["device"]), check_job(given["job"])
    numbers = {name: int(given[name]) for name in ("stint", "pid", "birth_ticks")}
    return RosterEntry(resource, device, job, is_here=bool(given["is_here"]), **numbers)
