"""Networks have the published sizes, names and behaviour."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from models.flops import PUBLISHED, layer_flops, layer_parameters, meta_inputs
from models.network import Kind
from models.networks import NETWORKS, build_network

NAMES = sorted(NETWORKS)


@cache
def on_meta(name: str, sequence_length: int = 64) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Built once: to initialise a hundred layers takes longer than to look at them."""
    network = NETWORKS[name]
    with torch.device("meta"):
        shape = network.usual_shape(image_size=0, sequence_length=sequence_length)
        return network.build(shape, network.dropout), meta_inputs(network, shape, 2)


@pytest.mark.parametrize("name", NAMES)
def test_number_of_parameters_is_the_stated_one(name: str) -> None:
    model, _ = on_meta(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == NETWORKS[name].num_parameters


def test_published_parameter_counts() -> None:
    published = {
        "resnet20": 269_722,
        "resnet50": 25_557_032,
        "resnet101": 44_549_160,
        "vgg16": 138_357_544,
        "gpt2": 124_439_808,
    }
    assert {name: NETWORKS[name].num_parameters for name in published} == published


@pytest.mark.parametrize(
    ("name", "width", "published"), [("bert_base", 768, 110_106_428), ("bert_large", 1_024, 336_226_108)]
)
def test_bert_lacks_only_the_pooler_and_the_next_sentence_head(name: str, width: int, published: int) -> None:
    pooler, next_sentence = width * width + width, 2 * width + 2
    assert NETWORKS[name].num_parameters + pooler + next_sentence == published


@pytest.mark.parametrize("name", NAMES)
def test_stated_activation_bytes_are_what_autograd_saves(name: str) -> None:
    network = NETWORKS[name]
    model, inputs = on_meta(name)
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            saved[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(*inputs)
        logits = (output if isinstance(output, Tensor) else output[0]).flatten(0, -2)
        with torch.device("meta"):
            nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))
    tokens = 64 if network.kind is Kind.TEXT else 1
    measured = sum(storage.nbytes() for storage in saved.values()) / 2 / tokens
    assert network.activation_bytes == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize(("name", "num_parameters", "num_entries"), [("resnet50", 161, 320), ("resnet101", 314, 626)])
def test_resnets_have_the_parameter_names_of_torchvision(name: str, num_parameters: int, num_entries: int) -> None:
    model, _ = on_meta(name)
    names = [name for name, _ in model.named_parameters()]
    assert len(names) == num_parameters
    assert names[:3] == ["conv1.weight", "bn1.weight", "bn1.bias"]
    assert names[-2:] == ["fc.weight", "fc.bias"]
    assert {"layer1.0.downsample.0.weight", "layer4.2.bn3.bias"} <= set(names)
    assert len(model.state_dict()) == num_entries


def test_vgg16_has_the_parameter_names_of_torchvision() -> None:
    model, _ = on_meta("vgg16")
    names = [name for name, _ in model.named_parameters()]
    assert (len(names), names[0], names[-1]) == (32, "features.0.weight", "classifier.6.bias")


def test_decoder_of_bert_is_the_embedding() -> None:
    model, _ = on_meta("bert_tiny")
    assert model.get_parameter("cls.predictions.decoder.weight") is model.get_parameter(
        "bert.embeddings.word_embeddings.weight"
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_in_exactly_one_layer(name: str) -> None:
    model, _ = on_meta(name)
    layers = layer_parameters(model, NETWORKS[name])
    listed = [parameter.name for parameters in layers.values() for parameter in parameters]
    assert sorted(listed) == sorted(name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("name", "size", "flops"),
    [("resnet50", 224, 8.18e9), ("resnet101", 224, 15.60e9), ("vgg16", 224, 30.96e9)],
)
def test_flops_of_a_forward_pass_are_the_published_ones(name: str, size: int, flops: float) -> None:
    # 4.09, 7.80 and 15.48 billion multiply-adds an image, as torchvision's model pages say.
    model, inputs = on_meta(name)
    assert sum(layer_flops(model, NETWORKS[name], inputs).values()) / 2 == pytest.approx(flops, rel=0.01)


def test_flops_of_attention_products_are_counted_in_their_layer() -> None:
    model, inputs = on_meta("bert_base", sequence_length=128)
    flops = layer_flops(model, NETWORKS["bert_base"], inputs)
    tokens, width = 2 * 128, 768
    assert flops["layer.0.attention"] == 2 * tokens * (4 * width * width + 2 * 128 * width)
    assert flops["layer.11.ffn"] == 2 * tokens * 8 * width * width


def test_gpt2_takes_longer_than_bert_base_as_its_flops_do() -> None:
    flops = {}
    for name in ("gpt2", "bert_base"):
        model, inputs = on_meta(name, sequence_length=PUBLISHED[name].size)
        flops[name] = sum(layer_flops(model, NETWORKS[name], inputs).values())
    times = PUBLISHED["gpt2"].sample_time_s / PUBLISHED["bert_base"].sample_time_s
    assert times == pytest.approx(flops["gpt2"] / flops["bert_base"], rel=1e-4)


@pytest.mark.parametrize("name", ["resnet20", "bert_tiny", "gpt2_tiny", "transformer_lm", "lstm_lm", "elman_rnn"])
def test_equal_seeds_build_equal_networks_and_leave_the_global_generator(name: str) -> None:
    network = NETWORKS[name]
    shape = network.usual_shape(image_size=8, sequence_length=16)
    before = torch.get_rng_state()
    first, second, other = (build_network(network, shape, 0.0, seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)
