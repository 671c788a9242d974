"""Where turns begin and end in torch."""

import copy
import ctypes
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from attach_jobs import ASIDE, BATCH, NEVER_S, TURN, Breaks, Job
from patience import patience_s
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from turn_diary import Diary

from crossover import Extent, Refused
from crossover.integrations import Manner, ReleasePoint, ddp, plain
from crossover.integrations.computing import tensors_in

SOON_S = patience_s(10.0)


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


@pytest.mark.parametrize(("is_training", "lease"), [(True, TURN), (False, ASIDE)])
def test_the_lease_of_a_forward_that_ctrl_c_has_stopped_ends_in_front_of_the_next(
    is_training: bool, lease: list[str]
) -> None:
    def interrupt(*_: object) -> None:
        handle.remove()
        raise KeyboardInterrupt

    job = Job()
    handle = job.model[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), torch.set_grad_enabled(is_training):
        job.model(BATCH)
    with torch.no_grad():
        job.model(BATCH)
    assert job.events == lease + ASIDE
    job.backward()
    assert job.events == lease + ASIDE + TURN


@pytest.mark.parametrize("is_training", [True, False])
def test_a_pause_behind_a_forward_that_ctrl_c_has_stopped_holds_no_lease(is_training: bool) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    job = Job()
    job.model[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), torch.set_grad_enabled(is_training):
        job.model(BATCH)
    with job.bond.keeper.paused():
        assert not job.bond.keeper.in_turn


class InterruptedWait(torch.autograd.Function):
    """Backward ends with a wait in C, as DistributedDataParallel's, in which Ctrl-C comes."""

    @staticmethod
    def forward(_: object, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(_: object, gradient: Tensor) -> Tensor:
        interrupt = partial(ctypes.CDLL(None)["raise"], int(signal.SIGINT))  # no line of Python behind the signal
        torch.autograd.Variable._execution_engine.queue_callback(interrupt)
        return gradient


@pytest.mark.parametrize("extent", [Extent.BACKWARD, Extent.MESSAGES])
def test_ctrl_c_in_the_wait_at_the_end_of_backward_reaches_the_script(extent: Extent) -> None:
    job = Job(extent)
    loss = job.model(InterruptedWait.apply(BATCH.clone().requires_grad_())).sum()
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    assert job.events == TURN


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
    bond = plain.bind((compiled,), (optimizer,), diary, Manner(defer=True))
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


def test_tensors_are_found_in_objects_that_name_each_other_but_not_in_networks() -> None:
    inner, outer = SimpleNamespace(value=torch.ones(1)), SimpleNamespace(network=nn.Linear(2, 2), library=torch)
    inner.outer, outer.inner = outer, inner
    assert [len(tensor) for tensor in tensors_in([outer, inner])] == [1]


def test_backward_is_inside_the_turn_when_the_output_is_a_plain_object() -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Linear(3, 2)

        def forward(self, inputs: Tensor) -> torch.distributions.Distribution:
            return torch.distributions.Independent(torch.distributions.Normal(self.mean(inputs), 1.0), 1)

    diary, model = Diary(), Policy()
    plain.bind((model,), (), diary, Manner())
    loss = model(BATCH).log_prob(torch.ones(4, 2)).sum()
    assert diary.events == ["acquire"]
    loss.backward()
    assert diary.events == TURN


class FullyShardedDataParallel(nn.Linear):
    """Named as torch's."""


class FSDPModule(nn.Linear):
    """As torch's `fully_shard` makes them of single layers."""


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (nn.ReLU(), "attach the model that is trained"),
        (FullyShardedDataParallel(2, 2), "DistributedDataParallel"),
        (nn.Sequential(nn.Linear(2, 2), FSDPModule(2, 2)), "FSDPModule gathers parameters inside forward"),
    ],
    ids=["no parameters", "sharded", "an inner layer is sharded"],
)
def test_what_cannot_take_turns_is_refused_with_the_remedy(model: nn.Module, remedy: str) -> None:
    with pytest.raises(Refused, match=remedy):
        plain.team((model,), ())


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("shard", ["fully_shard", "tensor parallelism"])
def test_layers_that_torch_itself_has_sharded_are_refused(shard: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (1,))
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    if shard == "fully_shard":
        fully_shard(model[1], mesh=mesh)
    else:
        parallelize_module(model, mesh, {"1": ColwiseParallel()})
    with pytest.raises(Refused, match="use DistributedDataParallel"):
        plain.team((model,), ())


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
    bond = ddp.bind(
        (model,), (torch.optim.SGD(model.parameters(), lr=0.1),), diary, Manner(release=ReleasePoint.LAUNCH)
    )
    model(BATCH).sum().backward()
    assert was_released == [comes_before]
    assert diary.events == TURN
    bond.undo()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("wraps", [DistributedDataParallel, nn.Sequential], ids=["ddp", "plain"])
def test_the_only_worker_of_a_process_group_has_nobody_to_agree_with(wraps: type[nn.Module]) -> None:
    """With somebody to agree with, others would wait for its pauses."""
    model = wraps(nn.Linear(3, 2))
    integration = ddp if ddp.claims((model,), ()) else plain
    assert integration.team((model,), ()).agree is None


@pytest.mark.usefixtures("group")
def test_ddp_sends_its_buffers_outside_the_turn() -> None:
    diary = Diary()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    ddp.bind((model,), (), diary, Manner())
    synchronise = model._sync_buffers
    model._sync_buffers = lambda: (diary.events.append("buffers"), synchronise())
    model(BATCH).sum().backward()
    assert diary.events == ["buffers", *TURN]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("defer", [False, True], ids=["exact", "deferred"])
def test_a_model_that_is_compiled_in_place_takes_turns(when: str, defer: bool) -> None:
    diary = Diary()
    model = DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if when == "before":
        model.compile(backend="eager")
    bond = ddp.bind((model,), (optimizer,), diary, Manner(defer=defer, rest_limit_s=NEVER_S))
    if when == "after":
        model.compile(backend="eager")
    for _ in range(3):
        model(BATCH).sum().backward()
        optimizer.step()
    bond.keeper.close()
    # Compiled code reads the parameters before each forward: a deferred update comes first, under a lease aside.
    assert diary.events == ((TURN + ASIDE) * 3 if defer else TURN * 4)
