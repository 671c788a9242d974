"""Two jobs of two ranks each, as an ordinary script would train them: first without turns, then attached.

    python attach_ranks.py ddp|horovod FOLDER

One process imports the framework and forks the ranks. Each writes FOLDER/JOB-RANK.json: for each scenario a list of
fingerprints (weights, evaluations, checkpoints) solo and shared, and the turns that it had.
"""

import ctypes
import gc
import hashlib
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from crossover import Alone, Sharing, start
from crossover.attach import Attachment, attach
from crossover.integrations import Manner
from crossover.integrations.horovod import bind

JOBS = ("a", "b")
NUM_RANKS = 2
NUM_STEPS = 4
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Scenario:
    """What a script does besides training; the turns' sharing."""

    name: str
    sharing: Sharing = Sharing.CROSSOVER
    num_micro_batches: int = 1
    clips: bool = False
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    evaluates: bool = False
    saves: bool = False
    twins: bool = False
    defer: bool = False


SCENARIOS = (
    *(Scenario(str(sharing), sharing) for sharing in Sharing if sharing not in (Sharing.MPS, Sharing.CASSINI)),
    Scenario("accumulation", num_micro_batches=3),
    Scenario("clipping", clips=True),
    Scenario("evaluation on one rank", evaluates=True),
    Scenario("checkpoints", saves=True),
    Scenario("everything, held", Sharing.HOLD, 2, clips=True, evaluates=True, saves=True),
    Scenario("two identical models", twins=True),
    Scenario("deferred", evaluates=True, defer=True),
    Scenario("deferred, accumulation and checkpoints", num_micro_batches=2, saves=True, defer=True),
    Scenario("deferred, clipping, held", Sharing.HOLD, clips=True, defer=True),
)


class Net(nn.Module):
    """Has parameters of several sizes, buffers and randomness."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Flatten(),
            nn.Linear(36 * width, 5),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class Ddp:
    """A job's rank under DistributedDataParallel."""

    def __init__(self, folder: Path, job: str, rank: int) -> None:
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(folder / f"store-{job}"), NUM_RANKS), rank=rank, world_size=NUM_RANKS
        )

    def wrap(self, model: nn.Module, scenario: Scenario) -> tuple[nn.Module, Any]:
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.001)
        return wrapped, scenario.optimizer(wrapped.parameters(), lr=0.01)

    def accumulating(self, model: Any, is_last: bool) -> AbstractContextManager[None]:
        return nullcontext() if is_last else model.no_sync()

    def clip_and_step(self, model: nn.Module, optimizer: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    def barrier(self) -> None:
        dist.barrier()

    def close(self) -> None:
        dist.destroy_process_group()


class Horovod:
    """A job's rank under Horovod; rank 0 lets the ranks meet."""

    def __init__(self, folder: Path, job: str, rank: int) -> None:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousServer

        store = dist.FileStore(str(folder / f"store-{job}"), NUM_RANKS)
        self._server = None
        if rank == 0:
            self._server = RendezvousServer(verbose=0)
            store.set("port", str(self._server.start()))
            self._server.init(get_host_assignments(parse_hosts(f"localhost:{NUM_RANKS}"), NUM_RANKS, NUM_RANKS))
        size, port = str(NUM_RANKS), store.get("port").decode()
        os.environ.update(
            HOROVOD_RANK=str(rank), HOROVOD_SIZE=size, HOROVOD_LOCAL_RANK=str(rank), HOROVOD_LOCAL_SIZE=size,
            HOROVOD_CROSS_RANK="0", HOROVOD_CROSS_SIZE="1", HOROVOD_HOSTNAME="localhost",
            HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1", HOROVOD_GLOO_RENDEZVOUS_PORT=port, HOROVOD_GLOO_IFACE="lo",
            HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo", HOROVOD_CYCLE_TIME="1",
        )  # fmt: skip
        import horovod.torch as hvd

        self._hvd = hvd
        hvd.init()

    def wrap(self, model: nn.Module, scenario: Scenario) -> tuple[nn.Module, Any]:
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = self._hvd.DistributedOptimizer(
            scenario.optimizer(model.parameters(), lr=0.01),
            named_parameters=model.named_parameters(),
            backward_passes_per_step=scenario.num_micro_batches,
        )
        return model, optimizer

    def accumulating(self, model: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def clip_and_step(self, model: nn.Module, optimizer: Any) -> None:
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()

    def barrier(self) -> None:
        self._hvd.barrier()

    def close(self) -> None:
        """The last update waits for its turn, when the script shuts Horovod down."""
        model, optimizer = self.wrap(Net(4), SCENARIOS[0])
        bond = bind((model,), (optimizer,), Alone(), Manner(defer=True))
        model(torch.ones(2, 1, 8, 8)).sum().backward()
        optimizer.step()
        assert bond.keeper.is_deferring
        self._hvd.shutdown()
        assert not bond.keeper.is_deferring
        if self._server is not None:
            self._server.stop()


FRAMEWORKS: dict[str, Callable[[Path, str, int], Any]] = {"ddp": Ddp, "horovod": Horovod}


def fingerprint(values: Iterator[Tensor]) -> str:
    """Equal only for tensors that are equal in every bit."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def train(framework: Any, scenario: Scenario, job: str, rank: int, path: Path | None) -> tuple[list[str], Attachment]:
    """An ordinary script, but for one line."""
    seed = 0 if scenario.twins else JOBS.index(job)
    torch.manual_seed(seed)
    model, optimizer = framework.wrap(Net(4 + 3 * seed), scenario)
    attachment = attach(model, optimizer, job=job, path=path, defer=scenario.defer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    torch.manual_seed(100 * seed + rank)
    seen = []
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        for micro_batch in range(scenario.num_micro_batches):
            images, labels = torch.randn(3, 1, 8, 8), torch.randint(5, (3,))
            with framework.accumulating(model, micro_batch == scenario.num_micro_batches - 1):
                loss = nn.functional.cross_entropy(model(images), labels) / scenario.num_micro_batches
                loss.backward()
        if scenario.clips:
            framework.clip_and_step(model, optimizer)
        else:
            optimizer.step()
        schedule.step()
        if scenario.evaluates and step % 2 and rank == 0:
            model.eval()
            with torch.no_grad():
                inner = getattr(model, "module", model)
                seen.append(fingerprint(iter([inner(torch.ones(2, 1, 8, 8)), inner(torch.zeros(2, 1, 8, 8))])))
            model.train()
        if scenario.saves and step % 2:
            seen.append(fingerprint(iter(model.state_dict().values())))
            saved = optimizer.state_dict()
            seen.append(fingerprint(value for state in saved["state"].values() for value in state.values()))
            optimizer.load_state_dict(saved)
    framework.barrier()
    seen.append(fingerprint(iter(model.state_dict().values())))
    attachment.close()
    return seen, attachment


def sockets(folder: Path, scenarios: Sequence[Any]) -> list[Path]:
    """Of each scenario's arbiter: one for all that share alike, so that jobs leave it and come back, rank by rank."""
    return [folder / str(scenario.sharing) / "host.sock" for scenario in scenarios]


def run_rank(name: str, folder: Path, job: str, rank: int, paths: list[Path]) -> None:
    """All scenarios in one process."""
    framework = FRAMEWORKS[name](folder, job, rank)
    results, solos = {}, dict[Scenario, list[str]]()
    for scenario, path in zip(SCENARIOS, paths, strict=True):
        script = replace(scenario, name="", sharing=Sharing.NAIVE, defer=False)  # all that matters alone
        solo = solos[script] if script in solos else train(framework, script, job, rank, None)[0]
        solos[script] = solo
        shared, attachment = train(framework, scenario, job, rank, path)
        results[scenario.name] = {"solo": solo, "shared": shared, "num_turns": attachment.statistics.num_turns}
    framework.close()
    (folder / f"{job}-{rank}.json").write_text(json.dumps(results))


def main(name: str, folder: Path) -> int:
    """The exit code is that of the worst rank."""
    gc.freeze()  # each rank would look through all that is imported, and copy its pages
    with ExitStack() as arbiters:
        paths = sockets(folder, SCENARIOS)
        for path, scenario in dict(zip(paths, SCENARIOS, strict=True)).items():
            groups = (JOBS,) if scenario.sharing is Sharing.MURI else ()
            arbiters.enter_context(start(path, JOBS, scenario.sharing, groups=groups))
        pids = [
            fork(lambda job=job, rank=rank: run_rank(name, folder, job, rank, paths))
            for job in JOBS
            for rank in range(NUM_RANKS)
        ]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return max(map(abs, codes))


def fork(action: Callable[[], None]) -> int:
    """A child that ends with this process."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            action()
            code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "horovod":
        importlib.import_module("horovod.torch")  # once, before the fork
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
