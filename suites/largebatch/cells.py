"""What the suite `largebatch` and its search share: tasks, rules, and a trial of one rule at one batch and rate.

Two ranks in lockstep take 32 samples each per micro-batch, so the base batch is 64; a larger one accumulates k
micro-batches per step and takes k times fewer steps, so all see as many samples. Statistics of normalisation are
those of 32 samples at every batch, as in Goyal et al.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fabric.api import FabricKind, FabricSpec
from harness.trial import Job, Trial
from models.workload import WorkloadSpec
from results.facts import Role
from suites.api import Options

NUM_RANKS, BASE_BATCH = 2, 64
WARM_UP = 0.1  # of all steps, at least one
NUM_EVALUATIONS = 8
AXIS = "batch"


@dataclass(frozen=True, slots=True)
class BatchRule:
    """An optimizer whose rate is searched among `rates`: `text` holds {lr}, the rate at the base batch. `power` is that
    of its paper's polynomial decay, 0 where the paper has none."""

    name: str
    text: str
    rates: tuple[float, ...]
    power: float = 0.0

    def optimizer(self, rate: float, times: float, num_steps: int) -> str:
        """With peak `rate` for a batch `times` the base; above 1 it is reached by a warm-up from rate / `times`."""
        inner = self.text.format(lr=f"{rate / times:.6g}")
        return inner if times == 1.0 else f"{inner}+linear-scaling(times={times}, warmup_steps={warm_up(num_steps)})"

    def decayed(self, rate: float, times: float, num_steps: int) -> str:
        """The same with the paper's decay behind the warm-up."""
        after = 0 if times == 1.0 else min(warm_up(num_steps), num_steps - 1)
        decay = f"polynomial-decay(num_steps={num_steps}, power={self.power}, after={after})"
        return f"{self.optimizer(rate, times, num_steps)}+{decay}"


def one_hour(rate: float, times: float, num_steps: int) -> str:
    """The recipe of Goyal et al., section 5.1, from the reference `rate` of the base batch: its 90 epochs are all steps
    here, so warm-up takes 5 of 90 parts, and the rate falls to a tenth behind 30, 60 and 80."""
    steps = {round(num_steps * epoch / 90) for epoch in (30, 60, 80)} - {0}
    warming = f"+linear-scaling(times={times}, warmup_steps={max(1, round(num_steps * 5 / 90))})" if times > 1 else ""
    inner = f"sgd(lr={rate:.6g}, momentum=0.9, weight_decay=0.0001, nesterov=True, exclude='bn')"
    return f"{inner}{warming}+step-decay(at={tuple(sorted(steps))})"


@dataclass(frozen=True, slots=True)
class LargeBatchTask:
    """A workload with its batches, smallest first, the steps of the smallest, and the rules that are tuned on it."""

    workload: WorkloadSpec
    batches: tuple[int, ...]
    num_base_steps: int
    rules: tuple[BatchRule, ...]

    def num_steps(self, batch: int) -> int:
        """Steps of `batch` samples that see as many samples as all batches do."""
        return self.num_base_steps * BASE_BATCH // batch


DIGITS = LargeBatchTask(
    workload=WorkloadSpec(network="resnet20", data="shifted-digits", batch_size=BASE_BATCH // NUM_RANKS),
    batches=(64, 256, 1408),  # of 1,438 images: 22 micro-batches of 64 are the largest that the data carries
    num_base_steps=176,
    rules=(
        BatchRule("sgd", "sgd(lr={lr})", (0.007, 0.02, 0.06, 0.2, 0.6)),
        BatchRule("lars", "lars(lr={lr}, trust=0.02)", (0.03, 0.1, 0.3, 1.0, 3.0), power=2.0),
        BatchRule("lamb", "lamb(lr={lr})", (0.001, 0.003, 0.01, 0.03, 0.1), power=1.0),
    ),
)
TEXT = LargeBatchTask(
    workload=WorkloadSpec(
        network="transformer_lm",
        data="text",
        batch_size=BASE_BATCH // NUM_RANKS,
        sequence_length=16,
        num_evaluation=128,
        dropout=0.0,
    ),
    batches=(64, 512),
    num_base_steps=96,
    rules=(
        BatchRule("sgd", "sgd(lr={lr})", (0.03, 0.1, 0.3, 0.9, 2.7)),
        BatchRule("lars", "lars(lr={lr}, trust=0.02)", (0.03, 0.1, 0.3, 1.0, 3.0), power=2.0),
        BatchRule("lamb", "lamb(lr={lr})", (0.001, 0.003, 0.01, 0.03, 0.1), power=1.0),
    ),
)
TASKS = (DIGITS, TEXT)
# The recipe's blocks begin as the identity, so its base batch is a dense run of its own.
ONE_HOUR = replace(DIGITS, workload=replace(DIGITS.workload, network="resnet20_zero_gamma"), rules=())


def steps_of(task: LargeBatchTask, batch: int, options: Options) -> int:
    """Steps of a trial at `batch`: as many as are asked for, or those of the task."""
    return options.num_steps or task.num_steps(batch)


def warm_up(num_steps: int) -> int:
    """Steps of warm-up in a run of `num_steps`."""
    return max(1, round(WARM_UP * num_steps))


def cell(
    suite: str, task: LargeBatchTask, batch: int, name: str, optimizer: str, options: Options, *, role: Role
) -> Trial:
    """One trial of `optimizer` at `batch` samples per step."""
    num_steps = steps_of(task, batch, options)
    job = Job(
        name="job",
        workload=task.workload,
        strategy="single-bucket",
        optimizer=optimizer,
        accumulate=batch // BASE_BATCH,
        role=role,
    )
    return Trial(
        suite=suite,
        cell=f"batch-{batch}/{job.workload.label}/{name}",
        jobs=(job,),
        fabric=FabricSpec(kind=FabricKind.LOCKSTEP, num_hosts=NUM_RANKS, rate_bps=None),
        axis=AXIS,
        at=float(batch),
        num_warmup=1,
        num_steps=max(1, num_steps - 1),
        evaluate_every=max(1, num_steps // NUM_EVALUATIONS),
        seed=options.seed,
        timeout_s=3600.0,
    )
