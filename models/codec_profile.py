"""What compressing costs on a device: seconds per element, by method, for replay, whose tensors are S times smaller.

A method runs in stages, one until each aggregate that it asks for and one after the last answer, which decodes what
all ranks sent: so there is a row a number of ranks, and what lies between is interpolated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from models.layer_profile import FOLDER
from models.values import WorkloadError
from results.codec import CodecError, to_jsonable
from results.files import read_as, write_json

CODECS = FOLDER / "codecs"  # a folder of their own, since the one above holds networks
DEFAULT = "cpu"
BY_DEVICE = {"V100": "v100", "H100": "h100"}  # by what a layer profile says of its device; else the default


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds per element of the message in each stage among `world` ranks, and in each merge of two payloads."""

    world: int
    stages_s: tuple[float, ...]
    merge_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecProfile:
    """Times of `methods` (compression texts) on `device`, over `num_elements` elements in the shapes of `network`, and
    of one `copy_` of as many (`copy_s`, seconds per element). `source` says how they were taken."""

    device: str
    source: str
    network: str
    num_elements: int
    copy_s: float
    methods: Mapping[str, tuple[StageTimes, ...]]

    def stages(self, method: str, world: int) -> StageTimes | None:
        """Times of `method` among `world` ranks; None where it was not recorded."""
        rows = sorted(self.methods.get(method, ()), key=lambda row: row.world)
        if not rows:
            return None
        if len(rows) == 1:
            return rows[0]
        place = next((p for p in range(1, len(rows)) if world <= rows[p].world), len(rows) - 1)
        low, high = rows[place - 1], rows[place]
        share = (world - low.world) / (high.world - low.world)
        return StageTimes(
            world=world,
            stages_s=tuple(_between(a, b, share) for a, b in zip(low.stages_s, high.stages_s, strict=True)),
            merge_s=_between(low.merge_s, high.merge_s, share),
        )


def _between(low: float, high: float, share: float) -> float:
    return max(0.0, low + share * (high - low))


def codecs_of(device: str) -> str:
    """The profile of codecs that goes with layers timed on `device`: what computes also compresses."""
    return next((name for part, name in BY_DEVICE.items() if part in device), DEFAULT)


def on_device(profile: CodecProfile, device: str, copy_s: float) -> CodecProfile:
    """`profile` for another device, derived: every stage takes as many copies of the tensor as on the one recorded.

    Codecs mostly move memory; what does not (a selection's passes, exact ties) may take more copies there.
    """
    scale = copy_s / profile.copy_s
    rows = {
        method: tuple(
            StageTimes(world=t.world, stages_s=tuple(s * scale for s in t.stages_s), merge_s=t.merge_s * scale)
            for t in times
        )
        for method, times in profile.methods.items()
    }
    source = f"derived: as many copies as on {profile.device}, at {8e-9 / copy_s:.0f} GB/s"
    return CodecProfile(
        device=f"{device}, derived", source=source, network=profile.network, num_elements=profile.num_elements,
        copy_s=copy_s, methods=rows,
    )  # fmt: skip


def load_codecs(name: str = DEFAULT) -> CodecProfile:
    """Read a profile by name, or by path if `name` ends in .json. Raises: WorkloadError if it is absent or broken."""
    path = Path(name) if name.endswith(".json") else CODECS / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(own.stem for own in CODECS.glob("*.json"))) or "none"
        raise WorkloadError(
            f"no times of codecs called {name!r}; there are {known}; record them with "
            f"`python -m harness.predict.codec_recording --out {CODECS.name}.json` and give the path"
        )
    try:
        profile = read_as(CodecProfile, path)
    except CodecError as error:
        raise WorkloadError(f"{path} holds no times of codecs ({error}); record them again") from error
    for method, rows in profile.methods.items():
        worlds, num_stages = [row.world for row in rows], {len(row.stages_s) for row in rows}
        if not rows or len(set(worlds)) < len(worlds) or len(num_stages) > 1:
            raise WorkloadError(f"{path}: {method} has no row, or unequal ones, a number of ranks; record them again")
    return profile


def save_codecs(profile: CodecProfile, path: Path) -> None:
    """Write `profile` as JSON, replacing what is there in one step."""
    write_json(path, to_jsonable(profile))
