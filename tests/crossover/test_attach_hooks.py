"""Where turns begin and end in torch, and that a deferred update cannot be told from one at once."""

import copy
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from turn_diary import Diary

from crossover import Extent, Refused
from crossover.attach import Attachment
from crossover.integrations import Bond, Manner, Release, ddp, plain
from crossover.integrations.computing import tensors_in

SOON_S = 10.0
BATCH = torch.linspace(-1, 1, 12).reshape(4, 3)
TURN = ["acquire", "release"]
ASIDE = ["aside", "release"]


class Breaks(torch.autograd.Function):
    """A layer without a gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise RuntimeError("no gradient here")


class Job:
    """A small model in training, attached to a diary."""

    def __init__(self, extent: Extent = Extent.BACKWARD, *, defer: bool = True, **hyper: Any) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), **{"lr": 0.5, "momentum": 0.9, **hyper})
        self.diary = Diary(extent)
        self.bond: Bond = plain.bind(self.model, self.optimizer, self.diary, Manner(defer=defer))

    @property
    def events(self) -> list[str]:
        return self.diary.events

    @property
    def first(self) -> Tensor:
        """A parameter, read behind torch's back."""
        return self.model[0].weight.detach().clone()

    def backward(self) -> None:
        self.model(BATCH).square().sum().backward()

    def put_off_a_step(self) -> Tensor:
        """The first parameter before the update, which is due now."""
        self.backward()
        self.optimizer.step()
        self.events.clear()
        return self.first


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_forward_begins_a_turn_and_the_end_of_backward_ends_it() -> None:
    job = Job()
    output = job.model(BATCH)
    assert job.events == ["acquire"]
    output.sum().backward()
    assert job.events == TURN
    assert all(parameter.grad is not None for parameter in job.model.parameters())


def test_all_gradients_are_there_when_the_turn_ends() -> None:
    job = Job()
    missing: list[int] = []
    job.diary.on_release = lambda: missing.append(sum(p.grad is None for p in job.model[0].parameters()))
    job.backward()
    assert missing == [0]


def test_each_micro_batch_is_a_turn() -> None:
    job = Job()
    for _ in range(3):
        job.backward()
    assert job.events == TURN * 3


def test_several_outputs_and_backward_passes_end_one_turn_each() -> None:
    job = Job()
    first, second = job.model(BATCH), job.model(-BATCH)
    assert job.events == ["acquire"]
    (first.sum() + second.sum()).backward()
    assert job.events == TURN
    output = job.model(BATCH)
    output.sum().backward(retain_graph=True)
    output.sum().backward()
    assert job.events == TURN * 3


def test_a_gradient_penalty_inside_a_step_trains_the_same() -> None:
    def penalised(model: nn.Module) -> list[Tensor]:
        inputs = BATCH.clone().requires_grad_()
        loss = model(inputs).square().sum()
        (slope,) = torch.autograd.grad(loss, inputs, create_graph=True)
        (loss + slope.square().sum()).backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    job = Job()
    solo = penalised(copy.deepcopy(job.model))
    assert all(map(torch.equal, solo, penalised(job.model)))
    assert job.events == TURN * 2


def test_a_turn_until_the_end_of_forward_ends_there() -> None:
    job = Job(Extent.FORWARD)
    output = job.model(BATCH)
    assert job.events == TURN
    output.sum().backward()
    assert job.events == TURN


def test_evaluation_is_a_lease_aside_and_follows_the_update() -> None:
    job = Job()
    before = job.put_off_a_step()
    with torch.no_grad():
        job.model(BATCH)
    assert job.events == ASIDE
    assert not torch.equal(before, job.first)
    job.model.eval()
    job.model(BATCH)
    assert job.events == ASIDE * 2


def test_an_error_in_forward_ends_the_turn() -> None:
    job = Job()
    with pytest.raises(RuntimeError):
        job.model(torch.ones(2, 7))
    assert job.events == TURN
    job.backward()
    assert job.events == TURN * 2


def test_an_error_in_an_evaluation_ends_its_lease() -> None:
    job = Job()
    with pytest.raises(RuntimeError), torch.no_grad():
        job.model(torch.ones(2, 7))
    assert job.events == ASIDE


def test_an_error_in_backward_ends_the_turn_when_it_is_caught() -> None:
    job = Job()
    inputs = Breaks.apply(BATCH.clone().requires_grad_())
    with pytest.raises(RuntimeError, match="no gradient here"):
        job.model(inputs).sum().backward()
    assert job.events == TURN
    job.backward()
    assert job.events == TURN * 2


def test_outputs_that_are_dropped_without_backward_end_the_turn() -> None:
    job = Job()
    output = job.model(BATCH)
    assert job.events == ["acquire"]
    del output
    assert job.events == TURN


def test_an_old_graph_that_is_freed_does_not_end_a_later_turn() -> None:
    job = Job()
    output = job.model(BATCH)
    output = job.model(BATCH)  # the first graph is freed here
    assert job.events == ["acquire"]
    output.sum().backward()
    assert job.events == TURN


def test_an_output_without_gradients_ends_the_turn_with_forward() -> None:
    job = Job()
    job.model.requires_grad_(False)
    job.model(BATCH)
    assert job.events == TURN


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
def test_what_reads_parameters_comes_after_the_update(name: str, read: Callable[[Job], object]) -> None:
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


def test_a_step_without_deferring_is_a_lease_of_its_own() -> None:
    job = Job(defer=False)
    job.backward()
    before = job.first
    job.optimizer.step()
    assert not torch.equal(before, job.first)
    assert job.events == TURN + ASIDE


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
    def train(job: Job, schedule: Any) -> Tensor:
        for _ in range(4):
            job.optimizer.zero_grad()
            job.backward()
            job.optimizer.step()
            schedule.step()
        return job.model.state_dict()["0.weight"]

    def scheduled(job: Job) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(job.optimizer, 0.5)

    def fresh() -> Job:
        job = Job(lr=number(0.5), foreach=False)
        job.bond.undo()
        return job

    solo = fresh()
    expected = train(solo, scheduled(solo)).clone()
    job = fresh()
    schedule = scheduled(job) if when == "before" else None
    job.bond = plain.bind(job.model, job.optimizer, job.diary, Manner())
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
    plain.bind(model, optimizer, Diary(), Manner())
    for _ in range(3):
        model(BATCH).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5
    optimizer.state_dict()
    assert optimizer.param_groups[0]["num_steps"] == 3
    assert optimizer.param_groups[0]["lr"] == 0.1 / 8


def test_two_steps_in_a_row_are_two_updates() -> None:
    job = Job(momentum=0.0)
    before = job.put_off_a_step()
    once = -0.5 * job.model[0].weight.grad
    job.optimizer.step()
    job.bond.keeper.flush()
    torch.testing.assert_close(job.first, before + 2 * once)


def test_a_closure_runs_at_once_and_its_forwards_take_turns() -> None:
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


def test_a_gradient_scaler_that_steps_inside_the_optimizer_is_not_deferred() -> None:
    job = Job(fused=True)
    job.backward()
    before = job.first
    job.optimizer.grad_scale = torch.tensor(1.0)  # as torch.amp.GradScaler does for this call
    job.optimizer.found_inf = torch.tensor(0.0)
    job.optimizer.step()
    assert not torch.equal(before, job.first)


def test_a_copy_of_an_attached_model_takes_no_turns_and_has_parameters_of_its_own() -> None:
    job = Job()
    twin = copy.deepcopy(job.model)
    assert not set(map(id, twin.parameters())) & set(map(id, job.model.parameters()))
    twin(BATCH).sum().backward()
    twin.zero_grad()
    assert job.events == []
    assert not twin._forward_hooks
    assert set(vars(twin)) == set(vars(nn.Sequential()))


def test_undoing_leaves_the_objects_as_they_were() -> None:
    job = Job()
    job.bond.undo()
    assert set(vars(job.model)) == set(vars(nn.Sequential()))
    assert "step" not in vars(job.optimizer)
    assert not job.model._forward_hooks
    assert not job.model._forward_pre_hooks
    job.put_off_a_step()
    assert job.events == []


def test_a_schedule_made_after_attaching_survives_the_undoing() -> None:
    job = Job()
    schedule = torch.optim.lr_scheduler.StepLR(job.optimizer, 1)
    job.bond.undo()
    before = job.first
    job.backward()
    job.optimizer.step()
    schedule.step()
    assert not torch.equal(before, job.first)
    assert job.events == []


def test_a_model_that_torch_compile_has_wrapped_takes_turns() -> None:
    diary = Diary()
    model = nn.Linear(3, 2)
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = set(vars(model))
    bond = plain.bind(compiled, optimizer, diary, Manner())
    for shown in (model, compiled):
        compiled(BATCH).sum().backward()
        optimizer.step()
        shown.state_dict()
    assert diary.events == (TURN + ASIDE) * 2
    bond.undo()
    assert set(vars(model)) == before


def test_tensors_are_found_in_nested_outputs() -> None:
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    assert [len(tensor) for tensor in tensors_in({"a": [one, (two, None)], "b": {"c": three}})] == [1, 2, 3]


def test_what_cannot_take_turns_is_refused_with_the_remedy() -> None:
    compiled = nn.Linear(2, 2)
    compiled._compiled_call_impl = lambda: None
    for model, remedy in ((nn.ReLU(), "attach the model that is trained"), (compiled, "torch.compile")):
        with pytest.raises(Refused, match=remedy):
            plain.team(model, None)

    class FullyShardedDataParallel(nn.Linear):
        """Named as torch's."""

    with pytest.raises(Refused, match="DistributedDataParallel"):
        plain.team(FullyShardedDataParallel(2, 2), None)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("extent", "comes_before"), [(Extent.BACKWARD, True), (Extent.MESSAGES, False)])
def test_under_ddp_the_release_comes_before_the_wait_unless_the_turn_lasts_until_the_messages(
    extent: Extent, comes_before: bool
) -> None:
    diary = Diary(extent)
    released = threading.Event()
    diary.on_release = released.set
    was_released: list[bool] = []

    def slow(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()

        def arrive() -> None:
            was_released.append(released.wait(SOON_S if comes_before else 0.2))
            future.set_result(bucket.buffer())

        threading.Thread(target=arrive).start()
        return future

    model = DistributedDataParallel(nn.Linear(3, 2))
    model.register_comm_hook(None, slow)
    bond = ddp.bind(model, torch.optim.SGD(model.parameters(), lr=0.1), diary, Manner(release=Release.LAUNCH))
    model(BATCH).sum().backward()
    assert was_released == [comes_before]
    assert diary.events == TURN
    bond.undo()


@pytest.mark.usefixtures("group")
def test_reading_either_of_ddps_modules_comes_after_the_update() -> None:
    diary = Diary()
    model = DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ddp.bind(model, optimizer, diary, Manner())
    for shown in (model, model.module):
        for read in (shown.parameters, shown.named_parameters, shown.state_dict):
            model(BATCH).sum().backward()
            optimizer.step()
            diary.events.clear()
            read()
            assert diary.events == ASIDE


@pytest.mark.usefixtures("group")
def test_ddp_sends_its_buffers_outside_the_turn() -> None:
    diary = Diary()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    ddp.bind(model, None, diary, Manner())
    synchronise = model._sync_buffers
    model._sync_buffers = lambda: (diary.events.append("buffers"), synchronise())
    model(BATCH).sum().backward()
    assert diary.events == ["buffers", *TURN]
