"""Causal language models: they see no later token, their labels are the next tokens, and they learn the text."""

import math
from itertools import islice
from pathlib import Path

import pytest
import torch
from learning import learn
from torch import Tensor, nn

from models.data.text import Text, documentation_text, shift, tokenise
from models.flops import layer_flops, layer_parameters, meta_inputs
from models.nets.transformer import sinusoids
from models.networks import NETWORKS, build_network
from models.profile import record_profile
from models.values import Batch, WorkloadError, WorkloadSpec
from models.workload import open_workload

CAUSAL = sorted(name for name, network in NETWORKS.items() if network.next_token)
SMALL = ("gpt2_tiny", "transformer_lm", "lstm_lm", "elman_rnn")
TIED = {
    "gpt2_tiny": ("lm_head.weight", "transformer.wte.weight"),
    "transformer_lm": ("head.weight", "embedding.weight"),
    "elman_rnn": ("head.weight", "embedding.weight"),
}


def built(name: str) -> nn.Module:
    network = NETWORKS[name]
    return build_network(network, network.usual_shape(image_size=0, sequence_length=16), 0.0, seed=1).eval()


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    output = model(tokens)
    logits: Tensor = output if isinstance(output, Tensor) else output[0]
    return logits


def test_which_networks_predict_the_next_token() -> None:
    assert CAUSAL == ["elman_rnn", "gpt2", "gpt2_tiny", "lstm_lm", "transformer_lm"]


@pytest.mark.parametrize("name", [*SMALL, "bert_tiny"])
def test_only_a_masked_model_sees_later_tokens(name: str) -> None:
    model = built(name)
    tokens = torch.randint(5, 2_048, (2, 12), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 2_048
    with torch.no_grad():
        before, after = logits_of(model, tokens), logits_of(model, changed)
    assert before.shape == (2, 12, 2_048)
    unlike = (before != after).any(dim=2).any(dim=0)
    # Only what may be seen is compared bit for bit; from the changed token on all logits move.
    assert bool(unlike[7:].all())
    assert bool(unlike[:7].any()) is (name == "bert_tiny")


def test_labels_are_the_next_tokens() -> None:
    tokens = torch.arange(30).view(3, 10)
    (inputs,), targets = shift(tokens)
    assert inputs.shape == targets.shape == (3, 9)
    assert torch.equal(targets, inputs + 1)


def test_next_token_sequences_follow_the_corpus_and_share_no_token() -> None:
    text = Text.open(documentation_text(), sequence_length=32, batch_size=4, next_token=True)
    ids = tokenise(documentation_text())
    assert text.sequences.shape == (len(ids) // 33, 33)
    assert text.sequences.flatten().tolist() == ids[: text.sequences.numel()]
    assert text.shape.size == 32
    first = next(iter(text.held_out()))
    assert first.inputs[0][1].tolist() == ids[330:362]
    assert first.targets[1].tolist() == ids[331:363]


def test_held_out_sequences_are_never_trained_on() -> None:
    numbered = torch.arange(100 * 9).view(100, 9)  # no token twice
    text = Text(batch_size=15, num_evaluation=0, sequences=numbered, next_token=True)
    trained = {
        int(token)
        for rank in range(2)
        for batch in islice(text.batches(rank, 2, 0), 6)
        for token in (*batch.inputs[0].flatten(), *batch.targets.flatten())
    }
    held_out = {
        int(token) for batch in text.held_out() for token in (*batch.inputs[0].flatten(), *batch.targets.flatten())
    }
    assert len(trained) == 90 * 9
    assert len(held_out) == 10 * 9
    assert not trained & held_out


def test_next_token_batches_depend_on_their_arguments_alone() -> None:
    workload = open_workload(WorkloadSpec(network="lstm_lm", batch_size=4, sequence_length=16))
    first, second, other = (next(workload.batches(rank, 2, 7)) for rank in (1, 1, 0))
    assert torch.equal(first.inputs[0], second.inputs[0])
    assert torch.equal(first.targets, second.targets)
    assert not torch.equal(first.inputs[0], other.inputs[0])


def test_too_short_a_corpus_is_named() -> None:
    with pytest.raises(WorkloadError, match=r"gives 0 sequences of 64 tokens, at least 20"):
        Text.open(["too short"], sequence_length=64, batch_size=1, next_token=True)


@pytest.mark.parametrize("name", sorted(TIED))
def test_the_head_is_the_embedding(name: str) -> None:
    head, embedding = TIED[name]
    model = built(name)
    assert model.get_parameter(head) is model.get_parameter(embedding)
    assert sum(parameter.numel() for parameter in model.parameters()) == NETWORKS[name].num_parameters


def test_the_recurrent_cell_is_used_once_a_token_and_its_gradient_comes_once() -> None:
    model = built("elman_rnn")
    calls: list[int] = []
    ready: list[str] = []
    model.get_submodule("cell").register_forward_pre_hook(lambda *_: calls.append(1))
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, n=name: ready.append(n))
    logits_of(model, torch.arange(24).view(2, 12)).sum().backward()
    assert len(calls) == 12
    assert sorted(ready) == sorted(name for name, _ in model.named_parameters())
    assert ready[0] == "head.bias"
    assert ready[-1] == "embedding.weight"


def test_gradient_of_the_cell_is_the_sum_over_its_uses() -> None:
    torch.manual_seed(0)
    model = built("elman_rnn").double()
    tokens = torch.randint(2_048, (1, 3))
    logits_of(model, tokens)[0, 2, 5].backward()
    weight, step = model.get_parameter("cell.weight_hh"), 1e-6
    for place in ((0, 0), (3, 200)):
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                weight[place] += sign * step
                ends.append(float(logits_of(model, tokens)[0, 2, 5]))
                weight[place] -= sign * step
        assert weight.grad is not None
        # A central difference in float64 is off by step² and by rounding over the step, 1e-16 / 1e-6.
        assert float(weight.grad[place]) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-8)


def test_each_lstm_layer_has_its_gradients_ready_on_its_own() -> None:
    model = built("lstm_lm")
    ready: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, n=name: ready.append(n))
    logits_of(model, torch.arange(24).view(2, 12)).sum().backward()
    layers = [NETWORKS["lstm_lm"].layer_of(name.rpartition(".")[0]) for name in ready]
    assert layers == ["head"] * 2 + ["layer.1"] * 4 + ["layer.0"] * 4 + ["embedding"]


def test_positions_are_those_of_the_paper() -> None:
    positions = sinusoids(5, 8, torch.device("cpu"))
    for position in range(5):
        for column in range(8):
            angle = position / 10_000 ** ((column - column % 2) / 8)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert float(positions[position, column]) == pytest.approx(expected, abs=1e-6)


def test_layers_of_gpt2_are_attention_and_feed_forward_of_every_block() -> None:
    network = NETWORKS["gpt2_tiny"]
    layers = layer_parameters(built("gpt2_tiny"), network)
    blocks = [f"layer.{block}.{part}" for block in range(2) for part in ("attention", "ffn")]
    assert list(layers) == ["embeddings", *blocks, "head"]
    assert [parameter.name for parameter in layers["head"]] == ["transformer.ln_f.weight", "transformer.ln_f.bias"]
    assert "transformer.h.1.ln_2.weight" in [parameter.name for parameter in layers["layer.1.ffn"]]


@pytest.mark.parametrize("name", SMALL)
def test_flops_are_those_of_the_formulas(name: str) -> None:
    network = NETWORKS[name]
    length = 16
    with torch.device("meta"):
        shape = network.usual_shape(image_size=0, sequence_length=length)
        flops = layer_flops(network.build(shape, 0.0), network, meta_inputs(network, shape, 1))
    block = 12 * 128 * 128 + 2 * length * 128  # multiply-adds a token
    multiply_adds = {
        "gpt2_tiny": 2 * block + 128 * 2_048,
        "transformer_lm": 2 * block + 128 * 2_048,
        "lstm_lm": 2 * 4 * 200 * (200 + 200) + 200 * 2_048,
        "elman_rnn": 256 * (256 + 256) + 256 * 2_048,
    }
    assert sum(flops.values()) == 2 * length * multiply_adds[name]


def test_recording_gives_a_tied_head_its_own_backward_time() -> None:
    spec = WorkloadSpec(network="transformer_lm", data="synthetic", batch_size=4, sequence_length=16)
    profile = record_profile(spec, num_steps=6, num_warmup=2)
    by_name = {layer.name: layer for layer in profile.layers}
    assert list(by_name) == ["embedding", *(f"layer.{i}.{p}" for i in range(2) for p in ("attention", "ffn")), "head"]
    # 64 tokens times 128·2,048 weights, twice: above 67 MFLOP. A tied weight counted here again would leave it nothing.
    assert by_name["head"].backward_s > 1e-4
    holders = [layer.name for layer in profile.layers for p in layer.parameters if p.name == "embedding.weight"]
    assert holders == ["embedding"]


@pytest.mark.parametrize(("name", "learning_rate"), [("gpt2_tiny", 1e-2), ("elman_rnn", 3e-3)])
def test_a_language_model_learns_the_text(name: str, learning_rate: float) -> None:
    spec = WorkloadSpec(network=name, batch_size=8, sequence_length=16, num_evaluation=100, dropout=0.0)
    before, after = learn(open_workload(spec), learning_rate, num_steps=60)
    assert before.loss > math.log(2_048) - 0.1  # as good as a guess
    assert after.loss < before.loss - 1.5
    assert after.accuracy > 20 / 2_048  # chance is one in 2,048


@pytest.mark.parametrize(
    ("name", "learning_rate", "num_steps"),
    [("gpt2_tiny", 3e-3, 40), ("transformer_lm", 3e-3, 40), ("lstm_lm", 1e-2, 80), ("elman_rnn", 3e-3, 40)],
)
def test_a_language_model_learns_what_follows_what(
    name: str, learning_rate: float, num_steps: int, tmp_path: Path
) -> None:
    # Eleven words in a circle: who knows only how frequent each is, is right once in eleven times. Eleven divides
    # neither the length of sequences nor how many lie between two held out, so these start anywhere in the circle.
    circle = "one two three four five six seven eight nine ten eleven "
    (tmp_path / "circle.txt").write_text(circle * 120)
    spec = WorkloadSpec(
        network=name, data="textfile", data_path=str(tmp_path), batch_size=8, sequence_length=8, dropout=0.0
    )
    before, after = learn(open_workload(spec), learning_rate, num_steps)
    assert before.accuracy < 0.5
    assert after.accuracy > 0.95


@pytest.mark.parametrize("name", SMALL)
def test_a_batch_is_a_batch(name: str) -> None:
    workload = open_workload(WorkloadSpec(network=name, data="synthetic", batch_size=2, sequence_length=16))
    batch = next(workload.batches(0, 1, 0))
    assert isinstance(batch, Batch)
    assert workload.loss(workload.build_model(0), batch).item() == pytest.approx(math.log(2_048), rel=0.1)
