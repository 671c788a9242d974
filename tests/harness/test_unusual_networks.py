"""Networks that read, use or train parameters in unusual ways end as with the plainest training, or are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from engine_threads import SharedRoom, train_with_engine
from rooms_of_one import engine_alone
from tiny_models import NUM_INPUTS, loss_at
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from baselines.api import UpdatePoint
from baselines.strategy import parse_strategy
from harness.asynchrony.training import Training
from harness.engine.engine import Engine, EngineError
from harness.engine.layout import ParametersChangedError
from harness.lockstep.ranks import Lockstep, replicas
from harness.systems.api import PlainSession
from harness.systems.ours import EagerSession, EngineSession
from results.record import UNUSED

NUM_STEPS = 5
Weights = dict[str, Tensor]
Change = Callable[[nn.Module], None]


def leave_as_it_is(_: nn.Module) -> None:
    """No change."""


def session_of(model: nn.Module, text: str) -> EngineSession:
    strategy = parse_strategy(text)
    kind = EagerSession if strategy.update_point is UpdatePoint.AT_PRE_HOOK else EngineSession
    return kind(model, strategy.optimizer, engine_alone(model, text))


def raw_torch(model: nn.Module, text: str) -> PlainSession:
    return PlainSession(model, parse_strategy(text).optimizer.build(model.named_parameters()))


def train(
    session: PlainSession,
    num_micro_batches: int = 1,
    before_step: tuple[int, Change] = (0, leave_as_it_is),
    num_steps: int = NUM_STEPS,
) -> Weights:
    for step in range(num_steps):
        if step == before_step[0]:
            before_step[1](session.model)
        session.wait()
        session.update()
        for number in range(num_micro_batches):
            session.begin_micro_batch(last=number + 1 == num_micro_batches)
            session.backward(loss_at(step)(number, session.model))
    session.finish()
    session.close()
    return {name: parameter.detach().clone() for name, parameter in session.model.named_parameters()}


def check_equal(some: Weights, others: Weights) -> None:
    assert some.keys() == others.keys()
    assert [name for name in some if not torch.equal(some[name], others[name])] == []


# ---- parameters that are read before the forward of their layer


def two_layers(wrap: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():  # the hooks of torch's first weight_norm are deprecated, and in use
        warnings.simplefilter("ignore")
        return nn.Sequential(wrap(nn.Linear(NUM_INPUTS, 5)), nn.Tanh(), wrap(nn.Linear(5, NUM_INPUTS)))


def half_pruned(layer: nn.Linear) -> nn.Module:
    prune.l1_unstructured(layer, "weight", amount=0.5)
    return layer


def scale(layer: nn.Module, _: object) -> None:
    layer.weight = layer.raw * 0.5


def equalised(layer: nn.Linear) -> nn.Module:
    """weight = raw · constant, in a hook, as in ports of StyleGAN."""
    del layer.weight
    layer.raw = nn.Parameter(torch.randn(layer.out_features, layer.in_features))
    layer.register_forward_pre_hook(scale)
    return layer


class ReadsEarly(nn.Module):
    """Reads its layers' weights before they run: in all forwards, or from one on, in every `every`-th."""

    def __init__(self, from_forward: int, every: int = 1) -> None:
        super().__init__()
        self.layers = two_layers(lambda layer: layer)
        self.from_forward, self.every, self.num_forwards = from_forward, every, 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.num_forwards += 1
        is_early = self.num_forwards >= self.from_forward and self.num_forwards % self.every == 0
        early = sum(p.sum() for p in self.parameters()) if is_early else 0.0
        outputs: Tensor = self.layers(inputs) * (1 + 0.01 * early)
        return outputs


def with_a_hook_of_the_container() -> nn.Module:
    network = two_layers(equalised)
    for layer in network:
        layer._forward_pre_hooks.clear()
    network.register_forward_pre_hook(scale_children)
    return network


def scale_children(network: nn.Module, _: object) -> None:
    for layer in network.children():
        if isinstance(layer, nn.Linear):
            scale(layer, None)


class Attends(nn.Module):
    """torch's attention reads the output projection without its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(NUM_INPUTS, 2, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.attention(inputs, inputs, inputs)[0]
        return outputs


READ_EARLY: dict[str, Callable[[], nn.Module]] = {
    "weight norm": lambda: two_layers(weight_norm),
    "spectral norm": lambda: two_layers(spectral_norm),
    "pruned": lambda: two_layers(half_pruned),
    "equalised": lambda: two_layers(equalised),
    "parametrised": lambda: two_layers(parametrizations.weight_norm),
    "the root": lambda: weight_norm(nn.Linear(NUM_INPUTS, NUM_INPUTS)),
    "a hook of the container": with_a_hook_of_the_container,
    "attention": Attends,
    "a parent": lambda: ReadsEarly(1),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("name", READ_EARLY)
def test_updating_at_the_pre_hook_equals_updating_after_all(name: str) -> None:
    def trained(text: str) -> Weights:
        torch.manual_seed(1)
        return train(session_of(READ_EARLY[name](), text))

    check_equal(trained("unfused+adam"), trained("unfused+at-pre-hook+adam"))


@pytest.mark.parametrize("prepend", [True, False])
def test_a_hook_that_comes_while_training_runs_behind_the_update(prepend: bool) -> None:
    def scale_from_now_on(network: nn.Module) -> None:
        for layer in network:
            if isinstance(layer, nn.Linear):
                layer.raw = layer.weight  # the parameter is the same under another name
                del layer._parameters["weight"]
                layer.register_forward_pre_hook(scale, prepend=prepend)

    def trained(text: str) -> Weights:
        torch.manual_seed(1)
        return train(session_of(two_layers(lambda layer: layer), text), before_step=(2, scale_from_now_on))

    check_equal(trained("unfused"), trained("unfused+at-pre-hook"))


def test_a_forward_that_reads_old_values_where_the_first_did_not_is_an_error() -> None:
    session = session_of(ReadsEarly(3), "unfused+at-pre-hook")
    with pytest.raises(ValueError, match=r"layers.\d.weight: forward 4 reads it before the forward of its layer"):
        train(session)
    assert session.model.num_forwards == 4
    session.close()


@pytest.mark.parametrize(("every", "seen_in"), [(3, 12), (5, 30), (6, 12), (10, 30), (12, 12), (20, 60)])
def test_a_network_that_reads_early_now_and_then_does_not_train_on_unseen(every: int, seen_in: int) -> None:
    session = session_of(ReadsEarly(every, every), "unfused+at-pre-hook")
    with pytest.raises(ValueError, match=rf"layers.\d.weight: forward {seen_in} reads it before"):
        train(session, num_steps=60)
    session.close()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's, while it compiles
def test_a_compiled_part_updates_at_its_pre_hooks_as_without_compiling() -> None:
    def trained(text: str) -> Weights:
        torch.manual_seed(1)
        torch.compiler.reset()
        network = nn.Sequential(nn.Linear(NUM_INPUTS, 5), torch.compile(two_layers_of_five(), backend="eager"))
        return train(session_of(network, text))

    check_equal(trained("unfused+adam"), trained("unfused+at-pre-hook+adam"))


def two_layers_of_five() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, NUM_INPUTS))


def test_layers_that_are_read_in_their_forward_alone_wait_for_their_own_messages() -> None:
    """Else the networks above would be equal because everything is updated before the forward."""
    for build in (lambda: two_layers(lambda layer: layer), READ_EARLY["pruned"], READ_EARLY["equalised"]):
        session = session_of(build(), "unfused+at-pre-hook")
        train(session)
        assert isinstance(session, EagerSession)
        assert not session._early


# ---- gradients that arrive in parts


class Shared(nn.Module):
    """A layer used by two checkpoints, and by one alone in the first `num_single` forwards. Autograd runs the hooks of
    its parameters once for each of them that is `reentrant`."""

    def __init__(self, *, reentrant: bool | None, num_single: int = 0) -> None:
        super().__init__()
        self.entry = nn.Linear(NUM_INPUTS, 5)
        self.block = nn.Linear(5, 5)
        self.head = nn.Linear(5, NUM_INPUTS)
        self.reentrant, self.num_single, self.num_forwards = reentrant, num_single, 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.num_forwards += 1
        hidden = self.run(torch.tanh(self.entry(inputs)))
        if self.num_forwards > self.num_single:
            hidden = self.run(torch.tanh(hidden))
        outputs: Tensor = self.head(hidden)
        return outputs

    def run(self, hidden: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.block(hidden)  # type: ignore[no-any-return]
        return checkpoint(self.block, hidden, use_reentrant=self.reentrant)  # type: ignore[no-any-return]


def shared(*, reentrant: bool | None, num_single: int = 0) -> Shared:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Shared(reentrant=reentrant, num_single=num_single)


IN_PARTS = ["unfused", "fixed-buckets", "tensor-fusion", "unfused+topk(density=0.2)+error-feedback", "slices+p3"]


@pytest.mark.parametrize("text", IN_PARTS)
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_layer_in_two_checkpoints_trains_as_without(text: str, reentrant: bool) -> None:
    strategy, room = parse_strategy(text), SharedRoom(2)
    models = [shared(reentrant=reentrant) for _ in range(2)]
    exact = Lockstep([shared(reentrant=None) for _ in range(2)], strategy, seed=7)
    for step in range(4):
        exact.step(loss_at(step))
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda rank: train_with_engine(models[rank], strategy, room, rank), range(2)))
    for model in models:
        check_equal(dict(model.named_parameters()), dict(exact.models[0].named_parameters()))


@pytest.mark.parametrize("text", ["fixed-buckets", "tensor-fusion", "unfused+at-pre-hook"])
@pytest.mark.parametrize("num_micro_batches", [1, 3])
def test_sessions_and_lockstep_wait_for_all_parts_of_a_gradient(text: str, num_micro_batches: int) -> None:
    trained, raw = (train(of(shared(reentrant=True), text), num_micro_batches) for of in (session_of, raw_torch))
    check_equal(trained, raw)
    if num_micro_batches == 1:
        alone = Lockstep([shared(reentrant=True)], parse_strategy(text))
        for step in range(NUM_STEPS):
            alone.step(loss_at(step))
        check_equal(trained, dict(alone.models[0].named_parameters()))


@pytest.mark.parametrize("text", ["fixed-buckets", "tensor-fusion", "unfused+half", "unfused+at-pre-hook"])
def test_a_part_that_arrives_after_its_message_has_left_is_an_error(text: str) -> None:
    session = session_of(shared(reentrant=True, num_single=2), text)
    with pytest.raises(EngineError, match=r"block.\w+: a part of its gradient .* use_reentrant=False"):
        train(session)
    assert session.model.num_forwards == 3
    session.close()


def one_step(engine: Engine, *losses: Tensor) -> list[Tensor | None]:
    engine.begin_step()
    for loss in losses:
        loss.backward()
    engine.end_backward()
    engine.wait()
    return [parameter.grad for parameter in engine.parameters.values()]


@pytest.mark.parametrize("text", ["fixed-buckets", "tensor-fusion"])
def test_two_backwards_of_a_step_are_those_of_their_sum(text: str) -> None:
    first, second = shared(reentrant=None), shared(reentrant=None)
    twice, once = engine_alone(first, text), engine_alone(second, text)
    for step in range(3):
        first.zero_grad()
        second.zero_grad()
        parts = one_step(twice, loss_at(step)(0, first), loss_at(step)(1, first))
        whole = one_step(once, loss_at(step)(0, second) + loss_at(step)(1, second))
        torch.testing.assert_close(parts, whole)
    twice.close()
    once.close()


def test_gradients_outside_a_step_and_steps_that_are_not_waited_for_are_errors() -> None:
    model = shared(reentrant=None)
    engine = engine_alone(model, "fixed-buckets")
    one_step(engine, loss_at(0)(0, model))
    with pytest.raises(EngineError, match=r"head.\w+ got a gradient and no step has begun"):
        loss_at(1)(0, model).backward()
    engine.begin_step()
    with pytest.raises(EngineError, match="call wait before the next step"):
        engine.begin_step()
    engine.close()


# ---- other parameters than at first


class Thaws(nn.Module):
    """Its entry is trained in forward 3 and later, or until then."""

    def __init__(self, *, thaws: bool) -> None:
        super().__init__()
        self.layers = two_layers(lambda layer: layer).requires_grad_(True)
        self.thaws, self.num_forwards = thaws, 0
        self.layers[0].requires_grad_(not thaws)

    def forward(self, inputs: Tensor) -> Tensor:
        self.num_forwards += 1
        self.layers[0].requires_grad_((self.num_forwards >= 3) == self.thaws)
        outputs: Tensor = self.layers(inputs)
        return outputs


SESSIONS: dict[str, tuple[Callable[[nn.Module, str], PlainSession], str]] = {
    "after all": (session_of, "fixed-buckets"),
    "at pre-hook": (session_of, "unfused+at-pre-hook"),
    "local steps": (session_of, "fixed-buckets+local-steps(n=4)"),
    "another system": (raw_torch, "unfused"),
}


@pytest.mark.parametrize("name", SESSIONS)
@pytest.mark.parametrize("thaws", [True, False])
def test_a_layer_that_is_frozen_or_unfrozen_while_training_is_named_in_that_step(name: str, thaws: bool) -> None:
    build, text = SESSIONS[name]
    session = build(Thaws(thaws=thaws), text)
    told = "not trained when training began, but now" if thaws else "trained when training began, but not now"
    with pytest.raises(ParametersChangedError, match=rf"^{told}: layers.0.(weight|bias), layers.0.(weight|bias);"):
        train(session)
    assert session.model.num_forwards == 3
    session.close()


@pytest.mark.parametrize("thaws", [True, False])
@pytest.mark.parametrize("in_forward", [True, False])
def test_lockstep_names_what_is_frozen_or_unfrozen(thaws: bool, in_forward: bool) -> None:
    models = replicas(Thaws(thaws=thaws), 2)
    ranks = Lockstep(models, parse_strategy("fixed-buckets"))
    for step in range(2):
        ranks.step(loss_at(step))
    for model in models:
        model.num_forwards -= not in_forward
        model.layers[0].requires_grad_((model.layers[0].weight.requires_grad) != (not in_forward))
    with pytest.raises(ParametersChangedError, match=r"layers.0.(weight|bias), layers.0.(weight|bias);"):
        ranks.step(loss_at(2))


@pytest.mark.parametrize("thaws", [True, False])
def test_workers_of_servers_name_what_is_frozen_or_unfrozen(thaws: bool) -> None:
    training = Training(Thaws(thaws=thaws), parse_strategy("unfused").optimizer.build, loss_at(0), num_workers=2)
    values = training.values
    for worker in range(2):
        values = values + training.update(worker, 0, values)
    with pytest.raises(ParametersChangedError, match=r"layers.0.(weight|bias), layers.0.(weight|bias);"):
        training.update(0, 1, values)


def replace_the_head(network: nn.Module) -> None:
    network[2] = nn.Linear(5, NUM_INPUTS)


def drop_a_bias(network: nn.Module) -> None:
    network[2].bias = None


def add_a_parameter(network: nn.Module) -> None:
    network[0].extra = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (replace_the_head, "but now: 2.weight, 2.bias; trained when training began, but not now: 2.weight, 2.bias"),
        (drop_a_bias, "^trained when training began, but not now: 2.bias;"),
        (add_a_parameter, "^not trained when training began, but now: 0.extra;"),
    ],
)
@pytest.mark.parametrize("text", ["fixed-buckets", "unfused+at-pre-hook"])
def test_parameters_that_come_or_go_while_training_are_named(change: Change, told: str, text: str) -> None:
    session = session_of(two_layers(lambda layer: layer), text)
    with pytest.raises(ParametersChangedError, match=told):
        train(session, before_step=(2, change))
    session.close()


@pytest.mark.parametrize("text", ["fixed-buckets+adam", "unfused+at-pre-hook", "fixed-buckets+local-steps(n=2)"])
def test_a_layer_that_is_frozen_from_the_start_stays_bitwise_as_it_was(text: str) -> None:
    network = two_layers(lambda layer: layer)
    network[0].requires_grad_(False)
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    after = train(session_of(network, text))
    check_equal({n: after[n] for n in ("0.weight", "0.bias")}, {n: before[n] for n in ("0.weight", "0.bias")})
    assert not torch.equal(after["2.weight"], before["2.weight"])


# ---- parameters without a gradient


class SometimesUses(nn.Module):
    """Uses its second layer in every other forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(NUM_INPUTS, NUM_INPUTS), nn.Linear(NUM_INPUTS, NUM_INPUTS)
        self.num_forwards = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.num_forwards += 1
        hidden: Tensor = self.first(inputs)
        return hidden if self.num_forwards % 2 else self.second(hidden)


@pytest.mark.parametrize("text", ["fixed-buckets+sgd(lr=0.1)", "unfused+at-pre-hook+sgd(lr=0.1)"])
def test_parameters_without_a_gradient_in_some_step_are_noted_by_name(text: str) -> None:
    torch.manual_seed(1)
    session = session_of(SometimesUses(), text)
    train(session)
    assert session.notes == {UNUSED: "second.bias, second.weight"}
    whole = session_of(nn.Linear(NUM_INPUTS, NUM_INPUTS), text)
    train(whole)
    assert whole.notes == {}
