"""Small data sets as a user might bring them."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

CLASSES = ("cat", "dog")
IMAGES_A_CLASS = 72  # two ranks of 64 samples per step leave 16 of the 144


def make_images(root: Path) -> Path:
    """An ImageNet folder of real JPEG files, two classes of flat colours."""
    for half, count in (("train", IMAGES_A_CLASS), ("val", 2)):
        for shade, name in enumerate(CLASSES):
            folder = root / half / name
            folder.mkdir(parents=True)
            for index in range(count):
                colour = (200 * shade, index, 255 - index)
                Image.new("RGB", (40, 36), colour).save(folder / f"{index:03d}.JPEG")
    return root


def make_corpus(folder: Path) -> Path:
    """A folder with enough text for two ranks of BERT-tiny."""
    folder.mkdir(parents=True)
    lines = [f"the {word} of {n} ships sails over sea {n * 7}" for n in range(900) for word in ("captain", "crew")]
    (folder / "ships.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder
