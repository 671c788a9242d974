"""The suite headlines: every cell can run, names tell its methods apart, and verdicts follow from records alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from analysis.claims import ClaimRow, Outcome
from analysis.summary import every_claim
from baselines.text import split_parts
from fabric.api import FabricKind
from harness.checks.trial import check
from harness.facts import asked_of
from harness.outcome import fabric_facts
from harness.predict.calibration import Calibration
from harness.predict.trial import foretell, simulated_record
from harness.trial import Trial
from results.codec import to_jsonable
from results.record import Environment, Phases, RankTimes, Record, Status
from suites.api import Options
from suites.headlines.grid import NAME, grid, predicted
from suites.headlines.papers import HEADLINES, OUT_OF_REACH, Headline, places
from suites.headlines.study import STUDY, row_of

CELLS = predicted(Options())
MEASURED = grid(Options(repeats=1))
# Seconds of a step on each kind of cell: the paper's baseline, its method, the best dense one, one worker alone.
BASELINE_S, OWN_S, BEST_S, ALONE_S = 1.0, 0.5, 0.6, 0.2


def test_every_cell_can_run_and_stands_once() -> None:
    for trial in CELLS:
        check(trial)
        assert trial.fabric.kind is FabricKind.PACED
    assert max(Counter(trial.id for trial in CELLS).values()) == 1
    assert len(CELLS) <= 40


def test_every_codec_is_charged_as_device_time() -> None:
    """One without a profile would compute on this machine's processor, and its step would mean nothing."""
    facts = [asked_of(trial.jobs[0], 1, trial.num_ranks) for trial in CELLS]
    coded = [one for one in facts if one.code is not None and one.code.lossy]
    assert coded
    assert [one.strategy for one in coded if one.charge is None or not one.charge.is_charged] == []


def test_only_one_rank_among_virtual_peers_is_measured_here() -> None:
    """Several real ranks take longer on two cores than their links do, whatever their strategy."""
    assert MEASURED
    assert {trial.id for trial in MEASURED} < {trial.id for trial in CELLS}
    assert all(trial.fabric.num_virtual for trial in MEASURED)


def test_the_smoke_grid_is_a_few_of_the_cells() -> None:
    assert 0 < len(grid(Options(smoke=True))) < len(MEASURED)


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda own: own.system)
def test_every_headline_finds_its_method_and_its_baseline_among_the_cells(headline: Headline) -> None:
    found = {method: [trial for trial in CELLS if _is(trial, headline, method)] for method in _texts(headline)}
    assert {method: len(trials) for method, trials in found.items()} == dict.fromkeys(_texts(headline), 1)


def _texts(headline: Headline) -> tuple[str, str]:
    return headline.own, headline.baseline


def _is(trial: Trial, headline: Headline, text: str) -> bool:
    job, place = trial.jobs[0], headline.place
    there = (job.workload.network, job.workload.batch_size, trial.at) == (place.network, place.batch_size, place.gbit)
    return there and job.system == "ours" and _names(job.strategy) == _names(text)


def _names(text: str) -> frozenset[str]:
    return frozenset(part.partition("(")[0] for part in split_parts(text))


def records(seconds: Mapping[str, float], repeats: int = 6) -> list[Record]:
    """Made-up records of all cells: a step of each as its headline's role has it. Nothing here was measured."""
    found = []
    for trial in CELLS:
        one = _record(trial, _step_s(trial, seconds))
        found += [replace(one, id=f"{one.id[:-1]}{repeat}", repeat=repeat) for repeat in range(repeats)]
    return found


def _step_s(trial: Trial, seconds: Mapping[str, float]) -> float:
    if trial.jobs[0].system == "local":
        return seconds["alone"]
    if any(_is(trial, headline, headline.own) for headline in HEADLINES):
        return seconds["own"]
    return seconds["baseline" if any(_is(trial, h, h.baseline) for h in HEADLINES) else "best"]


def _record(trial: Trial, step_s: float) -> Record:
    steps = (step_s,) * trial.num_steps
    ranks = tuple(RankTimes(rank=rank, warmup_s=(), steps_s=steps) for rank in range(trial.world))
    job = replace(asked_of(trial.jobs[0], trial.num_steps, trial.num_ranks), ranks=ranks, phases=Phases())
    return Record(
        id=trial.id,
        suite=NAME,
        cell=trial.cell,
        repeat=trial.repeat,
        seed=trial.seed,
        status=Status.OK,
        axis=trial.axis,
        at=trial.at,
        fabric=fabric_facts(trial, None),
        jobs=(job,),
        trial=to_jsonable(trial),
    )


@pytest.fixture(scope="module")
def foretold() -> list[ClaimRow]:
    """All claims from what the virtual clock says of every cell, nothing measured."""
    environment = Environment()
    records = [
        simulated_record(trial, foretell(trial, Calibration()), environment, world=trial.fabric.num_ranks)
        for trial in CELLS
    ]
    return list(every_claim(records, (STUDY,))[NAME])


SAME_METHOD = 2  # headlines of a method in a place that has one already: MG-WFBP and gTop-k against two baselines each
NUM_OF_PAPERS = 3 * len(HEADLINES) - SAME_METHOD


def test_the_virtual_clock_alone_judges_every_claim(foretold: list[ClaimRow]) -> None:
    """It leaves open what lies within its own error."""
    of_papers = foretold[:NUM_OF_PAPERS]
    assert {row.outcome for row in of_papers} == {Outcome.MET, Outcome.MISSED, Outcome.UNDECIDED}
    assert all(cell.value.is_foretold for row in of_papers for cell in row.cells)
    assert {cell.value.exact for row in of_papers for cell in row.cells} == {True}


def test_a_predicted_cell_has_not_the_name_of_a_measured_one(foretold: list[ClaimRow]) -> None:
    told = {one for row in foretold for cell in row.cells for operand in cell.of for one in operand}
    assert told
    assert not told & {trial.id for trial in CELLS}


def judged(seconds: Mapping[str, float]) -> list[ClaimRow]:
    return list(every_claim(records(seconds), (STUDY,))[NAME])


def of_system(rows: list[ClaimRow], system: str) -> list[Outcome]:
    return [row.outcome for row in rows if row.claim.startswith(f"{system}:")]


@pytest.fixture(scope="module")
def twice_as_fast() -> list[ClaimRow]:
    return judged({"baseline": BASELINE_S, "own": OWN_S, "best": BEST_S, "alone": ALONE_S})


def test_a_method_twice_as_fast_meets_what_it_claims_and_no_more(twice_as_fast: list[ClaimRow]) -> None:
    """A fifth of the step is computation, so 5 times is the most that any method can be."""
    assert of_system(twice_as_fast, "Horovod") == [Outcome.MET, Outcome.MET, Outcome.MET]
    assert of_system(twice_as_fast, "P3 on VGG") == [Outcome.MET, Outcome.MET, Outcome.MET]
    assert of_system(twice_as_fast, "ByteScheduler") == [Outcome.MISSED, Outcome.MET, Outcome.MET]
    assert of_system(twice_as_fast, "1-bit Adam") == [Outcome.MISSED, Outcome.MET, Outcome.MET]


def test_every_paper_has_a_verdict_or_a_reason(twice_as_fast: list[ClaimRow]) -> None:
    told = {claim for claim, _ in OUT_OF_REACH}
    assert {row.claim for row in twice_as_fast if row.outcome is Outcome.OUT_OF_REACH} == told
    not_measured = [row.claim for row in twice_as_fast if row.outcome is Outcome.NOT_MEASURED]
    assert [claim.partition(":")[0] for claim in not_measured] == ["CrossoverScheduler"]  # of another suite's records
    assert len(twice_as_fast) == NUM_OF_PAPERS + 1 + len(OUT_OF_REACH)


def test_a_setting_that_leaves_too_little_to_gain_says_so_beside_the_missed_claim() -> None:
    rows = judged({"baseline": BASELINE_S, "own": 0.9, "best": 0.8, "alone": 0.75})
    assert of_system(rows, "ByteScheduler") == [Outcome.MISSED, Outcome.MISSED, Outcome.MISSED]
    assert of_system(rows, "P3") == [Outcome.MISSED, Outcome.MISSED, Outcome.MET]  # 1.33 times would be left


def test_a_place_has_one_method_of_each_name() -> None:
    for place in places():
        texts = {text for own in HEADLINES if own.place == place for text in _texts(own)}
        named = Counter(map(_names, texts))
        assert max(named.values()) == 1


def test_a_method_that_was_not_run_has_no_row() -> None:
    assert row_of("unfused", ()) is None
