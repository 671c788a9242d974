"""`crossover-bench predict`: step times without a step being run."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from analysis import terminal
from analysis.terminal import Column, output_console
from fabric.api import FabricKind, FabricSpec, format_rate, parse_rate
from fabric.rates import parse_seconds
from fabric.simulated.placed import place_network
from harness.environment import describe_environment
from harness.predict.calibration import Calibration, measure, read_calibration, refitted, write_calibration
from harness.predict.codecs import NOT_CHARGED, charge_of
from harness.predict.costs import LinkCosts, PredictError, given_costs
from harness.predict.trial import Foretold, foretell, simulated_record
from harness.simulated.trial import job_costs
from harness.trial import Job, Trial
from models.layer_profile import load_profile
from models.networks import NETWORKS, find_network
from models.workload import Device, WorkloadError, WorkloadSpec
from results.record import Environment, write_record
from suites.api import Options
from suites.catalogue import suite_of
from suites.commands.network_options import network_from
from suites.commands.predict_defaults import (
    ALPHA,
    BATCH_SIZE,
    CALIBRATED_HOSTS,
    CALIBRATED_RATES,
    CALIBRATION,
    HOSTS,
    RATES,
    STRATEGIES,
)
from suites.folders import prepare_folder
from suites.runner import select

MOST_HOSTS = 1 << 16
MOST_S_PER_BYTE = 1e-2  # of a line at 800 bit/s
IMAGINED = "predict"  # the suite of cells that no fabric here can run


@dataclass(frozen=True, slots=True)
class Cell:
    """A trial among `world` workers, and what is foretold of it."""

    trial: Trial
    world: int
    found: Foretold | str


def predict_command(arguments: argparse.Namespace) -> int:
    """Calibrate, or predict a suite or a workload. Raises: ValueError about the request."""
    if arguments.calibrate:
        return _calibrate(arguments)
    if arguments.refit:
        path = arguments.calibration or CALIBRATION
        return _keep(refitted(read_calibration(path)), path, Console(stderr=True))
    own = arguments.workload or arguments.profile
    if bool(arguments.suite) == bool(own):
        raise PredictError("name a SUITE, or a network with --workload or --profile (and not both)")
    if not 0 <= arguments.slowdown < math.inf:
        raise PredictError(f"--slowdown {arguments.slowdown:g}: give a finite number, 0 or more")
    whose = _read_link(arguments)
    known = arguments.alpha is not None or arguments.network is not None
    calibration = Calibration() if known else read_calibration(arguments.calibration or CALIBRATION)
    cells = list(_suite_cells(arguments, calibration) if arguments.suite else _grid_cells(arguments, calibration))
    if all(isinstance(cell.found, str) for cell in cells):
        raise PredictError(f"{'; '.join(_not_predicted(cells))}; nothing is left to show, so ask for other cells")
    if arguments.out:
        environment = describe_environment()
        _write(cells, prepare_folder(arguments.out), environment)
    if arguments.json:
        json.dump([_as_json(cell) for cell in cells], sys.stdout, indent=1)
        print()
    elif arguments.suite:
        _show_suite(cells)
    else:
        _show_grid(cells, whose)
    return 0


def _read_link(arguments: argparse.Namespace) -> str:
    """Make numbers of `--alpha` and `--beta`, and say whose costs are used. Raises: PredictError, FabricError."""
    given = [f"--{name} {text}" for name in ("alpha", "beta") if (text := getattr(arguments, name)) is not None]
    measured = arguments.calibration is not None or arguments.fabric is not None
    if arguments.network is not None and (given or arguments.rates is not None):
        raise PredictError(
            "--network has links with rates and delays of its own; leave out --alpha, --beta and --rates"
        )
    if arguments.beta is not None and (arguments.rates is not None or arguments.suite):
        other = f"--rates {arguments.rates}" if arguments.rates is not None else f"the cells of {arguments.suite}"
        raise PredictError(f"--beta {arguments.beta} and {other} both say the rate; leave --beta or the other out")
    if given and measured and not arguments.suite:
        raise PredictError(f"{given[0]} is given, and --calibration and --fabric name measured costs; leave one out")
    whose = "Costs as given." if given else "Costs of the flows on the network."
    if not (arguments.alpha is not None or measured or arguments.network is not None or arguments.suite):
        arguments.alpha, whose = ALPHA, f"Default cluster: one device per host, {ALPHA} per ring step, rates as asked."
    elif measured:
        whose = f"Costs as measured: {arguments.calibration or CALIBRATION}."
    if arguments.alpha is not None:
        arguments.alpha = parse_seconds(arguments.alpha, "--alpha")
    if arguments.beta is not None:
        arguments.beta = parse_seconds(arguments.beta, "--beta", most_s=MOST_S_PER_BYTE, such_as="0.8ns or 8e-10")
    return whose


def _calibrate(arguments: argparse.Namespace) -> int:
    kind = _measured_kind(arguments.fabric)
    rates = [None] if kind is FabricKind.NATIVE else _rates(_given(arguments.rates, CALIBRATED_RATES))
    fabrics = [
        FabricSpec(kind=kind, num_hosts=hosts, rate_bps=rate)
        for rate in rates
        for hosts in _hosts(_given(arguments.hosts, CALIBRATED_HOSTS))
        if hosts > 1
    ]
    console = Console(stderr=True)
    calibration = measure(fabrics, describe_environment(), say=lambda text: console.print(text, highlight=False))
    return _keep(calibration, arguments.calibration or CALIBRATION, console)


def _keep(calibration: Calibration, path: Path, console: Console) -> int:
    """Write it, and say what is in it."""
    write_calibration(calibration, path)
    for entry in calibration.entries:
        costs = entry.costs
        console.print(
            f"{costs.source}: α {costs.alpha_s * 1e6:.0f} µs, β {costs.beta_s_per_byte * 1e9:.1f} ns per byte, "
            f"engine {costs.engine.message_s * 1e6:.0f} µs per message; fit within {costs.residual:.0%}",
            highlight=False,
        )
    console.print(f"written to {path}", highlight=False, markup=False)
    return 0


def _suite_cells(arguments: argparse.Namespace, calibration: Calibration) -> Iterator[Cell]:
    suite = suite_of(arguments.suite)
    grid = suite.predicted or suite.grid
    network = network_from(arguments)
    kind = suite.fabric or _kind_of_cells(arguments.fabric) if network is None else FabricKind.SIMULATED
    trials = select(grid(Options(fabric=kind, network=network)), arguments.only)
    steps = [trial for trial in trials if trial.jobs]  # flows or a library's operations alone take none
    if not steps:
        raise PredictError(f"{suite.name}: no cell that is asked for has a step to predict; `list` shows other suites")
    for trial in {replace(trial, repeat=0, seed=1): None for trial in steps}:
        for world in dict.fromkeys((trial.fabric.num_ranks, *suite.predicted_worlds)):
            yield _cell(trial, world, trial.fabric.rate_bps, arguments, calibration)


def _grid_cells(arguments: argparse.Namespace, calibration: Calibration) -> Iterator[Cell]:
    workload = _workload(arguments)
    network = network_from(arguments)
    rates = [None] if network is not None else _rates(_given(arguments.rates, RATES))
    if arguments.beta is not None:
        rates = [8 / arguments.beta if arguments.beta else None]
    for rate in rates:
        for strategy in arguments.strategies or STRATEGIES:
            for world in _hosts(_given(arguments.hosts, HOSTS)):
                job = Job(name="job", workload=workload, strategy=strategy)
                job.resolve()
                imagined = FabricSpec(kind=FabricKind.PACED, num_hosts=1, rate_bps=rate)
                where = format_rate(rate).replace(" ", "").removesuffix("/s")
                if network is not None:
                    imagined = FabricSpec(kind=FabricKind.SIMULATED, num_hosts=world, rate_bps=None, network=network)
                    where = network.topology
                trial = Trial(suite=IMAGINED, cell=f"{where}/{workload.label}/{strategy}", jobs=(job,), fabric=imagined)
                yield _cell(trial, world, rate, arguments, calibration)


def _workload(arguments: argparse.Namespace) -> WorkloadSpec:
    """What is predicted; a profile alone says its network and batch itself. Raises: WorkloadError."""
    network, batch_size = arguments.workload, BATCH_SIZE
    if arguments.profile:
        profile = load_profile(arguments.profile)
        if network is None:
            network, batch_size = profile.network, profile.batch_size
        elif network != profile.network:
            raise WorkloadError(
                f"--profile {arguments.profile!r} is of {profile.network!r}, not of --workload {network!r}; give that "
                "network's profile, or leave out --workload"
            )
    elif not find_network(network).profile:
        raise WorkloadError(
            f"--workload {network!r} has no profile of its own; record one with `python -m models.profile {network} "
            f"--out FILE.json` and give --profile FILE.json, or use one of {', '.join(_with_profiles())}"
        )
    return WorkloadSpec(
        network=network,
        device=Device.REPLAY,
        profile=arguments.profile,
        size_scale=arguments.size_scale,
        batch_size=batch_size if arguments.batch_size is None else arguments.batch_size,
    )


def _with_profiles() -> list[str]:
    return [name for name, network in NETWORKS.items() if network.profile]


def _cell(
    trial: Trial, world: int, rate_bps: float | None, arguments: argparse.Namespace, calibration: Calibration
) -> Cell:
    costs: LinkCosts | None = None
    try:
        if trial.fabric.network is not None:
            costs = _costs_on(trial, world)
        elif arguments.alpha is not None:
            beta = arguments.beta if arguments.beta is not None else 8 / rate_bps if rate_bps else 0.0
            costs = given_costs(world, alpha_s=arguments.alpha, beta_s_per_byte=beta)
        elif not arguments.suite:
            costs = calibration.costs(_measured_kind(arguments.fabric), world, rate_bps)
    except PredictError as error:
        return Cell(trial, world, str(error))
    return Cell(trial, world, foretell(trial, calibration, world=world, slowdown=arguments.slowdown, costs=costs))


def _costs_on(trial: Trial, world: int) -> LinkCosts:
    """What each primitive costs among `world` ranks on the trial's network, by its flows. Raises: NetworkError."""
    fabric = replace(trial.fabric, num_hosts=world)
    assert fabric.network is not None
    placed = place_network(fabric.network, world, len(trial.jobs))
    return job_costs(replace(trial, fabric=fabric), placed, 0)


def _given(text: str | None, default: str) -> str:
    """What an option says; an empty text is not left out, and refused by whoever reads it."""
    return default if text is None else text


def _measured_kind(text: str | None) -> FabricKind:
    """The fabric whose costs are looked up or measured."""
    kind = _given(text, FabricKind.EMULATED)
    if kind not in (FabricKind.EMULATED, FabricKind.NATIVE):
        raise PredictError(f"--fabric {str(kind)!r}: costs are measured on the emulated or the native fabric")
    return FabricKind(kind)


def _kind_of_cells(text: str | None) -> FabricKind | None:
    """The fabric on which a suite's cells are put; None leaves each on its own."""
    if text is None:
        return None
    return FabricKind.PACED if text == FabricKind.PACED else _measured_kind(text)


def _hosts(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 1 <= int(part) <= MOST_HOSTS for part in parts):
        raise PredictError(
            f"--hosts {text!r}: give whole numbers from 1 to {MOST_HOSTS} with commas between, e.g. {HOSTS}"
        )
    return [int(part) for part in parts]


def _rates(text: str) -> list[float | None]:
    return [parse_rate(part.strip()) for part in text.split(",")]


def _write(cells: Sequence[Cell], folder: Path, environment: Environment) -> None:
    for cell in cells:
        imagined = cell.trial.suite == IMAGINED and cell.trial.fabric.network is None
        write_record(simulated_record(cell.trial, cell.found, environment, world=cell.world, imagined=imagined), folder)


def _as_json(cell: Cell) -> dict[str, object]:
    known = {
        "cell": cell.trial.cell,
        "strategy": cell.trial.jobs[0].label,
        "hosts": cell.world,
        "rate_bps": cell.trial.fabric.rate_bps,
    }
    if isinstance(cell.found, str):
        return {**known, "reason": cell.found}
    step = cell.found.step
    workload = cell.trial.jobs[0].workload
    return {
        **known,
        "batch_per_worker": workload.batch_size,
        "device": load_profile(workload.profile or find_network(workload.network).profile).device,
        "step_s": step.step_s,
        "efficiency": cell.found.efficiency,
        "exposed_s": step.exposed_s,
        "num_messages": step.num_messages,
        "bound_s": cell.found.bounds.step_s,
        "source": cell.found.costs.source,
        "alpha_s": cell.found.costs.alpha_s,
        "charge": _charge(cell),
        "primitives": {
            name: {"alpha_s": cost.alpha_s, "beta_s_per_byte": cost.beta_s_per_byte}
            for name, cost in cell.found.costs.primitives.items()
        },
    }


def _show_suite(cells: Sequence[Cell]) -> None:
    console = output_console()
    known = [cell for cell in cells if not isinstance(cell.found, str)]
    columns = [
        Column("step\nms", tuple(_ms(cell) for cell in known), 0),
        Column("scaling\nefficiency", tuple(_efficiency(cell) for cell in known), 1),
        Column("hosts", tuple(str(cell.world) for cell in known), 2),
    ]
    labels = [cell.trial.cell for cell in known]
    body = terminal.table("cell", labels, columns, console.width)
    notes = [*_not_predicted(cells), *_uncharged(cells), *_origin(cells)]
    console.print(terminal.titled("predicted step times", body, console.width, notes))


def _show_grid(cells: Sequence[Cell], whose: str) -> None:
    """What is assumed, then a table a rate: strategies down, numbers of workers across."""
    console = output_console()
    workload = cells[0].trial.jobs[0].workload
    profile = load_profile(workload.profile or find_network(workload.network).profile)
    rule = f"{workload.batch_size} samples per worker and step, whatever the number of hosts."
    console.print(terminal.paragraph(f"{rule} {whose} Times: {profile.conditions}.", console.width))
    for rate in dict.fromkeys(cell.trial.fabric.rate_bps for cell in cells):
        own = [cell for cell in cells if cell.trial.fabric.rate_bps == rate]
        labels = list(dict.fromkeys(cell.trial.jobs[0].label for cell in own))
        columns = []
        for place, world in enumerate(dict.fromkeys(cell.world for cell in own)):
            column = tuple(f"{_ms(cell)} {_efficiency(cell)}" for cell in own if cell.world == world)
            columns.append(Column(f"{world} hosts\nms, eff.", column, place))
        body = terminal.table("strategy", labels, columns, console.width)
        network = own[0].trial.fabric.network
        where = f"at {format_rate(rate)}" if network is None else f"on {network.network_text}, {network.transport}"
        title = f"{own[0].trial.jobs[0].workload.label} {where}: step time and scaling efficiency"
        console.print(
            terminal.titled(title, body, console.width, [*_not_predicted(own), *_uncharged(own), *_origin(own)])
        )


def _not_predicted(cells: Sequence[Cell]) -> list[str]:
    reasons = Counter(cell.found for cell in cells if isinstance(cell.found, str))
    return [f"not predicted, {count} cells: {reason}" for reason, count in reasons.items()]


def _ms(cell: Cell) -> str:
    return "–" if isinstance(cell.found, str) else f"{cell.found.step.step_s * 1e3:.1f}"


def _efficiency(cell: Cell) -> str:
    return "" if isinstance(cell.found, str) else f"{cell.found.efficiency:.2f}"


def _origin(cells: Sequence[Cell]) -> list[str]:
    """Where the costs come from, once each, with the α of those cells."""
    alphas_s: dict[str, set[float]] = {}
    for cell in cells:
        if not isinstance(cell.found, str):
            alphas_s.setdefault(cell.found.costs.source, set()).add(cell.found.costs.alpha_s)
    return [f"costs: {source}; α {_microseconds(found)} per message" for source, found in alphas_s.items()]


def _microseconds(times_s: set[float]) -> str:
    """One time, or the range of several."""
    least, most = (f"{time_s * 1e6:.0f}" for time_s in (min(times_s), max(times_s)))
    return f"{least} µs" if least == most else f"{least} to {most} µs"


def _uncharged(cells: Sequence[Cell]) -> list[str]:
    """Compressors whose work no cell is charged for, with the reason: such steps are too short."""
    known = (cell for cell in cells if not isinstance(cell.found, str))
    reasons = Counter(reason for cell in known if (reason := _charge(cell)).startswith(NOT_CHARGED))
    return [f"{count} cells {reason}" for reason, count in reasons.items()]


def _charge(cell: Cell) -> str:
    """What is charged for the cell's compression, or why nothing is."""
    found = charge_of(cell.trial.jobs[0], cell.world)
    return found if isinstance(found, str) else found.note
