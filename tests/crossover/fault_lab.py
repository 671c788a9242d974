"""Two jobs of two workers each, real processes with real collectives, and faults: `fault_lab.py FOLDER [FAULT …]`.

Worker r of each job uses device r. Job `a` suffers the fault in worker 0 at step FAULT_STEP. For each fault one line of
JSON says what became of every worker and when each of its steps ended. Nothing outlives this process but arbiters,
which end by themselves.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from patience import patience_s

from crossover import CrossoverError, Participant
from crossover.process import ensure
from crossover.settings import Settings

NUM_STEPS = 14
FAULT_STEP = 4
TURN_S = 0.01
SOON_S = 0.1
LEASE_LIMIT_S = patience_s(0.6)  # a sound job's turn must not reach it on a busy machine
IDLE_LIMIT_S = patience_s(0.6)
STALL_S = 3 * IDLE_LIMIT_S
LATE_S = 0.5
PATIENCE_S = patience_s(25.0)
LINGER_S = patience_s(5.0)  # for the workers to come: they know the arbiter by its process


@dataclass(slots=True)
class Worker:
    """One worker's place in the story."""

    job: str
    rank: int
    step: int = 0
    arbiter_pid: int = 0

    @property
    def is_victim(self) -> bool:
        """Whether the fault happens here and now."""
        return self.job == "a" and self.rank == 0 and self.step == FAULT_STEP


def nothing(worker: Worker) -> None:
    """No fault here."""


def kill(worker: Worker) -> None:
    """Die without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop(worker: Worker) -> None:
    """Be stopped, as by a debugger."""
    os.kill(os.getpid(), signal.SIGSTOP)


def hang(worker: Worker) -> None:
    """Stay in the turn."""
    time.sleep(PATIENCE_S)


def stall(worker: Worker) -> None:
    """A loader that has nothing for a while."""
    time.sleep(STALL_S)


def fail(worker: Worker) -> None:
    """An exception, as from backward."""
    raise FloatingPointError("loss is not finite")


def exhaust(worker: Worker) -> None:
    """Ask for more memory than there may be."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 31, resource.RLIM_INFINITY))
    torch.empty(1 << 34, dtype=torch.uint8).fill_(1)


def crash_arbiter(worker: Worker) -> None:
    """The arbiter dies in the middle of a turn."""
    os.kill(worker.arbiter_pid, signal.SIGKILL)


def die_waiting(worker: Worker) -> None:
    """Be killed a moment from now, when the turn has been asked for and another job has it."""
    if os.fork() == 0:
        time.sleep(SOON_S)
        os.kill(os.getppid(), signal.SIGKILL)
        os._exit(0)


Hook = Callable[[Worker], None]
PLACES = ("before", "inside", "after")
FAULTS: dict[str, tuple[str, Hook]] = {
    "none": ("before", nothing),
    "late-join": ("before", nothing),
    "killed-holding": ("inside", kill),
    "killed-waiting": ("before", die_waiting),
    "killed-in-collective": ("after", kill),
    "stopped-holding": ("inside", stop),
    "hanging": ("inside", hang),
    "loader-stall": ("before", stall),
    "exception-in-backward": ("inside", fail),
    "out-of-memory": ("inside", exhaust),
    "arbiter-crash": ("inside", crash_arbiter),
    "arbiter-crash-between": ("after", crash_arbiter),
}


def work(worker: Worker, seat: Participant, fault: str, num_steps: int) -> list[float]:
    """The loop of CROSSOVER's turns with a collective; the end of each step on the monotonic clock."""
    place, hook = FAULTS[fault]
    happen = {name: hook if name == place else nothing for name in PLACES}
    ends_s = []
    for step in range(num_steps):
        worker.step = step
        strike = happen if worker.is_victim else dict.fromkeys(PLACES, nothing)
        strike["before"](worker)
        late_other = fault == "killed-waiting" and worker.job == "b" and step == FAULT_STEP - 1
        with seat.turn():
            strike["inside"](worker)
            time.sleep(4 * SOON_S if late_other else TURN_S)
        strike["after"](worker)
        dist.all_reduce(torch.ones(1000))
        ends_s.append(time.monotonic())
    return ends_s


def live(worker: Worker, socket: str, fault: str, num_steps: int) -> dict[str, object]:
    """A worker's whole life; what it has to tell.

    Its peers meet in a file: a store that the parent served would look up names in a thread of its own, and a worker
    forked at that moment would wait for the resolver's lock for ever.
    """
    peers = dist.FileStore(f"{socket}.{worker.job}.store", 2)
    dist.init_process_group("gloo", store=peers, rank=worker.rank, world_size=2, timeout=timedelta(seconds=PATIENCE_S))
    told: dict[str, object] = {"job": worker.job, "rank": worker.rank, "error": ""}
    settings = settings_for(fault)
    if fault == "late-join" and worker.job == "a":
        time.sleep(LATE_S)
    seat = Participant(
        socket, worker.job, device=str(worker.rank), settings=settings, wait_limit_s=PATIENCE_S, agree=agreed
    )
    with seat:
        try:
            told["ends_s"] = work(worker, seat, fault, num_steps)
        except (CrossoverError, RuntimeError, FloatingPointError, MemoryError) as error:
            told["error"] = f"{type(error).__name__}: {error}"[:200]
    return told


def agreed(entry: int) -> int:
    """The latest round of the job's workers."""
    most = torch.tensor([entry])
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)


def settings_for(fault: str) -> Settings:
    """Short limits, so that what they end ends soon."""
    gather_limit_s = SOON_S if fault == "late-join" else PATIENCE_S
    return Settings(
        jobs=("a", "b"), lease_limit_s=LEASE_LIMIT_S, idle_limit_s=IDLE_LIMIT_S, gather_limit_s=gather_limit_s
    )


def fork(action: Callable[[], dict[str, object]]) -> tuple[int, int]:
    """Run it in a child; pid and the end of a pipe from which its JSON comes."""
    source, sink = os.pipe()
    pid = os.fork()
    if pid:
        os.close(sink)
        return pid, source
    code = 1
    try:
        os.write(sink, json.dumps(action()).encode())
        code = 0
    finally:
        os._exit(code)


def tell(socket: str, fault: str) -> list[dict[str, object]]:
    """Run one story."""
    arbiter = ensure(Path(socket), settings_for(fault), linger_s=LINGER_S)
    lengths = {"a": NUM_STEPS // 2 if fault == "none" else NUM_STEPS, "b": 4 * NUM_STEPS}
    workers = [Worker(job, rank, arbiter_pid=arbiter.pid) for job in "ba" for rank in range(2)]
    children = [fork(partial(live, w, socket, fault, lengths[w.job])) for w in workers]
    told = []
    for worker, (pid, source) in zip(workers, children, strict=True):  # job b first: it must not wait for the other
        if worker.job == "a" and worker.rank == 0 and fault in ("stopped-holding", "hanging"):
            os.kill(pid, signal.SIGKILL)
        with os.fdopen(source, "rb") as stream:
            line = stream.read()
        status = os.waitpid(pid, 0)[1]
        report = json.loads(line) if line else {"job": worker.job, "rank": worker.rank, "error": "died"}
        told.append(report | {"code": os.waitstatus_to_exitcode(status)})
    return told


def main(folder: Path, faults: list[str]) -> None:
    """Run the stories one after the other."""
    for fault in faults or FAULTS:
        print(json.dumps([fault, tell(str(folder / f"{fault}.sock"), fault)]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
