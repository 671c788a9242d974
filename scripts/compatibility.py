"""Write the matrices of docs/guide/compatibility.md from the rules themselves.

.venv/bin/python -m scripts.compatibility
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from baselines.api import Slot, UpdatePoint
from baselines.catalogue import plugin, plugins
from baselines.strategy import RULES, Strategy, parse_strategy
from baselines.text import TextError, build, read_call, split_parts
from scripts.marked_block import replace_block

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guide" / "compatibility.md"
LEGAL = "✓"
UPDATE_POINT = "update point"
Choices = Mapping[str, Sequence[str]]


def main() -> int:
    """Rewrite the page."""
    replace_block(PAGE, "matrix", matrices())
    return 0


def matrices() -> str:
    """The rules, a table for every two decisions that can clash, and what never clashes."""
    choices, refused = decisions()
    numbers = {reason: index for index, (_, reason) in enumerate(RULES, start=1)}
    tables, free = [], []
    for pair_of_slots in itertools.combinations(choices, 2):
        one, other = sorted(pair_of_slots, key=lambda slot: -len(choices[slot]))  # the longer one down the page
        reasons = {
            pair: reason
            for pair in itertools.product(choices[one], choices[other])
            if (reason := why_never(choices, {one: pair[0], other: pair[1]}))
        }
        if reasons:
            marks = {pair: f"✗ ({numbers.setdefault(reason, len(numbers) + 1)})" for pair, reason in reasons.items()}
            tables.append("\n".join(_table(one, other, choices, marks)))
        else:
            free.append(f"{one} × {other}")
    rules = "\n".join(f"{index}. {reason}" for reason, index in numbers.items())
    refusals = "\n".join(f"- `{text}`: {reason}" for text, reason in refused.items())
    parts = (
        "The rules:",
        rules,
        *tables,
        f"Every pair is legal in: {', '.join(free)}.",
        "Refused on their own:",
        refusals,
    )
    return "\n\n".join(parts)


def decisions() -> tuple[dict[str, list[str]], dict[str, str]]:
    """What can be written for each slot and for the update point, and the wrappings that are refused, with reasons.

    Wrappers go once around everything that stands alone.
    """
    found: dict[str, list[str]] = {}
    refused: dict[str, str] = {}
    for slot in Slot:
        kinds = [kind for kind in plugins().values() if kind.card.slot is slot]
        found[slot.value] = [kind.card.name for kind in kinds if not kind.card.wraps]
        wrappers = [kind.card.name for kind in kinds if kind.card.wraps]
        for inner, wrapper in itertools.product(tuple(found[slot.value]), wrappers):
            text = f"{inner}+{wrapper}"
            reason = why_not(text)
            if reason is None or reason in _reasons():
                found[slot.value].append(text)
            else:
                refused[text] = reason.removeprefix(f"{wrapper}: ")
    found[UPDATE_POINT] = [point.value for point in UpdatePoint]
    return found, refused


def why_never(choices: Choices, fixed: Mapping[str, str]) -> str | None:
    """Why no choice of the other decisions makes `fixed` legal; None if one does.

    Decisions are made one by one, and a rule is asked as soon as all that it looks at is decided: of all combinations,
    minutes of work, a few hundred are left.
    """
    if reason := _why_broken(fixed):
        return reason
    undecided = next((decision for decision in choices if decision not in fixed), None)
    if undecided is None:
        return None
    for text in choices[undecided]:
        if (reason := why_never(choices, {**fixed, undecided: text})) is None:
            return None
    return reason


def _why_broken(decided: Mapping[str, str]) -> str | None:
    """The reason of the first rule that is broken whatever the decisions are that `decided` lacks."""
    strategy = object.__new__(Strategy)  # incomplete, which reading and `Strategy` itself refuse
    object.__setattr__(strategy, "local_steps", 1)
    for decision, text in decided.items():
        own = UpdatePoint(text) if decision == UPDATE_POINT else _made(text)
        object.__setattr__(strategy, decision.replace(" ", "_"), own)
    return next((reason for breaks, reason in RULES if _breaks(breaks, strategy)), None)


def _breaks(breaks: Callable[[Strategy], bool], strategy: Strategy) -> bool:
    """Whether a rule is broken for sure; False also where it looks at a decision that is not made yet."""
    try:
        return breaks(strategy)
    except AttributeError as error:
        if error.obj is not strategy:
            raise
        return False


def why_not(text: str) -> str | None:
    """Why a strategy text is illegal, without the text itself; None if it is legal."""
    try:
        parse_strategy(text)
    except TextError as error:
        return str(error).removeprefix(f"{text}: ")
    return None


@cache
def _made(text: str) -> Any:
    """The plug-in of one slot, with what goes around it."""
    made: dict[str, Any] = {}
    for name, arguments in map(read_call, split_parts(text)):
        made = {"inner": build(plugin(name), {**made, **arguments})}
    return made["inner"]


def _reasons() -> set[str]:
    return {reason for _, reason in RULES}


def _table(one: str, other: str, choices: Choices, marks: Mapping[tuple[str, str], str]) -> Iterator[str]:
    columns = choices[other]
    yield f"| {one} ╲ {other} | {' | '.join(f'`{name}`' for name in columns)} |"
    yield f"|---|{':---:|' * len(columns)}"
    for row in choices[one]:
        yield f"| `{row}` | {' | '.join(marks.get((row, column), LEGAL) for column in columns)} |"


if __name__ == "__main__":
    sys.exit(main())
