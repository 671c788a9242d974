"""The table of networks: how to build each, what it eats, how its modules group into layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import nn

from models.bert import BASE, TINY, build_bert
from models.resnet import ResNet20, ResNet50
from models.values import WorkloadError
from models.vgg import VGG16


class Kind(StrEnum):
    """What a network eats."""

    IMAGES = "images"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleShape:
    """One sample: images are `channels` × `size` × `size` of `num_classes`; texts are `size` tokens."""

    size: int
    channels: int = 3
    num_classes: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One network.

    Attributes:
        build: from a sample's shape and the dropout probability.
        data: names of the data sets that fit, the default first.
        image_size: side of the images that it is made for; 0 for text.
        dropout: its usual probability.
        num_parameters: at the default sample shape (tied weights once).
        num_classes: classes, or tokens of the vocabulary.
        activation_bytes: saved for backward, by a sample at `image_size` or by a token.
        layer_of: the layer that a module with parameters belongs to, by the module's name.
        profile: the default profile for replay, empty where none is shipped.
    """

    name: str
    summary: str
    kind: Kind
    build: Callable[[SampleShape, float], nn.Module]
    data: tuple[str, ...]
    image_size: int
    num_classes: int
    dropout: float
    num_parameters: int
    activation_bytes: int
    layer_of: Callable[[str], str]
    profile: str = ""

    def usual_shape(self, *, image_size: int, sequence_length: int) -> SampleShape:
        """The sample that it is made for, at another size. `image_size` 0 is its own."""
        size = sequence_length if self.kind is Kind.TEXT else image_size or self.image_size
        return SampleShape(size=size, num_classes=self.num_classes)


def resnet_layer(module: str) -> str:
    """A convolution and the normalisation behind it are one layer."""
    if ".downsample" in module:
        return module[: module.index(".downsample")] + ".downsample"
    return module.replace("bn", "conv")


def bert_layer(module: str) -> str:
    """Embeddings, then attention and feed-forward of every block, then the head."""
    parts = module.removeprefix("bert.").split(".")
    if parts[0] == "encoder":
        return f"layer.{parts[2]}.{'attention' if parts[3] == 'attention' else 'ffn'}"
    return {"embeddings": "embeddings", "cls": "head"}[parts[0]]


_IMAGE_DATA = ("synthetic", "imagefolder")
_TEXT_DATA = ("text", "textfile", "synthetic")

NETWORKS: dict[str, Network] = {
    network.name: network
    for network in (
        Network(
            name="resnet20",
            summary="CIFAR-style residual network for small images, 0.27 M parameters",
            kind=Kind.IMAGES,
            build=lambda shape, dropout: ResNet20(shape.num_classes, shape.channels),
            data=("digits", *_IMAGE_DATA),
            image_size=32,
            num_classes=10,
            dropout=0.0,
            num_parameters=269_722,
            activation_bytes=1_530_000,
            layer_of=resnet_layer,
        ),
        Network(
            name="resnet50",
            summary="residual network for ImageNet, 25.6 M parameters in many small tensors",
            kind=Kind.IMAGES,
            build=lambda shape, dropout: ResNet50(shape.num_classes, shape.channels),
            data=_IMAGE_DATA,
            image_size=224,
            num_classes=1000,
            dropout=0.0,
            num_parameters=25_557_032,
            activation_bytes=86_200_000,
            layer_of=resnet_layer,
            profile="resnet50-v100",
        ),
        Network(
            name="vgg16",
            summary="plain convolutional network for ImageNet, 138 M parameters, 9/10 in three layers",
            kind=Kind.IMAGES,
            build=lambda shape, dropout: VGG16(shape.num_classes, shape.channels, dropout),
            data=_IMAGE_DATA,
            image_size=224,
            num_classes=1000,
            dropout=0.5,
            num_parameters=138_357_544,
            activation_bytes=73_400_000,
            layer_of=lambda module: module,
            profile="vgg16-v100",
        ),
        Network(
            name="bert_tiny",
            summary="masked language model, 2 layers of width 128, 0.7 M parameters",
            kind=Kind.TEXT,
            build=lambda shape, dropout: build_bert(TINY, dropout),
            data=_TEXT_DATA,
            image_size=0,
            num_classes=TINY.vocabulary,
            dropout=0.1,
            num_parameters=743_552,
            activation_bytes=33_000,
            layer_of=bert_layer,
        ),
        Network(
            name="bert_base",
            summary="masked language model, 12 layers of width 768, 110 M parameters, one tied weight",
            kind=Kind.TEXT,
            build=lambda shape, dropout: build_bert(BASE, dropout),
            data=_TEXT_DATA,
            image_size=0,
            num_classes=BASE.vocabulary,
            dropout=0.1,
            num_parameters=109_514_298,
            activation_bytes=915_000,
            layer_of=bert_layer,
            profile="bert_base-v100",
        ),
    )
}


def find_network(name: str) -> Network:
    """Look up a network. Raises: WorkloadError listing what exists."""
    if name not in NETWORKS:
        raise WorkloadError(f"no network {name!r}; there are {', '.join(NETWORKS)}")
    return NETWORKS[name]


def build_network(network: Network, shape: SampleShape, dropout: float | None, seed: int) -> nn.Module:
    """Build with weights that depend on `seed` alone; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return network.build(shape, network.dropout if dropout is None else dropout)
