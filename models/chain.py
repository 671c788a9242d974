"""A network as a chain of links: modules of one tensor in and one tensor out, cut where nothing else flows past.

Links wrap the network's own modules, so that parameters stay the network's, by identity. The links applied one after
the other compute what the network computes. A residual block is one link (a Transformer's attention and feed-forward
are one each), because a cut inside it would send the shortcut too. A weight that is used twice (tied) is in both links.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.nets.transformer import TRANSFORMER_WIDTH, TransformerLM, sinusoids
from models.nets.vgg import VGG16
from models.outside import is_outside
from models.values import WorkloadError


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A piece of a network between two possible cuts. `module` maps one tensor [batch, …] to one tensor [batch, …]."""

    name: str
    module: nn.Module


class Computed(nn.Module):
    """A function of one tensor and of `parts`, which stay ordinary submodules."""

    def __init__(self, function: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        """The function of x and the submodules."""
        return self.function(x, *self.parts)


def chain_of(network: str, model: nn.Module) -> tuple[ChainLink, ...]:
    """The links of `model`, in order of forward. `network` is its name in `models.networks`.

    Raises: WorkloadError if no rule says how the network is cut.
    """
    family = next((family for prefix, family in _FAMILIES.items() if network.startswith(prefix)), None)
    # A file of the user's may be called as one of ours, and hold another network.
    if family is None or is_outside(network):
        raise WorkloadError(f"network {network!r} has no chain; add a rule to models/chain.py")
    return tuple(family(model))


def link_of(network: str, layer: str) -> str:
    """The link that a layer of the network's profile belongs to."""
    parts = layer.split(".")
    if network.startswith("resnet") and len(parts) > 1:
        return ".".join(parts[:2])
    return layer


def apply_chain(links: Sequence[ChainLink], x: Tensor) -> Tensor:
    """What the network gives for `x` [batch, …]: logits."""
    for link in links:
        x = link.module(x)
    return x


def names_of_parameters(model: nn.Module, links: Sequence[ChainLink]) -> tuple[dict[str, str], ...]:
    """Of each link: its own name of a parameter → the name in the network. A tied weight has one name in both links."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return tuple(
        {own: names[id(parameter)] for own, parameter in link.module.named_parameters(remove_duplicate=False)}
        for link in links
    )


def _resnet(model: Any) -> list[ChainLink]:
    pool = [model.maxpool] if hasattr(model, "maxpool") else []
    stem = nn.Sequential(model.conv1, model.bn1, nn.ReLU(), *pool)
    stages = [(name, stage) for name, stage in model.named_children() if name.startswith("layer")]
    blocks = [ChainLink(f"{name}.{index}", block) for name, stage in stages for index, block in enumerate(stage)]
    return [ChainLink("conv1", stem), *blocks, ChainLink("fc", Computed(_pooled, model.fc))]


def _pooled(x: Tensor, head: nn.Module) -> Tensor:
    logits: Tensor = head(x.mean(dim=(2, 3)))
    return logits


def _vgg(model: VGG16) -> list[ChainLink]:
    groups: list[tuple[str, list[nn.Module]]] = []
    for prefix, container in (("features", model.features), ("classifier", model.classifier)):
        for index, module in enumerate(container):
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                first = [model.avgpool, nn.Flatten()] if prefix == "classifier" and index == 0 else []
                groups.append((f"{prefix}.{index}", first))
            groups[-1][1].append(module)
    return [ChainLink(name, nn.Sequential(*modules)) for name, modules in groups]


def _bert(model: Any) -> list[ChainLink]:
    links = [ChainLink("embeddings", model.bert.embeddings)]
    for index, layer in enumerate(model.bert.encoder.layer):
        links.append(ChainLink(f"layer.{index}.attention", Computed(_first, layer.attention)))
        links.append(ChainLink(f"layer.{index}.ffn", Computed(_bert_ffn, layer.intermediate, layer.output)))
    return [*links, ChainLink("head", model.cls)]


def _first(x: Tensor, attention: nn.Module) -> Tensor:
    out: Tensor = attention(x)[0]
    return out


def _bert_ffn(x: Tensor, intermediate: nn.Module, output: nn.Module) -> Tensor:
    out: Tensor = output(intermediate(x), x)
    return out


def _gpt2(model: Any) -> list[ChainLink]:
    body = model.transformer
    links = [ChainLink("embeddings", Computed(_gpt2_embeddings, body.wte, body.wpe, body.drop))]
    for index, block in enumerate(body.h):
        links.append(ChainLink(f"layer.{index}.attention", Computed(_gpt2_attention, block.ln_1, block.attn)))
        links.append(ChainLink(f"layer.{index}.ffn", Computed(_gpt2_ffn, block.ln_2, block.mlp)))
    return [*links, ChainLink("head", nn.Sequential(body.ln_f, model.lm_head))]


def _gpt2_embeddings(tokens: Tensor, words: nn.Module, positions: nn.Module, dropout: nn.Module) -> Tensor:
    places = torch.arange(tokens.shape[1], device=tokens.device)
    out: Tensor = dropout(words(tokens) + positions(places)[None])
    return out


def _gpt2_attention(x: Tensor, norm: nn.Module, attention: nn.Module) -> Tensor:
    length = x.shape[1]
    mask = torch.full((length, length), torch.finfo(x.dtype).min, device=x.device).triu(1)
    out: Tensor = x + attention(norm(x), attention_mask=mask[None, None])[0]
    return out


def _gpt2_ffn(x: Tensor, norm: nn.Module, feed_forward: nn.Module) -> Tensor:
    out: Tensor = x + feed_forward(norm(x))
    return out


def _transformer(model: TransformerLM) -> list[ChainLink]:
    links = [ChainLink("embedding", Computed(_transformer_embedding, model.embedding, model.dropout))]
    for index, block in enumerate(model.layers):
        links.append(ChainLink(f"layer.{index}.attention", Computed(_transformer_attention, *_attention_parts(block))))
        links.append(ChainLink(f"layer.{index}.ffn", Computed(_transformer_ffn, *_ffn_parts(block))))
    return [*links, ChainLink("head", model.head)]


def _transformer_embedding(tokens: Tensor, embedding: nn.Module, dropout: nn.Module) -> Tensor:
    positions = sinusoids(tokens.shape[1], TRANSFORMER_WIDTH, tokens.device)
    out: Tensor = dropout(embedding(tokens) * TRANSFORMER_WIDTH**0.5 + positions)
    return out


def _transformer_attention(x: Tensor, attention: nn.Module, norm: nn.Module, dropout: nn.Module) -> Tensor:
    out: Tensor = norm(x + dropout(attention(x)))
    return out


def _attention_parts(block: Any) -> tuple[nn.Module, ...]:
    return block.attention, block.attention_norm, block.dropout


def _ffn_parts(block: Any) -> tuple[nn.Module, ...]:
    return block.ffn_in, block.ffn_out, block.ffn_norm, block.dropout


def _transformer_ffn(x: Tensor, inner: nn.Module, outer: nn.Module, norm: nn.Module, dropout: nn.Module) -> Tensor:
    out: Tensor = norm(x + dropout(outer(torch.relu(inner(x)))))
    return out


def _lstm(model: Any) -> list[ChainLink]:
    links = [ChainLink("embedding", nn.Sequential(model.embedding, model.dropout))]
    for index, layer in enumerate(model.layers):
        links.append(ChainLink(f"layer.{index}", Computed(_lstm_layer, layer, model.dropout)))
    return [*links, ChainLink("head", model.head)]


def _lstm_layer(x: Tensor, layer: nn.Module, dropout: nn.Module) -> Tensor:
    out: Tensor = dropout(layer(x)[0])
    return out


def _elman(model: Any) -> list[ChainLink]:
    return [
        ChainLink("embedding", nn.Sequential(model.embedding, model.dropout)),
        ChainLink("cell", Computed(_elman_states, model.cell, model.dropout)),
        ChainLink("head", model.head),
    ]


def _elman_states(x: Tensor, cell: nn.RNNCell, dropout: nn.Module) -> Tensor:
    state = x.new_zeros(len(x), cell.hidden_size)
    states = []
    for inputs in x.unbind(dim=1):
        state = cell(inputs, state)
        states.append(state)
    out: Tensor = dropout(torch.stack(states, dim=1))
    return out


_FAMILIES: dict[str, Callable[[Any], list[ChainLink]]] = {
    "resnet": _resnet,
    "vgg": _vgg,
    "bert": _bert,
    "gpt2": _gpt2,
    "transformer_lm": _transformer,
    "lstm_lm": _lstm,
    "elman_rnn": _elman,
}
