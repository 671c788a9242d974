"""The project's Markdown pages and what stands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "suites/*/README.md", "crossover/README.md")
    for path in ROOT.glob(pattern)
)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of one language."""
    return [body for found, body in _BLOCK.findall(text) if found == language]


def block_after(text: str, mark: str) -> str:
    """The code block after a mark in a comment."""
    return next(body for _, body in _BLOCK.findall(text[text.index(mark) :]))


def prose(text: str) -> str:
    """A page without its code blocks."""
    return _BLOCK.sub("", text)


def bench_commands(text: str) -> Iterator[list[str]]:
    """The arguments of every `crossover-bench …` or `… -m suites …` line in the shell blocks of a page."""
    for block in blocks(text, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["crossover-bench"]:
                yield words[1:]
            elif "-m" in words and words[words.index("-m") + 1] == "suites":
                yield words[words.index("-m") + 2 :]
