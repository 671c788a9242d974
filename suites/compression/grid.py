"""The suite `compression`: fewer bytes, but at what price, on which link, and does the target come sooner?

Three parts. `converge`: real training on 2 hosts at 200 Mbit/s under every method of the table in
`suites.convergence.grid`, evaluated as it goes, so accuracy stands against time on a clock that holds everything.
`rate`: the same steps on slower and faster links, unshaped too; the 200 Mbit/s of these curves are the steps of
`converge`. `replay`: large networks among 8 and 64 workers on a modelled link, whose compression is charged as device
time from a profile of codecs (`harness.predict.codecs`). A code's own work on tensors that are S times smaller takes
longer than that, so few are run there, and every method on every link is told by the virtual clock. README.md beside
this says how to read it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.sizes import scaled
from harness.trial import Job, Trial
from models.workload import Device, WorkloadSpec
from results.facts import Role
from suites.api import Options, Suite, interleave
from suites.convergence.grid import BERT_TINY, DIGITS, LSTM, METHODS, WARM_UP, TrainingTask, resolved
from suites.convergence.grid import skipped_methods as skipped_methods
from suites.convergence.methods import TrainingMethod, added_methods
from suites.data import with_data
from suites.recipes import CYCLE, RATE_BPS, evaluated_every, trial
from suites.scaling import LINKS, NUM_WARMUP, PACED_SCALE, Wire, distinct, replay_place, shortened

NAME = "compression"
NUM_EVALUATIONS = 20
RATE_STEPS = 8
OTHER_RATES_BPS: tuple[float | None, ...] = (50e6, 500e6, 1e9, None)  # beside the 200 Mbit/s of training
BUCKETS = "fixed-buckets(bucket_bytes=262144, first_bucket_bytes=65536)"  # as the suite fusion has for this network
NOT_HERE = ("fusion", "ordering", "dense adam", "truncated gradient", "mixed precision")  # of the table: no codes
ONE_MESSAGE = ", one message"
RIVALS = (  # what compressors have to beat gets a second packing; the better one counts at every rate
    TrainingMethod(f"dense{ONE_MESSAGE}", "fixed-buckets", "one bucket of 25 MiB", role=Role.DENSE),
    TrainingMethod(f"fp16{ONE_MESSAGE}", "fixed-buckets+half", "one bucket of 25 MiB", role=Role.RIVAL),
)
LOW_RANK = TrainingMethod(
    "PowerSGD rank 1", "fixed-buckets+powersgd(rank=1)+error-feedback", "NeurIPS 2019: rank 1 to 4"
)
SYSTEMS: Mapping[str, str] = {
    "torch DDP": "torch-ddp(bucket_mb=0.25)",
    "torch DDP fp16 hook": "torch-ddp(bucket_mb=0.25, hook='fp16')",
    "torch DDP PowerSGD hook rank 1": "torch-ddp(hook='powersgd', powersgd_rank=1)",
    "torch DDP PowerSGD hook rank 4": "torch-ddp(hook='powersgd', powersgd_rank=4)",
    "Horovod fp16": f"horovod({CYCLE}, fp16=True)",
}


@dataclass(frozen=True, slots=True)
class Course:
    """A task trained to its target: how long, and by which methods and systems (none named: all)."""

    task: TrainingTask
    num_steps: int
    methods: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()


COURSES = (
    Course(DIGITS, 80, systems=tuple(SYSTEMS)),
    Course(
        LSTM, 80, ("dense", "fp16", "top-k 1 %", "DGC 0.1 %", "SBC 1 %", "QSGD 4 bit", "1-bit SGD", "PowerSGD rank 4")
    ),
    Course(BERT_TINY, 60, ("dense", "dense adam", "fp16", "top-k 1 %", "QSGD 4 bit", "1-bit Adam", "PowerSGD rank 4")),
)
RATE_COURSE = COURSES[0]
SGD, PLAIN, ADAM = "sgd(lr=0.1)", "sgd(lr=0.1, momentum=0.0)", "frozen-adam(freeze_after=1)"
# In replay: a method behind the packing, with its optimizer. What works by rows or matrices is not the same on tensors
# that are S times smaller: 1-bit has its means by tensor here, and PowerSGD is left out (README.md).
DEFAULT = "fixed-buckets(bucket_bytes=26214400, first_bucket_bytes=1048576)"  # torch DDP's, in real sizes
REPLAYED: Mapping[str, tuple[str, str]] = {
    "dense": ("", SGD),
    "fp16": ("half", SGD),
    "bf16": ("half(dtype='bfloat16')", SGD),
    "top-k 1 %": ("topk(density=0.01)+error-feedback", SGD),
    "random-k 1 %": ("random-k(density=0.01)+error-feedback", SGD),
    "Aji-Heafield 1 %": ("aji-heafield(density=0.01)+error-feedback", SGD),
    "DGC 0.1 %": ("dgc(density=0.001)", PLAIN),
    "gTop-k 1 %": ("gtopk(density=0.01)+error-feedback+tree", SGD),
    "SBC 1 %": ("sbc(density=0.01)+error-feedback", SGD),
    "QSGD 4 bit": ("qsgd(bits=4, bucket=512)", SGD),
    "QSGD 2 bit": ("qsgd(bits=2, bucket=64)", SGD),
    "1-bit SGD": ("onebit(per='tensor')+double-squeeze+error-feedback", SGD),
    "1-bit Adam": ("onebit-adam(warmup_steps=1)", ADAM),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A network on so many hosts and a link that stands for so many Gbit/s."""

    network: str
    batch_size: int
    num_workers: int
    gbit: float
    methods: tuple[str, ...] = tuple(REPLAYED)
    num_steps: int = 8
    wire: Wire = Wire.MODELLED
    paced_scale: int = PACED_SCALE

    def cells(self, options: Options) -> Iterator[Trial]:
        """One repeat of each method, and of one host alone. Raises: FabricError."""
        fabric, size_scale = replay_place(
            options, num_workers=self.num_workers, gbit=self.gbit, wire=self.wire, paced_scale=self.paced_scale
        )
        gbit = fabric.rate_bps * size_scale / 1e9 if fabric.rate_bps else None
        workload = WorkloadSpec(
            network=self.network, device=Device.REPLAY, batch_size=self.batch_size, size_scale=size_scale
        )
        job = Job(name="job", workload=workload, optimizer=SGD)
        roles = {method.name: method.role for method in METHODS}
        jobs = [(name, replace(_in_replay(job, *REPLAYED[name]), role=roles[name])) for name in self.methods]
        if options.strategies:
            jobs = [(text, replace(job, strategy=text)) for text in options.strategies]
        for name, own in (*jobs, ("local", replace(job, system="local"))):
            yield trial(
                NAME,
                f"replay-{fabric.num_ranks}" + ("" if gbit is None else f"-{gbit:g}"),
                (own,),
                fabric,
                options,
                label=name,
                num_steps=self.num_steps,
                num_warmup=NUM_WARMUP,
                axis="" if gbit is None else "Gbit/s",
                at=gbit,
            )


HALF = ("dense", "fp16")
COUNTED = ("DGC 0.1 %", "SBC 1 %")  # whose papers speak of bits: what they send counts, their times do not
SCENES = (
    *(
        Replay(network=network, batch_size=batch_size, num_workers=8, gbit=10.0, methods=HALF)
        for network, batch_size in (("resnet50", 32), ("vgg16", 32), ("bert_base", 8))
    ),
    Replay(network="resnet50", batch_size=32, num_workers=64, gbit=10.0, methods=("dense",)),
    # In real sizes, so that a code is as long as it would be.
    Replay(
        network="resnet50",
        batch_size=32,
        num_workers=8,
        gbit=25.0,
        methods=("dense", *COUNTED),
        num_steps=2,
        paced_scale=1,
    ),
    # Real sockets, for validation.
    Replay(network="resnet50", batch_size=32, num_workers=2, gbit=5.0, methods=HALF, wire=Wire.SOCKETS),
)
PREDICTED_NETWORKS = {"resnet50": 32, "vgg16": 32, "bert_base": 8}
PREDICTED_WORKERS = 8
PREDICTED_WORLDS = (2, 4, 16, 64, 256)  # beside these


def grid(options: Options) -> Sequence[Trial]:
    """What is measured, repeats interleaved; `--smoke` keeps one short repeat of a few cells."""
    for name, reason in skipped_methods().items():
        logging.getLogger(__name__).warning("compression: %s is left out: %s", name, reason)
    if options.smoke:
        return _smoke(options)
    cells = [
        *(cell for course in COURSES for cell in _courses(course, options)),
        *_rates(RATE_COURSE, options),
        *(cell for scene in SCENES for cell in scene.cells(options)),
    ]
    return interleave(distinct(cells), options.num_repeats())


def predicted(options: Options) -> Sequence[Trial]:
    """For the predictor alone: every replayed method on every network and link, on eight hosts. On a modelled link in
    real sizes: a code of tensors that are S times smaller is not S times shorter."""
    scenes = (
        Replay(network=network, batch_size=batch_size, num_workers=PREDICTED_WORKERS, gbit=gbit, paced_scale=1)
        for network, batch_size in PREDICTED_NETWORKS.items()
        for gbit in LINKS
    )
    return distinct(cell for scene in scenes for cell in scene.cells(options) if cell.jobs[0].system == "ours")


def _in_replay(job: Job, compression: str, optimizer: str) -> Job:
    text = "+".join(filter(None, (DEFAULT, compression)))
    return replace(job, strategy=scaled(text, job.workload.size_scale), optimizer=optimizer)


def _courses(course: Course, options: Options) -> Iterator[Trial]:
    """Training to the target at 200 Mbit/s. Steps before the last warm-up's end are not timed, and on the curve."""
    num_steps = options.num_steps or course.num_steps
    for name, job in _jobs(course, num_steps, options):
        yield _real(f"converge/{job.workload.label}", name, job, RATE_BPS, num_steps, options, evaluated=True)


def _rates(course: Course, options: Options) -> Iterator[Trial]:
    """A few steps of each method on other links, behind a warm-up as long as in training."""
    for rate_bps in OTHER_RATES_BPS:
        group = "unshaped" if rate_bps is None else f"rate-{rate_bps / 1e6:g}"
        for name, job in _jobs(course, course.num_steps, options):
            num_steps = _warm_up(name, course.num_steps) + RATE_STEPS
            yield _real(f"{group}/{job.workload.label}", name, job, rate_bps, num_steps, options)


def _jobs(course: Course, num_steps: int, options: Options) -> Iterator[tuple[str, Job]]:
    """Methods by name, then systems; the command line's strategies take their place."""
    task = course.task
    workload = replace(with_data(task.workload, options), device=options.device)
    workload = replace(workload, batch_size=task.batch_size // 2)
    job = Job(name="job", workload=workload, optimizer=task.optimizer)
    if options.strategies:
        yield from ((text, replace(job, strategy=text)) for text in options.strategies)
        return
    for method in methods_of(course):
        found = resolved(method, task, num_steps)
        if found is not None:
            text, optimizer = found
            yield method.name, replace(job, strategy=text, optimizer=optimizer, role=method.role)
    for name in course.systems:
        yield name, replace(job, system=SYSTEMS[name])


def methods_of(course: Course) -> list[TrainingMethod]:
    """The methods that a course trains by, in buckets: those that it names, else the table's and compressors without a
    row, with float32 and half in one message too."""
    missing = skipped_methods()
    added = () if course.methods else added_methods((*METHODS, LOW_RANK))
    known = [method for method in (*METHODS, LOW_RANK, *added) if method.name not in missing]
    wanted = [m for m in known if (m.name in course.methods if course.methods else m.name not in NOT_HERE)]
    rivals = [] if course.methods else [*RIVALS]
    return [replace(method, text=method.text.replace("fixed-buckets", BUCKETS, 1)) for method in wanted] + rivals


def _warm_up(name: str, num_steps: int) -> int:
    """Steps of a method that are not yet what it will be."""
    method = next((method for method in METHODS if method.name == name), None)
    dense = max(1, round(WARM_UP * num_steps)) if method is not None and "{w}" in method.text else 0
    return max(NUM_WARMUP, dense)


def _real(
    group: str,
    name: str,
    job: Job,
    rate_bps: float | None,
    num_steps: int,
    options: Options,
    *,
    evaluated: bool = False,
) -> Trial:
    """One cell of real training on two hosts, `num_steps` in all."""
    fabric = options.fabric_spec(num_hosts=2, rate_bps=rate_bps)
    course = next((c for c in COURSES if c.task.workload.network == job.workload.network), RATE_COURSE)
    num_warmup = min(num_steps - 1, _warm_up(name, course.num_steps))
    gbit = fabric.rate_bps / 1e9 if fabric.rate_bps else None
    cell = trial(
        NAME,
        group.partition("/")[0],
        (job,),
        fabric,
        options,
        label=name,
        num_steps=num_steps - num_warmup,
        num_warmup=num_warmup,
        evaluate_every=evaluated_every(job, num_steps, NUM_EVALUATIONS) if evaluated else 0,
        axis="" if gbit is None else "Gbit/s",
        at=gbit,
    )
    return replace(cell, num_steps=num_steps - num_warmup)


def _smoke(options: Options) -> list[Trial]:
    """A few methods, briefly: trained at 200 Mbit/s, on another link, and replayed."""
    few = Course(
        DIGITS, 8, ("dense", "fp16", "top-k 1 %", "1-bit SGD", "gTop-k 1 %"), ("torch DDP", "torch DDP fp16 hook")
    )
    scene = Replay(network="resnet50", batch_size=32, num_workers=2, gbit=25.0, methods=(*HALF, "QSGD 4 bit"))
    rates = (
        cell for cell in _rates(replace(few, methods=few.methods[:3], systems=()), options) if cell.at in (1.0, None)
    )
    brief = (shortened(cell, options) for cell in (*rates, *scene.cells(options)))
    return distinct([*_courses(few, options), *brief])


SUITE = Suite(
    name=NAME,
    question="Fewer bytes, but at what price in time and accuracy, and on which links does it pay?",
    grid=grid,
    predicted=predicted,
    predicted_worlds=PREDICTED_WORLDS,
    budget_s=3000.0,
)
