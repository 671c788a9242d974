"""That a deferred update cannot be told from one at once, and that no step is lost in silence."""

import copy
import io
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from attach_jobs import ASIDE, BATCH, TURN
from attach_jobs import Job as AnyJob
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from turn_diary import Diary

from crossover import Refused
from crossover.attach import Attachment
from crossover.integrations import Manner, ddp, deferring, plain
from crossover.keeper import TurnKeeper

Job = partial(AnyJob, defer=True)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("parameters", lambda job: list(job.model.parameters())),
        ("named_parameters", lambda job: dict(job.model.named_parameters())),
        ("state_dict", lambda job: job.model.state_dict()),
        ("deep copy", lambda job: copy.deepcopy(job.model)),
        ("pickle", lambda job: torch.save(job.model, io.BytesIO())),
        ("a wrapper's state_dict", lambda job: nn.Sequential(job.model).state_dict()),
        ("a move", lambda job: job.model.double()),
        ("optimizer.state_dict", lambda job: job.optimizer.state_dict()),
        ("optimizer's copy", lambda job: copy.deepcopy(job.optimizer)),
        ("add_param_group", lambda job: job.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})),
        ("close", lambda job: Attachment("a", job.bond).close()),
    ],
)
def test_what_reads_parameters_comes_after_the_update(name: str, read: Callable[[AnyJob], object]) -> None:
    job = Job()
    before = job.put_off_a_step()
    assert torch.equal(before, job.first), "the update was not put off"
    read(job)
    assert not torch.equal(before, job.first.float())
    assert job.events == ASIDE


def test_a_loaded_state_is_not_overwritten_by_an_update_from_before() -> None:
    job = Job()
    saved = copy.deepcopy((job.model.state_dict(), job.optimizer.state_dict()))
    job.put_off_a_step()
    job.model.load_state_dict(saved[0])
    job.optimizer.load_state_dict(saved[1])
    job.bond.keeper.flush()
    assert torch.equal(saved[0]["0.weight"], job.first)


def test_gradients_set_to_zero_after_a_step_are_there_for_the_update() -> None:
    for zero in (lambda job: job.optimizer.zero_grad(), lambda job: job.model.zero_grad(set_to_none=False)):
        job = Job()
        before = job.put_off_a_step()
        zero(job)
        job.backward()
        assert not torch.equal(before, job.first)
        gradient = job.model[0].weight.grad
        job.model.zero_grad()
        job.backward()
        assert gradient is not None
        assert torch.equal(gradient, job.model[0].weight.grad)  # nothing was left of the step before


@pytest.mark.parametrize("number", [float, torch.tensor], ids=["number", "tensor"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_schedule_changes_only_the_next_step(number: Callable[[float], Any], when: str) -> None:
    def train(job: AnyJob, schedule: Any) -> Tensor:
        for _ in range(4):
            job.optimizer.zero_grad()
            job.backward()
            job.optimizer.step()
            schedule.step()
        return job.model.state_dict()["0.weight"]

    def scheduled(job: AnyJob) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(job.optimizer, 0.5)

    def fresh() -> AnyJob:
        job = Job(lr=number(0.5), foreach=False)
        job.bond.undo()
        return job

    solo = fresh()
    expected = train(solo, scheduled(solo)).clone()
    job = fresh()
    schedule = scheduled(job) if when == "before" else None
    job.bond = plain.bind((job.model,), (job.optimizer,), job.diary, Manner(defer=True))
    got = train(job, schedule or scheduled(job))
    assert job.bond.keeper.statistics.num_turns == 4
    assert torch.equal(expected, got)


def test_hyper_parameters_that_the_step_itself_writes_stay_written() -> None:
    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                group["num_steps"] = group.get("num_steps", 0) + 1
            super().step(closure)

    model = nn.Linear(3, 2)
    optimizer = Counting(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["num_steps"] = 0
    plain.bind((model,), (optimizer,), Diary(), Manner(defer=True))
    for _ in range(3):
        model(BATCH).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5
    optimizer.state_dict()
    assert optimizer.param_groups[0]["num_steps"] == 3
    assert optimizer.param_groups[0]["lr"] == 0.1 / 8


def test_a_gradient_scaler_that_steps_inside_the_optimizer_is_not_deferred() -> None:
    job = Job(fused=True)
    job.backward()
    before = job.first
    job.optimizer.grad_scale = torch.tensor(1.0)  # as torch.amp.GradScaler does for this call
    job.optimizer.found_inf = torch.tensor(0.0)
    job.optimizer.step()
    assert not torch.equal(before, job.first)


@pytest.mark.usefixtures("group")
def test_reading_either_of_ddps_modules_comes_after_the_update() -> None:
    diary = Diary()
    model = DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ddp.bind((model,), (optimizer,), diary, Manner(defer=True))
    for shown in (model, model.module):
        for read in (shown.parameters, shown.named_parameters, shown.state_dict):
            model(BATCH).sum().backward()
            optimizer.step()
            diary.events.clear()
            read()
            assert diary.events == ASIDE


def test_zeroing_a_part_after_a_step_does_not_lose_the_step() -> None:
    job = Job()
    before = job.put_off_a_step()
    job.model[0].zero_grad()
    job.backward()
    assert not torch.equal(before, job.first)


def test_zeroing_by_a_wrapper_that_nobody_attached_is_an_error() -> None:
    job = Job()
    job.put_off_a_step()
    nn.Sequential(job.model).zero_grad()
    with pytest.raises(Refused, match="attach without defer"):
        job.backward()


@pytest.mark.parametrize(
    "touch",
    [
        lambda parameter: setattr(parameter, "grad", None),
        lambda parameter: setattr(parameter, "grad", torch.ones_like(parameter)),
        lambda parameter: parameter.grad.zero_(),
    ],
    ids=["dropped", "exchanged", "zeroed in place"],
)
def test_a_gradient_that_vanished_before_the_update_is_an_error(touch: Callable[[Any], None]) -> None:
    job = Job()
    job.put_off_a_step()
    touch(job.model[0].weight)
    with pytest.raises(Refused, match="1 of 4 gradients were changed or dropped"):
        job.backward()


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a part's parameters", lambda job: list(job.model[0].parameters())),
        ("a part's state_dict", lambda job: job.model[2].state_dict()),
        ("a part's copy", lambda job: copy.deepcopy(job.model[0])),
        ("a part's call", lambda job: job.model[0](BATCH)),
    ],
)
def test_what_reads_a_part_comes_after_the_update(name: str, read: Callable[[AnyJob], object]) -> None:
    job = Job()
    before = job.put_off_a_step()
    read(job)
    assert not torch.equal(before, job.first), name
    assert job.events == ASIDE


def test_a_hook_that_a_part_had_before_computes_from_updated_parameters() -> None:
    """As that of weight normalisation or pruning does."""
    job, read = Job(), list[Tensor]()
    job.bond.undo()
    job.model[0].register_forward_pre_hook(lambda layer, _: read.append(layer.weight.detach().clone()))
    job.bond = plain.bind((job.model,), (job.optimizer,), job.diary, Manner(defer=True))
    before = job.put_off_a_step()
    job.model[0](BATCH)
    assert torch.equal(read[0], before)
    assert torch.equal(read[1], job.first)
    assert not torch.equal(read[1], before)


def test_copies_of_a_part_are_unattached() -> None:
    twin = copy.deepcopy(Job().model[0])
    assert set(vars(twin)) == set(vars(nn.Linear(1, 1)))
    assert not twin._forward_pre_hooks
    assert not twin._state_dict_pre_hooks


def test_undoing_leaves_the_parts_as_they_were() -> None:
    job = Job()
    job.bond.undo()
    assert set(vars(job.model[0])) == set(vars(nn.Linear(1, 1)))
    assert not job.model[0]._forward_pre_hooks


def test_a_closure_runs_at_once_between_leases_aside() -> None:
    job = Job()

    def closure() -> Tensor:
        job.optimizer.zero_grad()
        loss = job.model(BATCH).square().sum()
        loss.backward()
        return loss

    before = job.first
    assert job.optimizer.step(closure) > 0
    assert not torch.equal(before, job.first)
    assert job.events == ASIDE + TURN + ASIDE


def test_a_forked_child_is_refused_an_update_whose_messages_come_to_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Horovod's: the child would wait for them for ever, or go on with old weights."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keeper = TurnKeeper(Diary(), wait=lambda: None, idle=lambda: None)
    plain.hooked(keeper, (model,), (optimizer,), Manner(defer=True), context=nullcontext)
    model(BATCH).sum().backward()
    optimizer.step()
    monkeypatch.setattr(deferring, "getpid", lambda: 1)
    with pytest.raises(Refused, match="forked while an update was put off"):
        model.eval()(BATCH)


def test_an_evaluation_follows_the_update() -> None:
    job = Job()
    before = job.put_off_a_step()
    with torch.no_grad():
        job.model(BATCH)
    assert job.events == ASIDE
    assert not torch.equal(before, job.first)


@pytest.mark.usefixtures("group")
def test_the_inner_model_of_ddp_is_refused_when_updates_are_deferred() -> None:
    model = DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain.bind((model.module,), (optimizer,), Diary(), Manner(defer=True))
    with pytest.raises(Refused, match="attach the DistributedDataParallel model, or attach without defer"):
        model(BATCH)
