"""Bad input, 20,000 of each kind: any traceback, and anything that takes more than 10 s, is a failure.

Seconds are those of the processor, so that a busy machine fails nothing; what waits without computing has 120 s.

    python -m scripts.fuzz [--count 20000] [--seed 1] [texts options profiles settings rosters records images]

Every input comes from (seed, kind, number) alone, so a failure is played again with `--only NUMBER`. An input may be
accepted, or refused by an error that is meant for users; nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import random
import signal
import string
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from analysis.compare import compare
from baselines.catalogue import plugins
from baselines.kernels import warm_up
from baselines.strategy import parse_strategy
from crossover.arbiter.roster import Roster
from crossover.errors import CrossoverError
from crossover.settings import Settings
from fabric.rates import parse_rate
from harness.systems import system_of, systems
from models.data.imagefolder import Unreadable, read_image
from models.layer_profile import FOLDER, load_profile
from results.record import read_records
from suites.cli import command_parser
from suites.cli import main as command_line
from suites.errors import is_about_the_request

LIMIT_S, WAITING_LIMIT_S = 10.0, 120.0
DEEP = ("[" * 100_000, '{"a":' * 100_000, "9" * 6_000)
NAUGHTY = (
    None, True, 0, -1, 1e308, -1e308, 5e-324, 10**400, "", "\0", "²", "NaN", "x" * 5_000, [], {}, [[]], {"": {}},
    float("inf"), float("nan"), "../../etc/passwd", "\ud800", 2**63, -(2**63), [None] * 50,
)  # fmt: skip
WORDS = (
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-1",
    "0",
    "²",
    "٣",
    "1_0",
    "0x10",
    "9" * 5_000,
    "-" * 5_000 + "1",
    "",
    " ",
    "None",
)
SUITES = ("quick", "parity", "fusion", "ordering", "compression", "convergence", "crossover", "gpu", "absent", "", "²")


class TooLongError(Exception):
    """An input took more than `LIMIT_S`."""


@dataclass(frozen=True, slots=True)
class InputKind:
    """One kind of input: how one is made, and what is done with it."""

    make: Callable[[random.Random], Any]
    feed: Callable[[Any], None]


# ---- texts


def make_text(rng: random.Random) -> str:
    """A strategy or system text, mostly made of real names."""
    parts = [_call(rng) for _ in range(rng.choice((1, 1, 2, 2, 3, 6)))]
    return _bent(rng, "+".join(parts))


def _call(rng: random.Random) -> str:
    name = rng.choice([*plugins(), *systems(), "", "topp", "²"])
    kind = plugins().get(name) or systems().get(name)
    fields = [*getattr(kind, "__dataclass_fields__", {}), "inner", "x", "__class__"]
    chosen = rng.sample(fields, min(len(fields), rng.choice((0, 0, 1, 1, 2))))
    return f"{name}({', '.join(f'{field}={_literal(rng)}' for field in chosen)})" if chosen else name


def _literal(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return str(
            rng.choice((rng.randint(-3, 10**6), rng.uniform(-2, 2), 10.0 ** rng.uniform(-300, 300), "'x'", True))
        )
    return rng.choice((*WORDS, "[" * rng.choice((1, 90, 5_000)), "()", "{}", "__import__('os')", "'" + "\\x" * 9))


def _bent(rng: random.Random, text: str) -> str:
    """`text` with a few characters changed, one time in three."""
    letters = list(text)
    for _ in range(rng.choice((0, 0, 1, 3))):
        at = rng.randrange(len(letters) + 1)
        letters[at : at + rng.randrange(2)] = rng.choice([*string.printable, "α", "\0", "\u202e"])
    return "".join(letters)


def feed_text(text: str) -> None:
    """A text as strategy, system and rate; NUL bytes may raise any ValueError."""
    with contextlib.suppress(ValueError) if "\0" in text else contextlib.nullcontext():
        with _refusals():
            parse_strategy(text)
        with _refusals():
            system_of(text)
        with _refusals():
            parse_rate(text)


# ---- options

NEVER = ("--calibrate", "--refit")  # the one measures, and both write the calibration


@cache
def _parser() -> argparse.ArgumentParser:
    """One for all command lines: to build it takes longer than to read most of them."""
    return command_parser()


@cache
def options_of_commands() -> dict[str, tuple[str, ...]]:
    """The options of every command, `all` of any."""
    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    own = {
        name: tuple(text for text in parser._option_string_actions if text.startswith("--") and text not in NEVER)
        for name, parser in commands.choices.items()
    }
    return own | {"all": tuple(sorted({text for texts in own.values() for text in texts}))}


def make_options(rng: random.Random) -> list[str]:
    """A command line that runs no step: `run --dry-run`, `list`, `report`, `compare`, `predict`."""
    command = rng.choice(("run", "run", "list", "report", "compare", "predict", "predict", "rum"))
    words = [command]
    if command == "run":
        words += [rng.choice(SUITES), "--dry-run", "--smoke"]
    if command == "predict":
        words += rng.choice(
            (["--workload", "resnet20", "--hosts", "2", "--rates", "1gbit"], [rng.choice(SUITES), "--only", "x"])
        )
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        # mostly the command's own, since argparse alone sees the others
        words.append(
            rng.choice(
                options_of_commands().get(command if rng.random() < 0.8 else "all", options_of_commands()["all"])
            )
        )
        if rng.random() < 0.9:
            words.append(_value(rng))
    return words


def _value(rng: random.Random) -> str:
    return rng.choice(
        (*WORDS, "2", "200mbit", "emulated", "paced", "lockstep", "native", "unfused", "resnet50", "cuda",
         make_text(rng), "/dev/null", "/dev/zero", "/proc/self/mem", ".", "absent/x", "a" * 300,
         str(rng.randint(-9, 10**12)))
    )  # fmt: skip


def feed_options(words: list[str]) -> None:
    """The command ends with a code that it documents, and prints no traceback."""
    words = [word.replace("\0", "?") for word in words]  # a kernel passes no zero byte
    errors, output = io.StringIO(), io.StringIO()
    streams = contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), streams[0], streams[1]:
        try:
            code = command_line(words, parser=_parser())
        except SystemExit as end:
            code = end.code  # type: ignore[assignment]
    assert code in (0, 1, 2, None), f"exit code {code!r}"
    assert "Traceback" not in errors.getvalue(), errors.getvalue()


# ---- JSON files


@cache
def _profile() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(min(FOLDER.glob("*.json"), key=lambda path: path.stat().st_size).read_text())
    return found


@cache
def _record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(Path("results/reference/quick").glob("*.json")).read_text())
    return found


SETTINGS: dict[str, Any] = {
    "jobs": ["a", "b"], "sharing": "weighted", "lead_rounds": 0, "shares": [1, 2], "groups": [], "beats": [],
    "gather_limit_s": 300.0, "lease_limit_s": None, "idle_limit_s": 10.0,
}  # fmt: skip
PLACE = {"resource": "device", "device": "0", "job": "a", "stint": 1, "is_here": True, "pid": 1, "birth_ticks": 5}
ROSTER: dict[str, Any] = {"settings": SETTINGS, "generation": 3, "places": [PLACE, PLACE | {"job": "b"}]}


def mutated(original: Callable[[], Any]) -> Callable[[random.Random], bytes]:
    """Makes the JSON of `original()` with some values replaced, or its text bent."""

    def make(rng: random.Random) -> bytes:
        value = copy.deepcopy(original())
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            value = _replaced(rng, value)
        text = json.dumps(value)
        if rng.random() < 0.2:
            text = rng.choice((_bent(rng, text), text[: rng.randrange(len(text) + 1)], *DEEP))
        return text.encode("utf-8", "surrogatepass")

    return make


def _replaced(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            del value[key]
        elif rng.random() < 0.1:
            value[rng.choice(("x", "", "²"))] = copy.deepcopy(rng.choice(NAUGHTY))
        else:
            value[key] = _replaced(rng, value[key])
        return value
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        value[at] = _replaced(rng, value[at])
        return value
    return copy.deepcopy(rng.choice(NAUGHTY))


def _from_file(read: Callable[[Path], Any]) -> Callable[[bytes], None]:
    def feed(content: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file.json"
            path.write_bytes(content)
            with _refusals():
                read(path)

    return feed


def _compare(path: Path) -> None:
    records = list(read_records([path]))
    compare(records, records)


def _from_text(read: Callable[[str], Any]) -> Callable[[bytes], None]:
    def feed(content: bytes) -> None:
        with _refusals():
            read(content.decode("utf-8", "replace"))

    return feed


# ---- images


def make_image(rng: random.Random) -> bytes:
    """A small picture in one of three formats, bent; or one that claims to be huge."""
    from PIL import Image

    held = io.BytesIO()
    size = (rng.choice((1, 7, 64)), rng.choice((1, 7, 64)))
    mode, written_as = rng.choice((("RGB", "JPEG"), ("L", "JPEG"), ("CMYK", "TIFF"), ("P", "GIF"), ("RGB", "PNG")))
    Image.new(mode, size).save(held, written_as)
    content = bytearray(held.getvalue())
    if rng.random() < 0.2:  # a PNG whose header says 60,000 × 60,000
        return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (60_000).to_bytes(4) * 2 + b"\x08\x02\0\0\0" + rng.randbytes(40)
    for _ in range(rng.choice((0, 1, 4, 30))):
        content[rng.randrange(len(content))] = rng.randrange(256)
    return bytes(content[: rng.choice((len(content), rng.randrange(len(content) + 1)))])


def feed_image(content: bytes) -> None:
    """Bytes as an image file: an RGB picture, or a reason why it cannot be read."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Pillow's, about bent headers
        path = Path(folder) / "picture.jpeg"
        path.write_bytes(content)
        found = read_image(path)
        assert isinstance(found, Unreadable) or found.mode == "RGB"


KINDS: dict[str, InputKind] = {
    "texts": InputKind(make_text, feed_text),
    "options": InputKind(make_options, feed_options),
    "profiles": InputKind(mutated(_profile), _from_file(lambda path: load_profile(str(path)))),
    "settings": InputKind(mutated(lambda: SETTINGS), _from_text(Settings.from_json)),
    "rosters": InputKind(mutated(lambda: ROSTER), _from_text(Roster.from_json)),
    "records": InputKind(mutated(_record), _from_file(_compare)),
    "images": InputKind(make_image, feed_image),
}


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Errors meant for users are an answer; everything else goes on."""
    try:
        yield
    except CrossoverError:
        return
    except ValueError as error:
        if not is_about_the_request(error):
            raise


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raises `TooLongError` after `LIMIT_S` of this process's processor time, or `WAITING_LIMIT_S` by the clock."""

    def ring(signal_number: int, frame: FrameType | None) -> None:
        raise TooLongError(f"more than {LIMIT_S:.0f} s of processor time, or {WAITING_LIMIT_S:.0f} s of waiting")

    alarms = {signal.SIGPROF: signal.ITIMER_PROF, signal.SIGALRM: signal.ITIMER_REAL}
    before = {number: signal.signal(number, ring) for number in alarms}
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    signal.setitimer(signal.ITIMER_REAL, WAITING_LIMIT_S)
    try:
        yield
    finally:
        for number, timer in alarms.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def play(kind: str, number: int, seed: int) -> str | None:
    """Feed one input; what went wrong, if anything."""
    made = KINDS[kind].make(random.Random(f"{seed}/{kind}/{number}"))

    with _limited():
        try:
            KINDS[kind].feed(made)
        except Exception:  # noqa: BLE001  this is what is looked for
            return f"{kind} {number}: {made!r:.300}\n{traceback.format_exc(limit=-4)}"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if an input failed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz", description="Feed bad input of every kind.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {' '.join(KINDS)} (default: all)")
    parser.add_argument("--count", type=int, default=20_000, metavar="N", help="inputs per kind (default 20,000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="another seed gives other inputs")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="play this input again")
    given = parser.parse_args(argv)
    if unknown := set(given.kinds) - set(KINDS):
        parser.error(f"no kind {sorted(unknown)[0]!r}; use some of {' '.join(KINDS)}")
    warm_up()  # a kernel that is compiled the first time must not count as the input that asked for it
    num_failed = 0
    for kind in given.kinds or KINDS:
        numbers = range(given.count) if given.only is None else [given.only]
        failures = [failure for number in numbers if (failure := play(kind, number, given.seed))]
        num_failed += len(failures)
        print(f"{kind}: {len(numbers):,} inputs, {len(failures)} failures", flush=True)
        for failure in failures[:10]:
            print(failure, file=sys.stderr)
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
