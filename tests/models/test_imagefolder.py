"""A folder of real JPEG files trains as ImageNet does; what is wrong with it is named."""

import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from models.data.imagefolder import ImageFolder, Unreadable, random_box, read_image
from models.data.sampling import generator_for
from models.values import Device, WorkloadError, WorkloadSpec
from models.workload import open_workload

SIZES = ((40, 30), (30, 52), (64, 64))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("imagenet")
    random = np.random.default_rng(0)
    for half, num in (("train", 6), ("val", 3)):
        for label, name in enumerate(("n01", "n02")):
            (root / half / name).mkdir(parents=True)
            for i in range(num):
                height, width = SIZES[i % len(SIZES)]
                pixels = random.integers(0, 80, (height, width, 3), dtype=np.uint8)
                pixels[..., label] += 150  # class 0 is red, class 1 green
                Image.fromarray(pixels).save(root / half / name / f"{i}.JPEG", quality=95)
    return root


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root, tmp_path / "copy"))


def opened(root: Path, *, num_workers: int = 0, num_evaluation: int = 0) -> ImageFolder:
    return ImageFolder.open(
        str(root), image_size=24, batch_size=3, num_workers=num_workers, num_evaluation=num_evaluation
    )


def test_batches_are_normalised_crops_with_the_labels_of_their_folders(root: Path) -> None:
    for (images,), labels in islice(opened(root).batches(0, 2, 0), 4):
        assert images.shape == (3, 3, 24, 24)
        assert images.dtype == torch.float32
        redder = images[:, 0].mean((1, 2)) > images[:, 1].mean((1, 2))
        assert torch.equal(redder, labels == 0)


def test_loader_processes_do_not_change_the_batches(root: Path) -> None:
    before = torch.get_rng_state()
    here = list(islice(opened(root).batches(0, 1, 5), 6))
    there = list(islice(opened(root, num_workers=2).batches(0, 1, 5), 6))
    for (images,), labels in here:
        (other,), other_labels = there.pop(0)
        assert torch.equal(images, other)
        assert torch.equal(labels, other_labels)
    assert torch.equal(torch.get_rng_state(), before)


def test_epochs_crop_anew(root: Path) -> None:
    batches = list(islice(opened(root).batches(0, 1, 0), 8))  # four an epoch
    first, second = (torch.cat([batch.inputs[0] for batch in batches[i : i + 4]]) for i in (0, 4))
    assert first.mean() != second.mean()


def test_validation_goes_once_over_all_images(root: Path) -> None:
    batches = list(opened(root).held_out())
    assert torch.cat([batch.targets for batch in batches]).tolist() == [0, 0, 0, 1, 1, 1]
    assert batches[0].inputs[0].shape[1:] == (3, 24, 24)


def test_a_part_of_validation_is_spread_over_the_classes(root: Path) -> None:
    for num, labels in ((2, [0, 1]), (4, [0, 0, 1, 1]), (5, [0, 0, 0, 1, 1]), (9, [0, 0, 0, 1, 1, 1])):
        (batch,) = opened(root, num_evaluation=num).held_out()
        assert batch.targets.tolist() == labels


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 50))
def test_a_random_box_lies_in_the_image(width: int, height: int, seed: int) -> None:
    left, top, right, bottom = random_box(width, height, generator_for(seed))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: shutil.rmtree(root), r"copy' is not a folder; it must hold train/<class>"),
        (lambda root: shutil.rmtree(root / "val"), r"copy/val is missing; .*copy must hold train/"),
        (lambda root: [shutil.rmtree(d) for d in (root / "train").iterdir()], r"train has no class folders"),
        (
            lambda root: [f.unlink() for f in (root / "train" / "n02").iterdir()],
            r"n02 has no images .*add some or remove",
        ),
        (lambda root: (root / "val" / "n02").rename(root / "val" / "n03"), r"class 'n02' is in only one of"),
    ],
    ids=["absent", "no val", "no classes", "empty class", "odd class"],
)
def test_a_folder_with_something_missing_is_refused(copy: Path, damage: object, message: str) -> None:
    damage(copy)  # type: ignore[operator]
    with pytest.raises(WorkloadError, match=message):
        opened(copy)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("how", ["truncated", "not an image"])
def test_a_broken_jpeg_is_named(copy: Path, num_workers: int, how: str) -> None:
    broken = copy / "train" / "n01" / "4.JPEG"
    broken.write_bytes(broken.read_bytes()[:400] if how == "truncated" else b"hello")
    with pytest.raises(WorkloadError, match=r"n01/4\.JPEG cannot be read as an image"):
        list(islice(opened(copy, num_workers=num_workers).batches(0, 1, 0), 4))


def test_a_residual_network_learns_the_colours(root: Path) -> None:
    spec = WorkloadSpec(
        network="resnet20", data_path=str(root), image_size=24, batch_size=6, device=Device.CPU, num_workers=0
    )
    workload = open_workload(spec)
    assert workload.spec.label == "resnet20-imagefolder"
    model = workload.build_model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for batch in islice(workload.batches(0, 1, 0), 12):
        optimizer.zero_grad()
        loss = workload.loss(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < sum(losses[:3])
    evaluation = workload.evaluate(model)
    assert evaluation is not None
    assert evaluation.num_samples == 6


GREY16 = np.linspace(0, 65_535, 256).round().astype(np.uint16).reshape(16, 16)


@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_16_bit_grey_keeps_its_brightness(byte_order: str, tmp_path: Path) -> None:
    path = tmp_path / ("x.png" if byte_order == "<" else "x.tiff")
    Image.fromarray(GREY16.astype(f"{byte_order}u2")).save(path)
    image = read_image(path)
    assert isinstance(image, Image.Image)
    grey = np.asarray(image)[..., 0].ravel()
    assert grey.tolist() == list(range(256))


def save_as(mode: str, path: Path) -> None:
    """An image with a black left half and a white right half."""
    grey = Image.fromarray(np.array([[0, 0, 255, 255]] * 4, dtype=np.uint8))
    if mode == "P":
        image = grey.quantize(2)
    elif mode == "CMYK":
        image = Image.merge("CMYK", [Image.new("L", (4, 4))] * 3 + [Image.eval(grey, lambda value: 255 - value)])
    else:
        image = grey.convert("L" if mode in ("LA", "RGBA") else mode)
        if mode in ("LA", "RGBA"):
            image = grey.convert(mode)
            image.putalpha(128)
    image.save(path)


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("1", "png"), ("P", "png"), ("LA", "png"), ("RGBA", "png"), ("CMYK", "tiff"), ("YCbCr", "tiff")],
)
def test_every_mode_keeps_black_and_white(mode: str, suffix: str, tmp_path: Path) -> None:
    save_as(mode, tmp_path / f"x.{suffix}")
    image = read_image(tmp_path / f"x.{suffix}")
    assert isinstance(image, Image.Image)
    pixels = np.asarray(image)
    assert pixels[:, :2].max() <= 2
    assert pixels[:, 2:].min() >= 253


@pytest.mark.parametrize("value", [0.5, 3.0, 70_000])
def test_pixels_whose_white_is_unknown_are_refused(value: float, tmp_path: Path) -> None:
    kind = np.float32 if value < 100 else np.int32
    Image.fromarray(np.full((4, 4), value, kind)).save(tmp_path / "x.tiff")
    image = read_image(tmp_path / "x.tiff")
    assert isinstance(image, Unreadable)
    assert "white is not known" in image.reason


def test_16_bit_grey_is_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(GREY16).save(tmp_path / "x.png", exif=exif)
    image = read_image(tmp_path / "x.png")
    assert isinstance(image, Image.Image)
    assert np.array_equal(np.asarray(image)[..., 0], np.rot90(np.arange(256).reshape(16, 16), -1))


def test_a_photo_is_turned_upright(tmp_path: Path) -> None:
    save_as("L", tmp_path / "plain.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90° clockwise to view
    Image.open(tmp_path / "plain.png").save(tmp_path / "turned.jpg", exif=exif, quality=100)
    image = read_image(tmp_path / "turned.jpg")
    assert isinstance(image, Image.Image)
    pixels = np.asarray(image).mean(2)
    assert pixels[0].max() < 10  # the black left half is now on top
    assert pixels[-1].min() > 245
