"""A small Transformer language model: the decoder of Vaswani et al. without the encoder that it attends to.

Vaswani et al., "Attention Is All You Need", NIPS 2017: sinusoidal positions, embeddings times √width, normalisation
behind each residual sum, ReLU, one weight for embedding and output. No position sees a later one.
Differs from the paper: no encoder, and much smaller; the output has a bias; matrices start as Xavier's and the
embedding as N(0, 1/width), of which the paper says nothing. Attention is written out as matrix products, so that
FLOPs can be counted. Not verified against the paper line by line.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

TRANSFORMER_WIDTH, TRANSFORMER_LAYERS, TRANSFORMER_HEADS = 128, 2, 4
_EXPANSION = 4


class CausalAttention(nn.Module):
    """Multi-head attention of states [batch, length, width] on themselves and what stands before them."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.input = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Each place's mix of the places before it: [batch, length, width] to the same shape."""
        batch, length, width = x.shape
        split = self.input(x).view(batch, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each [batch, heads, length, width a head]
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = self.dropout(functional.softmax(scores.masked_fill(later, -math.inf), dim=-1))
        mixed: Tensor = self.output((weights @ value).transpose(1, 2).reshape(batch, length, width))
        return mixed


class Block(nn.Module):
    """Attention and feed-forward, each with its residual sum and the normalisation behind it."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = CausalAttention(width, num_heads, dropout)
        self.attention_norm = nn.LayerNorm(width)
        self.ffn_in = nn.Linear(width, _EXPANSION * width)
        self.ffn_out = nn.Linear(_EXPANSION * width, width)
        self.ffn_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and feed-forward, normalised after each: [batch, length, width] to the same shape."""
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        out: Tensor = self.ffn_norm(x + self.dropout(self.ffn_out(functional.relu(self.ffn_in(x)))))
        return out


class TransformerLM(nn.Module):
    """Logits [batch, length, vocabulary] of the tokens that follow token ids [batch, length]."""

    def __init__(self, vocabulary: int, dropout: float) -> None:
        super().__init__()
        width = TRANSFORMER_WIDTH
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Block(width, TRANSFORMER_HEADS, dropout) for _ in range(TRANSFORMER_LAYERS))
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.embedding.weight
        _initialise(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, tokens] of the token behind each place, from token ids [batch, length]."""
        x = self.embedding(tokens) * math.sqrt(TRANSFORMER_WIDTH)
        x = self.dropout(x + sinusoids(tokens.shape[1], TRANSFORMER_WIDTH, x.device))
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


def sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """Positions [length, width]: sin(t / 10000^(2i/width)) in even columns 2i, the cosine in odd ones."""
    angles = torch.arange(length, device=device)[:, None] * torch.exp(
        torch.arange(0, width, 2, device=device) * (-math.log(10_000) / width)
    )
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)


def transformer_layer(module: str) -> str:
    """Embedding, then attention and feed-forward of every block with the normalisation behind each, then the head."""
    parts = module.split(".")
    if parts[0] != "layers":
        return parts[0]
    inside = parts[2] if len(parts) > 2 else "attention"
    return f"layer.{parts[1]}.{'attention' if inside.startswith('attention') else 'ffn'}"


def _initialise(network: TransformerLM) -> None:
    for parameter in network.layers.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    nn.init.normal_(network.embedding.weight, std=1 / math.sqrt(TRANSFORMER_WIDTH))
    nn.init.zeros_(network.head.bias)
