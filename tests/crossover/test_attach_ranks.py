"""Two jobs of two ranks take turns, and every weight is as in the solo run, bit for bit."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from attach_ranks import FRAMEWORKS, JOBS, NUM_RANKS, NUM_STEPS, SCENARIOS, Scenario
from patience import patience_s

LIMIT_S = patience_s(170.0)
SCRIPT = Path(__file__).parent / "attach_ranks.py"
MARKS: dict[str, tuple[pytest.MarkDecorator, ...]] = {"horovod": (pytest.mark.horovod,)}

pytestmark = pytest.mark.timeout(180)  # the first test of a framework waits for all of its ranks

Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module", params=[pytest.param(name, marks=MARKS.get(name, ())) for name in FRAMEWORKS])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, preloaded: list[str]) -> Results:
    """What each rank wrote down, by job and rank."""
    folder = tmp_path_factory.mktemp(request.param)
    command = [*preloaded, str(SCRIPT), request.param, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2]), "GLOO_SOCKET_IFNAME": "lo"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode == 0, run.stderr
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_job_that_takes_turns_computes_what_it_computes_alone(results: Results, scenario: Scenario) -> None:
    assert len(results) == len(JOBS) * NUM_RANKS
    for rank in results.values():
        outcome = rank[scenario.name]
        assert outcome["shared"] == outcome["solo"]
        # Exact: the last update begins a turn that no forward goes on with.
        assert outcome["num_turns"] == NUM_STEPS * scenario.num_micro_batches + (not scenario.defer)


def test_two_identical_models_end_alike_and_others_do_not(results: Results) -> None:
    last = {name: rank["two identical models"]["shared"][-1] for name, rank in results.items()}
    assert last["a-0"] == last["b-0"]
    other = {name: rank["crossover"]["shared"][-1] for name, rank in results.items()}
    assert other["a-0"] != other["b-0"]
