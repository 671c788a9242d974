"""When a model's layers compute and its gradients become ready, seen by hooks while a job is profiled.

    forward     a layer's time lasts from its own beginning to that of the next one, or to the end of the model
    backward    a layer's time lasts from the gradient before it to its own last one

A layer is a module with parameters of its own. On a GPU events in the stream stand for the moments, so nothing waits
for the device. Hooks cost some microseconds per layer and parameter. A compiled model is counted in bytes and not
timed, because hooks would cut its graph.
"""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from statistics import median, quantiles
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from crossover.digests import rank_of_environment
from crossover.integrations.computing import tensors_in
from crossover.worker_report import LayerReport, WorkerReport

NUM_PASSES_KEPT = 64
_END_OF_FORWARD = -1
_PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}


class _Moment(NamedTuple):
    """A layer's beginning in forward, or one of its gradients in backward; `at` is in seconds or an event."""

    layer: int
    is_backward: bool
    at: Any


class _Layer(NamedTuple):
    name: str
    module: nn.Module
    parameters: dict[str, nn.Parameter]  # those that get gradients; a tied one in the first layer that has it


class LayerClock:
    """Hooks on a job's `models` (torch modules), which are on their device. `world` is the job's number of workers."""

    def __init__(self, models: tuple[nn.Module, ...], world: int) -> None:
        self._models, self._world = models, world
        self._layers = list(_layers_of(models))
        self._moments: list[_Moment] = []
        self._passes: deque[list[_Moment]] = deque(maxlen=NUM_PASSES_KEPT)
        self._is_training = False
        self._batch: tuple[int, ...] = ()
        self._device = next(models[0].parameters()).device
        self._handles: list[Any] = []
        if not any(map(_is_compiled, models)):
            self._hook()

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def report(self, optimizers: tuple[Any, ...]) -> WorkerReport:
        """What was seen until now, and the bytes that the model and its `optimizers` keep."""
        parameters = {id(own): own for model in self._models for own in model.parameters()}.values()
        states = [state for optimizer in optimizers for state in _tensors_of(getattr(optimizer, "state", {}))]
        trained = [own for own in parameters if own.requires_grad]
        kept = _bytes(parameters), _bytes(trained), _bytes(states)
        layers = self._timed_layers()
        return WorkerReport(
            rank=rank_of_environment(),
            world=self._world,
            parameters_bytes=kept[0],
            gradients_bytes=kept[1],
            optimizer_bytes=kept[2],
            activations_bytes=self._activations_bytes(sum(kept)),
            device=_name_of(self._device),
            precision=_PRECISIONS.get(trained[0].dtype, str(trained[0].dtype)) if trained else "",
            batch_size=self._batch[0] if self._batch else 1,
            sample="×".join(map(str, self._batch[1:])) or "one number",
            num_passes=len(self._passes) if layers else 0,
            layers=layers,
        )

    def _hook(self) -> None:
        for model in self._models:
            self._handles.append(model.register_forward_pre_hook(self._begin))
            self._handles.append(model.register_forward_hook(self._end_forward))
        for number, layer in enumerate(self._layers):
            self._handles.append(layer.module.register_forward_pre_hook(self._note(number, is_backward=False)))
            for parameter in layer.parameters.values():
                hook = self._note(number, is_backward=True)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def _begin(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._is_training = module.training and torch.is_grad_enabled()
        if not self._is_training:
            return
        self._close_pass()
        first = next(tensors_in(inputs), None)
        if first is not None and first.ndim:
            self._batch = tuple(first.shape)

    def _close_pass(self) -> None:
        """A pass ends where a forward begins after a backward; of several models all forwards are one pass."""
        if self._moments and self._moments[-1].is_backward:
            self._passes.append(self._moments)
            self._moments = []

    def _end_forward(self, *_: Any) -> None:
        if self._is_training:
            self._moments.append(_Moment(_END_OF_FORWARD, False, self._now()))
        self._is_training = False

    def _note(self, layer: int, *, is_backward: bool) -> Callable[..., None]:
        def note(*_: Any) -> None:
            # layers that are computed again in backward (checkpointing) belong to backward
            if is_backward or self._is_training:
                self._moments.append(_Moment(layer, is_backward, self._now()))

        return note

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _timed_layers(self) -> tuple[LayerReport, ...]:
        """The layers with their times, in the order in which the last pass computed them."""
        self._close_pass()
        if not self._passes:
            return ()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        folded = [_folded(moments, len(self._layers)) for moments in self._passes]
        order = _forward_order(self._passes[-1], len(self._layers))
        return tuple(self._layer_report(number, folded) for number in order)

    def _layer_report(self, number: int, folded: list[tuple[list[float], list[float]]]) -> LayerReport:
        forwards_s, backwards_s = ([times_s[way][number] for times_s in folded] for way in (0, 1))
        layer = self._layers[number]
        return LayerReport(
            name=layer.name,
            parameters=tuple((name, tuple(own.shape)) for name, own in layer.parameters.items()),
            forward_s=median(forwards_s),
            backward_s=median(backwards_s),
            forward_spread_s=_spread(forwards_s),
            backward_spread_s=_spread(backwards_s),
        )

    def _activations_bytes(self, kept: int) -> int:
        """Beyond what stays: torch counts a GPU's peak, and nothing on a CPU."""
        return max(0, torch.cuda.max_memory_allocated(self._device) - kept) if self._device.type == "cuda" else 0


def _layers_of(models: tuple[nn.Module, ...]) -> Iterator[_Layer]:
    seen: set[int] = set()
    for place, model in enumerate(models):
        for name, module in model.named_modules():
            own = {key: value for key, value in module.named_parameters(recurse=False) if id(value) not in seen}
            seen.update(map(id, own.values()))
            prefix = ".".join(filter(None, (str(place) if len(models) > 1 else "", name)))
            trained = {f"{prefix}.{key}".lstrip("."): value for key, value in own.items() if value.requires_grad}
            if own:
                yield _Layer(prefix or type(module).__name__, module, trained)


def _folded(moments: list[_Moment], num_layers: int) -> tuple[list[float], list[float]]:
    """Seconds of forward and of backward of each layer in one pass."""
    forward_s, backward_s = [0.0] * num_layers, [0.0] * num_layers
    for before, after in pairwise(moments):
        if after.is_backward:
            backward_s[after.layer] += _between_s(before.at, after.at)
        elif not before.is_backward and before.layer != _END_OF_FORWARD:
            forward_s[before.layer] += _between_s(before.at, after.at)
    return forward_s, backward_s


def _between_s(before: Any, after: Any) -> float:
    if isinstance(before, float) and isinstance(after, float):
        return after - before
    return float(before.elapsed_time(after)) / 1e3


def _forward_order(moments: list[_Moment], num_layers: int) -> list[int]:
    """As they were called; a layer that is read without being called stays behind the one registered before it."""
    called = [moment.layer for moment in moments if not moment.is_backward and moment.layer != _END_OF_FORWARD]
    first = {layer: place for place, layer in reversed(list(enumerate(called)))}
    places, latest = [], -1
    for number in range(num_layers):
        latest = first.get(number, latest)
        places.append((latest, number))
    return [number for _, number in sorted(places)]


def _spread(times_s: list[float]) -> float:
    if len(times_s) < 2:
        return 0.0
    low, _, high = quantiles(times_s, n=4)
    return high - low


def _is_compiled(model: nn.Module) -> bool:
    return any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in model.modules()
    )


def _tensors_of(state: Mapping[Any, Any]) -> list[Tensor]:
    """The tensors that an optimizer keeps, each once."""
    return list({id(tensor): tensor for own in state.values() for tensor in tensors_in(own)}.values())


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _name_of(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"
