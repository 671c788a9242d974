"""A network in a file of the user's own trains, is profiled and is replayed like one of the suite's."""

import sys
from pathlib import Path

import pytest
import torch

from models.chain import chain_of
from models.flops import PUBLISHED, derive_profile
from models.layer_profile import save_profile
from models.networks import find_network
from models.profile import main, record_profile
from models.values import Device, WorkloadError, WorkloadSpec
from models.workload import open_workload

OWN = """
import torch
from torch import nn
from models.network import Kind, Network

def build(shape, dropout):
    return nn.Sequential(nn.Conv2d(3, 4, 7, stride=16), nn.ReLU(), nn.Flatten(), nn.LazyLinear(shape.num_classes))

def small(shape, dropout):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.channels * shape.size**2, shape.num_classes))

SMALL = Network(
    name="small", summary="one layer", kind=Kind.IMAGES, build=small, data=("synthetic",), image_size=8, num_classes=10,
    dropout=0.0, num_parameters=1_930, activation_bytes=800, layer_of=lambda module: module,
)

def frozen(shape, dropout):
    own = nn.Sequential(nn.Flatten(), nn.Linear(3 * shape.size**2, 4), nn.Linear(4, shape.num_classes))
    own[1].requires_grad_(False)
    return own

class Scaled(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(3, num_classes)

    def forward(self, images):
        return self.head(images.mean((2, 3)) * self.scale)

def bare(shape, dropout):
    return Scaled(shape.num_classes)

number = 3

def broken(shape, dropout):
    raise RuntimeError("no weights")
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


def test_a_function_is_an_image_classifier_whose_size_is_measured(own: Path) -> None:
    (own.parent / "plain.py").write_text(OWN.replace("nn.LazyLinear(", "nn.Linear(4 * 14 * 14, "))
    network = find_network(f"{own.parent / 'plain.py'}:build")
    assert network.num_parameters == 3 * 4 * 49 + 4 + (4 * 14 * 14 + 1) * 1_000
    assert network.activation_bytes >= 4 * 3 * 224 * 224  # the images alone


def test_it_trains_and_its_label_holds_no_path(own: Path) -> None:
    workload = open_workload(WorkloadSpec(network=f"{own}:SMALL", batch_size=4))
    model = workload.build_model(seed=1)
    batch = next(workload.batches(rank=0, world=1, seed=1))
    loss = workload.loss(model, batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert workload.spec.label == "own.SMALL-synthetic"


def test_its_profile_is_recorded(own: Path) -> None:
    profile = record_profile(WorkloadSpec(network=f"{own}:SMALL", data="synthetic", batch_size=4), num_steps=2)
    assert profile.num_parameters == 1_930


def test_its_profile_is_replayed_under_the_name_that_finds_it(own: Path, tmp_path: Path) -> None:
    name = f"{own}:frozen"
    profile = record_profile(WorkloadSpec(network=name, data="synthetic", batch_size=1), num_steps=2)
    save_profile(profile, tmp_path / "own.json")
    replayed = WorkloadSpec(network=name, device=Device.REPLAY, profile=str(tmp_path / "own.json"))
    model = open_workload(replayed).build_model(seed=1)
    assert sum(parameter.numel() for parameter in model.parameters()) == 5 * 1_000  # those of the layer that is trained
    assert profile.layers[0].backward_s == 0.0


def test_parameters_that_no_module_holds_are_replayed_too(own: Path, tmp_path: Path) -> None:
    name = f"{own}:bare"
    profile = record_profile(WorkloadSpec(network=name, data="synthetic", batch_size=1), num_steps=2)
    save_profile(profile, tmp_path / "own.json")
    replayed = WorkloadSpec(network=name, device=Device.REPLAY, profile=str(tmp_path / "own.json"))
    model = open_workload(replayed).build_model(seed=1)
    assert sum(parameter.numel() for parameter in model.parameters()) == 1 + 4 * 1_000


def test_a_file_that_is_called_as_one_of_ours_has_no_chain(own: Path) -> None:
    renamed = own.rename(own.with_name("resnet50.py"))
    network = find_network(f"{renamed}:SMALL")
    with pytest.raises(WorkloadError, match="has no chain"):
        chain_of(network.name, torch.nn.Sequential())


def test_a_profile_of_no_samples_is_refused() -> None:
    with pytest.raises(WorkloadError, match="batch_size is 0; it must be at least 1"):
        derive_profile(find_network("resnet50"), PUBLISHED["resnet50"], 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lstm_lm", "--steps", "2", "--sequence-length", "8", "--batch-size", "1", "--out", "."], "cannot write . "),
        (["own.py:SMALL"], "name a file with --out"),
    ],
)
def test_a_recording_that_cannot_be_kept_is_refused(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["profile", *words])
    with pytest.raises(SystemExit):
        main()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent.py:build", "there is no file"),
        ("own.py:missing", "'missing' in own.py is NoneType; define it as a function"),
        ("own.py:number", "'number' in own.py is int; define it as a function"),
        ("own.py:broken", "failed with RuntimeError"),
        ("own.py:build", "correct it, or give a models.network.Network"),  # lazy parameters have no number yet
    ],
)
def test_what_will_not_do_is_refused_with_the_reason(own: Path, name: str, reason: str) -> None:
    with pytest.raises(WorkloadError, match=reason):
        find_network(str(own.parent / name))


def test_a_file_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "bent.py").write_text("def")
    with pytest.raises(WorkloadError, match=r"bent\.py cannot be imported \(SyntaxError"):
        find_network(f"{tmp_path / 'bent.py'}:build")


MODULES = {
    "blocks.py": "def width():\n    return 4\n",
    "models/__init__.py": "",  # a name that this project's own package has
    "models/parts.py": "from torch import nn\n\n\ndef layer(fan_in, fan_out):\n    return nn.Linear(fan_in, fan_out)\n",
    "net.py": """
from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from blocks import width
from models.parts import layer


@dataclass
class Config:
    width: int = 0
    classes: int | None = None


def build(shape, dropout):
    config = Config(width=width(), classes=shape.num_classes)
    size = shape.channels * shape.size**2
    return nn.Sequential(nn.Flatten(), layer(size, config.width), layer(config.width, config.classes))
""",
}


def test_a_file_with_a_dataclass_imports_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    ours = sys.modules["models"]
    network = find_network(f"{tmp_path / 'net.py'}:build")
    assert network.num_parameters == (3 * 224**2 + 1) * 4 + (4 + 1) * 1_000
    assert sys.modules["models"] is ours
    assert "models.parts" not in sys.modules
