"""What a profiled job says of its own model: bytes, layers in their order, and times that add up to its passes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from crossover.attach import attach
from crossover.commands.main import main
from crossover.errors import ArbiterAbsent, ArbiterLost
from crossover.integrations.layer_clock import LayerClock
from crossover.integrations.workers import process_group_team
from crossover.planning import read_profile
from crossover.process import start
from crossover.status import read_status
from crossover.worker_report import (
    WORKER_REPORTS,
    LayerReport,
    WorkerReport,
    first_report,
    layers_text,
    write_report,
)
from models.layer_profile import load_profile
from models.workload import WorkloadError
from suites.cli import main as crossover_bench

SLOW_S = 0.004  # a sleep that no layer of this size comes near


class Slow(torch.autograd.Function):
    """Sleeps in both directions."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        time.sleep(SLOW_S)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(2 * SLOW_S)
        return gradient


class Net(nn.Module):
    """Registered the other way round than computed; the second layer is slow, one parameter is frozen, one is tied."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.middle = nn.Linear(4, 4)
        self.first = nn.Linear(3, 4)
        self.first.bias.requires_grad_(False)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.middle.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.tied(Slow.apply(self.middle(self.first(x)))))


def trained(model: nn.Module, num_steps: int) -> tuple[WorkerReport, float]:
    """A worker's report after so many steps, and the seconds they took."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    clock = LayerClock((model,), world=3)
    began_s = time.perf_counter()
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.ones(5, 3)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model(torch.ones(7, 3))  # an evaluation is no pass
    took_s = time.perf_counter() - began_s
    clock.remove()
    return clock.report((optimizer,)), took_s


def test_layers_are_timed_in_the_order_in_which_they_compute() -> None:
    report, took_s = trained(Net(), 9)
    assert [layer.name for layer in report.layers] == ["first", "middle", "last"]
    shapes = {name: shape for layer in report.layers for name, shape in layer.parameters}
    assert shapes == {
        "first.weight": (4, 3),
        "middle.weight": (4, 4),
        "middle.bias": (4,),
        "last.weight": (2, 4),
        "last.bias": (2,),
    }
    middle = report.layers[1]
    assert middle.forward_s >= SLOW_S  # its own beginning to the next layer's
    assert middle.backward_s >= 2 * SLOW_S  # from the gradients of `last` to its own
    total_s = sum(layer.forward_s + layer.backward_s for layer in report.layers)
    assert total_s <= took_s / 5  # medians of 9: five passes took no less
    assert (report.num_passes, report.batch_size, report.sample, report.world) == (9, 5, "3", 3)


def test_bytes_are_those_of_parameters_gradients_and_the_optimizers_state() -> None:
    report, _ = trained(Net(), 2)
    trained_numbers = 12 + 16 + 4 + 8 + 2
    assert report.memory == {
        "parameters_bytes": 4 * (trained_numbers + 4),  # the frozen bias too
        "gradients_bytes": 4 * trained_numbers,
        "optimizer_bytes": 4 * trained_numbers,  # momentum
        "activations_bytes": 0,  # unknown on a CPU
    }


def test_a_compiled_model_is_counted_and_not_timed() -> None:
    model = Net()
    model.compile(backend="eager")
    report = LayerClock((model,), 1).report(())
    assert report.layers == ()
    assert report.gradients_bytes > 0


def test_a_clock_that_is_removed_leaves_no_hook() -> None:
    model = Net()
    LayerClock((model,), 1).remove()
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())
    assert not any(own._post_accumulate_grad_hooks for own in model.parameters())


def test_the_first_workers_largest_model_counts(tmp_path: Path) -> None:
    layer = LayerReport(
        name="a", parameters=(("a.w", (2, 3)),), forward_s=1, backward_s=2, forward_spread_s=0, backward_spread_s=0
    )
    shared: dict[str, Any] = {"world": 2, "parameters_bytes": 8, "optimizer_bytes": 0, "activations_bytes": 0}
    shared |= {"device": "cpu", "precision": "fp32", "batch_size": 4, "sample": "3", "num_passes": 5}
    for rank, gradients in ((1, 99), (0, 4), (0, 24)):
        write_report(str(tmp_path), WorkerReport(rank=rank, gradients_bytes=gradients, layers=(layer,), **shared))
    found = first_report(tmp_path)
    assert found is not None
    assert (found.rank, found.gradients_bytes, found.layers) == (0, 24, (layer,))
    assert first_report(tmp_path / "nothing") is None


def test_a_worker_on_a_host_without_the_folder_trains_as_it_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WORKER_REPORTS, str(tmp_path / "of-another-host"))
    model = Net()
    with start(tmp_path / "s" / "host.sock", ("a",)) as arbiter:
        attachment = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), job="a", path=arbiter.path)
        model(torch.ones(5, 3)).sum().backward()
        attachment.close()
    assert attachment.statistics.num_turns == 1
    assert not (tmp_path / "of-another-host").exists()


def test_the_workers_of_all_hosts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arbiter of one host sees its own alone."""
    answers = {"get_backend": "gloo", "get_rank": 4, "get_world_size": 6}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.distributed, name, lambda group, answer=answer: answer)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    team = process_group_team(torch.device("cpu"), None)
    assert (team.world, team.num_local) == (6, 2)
    assert team.agree is not None


SCRIPT = """\
import time, torch, crossover
model = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
crossover.attach(model, optimizer)
for step in range(120):
    optimizer.zero_grad()
    model(torch.ones(16, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.02)  # the arbiter is looked at four times per second
"""
NUM_VALUES = 64 * 1024 + 1024 + 1024 * 10 + 10


def test_a_profiled_script_can_be_predicted_with_its_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], preloaded: list[str]
) -> None:
    """`crossover run --profile` knew no bytes, so that nothing was left for `predict` to send."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    socket = tmp_path / "s" / "host.sock"
    folder = tmp_path / "profiles"
    job = f"net={shlex.join([*preloaded, str(script)])}"
    assert main(["run", "--socket", str(socket), "--profile", str(folder), job]) == 0
    with suppress(ArbiterAbsent, ArbiterLost, ProcessLookupError):  # this process has adopted it, and may end first
        os.kill(read_status(socket).pid, signal.SIGTERM)
    profile = read_profile(folder / "net.json")
    assert profile.gradients_bytes == profile.parameters_bytes == 4 * NUM_VALUES
    layers = load_profile(str(folder / "layers" / "net.json"))
    assert (layers.num_parameters, layers.batch_size, layers.network) == (NUM_VALUES, 16, "net")
    assert min(layers.forward_s, layers.backward_s) > 0
    capsys.readouterr()
    words = ["predict", "--profile", str(folder / "layers" / "net.json"), "--hosts", "1,8", "--rates", "1mbit"]
    assert crossover_bench([*words, "--alpha", "1e-4", "--strategies", "fixed-buckets", "--json"]) == 0
    alone, eight = json.loads(capsys.readouterr().out)
    line_s = 2 * 7 / 8 * 4 * NUM_VALUES * 8 / 1e6  # a ring's share of all gradients, seconds
    assert eight["step_s"] - alone["step_s"] == pytest.approx(line_s, rel=0.05)  # next to nothing hides it


def test_a_profile_without_layers_is_refused_with_the_file_that_has_them(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"schema": 1, "name": "a", "compute_s": 0.1, "communication_s": 0.1, "solo_s": 0.2}')
    with pytest.raises(WorkloadError, match=r"without layers.*give .*/layers/a\.json"):
        load_profile(str(path))


def test_layers_of_a_report_are_a_profile_of_layers(tmp_path: Path) -> None:
    report, _ = trained(Net(), 3)
    path = tmp_path / "net.json"
    path.write_text(layers_text("net", report))
    profile = load_profile(str(path))
    assert [layer.name for layer in profile.layers] == [layer.name for layer in report.layers]
    assert profile.num_steps == 3
