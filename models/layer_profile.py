"""What replay plays back: for every layer of a network its parameters and the time of its two passes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from models.values import WorkloadError
from results.bounds import MOST, check_numbers
from results.codec import CodecError, from_jsonable, to_jsonable
from results.files import field_names, read_json, write_json

FOLDER = Path(__file__).parent / "profiles"


class Provenance(StrEnum):
    """Where a profile's times come from."""

    RECORDED = "recorded"  # measured layer by layer on `device`
    DERIVED = "derived"  # a published total, split by FLOPs, backward twice forward


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterShape:
    """One parameter by its name in the network. A tied one stands only in the layer that ends it in backward."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """One layer, in order of forward. Its gradients are ready together, when its backward ends.

    For recorded profiles the times are medians, and the spreads the distance between the quartiles.
    """

    name: str
    parameters: tuple[ParameterShape, ...]
    forward_s: float
    backward_s: float
    forward_spread_s: float = 0.0
    backward_spread_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A network's times on one device for `batch_size` samples; `num_steps` is 0 where derived."""

    network: str
    provenance: Provenance
    source: str
    device: str
    precision: str
    batch_size: int
    sample: str
    num_steps: int
    layers: tuple[LayerProfile, ...]

    @property
    def conditions(self) -> str:
        """Device, precision and batch in a phrase."""
        return f"{self.device} in {self.precision}, {self.provenance} for {self.batch_size} samples"

    @property
    def forward_s(self) -> float:
        """Seconds of forward of all layers."""
        return math.fsum(layer.forward_s for layer in self.layers)

    @property
    def backward_s(self) -> float:
        """Seconds of backward of all layers."""
        return math.fsum(layer.backward_s for layer in self.layers)

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters; tied weights once."""
        return sum(math.prod(parameter.shape) for layer in self.layers for parameter in layer.parameters)


# Bytes by what a profile's device is called. NVIDIA's data sheets: V100 16 or 32 GB, H100 SXM 80 GB; Amazon EC2's page
# of P3 instances: 16 GB per V100.
DEVICE_MEMORY = {"V100 32 GB": 32e9, "V100-SXM2-16GB": 16e9, "V100 (Amazon p3)": 16e9, "H100 80GB": 80e9}


def device_memory(device: str) -> int:
    """Bytes of a device by its name in a profile; 0 where they are not known."""
    return int(next((size for part, size in DEVICE_MEMORY.items() if part in device), 0))


def scaled_shape(shape: tuple[int, ...], size_scale: int) -> tuple[int, ...]:
    """`shape` with `size_scale` times fewer elements, at least one.

    Vectors stay vectors; anything else becomes a matrix with the aspect of (first, all others), so that
    low-rank methods still see one. Off by less than one row.
    """
    if size_scale == 1 or not shape:
        return shape
    target = max(1.0, math.prod(shape) / size_scale)
    if len(shape) == 1:
        return (round(target),)
    rows = min(max(1, round(shape[0] / math.sqrt(size_scale))), max(1, int(target)))
    return rows, max(1, round(target / rows))


def profile_names() -> tuple[str, ...]:
    """Names of the profiles in models/profiles."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def load_profile(name: str) -> Profile:
    """Read a profile by name, or by path if `name` ends in .json.

    Raises: WorkloadError if it does not exist or does not fit the schema.
    """
    path = Path(name) if name.endswith(".json") else FOLDER / f"{name}.json"
    if not path.is_file():
        known = ", ".join(profile_names()) or "none"
        raise WorkloadError(
            f"no profile {name!r}; there are {known}; "
            "record one with `python -m models.profile NETWORK --out FILE.json`"
        )
    try:
        found = read_json(path, fields=("schema", *field_names(Profile)))
        if isinstance(found, dict) and "solo_s" in found:
            raise WorkloadError(
                f"{path} is a job's profile, without layers: `crossover plan` reads it; give "
                f"{path.parent / 'layers' / path.name}, which `crossover run --profile` writes beside it"
            )
        profile = from_jsonable(Profile, found, str(path))
        _check(profile, path)
        check_numbers(profile)
    except CodecError as error:
        raise WorkloadError(f"{path} is not a profile ({error}); record it again") from error
    return profile


def save_profile(profile: Profile, path: Path) -> None:
    """Write `profile` as JSON, replacing what is there in one step."""
    write_json(path, to_jsonable(profile))


def _check(profile: Profile, path: Path) -> None:
    if not profile.layers or profile.batch_size < 1:
        raise WorkloadError(f"{path} has no layers or batch_size {profile.batch_size}; record it again")
    if profile.num_parameters > MOST:
        raise WorkloadError(f"{path}: its shapes have more than {MOST:g} elements together; record it again")
    for layer in profile.layers:
        for own in layer.parameters:
            if any(size < 1 for size in own.shape):
                raise WorkloadError(f"{path}: {own.name!r} has the shape {list(own.shape)}; record it again")
