"""A trial in lockstep: one process is all ranks, and what is left of a step is its arithmetic.

Data, their order, initial weights, generators and update rules are those of the same trial on real hosts, so its losses
are too: bit for bit where sums of two ranks are all there is to sum, else up to their order. Ranks take turns in a
process and time is not measured; what a step would take is predicted (`harness.predict.lockstep`) or left out.

    results = list(run_lockstep(trial, place, signals))  # one a virtual rank
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from harness.lab.gpu import peak_memory
from harness.lab.rank import Place, RankResult, Signals, rank_seed, weights_digest
from harness.lockstep.ranks import Lockstep
from harness.loop import Evaluated
from harness.memory import replica_bytes
from harness.precision import LossScale, in_precision
from harness.trial import Trial, TrialError
from models.values import Batch
from models.workload import Device, Workload, open_workload
from results.record import Phases


@dataclass(slots=True)
class _Rank:
    """What a rank's own process would hold beside its model: its data, its global generators, its losses."""

    batches: Iterator[Batch]
    cpu: Tensor
    cuda: Tensor | None
    losses: list[Tensor]

    def enter(self) -> None:
        """Draw from this rank's generators from now on."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)

    def leave(self) -> None:
        """Keep where they are."""
        self.cpu = torch.get_rng_state()
        if self.cuda is not None:
            self.cuda = torch.cuda.get_rng_state()


def run_lockstep(trial: Trial, place: Place, signals: Signals) -> Iterator[RankResult]:
    """Train the trial's job on all its virtual ranks and report each of them.

    Raises: TrialError if the replicas do not fit into the device's memory.
    """
    (job,) = trial.jobs
    if job.workload.device is Device.CUDA:
        torch.cuda.set_device(0)
    _check_device_memory(trial)
    workload = in_precision(open_workload(job.workload), job.precision)
    strategy = job.resolve()
    lockstep = Lockstep(
        # Built as each rank's process builds its own: a copy would share what hooks refer to, and torch copies no
        # tensor that a hook has computed.
        [workload.build_model(trial.seed) for _ in range(trial.world)],
        strategy,
        seed=trial.seed,
        loss_scale=LossScale() if job.precision.scales_loss else None,
    )
    ranks = [_rank(trial, rank, workload, lockstep.num_workers) for rank in range(lockstep.num_workers)]
    signals.ready()
    evaluated, sent = [], []
    for step in range(1, trial.num_warmup + trial.num_steps_of(0) + 1):
        lockstep.step(_loss_of(ranks, workload, lockstep, job.accumulate))
        sent.append(float(max(sum(traffic.wire_bytes.values()) for traffic in lockstep.traffic_of)))
        signals.step(step - 1)
        if trial.evaluate_every and step % trial.evaluate_every == 0:
            lockstep.synchronise()
            found = workload.evaluate(lockstep.models[0])
            if found is not None:
                evaluated.append(Evaluated(step, None, found.loss, found.accuracy))
    lockstep.synchronise()
    yield from _results(trial, lockstep, ranks, tuple(evaluated), tuple(sent))


def _rank(trial: Trial, rank: int, workload: Workload, num_workers: int) -> _Rank:
    torch.manual_seed(rank_seed(trial.seed, rank))
    on_gpu = workload.spec.device is Device.CUDA
    return _Rank(
        batches=workload.batches(rank, num_workers, trial.seed),
        cpu=torch.get_rng_state(),
        cuda=torch.cuda.get_rng_state() if on_gpu else None,
        losses=[],
    )


def _loss_of(
    ranks: list[_Rank], workload: Workload, lockstep: Lockstep, num_micro_batches: int
) -> Callable[[int, nn.Module], Tensor]:
    """The loss of a rank's last micro-batch, after the backward passes of those before it."""

    def loss(rank: int, model: nn.Module) -> Tensor:
        own, total = ranks[rank], torch.zeros(())
        # Ranks take turns in one process, and torch has one global generator: dropout must draw as in a rank's own
        # process.
        own.enter()
        for number, batch in enumerate(islice(own.batches, num_micro_batches), start=1):
            part = workload.loss(model, batch) / num_micro_batches
            total = total + part.detach()
            if number < num_micro_batches:
                (part * lockstep.loss_scale.scale if lockstep.loss_scale else part).backward()
        own.leave()
        own.losses.append(total)
        return part

    return loss


def _results(
    trial: Trial, lockstep: Lockstep, ranks: list[_Rank], evaluated: tuple[Evaluated, ...], sent: tuple[float, ...]
) -> Iterator[RankResult]:
    num_steps, scaled = len(sent), lockstep.loss_scale
    for rank, (model, traffic) in enumerate(zip(lockstep.models, lockstep.traffic_of, strict=True)):
        works = rank < lockstep.num_workers
        yield RankResult(
            job=0,
            rank=rank,
            step_times_s=(),
            losses=tuple(float(loss) for loss in ranks[rank].losses) if works else (),
            evaluated=evaluated if rank == 0 else (),
            phases=Phases(),
            num_messages=traffic.num_messages / num_steps,
            num_rounds=traffic.num_rounds / num_steps,
            wire_bytes={tag: count / num_steps for tag, count in traffic.wire_bytes.items()},
            weights_digest=weights_digest(model),
            num_parameters=sum(p.numel() for p in model.parameters()),
            tensor_sizes=tuple(p.numel() for p in model.parameters()) if rank == 0 else (),
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            start_s=0.0,
            end_s=0.0,
            gpu_memory=peak_memory(trial.jobs[0].workload.device),
            num_skipped=scaled.num_skipped if scaled else 0,
            loss_scale=scaled.scale if scaled else None,
            sent_bytes=sent if rank == 0 else (),
            serves=not works,
        )


def _check_device_memory(trial: Trial) -> None:
    """Main memory was looked at before; a GPU's can only be asked by who may use it. Raises: TrialError."""
    if trial.jobs[0].workload.device is not Device.CUDA:
        return
    needed, (free, _) = replica_bytes(trial), torch.cuda.mem_get_info()
    if needed > free:
        raise TrialError(
            f"{trial.cell}: {trial.world} replicas with their states need about {needed / 1e9:.1f} GB on the GPU and "
            f"{free / 1e9:.1f} GB are free; use fewer hosts or a smaller batch"
        )
