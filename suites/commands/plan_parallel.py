"""`crossover-bench plan-parallel`: what each planner would do with a workload, and the fastest plan that fits."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from analysis.terminal import Column, output_console, paragraph, table, titled
from baselines.parallelism.api import ParallelismError
from baselines.parallelism.plans import LayerSplit, Machine, ParallelPlan, Workshare
from fabric.rates import format_rate, parse_rate, parse_seconds, parse_size
from harness.parallel.plan_forecasts import PlanForecast, choose, forecasts
from models.graph import LayerGraph
from models.graph_building import graph_from_flops, graph_of
from models.layer_profile import device_memory
from results.codec import to_jsonable

MOST_HOSTS, MOST_MICRO_BATCHES, MOST_SAMPLES = 256, 256, 1 << 16  # searches grow with each of them


def plan_parallel_command(arguments: argparse.Namespace) -> int:
    """Plan and print. Raises: ValueError about the request, a plan that fits no memory included."""
    for name, most in (("hosts", MOST_HOSTS), ("micro_batches", MOST_MICRO_BATCHES), ("batch_size", MOST_SAMPLES)):
        if (value := getattr(arguments, name)) > most:
            raise ParallelismError(f"--{name.replace('_', '-')} {value:,}: plans are found for up to {most:,}")
    rate_bps = parse_rate(arguments.rate)
    graph = (
        graph_from_flops(arguments.workload, flops_per_s=arguments.flops)
        if arguments.flops is not None
        else graph_of(arguments.workload)
    )
    memory_bytes = device_memory(graph.device)
    if arguments.memory is not None:
        memory_bytes = 0 if arguments.memory == "none" else parse_size(arguments.memory, "--memory")
    machine = Machine(
        num_devices=arguments.hosts,
        alpha_s=parse_seconds(arguments.alpha, "--alpha"),
        beta_s_per_byte=8 / rate_bps if rate_bps else 0.0,
        memory_bytes=memory_bytes,
    )
    work = Workshare(
        batch_size=arguments.batch_size * max(1, arguments.hosts), num_micro_batches=arguments.micro_batches
    )
    found = forecasts(graph, machine, work, arguments.planner)
    chosen = choose(found, memory_bytes)
    if arguments.json:
        json.dump({"chosen": chosen.planner, "plans": to_jsonable(found)}, sys.stdout, indent=1)
        print()
        return 0
    _show(graph, machine, work, found, chosen)
    return 0


def _show(
    graph: LayerGraph, machine: Machine, work: Workshare, found: Sequence[PlanForecast], chosen: PlanForecast
) -> None:
    console = output_console()
    width = console.width
    planned = [entry for entry in found if entry.plan is not None]
    columns = [
        Column("step\ns", tuple(f"{entry.step_s:.4f}" for entry in planned), 0),
        Column("memory\nGB", tuple(_memory(entry, machine.memory_bytes) for entry in planned), 1),
        Column("idle\n%", tuple(f"{entry.bubble:.0%}" if entry.bubble else "" for entry in planned), 3),
        Column("weights", tuple("stale" if entry.stale else "" for entry in planned), 6, "left"),
        Column("schedule", tuple(entry.schedule for entry in planned), 4, "left"),
        Column("plan", tuple(summary(entry.plan, len(graph.layers)) for entry in planned if entry.plan), 2, "left"),
    ]
    limit = f"{machine.memory_bytes / 1e9:g} GB per device at most" if machine.memory_bytes else "no limit of memory"
    rule = f"{work.batch_size // machine.num_devices} samples per worker and step, whatever the number of hosts"
    console.print(paragraph(f"{rule}; {machine.alpha_s * 1e6:g} µs per message or ring step; {limit}.", width))
    rate = format_rate(8 / machine.beta_s_per_byte) if machine.beta_s_per_byte else "unshaped"
    title = (
        f"{graph.network} on {machine.num_devices} hosts at {rate}, {work.batch_size} samples per step in "
        f"{work.num_micro_batches} micro-batches"
    )
    console.print(titled(title, table("planner", [entry.planner for entry in planned], columns, width), width))
    for entry in found:
        if entry.refused:
            console.print(paragraph(f"{entry.planner}: {entry.refused}", width, style="yellow"))
    console.print(paragraph(f"Times: {graph.provenance.value}, {graph.device}. {graph.source}", width, style="dim"))
    console.print(paragraph(f"The fastest that fits: {chosen.planner}", width, style="bold"))
    stale = [entry for entry in planned if entry.stale and 0 < entry.step_s < chosen.step_s]
    if stale and not chosen.stale:
        note = f"{stale[0].planner} takes {stale[0].step_s:.4f} s with stale weights, so that a step may learn less"
        console.print(paragraph(note, width, style="dim"))
    for line in placement(graph, chosen):
        console.print(line, markup=False, highlight=False)


def _memory(entry: PlanForecast, limit_bytes: int) -> str:
    text = f"{entry.memory_bytes / 1e9:.2f}"
    return f"{text} too much" if 0 < limit_bytes < entry.memory_bytes else text


def summary(plan: ParallelPlan, num_layers: int) -> str:
    """A plan in a few words: layers × replicas of each stage, or how many layers are split how."""
    if not plan.splits:
        return ", ".join(f"{stage.stop - stage.first}×{stage.num_replicas}" for stage in plan.stages)
    counts: dict[str, int] = {}
    for splits in plan.splits:
        counts[split_text(splits)] = counts.get(split_text(splits), 0) + 1
    return ", ".join(f"{count} of {num_layers} {text}" for text, count in counts.items())


def split_text(splits: Sequence[LayerSplit]) -> str:
    """`sample/4 channel-out/2`, or `whole`."""
    return " ".join(f"{split.dimension}/{split.degree}" for split in splits) or "whole"


def placement(graph: LayerGraph, chosen: PlanForecast) -> list[str]:
    """A line per stage with its devices, or per run of layers that are split alike."""
    plan = chosen.plan
    assert plan is not None
    names = [layer.name for layer in graph.layers]
    if not plan.splits:
        lines, device = [], 0
        for stage in plan.stages:
            last = device + stage.num_replicas - 1
            devices = f"device {device}" if last == device else f"devices {device}–{last}"
            lines.append(f"  {devices}: {names[stage.first]} … {names[stage.stop - 1]}")
            device = last + 1
        return lines
    lines, first = [], 0
    for place in range(1, len(names) + 1):
        if place == len(names) or plan.splits[place] != plan.splits[first]:
            lines.append(f"  {split_text(plan.splits[first])}: {names[first]} … {names[place - 1]}")
            first = place
    return lines
