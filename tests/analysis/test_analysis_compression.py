"""Compression from records: bits, seconds, the links on which a method pays, times to the target, and claims."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from described import described
from rich.console import Console
from synthetic_compression import COMPUTE_S, METHODS, NUM_PARAMETERS, compression_suite, record, step_s

from analysis import theme
from analysis.claims import ClaimRow, Outcome
from analysis.codes.figures import compression_drawings
from analysis.codes.findings import compression_study, pays_of
from analysis.codes.rows import CompressionStudy, MethodRow, PaysBelow, SoonerRow
from analysis.codes.sent import facts_of
from analysis.corrections import overrun
from analysis.report import render_page
from analysis.rows import Summary
from analysis.stats import median_interval
from analysis.steps.rows import Setting
from analysis.tables import render, rows_as_json
from results.facts import ChargeFacts, CodeFacts, Role
from results.record import Phases, Record, Status
from suites.reports import summary_of


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summary_of(compression_suite())


@pytest.fixture(scope="module")
def study(summary: Summary) -> CompressionStudy:
    return summary.compression


def row(study: CompressionStudy, name: str, gbit: float | None = 0.2, workload: str = "resnet20-digits") -> MethodRow:
    (found,) = (r for r in study.rows if (r.name, r.place.gbit, r.place.workload) == (name, gbit, workload))
    return found


def pays(study: CompressionStudy, name: str, workload: str = "resnet20-digits") -> PaysBelow:
    (found,) = (one for one in study.pays if (one.name, one.workload) == (name, workload))
    return found


def sooner(study: CompressionStudy, name: str) -> SoonerRow:
    (found,) = (one for one in study.sooner if one.name == name)
    return found


def claim(summary: Summary, start: str) -> ClaimRow:
    return next(one for one in summary.claims if one.claim.startswith(start))


def crossing_gbit(name: str, rival: str) -> float:
    """Where the formula's steps are equal: codec seconds lost are bits saved over the rate."""
    own, other = METHODS[name], METHODS[rival]
    return (other.bits - own.bits) * NUM_PARAMETERS / (own.codec_s - other.codec_s) / 1e9


def test_bits_are_what_was_sent_less_the_steps_of_a_warm_up(study: CompressionStudy) -> None:
    assert row(study, "dense").bits == pytest.approx(32.0)
    assert row(study, "top-k 1 %").bits == pytest.approx(0.61)
    warm = row(study, "1-bit SGD")
    assert warm.bits == pytest.approx(1.2)
    assert warm.mean_bits == pytest.approx((4 * 32 + 36 * 1.2) / 40)
    assert not warm.bits_with_warm_up
    assert row(study, "DGC 0.1 %").bits_with_warm_up


def gathered_warm_up(code: CodeFacts) -> MethodRow:
    """Top-k at 0.6 bits, sent three times, behind 4 of 40 steps in which float32 is, in lockstep."""
    made = record("top-k 1 %", 200e6, 0)
    sent = {"gradient": (4 * 3 * 32.0 + 36 * 3 * 0.6) / 40 * NUM_PARAMETERS / 8}
    own = replace(made.jobs[0], ranks=(), clock="none", wire_bytes=sent, code=code)
    fabric = replace(made.fabric, kind="lockstep", label="lockstep", num_hosts=4)
    (found,) = compression_study([[replace(made, jobs=(own,), fabric=fabric)]], (), {"compression"}).rows
    return found


def test_ratio_and_warm_up_are_worked_out_by_what_the_exchange_sends_without_step_times_too() -> None:
    code = CodeFacts(bits_per_element=0.4, lossy=True, dense_steps=4, sent_share=3.0, dense_share=3.0)
    found = gathered_warm_up(code)
    assert (found.bits, found.ratio) == (pytest.approx(1.8), pytest.approx(32 / 0.6))
    assert found.theory_bits == pytest.approx(1.2)
    all_dense = gathered_warm_up(replace(code, dense_steps=40))
    assert (all_dense.bits, all_dense.ratio) == (None, None)


def test_older_records_tell_how_often_a_code_is_sent_where_they_ran_by_all_reduce() -> None:
    def shares(text: str, num_ranks: int) -> tuple[float | None, float | None]:
        old = described(replace(bare, jobs=(replace(bare.jobs[0], strategy=text),)))
        code = facts_of(old.jobs[0], num_ranks)
        return code.sent_share, code.dense_share

    bare = record("dense", 200e6, 0)
    assert shares("unfused+half", 4) == (1.5, 1.5)
    assert shares("unfused+topk(density=0.01)", 4) == (3.0, 1.5)
    assert shares("unfused+half+all-gather", 4) == (None, None)
    assert shares("unfused+double-squeeze+parameter-server(servers=1)", 3) == (None, None)
    assert shares("unfused+gtopk(density=0.01)+tree", 2) == (1.0, 1.0)
    assert shares("unfused+gtopk(density=0.01)+tree", 4) == (None, None)


def test_a_code_s_ratio_does_not_depend_on_how_often_it_is_sent(study: CompressionStudy) -> None:
    far = row(study, "DGC 0.1 %", 10.0, "resnet50-replay")
    assert far.bits == pytest.approx(7 * 0.08)
    assert far.ratio == pytest.approx(400.0)


def test_compress_and_decompress_are_told_apart(study: CompressionStudy) -> None:
    own = row(study, "QSGD 4 bit")
    assert own.compress_s == pytest.approx(0.0225)
    assert own.phases.decompress_s == pytest.approx(0.0075)


@pytest.mark.parametrize(("name", "rival"), [("top-k 1 %", "fp16"), ("1-bit SGD", "fp16")])
def test_the_rate_up_to_which_a_method_pays_is_where_its_step_meets_the_better_of_float32_and_half(
    study: CompressionStudy, name: str, rival: str
) -> None:
    found = pays(study, name).threshold
    truth = crossing_gbit(name, rival)
    assert found.basis == "measured"
    assert found.gbit.n == 8
    assert 0.2 < truth < 2.0
    assert found.gbit.median == pytest.approx(min(truth, 1.0), rel=0.25) or math.isinf(found.gbit.median)
    gains = [_best(rate) / step_s(METHODS[name], rate) for rate in (50e6, 1e9)]
    assert gains[0] > 1.01
    assert (gains[1] > 1.01) == math.isinf(found.gbit.median)


def _best(rate: float) -> float:
    return min(step_s(METHODS[name], rate) for name in ("dense", "fp16"))


def test_the_better_packing_of_float32_and_half_is_the_one_to_beat() -> None:
    """A second packing of half whose steps are a third of the first one's: sparse then pays nowhere."""
    second = [
        replace(record("fp16", rate, repeat, off=1 / 3), cell=f"{group}/resnet20-digits/fp16, one message")
        for repeat in range(8)
        for rate, group in ((50e6, "rate-50"), (200e6, "converge"), (500e6, "rate-500"), (1e9, "rate-1000"))
    ]
    second = [replace(r, id=f"{r.id}-second") for r in second]
    found = summary_of([*compression_suite(), *second]).compression
    assert pays(found, "top-k 1 %").threshold.gbit.median < crossing_gbit("top-k 1 %", "fp16") / 2
    assert pays(found, "fp16").threshold == pays(summary_of(compression_suite()).compression, "fp16").threshold
    assert not any(one.name.startswith("dense") for one in found.pays)


def test_half_has_to_beat_float32_and_says_how_it_does_without_a_rate(study: CompressionStudy) -> None:
    half = pays(study, "fp16")
    assert math.isinf(half.threshold.gbit.median)  # 1 ms of coding, and 4 ms of link saved at 1 Gbit/s
    assert half.unshaped is not None
    assert half.unshaped.median == pytest.approx(COMPUTE_S / (COMPUTE_S + 0.001), rel=0.02)
    assert half.threshold.text == "all of 0.0500 to 1.00"


def test_what_pays_nowhere_is_told_so(summary: Summary) -> None:
    dear = [
        replace(r, jobs=(replace(r.jobs[0], ranks=tuple(replace(k, steps_s=(9.0,) * 3) for k in r.jobs[0].ranks)),))
        if r.cell.endswith("QSGD 4 bit")
        else r
        for r in compression_suite()
    ]
    found = pays(summary_of(dear).compression, "QSGD 4 bit").threshold
    assert found.gbit.median == 0
    assert found.text == "nowhere from 0.0500 up"


@pytest.mark.parametrize(
    ("gains", "text"),
    [
        ([(0.9, 1.5)] * 6, "not at 10.0, and on some higher ones"),
        ([(1.5, 1.2)] * 3 + [(1.5, 0.7)] * 3, "all of 10.0 to 100 [33.0, > 100]"),
        ([(0.8, 0.7)] * 4 + [(1.5, 0.7)] * 3, "nowhere from 10.0 up [< 10.0, 33.0]"),
        ([(0.8, 0.7)] * 6, "nowhere from 10.0 up"),
        ([(1.5, 1.2)] * 6, "all of 10.0 to 100"),
    ],
)
def test_a_threshold_tells_its_interval_and_higher_rates_wherever_its_median_lies(
    gains: list[tuple[float, float]], text: str
) -> None:
    """Gains at 10 and at 100 Gbit/s, a pair a repeat."""
    (found,) = pays_of(beside_dense(gains))
    assert found.threshold.text == text


def beside_dense(gains: Sequence[tuple[float, float]], network: str = "", fabric: str = "paced") -> list[MethodRow]:
    """Dense and top-k at 10 and at 100 Gbit/s."""
    return [
        MethodRow(
            place=Setting(
                suite="s", workload="w", batch_size=1, num_workers=2, gbit=gbit, fabric=fabric,
                network=network and f"{network}(k=4, gbit={gbit:g}), fluid",
            ),
            name=name, method=name, system="ours", evidence=fabric, phases=Phases(), role=role,
            by_repeat=tuple((repeat, 1.0 if role is Role.DENSE else 1 / pair[at]) for repeat, pair in enumerate(gains)),
        )
        for at, gbit in enumerate((10.0, 100.0))
        for name, role in (("dense", Role.DENSE), ("top-k", Role.METHOD))
    ]  # fmt: skip


def test_networks_and_fabrics_have_thresholds_and_curves_of_their_own() -> None:
    """A gain of 2 on one, 0.5 on the others."""
    rows = [
        *beside_dense([(2.0, 2.0)] * 6, "fat-tree"),
        *beside_dense([(0.5, 0.5)] * 6, "torus"),
        *beside_dense([(0.5, 0.5)] * 6, fabric="emulated"),
    ]
    assert [(one.where, one.threshold.text) for one in pays_of(rows)] == [
        ("paced, fat-tree(k=4), fluid", "all of 10.0 to 100"),
        ("paced, torus(k=4), fluid", "nowhere from 10.0 up"),
        ("emulated", "nowhere from 10.0 up"),
    ]
    with theme.style():
        names = [drawing.name for drawing in compression_drawings(CompressionStudy(rows=tuple(rows)))]
    assert [name for name in names if "gain" in name] == [
        "compression-gain-w-2-workers-fat-tree-k-4-fluid-paced",
        "compression-gain-w-2-workers-torus-k-4-fluid-paced",
        "compression-gain-w-2-workers-emulated",
    ]


def test_two_fabrics_at_one_rate_are_two_rows_and_of_two_cells_on_one_the_first_counts() -> None:
    first = record("top-k 1 %", 200e6, 0)
    slower = replace(record("top-k 1 %", 200e6, 0, off=3.0), id="slower")
    paced = replace(slower, fabric=replace(slower.fabric, kind="paced"))
    for pair in ([first, paced], [paced, first]):
        rows = compression_study([[one] for one in pair], (), {"compression"}).rows
        assert {row.place.fabric: row.ids for row in rows} == {"emulated": (first.id,), "paced": ("slower",)}
    (row,) = compression_study([[first], [slower]], (), {"compression"}).rows
    assert row.ids == (first.id,)
    assert row.step_time_s is not None
    assert row.step_time_s.median == pytest.approx(step_s(METHODS["top-k 1 %"], 200e6))


def test_where_only_one_rate_was_measured_predicted_steps_tell(study: CompressionStudy) -> None:
    found = pays(study, "DGC 0.1 %", "resnet50-replay").threshold
    assert found.basis == "predicted"
    assert 5.0 < found.gbit.median < 10.0  # 200 against 250 ms, then 180 against 150


def test_time_to_the_target_is_measured_at_home_and_steps_times_the_step_elsewhere(study: CompressionStudy) -> None:
    half, sparse = sooner(study, "fp16"), sooner(study, "top-k 1 %")
    dense, own = METHODS["dense"], METHODS["top-k 1 %"]
    assert half.home is not None
    assert half.home.median == pytest.approx(step_s(dense, 200e6) / step_s(METHODS["fp16"], 200e6), rel=0.02)
    at = dict(sparse.gains)
    assert at[1.0].median == pytest.approx(20 * step_s(dense, 1e9) / (24 * step_s(own, 1e9)), rel=0.02)


def test_a_warm_up_s_steps_take_the_dense_step_s_time(study: CompressionStudy) -> None:
    dense, own = METHODS["dense"], METHODS["DGC 0.1 %"]
    expected = 20 * step_s(dense, 50e6) / (4 * step_s(dense, 50e6) + 32 * step_s(own, 50e6))
    assert dict(sooner(study, "DGC 0.1 %").gains)[0.05].median == pytest.approx(expected, rel=0.02)


def test_what_never_reaches_the_target_has_no_gain_and_stays_in_the_table(study: CompressionStudy) -> None:
    lost = sooner(study, "1-bit SGD")
    assert (lost.gains, lost.threshold, lost.num_reached, lost.num_repeats) == ((), None, 0, 8)


def test_the_suite_s_own_claims_are_judged(summary: Summary) -> None:
    first = claim(summary, "At 200 Mbit/s")
    assert first.outcome is Outcome.MET
    assert "resnet20-digits" in first.sentence
    assert sooner(summary.compression, "1-bit SGD").lost_too == median_interval([0.0] * 8)
    above = claim(summary, "There is a rate above")
    assert above.outcome is Outcome.MET  # the made-up half is sooner up to the highest rate, and not on no rate at all
    assert sooner(summary.compression, "fp16").unshaped is not None
    assert sooner(summary.compression, "fp16").unshaped.median < 1  # type: ignore[union-attr]
    shaped = summary_of([r for r in compression_suite() if r.fabric.rate_bps])
    assert claim(shaped, "There is a rate above").outcome is Outcome.UNDECIDED
    assert "fp16" in above.sentence


def test_without_a_sparse_method_at_the_target_nothing_is_claimed() -> None:
    few = [r for r in compression_suite() if not r.cell.endswith(("top-k 1 %", "DGC 0.1 %"))]
    assert claim(summary_of(few), "At 200 Mbit/s").outcome is Outcome.NOT_MEASURED
    assert claim(summary_of(compression_suite(5)), "At 200 Mbit/s").outcome is Outcome.UNDECIDED


def test_papers_and_sceptics_are_judged_by_numbers(summary: Summary) -> None:
    outcomes = {one.claim: one.outcome for one in summary.claims}
    ratio = claim(summary, "DGC's paper: 270")
    assert ratio.outcome is Outcome.MET
    assert "400" in ratio.sentence
    assert claim(summary, "SBC's paper").outcome is Outcome.NOT_MEASURED  # none on ResNet-50
    few = claim(summary, "The sceptics (Agarwal")
    assert few.outcome is Outcome.MET  # DGC's 0.18 s against half's 0.15
    assert "0 of 2 set-ups" in few.sentence
    assert "one core of a processor" in few.sentence
    fast = claim(summary, "The sceptics (Zhang et al., NetAI 2020): at 100")
    assert fast.outcome is Outcome.MET  # 90 of 92 ms
    slow = claim(summary, "The sceptics (Zhang et al., NetAI 2020): at 10 ")
    assert slow.outcome is Outcome.MISSED  # 90 of 150 ms
    assert len(outcomes) == len(summary.claims)


def test_a_compressor_that_beats_the_better_rival_on_a_fast_link_counts_against_the_sceptics() -> None:
    cheap = [
        replace(r, prediction=replace(r.prediction, step_time_s=0.05))
        if "DGC" in r.cell and r.fabric.label == "simulated" and r.prediction
        else r
        for r in compression_suite()
    ]
    few = claim(summary_of(cheap), "The sceptics (Agarwal")
    assert few.outcome is Outcome.MISSED
    assert few.sentence.endswith("1 of 1 at 10 Gbit/s, 1 of 1 at 100 Gbit/s.")


def test_other_suites_have_no_compression_section() -> None:
    other = [replace(r, suite="quick") for r in compression_suite(1)[:6]]
    found = summary_of(other)
    assert found.compression == CompressionStudy()
    assert not any(one.claim.startswith("DGC") for one in found.claims)
    assert 'id="compression"' not in render_page(found, [])


def test_every_figure_is_drawn_with_its_records(study: CompressionStudy) -> None:
    with theme.style():
        drawn = {drawing.name: drawing for drawing in compression_drawings(study)}
        for drawing in drawn.values():
            drawing.figure.draw_without_rendering()
    assert {"compression-pays-below-resnet20-digits", "compression-sooner-resnet20-digits"} <= set(drawn)
    assert "compression-bits-resnet20-digits-2-workers-0-2-gbit-s-emulated" in drawn
    assert "compression-gain-resnet20-digits-2-workers-emulated" in drawn
    assert all(drawing.record_ids and drawing.caption for drawing in drawn.values())


def test_page_tables_and_json_hold_what_was_found(summary: Summary) -> None:
    page = render_page(summary, [])
    assert 'id="compression"' in page
    assert "all of 0.0500 to 1.00" in page
    assert "reached in 0 of 8 repeats" in page
    console = Console(file=io.StringIO(), width=140)
    render(summary, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Links on which compression pays" in text
    assert "compression: resnet20-digits, 2 workers, 0.2 Gbit/s" in text
    assert rows_as_json(summary)["compression"]["pays"]


def test_a_method_that_failed_in_one_repeat_is_no_row_with_it() -> None:
    records: list[Record] = [record("dense", 200e6, 0), record("fp16", 200e6, 0)]
    found = summary_of(records).compression
    assert [len(r.by_repeat) for r in found.rows] == [1, 1]
    assert not np.isfinite(found.rows[0].step_time_s.low)  # type: ignore[union-attr]


def test_a_replayed_codec_that_took_longer_than_its_charge_keeps_its_bits_and_loses_its_times() -> None:
    slow = [
        replace(r, jobs=(replace(r.jobs[0], phases=replace(r.jobs[0].phases, compress_s=0.1)),))
        if "DGC" in r.cell and r.fabric.label == "replay"
        else r
        for r in compression_suite()
    ]
    found = summary_of(slow)
    far = row(found.compression, "DGC 0.1 %", 10.0, "resnet50-replay")
    assert far.ratio == pytest.approx(400.0)
    assert (far.by_repeat, far.step_time_s) == ((), None)
    assert any("longer than it is charged" in one.reason for one in found.outcomes)
    assert [(one.status, one.num_repeats) for one in found.outcomes] == [(Status.INVALID, 8)]
    assert claim(found, "The sceptics (Agarwal").outcome is Outcome.MET  # told by the clock, which charges it in full


def test_one_rule_for_the_work_of_codecs_merges_are_charged_and_of_jobs_that_share_nothing_can_be_told() -> None:
    one = next(r for r in compression_suite() if "DGC" in r.cell and r.fabric.label == "replay")
    job = one.jobs[0]
    charge = ChargeFacts(method="gtopk", stages_s=(1e-9,), merge_s=2e-9, num_ranks=8)
    num_elements = job.num_parameters * one.fabric.size_scale
    # Eight ranks merge in three rounds.
    merging = replace(job, charge=charge, phases=replace(job.phases, compress_s=7e-9 * num_elements))
    assert overrun(replace(one, jobs=(merging,))) == ""
    longer = replace(merging, phases=replace(job.phases, compress_s=7e-9 * num_elements + 0.1))
    assert "longer than it is charged" in overrun(replace(one, jobs=(longer,)))
    assert overrun(replace(one, jobs=(longer, longer), sharing="crossover")) == ""
    assert overrun(replace(one, jobs=(merging, longer), sharing="exclusive")) != ""
