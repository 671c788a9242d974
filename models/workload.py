"""Workloads: what a job trains. Open one from its spec, then drive it.

workload = open_workload(WorkloadSpec(network="resnet20"))
model = workload.build_model(seed=0)
for batch in workload.batches(rank=0, world=1, seed=0):
    workload.loss(model, batch).backward()
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from models.data.sources import Digits, Source, Synthetic
from models.device import VirtualDevice
from models.layer_profile import load_profile, profile_names
from models.network import Kind, Network
from models.networks import NETWORKS, find_network
from models.replay import ReplayWorkload
from models.settings import device_socket
from models.training import TrainingWorkload
from models.values import Batch, Device, Evaluation, WorkloadError, WorkloadSpec

__all__ = [
    "Batch",
    "Catalogue",
    "Device",
    "Evaluation",
    "Workload",
    "WorkloadError",
    "WorkloadSpec",
    "catalogue",
    "open_workload",
]


class Workload(Protocol):
    """What a job trains."""

    @property
    def spec(self) -> WorkloadSpec:
        """The spec with every default filled in."""

    def build_model(self, seed: int) -> nn.Module:
        """The network on its device; equal on every rank for equal seeds. The global generator stays as it is."""

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        """Endless batches of one rank, on the device, set by the arguments alone. Ranks share no sample in an epoch."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss []; calls `model(*batch.inputs)` exactly once, so wrapped models work."""

    def evaluate(self, model: nn.Module) -> Evaluation | None:
        """Loss and accuracy on the held-out part; None where that means nothing (synthetic data, replay).

        Takes no step and leaves the model in the mode it was in. Give the bare module, not a
        wrapper that communicates.
        """

    def memory_bytes(self) -> int:
        """Estimate for one rank: weights, gradients, momentum and activations, without the process itself."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Names and one-line descriptions of what there is."""

    networks: dict[str, str]
    data: dict[str, str]
    profiles: tuple[str, ...]


_DATA = {
    "digits": "1,797 handwritten 8×8 digits from scikit-learn, every fifth held out",
    "shifted-digits": "the same digits, in training each shifted by up to a pixel either way, anew in every epoch",
    "text": "370 kB of documentation from the Python interpreter, every tenth sequence held out",
    "textfile": "your text: --data a .txt file or a folder of them (UTF-8)",
    "imagefolder": "your images: --data an ImageNet folder, train/ and val/ by class",
    "synthetic": "random samples of the network's usual shape, not evaluated",
}
_DIGITS = ("digits", "shifted-digits")
_NEEDS_PATH = ("textfile", "imagefolder")


def catalogue() -> Catalogue:
    """Everything that a WorkloadSpec can name."""
    return Catalogue({name: network.summary for name, network in NETWORKS.items()}, dict(_DATA), profile_names())


def open_workload(spec: WorkloadSpec, *, device: VirtualDevice | None = None) -> Workload:
    """Resolve and open `spec`; reads data, builds nothing.

    `device` is for replay: by default the shared one named by the environment, else one of this process.
    Raises: WorkloadError (or DeviceError) naming the value at fault and what exists.
    """
    network = find_network(spec.network)
    if spec.device is Device.REPLAY:
        return _open_replay(spec, network, device)
    resolved = _resolve_data(spec, network)
    source = _OPENERS[resolved.data](resolved, network)
    return TrainingWorkload(resolved, network, source)


def _open_replay(spec: WorkloadSpec, network: Network, device: VirtualDevice | None) -> Workload:
    if spec.data or spec.data_path:
        raise WorkloadError(f"data {spec.data or spec.data_path!r} is given, but replay reads none; leave it empty")
    name = spec.profile or network.profile
    if not name:
        raise WorkloadError(
            f"{spec.network!r} has no default profile; name one of {', '.join(profile_names())}, or record one with "
            f"`python -m models.profile {spec.network} --out FILE.json` and give its path"
        )
    profile = load_profile(name)
    if device is None:
        socket = device_socket()
        device = VirtualDevice.local() if socket is None else VirtualDevice.connect(socket)
    return ReplayWorkload(dataclasses.replace(spec, profile=name), profile, device)


def _resolve_data(spec: WorkloadSpec, network: Network) -> WorkloadSpec:
    if spec.profile or spec.size_scale != 1:
        raise WorkloadError(f"profile and size_scale are for replay; device is {spec.device.value!r}")
    own = {"imagefolder": Kind.IMAGES, "textfile": Kind.TEXT}
    by_path = next((name for name, kind in own.items() if kind is network.kind), "")
    data = spec.data or (by_path if spec.data_path else network.data[0])
    if data not in _DATA:
        raise WorkloadError(f"no data {data!r}; there are {', '.join(_DATA)}")
    if data not in network.data:
        raise WorkloadError(f"{spec.network!r} does not train on {data!r}; it takes {', '.join(network.data)}")
    if data in _NEEDS_PATH and not spec.data_path:
        raise WorkloadError(f"data {data!r} needs data_path: {_DATA[data]}")
    if data not in _NEEDS_PATH and spec.data_path:
        raise WorkloadError(f"data {data!r} takes no data_path, but {spec.data_path!r} is given; leave one of them out")
    size = 0 if network.kind is Kind.TEXT else spec.image_size or network.image_size
    return dataclasses.replace(spec, data=data, image_size=8 if data in _DIGITS else size)


def _open_text(spec: WorkloadSpec, network: Network) -> Source:
    from models.data.text import Text, documentation_text, read_corpus

    documents = read_corpus(spec.data_path) if spec.data == "textfile" else documentation_text()
    return Text.open(
        documents, spec.sequence_length, spec.batch_size, spec.num_evaluation, next_token=network.next_token
    )


def _open_images(spec: WorkloadSpec, network: Network) -> Source:
    from models.data.imagefolder import ImageFolder

    return ImageFolder.open(
        spec.data_path,
        image_size=spec.image_size,
        batch_size=spec.batch_size,
        num_workers=spec.num_workers,
        num_evaluation=spec.num_evaluation,
    )


def _open_synthetic(spec: WorkloadSpec, network: Network) -> Source:
    shape = network.usual_shape(image_size=spec.image_size, sequence_length=spec.sequence_length)
    return Synthetic(batch_size=spec.batch_size, kind=network.kind, shape=shape)


_OPENERS: dict[str, Callable[[WorkloadSpec, Network], Source]] = {
    "digits": lambda spec, network: Digits.load(spec.batch_size, spec.num_evaluation),
    "shifted-digits": lambda spec, network: Digits.load(spec.batch_size, spec.num_evaluation, most_shift=1),
    "text": _open_text,
    "textfile": _open_text,
    "imagefolder": _open_images,
    "synthetic": _open_synthetic,
}
