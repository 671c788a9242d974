"""README.md's results from reference records, so that no number there is typed by hand.

    .venv/bin/python -m scripts.readme_table                      # print those of results/reference/quick
    .venv/bin/python -m scripts.readme_table RECORDS --figure throughput-resnet20-digits
    .venv/bin/python -m scripts.readme_table --write              # into README.md

With `--write` it copies one figure to docs/images/quick.png and writes the block `quick` of README.md: the figure, one
table with the throughput of every system over the baseline in every setting, one sentence for each pair of jobs,
provenance.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis.claims import Outcome, side
from analysis.figures import drawings, save
from analysis.rows import CellRow, Drawing, PairRow, SettingRow, SharingRow, Summary
from analysis.stats import FEWEST_FOR_LEVEL
from analysis.tables import repeats_text
from analysis.wording import NOT_KNOWN, factor, number, percent, plural
from results.record import read_records
from scripts.marked_block import replace_block
from suites.reports import summary_of

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "results" / "reference" / "quick"
IMAGE = Path("docs", "images", "quick.png")
FIGURE = "sharing-gain-1"
IDEAL = "*no communication*"


class FigureError(ValueError):
    """A figure that the records do not fill; the message lists those they do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 2, with the remedy, if the records or the figure are not there."""
    parser = argparse.ArgumentParser(description="fill README.md's results from records")
    parser.add_argument("records", nargs="?", type=Path, default=RECORDS, help="folder of records")
    parser.add_argument("--figure", default=FIGURE, help=f"name of the figure (default {FIGURE})")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout that is written to")
    parser.add_argument("--write", action="store_true", help="write README.md and the image (default: print the block)")
    chosen = parser.parse_args(argv)
    try:
        summary = summary_of(read_records([chosen.records]))
        if chosen.write:
            fill(chosen.root, summary, chosen.figure)
        else:
            print(block(summary, pick(summary, chosen.figure)))
    except ValueError as error:
        print(f"readme_table: {error}", file=sys.stderr)
        return 2
    return 0


def fill(root: Path, summary: Summary, figure: str) -> None:
    """Write image and block into the checkout at `root`. Raises: FigureError, PageError, OSError."""
    drawing = pick(summary, figure)
    copy_image(drawing, root / IMAGE)
    replace_block(root / "README.md", "quick", block(summary, drawing))


def pick(summary: Summary, name: str) -> Drawing:
    """The drawing called `name`."""
    others = []
    for drawing in drawings(summary):
        if drawing.name == name:
            return drawing
        others.append(drawing.name)
    raise FigureError(f"these records fill no figure {name!r}; they fill: {', '.join(others)}")


def copy_image(drawing: Drawing, path: Path) -> None:
    """Write the PNG alone; papers take their PDF from `make figures`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (png,) = save(drawing, path.parent, pdf=False)
    png.replace(path)


def block(summary: Summary, drawing: Drawing) -> str:
    """The Markdown: figure, table, sentences on sharing, provenance."""
    caption = drawing.caption.replace("*", r"\*")
    parts = [f"![{caption.partition('. ')[0]}]({IMAGE.as_posix()})", caption]
    if summary.settings:
        parts += ["\n".join(table(summary.settings)), table_note(summary.settings)]
    parts += ["\n".join(f"- {sharing_line(pair)}" for pair in summary.pairs), provenance_line(summary)]
    return "\n\n".join(filter(None, parts))


def table(settings: Sequence[SettingRow]) -> Iterator[str]:
    """Systems down, settings across; the line without communication last."""
    yield f"| system | {' | '.join(heading(setting) for setting in settings)} |"
    yield f"|---|{'---:|' * len(settings)}"
    for name in names(settings):
        yield f"| `{name}` | {' | '.join(_cell(setting, name) for setting in settings)} |"
    if any(setting.ideal for setting in settings):
        yield f"| {IDEAL} | {' | '.join(_throughput_of(setting.ideal) for setting in settings)} |"


def names(settings: Sequence[SettingRow]) -> list[str]:
    """What was compared, each once, with sizes as what they stand for."""
    return list(dict.fromkeys(row.name for setting in settings for row in setting.competitors))


def heading(setting: SettingRow) -> str:
    """Workload, network and what kind of number stands below."""
    return f"{setting.key.workload}<br>{setting.key.fabric.describe()}<br>*{setting.evidence}*"


def _cell(setting: SettingRow, name: str) -> str:
    row = next((row for row in setting.competitors if row.name == name), None)
    if row is not None and row.is_baseline:
        return f"1 ({number(row.samples_per_s.median)} samples/s)"
    text = _throughput_of(row)
    return f"**{text}**" if row is not None and row.speedup and side(row.speedup, low=1.0) is Outcome.MET else text


def _throughput_of(row: CellRow | None) -> str:
    return NOT_KNOWN if row is None else factor(row.speedup)


def table_note(settings: Sequence[SettingRow]) -> str:
    """What the numbers are, over how many repeats, and what the names leave out."""
    baselines = sorted({setting.baseline_name for setting in settings if setting.baseline})
    cells = [row for setting in settings for row in setting.cells]
    counts = sorted({row.speedup.n if row.speedup else row.num_repeats for row in cells})
    repeats = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    thin = f" Below {FEWEST_FOR_LEVEL} repeats (… to …) is their range, which decides nothing."
    common = ", ".join(dict.fromkeys(setting.left_out for setting in settings if setting.left_out))
    return (
        f"Throughput over {', '.join(baselines)}: median of paired repeats [95 % interval], "
        f"n = {repeats}; **bold**: the interval lies above 1. "
        "Compression changes the training: read its speed beside loss and time to target in the report."
        f"{thin if counts[0] < FEWEST_FOR_LEVEL else ''}{f' Throughout: {common}.' if common else ''}"
    )


def sharing_line(pair: PairRow) -> str:
    """Aggregate throughput of every sharing of a pair, beside its bound, from the costs of its own repeats."""
    gains = [f"{row.label} {factor(row.throughput)}{_of_bound(row)}" for row in pair.rows if not row.is_reference]
    counts = sorted({row.throughput.n for row in pair.rows if row.throughput and not row.is_reference}) or [0]
    where = f"{pair.title} (*{pair.evidence}*, {repeats_text(counts)})"
    return f"{where}, over running one job after the other: {', '.join(gains)}."


def _of_bound(row: SharingRow) -> str:
    if row.bound is None or row.bound_share is None:
        return ""
    return f" ({percent(row.bound_share.median)} of the {number(row.bound.median)}× that T* predicts)"


def provenance_line(summary: Summary) -> str:
    """Where the numbers come from."""
    places = [
        f"{plural(row.num_records, 'record')} at commit `{row.environment.commit[:12] or 'not recorded'}`"
        f"{' with uncommitted changes' if row.environment.dirty else ''} on {row.environment.machine or 'a machine'}, "
        f"{plural(row.environment.num_cores, 'core')}"
        for row in summary.provenance
    ]
    failed = f" {plural(len(summary.outcomes), 'outcome')} skipped or failed." if summary.outcomes else ""
    return f"From {'; '.join(places)}; suite {', '.join(summary.suites)}.{failed}"


if __name__ == "__main__":
    sys.exit(main())
