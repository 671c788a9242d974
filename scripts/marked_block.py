"""Replaces the text between `<!-- NAME:begin -->` and `<!-- NAME:end -->` in a Markdown page."""

from __future__ import annotations

from pathlib import Path


class PageError(ValueError):
    """A page without the marks of a block; the message says which to add."""


def with_block(page: str, name: str, block: str) -> str:
    """`page` with `block` between the marks of `name`. Raises: PageError if they are not there once, in order."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end or begin in after:
        raise PageError(f"the page needs one {begin} and, after it, one {end}")
    return f"{before}{begin}\n{block.strip()}\n{end}{after}"


def replace_block(path: Path, name: str, block: str) -> None:
    """Rewrite the block `name` of the page at `path`. Raises: PageError, OSError."""
    path.write_text(with_block(path.read_text(encoding="utf-8"), name, block), encoding="utf-8")
