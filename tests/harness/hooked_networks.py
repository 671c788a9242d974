"""Networks that a user might write, whose weights are computed by hooks or drawn from other generators than torch's.

Each is `FILE.py:NAME` for a workload.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn.utils import prune, weight_norm

from models.network import Kind, Network, SampleShape


def _network(shape: SampleShape) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.channels * shape.size**2, shape.num_classes))


def normalised(shape: SampleShape, _: float) -> nn.Module:
    network = _network(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has a newer one, and scripts have this one
        weight_norm(network[1])
    return network


def pruned(shape: SampleShape, _: float) -> nn.Module:
    network = _network(shape)
    prune.l1_unstructured(network[1], "weight", amount=0.5)
    return network


def halved(shape: SampleShape, _: float) -> nn.Module:
    """Its hook refers to the layer and not to the module that it is called with."""
    network = _network(shape)
    layer = network[1]
    layer.raw = nn.Parameter(layer.weight.detach().clone())
    del layer.weight

    def halve(*_: object) -> None:
        layer.weight = layer.raw * 0.5

    layer.register_forward_pre_hook(halve)
    return network


def drawn_elsewhere(shape: SampleShape, _: float) -> nn.Module:
    network = _network(shape)
    with torch.no_grad():
        drawn = np.random.standard_normal(tuple(network[1].weight.shape))
        network[1].weight.copy_(torch.from_numpy(drawn) * 0.01)
        network[1].bias.fill_(random.random())
    return network


def _as_network(build: Callable[[SampleShape, float], nn.Module]) -> Network:
    return Network(
        name=build.__name__,
        summary="one layer",
        kind=Kind.IMAGES,
        build=build,
        data=("digits",),
        image_size=8,
        num_classes=10,
        dropout=0.0,
        num_parameters=650,
        activation_bytes=1_000,
        layer_of=lambda module: module,
    )


NORMALISED, PRUNED, HALVED, DRAWN_ELSEWHERE = map(_as_network, (normalised, pruned, halved, drawn_elsewhere))
