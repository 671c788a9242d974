"""Record a network's layer times on the device at hand.

    python -m models.profile resnet50 --device cuda --batch-size 32 --out models/profiles/resnet50-a100.json

A layer's forward runs from its start to the start of the next one, so it takes in what stands between
(activations, pooling, additions). Its backward runs from the moment when the gradients of the layer behind it were
complete to the moment when its own are. So the times add up to the step's, and replay makes gradients ready when
the real network does. CUDA is timed by events on the stream, the CPU by its clock.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from models.flops import PUBLISHED, derive_profile, describe_sample, layer_parameters
from models.layer_profile import FOLDER, LayerProfile, Profile, Provenance, save_profile
from models.network import Network
from models.networks import NETWORKS, find_network
from models.outside import is_outside
from models.values import Batch, Device, WorkloadError, WorkloadSpec
from models.workload import Workload, open_workload

Mark = Any  # a moment: float on the CPU, torch.cuda.Event on a GPU


@dataclass(slots=True)
class _Step:
    """Moments of one step, layers in the order in which they came."""

    started: dict[str, Mark] = field(default_factory=dict)
    ready: dict[str, Mark] = field(default_factory=dict)
    turned: Mark = None
    ended: Mark = None


@dataclass(frozen=True, slots=True)
class _Clock:
    mark: Callable[[], Mark]
    elapsed_s: Callable[[Mark, Mark], float]


def record_profile(
    spec: WorkloadSpec,
    *,
    num_steps: int = 20,
    num_warmup: int = 5,
    on_step: Callable[[int, int], None] = lambda done, of: None,  # after each, with the number of all
) -> Profile:
    """Time `spec`'s network layer by layer on its device (cpu or cuda) with synthetic data.

    Raises: WorkloadError for an unknown network, a missing GPU, replay, or fewer than 2 steps.
    """
    if spec.device is Device.REPLAY or num_steps < 2:
        raise WorkloadError(f"device {spec.device.value!r} with {num_steps} steps; record at least 2 on cpu or cuda")
    network = find_network(spec.network)
    workload = open_workload(spec)
    model = workload.build_model(seed=0)
    clock = _cuda_clock() if spec.device is Device.CUDA else _cpu_clock()
    steps: list[_Step] = []
    for step in _timed_steps(workload, model, clock, num_steps + num_warmup):
        steps.append(step)
        on_step(len(steps), num_steps + num_warmup)
    del steps[:num_warmup]
    order = tuple(steps[0].started)
    forward = [_forward_s(step, clock) for step in steps]
    backward = [_backward_s(step, clock) for step in steps]
    parameters = layer_parameters(model, network)
    shape = network.usual_shape(image_size=workload.spec.image_size, sequence_length=spec.sequence_length)
    return Profile(
        network=network.name,
        provenance=Provenance.RECORDED,
        source=f"median of {num_steps} steps after {num_warmup} of warm-up, torch {torch.__version__}",
        device=_device_name(spec.device),
        precision="fp32",
        batch_size=spec.batch_size,
        sample=describe_sample(network, shape),
        num_steps=num_steps,
        layers=tuple(
            LayerProfile(
                name=name,
                parameters=parameters[name],
                forward_s=statistics.median(times[name] for times in forward),
                backward_s=statistics.median(times[name] for times in backward),
                forward_spread_s=_quartile_range([times[name] for times in forward]),
                backward_spread_s=_quartile_range([times[name] for times in backward]),
            )
            for name in order
        ),
    )


def _timed_steps(workload: Workload, model: nn.Module, clock: _Clock, num_steps: int) -> Iterator[_Step]:
    batches = workload.batches(rank=0, world=1, seed=0)
    network = find_network(workload.spec.network)
    for _ in range(num_steps):
        step = _Step()
        with _hooked(model, network, step, clock):
            _run_step(workload, model, next(batches), step, clock)
        yield step


def _run_step(workload: Workload, model: nn.Module, batch: Batch, step: _Step, clock: _Clock) -> None:
    model.zero_grad(set_to_none=True)
    loss = workload.loss(model, batch)
    step.turned = clock.mark()
    loss.backward()
    step.ended = clock.mark()
    if workload.spec.device is Device.CUDA:
        torch.cuda.synchronize()


@contextmanager
def _hooked(model: nn.Module, network: Network, step: _Step, clock: _Clock) -> Iterator[None]:
    handles: list[RemovableHandle] = []
    # Each parameter once: a tied one belongs to the layer that ends it, and must not delay the other's.
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        layer = network.layer_of(name.rpartition(".")[0])
        handles.append(parameter.register_post_accumulate_grad_hook(_ready_hook(step, layer, clock)))
    for name, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            handles.append(module.register_forward_pre_hook(_start_hook(step, network.layer_of(name), clock)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _start_hook(step: _Step, layer: str, clock: _Clock) -> Callable[[nn.Module, Any], None]:
    def hook(module: nn.Module, inputs: Any) -> None:
        if layer not in step.started:
            step.started[layer] = clock.mark()

    return hook


def _ready_hook(step: _Step, layer: str, clock: _Clock) -> Callable[[torch.Tensor], None]:
    def hook(parameter: torch.Tensor) -> None:
        step.ready.pop(layer, None)  # the last one counts, and stands last
        step.ready[layer] = clock.mark()

    return hook


def _forward_s(step: _Step, clock: _Clock) -> dict[str, float]:
    ends = [*list(step.started.values())[1:], step.turned]
    return {name: clock.elapsed_s(start, end) for (name, start), end in zip(step.started.items(), ends, strict=True)}


def _backward_s(step: _Step, clock: _Clock) -> dict[str, float]:
    times = dict.fromkeys(step.started, 0.0)  # where no parameter is trained, nothing is waited for
    before = step.turned
    for name, ready in step.ready.items():
        times[name] = clock.elapsed_s(before, ready)
        before = ready
    return times


def _cpu_clock() -> _Clock:
    return _Clock(time.perf_counter, lambda start, end: end - start)


def _cuda_clock() -> _Clock:
    def mark() -> Mark:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    return _Clock(mark, lambda start, end: start.elapsed_time(end) / 1e3)


def _quartile_range(values: list[float]) -> float:
    low, _, high = statistics.quantiles(values, n=4)
    return high - low


def _device_name(device: Device) -> str:
    if device is Device.CUDA:
        return torch.cuda.get_device_name()
    return f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m models.profile", description="Record a profile for replay.")
    parser.add_argument("network", help=", ".join(NETWORKS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--derive", action="store_true", help="from FLOPs and a published total; needs no device")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=0)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="default: models/profiles/NETWORK-<cpu, cuda or v100>.json")
    arguments = parser.parse_args()
    if is_outside(arguments.network) and arguments.out is None:
        parser.error("a network of your own has no place among the profiles; name a file with --out")
    path = arguments.out or FOLDER / f"{arguments.network}-{'v100' if arguments.derive else arguments.device}.json"
    try:
        profile = _derive(arguments) if arguments.derive else _record(arguments)
        save_profile(profile, path)
    except WorkloadError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"cannot write {path} ({error.strerror}); name another file with --out")
    print(
        f"{path}: {len(profile.layers)} layers, forward {profile.forward_s:.4f} s, backward {profile.backward_s:.4f} s"
    )


def _record(arguments: argparse.Namespace) -> Profile:
    spec = WorkloadSpec(
        network=arguments.network,
        data="synthetic",
        device=Device(arguments.device),
        batch_size=arguments.batch_size,
        image_size=arguments.image_size,
        sequence_length=arguments.sequence_length,
    )
    return record_profile(spec, num_steps=arguments.steps, on_step=_progress())


def _progress() -> Callable[[int, int], None]:
    """A line on the standard error every few seconds, with the time left."""
    began_s = said_s = time.monotonic()

    def say(done: int, of: int) -> None:
        nonlocal said_s
        if done == 1 or time.monotonic() - said_s >= 5.0:
            said_s = time.monotonic()
            left_s = (said_s - began_s) / done * (of - done)
            print(f"step {done} of {of}, about {left_s:.0f} s left", file=sys.stderr)

    return say


def _derive(arguments: argparse.Namespace) -> Profile:
    network = find_network(arguments.network)
    if network.name not in PUBLISHED:
        raise WorkloadError(f"no published time for {network.name!r}; there is one for {', '.join(PUBLISHED)}")
    return derive_profile(network, PUBLISHED[network.name], arguments.batch_size)


if __name__ == "__main__":
    main()
