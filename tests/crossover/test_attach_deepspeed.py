"""DeepSpeed jobs take turns, send nothing under a lease, and every weight is as in the solo run, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from patience import patience_s

from crossover import Extent, Lease, Refused, Sharing, TurnTaking
from crossover.integrations import deepspeed as integration
from crossover.integrations.deepspeed import EngineKeeper

ROOT = Path(__file__).resolve().parents[2]
RANKS = Path(__file__).parent / "deepspeed_ranks.py"
LIMIT_S = patience_s(300.0)
needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed: make doctor")

STEPS = 5
TURNS = {  # each micro-batch is a turn; under `hold`, each engine.step() is one more
    "stage 0": STEPS,
    "stage 1": STEPS,
    "stage 2": STEPS,
    "held, stage 0": STEPS * 2 * 2,
    "held, stage 2": STEPS * 2 * 2,
    "everything, stage 0": STEPS * 2,
    "everything, stage 1": STEPS * 2,
    "everything, stage 2": STEPS * 2,
    "small buckets, stage 2": STEPS,
    "small overlapped buckets, stage 1": STEPS,
    "small buckets, tick-tock, stage 2": STEPS,
    "naive, stage 1": STEPS,
    "exclusive, stage 2": STEPS,
    "loss.backward(), stage 1": STEPS,
}
NUM_COLLECTIVES_OF_ONE_BUCKET = 3  # gradients, norm, parameters


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, preloaded: list[str]) -> Path:
    """Where the ranks wrote."""
    folder = tmp_path_factory.mktemp("deepspeed")
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [*preloaded, str(RANKS), str(folder)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, dict[str, Any]]:
    """What each rank found, by job and rank."""
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("scenario", TURNS)
class TestTwoJobsOfTwoRanks:
    def test_every_weight_is_as_in_the_solo_run(self, results: dict[str, dict[str, Any]], scenario: str) -> None:
        assert len(results) == 4
        for rank, scenarios in results.items():
            assert set(scenarios) == set(TURNS)
            assert scenarios[scenario]["shared"]["seen"] == scenarios[scenario]["solo"]["seen"], rank

    def test_ranks_have_equal_weights_and_jobs_have_not(
        self, results: dict[str, dict[str, Any]], scenario: str
    ) -> None:
        weights = {rank: scenarios[scenario]["shared"]["seen"][-1] for rank, scenarios in results.items()}
        assert weights["a-0"] == weights["a-1"] != weights["b-0"] == weights["b-1"]

    def test_each_micro_batch_is_a_turn(self, results: dict[str, dict[str, Any]], scenario: str) -> None:
        for scenarios in results.values():
            assert scenarios[scenario]["shared"]["num_turns"] == TURNS[scenario]
            assert scenarios[scenario]["solo"]["num_turns"] == 0

    def test_the_engine_sends_the_same_as_alone_and_nothing_under_a_lease(
        self, results: dict[str, dict[str, Any]], scenario: str
    ) -> None:
        for scenarios in results.values():
            shared, solo = scenarios[scenario]["shared"]["collectives"], scenarios[scenario]["solo"]["collectives"]
            assert [name for name, _ in shared] == [name for name, _ in solo]
            assert all(has_lease == scenario.startswith("held") for _, has_lease in shared)
            if "bucket" in scenario:  # else the scenario would not interrupt its turns
                assert len(shared) > STEPS * NUM_COLLECTIVES_OF_ONE_BUCKET


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_the_example_ends_with_the_weights_of_its_solo_run(folder: Path) -> None:
    alone, *shared = (printed(folder / f"{job}.txt") for job in ("alone", "first", "second"))
    assert len(alone["sha256"]) == 64
    for job in shared:
        assert job["sha256"] == alone["sha256"]
        assert job["loss"] == alone["loss"]


def printed(output: Path) -> dict[str, str]:
    """The lines of a name and a value."""
    return dict(line.split() for line in output.read_text().splitlines() if len(line.split()) == 2)


class Diary(TurnTaking):
    """Writes down what is asked of it."""

    def __init__(self, extent: Extent = Extent.BACKWARD) -> None:
        self.said: list[str] = []
        self._extent = extent

    @property
    def extent(self) -> Extent:
        return self._extent

    def acquire(self, *, aside: bool = False) -> Lease:
        self.said.append("aside" if aside else "turn")
        return Lease(generation=len(self.said), round=0, waited_s=0.0)

    def release(self, lease: Lease) -> None:
        self.said.append("release")

    def skip(self, num_rounds: int) -> None:
        raise AssertionError

    def pause(self) -> None:
        raise AssertionError

    def resume(self) -> None:
        raise AssertionError

    def leave(self) -> None:
        self.said.append("leave")


class TestEngineKeeper:
    @staticmethod
    def keeper(diary: Diary) -> EngineKeeper:
        return EngineKeeper(diary, wait=lambda: diary.said.append("wait"), idle=lambda: diary.said.append("idle"))

    def test_an_interrupted_turn_goes_on_aside(self) -> None:
        diary = Diary()
        keeper = self.keeper(diary)
        keeper.begin()
        for _ in range(2):
            with keeper.interrupted():
                diary.said.append("reduce")
                assert not keeper.in_turn
            assert keeper.in_turn
        keeper.end()
        part = ["idle", "release", "reduce", "wait", "aside"]
        assert diary.said == ["wait", "turn", *part, *part, "idle", "release"]
        assert not keeper.in_turn

    def test_outside_a_turn_an_interruption_takes_no_lease(self) -> None:
        diary = Diary()
        with self.keeper(diary).interrupted():
            pass
        assert diary.said == []

    def test_a_turn_that_holds_through_messages_is_not_interrupted(self) -> None:
        diary = Diary(Extent.MESSAGES)
        keeper = self.keeper(diary)
        keeper.begin()
        with keeper.interrupted():
            assert keeper.in_turn

    def test_a_failed_interruption_leaves_no_lease(self) -> None:
        keeper = self.keeper(Diary())
        keeper.begin()
        with pytest.raises(OSError, match="peer"), keeper.interrupted():
            raise OSError("peer")
        assert not keeper.in_turn

    def test_an_interrupted_turn_is_given_back_when_it_is_closed(self) -> None:
        diary = Diary()
        keeper = self.keeper(diary)
        keeper.begin()
        with keeper.interrupted():
            pass
        keeper.close()
        assert diary.said[-3:] == ["idle", "release", "leave"]

    def test_an_evaluation_is_not_ended_by_an_interruption(self) -> None:
        keeper = self.keeper(Diary())
        with keeper.aside():
            with keeper.interrupted():
                assert keeper.in_turn
            assert keeper.in_turn

    def test_a_prolonged_turn_ends_with_its_block_even_when_that_fails(self) -> None:
        keeper = self.keeper(Diary(Extent.MESSAGES))
        keeper.begin()

        def backward() -> None:
            with keeper.prolonged():
                keeper.end()
                assert keeper.in_turn
                raise OSError("peer")

        with pytest.raises(OSError, match="peer"):
            backward()
        assert not keeper.in_turn


def engine(**different: Any) -> Any:
    """What of an engine decides whether it can take turns."""
    usual = {
        "pipeline_parallelism": False, "has_moe_layers": False, "sequence_parallel_size": 1, "mpu": None,
        "zenflow": False, "is_compiled": False, "basic_optimizer": object(), "optimizer": object(),
        "module": torch.nn.Linear(1, 1), "data_parallel_group": None,
    }  # fmt: skip
    calls = {"zero_optimization_stage": 1, "autotp_size": 1, "is_deepcompile_enabled": False}
    answers = {name: Mock(return_value=different.pop(name, answer)) for name, answer in calls.items()}
    return SimpleNamespace(**{**usual, **answers, **different})


@pytest.fixture
def one_worker(tmp_path: Path) -> Iterator[None]:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("different", "reason"),
        [
            ({"pipeline_parallelism": True}, "pipeline"),
            ({"zero_optimization_stage": 3}, "use stage 0, 1 or 2"),
            ({"has_moe_layers": True}, "MoE"),
            ({"autotp_size": 2}, "tensor parallelism"),
            ({"sequence_parallel_size": 2}, "sequence parallelism"),
            ({"mpu": object()}, "model-parallel"),
            ({"zenflow": True}, "ZenFlow"),
            ({"is_compiled": True}, "attach without it"),
            ({"is_deepcompile_enabled": True}, "DeepCompile"),
            ({"basic_optimizer": None}, "give deepspeed.initialize one"),
        ],
    )
    def test_what_sends_inside_a_turn_is_refused_with_the_reason(self, different: dict[str, Any], reason: str) -> None:
        with pytest.raises(Refused, match=reason):
            integration.team((engine(**different),), ())

    def test_an_optimizer_of_another_model_is_refused(self) -> None:
        with pytest.raises(Refused, match="attach the engine alone"):
            integration.team((engine(),), (torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1),))

    @pytest.mark.usefixtures("one_worker")
    def test_an_engine_and_its_own_optimizer_are_accepted(self) -> None:
        accepted = engine()
        assert integration.team((accepted,), (accepted.optimizer,)).strict == ""


def test_a_method_is_run_inside_its_context_with_its_arguments() -> None:
    said = []

    @contextmanager
    def lease() -> Iterator[None]:
        said.append("begin")
        yield
        said.append("end")

    assert integration.around(lease)(lambda first, *, second: first + second, 1, second=2) == 3
    assert said == ["begin", "end"]


def test_only_a_sharing_that_holds_waits_for_messages_in_its_turns() -> None:
    assert [sharing for sharing in Sharing if sharing.extent is Extent.MESSAGES] == [Sharing.HOLD]
