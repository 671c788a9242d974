"""Reads records of schema 1: fills in as values what they have as texts (strategies) and prose (charges).

The only place that takes such texts apart. What it knows of plug-ins is what they were when those records were written;
nothing is to be added for a new one, whose records are of schema 2.

Codes are counted as analysis did then: values and norms in float32, a set of k of n positions at its entropy H(k/n),
SBC's at its Golomb code; where rows or shapes matter (1-bit's means, PowerSGD) only what does not depend on them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

VERSION = 1
CHARGE_NOTE = "compression in replay"
FLOAT_BITS = 32.0
SLOTS: Mapping[str, str] = {
    **dict.fromkeys(
        ("unfused", "fixed-buckets", "single-bucket", "slices", "tensor-fusion", "mg-wfbp", "optimal-merge"), "packing"
    ),
    **dict.fromkeys(("fifo", "p3", "tictac", "bytescheduler"), "ordering"),
    **dict.fromkeys(("all-reduce", "ring", "all-gather", "tree", "hierarchical", "parameter-server"), "exchange"),
    **dict.fromkeys(("at-pre-hook", "after-all"), "update"),
    **dict.fromkeys(("bayesian", "untuned"), "tuning"),
}
UNITS = {"bytes": "bytes", "elements": "elements", "mb": "MB"}  # by the end of a parameter's name
GATHERED = frozenset({"topk", "aji-heafield", "dgc", "sbc", "qsgd"})  # every rank got every other rank's code
SYSTEMS_OF_ITS_OWN = frozenset({"torch-ddp", "horovod"})
RIVALS = frozenset({"fp16", "bf16", "fp16, one message", "bf16, one message"})  # as the suite compression called them
DENSE = frozenset({"dense", "dense, one message"})
DEFAULT_EXCHANGE = "all-reduce"
LABEL = 2  # a cell is group/workloads/label
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
_CHARGE = re.compile(
    r"charged: (?P<method>.*) takes (?P<ns>\S+) ns an element among (?P<ranks>\d+) ranks \((?P<device>.*)\)"
)
Settings = Mapping[str, str]


def upgraded(data: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a record of schema 1 as that of schema 2."""
    parts = str(data.get("cell", "")).split("/")
    label = parts[LABEL] if len(parts) > LABEL else ""
    jobs = [{**job, **facts_of(job, label)} for job in data.get("jobs", ())]
    return {**data, "trial": _trial(data.get("trial", {})), "jobs": jobs, "schema": 2}


def _trial(trial: Any) -> Any:
    """A trial of one job had `none` for its sharing policy, where schema 2 has null."""
    return {**trial, "sharing": None} if isinstance(trial, dict) and trial.get("sharing") == "none" else trial


def facts_of(job: Mapping[str, Any], label: str = "") -> dict[str, Any]:
    """What schema 2 says of a job beside what its record says already; `label` is what its suite called it."""
    system, text = job["system"], _without_precision(job.get("strategy", ""), job.get("precision", "float32"))
    plugins = [_plugin(part, system) for part in _split(text, "+")] if text else []
    if system == "ours" and "exchange" not in {own["slot"] for own in plugins}:
        plugins.append({"name": DEFAULT_EXCHANGE, "slot": "exchange", "parameters": [], "written": False})
    chosen = [one["values"] for one in job.get("adaptation", ()) if one["what"] == "chosen"]
    tuned: Mapping[str, float] = chosen[-1] if chosen else {}
    _add_knobs(plugins, tuned)
    names = {
        own["name"]: {p["name"]: str(p["given"]) for p in own["parameters"] if p["given"] is not None}
        for own in plugins
    }
    return {
        "plugins": plugins,
        "role": _role(system, label),
        "code": _code(names, job),
        "charge": _charge(job.get("notes", {}).get(CHARGE_NOTE, "")),
        "tuned": tuned,
    }


def _add_knobs(plugins: Sequence[dict[str, Any]], tuned: Mapping[str, float]) -> None:
    """Parameters that a tuner set and no text names, so that their units are known."""
    for knob, value in tuned.items():
        slot, _, name = knob.rpartition(".")
        for plugin in (own for own in plugins if own["slot"] == slot):
            if name not in {own["name"] for own in plugin["parameters"]}:
                unit = _parameter(name, f"{value:.10g}")["unit"]
                plugin["parameters"].append({"name": name, "value": value, "given": None, "unit": unit})


def _without_precision(text: str, precision: str) -> str:
    return text.removesuffix(f" in {precision}")


def _role(system: str, label: str) -> str:
    if system == "local":
        return "ideal"
    if system != "ours":
        return "method"
    return "dense" if label in DENSE else "rival" if label in RIVALS else "method"


def _plugin(text: str, system: str) -> dict[str, Any]:
    name, bracket, inner = text.partition("(")
    pairs = [pair.strip().partition("=") for pair in _split(inner.removesuffix(")"), ",")] if bracket else []
    slot = "system" if system != "ours" else SLOTS.get(name, "compression")
    return {"name": name, "slot": slot, "parameters": [_parameter(key, value) for key, _, value in pairs]}


def _parameter(name: str, text: str) -> dict[str, Any]:
    unit = "scale" if name == "size_scale" else UNITS.get(name.rpartition("_")[2]) if "_" in name else None
    return {"name": name, "value": _value(text), "given": text, "unit": unit if _NUMBER.fullmatch(text) else None}


def _value(text: str) -> bool | int | float | str:
    if text in ("True", "False"):
        return text == "True"
    if not _NUMBER.fullmatch(text):
        return text.strip("'\"")
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _split(text: str, mark: str) -> Iterator[str]:
    """Split at `mark` outside brackets and quotes."""
    depth, quote, start = 0, "", 0
    for place, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        elif sign == mark and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def _charge(note: str) -> dict[str, Any] | None:
    found = _CHARGE.fullmatch(note)
    if found:
        stages = [float(found["ns"]) * 1e-9]
        return {
            "method": found["method"],
            "stages_s": stages,
            "device": found["device"],
            "num_ranks": int(found["ranks"]),
        }
    return {"reason": note} if note else None


def _code(names: Mapping[str, Settings], job: Mapping[str, Any]) -> dict[str, Any]:
    own = [int(settings.get("warmup_steps", 0)) for settings in names.values()]
    warm_up = max((int(names.get("warm-up", {}).get("steps", 0)), *own))
    ramps = "dgc" in names
    bits = _bits(names)
    return {
        "bits_per_element": bits,
        "combine": _combine(names),
        "lossy": bits != FLOAT_BITS,
        "dense_steps": 0 if ramps else warm_up,
        "ramp_steps": warm_up if ramps else 0,
    }


def _combine(names: Mapping[str, Settings]) -> str | None:
    if names.keys() & SYSTEMS_OF_ITS_OWN:
        return None
    if "tree" in names:
        return "merge"
    gathered = names.keys() & GATHERED and "double-squeeze" not in names
    return "concat" if gathered or names.get("random-k", {}).get("shared") == "False" else "sum"


def _bits(names: Mapping[str, Settings]) -> float | None:
    known = [formula(names[name]) for name, formula in FORMULAS.items() if name in names]
    if known:
        return known[0]
    return None if names.keys() & {"powersgd", *SYSTEMS_OF_ITS_OWN} else FLOAT_BITS


def entropy(p: float) -> float:
    """Of one yes or no that is yes with probability `p`, in bits."""
    return 0.0 if p <= 0 or p >= 1 else -p * math.log2(p) - (1 - p) * math.log2(1 - p)


def _golomb_bits(p: float) -> float:
    golden = (1 + math.sqrt(5)) / 2
    b = 1 + math.floor(math.log2(math.log(golden - 1) / math.log(1 - p)))
    return float(b + 1 / (1 - (1 - p) ** (2**b)))


def _chosen(default: float) -> Callable[[Settings], float]:
    def bits(settings: Settings) -> float:
        density = float(settings.get("density", default))
        return density * FLOAT_BITS + entropy(density)

    return bits


def _sbc(settings: Settings) -> float:
    density = float(settings.get("density", 0.001))
    return density * _golomb_bits(density)


def _random(settings: Settings) -> float:
    density = float(settings.get("density", 0.01))
    return density * FLOAT_BITS + (entropy(density) if settings.get("shared") == "False" else 0.0)


def _qsgd(settings: Settings) -> float:
    return float(settings.get("bits", 4)) + FLOAT_BITS / float(settings.get("bucket", 512))


FORMULAS: Mapping[str, Callable[[Settings], float]] = {
    "half": lambda _: 16.0,
    "topk": _chosen(0.01),
    "gtopk": _chosen(0.01),
    "aji-heafield": _chosen(0.01),
    "dgc": _chosen(0.001),
    "random-k": _random,
    "sbc": _sbc,
    "qsgd": _qsgd,
    "onebit": lambda _: 1.0,
    "onebit-adam": lambda _: 1.0,
}
