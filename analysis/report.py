"""One self-contained HTML page: figures are inline SVG in the text's colour, nothing is fetched, no script runs."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import wording
from analysis.claims import judged_here, left_out, text_of
from analysis.codes.tables import bits, sooner_text
from analysis.collectives.tables import bandwidth
from analysis.figures import drawings, save_all
from analysis.rows import Drawing, PairRow, Summary
from analysis.sharing.axes import axis_of
from analysis.stats import FEWEST_FOR_LEVEL
from analysis.targets.convergence import WINDOW
from analysis.targets.reached import judged
from analysis.targets.tables import price, spread
from results.files import replacing

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

TEMPLATE = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inline:
    """A drawing as markup that may stand in the page."""

    name: str
    topic: str
    caption: str
    svg: Markup
    record_ids: tuple[str, ...]


def write_all(summary: Summary, folder: Path, *, pdf: bool = False) -> tuple[list[Path], Path]:
    """Draw every figure once, write it to `folder/figures` as PNG, with `pdf` as PDF too, and into `report.html`.

    Figures that an earlier report left in `folder/figures` go. Returns the paths of figures and page. Raises: OSError.
    """
    drawn = list(drawings(summary))
    page = _write_page(render_page(summary, drawn), folder)
    return save_all(drawn, folder / "figures", pdf=pdf), page


def _write_page(page: str, folder: Path) -> Path:
    path = folder / "report.html"
    with replacing(path) as file:
        file.write(page.encode())
        os.fchmod(file.fileno(), 0o644)
    return path


def render_page(summary: Summary, drawn: Sequence[Drawing]) -> str:
    """The page as text, with these figures of the summary."""
    figures = [_inline(drawing) for drawing in drawn]
    template = _environment().get_template(TEMPLATE)
    has_other = bool(summary.pairs or summary.targets or summary.collectives or summary.flows or summary.problems)
    return template.render(
        summary=summary,
        figures=figures,
        every_pair=every_pair(summary),
        alone=bool(summary.settings) or not has_other,
        thin=_thin_counts(summary),
        fewest=FEWEST_FOR_LEVEL,
        window=WINDOW,
        tags=sorted({tag for setting in summary.settings for row in setting.cells for tag in row.wire_bytes}),
    )


def _environment() -> Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("analysis"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "number": wording.number,
        "percent": wording.percent,
        "interval": wording.interval,
        "factor": wording.factor,
        "size": wording.size,
        "duration": wording.duration,
        "rate": wording.rate,
        "spread": spread,
        "price": price,
    }
    environment.globals |= {"plural": wording.plural, "axis_of": axis_of, "judged": judged, "value_text": text_of}
    environment.globals |= {"number": wording.number, "size": wording.size, "duration": wording.duration}
    environment.globals |= {"judged_here": judged_here, "left_out": left_out}
    environment.globals |= {"bandwidth": bandwidth, "sent_bits": bits, "sooner_text": sooner_text}
    return environment


def _thin_counts(summary: Summary) -> Sequence[int]:
    """The numbers of repeats that are too few for a 95 % interval, in order."""
    counts = {row.num_repeats for setting in summary.settings for row in setting.cells}
    counts |= {row.num_repeats for pair in every_pair(summary) for row in pair.rows}
    return sorted(count for count in counts if count < FEWEST_FOR_LEVEL)


def every_pair(summary: Summary) -> tuple[PairRow, ...]:
    """All sets of sharing jobs, those of sweeps too, each once."""
    swept = [pair for sweep in summary.sweeps for pair in sweep.pairs]
    return (*summary.pairs, *(pair for place, pair in enumerate(swept) if pair.axis and pair not in swept[:place]))


def _inline(drawing: Drawing) -> Inline:
    from markupsafe import Markup

    return Inline(
        name=drawing.name,
        topic=drawing.topic,
        caption=drawing.caption,
        svg=Markup(inline_svg(drawing)),  # our own drawing; matplotlib escapes the text in it
        record_ids=drawing.record_ids,
    )


def inline_svg(drawing: Drawing) -> str:
    """The figure as an `<svg>` element: ink in `currentColor`, ids unique to it, named for screen readers."""
    from analysis import theme

    buffer = io.StringIO()
    with theme.style():
        drawing.figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    svg = text[text.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace(theme.INK, "currentColor")
    svg = re.sub(r'\bid="', f'id="{drawing.name}-', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{drawing.name}-", svg)
    svg = re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", svg, count=2)
    return svg.replace("<svg", f'<svg role="img" aria-labelledby="caption-{drawing.name}"', 1)
