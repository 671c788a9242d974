"""The update runs inside step(), at the beginning of the turn of the next forward and backward."""

import copy
import time
from collections.abc import Callable

import pytest
import torch
from attach_jobs import ASIDE, BATCH, NEVER_S, TURN, Job
from patience import patience_s
from torch import Tensor, nn
from turn_diary import Diary

from crossover import Extent, Refused
from crossover.integrations import REST_LIMIT_S, Manner, plain

SOON_S = patience_s(10.0)
Touch = Callable[[nn.Sequential, torch.optim.Optimizer], object]


def test_the_update_begins_the_turn_that_forward_and_backward_go_on_with() -> None:
    job = Job()
    job.backward()
    before = job.first
    job.optimizer.step()
    assert not torch.equal(before, job.first), "the weights are new when step() returns"
    assert job.events == [*TURN, "acquire"]
    job.backward()
    assert job.events == TURN * 2
    job.optimizer.step()
    job.bond.keeper.close()
    assert job.events == TURN * 3


def test_a_turn_until_the_end_of_forward_begins_with_the_update_too() -> None:
    job = Job(Extent.FORWARD)
    for _ in range(2):
        job.backward()
        job.optimizer.step()
    assert job.events == [*TURN * 2, "acquire"]


TOUCHES: dict[str, Touch] = {
    "nothing": lambda model, optimizer: None,
    "a part's zero_grad": lambda model, optimizer: model[0].zero_grad(),
    "gradients dropped": lambda model, optimizer: [setattr(one, "grad", None) for one in model.parameters()],
    "a new wrapper's zero_grad": lambda model, optimizer: nn.Sequential(model).zero_grad(),
    "weights scaled in place": lambda model, optimizer: [one.data.mul_(0.9) for one in model[2].parameters()],
    "momentum halved": lambda model, optimizer: [
        state["momentum_buffer"].mul_(0.5) for state in optimizer.state.values()
    ],
    "a part called": lambda model, optimizer: model[0].weight.data.add_(model[0](BATCH).mean()),
}


@pytest.mark.parametrize("name", TOUCHES)
def test_whatever_a_script_does_behind_its_step_it_sees_and_trains_the_same(name: str) -> None:
    """Each of these lost the step, or saw old weights, while the update waited for the next turn."""

    def train(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        seen = []
        for _ in range(4):
            model(BATCH).square().sum().backward()
            optimizer.step()
            seen.append(model[0].weight.detach().clone())
            TOUCHES[name](model, optimizer)
            model[2].zero_grad()
        return seen

    job, solo = Job(), Job()
    solo.bond.undo()
    expected = train(solo.model, solo.optimizer)
    assert all(map(torch.equal, expected, train(job.model, job.optimizer)))
    assert job.bond.keeper.statistics.num_turns >= 4
    assert solo.events == []


def test_optimizers_that_draw_random_numbers_draw_them_in_the_scripts_order() -> None:
    class Noisy(torch.optim.SGD):
        def step(self, closure: Callable[[], float] | None = None) -> float | None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.add_(torch.randn_like(parameter))
            return super().step(closure)

    def train(attaches: bool) -> Tensor:
        torch.manual_seed(5)
        model = nn.Linear(3, 2)
        optimizer = Noisy(model.parameters(), lr=0.1)
        if attaches:
            plain.bind((model,), (optimizer,), Diary(), Manner())
        for _ in range(3):
            optimizer.zero_grad()
            (model(BATCH) * torch.rand(4, 2)).sum().backward()
            optimizer.step()
        return model.weight.detach()

    assert torch.equal(train(attaches=False), train(attaches=True))


@pytest.mark.parametrize("defer", [False, True], ids=["exact", "deferred"])
@pytest.mark.parametrize(
    "compute",
    [lambda model: model.forward(BATCH), lambda model: model[2](model[1](model[0](BATCH)))],
    ids=["model.forward", "parts"],
)
def test_a_step_without_a_forward_seen_is_an_error(compute: Callable[[nn.Sequential], Tensor], defer: bool) -> None:
    job = Job(defer=defer)
    job.backward()
    job.optimizer.step()
    compute(job.model).sum().backward()
    with pytest.raises(Refused, match=r"SGD.step\(\) without a forward of an attached model"):
        job.optimizer.step()


def test_a_second_step_on_the_same_gradients_is_an_error_as_well() -> None:
    job = Job()
    job.backward()
    job.optimizer.step()
    with pytest.raises(Refused, match="without a forward"):
        job.optimizer.step()


@pytest.mark.parametrize("closure", [None, lambda: None], ids=["no closure", "closure"])
@pytest.mark.parametrize("defer", [False, True], ids=["exact", "deferred"])
def test_a_step_without_gradients_needs_no_forward(closure: Callable[[], None] | None, defer: bool) -> None:
    """Lightning steps for a batch that `training_step` skips before it computes anything."""
    job = Job(defer=defer)
    before = job.first
    job.optimizer.step(closure)
    job.bond.keeper.close()
    assert torch.equal(before, job.first)


def test_an_optimizer_per_parameter_that_steps_inside_backward_leaves_the_turn_to_backward() -> None:
    job = Job()
    job.bond.undo()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in job.model.parameters()}
    job.bond = plain.bind((job.model,), tuple(optimizers.values()), job.diary, Manner(rest_limit_s=NEVER_S))

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()
        with job.bond.keeper.aside():  # what would interrupt a turn that rests
            pass

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(update)
    before = job.first
    for _ in range(3):
        job.backward()
    assert not torch.equal(before, job.first)
    assert job.events == TURN * 3


def test_parts_that_the_script_calls_one_by_one_can_be_attached_together() -> None:
    diary, encoder, decoder = Diary(), nn.Linear(3, 4), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    bond = plain.bind((encoder, decoder), (optimizer,), diary, Manner(rest_limit_s=NEVER_S))
    for _ in range(3):
        decoder(encoder(BATCH)).sum().backward()
        optimizer.step()
    bond.keeper.close()
    assert diary.events == TURN * 4


def test_two_models_and_two_optimizers_are_one_job_that_trains_as_alone() -> None:
    def train(diary: Diary | None) -> list[Tensor]:
        torch.manual_seed(2)
        maker, judge = nn.Linear(3, 3), nn.Linear(3, 1)
        of_maker, of_judge = (torch.optim.Adam(model.parameters(), lr=0.1) for model in (maker, judge))
        manner = Manner(rest_limit_s=NEVER_S)
        bond = None if diary is None else plain.bind((maker, judge), (of_maker, of_judge), diary, manner)
        for _ in range(3):
            of_judge.zero_grad()
            (judge(maker(BATCH).detach()).mean() - judge(BATCH).mean()).backward()
            of_judge.step()
            of_maker.zero_grad()
            judge(maker(BATCH)).mean().neg().backward()
            of_maker.step()
        if bond is not None:
            bond.keeper.close()
        return [parameter.detach() for model in (maker, judge) for parameter in model.parameters()]

    diary = Diary()
    assert all(map(torch.equal, train(None), train(diary)))
    leases = [event for event in diary.events if event != "acquire"]
    assert set(leases) == {"release"}
    assert diary.events == ["acquire", "release"] * len(leases), "one lease at a time, none aside"


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SGD], ids=["LBFGS", "SGD"])
def test_an_optimizer_with_a_closure_trains_as_alone_and_its_forwards_take_turns(
    kind: type[torch.optim.Optimizer],
) -> None:
    def train(model: nn.Module, attached: Diary | None) -> Tensor:
        optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
        if attached is not None:
            plain.bind((model,), (optimizer,), attached, Manner(rest_limit_s=NEVER_S))

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(BATCH).square().sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        return next(model.parameters()).detach()

    diary = Diary()
    model = nn.Linear(3, 2)
    twin = copy.deepcopy(model)
    assert torch.equal(train(twin, None), train(model, diary))
    assert diary.events[-1] == "acquire", "the last update has begun a turn"
    assert "aside" not in diary.events


def test_an_error_in_the_update_gives_the_turn_back() -> None:
    job = Job()
    job.backward()
    job.optimizer.param_groups[0]["lr"] = "no number"
    with pytest.raises(TypeError):
        job.optimizer.step()
    assert job.events == TURN * 2


def test_an_evaluation_between_update_and_forward_interrupts_the_turn_batch_by_batch() -> None:
    job = Job()
    job.backward()
    job.optimizer.step()
    job.events.clear()
    with torch.no_grad():
        for _ in range(2):
            job.model(BATCH)
    assert job.events == ["release", *ASIDE * 2]
    job.backward()
    assert job.events == ["release", *ASIDE * 3], "the turn goes on under a lease aside, and no round is counted"
    assert job.bond.keeper.statistics.num_turns == 2
    job.backward()
    assert job.events[-2:] == TURN


def test_a_turn_that_may_not_be_interrupted_is_held_through_an_evaluation() -> None:
    job = Job()
    job.bond.undo()
    job.bond = plain.bind((job.model,), (job.optimizer,), job.diary, Manner(rest_limit_s=None))
    job.backward()
    job.optimizer.step()
    job.model.eval()
    job.model(BATCH)
    job.model.train()
    job.backward()
    assert job.events == TURN * 2


def rested(job: Job) -> bool:
    """Whether the lease comes back although the script does nothing."""
    deadline_s = time.monotonic() + SOON_S
    while time.monotonic() < deadline_s:
        if job.events[-1] == "release":
            return True
        time.sleep(1e-3)
    return False


def test_a_pause_between_update_and_forward_gives_the_device_back_and_moves_no_round() -> None:
    job = Job(rest_limit_s=REST_LIMIT_S)
    job.backward()
    for _ in range(2):  # the second time the watch is armed again
        job.optimizer.step()
        assert rested(job)
        job.backward()
    assert job.events == [*TURN, *(TURN + ASIDE) * 2]
    assert job.bond.keeper.statistics.num_turns == 3
    assert job.bond.keeper.statistics.num_interrupted == 2
    job.bond.keeper.close()


def test_a_forward_in_time_is_not_interrupted() -> None:
    job = Job()
    job.bond.undo()
    job.bond = plain.bind((job.model,), (job.optimizer,), job.diary, Manner(rest_limit_s=NEVER_S))
    for _ in range(20):
        job.backward()
        job.optimizer.step()
    job.bond.keeper.close()
    assert job.events == TURN * 21


def test_a_pause_leaves_the_queue_and_evaluations_inside_are_asides() -> None:
    job = Job()
    job.backward()
    job.optimizer.step()
    job.events.clear()
    with job.bond.keeper.paused(), torch.no_grad():
        job.model(BATCH)
    job.backward()
    assert job.events == ["release", "pause", *ASIDE, "resume", *TURN]


def test_a_pause_that_fails_agrees_on_nothing() -> None:
    job = Job()
    with pytest.raises(ZeroDivisionError), job.bond.keeper.paused():
        raise ZeroDivisionError
    assert job.events == ["pause"]
