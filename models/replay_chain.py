"""Replay in stages: a profile as a chain of modules that hand on tensors of the network's real sizes, scaled.

`models.replay` plays back a whole network; this cuts where `models.chain` cuts. A link takes its time on the virtual
device in both passes and hands on [samples, width], as many bytes as the network's own link does, `size_scale` times
fewer. Its arithmetic is the same small but true one: column 0 is the sample's loss so far, column 1 its target t, the
rest is nothing. A link adds ½·(w₀ − t)²/links, and each weight w gets the gradient Σ(w − t) over samples, times what
comes back. A tied weight is in both links that use it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.chain import ChainLink
from models.device import VirtualDevice
from models.graph import BYTES_PER_ELEMENT, GraphLayer, LayerGraph
from models.layer_profile import scaled_shape

_INITIAL_DEVIATION = 0.1
_LEAST_WIDTH = 2  # the loss so far, and the target


class _TimedLink(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, link: ReplayLink, *parameters: Tensor) -> Tensor:
        ctx.link, ctx.shape = link, x.shape
        loss, target = (torch.zeros_like(x), x) if x.dim() == 1 else (x[:, 0], x[:, 1])
        ctx.save_for_backward(target, *parameters)
        with link.device.take(link.forward_s * len(x)):
            out = x.new_zeros(len(x), link.width)
            weight = parameters[0].view(-1)[0] if parameters else target
            out[:, 0] = loss + link.weight_of_loss * (weight - target) ** 2
            out[:, 1] = target
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        link, (target, *parameters) = ctx.link, ctx.saved_tensors
        scale = upstream[0][:, 0]
        with link.device.take(link.backward_s * len(scale)):
            weight, shift = scale.sum(), (scale * target).sum()
            gradients = [parameter * weight - shift for parameter in parameters]
            back = upstream[0].new_zeros(ctx.shape)
            if back.dim() == 2:
                back[:, 0] = scale
        return back, None, *gradients


class ReplayLink(nn.Module):
    """One link: x [samples, width before] (or [samples], the targets, at the first one) → [samples, width]."""

    def __init__(self, layer: GraphLayer, device: VirtualDevice, *, size_scale: int, weight_of_loss: float) -> None:
        super().__init__()
        self.device = device
        self.forward_s, self.backward_s = layer.forward_s, layer.backward_s
        self.width = max(_LEAST_WIDTH, layer.output_bytes // BYTES_PER_ELEMENT // size_scale)
        self.weight_of_loss = weight_of_loss
        for entry in layer.parameters:
            weights = torch.randn(scaled_shape(entry.shape, size_scale)) * _INITIAL_DEVIATION
            self.register_parameter(entry.name.replace(".", "_"), nn.Parameter(weights))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _TimedLink.apply(x, self, *self.parameters(recurse=False))  # type: ignore[no-untyped-call]
        return out


class ReplayChain(nn.Module):
    """The links of `graph`, with weights set by `seed`. `forward` takes targets [samples], gives [samples, width]."""

    def __init__(self, graph: LayerGraph, device: VirtualDevice, *, size_scale: int, seed: int) -> None:
        super().__init__()
        self.names = tuple(layer.name for layer in graph.layers)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.links = nn.ModuleList(
                ReplayLink(layer, device, size_scale=size_scale, weight_of_loss=0.5 / len(graph.layers))
                for layer in graph.layers
            )
        first, last = self.links[0], self.links[-1]
        tied = graph.layers[-1].tied_bytes // BYTES_PER_ELEMENT // size_scale
        if tied and isinstance(first, ReplayLink) and isinstance(last, ReplayLink):
            largest = max(first.parameters(), key=torch.Tensor.numel)  # of BERT and GPT-2: the table of words
            last.register_parameter("tied", largest)

    def chain(self) -> tuple[ChainLink, ...]:
        """As `models.chain.chain_of` gives them for a real network."""
        return tuple(ChainLink(name, link) for name, link in zip(self.names, self.links, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        for link in self.links:
            x = link(x)
        return x
