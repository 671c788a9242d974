"""The backend `paced` with real peers does what gloo does, bit for bit, and has its link's time asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from paced_ranks import BACKENDS, NUM_RANKS, SCENARIOS, run_all


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All scenarios over both backends."""
    folder = tmp_path_factory.mktemp("paced")
    run_all(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_real_ranks_get_from_paced_what_they_get_from_gloo(scenario: str, results: Path) -> None:
    told = {
        (backend, rank): json.loads((results / f"{scenario}-{backend}-{rank}.json").read_text())
        for backend in BACKENDS
        for rank in range(NUM_RANKS)
    }
    for rank in range(NUM_RANKS):
        assert told["gloo", rank]["digest"] == told["paced", rank]["digest"]
        assert told["paced", rank]["link_s"] > 0
