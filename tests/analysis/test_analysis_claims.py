from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from synthetic_records import quick_suite
from synthetic_sharing import RESNET, VGG, Group, crossover_suite

from analysis.claims import ClaimRow, Outcome
from analysis.report import render_page
from analysis.rows import Summary
from analysis.sharing.axes import ALPHA
from analysis.sharing.tables import claim_list
from results.record import JobResult, RankTimes, Record
from suites.reports import summary_of

RHO = ("rho-",)
PAIRS = ("heterogeneous", "unequal")
ON_TOP = ("rho-", "on-top")


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summary_of(crossover_suite())


def claim(summary: Summary, start: str) -> ClaimRow:
    return next(row for row in summary.claims if row.claim.startswith(start))


def slower(job: JobResult, factor: float) -> JobResult:
    ranks = tuple(
        RankTimes(rank=rank.rank, warmup_s=rank.warmup_s, steps_s=tuple(factor * step for step in rank.steps_s))
        for rank in job.ranks
    )
    return replace(job, ranks=ranks, end_s=job.start_s + factor * (job.end_s - job.start_s))


def changed(records: Sequence[Record], cell: str, factor: float) -> list[Record]:
    """The records with the steps of one cell `factor` times as long."""
    return [
        replace(one, jobs=tuple(slower(job, factor) for job in one.jobs)) if one.cell == cell else one
        for one in records
    ]


def test_good_records_meet_what_they_show_and_say_so_with_number_n_and_interval(summary: Summary) -> None:
    replay = claim(summary, "Replay among 4 or 8 workers, ρ")
    assert replay.outcome is Outcome.MET
    assert "median of 14 cells" in replay.sentence
    assert "n = 10" in replay.sentence
    assert "[" in replay.sentence
    assert len(replay.cells) == 14
    for start in (
        "Real compute",
        "Holding",
        "With nothing",
        "Mixed",
        "Link turns in order are",
        "Link turns in order beat",
    ):
        assert claim(summary, start).outcome is Outcome.MET, start


def test_what_was_not_run_is_not_measured(summary: Summary) -> None:
    horovod = claim(summary, "Real Horovod")
    assert horovod.outcome is Outcome.NOT_MEASURED
    only = summary_of(crossover_suite(only=("null-bytes",)))
    measured = {row.claim for row in only.claims if row.outcome is not Outcome.NOT_MEASURED}
    assert measured == {
        row.claim
        for start in ("Holding", "With nothing", "Half of the hand-overs", "Every job ends")
        for row in (claim(only, start),)
    }


def test_a_run_of_a_few_cells_shows_only_claims_that_they_bear_on() -> None:
    only = summary_of(crossover_suite(only=("null-bytes",)))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(claim_list(only.claims, console.width))
    for shown in (console.export_text(), render_page(only, [])):
        assert "not measured" not in shown
        assert all(
            (row.claim in html.unescape(shown)) == (row.outcome is not Outcome.NOT_MEASURED) for row in only.claims
        )
        assert f"Not shown: {len(only.claims) - 4} claims that no cell here can decide" in shown


def test_one_slow_cell_makes_a_claim_missed_and_is_named() -> None:
    records = crossover_suite(only=RHO + PAIRS)
    cell = "rho-overlap-1/resnet50-replay+resnet50-replay/crossover"
    found = claim(summary_of(changed(records, cell, 1.08)), "Replay among 4 or 8 workers, ρ")
    assert found.outcome is Outcome.MISSED
    assert f"Missed in {cell}." in found.sentence
    assert "13 of 14" in found.sentence
    assert found.cells[0].cell == cell
    assert found.cells[0].outcome is Outcome.MISSED


def test_hold_must_neither_lose_nor_gain() -> None:
    records = crossover_suite(only=PAIRS)
    cell = "heterogeneous/resnet50-replay+vgg16-replay/hold"
    for factor in (0.9, 1.1):
        assert claim(summary_of(changed(records, cell, factor)), "Holding").outcome is Outcome.MISSED


def test_a_fair_link_that_wins_clearly_is_seen() -> None:
    records = crossover_suite(only=RHO)
    cell = "rho-overlap-1/resnet50-replay+resnet50-replay/crossover"
    found = claim(summary_of(changed(records, cell, 1.08)), "Link turns in order are never worse")
    assert found.outcome is Outcome.MISSED


def test_too_few_repeats_do_not_count() -> None:
    records = crossover_suite(only=RHO + PAIRS)
    few = [one for one in records if one.repeat < 5]
    found = claim(summary_of(few), "Replay among 4 or 8 workers, ρ")
    assert found.outcome is Outcome.UNDECIDED
    assert "14 cells with fewer than 6 repeats" in found.sentence


def test_naive_is_judged_over_at_least_five_offsets() -> None:
    records = crossover_suite(only=PAIRS)
    start = "Crossover beats the median of naive"
    assert claim(summary_of(records), start).outcome is Outcome.MET
    four = [one for one in records if not (one.axis == "phase" and one.at == 0.4)]
    assert claim(summary_of(four), start).outcome is Outcome.NOT_MEASURED


def test_sockets_are_held_to_the_paced_link_at_their_own_alpha() -> None:
    start = "Sockets of 2 and of 4"
    rng = np.random.default_rng(5)
    pair = Group(name="sockets-mixed-4", work=(RESNET, VGG), ways=("exclusive", "crossover"), alpha_s=7e-4)
    ends = [
        replace(pair, name="modelled-mixed-4", alpha_s=alpha_s, axis=ALPHA, at=1e6 * alpha_s)
        for alpha_s in (5e-4, 9e-4)
    ]
    records = [one for group in (pair, *ends) for one in group.records(rng)]
    assert claim(summary_of(records), start).outcome is Outcome.MET
    lower, upper = (f"modelled-mixed-4-{end.at:g}/resnet50-replay+vgg16-replay/crossover" for end in ends)
    # One end 20 % off: half-way between the ends that is a tenth.
    found = claim(summary_of(changed(records, upper, 1.2)), start)
    assert found.outcome is Outcome.MISSED
    assert found.cells[0].value.median == pytest.approx(1.0 / ((1.0 + 1.0 / 1.2) / 2), rel=0.01)
    assert claim(summary_of([one for one in records if one.cell != lower]), start).outcome is Outcome.NOT_MEASURED


def test_the_abstracts_claim_is_judged_at_every_rate(summary: Summary) -> None:
    found = claim(summary, "ImageNet networks")
    assert "20 %" in found.claim
    assert found.outcome is Outcome.MISSED
    assert "of 6 cells" in found.sentence


def test_gains_that_do_not_shrink_with_exposure_are_seen() -> None:
    records = crossover_suite(only=ON_TOP)
    start = "The gain shrinks"
    assert claim(summary_of(records), start).outcome is Outcome.MET
    cell = "rho-no-overlap-1/resnet50-replay+resnet50-replay/crossover"
    assert claim(summary_of(changed(records, cell, 2.0)), start).outcome is Outcome.MISSED


def test_one_job_with_other_weights_is_enough() -> None:
    records = crossover_suite(only=PAIRS)
    start = "Every job ends"
    place = next(n for n, one in enumerate(records) if one.sharing == "hold")
    odd = records[place]
    job = replace(odd.jobs[0], weights_digest="another")
    changed_records = [*records[:place], replace(odd, jobs=(job, *odd.jobs[1:])), *records[place + 1 :]]
    found = claim(summary_of(changed_records), start)
    assert found.outcome is Outcome.MISSED
    assert found.details == (f"{odd.cell}: 19 of 20 job runs",)


def test_packing_by_the_clock_is_not_held_to_the_last_bit() -> None:
    records = crossover_suite(only=("on-top",))
    odd = [
        replace(one, jobs=tuple(replace(job, weights_digest=f"{one.id}") for job in one.jobs))
        if one.cell.startswith("on-top-fusion")
        else one
        for one in records
    ]
    assert claim(summary_of(odd), "Every job ends").outcome is Outcome.MET


def test_one_repeat_shows_no_claim_but_equal_weights() -> None:
    found = summary_of([one for one in crossover_suite() if one.repeat == 0]).claims
    decided = [row for row in found if row.outcome in (Outcome.MET, Outcome.MISSED)]
    assert [row.claim.partition(" ends")[0] for row in decided] == ["Every job"]


def test_one_worker_with_virtual_peers_is_no_null_control() -> None:
    records = crossover_suite(only=("null-one-worker",))
    renamed = [replace(one, cell=one.cell.replace("null-one-worker", "paced")) for one in records]
    virtual = [replace(one, fabric=replace(one.fabric, num_virtual=7)) for one in renamed]
    assert claim(summary_of(renamed), "With nothing").outcome is Outcome.MET
    assert claim(summary_of(virtual), "With nothing").outcome is Outcome.NOT_MEASURED
    assert "8 workers, 7 of them virtual" in summary_of(virtual).pairs[0].title


def test_a_paced_cell_is_as_wide_as_its_workers_with_the_virtual_ones() -> None:
    records = crossover_suite(only=RHO)
    paced = [replace(one, fabric=replace(one.fabric, kind="paced", num_hosts=1, num_virtual=3)) for one in records]
    start = "Replay among 4 or 8 workers, ρ"
    found = summary_of(paced)
    assert len(claim(found, start).cells) == len(claim(summary_of(records), start).cells) > 0
    assert {row.num_workers for row in found.sweeps} == {4}
    assert all(row.title.endswith(" · 4 workers") for row in found.sweeps)


def test_other_suites_make_no_claims() -> None:
    assert summary_of(quick_suite(1)).claims == ()
