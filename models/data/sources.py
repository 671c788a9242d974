"""Where batches come from: the protocol, and the sources that need no files (digits, random tensors)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from models.data.sampling import Shard, generator_for, index_batches
from models.network import Kind, SampleShape
from models.values import Batch, WorkloadError

# Digits are grey 8×8 images with values 0–16; mean and deviation over the whole set, after division by 16.
_DIGITS_SCALE, _DIGITS_MEAN, _DIGITS_DEVIATION = 16.0, 0.3053, 0.3760
_HELD_OUT_EVERY = 5
_SYNTHETIC_BATCHES = 2


class Source(Protocol):
    """Batches on the CPU.

    `batches` is endless and depends on its arguments alone; `held_out` goes once over the part that
    `batches` never shows, or is None where that means nothing.
    """

    @property
    def shape(self) -> SampleShape:
        """One sample's shape, and the number of classes."""

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        """Endless batches of one rank. Ranks share no sample in an epoch."""

    def held_out(self) -> Iterator[Batch] | None:
        """The held-out part, once; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """The 1,797 handwritten digits that ship with scikit-learn; every fifth is held out.

    In training each image is shifted by up to `most_shift` pixels either way, anew in every epoch.
    """

    batch_size: int
    num_evaluation: int
    images: Tensor  # [samples, 1, 8, 8]
    labels: Tensor  # [samples]
    most_shift: int = 0

    @classmethod
    def load(cls, batch_size: int, num_evaluation: int = 0, *, most_shift: int = 0) -> Digits:
        """Read the data set from the installed scikit-learn."""
        table = _digits()
        images = table[:, :-1].float().view(-1, 1, 8, 8)
        normal = (images / _DIGITS_SCALE - _DIGITS_MEAN) / _DIGITS_DEVIATION
        labels = table[:, -1].long()
        return cls(
            batch_size=batch_size, num_evaluation=num_evaluation, images=normal, labels=labels, most_shift=most_shift
        )

    @property
    def shape(self) -> SampleShape:
        """8 × 8 pixels, one channel, ten classes."""
        return SampleShape(size=8, channels=1, num_classes=10)

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        """Endless batches of this rank's share of what is not held out."""
        indices = held_in(len(self.labels), _HELD_OUT_EVERY)
        shard = Shard(num_samples=len(indices), batch_size=self.batch_size, rank=rank, world=world, seed=seed)
        generator = generator_for(seed, rank, world)
        batches = (self._batch(indices[chosen]) for _, chosen in index_batches(shard))
        if not self.most_shift:
            return batches
        return (Batch((shifted(b.inputs[0], self.most_shift, generator),), b.targets) for b in batches)

    def held_out(self) -> Iterator[Batch]:
        """Every fifth digit, `num_evaluation` of them at most (0: all)."""
        indices = torch.arange(0, len(self.labels), _HELD_OUT_EVERY)[: self.num_evaluation or None]
        return (self._batch(part) for part in torch.split(indices, 128))

    def _batch(self, indices: Tensor) -> Batch:
        return Batch((self.images[indices],), self.labels[indices])


@cache
def _digits() -> Tensor:
    """64 pixels and the label of each digit."""
    return torch.from_numpy(np.loadtxt(_digits_file(), delimiter=","))


def _digits_file() -> Path:
    """Where `sklearn.datasets.load_digits` reads from; importing that function takes every process over a second."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise WorkloadError("the digits come with scikit-learn, which is not installed: run 'make setup'")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """Random samples: a few batches a rank, drawn once and repeated, so that a step pays for no data."""

    batch_size: int
    kind: Kind
    shape: SampleShape

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        """A few random batches of this rank, over and over. Raises: WorkloadError for a rank outside the world."""
        if not 0 <= rank < world:
            raise WorkloadError(f"rank {rank} is not in a world of {world}; ranks count from 0")
        return self._repeat(generator_for(seed, rank))

    def held_out(self) -> None:
        """None: nothing can be learnt of random labels."""

    def _repeat(self, generator: torch.Generator) -> Iterator[Batch]:
        batches = [self._draw(generator) for _ in range(_SYNTHETIC_BATCHES)]
        while True:
            yield from batches

    def _draw(self, generator: torch.Generator) -> Batch:
        shape, size = self.shape, self.batch_size
        if self.kind is Kind.TEXT:
            tokens = torch.randint(shape.num_classes, (2, size, shape.size), generator=generator)
            return Batch((tokens[0],), tokens[1])
        images = torch.randn(size, shape.channels, shape.size, shape.size, generator=generator)
        return Batch((images,), torch.randint(shape.num_classes, (size,), generator=generator))


def shifted(images: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """`images` [batch, channels, height, width], each moved by −`most` … `most` pixels down and right, drawn alone.

    What moves in has the value of an image's first corner, the background.
    """
    num, _, height, width = images.shape
    framed = torch.nn.functional.pad(images, (most,) * 4, value=float(images[0, 0, 0, 0]))
    down, right = torch.randint(2 * most + 1, (2, num), generator=generator)
    rows = (down.view(-1, 1) + torch.arange(height)).view(num, 1, height, 1)
    columns = (right.view(-1, 1) + torch.arange(width)).view(num, 1, 1, width)
    channels = torch.arange(images.shape[1]).view(1, -1, 1, 1)
    return framed[torch.arange(num).view(-1, 1, 1, 1), channels, rows, columns]


def held_in(num_samples: int, every: int) -> Tensor:
    """Indices of all samples but each `every`-th (those are held out), ascending."""
    indices = torch.arange(num_samples)
    return indices[indices % every != 0]
