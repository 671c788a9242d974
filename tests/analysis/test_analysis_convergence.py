import math
from dataclasses import replace

import numpy as np
import pytest
from synthetic_records import single

from analysis.targets.convergence import held_out_curves, smoothed, target_loss, time_to_loss_s, training_curves
from results.record import CurvePoint, Record


def record(*points: CurvePoint) -> Record:
    made = single("resnet20-digits", "unfused", 0, np.random.default_rng(0))
    return replace(made, jobs=(replace(made.jobs[0], curve=points),))


def trained(*losses: float) -> list[CurvePoint]:
    return [CurvePoint(step=n + 1, time_s=float(n), loss=loss) for n, loss in enumerate(losses)]


def test_held_out_points_never_enter_the_training_curve() -> None:
    held_out = CurvePoint(step=2, time_s=1.0, loss=99.0, accuracy=0.5)
    mixed = record(*trained(2.0, 1.0), held_out, *trained(0.5))
    assert [point.loss for point in held_out_curves([mixed])[0]] == [99.0]
    assert max(point.loss for point in training_curves([mixed])[0]) <= 2.0


def test_smoothing_is_a_trailing_mean() -> None:
    losses = [point.loss for point in smoothed(trained(4.0, 2.0, 0.0, 2.0), window=2)]
    assert losses == pytest.approx([4.0, 3.0, 1.0, 1.0])


def test_the_target_is_a_share_of_the_baselines_own_progress() -> None:
    target = target_loss([trained(2.0, 1.0, 0.0)], share=0.9)
    assert target == pytest.approx(0.2)
    assert time_to_loss_s(trained(2.0, 1.0, 0.1), 0.2) == 2.0
    assert time_to_loss_s(trained(2.0, 1.0), 0.2) == math.inf


def test_a_baseline_that_learned_nothing_sets_no_target() -> None:
    assert target_loss([trained(1.0, 2.0)]) is None
