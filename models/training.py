"""Real training: a network on a source of batches, on the CPU or a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.data.sources import Source
from models.network import Kind, Network
from models.networks import build_network
from models.values import Batch, Device, Evaluation, WorkloadError, WorkloadSpec

_IGNORED = -100
_BYTES_A_PARAMETER = 4 * 3  # weight, gradient, momentum


class TrainingWorkload:
    """A network that really learns. Its classes and channels are those of the data."""

    def __init__(self, spec: WorkloadSpec, network: Network, source: Source) -> None:
        # Not is_available: it may start CUDA here, and a rank forked from here could not use it any more.
        if spec.device is Device.CUDA and torch.cuda.device_count() == 0:
            raise WorkloadError("device 'cuda' is asked, but torch sees no GPU; use device 'cpu' or 'replay'")
        self.spec = spec
        self._network = network
        self._source = source

    def build_model(self, seed: int) -> nn.Module:
        """The network with weights drawn from `seed`, on the workload's device."""
        model = build_network(self._network, self._source.shape, self.spec.dropout, seed)
        return model.to(self.spec.device.value)

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        """The source's batches, moved to the device."""
        return map(self._move, self._source.batches(rank, world, seed))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy [] over all targets that count."""
        return functional.cross_entropy(*_flat(model(*batch.inputs), batch.targets), ignore_index=_IGNORED)

    def evaluate(self, model: nn.Module) -> Evaluation | None:
        """Loss and accuracy on the held-out part, in evaluation mode; None where nothing is held out."""
        held_out = self._source.held_out()
        if held_out is None:
            return None
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad():
                return _evaluate(model, map(self._move, held_out))
        finally:
            model.train(was_training)

    def memory_bytes(self) -> int:
        """Parameters with their states, and the activations of one batch, estimated from the network's table."""
        network, spec = self._network, self.spec
        if network.kind is Kind.TEXT:
            per_sample = network.activation_bytes * spec.sequence_length
        else:
            per_sample = network.activation_bytes * self._source.shape.size**2 // network.image_size**2
        return network.num_parameters * _BYTES_A_PARAMETER + per_sample * spec.batch_size

    def _move(self, batch: Batch) -> Batch:
        if self.spec.device is Device.CPU:
            return batch
        inputs = tuple(tensor.to("cuda", non_blocking=True) for tensor in batch.inputs)
        return Batch(inputs, batch.targets.to("cuda", non_blocking=True))


def _flat(output: Tensor | tuple[Tensor, ...], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [n, classes] and targets [n] of all samples, or of all tokens of all samples."""
    logits = output if isinstance(output, Tensor) else output[0]
    return logits.flatten(0, -2), targets.flatten()


def _evaluate(model: nn.Module, batches: Iterator[Batch]) -> Evaluation:
    loss, correct, predicted, num_samples = 0.0, 0, 0, 0
    for batch in batches:
        logits, targets = _flat(model(*batch.inputs), batch.targets)
        loss += float(functional.cross_entropy(logits, targets, ignore_index=_IGNORED, reduction="sum"))
        wanted = targets != _IGNORED
        correct += int((logits.argmax(dim=1) == targets)[wanted].sum())
        predicted += int(wanted.sum())
        num_samples += len(batch.targets)
    return Evaluation(loss=loss / predicted, accuracy=correct / predicted, num_samples=num_samples)
