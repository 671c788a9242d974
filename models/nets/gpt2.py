"""GPT-2 as a causal language model: `GPT2LMHeadModel` of transformers, built from a configuration.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019. Small is the smallest size of the paper:
124,439,808 parameters as released (the paper's table says 117 M). The head is the word embeddings' weight and has none
of its own (one parameter, used twice). Weights are random: nothing is downloaded. The import of transformers takes
seconds, so it happens when a network is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class GPT2Size:
    """The dimensions of a GPT-2; `num_positions` is the longest sequence."""

    num_layers: int
    hidden: int
    num_heads: int
    vocabulary: int
    num_positions: int


GPT2_TINY = GPT2Size(num_layers=2, hidden=128, num_heads=2, vocabulary=2_048, num_positions=512)
GPT2_SMALL = GPT2Size(num_layers=12, hidden=768, num_heads=12, vocabulary=50_257, num_positions=1_024)


def build_gpt2(size: GPT2Size, dropout: float) -> nn.Module:
    """A GPT-2 whose call on token ids [batch, length] returns a 1-tuple of logits [batch, length, vocabulary]."""
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

    # Keywords beyond GPT2Config's own pass through to its base class, which types do not know.
    options: dict[str, Any] = {"attn_implementation": "eager"}
    configuration = GPT2Config(
        vocab_size=size.vocabulary,
        n_positions=size.num_positions,
        n_embd=size.hidden,
        n_layer=size.num_layers,
        n_head=size.num_heads,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        use_cache=False,  # the keys and values of generation; a training step has no use for them
        bos_token_id=0,
        eos_token_id=0,
        **options,
    )
    network: nn.Module = GPT2LMHeadModel(configuration)
    network.register_forward_pre_hook(_with_options, with_kwargs=True)
    return network


def _with_options(module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What every call is to have: a tuple as the result, and the causal mask.

    Without a mask the library makes the same one, but first looks into the data for packed sequences, and waits for it.
    """
    (tokens,) = inputs
    lowest = torch.finfo(torch.float32).min
    mask = torch.full((tokens.shape[1], tokens.shape[1]), lowest, device=tokens.device).triu(1)
    return inputs, {**options, "return_dict": False, "attention_mask": mask[None, None]}


def gpt2_layer(module: str) -> str:
    """Embeddings, then attention and feed-forward of every block with the normalisation before each, then the head.

    The last normalisation belongs to the head, whose own weight is the embeddings'.
    """
    parts = module.removeprefix("transformer.").split(".")
    if parts[0] == "h":
        inside = parts[2] if len(parts) > 2 else "attn"
        return f"layer.{parts[1]}.{'attention' if inside in ('ln_1', 'attn') else 'ffn'}"
    return {"wte": "embeddings", "wpe": "embeddings", "ln_f": "head", "lm_head": "head"}[parts[0]]
