"""The suite `convergence`: does a method reach what dense training reaches, and at what price?

Exact lockstep: P virtual ranks on one device, so no network and no other process disturbs the arithmetic, and time is
what a virtual clock predicts for a link of 200 Mbit/s (`--rate` names another). The batch of all ranks together stays
the same whatever P is, so that curves over P differ by the method alone. README.md says how to read it.

A method that this checkout does not have, or that cannot be read, is left out and named (`skipped_methods`).
Compressors without a row are trained on the digits with their default settings (`suites.convergence.methods`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from baselines.catalogue import CatalogueError
from baselines.strategy import parse_strategy
from baselines.text import TextError
from fabric.api import FabricKind, FabricSpec
from harness.precision import Precision
from harness.trial import Job, Trial, TrialError
from models.workload import Device, WorkloadSpec
from results.facts import Role
from suites.api import Options, Suite, interleave
from suites.convergence.methods import TrainingMethod, added_methods
from suites.data import with_data
from suites.recipes import CYCLE, evaluated_every

RATE_BPS, ALPHA_S = 200e6, 6e-4  # α as on the emulated hosts of the reference machine
REPEATS = 10  # seeds: what takes no time of its own is exact, and cheap
NUM_EVALUATIONS = 20
TIMEOUT_S = 6 * 3600.0
WARM_UP = 0.15  # of all steps: what papers give as 2 to 4 epochs of 90, or 15 to 20 % of the steps (1-bit Adam)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask:
    """A workload with its dense update rules, found for dense training and then the same for every method.

    `batch_size` is of all ranks together; `worlds` are run with every method, `more_worlds` with the chosen ones;
    `takes_added`: with compressors that have no row, too.
    """

    workload: WorkloadSpec
    batch_size: int
    num_steps: int
    optimizer: str
    plain: str
    worlds: tuple[int, ...]
    more_worlds: tuple[int, ...] = ()
    on_request: bool = False
    accumulate: int = 1
    takes_added: bool = False


_TUNED = "as dense"
METHODS = (
    TrainingMethod("dense", "fixed-buckets", "Li et al., VLDB 2020 (torch DDP)", is_chosen=True, role=Role.DENSE),
    TrainingMethod("dense adam", "fixed-buckets", "Kingma and Ba, ICLR 2015", optimizer="adam(lr={adam_lr})"),
    TrainingMethod("fusion", f"tensor-fusion({CYCLE})", "Sergeev and Del Balso, 2018"),
    TrainingMethod("ordering", "slices+p3", "Jayarajan et al., MLSys 2019"),
    TrainingMethod("fp16", "fixed-buckets+half", _TUNED, is_chosen=True, role=Role.RIVAL),
    TrainingMethod("bf16", "fixed-buckets+half(dtype='bfloat16')", _TUNED, role=Role.RIVAL),
    TrainingMethod(
        "mixed precision", "fixed-buckets+half(dtype='bfloat16')", "16-bit layers", precision=Precision.BFLOAT16
    ),
    TrainingMethod("top-k 1 %", "fixed-buckets+topk(density=0.01)+error-feedback", "Stich et al. 2018", is_chosen=True),
    TrainingMethod("random-k 1 %", "fixed-buckets+random-k(density=0.01)+error-feedback", "Stich et al. 2018"),
    TrainingMethod(
        "Aji-Heafield 1 %", "fixed-buckets+aji-heafield(density=0.01)+error-feedback", "EMNLP 2017: drops 99 %"
    ),
    TrainingMethod(
        "DGC 0.1 %", "fixed-buckets+dgc(density=0.001, warmup_steps={w})", "ICLR 2018: 99.9 %", optimizer="plain"
    ),
    TrainingMethod(
        "gTop-k 1 %", "fixed-buckets+gtopk(density=0.01)+error-feedback+tree", "ICDCS 2019, density 0.001 to 0.01"
    ),
    TrainingMethod(
        "SBC 1 %", "fixed-buckets+sbc(density=0.01)+error-feedback", "IJCNN 2019, preset (2) without local steps"
    ),
    TrainingMethod("QSGD 4 bit", "fixed-buckets+qsgd(bits=4, bucket=512)", "NeurIPS 2017, bucket 512", is_chosen=True),
    TrainingMethod("QSGD 2 bit", "fixed-buckets+qsgd(bits=2, bucket=64)", "NeurIPS 2017: 2 bits with a bucket of 64"),
    TrainingMethod(
        "1-bit SGD",
        "fixed-buckets+onebit+double-squeeze+error-feedback+warm-up(steps={w})",
        "Interspeech 2014: dense first",
        is_chosen=True,
    ),
    TrainingMethod(
        "1-bit Adam",
        "fixed-buckets+onebit-adam(warmup_steps={w})",
        "ICML 2021: 15 to 20 % of the steps",
        optimizer="frozen-adam(lr={adam_lr}, freeze_after={w})",
    ),
    TrainingMethod("PowerSGD rank 4", "fixed-buckets+powersgd(rank=4)+error-feedback", "NeurIPS 2019: rank 1 to 4"),
    TrainingMethod(
        "truncated gradient",
        "fixed-buckets",
        "JMLR 2009",
        optimizer="truncated-gradient(lr={lr}, gravity=0.00001, every=10, threshold=0.1)",
    ),
)

DIGITS = TrainingTask(
    workload=WorkloadSpec(network="resnet20", data="digits"),
    batch_size=128,
    num_steps=120,
    optimizer="sgd(lr=0.05)",
    plain="sgd(lr=0.05, momentum=0.0)",
    worlds=(4,),
    more_worlds=(2, 8),
    takes_added=True,
)
LSTM = TrainingTask(
    workload=WorkloadSpec(network="lstm_lm", data="text", sequence_length=32, num_evaluation=64, dropout=0.0),
    batch_size=16,
    num_steps=160,
    optimizer="sgd(lr=0.5)",
    plain="sgd(lr=0.5, momentum=0.0)",
    worlds=(4,),
)
BERT_TINY = TrainingTask(
    workload=WorkloadSpec(network="bert_tiny", data="text", sequence_length=32, num_evaluation=64, dropout=0.0),
    batch_size=16,
    num_steps=160,
    optimizer="adam(lr=0.001)",
    plain="",
    worlds=(4,),
)
REAL_SIZE = (
    TrainingTask(
        workload=WorkloadSpec(network="resnet50", data="synthetic", num_workers=8),
        batch_size=256,
        num_steps=1000,
        optimizer="sgd(lr=0.1, weight_decay=0.0001)",
        plain="sgd(lr=0.1, momentum=0.0, weight_decay=0.0001)",
        worlds=(4,),
        on_request=True,
    ),
    TrainingTask(
        workload=WorkloadSpec(network="bert_base", data="text", sequence_length=128, num_evaluation=256),
        batch_size=64,
        num_steps=1000,
        optimizer="adam(lr=0.0001)",
        plain="",
        worlds=(4,),
        on_request=True,
    ),
)
TASKS = (DIGITS, LSTM, BERT_TINY, *REAL_SIZE)
ADAM_LR = {"resnet20": 0.003, "lstm_lm": 0.01, "bert_tiny": 0.001, "resnet50": 0.001, "bert_base": 0.0001}
SMOKE = ("dense", "fp16", "top-k 1 %", "gTop-k 1 %")


def grid(options: Options) -> Sequence[Trial]:
    """All trials, repeats interleaved; real sizes on a GPU or with `--data` alone; `--smoke` keeps four short cells."""
    for name, reason in skipped_methods().items():
        log.warning("convergence: %s is left out: %s", name, reason)
    cells = [cell for task in _asked(options) for cell in _cells(task, options)]
    return interleave(cells, options.num_repeats(REPEATS))


def skipped_methods() -> Mapping[str, str]:
    """Methods of the table, and compressors without a row, that cannot be run as they are written, with the reason."""
    found = {}
    for method in (*METHODS, *added_methods(METHODS)):
        try:
            resolved(method, DIGITS, DIGITS.num_steps)
        except (TextError, CatalogueError) as error:
            found[method.name] = str(error)
    return found


def _asked(options: Options) -> Iterator[TrainingTask]:
    """Tasks on their device and data. Raises: WorkloadError."""
    for task in TASKS[:1] if options.smoke else TASKS:
        workload = replace(with_data(task.workload, options), device=options.device)
        own_data = bool(workload.data_path)
        if not task.on_request or own_data or options.device is Device.CUDA:
            yield replace(task, workload=workload)


def _cells(task: TrainingTask, options: Options) -> Iterator[Trial]:
    num_steps = options.num_steps or (12 if options.smoke else task.num_steps)
    for world in _worlds(task, options):
        for name, job in _jobs(task, world, num_steps, options):
            yield _trial(f"{world}-ranks/{job.workload.label}/{name}", job, world, num_steps, options)


def _worlds(task: TrainingTask, options: Options) -> tuple[int, ...]:
    if options.num_hosts:
        return (options.num_hosts,)
    return (2,) if options.smoke else (*task.worlds, *task.more_worlds)


def _jobs(task: TrainingTask, world: int, num_steps: int, options: Options) -> Iterator[tuple[str, Job]]:
    if task.batch_size % world:
        raise TrialError(f"a batch of {task.batch_size} is not shared by {world} ranks alike; use 2, 4 or 8")
    workload = replace(task.workload, batch_size=task.batch_size // world)
    if options.strategies:
        methods = tuple(TrainingMethod(text, text, "command line") for text in options.strategies)
    else:
        every = options.num_hosts is not None or world in task.worlds
        missing, added = skipped_methods(), added_methods(METHODS) if task.takes_added else ()
        methods = tuple(m for m in (*METHODS, *added) if m.name not in missing and (every or m.is_chosen))
    for method in methods:
        if options.smoke and not options.strategies and method.name not in SMOKE:
            continue
        found = resolved(method, task, num_steps)
        if found is not None:
            text, optimizer = found
            yield (
                method.name,
                Job(
                    name="job",
                    workload=workload,
                    strategy=text,
                    optimizer=optimizer,
                    accumulate=task.accumulate,
                    precision=method.precision,
                    role=method.role,
                ),
            )


def resolved(method: TrainingMethod, task: TrainingTask, num_steps: int) -> tuple[str, str] | None:
    """Strategy and optimizer of a method on a task; None where the task's optimizer is not one of the method's kind.

    Raises: TextError, CatalogueError.
    """
    by_sgd = bool(task.plain)
    if not by_sgd and (method.optimizer == "plain" or method.name in ("truncated gradient", "dense adam")):
        return None
    values = {
        "w": max(1, round(WARM_UP * num_steps)),
        "adam_lr": ADAM_LR[task.workload.network],
        "lr": task.plain.partition("lr=")[2].partition(",")[0],
    }
    text = _filled(method.text, values)
    optimizer = {"": task.optimizer, "plain": task.plain}.get(method.optimizer) or _filled(method.optimizer, values)
    parse_strategy(f"{text}+{optimizer}")
    return text, optimizer


def _filled(text: str, values: Mapping[str, object]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _trial(cell: str, job: Job, world: int, num_steps: int, options: Options) -> Trial:
    rate_bps = options.rate_or(RATE_BPS)
    return Trial(
        suite="convergence",
        cell=cell,
        jobs=(job,),
        fabric=FabricSpec(kind=FabricKind.LOCKSTEP, num_hosts=world, rate_bps=rate_bps, alpha_s=ALPHA_S),
        num_warmup=1,
        num_steps=num_steps - 1 if num_steps > 1 else 1,
        evaluate_every=evaluated_every(job, num_steps, NUM_EVALUATIONS),
        seed=options.seed,
        timeout_s=TIMEOUT_S,
    )


SUITE = Suite(
    name="convergence",
    question="Which methods reach the dense run's target, after how many steps, bytes and predicted seconds?",
    grid=grid,
    fabric=FabricKind.LOCKSTEP,
)
