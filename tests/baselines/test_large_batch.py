"""LARS, LAMB and linear scaling: their identities, references in float64, any exchange, any update point."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from baselines.api import OptimizerSpec, Scope
from baselines.optimizer.lamb import Lamb
from baselines.optimizer.lars import Lars
from baselines.optimizer.linear_scaling import LinearScaling
from baselines.optimizer.polynomial_decay import PolynomialDecay
from baselines.optimizer.sgd import Sgd
from baselines.optimizer.step_decay import StepDecay
from baselines.strategy import StrategyError, parse_strategy
from baselines.text import TextError
from harness.lockstep.ranks import Lockstep, replicas

Array = npt.NDArray[np.float64]
NUM_STEPS = 20


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def named() -> dict[str, nn.Parameter]:
    return {"layer.weight": nn.Parameter(drawn(1, 6, 5)), "layer.bias": nn.Parameter(drawn(2, 6))}


def stepped(rule: OptimizerSpec, num_steps: int, factor: float = 1.0) -> dict[str, Tensor]:
    parameters = named()
    optimizer = rule.build(parameters.items())
    for step in range(num_steps):
        for index, parameter in enumerate(parameters.values()):
            parameter.grad = factor * drawn(100 * step + index, *parameter.shape)
        optimizer.step()
    return {name: parameter.detach() for name, parameter in parameters.items()}


def reference(update: Callable[[str, Array, Array, int], Array]) -> dict[str, Array]:
    weights = {name: p.detach().numpy().astype(np.float64) for name, p in named().items()}
    for step in range(NUM_STEPS):
        for index, name in enumerate(weights):
            grad = drawn(100 * step + index, *weights[name].shape).numpy().astype(np.float64)
            weights[name] = weights[name] - update(name, weights[name], grad, step + 1)
    return weights


def norm(values: Array) -> float:
    return float(np.sqrt((values**2).sum()))


def assert_near(parameters: dict[str, Tensor], weights: dict[str, Array]) -> None:
    """To 1e-6 of the largest weight: 20 steps, each rounded to float32 (6e-8)."""
    for name, parameter in parameters.items():
        difference = np.abs(parameter.numpy() - weights[name]).max()
        assert difference <= 1e-6 * np.abs(weights[name]).max(), f"{name}: {difference}"


def test_lars_is_the_rule_written_out_in_float64() -> None:
    lr, momentum, decay, trust = 2.0, 0.9, 0.0005, 0.001
    buffers: dict[str, Array] = {}

    def update(name: str, w: Array, g: Array, step: int) -> Array:
        rate, own_decay = (trust * norm(w) / (norm(g) + decay * norm(w)), decay) if w.ndim > 1 else (0.01, 0.0)
        buffers[name] = momentum * buffers.get(name, np.zeros_like(w)) + lr * rate * (g + own_decay * w)
        return buffers[name]

    weights = reference(update)
    parameters = stepped(Lars(lr=lr, momentum=momentum, weight_decay=decay, trust=trust), NUM_STEPS)
    assert_near({"layer.weight": parameters["layer.weight"]}, weights)


def test_lars_leaves_biases_to_sgd_with_momentum() -> None:
    lars, sgd = stepped(Lars(lr=0.1), NUM_STEPS), stepped(Sgd(lr=0.1), NUM_STEPS)
    torch.testing.assert_close(lars["layer.bias"], sgd["layer.bias"], rtol=0, atol=1e-5)  # lr within the momentum
    assert not torch.allclose(lars["layer.weight"], sgd["layer.weight"], rtol=0, atol=1e-2)


def test_lamb_is_the_rule_written_out_in_float64() -> None:
    lr, beta1, beta2, eps, decay = 0.002, 0.9, 0.999, 1e-6, 0.01
    moments: dict[str, tuple[Array, Array]] = {}

    def update(name: str, w: Array, g: Array, step: int) -> Array:
        mean, square = moments.get(name, (np.zeros_like(w), np.zeros_like(w)))
        mean, square = beta1 * mean + (1 - beta1) * g, beta2 * square + (1 - beta2) * g**2
        moments[name] = mean, square
        direction: Array = mean / (1 - beta1**step) / (np.sqrt(square / (1 - beta2**step)) + eps)
        if w.ndim < 2:
            return lr * direction
        direction = direction + decay * w
        return lr * norm(w) / norm(direction) * direction

    assert_near(stepped(Lamb(lr=lr, weight_decay=decay), NUM_STEPS), reference(update))


def test_a_step_of_lamb_is_as_long_as_the_tensor_times_the_rate() -> None:
    before, after = named()["layer.weight"].detach(), stepped(Lamb(lr=0.01), 1)["layer.weight"]
    assert float((after - before).norm()) == pytest.approx(0.01 * float(before.norm()), rel=1e-5)  # float32


@pytest.mark.parametrize("rule", [Lamb(eps=1e-20, weight_decay=0.0), Lars(weight_decay=0.0)])
def test_the_scale_of_the_gradient_does_not_matter_without_weight_decay(rule: OptimizerSpec) -> None:
    own, larger = (stepped(rule, 5, factor)["layer.weight"] for factor in (1.0, 1e4))
    torch.testing.assert_close(own, larger, rtol=1e-5, atol=1e-6)  # ratios of float32 norms


def test_a_step_of_lars_without_momentum_is_no_longer_than_the_trust_allows() -> None:
    before, after = named()["layer.weight"].detach(), stepped(Lars(lr=2.0, momentum=0.0), 1, 1e6)["layer.weight"]
    assert float((after - before).norm()) <= 2.0 * 0.001 * float(before.norm()) * (1 + 1e-5)


@pytest.mark.parametrize("rule", [Lars(lr=0.1), Lamb()])
@pytest.mark.parametrize("zero", ["weights", "gradient"])
def test_a_tensor_or_gradient_of_zeros_gives_a_finite_step(rule: OptimizerSpec, zero: str) -> None:
    weights = nn.Parameter(torch.zeros(3, 2) if zero == "weights" else torch.ones(3, 2))
    optimizer = rule.build([weights])
    for _ in range(3):
        weights.grad = torch.zeros(3, 2) if zero == "gradient" else torch.ones(3, 2)
        optimizer.step()
    assert bool(weights.isfinite().all())
    assert zero == "gradient" or bool((weights < 0).all())


@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_names_of_tensors_can_be_excluded(kind: type[Lars] | type[Lamb]) -> None:
    excluded = stepped(kind(lr=0.01, weight_decay=0.1, exclude="head, layer"), NUM_STEPS)["layer.weight"]
    assert not torch.allclose(excluded, stepped(kind(lr=0.01, weight_decay=0.1), NUM_STEPS)["layer.weight"])
    if kind is Lamb:
        exact = stepped(parse_strategy("frozen-adam(lr=0.01, eps=1e-6, freeze_after=100)").optimizer, NUM_STEPS)
        torch.testing.assert_close(excluded, exact["layer.weight"], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="exclude is 'head' and the parameters have no names"):
        kind(exclude="head").build(named().values())


# ---- linear scaling


def test_the_rate_climbs_from_the_base_rate_to_its_multiple() -> None:
    rule = LinearScaling(Sgd(lr=0.1), times=8.0, warmup_steps=4)
    assert [rule.factor_at(step) for step in (0, 1, 2, 3, 4, 100)] == pytest.approx([1, 2.75, 4.5, 6.25, 8, 8])
    assert LinearScaling(Sgd(), times=16.0, power=0.5).factor_at(0) == pytest.approx(4.0)


@pytest.mark.parametrize("inner", [Sgd(lr=0.01, momentum=0.0), Lars(lr=0.1), Lamb(lr=0.01)])
def test_each_step_has_the_rate_of_its_number_and_a_checkpoint_keeps_counting(inner: OptimizerSpec) -> None:
    rule = LinearScaling(inner, times=4.0, warmup_steps=3)
    parameters, rates = named(), list[float]()
    optimizer = rule.build(parameters.items())
    for step in range(5):
        if step == 2:
            saved, optimizer = optimizer.state_dict(), rule.build(parameters.items())
            optimizer.load_state_dict(saved)
        for parameter in parameters.values():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    base = rule.build(named().items()).param_groups[0]["lr"]
    assert rates == pytest.approx([base * k for k in (1, 2, 3, 4, 4)])


def test_the_rate_falls_at_the_given_steps_and_as_a_power_of_what_is_left() -> None:
    steps, square = StepDecay(Sgd(), at=(2, 5), factor=0.1), PolynomialDecay(Sgd(), num_steps=10, power=2.0, after=3)
    assert [steps.factor_at(step) for step in (0, 1, 2, 4, 5, 9)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    assert [square.factor_at(step) for step in (0, 2, 3, 5, 9, 10, 12)] == pytest.approx([1, 1, 0.49, 0.25, 0.01, 0, 0])
    assert PolynomialDecay(Sgd(), num_steps=4, power=1.0).factor_at(1) == pytest.approx(0.75)


def test_schedules_multiply_whatever_their_order_and_a_checkpoint_keeps_their_place() -> None:
    """In lockstep, over the run's whole state."""
    warm, fall = "linear-scaling(times=4.0, warmup_steps=3)", "step-decay(at=(2, 4))"
    text = f"lars(lr=0.1)+{warm}+{fall}"
    whole, first = (Lockstep(replicas(Small(), 2), parse_strategy(text)) for _ in range(2))
    rates = []
    for step in range(6):
        if step == 3:
            saved, first = first.state_dict(), Lockstep(replicas(Small(), 2), parse_strategy(text))
            first.load_state_dict(saved)
        for ranks in (whole, first):
            ranks.step(lambda rank, model, step=step: model(drawn(10 * step + rank, 7, 6)).square().mean())
        rates.append(first._optimizers[0][""].param_groups[0]["lr"])
    assert rates == pytest.approx([0.1, 0.2, 0.03, 0.04, 0.004, 0.004])
    for own, other in zip(whole.models[1].parameters(), first.models[1].parameters(), strict=True):
        assert torch.equal(own, other)
    for own, other in zip(trained(text), trained(f"lars(lr=0.1)+{fall}+{warm}"), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)


def test_weight_decay_leaves_out_what_is_excluded() -> None:
    """One step without a gradient shows the decay alone."""
    rule = Sgd(lr=1.0, momentum=0.0, weight_decay=0.1, exclude="bias")
    parameters, before = named(), named()
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    rule.build(parameters.items()).step()
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.data, before[name].data * (1.0 if "bias" in name else 0.9))
    with pytest.raises(StrategyError, match="use update='worker'"):
        parse_strategy("unfused+parameter-server(update='server')+sgd(exclude='bn')")


def test_scaled_sgd_without_warm_up_is_sgd_at_the_larger_rate() -> None:
    scaled, plain = stepped(LinearScaling(Sgd(lr=0.01), times=8.0), 5), stepped(Sgd(lr=0.08), 5)
    assert all(torch.allclose(p, plain[name], rtol=1e-6) for name, p in scaled.items())


# ---- in strategies


class Small(nn.Module):
    """Two layers and a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.layers(inputs)
        return out


def trained(text: str, world: int = 2) -> list[Tensor]:
    ranks = Lockstep(replicas(Small(), world), parse_strategy(text))
    for step in range(4):
        ranks.step(lambda rank, model, step=step: model(drawn(10 * step + rank, 7, 6)).square().mean())
    return [p.detach() for p in ranks.models[world - 1].parameters()]


RULES = ["lars", "lamb", "lamb+linear-scaling(times=4.0, warmup_steps=2)", "sgd+step-decay(at=(1, 2))"]


@pytest.mark.parametrize("rule", RULES)
def test_updating_at_pre_hooks_gives_the_weights_of_updating_after_all(rule: str) -> None:
    early, late = trained(f"unfused+at-pre-hook+{rule}"), trained(f"unfused+{rule}")
    assert all(torch.equal(a, b) for a, b in zip(early, late, strict=True))


@pytest.mark.parametrize("rule", RULES[:2])
def test_every_exchange_and_slices_give_the_same_weights(rule: str) -> None:
    """To float32 rounding of sums in another order; slices are put together before the update."""
    exact = trained(rule)
    for way in ("ring", "tree", "all-gather", "parameter-server", "slices(slice_elements=5)+p3"):
        for own, other in zip(trained(f"{way}+{rule}"), exact, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", RULES[:3])
def test_servers_that_have_parts_of_tensors_are_refused_with_the_remedy(rule: str) -> None:
    with pytest.raises(StrategyError, match="whole tensors and a server has parts of them; use update='worker'"):
        parse_strategy(f"unfused+parameter-server(update='server')+{rule}")
    assert parse_strategy(f"unfused+parameter-server+{rule}").optimizer.scope is Scope.TENSOR


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lars(lr=0.0)", "lr is 0.0; use a learning rate above 0"),
        ("lars(momentum=1.0)", "momentum is 1.0; use 0 or more and less than 1"),
        ("lars(trust=0.0)", "trust is 0.0; use a number above 0"),
        ("lamb(weight_decay=-1.0)", "weight_decay is -1.0; use 0 or more"),
        ("lamb(beta2=1.0)", "beta2 is 1.0; use 0 or more and less than 1"),
        ("sgd+linear-scaling(times=0.0)", "times is 0.0; use how many times larger the batch is"),
        ("sgd+linear-scaling(warmup_steps=-1)", "warmup_steps is -1; use a number of steps from 0 up"),
        ("sgd+linear-scaling+linear-scaling", "named twice"),
        ("sgd+linear-scaling+step-decay+linear-scaling", "named twice"),
        ("sgd+step-decay(at=(5, 3))", r"at is \(5, 3\); use steps above 0 in order"),
        ("sgd+step-decay(at=(0.5,))", r"at is \(0.5,\); use steps above 0 in order"),
        ("sgd+step-decay(factor=0.0)", "factor is 0.0; use a number above 0 and up to 1"),
        ("sgd+polynomial-decay(num_steps=0)", "num_steps is 0; use how many steps the run has"),
        ("sgd+polynomial-decay(after=100)", "after is 100; use 0 to 99 steps of warm-up"),
        ("sgd(momentum=0.0, nesterov=True)", "nesterov is True and momentum 0"),
    ],
)
def test_wrong_settings_are_named_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        parse_strategy(text)


def test_momentum_before_the_wire_and_behind_it_is_refused_through_the_wrapper_too() -> None:
    with pytest.raises(StrategyError, match="momentum"):
        parse_strategy("single-bucket+dgc+sgd+linear-scaling(times=2.0)")
