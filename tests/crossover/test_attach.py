"""The one line: what it finds in the environment, and what happens around it."""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from patience import patience_s
from torch import nn
from turn_diary import Diary

from crossover import ArbiterAbsent, ArbiterProcess, Participant, Refused, start
from crossover.attach import JOB, SETTINGS, SOCKET, Attachment, _job_name, _say_alone, attach
from crossover.integrations import Manner, Team, plain
from crossover.settings import Settings

SOON_S = patience_s(20.0)
BATCH = torch.linspace(-1, 1, 12).reshape(4, 3)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (JOB, SETTINGS, SOCKET):
        monkeypatch.delenv(name, raising=False)
    _say_alone.cache_clear()


@pytest.fixture
def arbiter(tmp_path: Path) -> Iterator[ArbiterProcess]:
    with start(tmp_path / "host.sock") as process:
        yield process


class Script:
    """A model and its optimizer, as a script has them."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(BATCH).square().sum().backward()
        self.optimizer.step()


def test_without_anything_to_share_the_script_runs_alone_and_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    script = Script()
    with attach(script.model, script.optimizer, job="a") as attachment:
        attach(script.model, script.optimizer, job="a")
        script.step()
        assert not attachment.takes_turns
        assert attachment.statistics.num_turns == 0
        assert attachment.spans == ()
    assert "step" not in vars(script.optimizer)
    assert not script.model._forward_hooks
    assert capsys.readouterr().err.count("runs alone") == 1


def test_the_starter_names_job_socket_and_settings(arbiter: ArbiterProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JOB, "b")
    monkeypatch.setenv(SOCKET, str(arbiter.path))
    script = Script()
    with attach(script.model, script.optimizer) as attachment:
        assert attachment.job == "b"
        assert attachment.takes_turns
    assert not attachment.takes_turns


def test_the_starters_name_for_a_job_comes_before_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(jobs=("a", "b"))
    with pytest.raises(Refused, match="no name"):
        _job_name(None, settings)
    with pytest.raises(Refused, match="not among"):
        _job_name("resnet50", settings)
    assert _job_name("resnet50", None) == "resnet50"
    monkeypatch.setenv(JOB, "a")
    assert _job_name("resnet50", settings) == _job_name(None, None) == "a"


def test_an_arbiter_that_is_not_there_is_said(tmp_path: Path) -> None:
    script = Script()
    with pytest.raises(ArbiterAbsent):
        attach(script.model, script.optimizer, job="a", path=tmp_path / "nobody.sock")
    assert "step" not in vars(script.optimizer)


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({"model": "a model"}, "give a torch module"),
        ({"optimizer": "an optimizer"}, "give a torch module"),
        ({"release": "never"}, "event"),
        ({"job": None}, "no name"),
        ({"job": "not a name"}, "letters"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_remedy(
    arbiter: ArbiterProcess, arguments: dict[str, Any], remedy: str
) -> None:
    script = Script()
    given = {"model": script.model, "optimizer": script.optimizer, "job": "a", "path": arbiter.path, **arguments}
    with pytest.raises(Refused, match=remedy):
        attach(**given)


def test_nccl_refuses_turns_that_are_not_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "team", lambda *_: Team(agree=None, device="0", strict="one order"))
    script = Script()
    with pytest.raises(Refused, match="one order: use 0"):
        attach(script.model, script.optimizer, job="a", settings=Settings(jobs=("a", "b"), lead_rounds=1))


def test_two_jobs_alternate_though_one_fails_in_a_backward_and_another_leaves(arbiter: ArbiterProcess) -> None:
    script, order = Script(), list[str]()

    def other() -> None:
        with Participant(arbiter.path, "b", wait_limit_s=SOON_S) as mine:
            for _ in range(8):
                with mine.turn():
                    order.append("b")

    thread = threading.Thread(target=other)
    thread.start()
    # A rest that a busy machine lengthens beyond its limit would let b pass.
    with attach(script.model, script.optimizer, job="a", path=arbiter.path, rest_limit_s=SOON_S) as attachment:
        for step in range(4):
            output = script.model(BATCH)
            order.append("a")
            try:
                if step == 1:
                    output.register_hook(fail)
                output.sum().backward()
            except ZeroDivisionError:
                continue
            script.optimizer.step()
    thread.join(SOON_S)
    assert "".join(order) == "abababab" + "bbbb"
    assert attachment.statistics.num_turns == len(attachment.spans) == 5  # the last update begins one
    assert attachment.statistics.held_s > 0


def fail(_: torch.Tensor) -> None:
    raise ZeroDivisionError


def attached(*, defer: bool = False) -> tuple[Script, Diary, Attachment]:
    script, diary = Script(), Diary()
    return script, diary, Attachment("a", plain.bind((script.model,), (script.optimizer,), diary, Manner(defer=defer)))


def test_at_exit_the_last_deferred_update_runs() -> None:
    script, diary, attachment = attached(defer=True)
    script.step()
    before = script.model.weight.detach().clone()
    attachment._close_at_exit()
    assert diary.has_left
    assert not torch.equal(before, script.model.weight)


def test_after_an_exception_nobody_waits_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    script, diary, attachment = attached(defer=True)
    script.step()
    before = script.model.weight.detach().clone()
    monkeypatch.setattr(sys, "last_value", RuntimeError("the script failed"), raising=False)
    attachment._close_at_exit()
    assert diary.has_left
    assert torch.equal(before, script.model.weight)


def test_a_block_that_fails_leaves_without_the_update() -> None:
    script, diary, attachment = attached()
    script.step()
    with pytest.raises(ZeroDivisionError), attachment:
        raise ZeroDivisionError
    assert diary.has_left
    assert "step" not in vars(script.optimizer)


def test_a_forked_child_leaves_the_turns_to_its_parent() -> None:
    _, diary, attachment = attached()
    attachment._owner_pid = os.getppid()
    attachment._close_at_exit()
    assert not diary.has_left
    attachment.close()
    assert diary.has_left


def test_closing_twice_is_closing_once() -> None:
    script, diary, attachment = attached()
    attachment.close()
    attachment.close()
    attachment.abandon()
    script.step()
    assert diary.events == []
