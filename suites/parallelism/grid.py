"""The suite `parallelism`: pipelines by every schedule, alone and two on the same devices.

Groups: `paced` and `real` run processes over a paced link, in replay and with real computation; `clock` and `planned`
are times of the virtual clock on up to 256 workers; `learning` trains in lockstep; `two jobs` share their devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from baselines.parallelism.api import ParallelismError
from baselines.parallelism.planners.bottleneck_planner import BottleneckPlanner
from baselines.parallelism.planners.pipedream_planner import PipeDreamPlanner
from baselines.parallelism.planners.stanza import Stanza
from baselines.parallelism.plans import Machine, PlannedStage, Planner, Workshare
from crossover import Sharing
from fabric.api import FabricKind, FabricSpec
from harness.parallel.placement import Pipelining, graph_of_workload
from harness.trial import Trial
from models.values import WorkloadSpec
from results.facts import Role
from suites.api import Options, Suite, interleave
from suites.parallelism.cells import (
    ALPHA_S,
    MEASURED_SCALE,
    MICRO_BATCHES,
    NAME,
    SIZE_SCALE,
    on_clock,
    on_paced,
    pipelined,
    replayed,
)
from suites.parallelism.split_grid import measured_splits, split_cells

SYNCHRONOUS = ("gpipe", "gpipe(recompute=True)", "dapple", "interleaved")
DAPPLE, PIPEDREAM, PIPEMARE = "dapple", "pipedream", "pipemare"
NETWORKS = ("vgg16", "resnet50", "bert_large", "gpt2")
STAGES = 4
# With 16 samples passes take 3 to 8 ms in ResNet-50, 11 to 30 in GPT-2: a millisecond would be this machine's.
PACED_SAMPLES = {"resnet50": 64, "gpt2": 32}
REPLAYED_REPEATS, LEARNING_REPEATS, LEARNING_STEPS = 6, 10, 60
WORKERS = (16, 64, 256)
PLANNED_RATES = (1e9, 10e9, 100e9)


def grid(options: Options) -> Sequence[Trial]:
    """Every group, repeats of the measured ones in turn."""
    once = [*clock(options), *planned(options)]
    measured = [] if options.smoke else [*paced(options), *real(options), *measured_splits(options)]
    pairs = two_jobs(options)
    repeats = options.repeats
    return [
        *once,
        *split_cells(options),
        *interleave(list(learning(options)), repeats or (1 if options.smoke else LEARNING_REPEATS)),
        *interleave(measured, repeats or REPLAYED_REPEATS),
        *interleave(list(pairs), repeats or (1 if options.smoke else REPLAYED_REPEATS)),
    ]


def clock(options: Options) -> Iterator[Trial]:
    """Each schedule on four workers, and two of them with every stage replicated on up to 256."""
    networks = NETWORKS[2:3] if options.smoke else NETWORKS
    for network in networks:
        for schedule in SYNCHRONOUS:
            yield pipelined("clock", replayed(network), Pipelining(schedule=schedule), on_clock(STAGES), options)
        for num_micro_batches in (STAGES, 4 * STAGES):
            asked, group = Pipelining(schedule="gpipe"), f"clock-{num_micro_batches}"
            yield pipelined(
                group, replayed(network), asked, on_clock(STAGES), options, num_micro_batches=num_micro_batches
            )
        if not _is_tied(replayed(network)):
            whole = replayed(network, 16 * MICRO_BATCHES)
            asked = Pipelining(schedule=PIPEDREAM)
            yield pipelined("clock", whole, asked, on_clock(STAGES), options, num_micro_batches=1)
            mare = Pipelining(schedule=f"{PIPEMARE}(micro_batches_per_step={MICRO_BATCHES})")
            yield pipelined("clock", replayed(network), mare, on_clock(STAGES), options, label=PIPEMARE)
        for num_workers in () if options.smoke else WORKERS:
            yield _wide(network, num_workers, options)


def _wide(network: str, num_workers: int, options: Options) -> Trial:
    """Eight stages and as many replicas of each as there are workers; a micro-batch has a sample for each replica."""
    num_stages = 8
    replicas = (num_workers // num_stages,) * num_stages
    workload = replayed(network, max(16, replicas[0]))
    asked = Pipelining(schedule=DAPPLE, replicas=replicas)
    group = f"wide-{num_workers}"
    return pipelined(group, workload, asked, on_clock(num_workers), options, num_micro_batches=4 * num_stages)


def planned(options: Options) -> Iterator[Trial]:
    """PipeDream's plan, the bottleneck planner's, Stanza's, and one stage on all workers (data parallelism without
    overlap), by the same schedule on the same clock: 12 samples per worker, which three quarters of the workers divide
    too."""
    num_workers = 4 if options.smoke else 16
    # Tied weights in two stages are no asynchronous schedule's, and a plan of one stage is data parallelism.
    untied = [network for network in NETWORKS if not _is_tied(replayed(network))]
    for network in untied[:1] if options.smoke else untied:
        workload = replayed(network, 12 * num_workers)
        for rate_bps in PLANNED_RATES[:1] if options.smoke else PLANNED_RATES:
            group, fabric = f"planned-{rate_bps / 1e9:g}gbit", on_clock(num_workers, rate_bps)
            whole = Pipelining(schedule=PIPEDREAM, replicas=(num_workers,))
            plans = [
                (planner.card.name, _plan_of(planner, workload, fabric, num_workers))
                for planner in (PipeDreamPlanner(), BottleneckPlanner(), Stanza())
            ]
            for label, asked in (("data-parallel", whole), *plans):
                if asked is not None:
                    yield pipelined(group, workload, asked, fabric, options, num_micro_batches=1, label=label)


def _is_tied(workload: WorkloadSpec) -> bool:
    return graph_of_workload(workload).layers[-1].tied_bytes > 0


def _plan_of(planner: Planner, workload: WorkloadSpec, fabric: FabricSpec, num_workers: int) -> Pipelining | None:
    """The planner's stages; None where it refuses: no replicas that divide the batch, or not its kind of network."""
    assert fabric.rate_bps is not None
    machine = Machine(
        num_devices=num_workers, alpha_s=ALPHA_S, beta_s_per_byte=8 / fabric.rate_bps / workload.size_scale
    )
    layers = graph_of_workload(workload).layers
    try:
        plan = planner.plan(layers, machine, Workshare(batch_size=workload.batch_size))
    except ParallelismError:
        return None
    return _pipelining(plan.stages)


def _pipelining(stages: Sequence[PlannedStage]) -> Pipelining:
    return Pipelining(
        schedule=PIPEDREAM,
        cuts=tuple(stage.first for stage in stages[1:]),
        replicas=tuple(stage.num_replicas for stage in stages),
    )


def paced(options: Options) -> Iterator[Trial]:
    """Replay among processes over a paced link."""
    fabric = on_paced(STAGES)
    for network in NETWORKS:
        workload = replayed(network, PACED_SAMPLES.get(network, 16), size_scale=MEASURED_SCALE)
        for schedule in ("gpipe", DAPPLE):
            yield pipelined("paced", workload, Pipelining(schedule=schedule), fabric, options)
    interleaved = Pipelining(schedule="interleaved")
    yield pipelined("paced", replayed("bert_large", size_scale=MEASURED_SCALE), interleaved, fabric, options)


def real(options: Options) -> Iterator[Trial]:
    """A small network, computed: ours beside torch's own executor with the same schedules."""
    fabric = FabricSpec(kind=FabricKind.PACED, num_hosts=2, rate_bps=1e9, alpha_s=ALPHA_S)
    workload = WorkloadSpec(network="resnet20", data="digits", batch_size=64)
    for schedule in ("gpipe", DAPPLE, "interleaved"):
        for system in ("ours", "torch-pipelining"):
            asked = Pipelining(schedule=schedule)
            yield pipelined("real", workload, asked, fabric, options, num_steps=10, system=system)
    zero_bubble = "torch-pipelining(zero_bubble=True)"
    yield pipelined(
        "real", workload, Pipelining(schedule="interleaved"), fabric, options, num_steps=10, system=zero_bubble
    )


def learning(options: Options) -> Iterator[Trial]:
    """Held-out accuracy by steps: schedules that flush, and those whose weights are stale."""
    num_steps = options.num_steps or (8 if options.smoke else LEARNING_STEPS)
    digits = WorkloadSpec(network="resnet20", data="digits", batch_size=16, num_evaluation=180)
    text = WorkloadSpec(network="lstm_lm", data="text", batch_size=4, sequence_length=32, num_evaluation=64)
    fabric = FabricSpec(kind=FabricKind.LOCKSTEP, num_hosts=STAGES, rate_bps=1e9, alpha_s=ALPHA_S)
    recipes = ((digits, "sgd(lr=0.05)"), (text, "adam(lr=0.003)"))
    for workload, optimizer in recipes[:1] if options.smoke else recipes:
        whole = replace(workload, batch_size=4 * workload.batch_size)
        rate_steps = num_steps // 4
        for label, schedule, spec, num_micro_batches in (
            (DAPPLE, DAPPLE, workload, 4),
            ("pipedream", PIPEDREAM, whole, 1),
            ("pipemare, plain", f"{PIPEMARE}(decay=0.0)", workload, 4),
            (PIPEMARE, f"{PIPEMARE}(rate_steps={rate_steps})", workload, 4),
        ):
            cell = pipelined(
                "learning",
                spec,
                Pipelining(schedule=schedule),
                fabric,
                options,
                num_micro_batches=num_micro_batches,
                num_steps=num_steps,
                label=label,
                role=Role.DENSE if label == DAPPLE else Role.METHOD,
                optimizer=optimizer,
            )
            yield replace(cell, num_warmup=1, num_steps=num_steps - 1, evaluate_every=max(1, num_steps // 30))


def two_jobs(options: Options) -> Iterator[Trial]:
    """Two alike on the same four devices: one after the other, at once, and pass by pass with the second one's steps
    half a step later, so that its passes meet the first one's bubbles; or later by what the clock finds best."""
    fabrics = [on_clock(STAGES)]
    if not options.smoke:
        fabrics.append(on_paced(STAGES))
    for fabric in fabrics:
        kind = "clock" if fabric.kind is FabricKind.LOCKSTEP else "paced"
        for num_micro_batches in (4, 8):
            yield from _pair(f"two-jobs-{kind}-{num_micro_batches}", num_micro_batches, fabric, options)
    for fabric in fabrics:
        kind = "clock" if fabric.kind is FabricKind.LOCKSTEP else "paced"
        yield from _pair(f"two-jobs-found-{kind}", MICRO_BATCHES, fabric, options, finds_phases=True)


def _pair(
    group: str, num_micro_batches: int, fabric: FabricSpec, options: Options, *, finds_phases: bool = False
) -> Iterator[Trial]:
    base = pipelined(
        group,
        replayed("bert_large", size_scale=MEASURED_SCALE if fabric.kind.has_processes else SIZE_SCALE),
        Pipelining(schedule=DAPPLE),
        fabric,
        options,
        num_micro_batches=num_micro_batches,
        num_steps=10 if fabric.kind.has_processes else 20,
    )
    (job,) = base.jobs
    jobs = replace(job, name="a"), replace(job, name="b")
    shifted = jobs if finds_phases else (jobs[0], replace(jobs[1], start_phase=0.5))
    workloads = "+".join(own.workload.label for own in jobs)
    for sharing, own in ((Sharing.EXCLUSIVE, jobs), (Sharing.CROSSOVER, shifted)):
        label = f"{group}/{workloads}/{sharing.value}"
        costs = 1 if sharing is Sharing.EXCLUSIVE else 0
        found = finds_phases and sharing is Sharing.CROSSOVER
        yield replace(base, cell=label, jobs=own, sharing=sharing, num_cost_steps=costs, finds_phases=found)


SUITE = Suite(
    name=NAME,
    question="Which schedule and which plan of a pipeline pays where, and can two pipelines fill each other's bubbles?",
    grid=grid,
    fabric=FabricKind.PACED,
)
