"""What one worker computes in a step: the layers of a profile, with the parameters that each makes ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, prod

from baselines.api import Costs, Segment
from harness.predict.costs import PredictError
from models.layer_profile import Profile, load_profile, scaled_shape
from models.networks import find_network
from models.workload import WorkloadSpec


@dataclass(frozen=True, slots=True)
class Layer:
    """Seconds of its two passes, and its parameters; their `index` is the agreed ready order."""

    forward_s: float
    backward_s: float
    segments: tuple[Segment, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of its gradients."""
        return sum(segment.nbytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers in order of forward."""

    layers: tuple[Layer, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All parameters in the order in which backward makes them ready."""
        return tuple(sorted((s for layer in self.layers for s in layer.segments), key=lambda s: s.index))

    @property
    def forward_s(self) -> float:
        """Seconds of forward of all layers, one micro-batch."""
        return fsum(layer.forward_s for layer in self.layers)

    @property
    def backward_s(self) -> float:
        """Seconds of backward of all layers, one micro-batch."""
        return fsum(layer.backward_s for layer in self.layers)

    @property
    def num_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(layer.num_bytes for layer in self.layers)

    def costs(self, alpha_s: float, beta_s_per_byte: float) -> Costs:
        """What a policy that plans ahead is bound to."""
        num = len(self.segments)
        backward_s, forward_s = [0.0] * num, [0.0] * num
        waited_s = 0.0
        for layer in reversed(self.layers):
            waited_s += layer.backward_s
            if layer.segments:
                # Parameters of one layer become ready together: the first bears the layer's time, the others none.
                backward_s[min(s.index for s in layer.segments)] = waited_s
                waited_s = 0.0
        since_s = 0.0
        for layer in reversed(self.layers):  # a layer without parameters belongs to the one before it
            since_s += layer.forward_s
            if layer.segments:
                forward_s[max(s.index for s in layer.segments)] = since_s
                since_s = 0.0
        return Costs(alpha_s, beta_s_per_byte, tuple(backward_s), tuple(forward_s))


def layers_of(profile: Profile, *, size_scale: int = 1, time_scale: float = 1.0) -> Layers:
    """The layers that replay plays back: tensors `size_scale` times smaller, times `time_scale` times longer.

    A layer's gradients are ready together, in order of registration, the last layer's first.
    """
    made: list[Layer] = []
    index = 0
    for entry in reversed(profile.layers):
        segments = []
        for parameter in entry.parameters:
            shape = scaled_shape(parameter.shape, size_scale)
            segments.append(Segment(parameter.name, shape, 0, prod(shape), index))
            index += 1
        made.append(Layer(entry.forward_s * time_scale, entry.backward_s * time_scale, tuple(segments)))
    return Layers(tuple(reversed(made)))


def layers_of_workload(spec: WorkloadSpec) -> Layers:
    """The layers that replay plays back for `spec`; the slowest rank's times. Raises: WorkloadError."""
    profile = load_profile(spec.profile or find_network(spec.network).profile)
    return layers_of(
        profile, size_scale=spec.size_scale, time_scale=spec.slow_worker * spec.batch_size / profile.batch_size
    )


def plain_layers(forward_s: Sequence[float], backward_s: Sequence[float], numels: Sequence[int]) -> Layers:
    """Layers in order of forward with one parameter each, none where `numels` is 0. Raises: PredictError."""
    if not len(forward_s) == len(backward_s) == len(numels):
        raise PredictError(
            f"{len(forward_s)} forward times, {len(backward_s)} backward times, {len(numels)} sizes; give as many"
        )
    made: list[Layer] = []
    index = 0
    for place in reversed(range(len(numels))):
        numel = numels[place]
        own = (Segment(f"layer{place}", (numel,), 0, numel, index),) if numel else ()
        index += len(own)
        made.append(Layer(forward_s[place], backward_s[place], own))
    return Layers(tuple(reversed(made)))
