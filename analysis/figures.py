"""Which figures a summary holds, and writing them: PNG to look at, PDF for papers, SVG in the report."""

from __future__ import annotations

import importlib
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from analysis.codes.figures import compression_drawings
from analysis.collectives.figures import collective_drawings
from analysis.flows.figures import flow_drawings
from analysis.pipelines.figures import pipeline_drawings
from analysis.problems.figures import problem_drawings
from analysis.rows import Drawing, PairRow, SettingRow, Summary
from analysis.sharing.figures import sharing_drawings
from analysis.steps.figures import step_drawings
from analysis.targets.convergence import WINDOW
from analysis.targets.figures import target_drawings
from analysis.wording import numbered

PNG_DPI = 220
SOURCES = "records: "
_MARKS = {".png": f"tEXtSource\0{SOURCES}".encode(), ".pdf": f"/Keywords ({SOURCES}".encode()}


def draw_all(summary: Summary, folder: Path) -> list[Path]:
    """Draw every figure that the summary can fill, each as PNG and PDF, and return the paths.

    The files' metadata name the records they were made from. Raises: OSError.
    """
    return save_all(drawings(summary), folder, pdf=True)


def save_all(drawn: Iterable[Drawing], folder: Path, *, pdf: bool) -> list[Path]:
    """Write drawings as the figures of `folder`, where those of an earlier report that are none of them go."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [path for drawing in drawn for path in save(drawing, folder, pdf=pdf)]
    for path in sorted(set(folder.iterdir()) - set(written)):
        if _is_of_a_report(path):
            path.unlink()
    return written


def _is_of_a_report(path: Path) -> bool:
    """Whether `save` wrote it: it says of which records it is, as no other picture does. In doubt it is the user's."""
    mark = _MARKS.get(path.suffix)
    return mark is not None and path.is_file() and not path.is_symlink() and mark in path.read_bytes()


def save(drawing: Drawing, folder: Path, *, pdf: bool) -> list[Path]:
    """Write one drawing as PNG, with `pdf` as PDF too, whose fonts take longer to cut to size than the drawing."""
    from analysis import theme

    sources = SOURCES + ", ".join(drawing.record_ids)
    paths = [folder / f"{drawing.name}.png"]
    with theme.style():
        drawing.figure.savefig(
            paths[0], dpi=PNG_DPI, facecolor="white", metadata={"Description": drawing.caption, "Source": sources}
        )
        if pdf:
            paths.append(folder / f"{drawing.name}.pdf")
            told = {"Title": drawing.name, "Subject": drawing.caption, "Keywords": sources, "CreationDate": None}
            drawing.figure.savefig(paths[1], metadata=told)
    return paths


def _import_matplotlib() -> None:
    """Matplotlib cannot be imported under an MPLBACKEND that it does not know. These figures use Agg in any case."""
    named = os.environ.pop("MPLBACKEND", None)
    importlib.import_module("matplotlib")
    if named is not None:
        os.environ["MPLBACKEND"] = named


def drawings(summary: Summary) -> Iterator[Drawing]:
    """Every figure, in the report's order. What was not recorded is not drawn. Names are unique.

    Each is laid out here: every file and the page have the same layout, and it takes as long as drawing.
    """
    _import_matplotlib()
    from analysis import theme

    for drawing in _drawn(summary):
        theme.write_plain_powers(drawing.figure)
        if (engine := drawing.figure.get_layout_engine()) is not None:
            engine.execute(drawing.figure)
            drawing.figure.set_layout_engine("none")
        yield drawing


def _drawn(summary: Summary) -> Iterator[Drawing]:
    from analysis import theme

    stems = _stems(summary.settings)
    labels = sorted({row.label for setting in summary.settings for row in setting.competitors})
    with theme.style():
        yield from _overview_drawings(summary.settings)
        for setting, stem in zip(summary.settings, stems, strict=True):
            yield from _setting_drawings(setting, stem, theme.colours(labels, setting.baseline))
        yield from step_drawings(summary)
        yield from compression_drawings(summary.compression)
        yield from target_drawings(summary.targets)
        yield from collective_drawings(summary.collectives)
        yield from flow_drawings(summary.flows)
        yield from problem_drawings(summary.problems)
        yield from sharing_drawings(summary)
        yield from pipeline_drawings(summary)
        for place, pair in enumerate(summary.pairs):
            yield from _pair_drawings(f"sharing-breakdown-{place + 1}", pair)


def _overview_drawings(settings: Sequence[SettingRow]) -> Iterator[Drawing]:
    """One, or as many as it takes to keep each as narrow as the page is, of settings in order. A setting of one system
    has nothing to compare."""
    from analysis import plots

    compared = [setting for setting in settings if len(setting.competitors) > 1]
    num_parts = math.ceil(len(compared) / plots.SETTINGS_ACROSS)
    for part in range(num_parts):
        first, end = (len(compared) * place // num_parts for place in (part, part + 1))
        shown = compared[first:end]
        figure = plots.overview(shown)
        if figure is not None:
            ids = tuple(i for setting in shown for row in setting.cells for i in row.record_ids)
            which = "every setting" if num_parts == 1 else f"settings {first + 1} to {end} of {len(compared)}"
            caption = f"Median speed-up of every system in {which}; blue is faster.{_parameters(shown)}"
            name = numbered("overview", part)
            yield Drawing(name=name, topic="overview", caption=caption, figure=figure, record_ids=ids)


def _parameters(settings: Iterable[SettingRow]) -> str:
    """What the names in a figure leave out, as a sentence."""
    left_out = max((setting.left_out for setting in settings), key=len, default="")
    return f" Parameters: {left_out}." if left_out else ""


def _setting_drawings(setting: SettingRow, stem: str, palette: Mapping[str, str]) -> Iterator[Drawing]:
    from analysis import plots, stacks

    where = f"{setting.title}, {setting.evidence}"
    candidates = (
        ("throughput", plots.throughput(setting, palette), _throughput_caption(setting)),
        ("steps", plots.step_times(setting, palette), _STEPS),
        ("loss", plots.losses(setting, palette), _LOSS),
        ("accuracy", plots.accuracies(setting, palette), "Held-out accuracy against training time"),
        ("breakdown", stacks.breakdown(setting), "Where a step's time goes, on the slowest rank"),
        ("bytes", stacks.sent_bytes(setting), "Bytes sent per step: the engine's count by tag beside the interface's"),
    )
    ids = tuple(i for row in setting.cells for i in row.record_ids)
    said = _parameters([setting])
    for topic, figure, caption in candidates:
        if figure is not None:
            name, note = f"{topic}-{stem}", _CURVE_NOTE if topic in ("loss", "accuracy") else ""
            yield Drawing(
                name=name, topic=topic, caption=f"{caption}. {where}.{note}{said}", figure=figure, record_ids=ids
            )


_CURVE_NOTE = " Lines: medians; bands: all repeats. Evaluation is not on the clock."
_LOSS = f"Training loss, the mean of the last {WINDOW} steps, against training time"
_STEPS = (
    "Step times of all repeats: the widest box holds the middle half, each further box half of what is left; "
    "+n: steps beyond the axis"
)


def _throughput_caption(setting: SettingRow) -> str:
    return f"Median throughput with 95 % interval over repeats, and speed-up over {setting.baseline_name}"


def _pair_drawings(name: str, pair: PairRow) -> Iterator[Drawing]:
    from analysis import stacks

    figure = stacks.shared_breakdown(pair)
    if figure is not None:
        yield Drawing(
            name=name,
            topic="sharing",
            caption=f"Where each job's step goes. {pair.title}, {pair.evidence}.",
            figure=figure,
            record_ids=tuple(i for row in pair.rows for i in row.record_ids),
        )


def _stems(settings: Sequence[SettingRow]) -> list[str]:
    """File names by workload, with the fabric where one workload has several settings, numbered if still equal."""
    workloads = Counter(setting.key.workload for setting in settings)
    stems: list[str] = []
    for setting in settings:
        key = setting.key
        stem = _slug(key.workload if workloads[key.workload] == 1 else key.describe())
        stems.append(stem if stem not in stems else f"{stem}-{len(stems) + 1}")
    return stems


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
