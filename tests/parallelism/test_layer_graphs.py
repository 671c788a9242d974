import math

import pytest
import torch

from models.chain import apply_chain, chain_of, link_of, names_of_parameters
from models.flops import meta_inputs
from models.graph import Dimension, LayerGraph
from models.graph_building import graph_from_flops, graph_from_profile, graph_of, record_graph
from models.layer_profile import Provenance, load_profile
from models.networks import NETWORKS, Kind
from models.values import Device, WorkloadError, WorkloadSpec

SMALL = [name for name, network in NETWORKS.items() if network.num_parameters < 2_000_000]


@pytest.mark.parametrize("name", SMALL)
def test_links_applied_in_turn_compute_what_the_network_computes(name: str) -> None:
    network = NETWORKS[name]
    shape = network.usual_shape(image_size=16, sequence_length=16)
    torch.manual_seed(0)
    model = network.build(shape, 0.0)
    (x,) = meta_inputs(network, shape, 2)
    x = torch.randn_like(x) if network.kind is Kind.IMAGES else torch.randint(0, network.num_classes, x.shape)
    whole = model(x)
    whole = whole if isinstance(whole, torch.Tensor) else whole[0]
    assert torch.equal(apply_chain(chain_of(name, model), x), whole)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_is_owned_by_one_layer(name: str) -> None:
    graph = graph_from_flops(name)
    names = [parameter.name for layer in graph.layers for parameter in layer.parameters]
    assert len(names) == len(set(names))
    assert graph.parameter_bytes == 4 * NETWORKS[name].num_parameters
    assert graph.provenance is Provenance.DERIVED
    assert "no time was measured" in graph.source


@pytest.mark.parametrize("name", [name for name, network in NETWORKS.items() if network.profile])
def test_a_profile_keeps_its_time_and_its_provenance(name: str) -> None:
    profile = load_profile(NETWORKS[name].profile)
    graph = graph_of(name)
    assert graph.step_s * profile.batch_size == pytest.approx(profile.forward_s + profile.backward_s)
    assert graph.provenance is profile.provenance
    assert graph.device == profile.device
    assert [layer.name for layer in graph.layers] == list(
        dict.fromkeys(link_of(name, layer.name) for layer in profile.layers)
    )


def test_a_tied_weight_is_owned_once_and_counted_where_it_is_used_again() -> None:
    graph = graph_from_profile(load_profile("bert_base-v100"))
    words = 30_522 * 768 * 4
    assert graph.layers[0].parameter_bytes > words
    assert graph.layers[-1].tied_bytes == pytest.approx(words, rel=0.01)  # and the decoder's bias, used twice


def test_output_bytes_are_those_of_the_tensor_between_two_links() -> None:
    graph = graph_from_flops("resnet20")
    assert graph.input_bytes == 3 * 32 * 32 * 4
    assert graph.layers[0].output_bytes == 16 * 32 * 32 * 4
    assert graph.layers[-1].output_bytes == 10 * 4


def test_a_live_recording_times_every_link() -> None:
    graph = record_graph(WorkloadSpec(network="lstm_lm", batch_size=4, sequence_length=8), num_steps=2, num_warmup=1)
    assert graph.provenance is Provenance.RECORDED
    assert all(layer.forward_s > 0 and layer.backward_s > 0 for layer in graph.layers)


def test_extents_are_what_all_operators_of_a_layer_share() -> None:
    layers = {layer.name: layer for layer in graph_from_flops("bert_base").layers}
    assert layers["layer.0.attention"].extents[Dimension.CHANNEL_OUT] == 12  # heads
    assert layers["embeddings"].extents[Dimension.CHANNEL_IN] == 30_522  # words
    assert {layer.name: layer for layer in graph_from_flops("lstm_lm").layers}["layer.0"].extents == {}


def test_bad_speeds_devices_and_networks_are_refused() -> None:
    with pytest.raises(WorkloadError, match="flops_per_s is 0"):
        graph_from_flops("resnet20", flops_per_s=0.0)
    with pytest.raises(WorkloadError, match="record at least 2"):
        record_graph(WorkloadSpec(network="resnet20", device=Device.REPLAY))
    with pytest.raises(WorkloadError, match="no network 'alexnet'"):
        graph_of("alexnet")
    with pytest.raises(WorkloadError, match="no chain"):
        chain_of("alexnet", torch.nn.Linear(1, 1))


def test_a_graph_without_a_finite_time_is_refused() -> None:
    graph = graph_from_flops("resnet20")
    broken = {field: getattr(graph, field) for field in ("network", "provenance", "source", "device", "sample")}
    with pytest.raises(WorkloadError, match="at least one"):
        LayerGraph(**broken, input_bytes=1, layers=())
    assert math.isfinite(graph.step_s)


def test_names_lead_back_to_the_networks_parameters() -> None:
    network = NETWORKS["bert_tiny"]
    model = network.build(network.usual_shape(image_size=0, sequence_length=16), 0.0)
    names = names_of_parameters(model, chain_of("bert_tiny", model))
    assert {name for link in names for name in link.values()} == {name for name, _ in model.named_parameters()}
    assert set(names[0].values()) & set(names[-1].values())  # the tied weight
