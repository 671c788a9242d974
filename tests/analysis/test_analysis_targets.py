"""Methods on their way to a target: what counts as reached, what it cost, and that nothing is dropped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from described import described
from rich.console import Console

from analysis import theme
from analysis.figures import drawings
from analysis.report import render_page
from analysis.tables import render
from analysis.targets.plots import prices
from analysis.targets.reached import CHANCE, judged
from analysis.targets.rows import Spread, TargetStudy
from results.facts import CodeFacts
from results.record import CurvePoint, FabricFacts, JobResult, Record, Status
from suites.reports import summary_of

LOCKSTEP = FabricFacts(kind="lockstep", label="lockstep", num_hosts=4, rate_bps=200e6, equivalent_rate_bps=200e6)
STEP_S = 0.1


def record(
    method: str,
    values: Sequence[float],
    *,
    repeat: int = 0,
    step_bytes: float = 1e6,
    first_loss: float = 8.0,
    by_loss: bool = False,
    **changes: object,
) -> Record:
    """A made-up run that is evaluated every 10 steps with these values; 0.1 s per step. Nothing here was measured."""
    points = [CurvePoint(step=1, time_s=STEP_S, loss=first_loss)]
    for number, value in enumerate(values, start=1):
        loss, accuracy = (value, 0.1) if by_loss else (1.0 - value, value)
        step = 10 * number
        points.append(
            CurvePoint(step=step, time_s=step * STEP_S, loss=loss, accuracy=accuracy, sent_bytes=step * step_bytes)
        )
    job = JobResult(
        name="job", workload="resnet20-digits", system="ours", strategy=method, device="cpu", batch_size=8,
        num_steps=10 * len(values), wire_bytes={"gradient": step_bytes}, curve=tuple(points), clock="predicted",
    )  # fmt: skip
    made = Record(
        id=f"convergence.{method}.r{repeat:02d}", suite="convergence", cell=f"4-ranks/resnet20-digits/{method}",
        repeat=repeat, seed=1 + repeat, status=Status.OK, fabric=LOCKSTEP, jobs=(job,),
    )  # fmt: skip
    return described(replace(made, **changes))  # type: ignore[arg-type]


def study(records: Sequence[Record]) -> TargetStudy:
    (found,) = summary_of(records).targets
    return found


def dense(**settings: object) -> list[Record]:
    return [record("dense", (0.4, 0.8, 0.9 + 0.02 * n, 1.0), repeat=n, **settings) for n in range(3)]  # type: ignore[arg-type]


def test_the_target_is_a_share_of_the_dense_runs_final_accuracy_and_prices_are_those_of_the_first_point_there() -> None:
    sparse = [record("top-k", (0.2, 0.5, 0.8, 0.96), repeat=n, step_bytes=1e4) for n in range(3)]
    found = study([*sparse, *dense()])
    assert (found.metric, found.dense.name, found.num_workers) == ("accuracy", "dense", 4)
    assert found.target == pytest.approx(0.95)
    assert [price.steps for price in found.dense.prices] == [40, 40, 40]
    (row,) = found.rows[1:]
    assert row.steps == 40
    assert row.num_bytes == pytest.approx(4e5)
    assert row.time_s == pytest.approx(4.0)
    assert row.final == Spread.of([0.96] * 3)
    assert row.falls_short == pytest.approx(0.04)
    assert judged(found, row) == "reached (3 of 3 repeats); ends 4.0 points worse than dense"


def test_with_few_right_guesses_the_loss_is_the_target() -> None:
    language = [record("dense", (7.0, 6.0, 5.0), repeat=n, by_loss=True) for n in range(3)]
    slow = record("slow", (7.5, 7.0, 5.2), by_loss=True)
    found = study([*language, slow])
    assert found.metric == "loss"
    assert found.target == pytest.approx(8.0 - 0.95 * 3.0)
    assert math.isinf(found.rows[1].steps)
    assert judged(found, found.rows[1]) == "not reached (0 of 1 repeat); ends 0.20 worse than dense"


def test_what_never_gets_there_or_diverges_stays_in_the_table_and_costs_infinity() -> None:
    lost = record("lost", (0.1, 0.2, 0.3, 0.3))
    broken = [
        record("broken", (0.9, 0.9, 0.95, 0.99)),
        *(
            replace(record("broken", (), repeat=n), status=Status.DIVERGED, reason="the loss is not finite")
            for n in (1, 2)
        ),
    ]
    found = study([*dense(), lost, *broken])
    rows = {row.name: row for row in found.rows}
    assert set(rows) == {"dense", "lost", "broken"}
    assert (rows["lost"].time_s, rows["lost"].num_bytes, rows["lost"].num_reached) == (math.inf, math.inf, 0)
    assert (rows["broken"].steps, rows["broken"].num_reached, rows["broken"].num_diverged) == (math.inf, 1, 2)
    assert "not reached (1 of 3 repeats, 2 diverged)" in judged(found, rows["broken"])


def test_a_method_whose_seeds_all_diverged_is_judged_and_guesses_at_infinite_loss() -> None:
    def diverged(made: Record) -> Record:
        points = tuple(replace(point, loss=math.nan) for point in made.jobs[0].curve)
        return replace(made, status=Status.DIVERGED, jobs=(replace(made.jobs[0], curve=points),))

    broken = [diverged(record("broken", (0.1, 0.1, 0.1, 0.1), repeat=n)) for n in range(3)]
    found = study([*dense(), *broken])
    assert found.rows[1].accuracies_by_repeat == dict.fromkeys((0, 1, 2), CHANCE)
    assert found.rows[1].losses_by_repeat == dict.fromkeys((0, 1, 2), math.inf)
    assert judged(found, found.rows[1]) == "not reached (0 of 3 repeats, 3 diverged)"


def test_ends_of_two_runs_with_the_same_seeds_all_count() -> None:
    first = [*dense(), *(record("half", (0.9, 0.9, 0.9, 0.9), repeat=n) for n in range(3))]
    again = [replace(one, environment=replace(one.environment, started_at="later")) for one in first]
    rows = study([*first, *again]).rows
    assert [len(row.accuracies_by_repeat) for row in rows] == [2 * len(dense()), 6]


def test_without_a_clock_there_are_no_times_but_steps_and_bytes() -> None:
    def untimed(made: Record) -> Record:
        points = tuple(replace(point, time_s=None) for point in made.jobs[0].curve)
        return replace(made, jobs=(replace(made.jobs[0], curve=points, clock="none"),))

    found = study([*map(untimed, dense()), untimed(record("top-k", (0.5, 0.96, 0.97, 0.98)))])
    assert [(row.time_s, row.clock) for row in found.rows] == [(None, "none")] * 2
    assert found.rows[1].steps == 20
    assert found.rows[1].num_bytes == pytest.approx(2e7)


def test_a_warm_up_has_neither_a_price_in_predicted_time_nor_a_curve_over_it() -> None:
    made = record("1-bit SGD", (0.5, 0.96, 0.97, 0.98))
    code = CodeFacts(bits_per_element=1.0, lossy=True, dense_steps=6)
    warm = replace(made, jobs=(replace(made.jobs[0], code=code),))
    own, plain = study([*dense(), warm]).rows[1], study([*dense(), made]).rows[1]
    assert (own.time_s, own.clock, own.course and own.course.times_s) == (None, "none", ())
    assert plain.course is not None
    assert len(plain.course.times_s) == 4


def test_bytes_of_a_real_run_are_the_mean_step_s_times_the_steps() -> None:
    def counted_at_the_end(made: Record) -> Record:
        points = tuple(replace(point, sent_bytes=None) for point in made.jobs[0].curve)
        return replace(made, jobs=(replace(made.jobs[0], curve=points, clock="measured"),))

    records = [*dense(), record("top-k", (0.5, 0.6, 0.7, 0.96), step_bytes=2e4)]
    found = study([counted_at_the_end(made) for made in records])
    assert found.rows[1].num_bytes == pytest.approx(40 * 2e4)
    assert found.clock == "measured"


def test_a_setting_without_a_dense_run_of_that_name_takes_the_best_of_those_that_send_all_bytes() -> None:
    plain = record("fixed-buckets", (0.5, 0.7, 0.9, 0.9))
    better = record("topk", (0.5, 0.7, 0.95, 0.99), step_bytes=1e4)
    assert study([plain, better]).dense.name == "fixed-buckets"


def test_the_columns_of_prices_are_told_apart_and_do_not_run_into_each_other() -> None:
    found = study([*dense(), record("top-k", (0.2, 0.5, 0.8, 0.96), step_bytes=1e4)])
    places = ("4 ranks, 1 Gbit/s, equal", "4 ranks, 1 Gbit/s, straggler", "4 ranks, 1 Gbit/s, jitter")
    with theme.style():
        figure = prices([replace(found, where=where, workload="resnet20-shifted-digits") for where in places],
                        lambda row: row.steps_by_repeat, "Steps")  # fmt: skip
        assert figure is not None
        figure.canvas.draw()
    labels = figure.axes[0].get_xticklabels()
    assert [label.get_text().rpartition("\n")[2] for label in labels] == ["equal", "straggler", "jitter"]
    boxes = [label.get_window_extent() for label in labels]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_a_price_is_over_that_of_the_same_repeat() -> None:
    """Medians of each side alone are 30 steps and 20; seed by seed it takes twice, three times and half as many."""
    ways = {0: ((0.2, 0.3, 0.99), (0.2, 0.2, 0.2, 0.2, 0.2, 0.99)), 1: ((0.99,), (0.2, 0.2, 0.99))}
    ways |= {2: ((0.2, 0.99), (0.99,))}
    records = [
        record(name, (*values, *[0.99] * (6 - len(values))), repeat=repeat)
        for repeat, both in ways.items()
        for name, values in zip(("dense", "top-k"), both, strict=True)
    ]
    figure = prices([study(records)], lambda row: row.steps_by_repeat, "Steps")
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].texts] == ["2.0×"]


def test_figures_report_and_terminal_show_every_method() -> None:
    summary = summary_of([*dense(), record("top-k", (0.2, 0.5, 0.8, 0.96), step_bytes=1e4), record("lost", (0.1,) * 4)])
    drawn = list(drawings(summary))
    assert [drawing.topic for drawing in drawn] == ["targets"] * 4
    left, right = drawn[0].figure.axes
    assert len(left.lines) == len(right.lines) == 4  # three methods and the target
    labels = {text.get_text() for text in drawn[1].figure.axes[0].texts}
    assert "not\nreached" in labels
    page = render_page(summary, drawn)
    assert "Methods on their way to a target" in page
    assert page.count("not reached (0 of 1 repeat)") == 1
    assert "No trial ended well" not in page
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as shown:
        render(summary, console)
    assert "not reached" in shown.get()
    assert "top-k" in shown.get()
