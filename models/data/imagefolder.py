"""An ImageNet folder: `train/<class>/*.JPEG` and `val/<class>/*.JPEG`, with the standard crops and flips.

Training takes a random part of 8–100 % of the area and 3/4–4/3 in aspect, resized, flipped at even odds;
validation takes the centre after resizing the short side to 8/7 of the crop (256 for 224), as in
Szegedy et al., 2015, and every ImageNet recipe since. Crops depend on (seed, epoch, image), not on the
number of loader processes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from models.data.sampling import Shard, generator_for, index_batches
from models.network import SampleShape
from models.values import Batch, WorkloadError

_SUFFIXES = {".jpeg", ".jpg", ".png"}
_MEAN = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
_DEVIATION = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)
_AREA, _ASPECT, _CROP_TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
_EVALUATION_BATCH = 64
MOST_PIXELS = 80_000_000  # the largest of ImageNet has 67 million
_LAYOUT = "it must hold train/<class>/*.JPEG and val/<class>/*.JPEG"

Key = tuple[int, int, int]  # seed, epoch and index of an image
Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why an image cannot be read. A value, since torch buries an exception of a loader process in a trace
    and then takes 5 s to end that process."""

    reason: str


Sample = tuple[Tensor, int] | Unreadable


@dataclass(frozen=True, slots=True)
class Folder:
    """The images below one of `train` and `val`; `labels` count classes in order of name."""

    classes: tuple[str, ...]
    paths: tuple[Path, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFolder:
    """Batches from an ImageNet folder."""

    train: Folder
    val: Folder
    image_size: int
    batch_size: int
    num_workers: int
    num_evaluation: int = 0

    @classmethod
    def open(cls, path: str, *, image_size: int, batch_size: int, num_workers: int, num_evaluation: int) -> ImageFolder:
        """List the images. Raises: WorkloadError if the folder, a half, a class or its images are missing."""
        root = Path(path)
        if not path or not root.is_dir():
            raise WorkloadError(f"data_path {path!r} is not a folder; {_LAYOUT}")
        train, val = list_images(root / "train"), list_images(root / "val")
        if train.classes != val.classes:
            odd = sorted(set(train.classes) ^ set(val.classes))
            raise WorkloadError(f"{root}: class {odd[0]!r} is in only one of train and val; {_LAYOUT}")
        return cls(
            train=train,
            val=val,
            image_size=image_size,
            batch_size=batch_size,
            num_workers=num_workers,
            num_evaluation=num_evaluation,
        )

    @property
    def shape(self) -> SampleShape:
        """Square crops, as many classes as there are folders in `train`."""
        return SampleShape(size=self.image_size, num_classes=len(self.train.classes))

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        """Endless random crops of this rank's share of `train`; ranks share no image in an epoch."""
        shard = Shard(num_samples=len(self.train.paths), batch_size=self.batch_size, rank=rank, world=world, seed=seed)
        keys = ([(seed, epoch, index) for index in chosen] for epoch, chosen in index_batches(shard))
        return self._load(TrainingImages(self.train, self.image_size), keys)

    def held_out(self) -> Iterator[Batch]:
        """Centre crops of `val`, `num_evaluation` of them spread over all classes (0: all)."""
        num = len(self.val.paths)
        # Spread over all classes: paths are listed class by class.
        num_chosen = min(self.num_evaluation or num, num)
        indices = [place * num // num_chosen for place in range(num_chosen)]
        starts = range(0, len(indices), _EVALUATION_BATCH)
        keys = ([(0, 0, index) for index in indices[start : start + _EVALUATION_BATCH]] for start in starts)
        return self._load(ValidationImages(self.val, self.image_size), keys)

    def _load(self, images: Dataset[Sample], keys: Iterator[list[Key]]) -> Iterator[Batch]:
        # A generator of its own: the loader would draw its seed from the global one, and so change dropout.
        loader = DataLoader(
            images,
            batch_sampler=_Once(keys),
            num_workers=self.num_workers,
            collate_fn=_collate,
            generator=torch.Generator(),
        )
        for batch in loader:
            if isinstance(batch, Unreadable):
                raise WorkloadError(batch.reason)
            yield batch


class TrainingImages(Dataset[Sample]):
    """Randomly cropped and flipped images of a folder, by key."""

    def __init__(self, folder: Folder, size: int) -> None:
        self._folder, self._size = folder, size

    def __getitem__(self, key: Key) -> Sample:
        image = read_image(self._folder.paths[key[2]])
        if isinstance(image, Unreadable):
            return image
        generator = generator_for(*key)
        box = random_box(image.width, image.height, generator)
        pixels = to_tensor(image.resize((self._size, self._size), Image.Resampling.BILINEAR, box=box))
        flipped = pixels.flip(2) if torch.rand((), generator=generator) < 0.5 else pixels
        return flipped, self._folder.labels[key[2]]


class ValidationImages(Dataset[Sample]):
    """Centre crops of a folder's images, by key."""

    def __init__(self, folder: Folder, size: int) -> None:
        self._folder, self._size = folder, size

    def __getitem__(self, key: Key) -> Sample:
        image = read_image(self._folder.paths[key[2]])
        if isinstance(image, Unreadable):
            return image
        # The crop's side in the image's own pixels: 7/8 of the short side.
        side = min(image.width, image.height) * 7 / 8
        left, top = (image.width - side) / 2, (image.height - side) / 2
        box = (left, top, left + side, top + side)
        pixels = image.resize((self._size, self._size), Image.Resampling.BILINEAR, box=box)
        return to_tensor(pixels), self._folder.labels[key[2]]


class _Once:
    """A batch sampler over keys made on the fly; goes once over `keys`, which may be endless."""

    def __init__(self, keys: Iterator[list[Key]]) -> None:
        self._keys = keys

    def __iter__(self) -> Iterator[list[Key]]:
        return self._keys


def list_images(folder: Path) -> Folder:
    """List `folder/<class>/…` in order of name. Raises: WorkloadError naming what is missing."""
    if not folder.is_dir():
        raise WorkloadError(f"{folder} is missing; {_LAYOUT.replace('it', str(folder.parent), 1)}")
    classes = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))
    if not classes:
        raise WorkloadError(f"{folder} has no class folders; {_LAYOUT.replace('it', str(folder.parent), 1)}")
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(
            path for path in (folder / name).iterdir() if path.suffix.lower() in _SUFFIXES and path.is_file()
        )
        if not found:
            raise WorkloadError(
                f"{folder / name} has no images ({', '.join(sorted(_SUFFIXES))}); add some or remove it"
            )
        paths += found
        labels += [label] * len(found)
    return Folder(classes, tuple(paths), tuple(labels))


def read_image(path: Path) -> Image.Image | Unreadable:
    """Decode an image to 8-bit RGB, turned upright as its EXIF data says.

    16-bit grey is scaled by 1/257. As in torchvision, palettes are resolved and transparency is dropped. Formats whose
    white is not known (32-bit integers, floats) are refused.
    """
    try:
        with Image.open(path) as image:
            if image.width * image.height > MOST_PIXELS:  # before anything is decoded: a small file may unpack to much
                return Unreadable(f"{path} has {image.width} × {image.height} pixels, more than {MOST_PIXELS:,}")
            # Some versions of Pillow open a 16-bit PNG as 32-bit integers. All of them clip both to 255 in `convert`.
            if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
                grey = (np.asarray(_upright(image)).astype(np.float32) / 257).round().astype(np.uint8)
                return Image.fromarray(grey).convert("RGB")
            if image.mode in ("I", "F"):
                return Unreadable(
                    f"{path} has 32-bit pixels (Pillow's mode {image.mode!r}), whose white is not known; convert it to "
                    "8 or 16 bits"
                )
            return _upright(image).convert("RGB")
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return Unreadable(f"{path} cannot be read as an image ({error}); replace or remove it")


def _upright(image: Image.Image) -> Image.Image:
    """The image turned as its EXIF data says, or as it is where these cannot be read."""
    try:
        return ImageOps.exif_transpose(image)
    except (SyntaxError, ValueError, TypeError, KeyError, OverflowError, struct.error):
        return image


def random_box(width: int, height: int, generator: torch.Generator) -> Box:
    """A random part of a `width` × `height` image; the largest centred one if ten draws do not fit."""
    low, high = (math.log(bound) for bound in _ASPECT)
    for area, aspect in torch.rand(_CROP_TRIES, 2, generator=generator).tolist():
        pixels = width * height * (_AREA[0] + area * (_AREA[1] - _AREA[0]))
        ratio = math.exp(low + aspect * (high - low))
        w, h = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = torch.rand(2, generator=generator).tolist()
            left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * _ASPECT[1])), min(height, round(width / _ASPECT[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def to_tensor(image: Image.Image) -> Tensor:
    """Normalised pixels [3, height, width]."""
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1)
    return (pixels.float() / 255 - _MEAN) / _DEVIATION


def _collate(samples: list[Sample]) -> Batch | Unreadable:
    good: list[tuple[Tensor, int]] = []
    for sample in samples:
        if isinstance(sample, Unreadable):
            return sample
        good.append(sample)
    images, labels = zip(*good, strict=True)
    return Batch((torch.stack(images),), torch.tensor(labels))
