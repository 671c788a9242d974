"""Workloads with their optimizers, and the trials that suites build from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from crossover import Sharing
from fabric.api import FabricSpec
from harness.engine.adaptation import settled_after
from harness.systems import system_of
from harness.systems.api import Warms
from harness.trial import Job, Link, Trial
from models.workload import WorkloadSpec
from suites.api import Options

RATE_BPS = 200e6
CYCLE = "cycle_s=0.005"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A workload with its optimizer and how many steps show it."""

    workload: WorkloadSpec
    optimizer: str
    num_steps: int

    def job(self, name: str = "job", *, strategy: str = "fixed-buckets", system: str = "ours") -> Job:
        """A job of this recipe under a strategy of ours or another system."""
        return Job(name=name, workload=self.workload, system=system, strategy=strategy, optimizer=self.optimizer)


RESNET20 = Recipe(WorkloadSpec(network="resnet20", data="digits", batch_size=64), "sgd(lr=0.05)", 20)
RESNET20_LARGE = replace(RESNET20, workload=replace(RESNET20.workload, batch_size=128), num_steps=12)
BERT_TINY = Recipe(WorkloadSpec(network="bert_tiny", data="text", batch_size=16, dropout=0.0), "adam(lr=0.001)", 10)


def trial(
    suite: str,
    group: str,
    jobs: tuple[Job, ...],
    fabric: FabricSpec,
    options: Options,
    *,
    num_steps: int,
    label: str = "",
    evaluate_every: int = 0,
    sharing: Sharing | None = None,
    num_cost_steps: int = 0,
    num_warmup: int = 3,
    link: Link = Link.FIFO,
    axis: str = "",
    at: float | None = None,
) -> Trial:
    """One cell, named `group/workloads/label`; on a sweep the group ends with the value.

    `num_warmup` steps come after those in which its jobs settle.
    Raises: TextError, CatalogueError, TrialError for a strategy or system that cannot be read.
    """
    own_label = label or (jobs[0].label if sharing is None else sharing.value)
    workloads = "+".join(job.workload.label for job in jobs)
    return Trial(
        suite=suite,
        cell=f"{group}/{workloads}/{own_label}",
        jobs=jobs,
        fabric=fabric,
        sharing=sharing,
        link=link,
        axis=axis,
        at=at,
        num_steps=options.num_steps or num_steps,
        num_warmup=num_warmup + max(map(settling, jobs)),
        evaluate_every=evaluate_every,
        num_cost_steps=num_cost_steps,
        seed=options.seed,
        trace=options.trace,
    )


def evaluated_every(job: Job, num_steps: int, num_evaluations: int) -> int:
    """Steps from one evaluation to the next, for about so many in `num_steps`: whole periods of local steps, which an
    evaluation would cut short."""
    period = job.resolve().local_steps
    return max(1, math.ceil(num_steps // num_evaluations / period)) * period


def settling(job: Job) -> int:
    """Steps until a job is what it will be: its strategy bound and tuned, its system's own search over."""
    if job.system == "ours":
        return settled_after(job.resolve())
    system = system_of(job.system)
    return system.num_warmup if isinstance(system, Warms) else 0
