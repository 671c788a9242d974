"""Sparse methods: what each keeps, what travels, what is conserved, and the mistakes that public code makes with them.

Ranks are driven together in one process; tolerances are float32 rounding unless said.
"""

from __future__ import annotations

import io
import math

import pytest
import torch
from driven_ranks import Ranks, parameters_of
from hypothesis import given
from hypothesis import strategies as st
from layouts import reduce_together, segments_of
from test_compression_laws import SEEDS, part, random_grads
from torch import Tensor, nn

from baselines.api import Compressor, Exchange
from baselines.compression.aji_heafield import AjiHeafield
from baselines.compression.dgc import Dgc
from baselines.compression.double_squeeze import DoubleSqueeze
from baselines.compression.error_feedback import ErrorFeedback
from baselines.compression.gtopk import GTopK
from baselines.compression.randomk import RandomK
from baselines.compression.topk import TopK
from baselines.exchange.all_reduce import RingAllReduce
from baselines.exchange.tree import Tree
from baselines.sparsity import code_bytes
from baselines.strategy import StrategyError, parse_strategy
from baselines.text import TextError
from harness.lockstep.ranks import Lockstep, replicas

SPARSE: list[tuple[str, Compressor, Exchange]] = [
    ("topk", TopK(density=0.1), RingAllReduce()),
    ("topk in half", TopK(density=0.1, values="float16"), RingAllReduce()),
    ("random-k shared", RandomK(density=0.1), RingAllReduce()),
    ("random-k own", RandomK(density=0.1, shared=False), RingAllReduce()),
    ("aji-heafield", AjiHeafield(density=0.1), RingAllReduce()),
    ("aji-heafield per tensor", AjiHeafield(density=0.1, per="tensor"), RingAllReduce()),
    ("dgc", Dgc(density=0.1), RingAllReduce()),
    ("gtopk", GTopK(density=0.1), Tree()),
]
EVERY = pytest.mark.parametrize(("compressor", "exchange"), [s[1:] for s in SPARSE], ids=[s[0] for s in SPARSE])
LAYOUT = ((7,), (5, 20), (300,), (1,))


# ---- all of them


@EVERY
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_all_ranks_have_the_same_result_which_is_the_sum_of_what_they_contributed(
    compressor: Compressor, exchange: Exchange, world: int
) -> None:
    ranks = Ranks(compressor, world, parameters_of(LAYOUT), exchange=exchange)
    for step in range(3):
        results = ranks.reduce(random_grads(step, world, ranks.numel))
        for result in results:
            assert torch.equal(result.value, results[0].value)
        total = torch.stack([part(result.contributed) for result in results])
        assert bool(((results[0].value - total.sum(0)).abs() <= 1e-6 * total.abs().amax()).all())
        assert 0 < int((results[0].value != 0).sum()) < ranks.numel


@EVERY
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_has_diverged_is_seen(compressor: Compressor, exchange: Exchange, bad: float) -> None:
    """At once, however small the share that is sent; a random choice may take several steps to come across it."""
    ranks = Ranks(compressor, 3, parameters_of(LAYOUT), exchange=exchange)
    grads = random_grads(1, 3, ranks.numel)
    grads[1][50] = bad
    num_steps = 100 if isinstance(compressor, RandomK) else 1
    seen = [ranks.reduce([grad.clone() for grad in grads])[2].value[50].isfinite().item() for _ in range(num_steps)]
    assert not all(seen)


@EVERY
def test_a_gradient_of_zeros_stays_one(compressor: Compressor, exchange: Exchange) -> None:
    ranks = Ranks(compressor, 3, parameters_of(LAYOUT), exchange=exchange)
    for result in ranks.reduce([torch.zeros(ranks.numel)] * 3):
        assert not result.value.any()


@EVERY
@pytest.mark.parametrize(("numel", "position"), [(256, 1), (257, 2), (65_536, 2), (65_537, 4)])
def test_what_travels_are_values_and_positions_of_the_smallest_type(
    compressor: Compressor, exchange: Exchange, numel: int, position: int
) -> None:
    """Never int64 positions. Where the number of elements varies, it is at least within a factor of 2 of what was
    expected, and whole elements beside the header of 8 bytes per rank."""
    ranks = Ranks(compressor, 2, parameters_of([(numel,)]), exchange=exchange)
    ranks.reduce([torch.randn(numel, generator=torch.Generator().manual_seed(rank)) for rank in range(2)])
    predicted, sent = compressor.wire_bytes(numel, 2), ranks.sent[0]
    k = math.ceil(0.1 * numel)
    if isinstance(compressor, AjiHeafield | Dgc):
        assert predicted == k * (4 + position)
        assert (sent - 8) % (4 + position) == 0
        assert 0.5 * predicted <= sent <= 2 * predicted
        return
    value = 2 if compressor == TopK(density=0.1, values="float16") else 4
    assert predicted == k * (value + position * (compressor != RandomK(density=0.1)))
    assert sent == predicted


@pytest.mark.parametrize("compressor", [TopK(), RandomK(), RandomK(shared=False), AjiHeafield(), Dgc(), GTopK()])
def test_an_impossible_density_is_refused(compressor: Compressor) -> None:
    for density in (0.0, -0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"density is .*; use a share above 0 and up to 1"):
            type(compressor)(density=density)  # type: ignore[call-arg]


# ---- top-k


@given(seed=SEEDS, numel=st.integers(1, 300), density=st.floats(0.001, 1.0))
def test_error_feedback_sees_the_rounding_of_half_precision_values(seed: int, numel: int, density: float) -> None:
    """Σ sent + residual = Σ g, to float32 rounding, though what is sent is rounded to 11 bits: were the rounding not
    seen, the difference would be a thousand times as large."""
    ranks = Ranks(ErrorFeedback(TopK(density=density, values="float16")), 2, segments_of([numel]))
    sent, total = torch.zeros(2, numel, dtype=torch.float64), torch.zeros(2, numel, dtype=torch.float64)
    for step in range(3):
        grads = random_grads(seed + step, 2, numel)
        total += torch.stack(grads).double() / 2
        results = ranks.reduce(grads)
        for rank, result in enumerate(results):
            sent[rank] += part(result.contributed)
            assert torch.equal(part(result.contributed), part(result.contributed).half().double())
    kept = torch.stack([ranks.kept(rank, "residual") for rank in range(2)])
    assert bool(((sent + kept - total).abs() <= 1e-6 * total.abs().amax().clamp(min=1e-3)).all())


def test_values_that_half_precision_cannot_hold_are_not_hidden() -> None:
    (reduced,) = reduce_together(
        TopK(density=0.5, values="float16"), [torch.tensor([1e6, 1.0])], [{}], segments_of([2])
    )
    assert reduced.value.tolist() == [math.inf, 0.0]


# ---- random-k


@pytest.mark.parametrize("density", [0.03, 0.3])
def test_random_k_loses_what_it_should_on_average(density: float) -> None:
    """E‖a − rand_k(a)‖² = (1 − k/n)‖a‖²: over 500 draws the mean has a standard deviation below 0.01; every element
    is drawn equally often, within 5 standard deviations."""
    numel, num_draws = 200, 500
    (grad,) = random_grads(1, 1, numel)
    ranks = Ranks(RandomK(density=density), 1, segments_of([numel]))
    kept = torch.stack([ranks.reduce([grad.clone()])[0].value for _ in range(num_draws)])
    share = math.ceil(density * numel) / numel
    assert torch.equal((kept != 0).sum(1), torch.full((num_draws,), round(share * numel)))
    lost = (kept - grad).square().sum(1).mean() / grad.square().sum()
    assert float(lost) == pytest.approx(1 - share, abs=0.04)
    often = (kept != 0).float().mean(0)
    assert float((often - share).abs().max()) < 5 * math.sqrt(share * (1 - share) / num_draws)


def test_shared_positions_are_those_of_all_ranks_and_of_one_step_and_message_only() -> None:
    parameters = parameters_of([(400,), (400,)])
    ranks = Ranks(RandomK(density=0.1), 3, parameters)
    grads = [torch.ones(800) for _ in range(3)]
    first, second = (ranks.reduce(grads, [[parameters[0]], [parameters[1]]]) for _ in range(2))
    chosen = [(part(result.contributed) != 0) for result in first]
    assert torch.equal(chosen[0], chosen[1])
    assert torch.equal(chosen[0], chosen[2])
    assert not torch.equal(chosen[0][:400], chosen[0][400:])
    assert not torch.equal(chosen[0], part(second[0].contributed) != 0)
    two_steps_of_two_messages = 4 * 2 * (3 - 1) / 3 * 40 * 4  # of 40 float32 each on a ring of 3
    assert ranks.sent == pytest.approx([two_steps_of_two_messages] * 3)
    other = Ranks(RandomK(density=0.1, seed=1), 3, parameters).reduce(grads, [[parameters[0]], [parameters[1]]])
    assert not torch.equal(chosen[0], part(other[0].contributed) != 0)


def test_own_positions_differ_between_ranks() -> None:
    ranks = Ranks(RandomK(density=0.1, shared=False), 2, segments_of([400]))
    one, other = ranks.reduce([torch.ones(400)] * 2)
    assert not torch.equal(part(one.contributed), part(other.contributed))


# ---- Aji-Heafield


@given(seed=SEEDS, per=st.sampled_from(["message", "tensor"]))
def test_a_threshold_is_one_of_magnitudes(seed: int, per: str) -> None:
    """All large elements negative: a threshold from max(x) instead of max|x| would send the small positive ones."""
    dice = torch.Generator().manual_seed(seed)
    grad = torch.rand(1000, generator=dice) * 0.01
    large = torch.randperm(1000, generator=dice)[:10]
    grad[large] = -1.0 - torch.rand(10, generator=dice)
    (reduced,) = reduce_together(AjiHeafield(per=per, sample=1.0), [grad.clone()], [{}], segments_of([1000]))
    assert torch.equal(reduced.value.nonzero().view(-1), large.sort().values)
    assert torch.equal(reduced.value[large], grad[large])


def test_a_sampled_threshold_keeps_about_the_share_that_it_should() -> None:
    """A mean of 100 draws of n = 100,000 elements: the threshold is at the 10th of 1,000 samples, whose share has a
    standard deviation of about 0.32 of itself, the mean a tenth of that."""
    grads = [torch.randn(100_000, generator=torch.Generator().manual_seed(seed)) for seed in range(100)]
    ranks = Ranks(AjiHeafield(density=0.01), 1, segments_of([100_000]))
    counts = [int((ranks.reduce([grad])[0].value != 0).sum()) for grad in grads]
    assert sum(counts) / 100 == pytest.approx(1000, rel=0.15)
    assert min(counts) > 100


def test_a_threshold_a_tensor_keeps_a_share_of_each() -> None:
    """One tensor is a million times as large: a threshold for both sends nothing of the small one."""
    sizes, dice = [1000, 1000], torch.Generator().manual_seed(3)
    grad = torch.randn(2000, generator=dice) * torch.tensor([1e-6, 1.0]).repeat_interleave(1000)
    kept = {}
    for per in ("message", "tensor"):
        compressor = AjiHeafield(density=0.05, sample=1.0, per=per)
        (reduced,) = reduce_together(compressor, [grad.clone()], [{}], segments_of(sizes))
        kept[per] = [int((block != 0).sum()) for block in reduced.value.split(sizes)]
    assert kept == {"message": [0, 100], "tensor": [50, 50]}


def test_gradients_that_cancel_on_a_server_are_answered_with_zeros() -> None:
    """A server with nothing to send must not look like one that does not serve."""
    ranks = Ranks(DoubleSqueeze(AjiHeafield(density=0.5)), 2, parameters_of([(8,)]))
    grad = torch.arange(1.0, 9.0)
    for result in ranks.reduce([grad, -grad]):
        assert not result.value.any()


# ---- DGC

DENSE = "dgc(density=1.0, masking={masking}, nesterov={nesterov})+sgd(momentum=0.0)"
NUM_STEPS = 10


class Small(nn.Module):
    """Smooth, so that rounding does not grow through kinks: 77 elements in 4 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.leave(torch.tanh(self.enter(inputs)))
        return outputs


def small() -> Small:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Small()


def loss_at(step: int, rank: int, model: nn.Module) -> Tensor:
    dice = torch.Generator().manual_seed(1000 * step + rank)
    inputs, targets = torch.randn(8, 6, generator=dice), torch.randn(8, 5, generator=dice)
    return nn.functional.mse_loss(model(inputs), targets)


def trained(text: str, world: int = 3) -> Lockstep:
    ranks = Lockstep(replicas(small(), world), parse_strategy(text), seed=1)
    for step in range(NUM_STEPS):
        ranks.step(lambda rank, model, step=step: loss_at(step, rank, model))
    return ranks


def weights(ranks: Lockstep, rank: int = 0) -> Tensor:
    return torch.cat([parameter.detach().view(-1) for parameter in ranks.models[rank].parameters()])


def momentum_sgd(*, momentum: float, nesterov: bool, world: int = 3) -> Tensor:
    """torch's own, on the mean of all ranks' losses."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum, nesterov=nesterov)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        (sum(loss_at(step, rank, model) for rank in range(world)) / world).backward()
        optimizer.step()
    return torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])


@pytest.mark.parametrize("nesterov", [False, True])
def test_without_masking_at_density_1_dgc_is_momentum_sgd(nesterov: bool) -> None:
    """Momentum of a sum against the sum of momenta: a few roundings a step, here of weights about 1, over 10 steps."""
    dense = weights(trained(DENSE.format(masking=False, nesterov=nesterov)))
    torch.testing.assert_close(dense, momentum_sgd(momentum=0.9, nesterov=nesterov), rtol=0, atol=1e-6)
    assert not torch.allclose(dense, momentum_sgd(momentum=0.0, nesterov=False), atol=1e-3)


def test_with_masking_at_density_1_dgc_is_plain_sgd() -> None:
    dense = weights(trained(DENSE.format(masking=True, nesterov=False)))
    torch.testing.assert_close(dense, momentum_sgd(momentum=0.0, nesterov=False), rtol=0, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["", "sgd(momentum=0.5)", "adam", "frozen-adam"])
def test_momentum_is_not_applied_twice(optimizer: str) -> None:
    with pytest.raises(StrategyError, match=r"would apply it again; use sgd\(momentum=0.0\)"):
        parse_strategy("+".join(filter(None, ("dgc", optimizer))))
    assert parse_strategy("dgc(momentum=0.0)+" + (optimizer or "sgd"))


@pytest.mark.parametrize(
    ("wrapper", "reason"),
    [("error-feedback", "residual of its own"), ("double-squeeze", "no code"), ("warm-up", "alone")],
)
def test_nothing_goes_around_what_keeps_its_own_residual(wrapper: str, reason: str) -> None:
    with pytest.raises(TextError, match=reason):
        parse_strategy(f"dgc+{wrapper}+sgd(momentum=0.0)")


@given(seed=SEEDS, masking=st.booleans(), per=st.sampled_from(["tensor", "message"]))
def test_without_momentum_what_dgc_sent_and_keeps_is_what_it_was_given(seed: int, masking: bool, per: str) -> None:
    ranks = Ranks(Dgc(density=0.05, momentum=0.0, masking=masking, per=per), 2, parameters_of(LAYOUT))
    sent, total = torch.zeros(2, 2, ranks.numel, dtype=torch.float64)
    for step in range(4):
        grads = random_grads(seed + step, 2, ranks.numel)
        total += torch.stack(grads).double() / 2
        sent += torch.stack([part(result.contributed) for result in ranks.reduce(grads)])
    kept = torch.stack([ranks.kept(rank, "residual") for rank in range(2)])
    assert bool(((sent + kept - total).abs() <= 1e-6 * total.abs().amax()).all())


@given(seed=SEEDS, nesterov=st.booleans())
def test_dgc_accumulates_masks_and_sends_as_written(seed: int, nesterov: bool) -> None:
    """Against the rule in formulas, in float64, given the mask that was drawn."""
    m, numel = 0.9, 200
    ranks = Ranks(Dgc(density=0.05, momentum=m, nesterov=nesterov), 1, segments_of([numel]))
    u, v = torch.zeros(2, numel, dtype=torch.float64)
    for step in range(4):
        (grad,) = random_grads(seed + step, 1, numel)
        g = grad.double()
        if nesterov:
            u = m * (u + g)
            v = v + u + g
        else:
            u = m * u + g
            v = v + u
        (result,) = ranks.reduce([grad])
        sent = result.value != 0
        assert float(v[sent].abs().min()) >= float(v[~sent].abs().median())
        torch.testing.assert_close(result.value.double(), torch.where(sent, v, 0.0), rtol=1e-5, atol=1e-6)
        u[sent] = v[sent] = 0.0
        torch.testing.assert_close(ranks.kept(0, "velocity"), u, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ranks.kept(0, "residual"), v, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("world", [1, 4])
def test_local_gradients_are_clipped_to_a_share_of_the_norm(world: int) -> None:
    """A rank's part, already divided by P, has at most the norm clip/√P; what is shorter stays as it is."""
    compressor = Dgc(density=1.0, momentum=0.0, clip=2.0)
    long, short = torch.randn(50) * 100, torch.full((50,), 1e-3)
    for grad in (long, short):
        results = Ranks(compressor, world, segments_of([50])).reduce([grad] * world)
        own, bound = grad / world, 2.0 / math.sqrt(world)
        expected = own * min(1.0, bound / float(own.norm()))
        torch.testing.assert_close(part(results[0].contributed).float(), expected)
    assert float(results[0].value.norm()) == pytest.approx(float(short.norm()), rel=1e-5)


def test_a_gradient_whose_square_overflows_float32_is_clipped_too() -> None:
    (result,) = Ranks(Dgc(density=1.0, momentum=0.0, clip=1.0), 1, segments_of([4])).reduce([torch.full((4,), 3e19)])
    torch.testing.assert_close(result.value, torch.full((4,), 0.5))


def test_density_falls_over_the_warm_up_and_stays() -> None:
    ramp = [Dgc(warmup_steps=8).density_at(step) for step in range(12)]
    assert ramp == [0.25, 0.25, 0.0625, 0.0625, 0.015625, 0.015625, 0.004, 0.004] + [0.001] * 4
    assert [Dgc(warmup_steps=8, density=0.05).density_at(step) for step in (0, 3, 4, 9)] == [0.25, 0.0625, 0.05, 0.05]
    assert Dgc().density_at(0) == 0.001
    ranks, sent = Ranks(Dgc(warmup_steps=4), 2, segments_of([10_000])), []
    for step in range(5):
        before = ranks.sent[0]
        ranks.reduce([torch.randn(10_000, generator=torch.Generator().manual_seed(10 * step + r)) for r in range(2)])
        sent.append(ranks.sent[0] - before - 8)
    for nbytes, density in zip(sent, (0.25, 0.0625, 0.015625, 0.004, 0.001), strict=True):
        assert nbytes <= 1.31 * code_bytes(10_000, density)
        assert nbytes >= 0.3 * code_bytes(10_000, density)


def test_a_tie_of_all_elements_sends_no_more_than_its_share() -> None:
    ranks = Ranks(Dgc(density=0.01), 1, segments_of([1000]))
    assert int((ranks.reduce([torch.ones(1000)])[0].value != 0).sum()) == 10


@pytest.mark.parametrize("compressor", [Dgc(density=1.0, masking=False), Dgc(density=0.2, sample=1.0)])
def test_state_stays_with_its_parameter_when_messages_change(compressor: Dgc) -> None:
    """One message a step, one a parameter, and another grouping in every step: the same results bit for bit."""
    parameters = parameters_of(LAYOUT)
    a, b, c, d = ([p] for p in parameters)
    cuts = [[a + b + c + d], [d, c, b, a], [c + a, b + d]]
    runs = [Ranks(compressor, 2, parameters) for _ in range(3)]
    for step in range(6):
        grads = random_grads(step, 2, runs[0].numel)
        whole = runs[0].reduce(grads)
        alone = runs[1].reduce(grads, cuts[1])
        mixed = runs[2].reduce(grads, cuts[step % 3])
        assert torch.equal(whole[0].value, alone[0].value)
        assert torch.equal(whole[0].value, mixed[0].value)


def test_two_packings_train_alike() -> None:
    text = "dgc(density=0.2, sample=1.0)+sgd(momentum=0.0)"
    assert torch.equal(weights(trained(text)), weights(trained("single-bucket+" + text)))


def test_a_state_that_was_saved_goes_on_as_if_nothing_had_happened() -> None:
    runs = [Ranks(Dgc(density=0.05, sample=1.0), 2, parameters_of(LAYOUT)) for _ in range(2)]
    for step in range(3):
        runs[0].reduce(random_grads(step, 2, runs[0].numel))
    file = io.BytesIO()
    torch.save(runs[0].states, file)
    file.seek(0)
    runs[1].states = torch.load(file, weights_only=True)
    for step in range(3, 6):
        on, again = (run.reduce(random_grads(step, 2, run.numel)) for run in runs)
        assert torch.equal(on[0].value, again[0].value)


def test_replicas_of_a_sparse_dgc_run_stay_identical() -> None:
    for world in (2, 3, 4):
        ranks = trained("dgc(density=0.1, warmup_steps=4, clip=1.0)+sgd(momentum=0.0)", world)
        for rank in range(1, world):
            assert torch.equal(weights(ranks), weights(ranks, rank))


# ---- gTop-k


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 6, 7, 8])
def test_gtopk_loses_nothing_over_the_workers(world: int) -> None:
    """Σ_t applied + Σ_ranks residuals = Σ_t Σ_ranks g, to 1e-6 of the largest Σ|g|, for any number of ranks."""
    ranks = Ranks(ErrorFeedback(GTopK(density=0.05)), world, parameters_of(LAYOUT), exchange=Tree())
    total, applied, magnitude = torch.zeros(3, ranks.numel, dtype=torch.float64)
    for step in range(5):
        grads = random_grads(step, world, ranks.numel)
        total += torch.stack(grads).double().sum(0) / world
        magnitude += torch.stack(grads).double().abs().sum(0) / world
        applied += ranks.reduce(grads)[0].value.double()
    kept = torch.stack([ranks.kept(rank, "residual") for rank in range(world)]).sum(0)
    assert bool(((applied + kept - total).abs() <= 1e-6 * magnitude.amax()).all())


@pytest.mark.parametrize("world", [3, 5, 6, 7])
def test_gtopk_hears_every_rank(world: int) -> None:
    """Each rank in turn has by far the largest element: a merge without the ranks beyond a power of two misses it."""
    for speaker in range(world):
        grads = [torch.full((40,), 1e-3) for _ in range(world)]
        grads[speaker][speaker] = 1000.0
        ranks = Ranks(GTopK(density=0.05), world, segments_of([40]), exchange=Tree())
        value = ranks.reduce(grads)[0].value
        assert float(value[speaker]) == pytest.approx(1000.0 / world, rel=1e-4)


def test_gtopk_of_a_case_worked_by_hand() -> None:
    """k = 1 and three ranks. Ranks 0 and 1 merge first: 3 at position 0 beats 2 at position 1, and rank 0 drops that 2.
    Rank 2 brings 4 at position 1, which wins: the result is 4 at position 1, not 6, and rank 0 keeps the 2. Rank 0's
    own 3 is not in the result and stays with it; rank 1's 2 has left it."""
    grads = [torch.tensor([3.0, 0.0]), torch.tensor([0.0, 2.0]), torch.tensor([0.0, 4.0])]
    segments, compressor = segments_of([2]), ErrorFeedback(GTopK(density=0.5))
    states = [{"p0": compressor.init("p0", torch.zeros(2))} for _ in range(3)]
    results = reduce_together(compressor, grads, states, segments, exchange=Tree())
    assert [result.value.tolist() for result in results] == [[0.0, 4.0]] * 3
    assert [state["p0"]["residual"].tolist() for state in states] == [[3.0, 2.0], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(("tail", "share"), [(0.0, 0.44), (1.5, 0.986)], ids=["gaussian", "heavy-tailed"])
def test_gtopk_keeps_as_much_of_the_exact_top_k_as_its_page_says(tail: float, share: float) -> None:
    """P = 8, independent ranks: the mean of 5 draws, of which each is within 0.01 of the page's mean of 20."""
    shares = []
    for seed in range(5):
        dice, shape = torch.Generator().manual_seed(seed), (8, 20_000)
        grads = torch.randn(shape, generator=dice) * torch.exp(tail * torch.randn(shape, generator=dice))
        ranks = Ranks(GTopK(density=0.01), 8, segments_of([20_000]), exchange=Tree())
        value = ranks.reduce([grad.clone() for grad in grads])[0].value
        shares.append(float(value.abs().sum() / _top(grads.mean(0), 200).abs().sum()))
    assert sum(shares) / len(shares) == pytest.approx(share, abs=0.02)


@given(seed=SEEDS)
def test_gtopk_of_two_ranks_is_the_top_k_of_the_sum_of_their_choices(seed: int) -> None:
    ranks = Ranks(GTopK(density=0.1), 2, segments_of([100]), exchange=Tree())
    grads = random_grads(seed, 2, 100)
    chosen = [_top(grad / 2, 10) for grad in grads]
    assert torch.equal(ranks.reduce(grads)[0].value, _top(chosen[0] + chosen[1], 10))


def test_gtopk_needs_the_tree() -> None:
    with pytest.raises(StrategyError, match="use the exchange tree"):
        parse_strategy("gtopk")
    assert parse_strategy("gtopk+tree+error-feedback")


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_gtopk_sends_one_code_a_round(world: int) -> None:
    """All ranks together 2(P − 1) codes; rank 0 sends its ⌈log₂ P⌉ on the way down."""
    ranks = Ranks(GTopK(density=0.01), world, segments_of([10_000]), exchange=Tree())
    ranks.reduce(random_grads(0, world, 10_000))
    assert sum(ranks.sent) == 2 * (world - 1) * 600
    assert ranks.sent[0] == math.ceil(math.log2(world)) * 600


def _top(values: Tensor, k: int) -> Tensor:
    kept = torch.zeros_like(values)
    positions = values.abs().topk(k).indices
    kept[positions] = values[positions]
    return kept
