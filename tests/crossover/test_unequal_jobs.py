"""Jobs with different numbers of workers on a host: nobody waits at a device to which one of them never comes."""

from pathlib import Path

import pytest
from patience import patience_s
from torch import nn

from crossover import Participant, start
from crossover.integrations import plain
from crossover.integrations.workers import num_local_workers
from crossover.process import ArbiterProcess
from crossover.status import excuse, read_status

SOON_S = patience_s(20.0)
NEVER_S = 1e6


def seat(arbiter: ArbiterProcess, job: str, device: str, num_local: int | None) -> Participant:
    return Participant(arbiter.path, job, device, wait_limit_s=SOON_S, num_local=num_local)


def waits_at(arbiter: ArbiterProcess) -> list[str]:
    """The devices at which somebody is still to come."""
    return [token.device for token in read_status(arbiter.path).tokens if not token.is_open]


@pytest.mark.parametrize("first", ["a", "b"])
def test_two_workers_and_one_do_not_wait_for_a_third(tmp_path: Path, first: str) -> None:
    """Job a computes on devices 0 and 1, job b on device 0 alone, whichever comes first."""
    with start(tmp_path / "s.sock", gather_limit_s=NEVER_S) as arbiter:
        seats = {}
        for job in (first, *{"a", "b"} - {first}):
            for device in ("0", "1") if job == "a" else ("0",):
                seats[job, device] = seat(arbiter, job, device, 2 if job == "a" else 1)
        assert waits_at(arbiter) == []
        for _, one in sorted(seats.items()):  # in turn order
            one.release(one.acquire())
        for one in seats.values():
            one.leave()


def test_a_worker_that_is_still_to_come_is_waited_for(tmp_path: Path) -> None:
    with (
        start(tmp_path / "s.sock", gather_limit_s=NEVER_S) as arbiter,
        seat(arbiter, "a", "0", 2),
        seat(arbiter, "a", "1", 2),
        seat(arbiter, "b", "0", 2),
    ):
        assert waits_at(arbiter) == ["1"]
        with seat(arbiter, "b", "1", 2):
            assert waits_at(arbiter) == []


def test_a_job_that_does_not_say_how_many_it_is_is_waited_for(tmp_path: Path) -> None:
    with (
        start(tmp_path / "s.sock", gather_limit_s=NEVER_S) as arbiter,
        seat(arbiter, "a", "0", 2),
        seat(arbiter, "a", "1", 2),
        seat(arbiter, "b", "0", None),
    ):
        assert waits_at(arbiter) == ["1"]
        assert excuse(arbiter.path, "b", num_workers=1) == 1
        assert waits_at(arbiter) == []


@pytest.mark.parametrize(
    ("environment", "world", "num"),
    [
        ({}, None, None),
        ({"LOCAL_WORLD_SIZE": "3"}, None, 3),
        ({"LOCAL_WORLD_SIZE": "3"}, 2, 2),
        ({"HOROVOD_LOCAL_SIZE": "x"}, 2, None),
    ],
)
def test_the_launcher_says_how_many_workers_a_host_has(
    environment: dict[str, str], world: int | None, num: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert num_local_workers(world) == num
    if world is None:
        assert plain.team((nn.Linear(1, 1),), ()).num_local == (num or 1)
