"""The backend `paced` with real peers does what gloo does, bit for bit, and has its link's time asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from paced_ranks import BACKENDS, NUM_RANKS, SCENARIOS

ROOT = Path(__file__).resolve().parents[2]
RANKS = Path(__file__).with_name("paced_ranks.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All scenarios over both backends, in one process tree."""
    folder = tmp_path_factory.mktemp("paced")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{RANKS.parent}"}
    done = subprocess.run([sys.executable, RANKS, folder], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
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
