"""Tables readable at any width: labels never vanish, numbers are never cut, the least important columns go first."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from analysis.naming import wrap
from analysis.wording import NOT_KNOWN

Row = TypeVar("Row")
PIPED_WIDTH = 120
FEWEST_LABEL = 22
GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column beside the labels; `rank` 0 is dropped last. Headings may have several lines."""

    heading: str
    cells: tuple[str, ...]
    rank: int = 0
    justify: Literal["left", "right"] = "right"

    @property
    def width(self) -> int:
        """Columns of the terminal that the longest line takes."""
        return max(_width(text) for text in (self.heading, *self.cells))


@dataclass(frozen=True, slots=True)
class ColumnOf(Generic[Row]):
    """What a column says of each row. Terminal and CSV are made of the same."""

    heading: str
    rank: int
    text: Callable[[Row], str]
    justify: Literal["left", "right"] = "right"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A table as values. `heading` is that of the labels; `styles` are of rows, for the terminal alone, and `ran` for
    CSV alone: what each row ran to the letter, where labels round sizes."""

    title: str
    heading: str
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()
    styles: tuple[str, ...] = ()
    ran: tuple[str, ...] = ()

    def shown(self, width: int) -> Group:
        """The title, as many columns as fit, the notes."""
        body = table(self.heading, self.labels, self.columns, width, styles=self.styles)
        return titled(self.title, body, width, self.notes)

    def csv_rows(self) -> Iterator[list[str]]:
        """Headings on one line and every column; empty where nothing is known."""
        ran = ("as run",) if self.ran else ()
        yield [self.heading, *ran, *(column.heading.replace("\n", " ") for column in self.columns)]
        for place, label in enumerate(self.labels):
            texts = (column.cells[place].replace("\n", "; ") for column in self.columns)
            yield [label, *self.ran[place : place + 1], *("" if text == NOT_KNOWN else text for text in texts)]


def columns_of(specs: Sequence[ColumnOf[Row]], rows: Sequence[Row]) -> tuple[Column, ...]:
    """The columns that some row fills."""
    made = (Column(spec.heading, tuple(map(spec.text, rows)), spec.rank, spec.justify) for spec in specs)
    return tuple(column for column in made if set(column.cells) != {NOT_KNOWN})


class _OutputConsole(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the command line ends as documented; rich would end with 1, a regression in `compare`


def output_console() -> Console:
    """Standard output as wide as its terminal; 120 columns where it is piped, unless COLUMNS says otherwise."""
    return _OutputConsole(width=shutil.get_terminal_size((PIPED_WIDTH, 24)).columns, highlight=False)


def fit(labels: Sequence[str], columns: Sequence[Column], width: int) -> tuple[tuple[Column, ...], int]:
    """The most important columns that leave the labels room, in their own order, and that room."""
    natural = max(map(_width, labels), default=0)
    by_worth = sorted(columns, key=lambda column: column.rank)
    for count in range(len(columns), -1, -1):
        kept = by_worth[:count]
        room = width - sum(GAP + column.width for column in kept)
        if room >= min(natural, FEWEST_LABEL) or not kept:
            break
    return tuple(column for column in columns if column in kept), max(1, min(natural, room))


def table(
    heading: str, labels: Sequence[str], columns: Sequence[Column], width: int, *, styles: Sequence[str] = ()
) -> Table:
    """A table no wider than `width` of as many columns as fit beside the labels, which wrap where names may break."""
    kept, room = fit([heading, *labels], columns, width)
    made = Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    heading = wrap(heading, room)
    height = max(text.count("\n") for text in (heading, *(column.heading for column in kept)))
    made.add_column(_heading(heading, height), no_wrap=True)
    for column in kept:
        made.add_column(_heading(column.heading, height), justify=column.justify, no_wrap=True)
    for place, label in enumerate(labels):
        cells = [Text(column.cells[place]) for column in kept]
        made.add_row(Text(wrap(label, room)), *cells, style=styles[place] if styles else "")
    return made


def _heading(text: str, height: int) -> Text:
    """Headings stand on the rule under them, whatever their number of lines."""
    return Text("\n" * (height - text.count("\n")) + text)


def titled(title: str, body: RenderableType, width: int, notes: Sequence[str] = ()) -> Group:
    """A bold title, the body, and dim notes under it, with an empty line after."""
    dim = (paragraph(note, width, style="dim") for note in notes)
    return Group(paragraph(title, width, style="bold"), body, *dim, Text())


def paragraph(text: str, width: int, *, style: str = "", indent: int = 0) -> Text:
    """Lines of at most `width` columns, `indent` of them empty; a no-break space never ends a line."""
    margin = " " * indent
    lines = textwrap.fill(text, width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)
    return Text(lines, style=style)


def _width(text: str) -> int:
    return max(map(cell_len, text.split("\n")))
