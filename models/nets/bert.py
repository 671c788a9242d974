"""BERT as a masked language model: `BertForMaskedLM` of transformers, built from a configuration.

Devlin et al., "BERT", NAACL 2019; the tiny size is from Turc et al., "Well-Read Students Learn Better", 2019.
The decoder shares its weight with the word embeddings (one parameter, used twice). Without the pooler and
the next-sentence head, base has 109,514,298 parameters and large 335,174,458; with both they are the published
110,106,428 and 336,226,108 ("110M" and "340M" in the paper). The import of transformers takes seconds, so it
happens when a network is built and not before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, slots=True)
class BertSize:
    """The dimensions of a BERT."""

    num_layers: int
    hidden: int
    num_heads: int
    vocabulary: int


TINY = BertSize(num_layers=2, hidden=128, num_heads=2, vocabulary=2_048)
BASE = BertSize(num_layers=12, hidden=768, num_heads=12, vocabulary=30_522)
LARGE = BertSize(num_layers=24, hidden=1_024, num_heads=16, vocabulary=30_522)


def build_bert(size: BertSize, dropout: float) -> nn.Module:
    """A BERT whose call on token ids [batch, length ≤ 512] returns a 1-tuple of logits [batch, length, vocabulary]."""
    from transformers.models.bert.configuration_bert import BertConfig
    from transformers.models.bert.modeling_bert import BertForMaskedLM

    # Keywords beyond BertConfig's own pass through to its base class, which types do not know.
    options: dict[str, Any] = {"return_dict": False, "attn_implementation": "eager"}
    configuration = BertConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        intermediate_size=4 * size.hidden,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **options,
    )
    network: nn.Module = BertForMaskedLM(configuration)
    return network
