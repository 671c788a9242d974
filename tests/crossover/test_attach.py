"""The one line: what it finds in the environment, and what happens around it."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from math import ceil
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


@pytest.mark.parametrize(
    ("workers", "threads", "cores", "advice"),
    [
        (2, 2, 2, "OMP_NUM_THREADS=1"),  # horovodrun -np 2 on two cores
        (2, 8, 8, "OMP_NUM_THREADS=4"),
        (4, 2, 2, "OMP_NUM_THREADS=1"),
        (2, 1, 2, ""),
        (None, 8, 8, ""),
        (4, 1, 2, ""),  # more workers than cores: no number of threads helps
    ],
)
def test_a_job_with_more_threads_than_processors_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    workers: int | None,
    threads: int,
    cores: int,
    advice: str,
) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    if workers:
        monkeypatch.setenv("HOROVOD_LOCAL_SIZE", str(workers))
    script = Script()
    with pytest.raises(ArbiterAbsent):  # it is said before the job waits for its turn
        attach(script.model, script.optimizer, job="a", path=tmp_path / "none.sock")
    told = capsys.readouterr().err
    assert (advice in told) if advice else not told
    monkeypatch.setenv("HOROVOD_RANK", "1")  # by the first worker alone
    with pytest.raises(ArbiterAbsent):
        attach(script.model, script.optimizer, job="a", path=tmp_path / "none.sock")
    assert not capsys.readouterr().err


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


CHILDS: dict[str, Callable[[Script, Attachment], object]] = {
    "evaluates": lambda script, attachment: script.model.eval()(BATCH),
    "trains": lambda script, attachment: [script.step() for _ in range(3)],
    "pauses": lambda script, attachment: attachment.pause().__enter__(),
    "closes": lambda script, attachment: attachment.close(),
    "collects garbage": lambda script, attachment: gc.collect(),
    "exits at once": lambda script, attachment: os._exit(0),
}


def fork(action: Callable[[], object]) -> int:
    """Run it in a child, which ends with 0 if nothing is raised, and in time."""
    pid = os.fork()
    if not pid:
        signal.alarm(ceil(SOON_S))
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return pid


def check_and_go_on(script: Script, attachment: Attachment, expected: torch.Tensor, name: str) -> None:
    """What a child does: it finds the weights of the moment of its fork."""
    with torch.no_grad():
        assert torch.equal(script.model(BATCH), expected)
    assert not attachment.takes_turns
    CHILDS[name](script, attachment)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("defer", [False, True], ids=["exact", "deferred"])
def test_forked_children_compute_out_of_turn_and_their_parent_trains_as_without_them(
    tmp_path: Path, defer: bool
) -> None:
    alone, script, children = Script(), Script(), list[int]()
    with (
        start(tmp_path / "host.sock", ["a"]) as arbiter,
        attach(script.model, script.optimizer, job="a", path=arbiter.path, defer=defer) as attachment,
    ):
        for name in CHILDS:
            for one in (alone, script):
                one.step()
            expected = alone.model(BATCH).detach()
            # the update has begun a turn that rests, or waits for the next one
            children += [fork(partial(check_and_go_on, script, attachment, expected, name)) for _ in range(2)]
        for _ in range(5):
            for one in (alone, script):
                one.step()
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * len(children)
        assert attachment.takes_turns
    assert torch.equal(alone.model.weight, script.model.weight)
    assert attachment.statistics.num_turns == len(CHILDS) + 5 + (not defer)
    assert attachment.statistics.num_lost == 0


def test_a_child_forked_while_a_step_begins_finds_no_lock_held() -> None:
    """The thread that holds the keeper's lock is not in the child."""
    script, diary, _ = attached()
    held, forked = threading.Event(), threading.Event()

    def evaluate() -> None:
        diary.on_release = lambda: None
        script.model.eval()(BATCH)

    diary.on_release = lambda: (held.set(), forked.wait(SOON_S))
    step = threading.Thread(target=script.step)
    step.start()
    assert held.wait(SOON_S)
    pid = fork(evaluate)
    forked.set()
    step.join()
    assert os.waitpid(pid, 0)[1] == 0


def test_a_forked_child_may_take_a_seat_of_its_own(tmp_path: Path) -> None:
    alone, script, num_steps = Script(), Script(), 0

    def train_as_b() -> None:
        with attach(script.model, script.optimizer, job="b", path=arbiter.path) as mine:
            assert mine.takes_turns
            for _ in range(3):
                script.step()
        assert mine.statistics.num_turns == 4  # the last update begins one

    with (
        start(tmp_path / "host.sock") as arbiter,
        attach(script.model, script.optimizer, job="a", path=arbiter.path) as attachment,
    ):
        pid = fork(train_as_b)
        while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
            script.step()
            num_steps += 1
    for _ in range(num_steps):
        alone.step()
    assert ended == (pid, 0)
    assert num_steps >= 3
    assert attachment.statistics.num_turns == num_steps + 1
    assert torch.equal(alone.model.weight, script.model.weight)


def test_closing_twice_is_closing_once() -> None:
    script, diary, attachment = attached()
    attachment.close()
    attachment.close()
    attachment.abandon()
    script.step()
    assert diary.events == []
