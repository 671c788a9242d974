"""What a planner sends once is no part of a step."""

from __future__ import annotations

from analysis.steps.wire_bytes import bytes_a_step


def test_probes_are_no_part_of_a_step() -> None:
    counted = {"gradient": 100.0, "control": 3.0, "probe": 40.0}
    assert bytes_a_step(counted) == 103.0
    assert bytes_a_step(counted, 150.0) == 110.0
    assert bytes_a_step({}, 150.0) == 150.0
    assert bytes_a_step({}) is None
