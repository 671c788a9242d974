"""Replay: an ordinary module whose layers take the time of a profile, on a virtual device.

Every layer waits in forward and in backward, then gives its parameters gradients of their size; so
gradients become ready layer by layer, from the last to the first, and anything that hangs on an `nn.Module`
(DDP, Horovod, DeepSpeed, gradient hooks, pre-forward hooks) works as on a real network.

The arithmetic is small but true. A batch's loss is ½·mean over layers of (w₀ − t)², with w₀ the first weight of the
layer and t the mean of the batch's inputs; every weight w gets the gradient (w − t) of ½(w − t)². So weights follow
the data, gradients differ between elements, ranks and steps, averaging over ranks equals a larger batch, and two
runs of equal order are equal bit for bit.

A tied weight (BERT's decoder) belongs to the layer whose backward completes it, the embeddings: there,
at the very end, its gradient is ready in the real network too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.data.sampling import generator_for
from models.device import VirtualDevice
from models.layer_profile import LayerProfile, Profile, scaled_shape
from models.values import Batch, WorkloadError, WorkloadSpec

_INITIAL_DEVIATION = 0.1
_BYTES_A_PARAMETER = 4 * 3  # weight, gradient, momentum


@dataclass(slots=True)
class Pace:
    """How fast the present step computes: its times are `stretch` times the profile's."""

    stretch: float = 1.0


class _TimedLayer(torch.autograd.Function):
    """signal [2] = (loss so far, t) → the same with this layer's loss; takes the device in both passes."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor, layer: ReplayLayer, *parameters: Tensor) -> Tensor:
        ctx.layer = layer
        ctx.target = target = float(signal[1])
        ctx.save_for_backward(*parameters)
        with layer.device.take(layer.forward_s * layer.pace.stretch):
            weight = parameters[0].view(-1)[0].item() if parameters else target
            out = signal.clone()
            out[0] += layer.weight_of_loss * (weight - target) ** 2
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        with ctx.layer.device.take(ctx.layer.backward_s * ctx.layer.pace.stretch):
            scale = float(upstream[0][0])  # not 1 under gradient accumulation or loss scaling
            gradients = [parameter - ctx.target for parameter in ctx.saved_tensors]
            if scale != 1.0:
                for gradient in gradients:
                    gradient.mul_(scale)
        return upstream[0], None, *gradients


class ReplayLayer(nn.Module):
    """One layer of a profile; parameters are named as in the network, with `_` for `.`."""

    def __init__(self, profile: LayerProfile, device: VirtualDevice, *, size_scale: int, time_scale: float) -> None:
        super().__init__()
        self.device = device
        self.forward_s = profile.forward_s * time_scale
        self.backward_s = profile.backward_s * time_scale
        self.weight_of_loss = 0.0
        self.pace = Pace()
        for entry in profile.parameters:
            weights = torch.randn(scaled_shape(entry.shape, size_scale)) * _INITIAL_DEVIATION
            self.register_parameter(_attribute(entry.name), nn.Parameter(weights))

    def forward(self, signal: Tensor) -> Tensor:
        """Wait as long as the layer's forward; `signal` [2] holds the loss so far and the mean input."""
        out: Tensor = _TimedLayer.apply(signal, self, *self.parameters(recurse=False))  # type: ignore[no-untyped-call]
        return out


class ReplayNetwork(nn.Module):
    """The layers of `profile` one after the other; `forward` takes inputs [batch] and returns the loss [].

    `time_scale` multiplies all times, e.g. for a batch size other than the profile's; `pace` a step's, as it changes.
    """

    def __init__(
        self,
        profile: Profile,
        device: VirtualDevice,
        *,
        size_scale: int = 1,
        time_scale: float = 1.0,
        pace: Pace | None = None,
    ) -> None:
        super().__init__()
        self.device = device
        for entry in profile.layers:
            layer = ReplayLayer(entry, device, size_scale=size_scale, time_scale=time_scale)
            layer.weight_of_loss = 0.5 / len(profile.layers)
            layer.pace = pace or Pace()
            self.add_module(_attribute(entry.name), layer)

    def forward(self, inputs: Tensor) -> Tensor:
        """The loss [] of inputs [batch], after all layers have taken their time."""
        self.device.pause()  # the update came before, and the wait for messages
        signal = torch.stack((inputs.new_zeros(()), inputs.mean()))
        for layer in self.children():
            signal = layer(signal)
        return signal[0]


class ReplayWorkload:
    """A profile as a workload; times grow linearly with the batch size. `device` may also be charged by others."""

    def __init__(self, spec: WorkloadSpec, profile: Profile, device: VirtualDevice) -> None:
        if profile.network != spec.network:
            raise WorkloadError(
                f"profile {spec.profile!r} is of {profile.network!r}, not of {spec.network!r}; name another"
            )
        self.spec = spec
        self.profile = profile
        self.device = device
        self.pace = Pace()

    @property
    def time_scale(self) -> float:
        """Seconds to wait a second of the profile."""
        return self.spec.batch_size / self.profile.batch_size

    def build_model(self, seed: int) -> nn.Module:
        """The replayed network, its weights drawn from `seed`, the caller's generator untouched."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return ReplayNetwork(
                self.profile,
                self.device,
                size_scale=self.spec.size_scale,
                time_scale=self.time_scale,
                pace=self.pace,
            )

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        """Endless random inputs [batch]; each draws how long its step takes. Raises: WorkloadError for a rank
        outside the world."""
        if not 0 <= rank < world:
            raise WorkloadError(f"rank {rank} is not in a world of {world}; ranks count from 0")
        generator = generator_for(seed, rank)
        none = torch.empty(0)
        chance = random.Random(f"{seed}/{rank}")
        # a log-normal with mean 1
        deviation = math.sqrt(math.log1p(self.spec.jitter**2))
        slowness = self.spec.slow_worker if rank == 0 else 1.0
        while True:
            self.pace.stretch = slowness * math.exp(chance.gauss(-(deviation**2) / 2, deviation))
            yield Batch((torch.randn(self.spec.batch_size, generator=generator),), none)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """What the network's forward returns."""
        loss: Tensor = model(*batch.inputs)
        return loss

    def evaluate(self, model: nn.Module) -> None:
        """None: a replayed network learns nothing that could be evaluated."""

    def memory_bytes(self) -> int:
        """Parameters, gradients and the optimizer's state at the scaled size."""
        return self.profile.num_parameters // self.spec.size_scale * _BYTES_A_PARAMETER


def _attribute(name: str) -> str:
    # Parameters that a network holds itself, and not a module of it, make a layer without a name.
    return name.replace(".", "_") or "network"
