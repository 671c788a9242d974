"""The page on legal pairs is what the rules say now."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pages import ROOT

from crossover import Sharing
from fabric.api import FabricKind, FabricSpec
from harness.checks.trial import check
from harness.trial import Job, Trial, TrialError
from models.workload import WorkloadSpec
from scripts import compatibility
from scripts.marked_block import PageError, with_block


def test_the_matrix_is_current() -> None:
    page = (ROOT / "docs" / "guide" / "compatibility.md").read_text()
    assert with_block(page, "matrix", compatibility.matrices()) == page, "run python -m scripts.compatibility"


def test_a_pair_is_illegal_only_if_nothing_else_can_mend_it() -> None:
    choices, refused = compatibility.decisions()
    assert compatibility.why_never(choices, {"compression": "half", "exchange": "ring"}) is None
    assert "cannot be summed" in (compatibility.why_never(choices, {"compression": "topk", "exchange": "ring"}) or "")
    assert "uncompressed+error-feedback" in refused


@pytest.mark.parametrize("sharing", [sharing for sharing in Sharing if sharing is not Sharing.MPS])
def test_the_update_point_inside_a_turn_is_refused_as_the_page_says(sharing: Sharing) -> None:
    job = Job(name="a", workload=WorkloadSpec(network="resnet20"), strategy="fixed-buckets+at-pre-hook")
    fabric = FabricSpec(kind=FabricKind.NATIVE, num_hosts=2, rate_bps=None)
    trial = Trial(suite="s", cell="c", jobs=(job, replace(job, name="b")), fabric=fabric, sharing=sharing)
    if not sharing.waits_in_turn:
        with pytest.raises(TrialError, match="update after-all"):
            check(trial)
    else:
        check(trial)


@pytest.mark.parametrize("page", ["", "<!-- x:begin -->", "<!-- x:end --><!-- x:begin -->"])
def test_a_page_without_its_marks_is_refused(page: str) -> None:
    with pytest.raises(PageError, match="x:begin"):
        with_block(page, "x", "text")


def test_a_block_is_replaced_and_nothing_else() -> None:
    page = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n"
    assert with_block(page, "x", "new\n") == "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb\n"
