"""Cells of the suite `parallelism` whose operators are split: every planner's plan on the clock, some of them executed
over a paced link, small ones trained in lockstep and by processes.

Sums of gradients hide behind backward in all of them, data parallelism's too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fabric.api import FabricKind, FabricSpec
from harness.parallel.placement import Pipelining
from harness.splits.splitting import Splitting
from harness.trial import Trial
from models.values import WorkloadSpec
from results.facts import Role
from suites.api import Options
from suites.parallelism.cells import ALPHA_S, MEASURED_SCALE, on_clock, on_paced, pipelined, replayed

DATA_PARALLEL, LAYERS_PLACED, MESH = "data-parallel", "layers-placed", "mesh-tensorflow"
SEARCHED = ("tofu", "hypar", "flexflow")
SHORT_FLEXFLOW = "flexflow(num_steps=2000)"
NETWORKS = ("vgg16", "resnet50", "bert_large")
RATES_BPS = (1e9, 10e9, 100e9)
# Samples per worker: with fewer, the third of a millisecond that each exchange costs this machine decides.
EXECUTED_SAMPLES, EXECUTED_STEPS = {"vgg16": 64, "bert_large": 32}, 4
SAMPLES_PER_WORKER = 16
MESH_COLUMNS, MESH_WORKERS = 4, (16, 64, 256)
MESH_NETWORKS = ("bert_large", "gpt2")
TRAINED_STEPS = 20


def split_cells(options: Options) -> Iterator[Trial]:
    """Those that are exact, once."""
    yield from planned_splits(options)
    yield from meshes(options)
    yield from trained_splits("split-learning", FabricKind.LOCKSTEP, options)


def measured_splits(options: Options) -> Iterator[Trial]:
    """Those that processes run."""
    yield from executed_splits(options)
    yield from trained_splits("split-processes", FabricKind.PACED, options)


def planned_splits(options: Options) -> Iterator[Trial]:
    """Each planner's plan beside data parallelism, and beside whole layers on a device of their own, without
    micro-batches."""
    num_workers = 4 if options.smoke else 16
    searched = ("tofu", "hypar", SHORT_FLEXFLOW) if options.smoke else SEARCHED
    for network in NETWORKS[:1] if options.smoke else NETWORKS:
        workload = replayed(network, SAMPLES_PER_WORKER * num_workers)
        for rate_bps in RATES_BPS[1:2] if options.smoke else RATES_BPS:
            group, fabric = f"splits-{rate_bps / 1e9:g}gbit", on_clock(num_workers, rate_bps)
            for planner in (DATA_PARALLEL, *searched):
                yield split_trial(group, workload, planner, fabric, options)
            placed = Pipelining(schedule="dapple")
            yield pipelined(group, workload, placed, fabric, options, num_micro_batches=1, label=LAYERS_PLACED)


def meshes(options: Options) -> Iterator[Trial]:
    """Mesh-TensorFlow's layout of a Transformer, channels over columns and samples over more and more rows."""
    for network in () if options.smoke else MESH_NETWORKS:
        for num_workers in MESH_WORKERS:
            mesh = f"rows={num_workers // MESH_COLUMNS},columns={MESH_COLUMNS}"
            planner = f"{MESH}(mesh='{mesh}', layout='sample=rows,channel-out=columns')"
            workload = replayed(network, SAMPLES_PER_WORKER * num_workers)
            yield split_trial(f"mesh-{num_workers}", workload, planner, on_clock(num_workers), options)


def executed_splits(options: Options) -> Iterator[Trial]:
    """Plans of the clock's cells carried out on one of 16 devices over a paced link, its peers virtual."""
    num_workers = 16
    fabric = on_paced(1, num_virtual=num_workers)
    for network, samples in EXECUTED_SAMPLES.items():
        workload = replayed(network, samples * num_workers, size_scale=MEASURED_SCALE)
        for planner in (DATA_PARALLEL, "tofu", "hypar", SHORT_FLEXFLOW):
            cell = split_trial("split-paced", workload, planner, fabric, options)
            yield replace(cell, num_steps=options.num_steps or EXECUTED_STEPS)


def trained_splits(group: str, kind: FabricKind, options: Options) -> Iterator[Trial]:
    """A small network on two ranks, so that every plan has one dimension of all ranks per layer, which is what runs."""
    workload = WorkloadSpec(
        network="lstm_lm", data="text", batch_size=16, sequence_length=16, dropout=0.0, num_evaluation=64
    )
    fabric = FabricSpec(kind=kind, num_hosts=2, rate_bps=1e9, alpha_s=ALPHA_S)
    columns = f"{MESH}(mesh='columns=2', layout='channel-out=columns')"
    for planner in (DATA_PARALLEL, *(() if options.smoke else ("tofu", "hypar", SHORT_FLEXFLOW, columns))):
        cell = split_trial(group, workload, planner, fabric, options)
        num_steps = options.num_steps or (4 if options.smoke else TRAINED_STEPS - 1)
        yield replace(cell, num_warmup=1, num_steps=num_steps)


def split_trial(group: str, workload: WorkloadSpec, planner: str, fabric: FabricSpec, options: Options) -> Trial:
    """One job, one cell: `group/workload/planner`, the planner without its parameters."""
    name = planner.partition("(")[0]
    role = Role.DENSE if name == DATA_PARALLEL else Role.METHOD
    base = pipelined(group, workload, Pipelining(), fabric, options, num_micro_batches=1, label=name, role=role)
    (job,) = base.jobs
    return replace(base, jobs=(replace(job, pipelining=None, splitting=Splitting(planner=planner)),))
