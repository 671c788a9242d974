"""Work out every number on docs/claims.md again from the raw JSON of the records, without the code that wrote it.

    .venv/bin/python -m scripts.recompute_claims                    # docs/claims.md against results/reference
    .venv/bin/python -m scripts.recompute_claims PAGE RECORDS

Needs numpy and nothing of this project. The page says which formula a claim's figures are and which records each
operand holds; the formulas are written down here a second time. Exit code 1 with the differences where a number, a
cell's kind, a claim's verdict or a count in the overview does not agree.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SEED, RESAMPLES, LEVEL = 20210314, 4000, 0.95
PAYLOAD_SHARE = 0.957
LEAST_DIFFERENCE = 0.01  # of two methods' steps whose order is asked for
DIVERGED = {"accuracy": 0.1, "loss": math.inf}  # it guesses one of ten
PREDICTION_ERROR = 0.04  # of a prediction of what could be measured; a simulated network is no prediction
Json = Mapping[str, Any]
Operand = Sequence[Json]
Figures = Sequence[float]
NOT_RECOMPUTED = "not recomputed"
UNITS = {"points": 100.0, "µs": 1e6, "%": 100.0}


@dataclass(frozen=True, slots=True)
class ShownCell:
    """One row of a table on the page."""

    cell: str
    median: str
    low: str
    high: str
    n: int
    kind: str
    says: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class ShownClaim:
    """One claim on the page."""

    title: str
    says: str
    rule: str
    figure: str
    scale: float
    lines: tuple[ShownCell, ...]


# ---- the page


def read_page(text: str, records: Mapping[str, Json]) -> Iterator[ShownClaim]:
    """The claims of the page, with their records."""
    for block in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        title, _, body = block.partition("\n")
        said = re.search(r"^\*\*(?P<says>[^*]+)\*\* · rule: (?P<rule>.*)$", body, re.MULTILINE)
        if said is None:
            raise ValueError(f"no verdict under {title!r}")
        parts = dict(part.split(": ", 1) for part in said["rule"].split(" · ")[1:] if ": " in part)
        unit = next((part[3:] for part in said["rule"].split(" · ")[1:] if part.startswith("in ")), "")
        rows = [line for line in body.splitlines() if line.startswith("| ")][1:]
        lines = tuple(_line(row, records) for row in rows)
        rule = said["rule"].split(" · ")[0]
        figure = NOT_RECOMPUTED if NOT_RECOMPUTED in said["rule"].split(" · ") else parts.get("figure", "")
        yield ShownClaim(title, said["says"], rule, figure, UNITS.get(unit, 1.0), lines)


def _line(row: str, records: Mapping[str, Json]) -> ShownCell:
    cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
    operands = tuple(tuple(_named(text, records)) for text in cells[7].split("; "))
    return ShownCell(cells[0], cells[1], cells[2], cells[3], int(cells[4]), cells[5], cells[6], operands)


def _named(text: str, records: Mapping[str, Json]) -> Iterator[Json]:
    for quoted in re.findall(r"`([^`]+)`", text):
        found = re.fullmatch(r"(.*\.r)\{([\d,]+)\}", quoted)
        names = [found[1] + repeat for repeat in found[2].split(",")] if found else [quoted]
        yield from (records[name] for name in names)


def read_records(folder: Path) -> dict[str, Json]:
    """Every record below the folder by its id. Raises: ValueError for two different records of one id."""
    records: dict[str, Json] = {}
    places: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.json")):
        one = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(one, dict) and "jobs" in one and "id" in one:
            first = places.setdefault(one["id"], path)
            if records.setdefault(one["id"], one) != one:
                raise ValueError(f"{first} and {path}: two different records of {one['id']}; remove one of them")
    return records


# ---- statistics


def fewest_for(level: float) -> int:
    """Below so many repeats their span does not cover the median with this probability."""
    return math.ceil(1 - math.log2(1 - level))


def bounds(drawn: Any, level: float) -> tuple[float, float]:
    """Outer order statistics of resampled values."""
    ordered, tail = np.sort(drawn), (1.0 - level) / 2.0
    last = len(ordered) - 1
    return float(ordered[math.floor(tail * last)]), float(ordered[math.ceil((1.0 - tail) * last)])


def picks(n: int) -> Any:
    """Which of `n` repeats each resample holds."""
    return np.random.default_rng([SEED, n, 0]).integers(0, n, size=(RESAMPLES, n))


def interval(values: Figures, level: float = LEVEL) -> tuple[float, float, float]:
    """The median, and the k-th values from below and above: as many throws of a coin come out below k in so few cases
    that both tails together are rarer than the level allows."""
    ordered = sorted(values)
    n = len(ordered)
    if n < 2:
        return ordered[0], math.nan, math.nan
    tails = [2 * sum(math.comb(n, heads) for heads in range(k)) / 2**n for k in range(1, n // 2 + 1)]
    k = max(1, sum(tail <= 1 - level + 1e-12 for tail in tails))
    return float(np.median(ordered)), ordered[k - 1], ordered[n - k]


def quantile_interval(values: Figures, quantile: float) -> tuple[float, float, float]:
    """A quantile with its percentile bootstrap interval."""
    sample = np.asarray(values, dtype=float)
    return (
        float(np.quantile(sample, quantile)),
        *bounds(np.quantile(sample[picks(len(sample))], quantile, axis=1), LEVEL),
    )


# ---- records


def steps(job: Json) -> list[float]:
    """Step by step on the slowest rank; of workers that may be steps apart, those of the slowest in the mean."""
    if job.get("consistency"):
        return max((rank["steps_s"] for rank in job["ranks"]), key=statistics.fmean)
    return [max(times) for times in zip(*(rank["steps_s"] for rank in job["ranks"]), strict=False)]


def step_s(job: Json) -> float:
    """Their mean."""
    return statistics.fmean(steps(job))


def is_timed(one: Json) -> bool:
    """Whether it ended well, was run, and no codec took longer than it was charged."""
    return one["fabric"]["label"] != "simulated" and has_steps(one)


def has_steps(one: Json) -> bool:
    """The same, be it run or simulated."""
    return (
        one["status"] == "ok"
        and bool(one["jobs"])
        and all(steps(job) and not _overran(one, job) for job in one["jobs"])
    )


def _overran(one: Json, job: Json) -> bool:
    charge, spent_s = job.get("charge"), job["phases"].get("compress_s")
    note = re.search(
        r"charged: .* takes (\S+) ns an element", (job.get("notes") or {}).get("compression in replay", "")
    )
    seconds = float(note[1]) * 1e-9 if note else sum(charge["stages_s"]) if charge and not charge["reason"] else None
    if seconds is None or spent_s is None:
        return False
    return bool(spent_s - seconds * job["num_parameters"] * one["fabric"]["size_scale"] > 0.03 * step_s(job))


def by_repeat(operand: Operand) -> dict[int, float]:
    """Step of the first job by repeat."""
    return {one["repeat"]: step_s(one["jobs"][0]) for one in operand if is_timed(one)}


def wire_bytes(job: Json) -> float:
    """Bytes of a step without what is sent once, by the engine, else by the interface."""
    counted = job["wire_bytes"]
    if counted:
        return float(sum(size for tag, size in counted.items() if tag != "probe"))
    return float(job["interface_bytes"] or 0.0)


def steady_s(one: Json, job: Json) -> float:
    """Mean step while all jobs of the record ran."""
    own = steps(job)
    if one["sharing"] == "exclusive":
        return statistics.fmean(own)
    begin, end = max(j["start_s"] for j in one["jobs"]), min(j["end_s"] for j in one["jobs"])
    length = job["end_s"] - job["start_s"]
    if length > 0 and end <= begin and one["makespan_s"]:
        return float(one["makespan_s"] / (len(own) + len(job["ranks"][0]["warmup_s"])))
    if length <= 0 or end <= begin:
        return statistics.fmean(own)
    warm = sum(max(times) for times in zip(*(rank["warmup_s"] for rank in job["ranks"]), strict=False))
    scale, passed, kept = length / (warm + sum(own)), 0.0, []
    for step in own:
        first, passed = job["start_s"] + scale * (warm + passed), passed + step
        if begin <= first and job["start_s"] + scale * (warm + passed) <= end:
            kept.append(step)
    return statistics.fmean(kept or own)


def pairs(alone: Operand, here: Operand) -> list[tuple[Json, Json]]:
    """Records of equal repeats, those that ended well, and that do not pass the hard limit."""
    solo = {one["repeat"]: one for one in alone if has_steps(one)}
    both = [(solo[one["repeat"]], one) for one in here if has_steps(one) and one["repeat"] in solo]
    return [(a, b) for a, b in both if (limit(a, b) or 0.0) <= 1.01]


def gain(alone: Json, here: Json) -> float:
    """Σ step alone over step here."""
    both = zip(alone["jobs"], here["jobs"], strict=True)
    return sum(step_s(solo) / steady_s(here, job) for solo, job in both)


def gains(alone: Operand, here: Operand) -> dict[int, float]:
    """By repeat."""
    return {b["repeat"]: gain(a, b) for a, b in pairs(alone, here)}


def _shares(alone: Json, here: Json, key: str) -> list[float]:
    return [solo["costs"][key] / steady_s(here, job) for solo, job in zip(alone["jobs"], here["jobs"], strict=True)]


def on_link_s(fabric: Json, job: Json) -> float:
    """A step's bytes at the line's rate. A modelled link frames nothing, and no bytes pass while a round starts."""
    per_byte = 8 / fabric["rate_bps"] if fabric["rate_bps"] else 0.0
    if fabric["kind"] != "paced":
        return float(per_byte * wire_bytes(job))
    ranks = fabric["num_hosts"] * fabric["ranks_per_host"] + fabric["num_virtual"]
    per_round = fabric["alpha_s"] / (2 * ranks - 2) if ranks > 1 else 0.0
    payload = wire_bytes(job) - job["wire_bytes"].get("framing", 0.0)
    payload -= job["wire_bytes"].get("control", 0.0) * (1 - 1 / fabric["size_scale"])  # the only bytes of full size
    return float(per_byte * payload + per_round * (job.get("num_rounds") or 0.0))


def limit(alone: Json, here: Json) -> float | None:
    """How busy the tightest of device, link and chains is; None where costs were not measured."""
    apart = str(here["fabric"].get("placement", "")).endswith("own hosts")  # a device each, and no one line
    if apart or any(job.get("costs") is None for job in alone["jobs"]):
        return None
    device = _shares(alone, here, "compute_s")
    link = [on_link_s(here["fabric"], job) / steady_s(here, job) for job in here["jobs"]]
    alike = zip(device, link, here["jobs"], strict=True)
    # jobs that compute at once overlap the host's part of what a turn takes
    in_turns = here["sharing"] not in ("naive", "mps", "cassini", "tick-tock")
    chains = (c + w * (job["num_messages"] == 1) for c, w, job in alike)
    return max(sum(device) * in_turns, sum(link), *chains)


def fifo(alone: Json, here: Json) -> float:
    """T* over the period."""
    device, link = sum(_shares(alone, here, "compute_s")), sum(_shares(alone, here, "communication_s"))
    return max(device, link, *_shares(alone, here, "solo_s"))


# ---- figures: one formula each, from operands to a value per repeat (or one exact value)


def speed_up(*operands: Operand) -> Figures:
    """The step of the fastest rival over one's own."""
    own, rivals = by_repeat(operands[-1]), [rival for one in operands[:-1] if (rival := by_repeat(one))]
    return [min(rival[r] for rival in rivals) / own[r] for r in own if all(r in rival for rival in rivals)]


def bus_share(operand: Operand) -> Figures:
    """What each link carried of 25 MB in one direction, over its time and the line's rate."""
    shares = []
    for one in (record for record in operand if record["status"] == "ok"):
        own, ranks = one["collective"], one["collective"]["num_ranks"]
        ring = (ranks - 1) / ranks
        factor = {"all-reduce": 2 * ring, "all-gather": ring, "all-to-all": ring}.get(own["operation"], 1.0)
        times_s = next(size["times_s"] for size in own["sizes"] if size["num_bytes"] == 25_000_000)
        shares.append(factor * 8 * 25_000_000 / statistics.median(times_s) / one["fabric"]["rate_bps"])
    return shares


def alpha_ratio(*operands: Operand) -> Figures:
    """By repeat, of the fits in the records."""
    of = [{one["repeat"]: one["collective"]["alpha_s"] for one in own if one["status"] == "ok"} for own in operands]
    return [alpha / of[1][repeat] for repeat, alpha in of[0].items() if repeat in of[1]]


def over_median(own: Operand, alone: Operand) -> Figures:
    """The step over what another takes in the median, repeat by repeat."""
    middle = statistics.median(by_repeat(alone).values())
    return [step / middle for step in by_repeat(own).values()]


def of_bound(plain: Operand, best: Operand, alone: Operand) -> Figures:
    """The share of the way from the plain step to the bound that the best one goes."""
    first = next(one for one in best if is_timed(one))
    job, fabric = first["jobs"][0], first["fabric"]
    world = workers(fabric, job)
    sent_s = 4 * job["num_parameters"] * 2 * (world - 1) / world * 8 / (PAYLOAD_SHARE * fabric["rate_bps"])
    if fabric["fit_residual"] == 0.0:  # the costs are given
        sent_s = fabric["alpha_s"] + 4 * job["num_parameters"] * fabric["beta_s_per_byte"]
    groups: dict[str, list[Json]] = {}
    for one in alone:
        groups.setdefault(one["cell"], []).append(one)
    timed = [list(by_repeat(own).values()) for own in groups.values() if by_repeat(own)]
    bound_s = max(statistics.median(map(statistics.median, timed)), sent_s)
    theirs, own = by_repeat(plain), by_repeat(best)
    both = [(theirs[r], own[r]) for r in theirs if r in own]
    return [(a - b) / (a - bound_s) for a, b in both if a - bound_s > 0.05 * a]


def predicted_efficiency(dense: Operand, own: Operand) -> Figures:
    """Computation over the predicted step."""
    known = [one for one in dense if one["fabric"]["label"] != "simulated"] or dense
    compute_s = statistics.median(one["jobs"][0]["phases"]["compute_s"] for one in known)
    return [min(1.0, compute_s / (clock_s(own) or predicted_s(own) or math.nan))]


def predicted_gain(*operands: Operand) -> Figures:
    """The shortest rival's predicted step over the method's."""
    *rivals, own = [clock_s(operand) or predicted_s(operand) or math.nan for operand in operands]
    return [min(rivals) / own]


def predicted_s(operand: Operand) -> float | None:
    """What measured records carry, else what simulated ones are."""
    ran = [one for one in operand if one["fabric"]["label"] != "simulated"]
    told = [p["step_time_s"] for one in ran if (p := one["prediction"]) and p["step_time_s"] is not None]
    return statistics.median(told) if told else clock_s(operand)


def clock_s(operand: Operand) -> float | None:
    """What simulated records are, which hold no machine."""
    simulated = [one for one in operand if one["fabric"]["label"] == "simulated"]
    told = [(one["prediction"] or {}).get("step_time_s") or step_s(one["jobs"][0]) for one in simulated]
    return statistics.median(told) if told else None


def gain_ratio(alone: Operand, own: Operand, other: Operand) -> Figures:
    """One's own gain over another's."""
    mine, theirs = gains(alone, own), gains(alone, other)
    return [mine[r] / theirs[r] for r in mine if r in theirs]


def at_alpha(*operands: Operand) -> Figures:
    """The gain over another link's, which is known at two α; each operand follows its jobs one after the other."""
    own, low, high = (gains(*operands[place : place + 2]) for place in (0, 2, 4))
    at, first, last = (operands[place][0]["fabric"]["alpha_s"] for place in (1, 3, 5))
    share = (at - first) / (last - first)
    return [own[r] / (low[r] + share * (high[r] - low[r])) for r in own if r in low and r in high]


def phases(alone: Operand, own: Operand, *offsets: Operand) -> Figures:
    """The gain over the median gain of all start offsets."""
    mine, each = gains(alone, own), [gains(alone, one) for one in offsets]
    return [mine[r] / statistics.median(one[r] for one in each) for r in mine if all(r in one for one in each)]


def rival(alone: Operand, own: Operand, big: Operand) -> Figures:
    """The gain over that of one job with all batches."""
    mine, steps_s = gains(alone, own), by_repeat(big)
    solo = {one["repeat"]: (len(one["jobs"]), step_s(one["jobs"][0])) for one in alone if is_timed(one)}
    return [mine[r] / (solo[r][0] * solo[r][1] / steps_s[r]) for r in mine if r in steps_s]


def handover(own: Operand) -> Figures:
    """Each repeat's median hand-over."""
    facts = [one["sharing_facts"] for one in own if one["status"] == "ok"]
    return [fact["handover_p50_s"] for fact in facts if fact and fact["handover_p50_s"] is not None]


def mean_bits(operand: Operand) -> float:
    """Bits a parameter and step of one rank, of trials without valid times if there are no others."""
    every = [one for one in operand if one["fabric"]["label"] != "simulated"]
    ran = [one["jobs"][0] for one in [one for one in every if one["status"] == "ok"] or every]
    return 8 * statistics.median(map(wire_bytes, ran)) / float(ran[0]["num_parameters"])


def bits(own: Operand) -> Figures:
    """Every rank's code goes to every other one in the records that a claim is about."""
    record = next(one for one in own if one["fabric"]["label"] != "simulated")
    first = record["jobs"][0]
    code = first.get("code") or {}
    if code.get("combine", "concat") != "concat" or code.get("dense_steps"):
        raise ValueError(f"{own[0]['id']}: only codes that are gathered, without a dense warm-up, are worked out here")
    return [32.0 * (workers(record["fabric"], first) - 1) / mean_bits(own)]


def held_out(one: Json) -> list[Json]:
    """Points that evaluation took."""
    return [point for point in one["jobs"][0]["curve"] if point["accuracy"] is not None]


def ends(operand: Operand, metric: str) -> dict[int, float]:
    """The last held-out accuracy or loss by repeat."""
    return {
        one["repeat"]: DIVERGED[metric] if one["status"] == "diverged" else held_out(one)[-1][metric] for one in operand
    }


def shortfall(dense: Operand, own: Operand) -> Figures:
    """How much less accurate it ends than the dense run."""
    theirs, mine = ends(dense, "accuracy"), ends(own, "accuracy")
    return [theirs[repeat] - last for repeat, last in mine.items() if repeat in theirs]


def reached(dense: Operand) -> Callable[[Json], bool]:
    """Whether a point stands at the target that the dense run sets."""
    ended = [one for one in dense if one["status"] == "ok" and len(held_out(one)) >= 3]
    ends = [held_out(one)[-1] for one in ended]
    accuracy = statistics.fmean(point["accuracy"] for point in ends)
    if accuracy > 0.5:
        return lambda point: bool(point["accuracy"] >= 0.95 * accuracy)
    starts = [one["jobs"][0]["curve"][0]["loss"] for one in ended]
    first, last = statistics.fmean(starts), statistics.fmean(point["loss"] for point in ends)
    return lambda point: bool(point["loss"] <= first - 0.95 * (first - last))


def prices(operand: Operand, is_met: Callable[[Json], bool], paid_in: str) -> dict[int, float]:
    """Seconds or steps until a repeat first stood at the target; ∞ where it never did, as one that diverged."""

    def price(one: Json) -> float:
        points = held_out(one) if one["status"] == "ok" else []
        return next((float(point[paid_in]) for point in points if is_met(point)), math.inf)

    return {one["repeat"]: price(one) for one in operand}


def sooner(*operands: Operand) -> Figures:
    """The soonest dense time to the target over one's own; 0 where it was never reached."""
    is_met = reached(operands[0])
    *dense, own = (prices(one, is_met, "time_s") for one in operands)
    return [min(one[r] for one in dense) / mine for r, mine in own.items() if all(r in one for one in dense)]


def steps_to_target(own: Operand, *others: Operand) -> Figures:
    """One's own steps over the next one's to the target that the last one, the dense run, sets; without the repeats
    that neither ended."""
    mine, theirs = (prices(one, reached(others[-1]), "step") for one in (own, others[0]))
    both = {repeat: (price, theirs[repeat]) for repeat, price in mine.items() if repeat in theirs}
    return [price / other for price, other in both.values() if math.isfinite(min(price, other))]


def final_loss(other: Operand, own: Operand) -> Figures:
    """The other's last held-out loss over one's own, without the repeats in which both diverged."""
    theirs, mine = ends(other, "loss"), ends(own, "loss")
    both = [(theirs[repeat], last) for repeat, last in mine.items() if repeat in theirs]
    return [loss / last for loss, last in both if math.isfinite(min(loss, last))]


def same_loss(dense: Operand, own: Operand) -> Figures:
    """The share of the dense run's repeats whose last held-out loss is one's own."""
    theirs, mine = ends(dense, "loss"), ends(own, "loss")
    return [statistics.fmean(mine.get(repeat) == loss for repeat, loss in theirs.items())]


def volume(dense: Operand, own: Operand) -> Figures:
    """Bytes of all steps, the dense run's over one's own."""
    return [mean_bits(dense) / mean_bits(own)]


def weights(alone: Operand, here: Operand) -> Figures:
    """The share of jobs that ended with the weights of their run alone."""
    same = [
        solo["weights_digest"] == job["weights_digest"]
        for a, b in pairs(alone, here)
        if a["seed"] == b["seed"]
        for solo, job in zip(a["jobs"], b["jobs"], strict=True)
        if solo["num_steps"] == job["num_steps"] and solo["weights_digest"] and job["weights_digest"]
    ]
    return [sum(same) / len(same)]


# ---- figures of pipelines


def pipelines(operand: Operand) -> list[tuple[Json, Json]]:
    """Each record's job and what its pipeline did, or its split operators."""
    jobs = [one["jobs"][0] for one in operand if one["status"] == "ok"]
    return [(job, job["pipeline"] or job["split"]) for job in jobs]


def idle(own: Operand) -> Figures:
    """The share of all ranks' time that they wait."""
    return [facts["bubble"] for _, facts in pipelines(own)]


def samples_per_s(operand: Operand) -> float:
    """Samples of a step over the median step."""
    jobs = [job for job, _ in pipelines(operand)]
    return float(jobs[0]["batch_size"] * jobs[0]["accumulate"] / statistics.median(map(step_s, jobs)))


def fullest_bytes(operand: Operand) -> float:
    """Memory of the device that needs most; the same in every repeat."""
    (size,) = {max(facts["memory_bytes"]) for _, facts in pipelines(operand)}
    return float(size)


def busy_by_clock(own: Operand) -> Figures:
    """The share of time that ranks are busy over what the virtual clock says."""
    return [(1 - facts["bubble"]) / (1 - facts["bubble_clock"]) for _, facts in pipelines(own)]


def step_by_clock(own: Operand) -> Figures:
    """The step over what the virtual clock says: of stages, or of workers with a cluster of their own."""
    told = [one for one in own if one["status"] == "ok" and one["prediction"]]
    by_record = [step_s(one["jobs"][0]) / one["prediction"]["step_time_s"] for one in told]
    return by_record or [step_s(job) / facts["step_clock_s"] for job, facts in pipelines(own)]


def stashes(own: Operand) -> Figures:
    """Whether every rank of every repeat held as many activations as the formula says."""
    return [float(all(facts["peak_stash"] == facts["stash_formula"] for _, facts in pipelines(own)))]


def distances(own: Operand) -> Figures:
    """How far the weights are from one device's; the farthest of the repeats."""
    return [max(facts["distance"] for _, facts in pipelines(own))]


# ---- figures of flows without jobs


def traffic(operand: Operand) -> dict[int, Json]:
    """What flows did, by repeat."""
    return {one["repeat"]: one["traffic"] for one in operand if one["status"] == "ok" and one["traffic"]}


def flow_ratio(figure: Callable[[Json], float]) -> Callable[[Operand, Operand], Figures]:
    """A figure over that of the other cell, by repeat."""

    def ratio(own: Operand, other: Operand) -> Figures:
        mine, theirs = traffic(own), traffic(other)
        return [figure(mine[r]) / figure(theirs[r]) for r in sorted(mine) if r in theirs]

    return ratio


def completion_s(run: Json) -> float:
    """Mean of the first group; a flow that has not ended counts until the run's end."""
    own = run["groups"][0]
    ends = [run["now_s"] if end is None else end for end in own["end_s"]]
    return statistics.fmean(end - start for start, end in zip(own["start_s"], ends, strict=True))


def mean_slowdown(run: Json) -> float:
    """Over all flows that have ended."""
    return statistics.fmean(
        (end - start) / alone
        for own in run["groups"]
        for start, end, alone in zip(own["start_s"], own["end_s"], own["alone_s"], strict=True)
        if end is not None
    )


def groups_s(run: Json) -> float:
    """Mean over groups from the first start to the last end."""
    return statistics.fmean(max(own["end_s"]) - min(own["start_s"]) for own in run["groups"])


def used_s(run: Json) -> float:
    """Uses follow each other, each when its group is there."""
    now_s = 0.0
    for own in run["groups"]:
        now_s = max([now_s, *own["end_s"]]) + own["use_s"]
    return now_s


def goodputs_bps(run: Json) -> list[float]:
    """Of the last group's flows, from the moment that counts to the last end or the run's."""
    own = run["groups"][-1]
    last_s = run["now_s"] if None in own["end_s"] else max(own["end_s"])
    both = zip(own["before_bytes"], own["delivered_bytes"], strict=True)
    return [8 * (delivered - before) / (last_s - run["from_s"]) for before, delivered in both]


def round_trip_s(run: Json) -> float:
    """Mean over flows."""
    return statistics.fmean(each for group in run["groups"] for each in group["round_trip_s"] if each is not None)


def line_share(own: Operand) -> Figures:
    """Goodput over the line rate."""
    return [sum(goodputs_bps(one["traffic"])) / one["fabric"]["rate_bps"] for one in own if one["status"] == "ok"]


def highest_queue(run: Json) -> float:
    """Over the marking threshold and a frame of 1,538 bytes per flow."""
    return float(max(run["queue_bytes"]) / (run["mark_bytes"] + 1538 * len(run["groups"][-1]["num_bytes"])))


# ---- figures of the papers' own problems


def objectives(operand: Operand) -> dict[int, list[float]]:
    """After each round, by repeat."""
    return {one["repeat"]: list(map(float, one["problem"]["objectives"])) for one in operand if one["problem"]}


def final_objective(own: Operand, other: Operand) -> Figures:
    """The last one over the other's."""
    mine, theirs = objectives(own), objectives(other)
    return [mine[r][-1] / theirs[r][-1] for r in sorted(mine) if r in theirs]


def rounds(own: Operand, other: Operand) -> Figures:
    """The first round within 1 % of the lower end over the other's; all of them where there is none."""
    mine, theirs = objectives(own), objectives(other)
    ratios = []
    for r in sorted(mine.keys() & theirs.keys()):
        near, most = 1.01 * min(mine[r][-1], theirs[r][-1]), max(len(mine[r]), len(theirs[r]))
        first = [1 + next((n for n, at in enumerate(run) if at <= near), most - 1) for run in (mine[r], theirs[r])]
        ratios.append(first[0] / first[1])
    return ratios


EXACT: Mapping[str, Callable[..., Figures]] = {
    "computation of 1 over the predicted step of 2, at most 1": predicted_efficiency,
    "float32 over the code of 1": bits,
    "bytes of 1 over bytes of 2": volume,
    "share of repeats of 1 that end with the same loss in 2": same_loss,
    "share of jobs of 2 with the weights of 1": weights,
    "predicted step of 1 over that of 2": lambda a, b: [(predicted_s(a) or math.nan) / (predicted_s(b) or math.nan)],
    "least predicted step of the others over that of the last": predicted_gain,
    "samples per second of 1 over those of 2": lambda a, b: [samples_per_s(a) / samples_per_s(b)],
    "memory of the fullest device of 1 over that of 2": lambda a, b: [fullest_bytes(a) / fullest_bytes(b)],
    "1 where all stashes of 1 peak as by the formula, else 0": stashes,
    "distance of 1's weights from one device's, relative to their norm": distances,
}
PREDICTED = {
    "computation of 1 over the predicted step of 2, at most 1",
    "predicted step of 1 over that of 2",
    "least predicted step of the others over that of the last",
}
SAMPLED: Mapping[str, Callable[..., Figures]] = {
    "step of 1 over step of 2": speed_up,
    "(step of 1 − step of 2) over (step of 1 − bound), the bound from 2 and one worker alone 3": of_bound,
    "Σ step of 1 over step of 2": lambda a, b: list(gains(a, b).values()),
    "T* from the costs of 1 over the period of 2": lambda a, b: [fifo(x, y) for x, y in pairs(a, b)],
    "hard limit from the costs of 1 over the period of 2": lambda a, b: [limit(x, y) or 0.0 for x, y in pairs(a, b)],
    "gain of 2 over gain of 3, each over 1": gain_ratio,
    "gain of 2 over that at its α, on the line from 4 to 6, each over the one before": at_alpha,
    "gain of 2 over the median gain of 3 and on, each over 1": phases,
    "gain of 2 over that of the one job 3, each over 1": rival,
    "median hand-over of 1": handover,
    "final accuracy of 1 less that of 2": shortfall,
    "time to the target of 1 over that of the last": sooner,
    "steps to the target of 1 over those of 2": steps_to_target,
    "final loss of 1 over that of 2": final_loss,
    "idle share of 1": idle,
    "mean completion of 1 over that of 2": flow_ratio(completion_s),
    "mean completion over time alone of 1 over that of 2": flow_ratio(mean_slowdown),
    "mean time of the groups of 1 over that of 2": flow_ratio(groups_s),
    "end of the last use of 1 over that of 2": flow_ratio(used_s),
    "final objective of 1 over that of 2": final_objective,
    "rounds of 1 over those of 2 to within 1 % of the lower end": rounds,
    "goodput of 1 over that of 2": flow_ratio(lambda run: sum(goodputs_bps(run))),
    "goodput of 1 over its line rate": line_share,
    "least over mean goodput of the flows of 1": lambda own: [
        min(each) / statistics.fmean(each) for each in map(goodputs_bps, traffic(own).values())
    ],
    "mean queue of 1 over that of 2": flow_ratio(lambda run: float(run["mean_queue_bytes"])),
    "mean queue of 1 over its marking threshold": lambda own: [
        run["mean_queue_bytes"] / run["mark_bytes"] for run in traffic(own).values()
    ],
    "highest queue of 1 over its marking threshold and a frame per flow": lambda own: [
        highest_queue(run) for run in traffic(own).values()
    ],
    "mean round trip of 1 over that of 2": flow_ratio(round_trip_s),
    "1 where links of 1 wait in a circle, else 0": lambda own: [
        float(bool(run["circle"])) for run in traffic(own).values()
    ],
    "busy share of 1 over that of the virtual clock": busy_by_clock,
    "step of 1 over that of the virtual clock": step_by_clock,
    "step of 1 over the median step of 2": over_median,
    "bus bandwidth of 1 at 25 MB over the line": bus_share,
    "α of 1 over α of 2": alpha_ratio,
}
ERROR = "predicted over measured step, less one"


def error_figures(operands: Sequence[Operand]) -> tuple[list[float], dict[tuple[int, int], float]]:
    """|error| of each cell, and for pairs in one place that surely differ, by more than 1 %, whether their order is as
    predicted."""
    rows = [(list(by_repeat(one).values()), predicted_s(one), _place(one)) for one in operands]
    middle = [statistics.median(times) for times, *_ in rows]
    sizes = [abs((told or math.nan) / own - 1) for (_, told, _), own in zip(rows, middle, strict=True)]
    ends = [interval(times)[1:] for times, *_ in rows]
    signs = {
        (i, j): math.copysign(1, (middle[i] - middle[j]) * (rows[i][1] - rows[j][1]))  # type: ignore[operator]
        for i in range(len(rows))
        for j in range(i + 1, len(rows))
        if rows[i][2] == rows[j][2] and (ends[i][1] < ends[j][0] or ends[j][1] < ends[i][0])
        if max(middle[i], middle[j]) > (1 + LEAST_DIFFERENCE) * min(middle[i], middle[j])
    }
    return sizes, signs


def workers(fabric: Json, job: Json) -> int:
    """Of a job, virtual ones too."""
    return max(fabric["num_hosts"] * fabric.get("ranks_per_host", 1) + fabric.get("num_virtual", 0), len(job["ranks"]))


def _place(operand: Operand) -> tuple[Any, ...]:
    one = next(one for one in operand if is_timed(one))
    fabric, job = one["fabric"], one["jobs"][0]
    rate = fabric["equivalent_rate_bps"] or fabric["rate_bps"]
    return (
        one["suite"],
        job["workload"],
        job["batch_size"],
        workers(fabric, job),
        None if rate is None else f"{rate / 1e9:.6g}",
    )


def tau_interval(signs: Mapping[tuple[int, int], float], n: int) -> tuple[float, float, float]:
    """The mean sign, resampled by cells."""
    places, values = np.array(list(signs)), np.array(list(signs.values()))
    counts = np.stack([np.bincount(pick, minlength=n) for pick in picks(n)])
    drawn = counts[:, places[:, 0]] * counts[:, places[:, 1]]
    total = drawn.sum(axis=1)
    return (float(values.mean()), *bounds((drawn @ values)[total > 0] / total[total > 0], LEVEL))


def figures_of(claim: ShownClaim, line: ShownCell) -> tuple[tuple[float, float, float], int, Figures]:
    """Median and ends, n, and the repeats, in the units of the records."""
    if claim.figure == ERROR:
        sizes, signs = error_figures(line.operands)
        if line.cell == "all":
            return tau_interval(signs, len(sizes)), len(sizes), ()
        ends = quantile_interval(sizes, 0.95) if line.cell.startswith("95th") else interval(sizes)
        return ends, len(sizes), ()
    if claim.figure in EXACT:
        (value,) = EXACT[claim.figure](*line.operands)
        error = PREDICTION_ERROR * is_foretold(claim, line)
        return (value, value * (1 - error), value * (1 + error)), line.n, ()
    values = SAMPLED[claim.figure](*line.operands)
    if line.kind == "exact" and on_clock(line) and len(set(values)) == 1:
        return (values[0], values[0], values[0]), len(values), ()
    return interval(values), len(values), values


def is_foretold(claim: ShownClaim, line: ShownCell) -> bool:
    """Whether the figure is a ratio of predicted times, outside the suite whose subject is the simulated network."""
    return claim.figure in PREDICTED and line.operands[0][0]["suite"] != "networks"


def on_clock(line: ShownCell) -> bool:
    """Whether every time is of a virtual clock, which repeats exactly."""
    return all(job["clock"] == "virtual" for operand in line.operands for one in operand for job in one["jobs"])


# ---- verdicts


def limits_of(rule: str) -> tuple[float, float, bool] | None:
    """The level of a plain rule, and whether some cell is enough; None for rules in words."""
    if not re.match("(every|some) cell at ", rule):
        return None
    low, high = (re.search(rf"at {end} ([\d.e+-]+)", rule) for end in ("least", "most"))
    return float(low[1]) if low else -math.inf, float(high[1]) if high else math.inf, rule.startswith("some")


def side(ends: tuple[float, float], low: float, high: float) -> str:
    """Met, missed or undecided."""
    if ends[0] >= low and ends[1] <= high:
        return "met"
    return "missed" if ends[1] < low or ends[0] > high else "undecided"


def verdict(claim: ShownClaim, found: Sequence[tuple[tuple[float, float, float], Figures]]) -> str | None:
    """The claim's verdict anew, where its rule is a level."""
    asked = limits_of(claim.rule)
    if asked is None or not found:
        return None
    low, high, some = asked
    level = 1 - (1 - LEVEL) / max(1, sum(bool(len(values)) for _, values in found))
    alone, jointly = [], []
    for ends, values in found:
        scaled = [claim.scale * value for value in values]
        exact = side((claim.scale * ends[1], claim.scale * ends[2]), low, high)
        known = not scaled or len(scaled) >= fewest_for(LEVEL)
        alone.append(exact if known else "undecided")
        sure = not scaled or len(scaled) >= fewest_for(level)
        wide = interval(scaled, level)[1:] if scaled and sure else (0.0, 0.0)
        jointly.append("undecided" if not sure else side(wide, low, high) if scaled else exact)
    enough, needed = ("met", "missed") if some else ("missed", "met")
    return enough if enough in jointly else needed if all(one == needed for one in alone) else "undecided"


# ---- the whole page


def differences(text: str, records: Mapping[str, Json]) -> Iterator[str]:
    """Every number and verdict on the page that the records do not give."""
    counts: Counter[str] = Counter()
    for claim in read_page(text, records):
        counts[claim.says] += 1
        found = []
        if claim.lines and claim.figure not in {ERROR, *EXACT, *SAMPLED}:
            if claim.figure != NOT_RECOMPUTED:
                yield f"{claim.title}: its figure {claim.figure!r} is none that is known here"
            continue
        for line in claim.lines:
            ends, n, values = figures_of(claim, line)
            found.append((ends, values))
            shown = [plain(claim.scale * end) for end in ends]
            if shown != [line.median, line.low, line.high] or n != line.n:
                page = f"{line.median} [{line.low}, {line.high}], n = {line.n}"
                yield f"{claim.title}: {line.cell}: page {page}; records {shown[0]} [{shown[1]}, {shown[2]}], n = {n}"
            kind = (
                "predicted"
                if is_foretold(claim, line)
                else "exact"
                if claim.figure != ERROR and not len(values)
                else "range"
                if n < fewest_for(LEVEL)
                else "interval"
            )
            if kind != line.kind:
                yield f"{claim.title}: {line.cell}: page {line.kind}; records {kind}"
        anew = verdict(claim, found)
        if anew is not None and anew != claim.says:
            yield f"{claim.title}: page {claim.says}; records {anew}"
    yield from _miscounted(text, counts)


def _miscounted(text: str, counts: Mapping[str, int]) -> Iterator[str]:
    head = re.search(r"^\| suite \| claims \| (.*) \|$", text, re.MULTILINE)
    total = re.search(r"^\| \*\*all\*\* \| (\d+) \| (.*) \|$", text, re.MULTILINE)
    if head is None or total is None:
        yield "the page has no overview"
        return
    shown = dict(zip(head[1].split(" | "), map(int, total[2].split(" | ")), strict=True))
    if int(total[1]) != sum(counts.values()) or shown != {name: counts[name] for name in shown}:
        yield f"overview: page {shown}; its claims {dict(counts)}"


def plain(value: float) -> str:
    """As the page writes a number."""
    return "" if math.isnan(value) else f"{value:.5g}"


def main(argv: Sequence[str] | None = None) -> int:
    """0 if all agrees, else 1 with the differences."""
    parser = argparse.ArgumentParser(description="work out docs/claims.md again from raw records")
    parser.add_argument("page", nargs="?", type=Path, default=ROOT / "docs" / "claims.md")
    parser.add_argument("records", nargs="?", type=Path, default=ROOT / "results" / "reference")
    chosen = parser.parse_args(argv)
    text, records = chosen.page.read_text(encoding="utf-8"), read_records(chosen.records)
    found = list(differences(text, records))
    for line in found:
        print(line)
    with_figures = [claim for claim in read_page(text, records) if claim.lines]
    left = [claim.title for claim in with_figures if claim.figure == NOT_RECOMPUTED]
    print(f"{len(left)} of {len(with_figures)} claims with figures not recomputed{': ' * bool(left)}{'; '.join(left)}")
    print(f"{len(found)} differences" if found else "every recomputed number agrees")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
