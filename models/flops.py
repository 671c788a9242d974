"""Profiles derived without a device: a published time of a whole step, split over layers by their FLOPs.

FLOPs are counted on meta tensors, so no network is too big. Backward counts twice forward. The split
ignores that normalisation and embeddings are bound by memory rather than arithmetic, so layers
without matrix products (the embeddings) get no time; record a profile on a GPU where that matters.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from models.layer_profile import LayerProfile, ParameterShape, Profile, Provenance
from models.network import Kind, Network, SampleShape
from models.values import WorkloadError

_FORWARD_SHARE = 1 / 3
_GPT2_OVER_BERT_BASE = 1.1308  # FLOPs of a forward pass on 128 tokens; a test counts them


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published training speed: seconds a sample, of which size, on what, said where."""

    sample_time_s: float
    size: int
    device: str
    precision: str
    source: str


PUBLISHED = {
    "resnet50": Published(
        sample_time_s=1 / 367,
        size=224,
        device="Tesla V100-SXM2-16GB",
        precision="fp32",
        source="367 images/s training on 1 GPU: NVIDIA/DeepLearningExamples, "
        "PyTorch/Classification/ConvNets/resnet50v1.5/README.md, "
        "table 'Training performance: NVIDIA DGX-1 16GB (8x V100 16GB)', container 21.03; whole steps, "
        "update included",
    ),
    "vgg16": Published(
        sample_time_s=0.0835 / 16,
        size=224,
        device="Tesla V100 (Amazon p3)",
        precision="fp32",
        source="83.5 ms for forward and backward of 16 images, PyTorch 0.3.0: u39kun/deep-learning-benchmark, "
        "README.md, table 'V100 (Amazon p3, CUDA 9.0.176, CuDNN 7.0.0.3)'",
    ),
    "bert_base": Published(
        sample_time_s=1 / 119.6,
        size=128,
        device="Tesla V100-SXM2-16GB",
        precision="fp32",
        source="119.6 sequences/s of 128 tokens on 1 GPU, 32 a batch, pre-training with Adam: Oneflow-Inc/DLPerf, "
        "NVIDIADeepLearningExamples/PyTorch/BERT/README.md, table 'FP32, BERT-Base batch_size = 32'; whole steps, "
        "update included",
    ),
    "resnet101": Published(
        sample_time_s=1 / 367 * 113.75 / 66.09,
        size=224,
        device="Tesla V100-SXM2-16GB",
        precision="fp32",
        source="ResNet-50's 367 images/s (source of resnet50-v100) times 66.09 ms / 113.75 ms, which forward and "
        "backward of 16 images take in ResNet-50 and ResNet-101 on one V100 (Torch, cuDNN 7.0.04): cnn-benchmarks, "
        "'GPU in the Cloud' (after jcjohnson/cnn-benchmarks), README.md, tables 'ResNet-50' and 'ResNet-101', row "
        "'Tesla V100'; the ratio alone is taken, so that both profiles stand for one machine and one software",
    ),
    "bert_large": Published(
        sample_time_s=1 / 40.32,
        size=128,
        device="Tesla V100 32 GB (DGX-1)",
        precision="fp32",
        source="40.32 sequences/s of 128 tokens on 1 GPU, 32 a batch, pre-training: NVIDIA/DeepLearningExamples, "
        "PyTorch/LanguageModeling/BERT/README.md, table 'Pre-training NVIDIA DGX-1 With 32G', container 19.07; whole "
        "steps, update and next-sentence head included",
    ),
    "gpt2": Published(
        sample_time_s=1 / 119.6 * _GPT2_OVER_BERT_BASE,
        size=128,
        device="Tesla V100-SXM2-16GB",
        precision="fp32",
        source="no published fp32 time of GPT-2 small on a V100 was found: the 119.6 sequences/s of 128 tokens of "
        "BERT-base (source of bert_base-v100), which has the same 12 blocks of width 768, scaled by the FLOPs of a "
        "forward pass, 32.2 against 28.5 GFLOP a sequence for the larger vocabulary; whole steps, update included",
    ),
}


def derive_profile(network: Network, published: Published, batch_size: int) -> Profile:
    """A profile of `batch_size` samples whose forward and backward add up to the published time.

    Raises: WorkloadError for no samples.
    """
    if batch_size < 1:
        raise WorkloadError(f"batch_size is {batch_size}; it must be at least 1")
    with torch.device("meta"):
        shape = network.usual_shape(image_size=published.size, sequence_length=published.size)
        model = network.build(shape, 0.0)
        flops = layer_flops(model, network, meta_inputs(network, shape, batch_size))
    step_time_s = published.sample_time_s * batch_size
    total = math.fsum(flops.values())
    parameters = layer_parameters(model, network)
    layers = tuple(
        LayerProfile(
            name=name,
            parameters=parameters[name],
            forward_s=step_time_s * flops[name] / total * _FORWARD_SHARE,
            backward_s=step_time_s * flops[name] / total * (1 - _FORWARD_SHARE),
        )
        for name in parameters
    )
    return Profile(
        network=network.name,
        provenance=Provenance.DERIVED,
        source=f"{published.source}. Split over layers by FLOPs, backward twice forward.",
        device=published.device,
        precision=published.precision,
        batch_size=batch_size,
        sample=describe_sample(network, shape),
        num_steps=0,
        layers=layers,
    )


def layer_flops(model: nn.Module, network: Network, inputs: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """FLOPs of one forward pass by layer; 0 for layers without matrix products."""
    with FlopCounterMode(display=False) as counter:
        model(*inputs)
    root = type(model).__name__
    totals = {
        module.removeprefix(root).removeprefix("."): float(sum(operations.values()))
        for module, operations in counter.get_flop_counts().items()
        if module != "Global"
    }
    # A module's count holds its descendants'; what remains is its own (attention's products, for one).
    own = dict(totals)
    for module, total in totals.items():
        if module:
            own[_nearest(_parent(module), totals)] -= total
    layers: defaultdict[str, float] = defaultdict(float)
    for module, flops in own.items():
        if flops > 0:
            layers[network.layer_of(module)] += flops
    return layers


def layer_parameters(model: nn.Module, network: Network) -> dict[str, tuple[ParameterShape, ...]]:
    """Parameters by layer, layers in the order in which the network defines them; a tied one only once, and those that
    are not trained not at all."""
    layers: defaultdict[str, tuple[ParameterShape, ...]] = defaultdict(tuple)
    for name, parameter in model.named_parameters():
        own = (ParameterShape(name=name, shape=tuple(parameter.shape)),) if parameter.requires_grad else ()
        layers[network.layer_of(_parent(name))] += own
    return dict(layers)


def meta_inputs(network: Network, shape: SampleShape, batch_size: int) -> tuple[torch.Tensor, ...]:
    """Inputs of a batch, on the current default device."""
    if network.kind is Kind.TEXT:
        return (torch.zeros(batch_size, shape.size, dtype=torch.int64),)
    return (torch.zeros(batch_size, shape.channels, shape.size, shape.size),)


def describe_sample(network: Network, shape: SampleShape) -> str:
    """One sample in words."""
    if network.kind is Kind.TEXT:
        return f"{shape.size} tokens"
    return f"{shape.channels}x{shape.size}x{shape.size} image"


def _nearest(module: str, present: Container[str]) -> str:
    """`module`, or its nearest ancestor that is `present`; containers that are never called are not."""
    while module not in present:
        module = _parent(module)
    return module


def _parent(name: str) -> str:
    return name.rpartition(".")[0]
