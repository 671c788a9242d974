"""Replay behaves as a network: times, sizes, order and arithmetic; and DDP runs on it."""

import math
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

from models.device import VirtualDevice
from models.flops import PUBLISHED, derive_profile
from models.layer_profile import Provenance, load_profile, profile_names, save_profile, scaled_shape
from models.networks import NETWORKS
from models.profile import record_profile
from models.values import Device, WorkloadError, WorkloadSpec
from models.workload import Workload, open_workload

SCALE = 2000


class Ledger(VirtualDevice):
    """A device that takes no time and writes down what it was asked for."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.entries: list[float] = []

    def take(self, seconds: float) -> AbstractContextManager[None]:
        self.entries.append(seconds)
        return nullcontext()

    def close(self) -> None:
        self.entries.clear()


def replay(network: str = "resnet50", **options: object) -> tuple[Workload, Ledger]:
    ledger = Ledger()
    spec = WorkloadSpec(network=network, device=Device.REPLAY, size_scale=SCALE, **options)  # type: ignore[arg-type]
    return open_workload(spec, device=ledger), ledger


@pytest.mark.parametrize("name", profile_names())
def test_shipped_profiles_fit_their_networks(name: str) -> None:
    profile = load_profile(name)
    assert profile.num_parameters == NETWORKS[profile.network].num_parameters
    assert profile.source
    assert profile.device
    if profile.provenance is Provenance.DERIVED:
        published = PUBLISHED[profile.network]
        assert profile.forward_s + profile.backward_s == pytest.approx(published.sample_time_s * profile.batch_size)
        assert derive_profile(NETWORKS[profile.network], published, profile.batch_size) == profile


@given(st.lists(st.integers(1, 600), min_size=0, max_size=4).map(tuple), st.integers(1, 1000))
def test_scaled_shapes_hold_the_right_number_of_elements(shape: tuple[int, ...], size_scale: int) -> None:
    scaled = scaled_shape(shape, size_scale)
    target = math.prod(shape) / size_scale
    assert math.prod(scaled) >= 1
    assert abs(math.prod(scaled) - max(1.0, target)) <= scaled[0] / 2 + 0.5 if scaled else target <= 1


@pytest.mark.parametrize("network", ["resnet50", "vgg16", "bert_base"])
@pytest.mark.parametrize("size_scale", [50, 100])
def test_a_scaled_network_is_that_many_times_smaller(network: str, size_scale: int) -> None:
    profile = load_profile(NETWORKS[network].profile)
    scaled = sum(math.prod(scaled_shape(p.shape, size_scale)) for layer in profile.layers for p in layer.parameters)
    assert scaled * size_scale == pytest.approx(profile.num_parameters, rel=0.005)


def test_a_step_takes_every_layer_forward_and_then_backward() -> None:
    workload, ledger = replay(batch_size=16)
    layers = load_profile("resnet50-v100").layers
    workload.loss(workload.build_model(0), next(workload.batches(0, 1, 0))).backward()
    expected = [layer.forward_s / 2 for layer in layers] + [layer.backward_s / 2 for layer in reversed(layers)]
    assert ledger.entries == pytest.approx(expected)  # half the profile's batch


def test_gradients_are_ready_layer_by_layer_right_after_their_layer() -> None:
    workload, ledger = replay("bert_base")
    model = workload.build_model(0)
    ready: list[tuple[str, int]] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, n=name: ready.append((n, len(ledger.entries))))
    workload.loss(model, next(workload.batches(0, 1, 0))).backward()
    layers = list(model.children())
    by_name = {name: layers.index(model.get_submodule(name.split(".")[0])) for name, _ in ready}
    assert [moment for name, moment in ready] == [2 * len(layers) - by_name[name] for name, _ in ready]
    assert ready[-1][0].startswith("embeddings")
    assert sum("word_embeddings" in name for name, _ in ready) == 1


def test_pre_forward_hooks_of_layers_run_before_their_time_is_taken() -> None:
    workload, ledger = replay("vgg16")
    model = workload.build_model(0)
    seen: list[int] = []
    for layer in model.children():
        layer.register_forward_pre_hook(lambda *_: seen.append(len(ledger.entries)))
    workload.loss(model, next(workload.batches(0, 1, 0)))
    assert seen == list(range(len(list(model.children()))))


def test_ranks_start_equal_and_have_different_gradients() -> None:
    workload, _ = replay()
    gradients = []
    for rank in range(2):
        model = workload.build_model(seed=3)
        workload.loss(model, next(workload.batches(rank, 2, 0))).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(not torch.equal(a, b) for a, b in zip(*gradients, strict=True))  # type: ignore[arg-type]
    assert gradients[0][0].unique().numel() > 1  # type: ignore[union-attr]


def test_accumulated_halves_equal_the_average_of_two_ranks() -> None:
    workload, _ = replay()
    model = workload.build_model(0)
    batches = [next(workload.batches(rank, 2, 0)) for rank in range(2)]
    for batch in batches:
        (workload.loss(model, batch) / 2).backward()
    target = sum(float(batch.inputs[0].mean()) for batch in batches) / 2
    for parameter in model.parameters():
        # One rounding in each of four float32 operations on values below 1.
        torch.testing.assert_close(parameter.grad, parameter.detach() - target, rtol=0, atol=1e-6)


def test_training_lowers_the_loss_and_repeats_bit_for_bit() -> None:
    def train() -> tuple[list[float], torch.Tensor]:
        workload, _ = replay()
        model = workload.build_model(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for batch in islice(workload.batches(0, 1, 0), 30):
            optimizer.zero_grad()
            loss = workload.loss(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    losses, weights = train()
    # Weights start 0.1 around 0; what remains is the spread of the batches' targets, 1/√32 a step.
    assert weights.std() < 0.05
    assert all(math.isfinite(loss) for loss in losses)
    again, same = train()
    assert losses == again
    assert torch.equal(weights, same)


def test_torch_ddp_trains_a_replay_as_it_is() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        workload, _ = replay("bert_base")
        batch = next(workload.batches(0, 1, 0))
        model, alone = workload.build_model(0), workload.build_model(0)
        wrapped = DistributedDataParallel(model)
        workload.loss(wrapped, batch).backward()
        workload.loss(alone, batch).backward()
        for ours, theirs in zip(alone.parameters(), model.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]
    finally:
        dist.destroy_process_group()


def test_a_recorded_profile_covers_the_step_and_replays(tmp_path: Path) -> None:
    spec = WorkloadSpec(network="resnet20", data="synthetic", batch_size=2, image_size=8)
    told: list[tuple[int, int]] = []
    profile = record_profile(spec, num_steps=4, num_warmup=1, on_step=lambda done, of: told.append((done, of)))
    assert told == [(done, 5) for done in range(1, 6)]
    assert (profile.provenance, profile.num_steps) == (Provenance.RECORDED, 4)
    assert profile.num_parameters == NETWORKS["resnet20"].num_parameters
    assert all(layer.forward_s > 0 and layer.backward_s > 0 for layer in profile.layers)
    assert [layer.name for layer in profile.layers][:2] == ["conv1", "layer1.0.conv1"]
    path = tmp_path / "mine.json"
    save_profile(profile, path)
    assert load_profile(str(path)) == profile
    played = WorkloadSpec(network="resnet20", device=Device.REPLAY, profile=str(path))
    model = open_workload(played, device=Ledger()).build_model(0)
    assert sum(parameter.numel() for parameter in model.parameters()) == profile.num_parameters


def test_recording_names_the_tied_weight_once_in_the_layer_that_ends_it() -> None:
    spec = WorkloadSpec(network="bert_tiny", data="synthetic", batch_size=1, sequence_length=8)
    profile = record_profile(spec, num_steps=2, num_warmup=0)
    holders = [layer.name for layer in profile.layers for p in layer.parameters if "word_embeddings" in p.name]
    assert holders == ["embeddings"]
    assert [layer.name for layer in profile.layers][-1] == "head"


@pytest.mark.parametrize("text", ["{", '{"network": "x"}', "[]"])
def test_a_broken_profile_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=r"broken\.json is not a profile .*; record it again"):
        load_profile(str(path))
