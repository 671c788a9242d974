"""Two DeepSpeed jobs of two ranks each: first without turns, then attached.

    python deepspeed_ranks.py FOLDER

One process imports DeepSpeed and forks the ranks. Each writes FOLDER/JOB-RANK.json: for each scenario a list of
fingerprints (weights, evaluations, checkpoints) solo and shared, the turns that it had, and which collectives the
engine called while this worker had a lease, and while it had none. Rank 0 of the example, which runs without turns and
twice with them, prints to FOLDER/alone.txt, first.txt and second.txt.
"""

import gc
import json
import os
import runpy
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import deepspeed.compile.inductor  # this and the next ones an engine imports late: once, before the fork
import deepspeed.module_inject.auto_ep_layer
import deepspeed.runtime.zero.muon.muon_optimizer
import torch
import torch.distributed as dist
import torch.utils.cpp_extension
from attach_ranks import JOBS, NUM_RANKS, fingerprint, fork, sockets
from torch import nn

from crossover import Sharing, start
from crossover.attach import Attachment, attach

EXAMPLE_JOBS = ("first", "second")
NUM_STEPS = 5
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "deepspeed_train.py"
FIRST_PORT, NUM_PORTS, END_OF_PORTS = 10_000, 9_000, 20_000  # runs at once begin at different ones
COLLECTIVES = ("all_reduce", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor")


@dataclass(frozen=True)
class Scenario:
    """What the config says and the script does besides training."""

    name: str
    stage: int
    sharing: Sharing = Sharing.CROSSOVER
    num_micro_batches: int = 1
    clips: bool = False
    evaluates: bool = False
    saves: bool = False
    is_torch_style: bool = False
    zero: dict[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        return {
            "train_micro_batch_size_per_gpu": 3,
            "gradient_accumulation_steps": self.num_micro_batches,
            "gradient_clipping": 0.1 if self.clips else 0.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 3}},
            "zero_optimization": {"stage": self.stage, **self.zero},
        }


SMALL_BUCKETS = {"reduce_bucket_size": 100}
SCENARIOS = (
    *(Scenario(f"stage {stage}", stage) for stage in (0, 1, 2)),
    *(Scenario(f"held, stage {stage}", stage, Sharing.HOLD, 2, clips=True) for stage in (0, 2)),
    *(
        Scenario(f"everything, stage {stage}", stage, num_micro_batches=2, clips=True, evaluates=True, saves=True)
        for stage in (0, 1, 2)
    ),
    Scenario("small buckets, stage 2", 2, zero=SMALL_BUCKETS),
    Scenario("small overlapped buckets, stage 1", 1, zero={**SMALL_BUCKETS, "overlap_comm": True}),
    Scenario("small buckets, tick-tock, stage 2", 2, Sharing.TICK_TOCK, zero=SMALL_BUCKETS),
    Scenario("naive, stage 1", 1, Sharing.NAIVE),
    Scenario("exclusive, stage 2", 2, Sharing.EXCLUSIVE, zero=SMALL_BUCKETS),
    Scenario("loss.backward(), stage 1", 1, is_torch_style=True),
)


class Collectives:
    """Notes under which lease each of torch's collectives is called."""

    def __init__(self) -> None:
        self.has_lease: Callable[[], bool] = lambda: False
        self.noted: list[tuple[str, bool]] = []

    def watch(self, name: str) -> None:
        inner = getattr(dist, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.noted.append((name, self.has_lease()))
            return inner(*args, **kwargs)

        setattr(dist, name, watched)

    def take(self, attachment: Attachment) -> list[tuple[str, bool]]:
        """What was called since the last time; from now on, ask this attachment's keeper."""
        noted, self.noted = self.noted, []
        bond = attachment._bond
        self.has_lease = (lambda: False) if bond is None else (lambda: bond.keeper.in_turn)
        return noted


def train(scenario: Scenario, job: str, rank: int, path: Path | None, collectives: Collectives) -> dict[str, Any]:
    """An ordinary script, but for one line."""
    seed = JOBS.index(job)
    torch.manual_seed(seed)
    width = 4 + 3 * seed
    model = nn.Sequential(nn.Conv2d(1, width, 3), nn.Tanh(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(36 * width, 5))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=scenario.config())
    attachment = attach(engine, job=job, path=path)
    collectives.take(attachment)
    torch.manual_seed(100 * seed + rank)
    seen = []
    for step in range(NUM_STEPS * scenario.num_micro_batches):
        images, labels = torch.randn(3, 1, 8, 8), torch.randint(5, (3,))
        loss = nn.functional.cross_entropy(engine(images), labels)
        loss.backward() if scenario.is_torch_style else engine.backward(loss)
        engine.step()
        if scenario.evaluates and step % 2 and rank == 0:
            engine.eval()
            with torch.no_grad():
                seen.append(fingerprint(iter([engine(torch.ones(2, 1, 8, 8))])))
            engine.train()
        if scenario.saves and step % 2:
            seen.append(fingerprint(iter(engine.module_state_dict().values())))
    noted = collectives.take(attachment)
    seen.append(fingerprint(iter(engine.module.state_dict().values())))
    attachment.close()
    num_turns = attachment.statistics.num_turns
    engine.destroy()
    return {"seen": seen, "num_turns": num_turns, "collectives": noted}


def run_rank(folder: Path, job: str, rank: int, paths: list[Path]) -> None:
    """All scenarios in one process."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(NUM_RANKS))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    store = dist.FileStore(str(folder / f"store-{job}"), NUM_RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS)
    collectives = Collectives()
    for name in COLLECTIVES:
        collectives.watch(name)
    deepspeed.init_distributed("gloo")
    results, solos = {}, dict[str, dict[str, Any]]()
    for scenario, path in zip(SCENARIOS, paths, strict=True):
        script = repr(replace(scenario, name="", sharing=Sharing.NAIVE))  # all that matters alone
        solo = solos[script] if script in solos else train(scenario, job, rank, None, collectives)
        solos[script] = solo
        shared = train(scenario, job, rank, path, collectives)
        results[scenario.name] = {"solo": solo, "shared": shared}
    dist.destroy_process_group()
    (folder / f"{job}-{rank}.json").write_text(json.dumps(results))


def run_example(folder: Path, job: str, rank: int, port: int, path: Path | None) -> None:
    """The example, as torchrun would start it."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(NUM_RANKS))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if path is not None:
        os.environ["CROSSOVER_SOCKET"] = str(path)
    sys.argv = [str(EXAMPLE), "--stage", "1", "--steps", "8", "--accumulate", "2", "--clip", "0.1"]
    sys.argv += ["--job", job]
    with open(folder / f"{job}.txt" if rank == 0 else os.devnull, "w") as out, redirect_stdout(out):
        runpy.run_path(str(EXAMPLE), run_name="__main__")


def free_port(first: int) -> int:
    """The first free one from there on, below those that the kernel gives away: gloo asks for many before its use."""
    return next(port for port in range(first, END_OF_PORTS) if is_free(port))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the store that will listen there
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def main(folder: Path) -> int:
    """The exit code is that of the worst rank."""
    gc.freeze()  # each rank would look through all that is imported, and copy its pages
    actions: list[Callable[[], None]] = []
    with ExitStack() as arbiters:
        paths = sockets(folder, SCENARIOS)
        for path, scenario in dict(zip(paths, SCENARIOS, strict=True)).items():
            arbiters.enter_context(start(path, JOBS, scenario.sharing))
        ranks = [(job, rank) for job in JOBS for rank in range(NUM_RANKS)]
        actions += [partial(run_rank, folder, job, rank, paths) for job, rank in ranks]
        shared = folder / "example" / "host.sock"
        arbiters.enter_context(start(shared, EXAMPLE_JOBS))
        port = FIRST_PORT + os.getpid() * 7 % NUM_PORTS
        for job, socket_path in (("alone", None), *((job, shared) for job in EXAMPLE_JOBS)):
            port = free_port(port + 1)
            actions += [partial(run_example, folder, job, rank, port, socket_path) for rank in range(NUM_RANKS)]
        pids = [fork(action) for action in actions]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return max(map(abs, codes))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
