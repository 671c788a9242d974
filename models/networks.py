"""The table of networks: how to build each, what it eats, how its modules group into layers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from models.nets.bert import BASE, LARGE, TINY, BertSize, build_bert
from models.nets.gpt2 import GPT2_SMALL, GPT2_TINY, GPT2Size, build_gpt2, gpt2_layer
from models.nets.recurrent import LSTMLM, ElmanLM, recurrent_layer
from models.nets.resnet import RESNET50, RESNET101, BottleneckResNet, ResNet20
from models.nets.transformer import TransformerLM, transformer_layer
from models.nets.vgg import VGG16
from models.network import Kind, Network, SampleShape
from models.outside import is_outside, network_outside
from models.values import WorkloadError


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
_WORD_PIECES = TINY.vocabulary  # of the networks that are sized for the vocabulary of `models.data.text`


def _imagenet_network(
    name: str,
    summary: str,
    build: Callable[[SampleShape, float], nn.Module],
    *,
    num_parameters: int,
    activation_bytes: int,
    layer_of: Callable[[str], str] = resnet_layer,
    dropout: float = 0.0,
) -> Network:
    return Network(
        name=name,
        summary=summary,
        kind=Kind.IMAGES,
        build=build,
        data=_IMAGE_DATA,
        image_size=224,
        num_classes=1000,
        dropout=dropout,
        num_parameters=num_parameters,
        activation_bytes=activation_bytes,
        layer_of=layer_of,
        profile=f"{name}-v100",
    )


def _language_model(
    name: str,
    summary: str,
    build: Callable[[float], nn.Module],
    layer_of: Callable[[str], str],
    *,
    num_parameters: int,
    activation_bytes: int,
    vocabulary: int = _WORD_PIECES,
    dropout: float = 0.1,
    profile: str = "",
    next_token: bool = True,
) -> Network:
    return Network(
        name=name,
        summary=summary,
        kind=Kind.TEXT,
        build=lambda shape, probability: build(probability),
        data=_TEXT_DATA,
        image_size=0,
        num_classes=vocabulary,
        dropout=dropout,
        num_parameters=num_parameters,
        activation_bytes=activation_bytes,
        layer_of=layer_of,
        profile=profile,
        next_token=next_token,
    )


def _bert(name: str, summary: str, size: BertSize, *, num_parameters: int, activation_bytes: int) -> Network:
    return _language_model(
        name,
        summary,
        lambda dropout: build_bert(size, dropout),
        bert_layer,
        num_parameters=num_parameters,
        activation_bytes=activation_bytes,
        vocabulary=size.vocabulary,
        profile="" if size is TINY else f"{name}-v100",
        next_token=False,
    )


def _gpt2(name: str, summary: str, size: GPT2Size, *, num_parameters: int, activation_bytes: int) -> Network:
    return _language_model(
        name,
        summary,
        lambda dropout: build_gpt2(size, dropout),
        gpt2_layer,
        num_parameters=num_parameters,
        activation_bytes=activation_bytes,
        vocabulary=size.vocabulary,
        profile="" if size is GPT2_TINY else f"{name}-v100",
    )


RESNET20 = Network(
    name="resnet20",
    summary="CIFAR-style residual network for small images, 0.27 M parameters",
    kind=Kind.IMAGES,
    build=lambda shape, dropout: ResNet20(shape.num_classes, shape.channels),
    data=("digits", "shifted-digits", *_IMAGE_DATA),
    image_size=32,
    num_classes=10,
    dropout=0.0,
    num_parameters=269_722,
    activation_bytes=1_530_000,
    layer_of=resnet_layer,
)
NETWORKS: dict[str, Network] = {
    network.name: network
    for network in (
        RESNET20,
        replace(
            RESNET20,
            name="resnet20_zero_gamma",
            summary="resnet20 whose blocks begin as the identity, as Goyal et al. initialise them",
            build=lambda shape, dropout: ResNet20(shape.num_classes, shape.channels, zero_gamma=True),
        ),
        _imagenet_network(
            "resnet50",
            "residual network for ImageNet, 25.6 M parameters in many small tensors",
            lambda shape, dropout: BottleneckResNet(RESNET50, shape.num_classes, shape.channels),
            num_parameters=25_557_032,
            activation_bytes=86_200_000,
        ),
        _imagenet_network(
            "resnet101",
            "residual network for ImageNet, 44.5 M parameters in twice as many tensors as resnet50",
            lambda shape, dropout: BottleneckResNet(RESNET101, shape.num_classes, shape.channels),
            num_parameters=44_549_160,
            activation_bytes=127_300_000,
        ),
        _imagenet_network(
            "vgg16",
            "plain convolutional network for ImageNet, 138 M parameters, 9/10 in three layers",
            lambda shape, dropout: VGG16(shape.num_classes, shape.channels, dropout),
            num_parameters=138_357_544,
            activation_bytes=73_400_000,
            layer_of=lambda module: module,
            dropout=0.5,
        ),
        _bert(
            "bert_tiny",
            "masked language model, 2 layers of width 128, 0.7 M parameters",
            TINY,
            num_parameters=743_552,
            activation_bytes=33_000,
        ),
        _bert(
            "bert_base",
            "masked language model, 12 layers of width 768, 110 M parameters, one tied weight",
            BASE,
            num_parameters=109_514_298,
            activation_bytes=915_000,
        ),
        _bert(
            "bert_large",
            "masked language model, 24 layers of width 1,024, 335 M parameters, one tied weight",
            LARGE,
            num_parameters=335_174_458,
            activation_bytes=2_211_500,
        ),
        _gpt2(
            "gpt2_tiny",
            "GPT-2 of 2 layers of width 128, 0.7 M parameters, trains on the text in seconds",
            GPT2_TINY,
            num_parameters=724_480,
            activation_bytes=43_600,
        ),
        _gpt2(
            "gpt2",
            "GPT-2 small, 12 layers of width 768, 124 M parameters, 3/10 of them one tied weight",
            GPT2_SMALL,
            num_parameters=124_439_808,
            activation_bytes=1_427_000,
        ),
        _language_model(
            "transformer_lm",
            "Transformer decoder as a language model, 2 layers of width 128, 0.7 M parameters",
            lambda dropout: TransformerLM(_WORD_PIECES, dropout),
            transformer_layer,
            num_parameters=660_736,
            activation_bytes=29_800,
            profile="transformer_lm-cpu",
        ),
        _language_model(
            "lstm_lm",
            "LSTM language model, 2 layers of width 200, 1.5 M parameters",
            lambda dropout: LSTMLM(_WORD_PIECES, dropout),
            recurrent_layer,
            num_parameters=1_464_448,
            activation_bytes=21_800,
            dropout=0.0,
            profile="lstm_lm-cpu",
        ),
        _language_model(
            "elman_rnn",
            "Elman network as a language model, width 256, 0.7 M parameters, most used many times per step",
            lambda dropout: ElmanLM(_WORD_PIECES, dropout),
            recurrent_layer,
            num_parameters=657_920,
            activation_bytes=11_300,
            dropout=0.0,
            profile="elman_rnn-cpu",
        ),
    )
}


def find_network(name: str) -> Network:
    """Look up a network, by name or as `FILE.py:NAME`. Raises: WorkloadError listing what exists."""
    if is_outside(name):
        return network_outside(name)
    if name not in NETWORKS:
        raise WorkloadError(f"no network {name!r}; there are {', '.join(NETWORKS)}, and your own as FILE.py:NAME")
    return NETWORKS[name]


def build_network(network: Network, shape: SampleShape, dropout: float | None, seed: int) -> nn.Module:
    """Build with weights that depend on `seed` alone; the global generators are left as they were."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            return network.build(shape, network.dropout if dropout is None else dropout)
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
