"""Two fits of α and β to the same times: what describes every size, and what a plan's seconds need."""

from __future__ import annotations

import pytest

from harness.calibrate import fit_link

STRAIGHT = {size: 1e-3 + 4e-8 * size for size in (4_096, 65_536, 524_288, 2_097_152)}
LINE = 7.3e-8  # s per byte; small messages take as long as one of 64 kB, as among eight hosts on two cores
BENT = {size: max(0.03, 0.006 + LINE * size) for size in STRAIGHT}


@pytest.mark.parametrize("relative", [True, False])
def test_a_straight_line_is_found_by_either(relative: bool) -> None:
    found = fit_link(STRAIGHT, relative=relative)
    assert (found.alpha_s, found.beta_s_per_byte) == pytest.approx((1e-3, 4e-8))
    assert found.residual == pytest.approx(0.0, abs=1e-9)


def test_of_a_bent_one_large_messages_tell_what_a_byte_takes() -> None:
    plain, relative = fit_link(BENT, relative=False), fit_link(BENT, relative=True)
    assert plain.beta_s_per_byte == pytest.approx(LINE, rel=0.2)
    assert relative.beta_s_per_byte < plain.beta_s_per_byte
    assert relative.residual < plain.residual  # it describes all sizes better


def test_one_size_is_refused() -> None:
    with pytest.raises(ValueError, match="need at least two"):
        fit_link({4_096: 1e-3})
