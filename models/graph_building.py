"""Layer graphs of the networks: from a profile, from FLOPs, and recorded live."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from models.chain import ChainLink, chain_of, link_of, names_of_parameters
from models.flops import describe_sample, meta_inputs
from models.graph import BYTES_PER_ELEMENT, Dimension, GraphLayer, LayerGraph
from models.layer_profile import ParameterShape, Profile, Provenance, load_profile
from models.network import Kind, Network, SampleShape
from models.networks import find_network
from models.values import Device, WorkloadError, WorkloadSpec
from models.workload import open_workload

NOMINAL_FLOPS_PER_S = 10e12  # what a graph from FLOPs alone computes with, unless told
_BATCH = 2  # of the counting pass: batch normalisation wants more than one value
_BACKWARD_OVER_FORWARD = 2.0


@dataclass(frozen=True, slots=True)
class _Counted:
    """One link on meta tensors. Bytes and FLOPs are per sample."""

    flops: float
    output_bytes: int
    saved_bytes: int
    extents: Mapping[str, int]


def graph_of(name: str, *, flops_per_s: float = NOMINAL_FLOPS_PER_S, sequence_length: int = 128) -> LayerGraph:
    """The graph of a network: from its default profile where it has one, else from FLOPs.

    Raises: WorkloadError if there is no such network.
    """
    network = find_network(name)
    if network.profile:
        return graph_from_profile(load_profile(network.profile))
    return graph_from_flops(name, flops_per_s=flops_per_s, sequence_length=sequence_length)


def graph_from_profile(profile: Profile) -> LayerGraph:
    """A profile's times, summed over the layers of each link; a recorded profile stays recorded, a derived derived."""
    network = find_network(profile.network)
    shape = _shape_of(network, profile.sample)
    times: dict[str, tuple[float, float]] = {}
    for layer in profile.layers:
        link = link_of(network.name, layer.name)
        forward_s, backward_s = times.get(link, (0.0, 0.0))
        times[link] = forward_s + layer.forward_s, backward_s + layer.backward_s
    per_sample = {
        name: (forward_s / profile.batch_size, backward_s / profile.batch_size)
        for name, (forward_s, backward_s) in times.items()
    }
    return _graph(network, shape, per_sample, profile.provenance, profile.source, profile.device)


def graph_from_flops(
    name: str, *, flops_per_s: float = NOMINAL_FLOPS_PER_S, sequence_length: int = 128, image_size: int = 0
) -> LayerGraph:
    """Times are the FLOPs of matrix products over a speed, backward twice forward; the source says so."""
    if not 0 < flops_per_s < math.inf:
        raise WorkloadError(f"flops_per_s is {flops_per_s!r}; use a finite speed above 0, e.g. 10e12")
    network = find_network(name)
    shape = network.usual_shape(image_size=image_size, sequence_length=sequence_length)
    source = f"FLOPs of matrix products at {flops_per_s:.3g} FLOP/s, backward twice forward; no time was measured"
    return _graph(network, shape, None, Provenance.DERIVED, source, "none (FLOPs alone)", flops_per_s)


def record_graph(spec: WorkloadSpec, *, num_steps: int = 10, num_warmup: int = 3) -> LayerGraph:
    """Time each link alone on the CPU, forward and then backward, as a stage of a pipeline runs it: medians.

    Raises: WorkloadError for another device or fewer than 2 steps.
    """
    if spec.device is not Device.CPU or num_steps < 2:
        raise WorkloadError(f"device {spec.device.value!r} with {num_steps} steps; record at least 2 on the cpu")
    network = find_network(spec.network)
    workload = open_workload(spec)
    links = chain_of(network.name, workload.build_model(seed=0))
    x = next(workload.batches(rank=0, world=1, seed=0)).inputs[0]
    runs = [_timed_step(links, x) for _ in range(num_steps + num_warmup)][num_warmup:]
    per_sample = {
        link.name: (
            statistics.median(run[index][0] for run in runs) / len(x),
            statistics.median(run[index][1] for run in runs) / len(x),
        )
        for index, link in enumerate(links)
    }
    size = x.shape[-1]
    shape = network.usual_shape(image_size=size, sequence_length=size)
    source = f"median of {num_steps} steps after {num_warmup} of warm-up, {len(x)} samples, link by link"
    return _graph(network, shape, per_sample, Provenance.RECORDED, source, f"cpu, {torch.get_num_threads()} threads")


def _timed_step(links: Sequence[ChainLink], x: Tensor) -> list[tuple[float, float]]:
    """Seconds of each link's forward and backward."""
    forward_s, edges = [], []
    for link in links:
        entry = x.detach().requires_grad_(x.is_floating_point())
        start_s = time.perf_counter()
        x = link.module(entry)
        forward_s.append(time.perf_counter() - start_s)
        edges.append((entry, x))
    gradient: Tensor = torch.ones_like(x) / x.numel()
    backward_s = []
    for entry, output in reversed(edges):
        start_s = time.perf_counter()
        output.backward(gradient)
        backward_s.append(time.perf_counter() - start_s)
        gradient = torch.empty(0) if entry.grad is None else entry.grad
    return list(zip(forward_s, reversed(backward_s), strict=True))


def _graph(
    network: Network,
    shape: SampleShape,
    per_sample_s: Mapping[str, tuple[float, float]] | None,
    provenance: Provenance,
    source: str,
    device: str,
    flops_per_s: float = NOMINAL_FLOPS_PER_S,
) -> LayerGraph:
    input_bytes, untimed = _untimed(network, shape)
    layers = []
    for flops, layer in untimed:
        forward_s = flops / flops_per_s
        times = (forward_s, forward_s * _BACKWARD_OVER_FORWARD) if per_sample_s is None else per_sample_s[layer.name]
        layers.append(replace(layer, forward_s=times[0], backward_s=times[1]))
    return LayerGraph(
        network=network.name,
        provenance=provenance,
        source=source,
        device=device,
        sample=describe_sample(network, shape),
        input_bytes=input_bytes,
        layers=tuple(layers),
    )


@cache  # it takes up to a second, and a grid asks for the same networks over and over
def _untimed(network: Network, shape: SampleShape) -> tuple[int, tuple[tuple[float, GraphLayer], ...]]:
    """The bytes of a sample, and FLOPs per sample and the layer, with no times, for each link."""
    with torch.device("meta"):
        model = network.build(shape, 0.0)
        (x,) = meta_inputs(network, shape, _BATCH)
        links = chain_of(network.name, model)
        counted = list(_count(links, x))
    owned: set[str] = set()
    layers = []
    for link, names, count in zip(links, names_of_parameters(model, links), counted, strict=True):
        parameters = dict(link.module.named_parameters(remove_duplicate=False))
        new = {names[own]: parameters[own] for own in parameters if names[own] not in owned}
        tied = {names[own]: parameters[own] for own in parameters if names[own] in owned}
        owned |= set(new)
        layer = GraphLayer(
            name=link.name,
            forward_s=0.0,
            backward_s=0.0,
            parameters=tuple(ParameterShape(name=name, shape=tuple(value.shape)) for name, value in new.items()),
            tied_bytes=sum(value.numel() for value in tied.values()) * BYTES_PER_ELEMENT,
            output_bytes=count.output_bytes,
            saved_bytes=count.saved_bytes,
            extents=count.extents,
        )
        layers.append((count.flops, layer))
    return x.nbytes // _BATCH, tuple(layers)


def _count(links: Sequence[ChainLink], x: Tensor) -> Iterator[_Counted]:
    for link in links:
        kept: dict[int, int] = {}
        entry = x.detach().requires_grad_(x.is_floating_point())
        held: list[Tensor] = []  # a storage that is freed may leave its address to the next one
        own = {parameter.untyped_storage()._cdata for parameter in link.module.parameters()}

        def keep(tensor: Tensor, kept: dict[int, int] = kept, held: list[Tensor] = held) -> Tensor:
            held.append(tensor)
            kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
            return tensor

        with (
            FlopCounterMode(display=False) as counter,
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        ):
            x = link.module(entry)
        saved = sum(nbytes for storage, nbytes in kept.items() if storage not in own)
        yield _Counted(
            counter.get_total_flops() / _BATCH, x.nbytes // _BATCH, saved // _BATCH, _extents(link.module, x)
        )


def _extents(link: nn.Module, output: Tensor) -> dict[str, int]:
    """Parts that every operator of the link has in common: channels, heads, rows of the image.

    A recurrent layer has none: each of its units reads all others at the next token.
    """
    sizes = [size for module in link.modules() if (size := _channels(module))]
    if any(isinstance(module, nn.RNNBase | nn.RNNCellBase) for module in link.modules()):
        return {}
    words = [size for module in link.modules() if isinstance(module, nn.Embedding) and (size := _channels(module))]
    if words:  # positions and types are small tables, and stay whole
        sizes = [max(words)]
    extents: dict[str, int] = {
        Dimension.CHANNEL_OUT: math.gcd(*(out for _, out in sizes)),
        Dimension.CHANNEL_IN: math.gcd(*(into for into, _ in sizes)),
    }
    if output.dim() == 4:
        extents[Dimension.SPATIAL] = output.shape[2]
    return extents


def _channels(module: nn.Module) -> tuple[int, int] | None:
    """What an operator reads and what it makes: channels, features, heads, or words and their width."""
    heads = getattr(module, "num_attention_heads", None) or getattr(module, "num_heads", None)
    if heads:
        return heads, heads
    if isinstance(module, nn.Conv2d):
        return module.in_channels, module.out_channels
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if isinstance(module, nn.Embedding):
        return module.num_embeddings, module.embedding_dim
    if type(module).__name__ == "Conv1D":  # of transformers' GPT-2: a linear layer with its weight transposed
        features_in, features_out = next(module.parameters()).shape
        return features_in, features_out
    return None


def _shape_of(network: Network, sample: str) -> SampleShape:
    """The sample that a profile was made for, from its words (`128 tokens`, `3x224x224 image`)."""
    if network.kind is Kind.TEXT:
        return network.usual_shape(image_size=0, sequence_length=int(sample.split(" ")[0]))
    return network.usual_shape(image_size=int(sample.split(" ")[0].split("x")[1]), sequence_length=0)
