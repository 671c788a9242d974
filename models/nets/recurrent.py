"""Recurrent language models: a two-layer LSTM and an Elman network.

LSTM: Zaremba, Sutskever and Vinyals, "Recurrent Neural Network Regularization", 2014, the small size: two layers of
200 units, weights uniform in ±0.1, embedding and output apart. Elman: "Finding Structure in Time", Cognitive Science
1990, as a language model after Mikolov et al., "Recurrent neural network based language model", Interspeech 2010:

    h_t = tanh(W x_t + U h_(t−1) + b),   logits_t = E h_t + c,   x_t = E[token_t]

E is one parameter used twice, and W, U and b are used once a token, by one call of their module each: their
gradients are complete only when backward has come to the first token, all at once.
Differs from the papers: every sequence starts from a zero state, so backward runs through the whole sequence and none
is truncated; the Elman network has our size, tanh for the sigmoid, and shares the weight E.
Not verified against the papers: the initial ±0.1, and that the size with 200 units is theirs and not only their code's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LSTM_WIDTH, LSTM_LAYERS = 200, 2
ELMAN_WIDTH = 256
_INITIAL = 0.1  # weights start uniform in ± this


class LSTMLM(nn.Module):
    """Logits [batch, length, vocabulary] of the tokens that follow token ids [batch, length]."""

    def __init__(self, vocabulary: int, dropout: float, width: int = LSTM_WIDTH) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        # Modules of one layer each: a module of two would have all gradients ready at its very end.
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(LSTM_LAYERS))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, vocabulary)
        _initialise(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, tokens] of the token behind each place, from token ids [batch, length]."""
        x = self.dropout(self.embedding(tokens))
        for layer in self.layers:
            x = self.dropout(layer(x)[0])
        logits: Tensor = self.head(x)
        return logits


class ElmanLM(nn.Module):
    """Logits [batch, length, vocabulary] of the tokens that follow token ids [batch, length]."""

    def __init__(self, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, ELMAN_WIDTH)
        self.cell = nn.RNNCell(ELMAN_WIDTH, ELMAN_WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(ELMAN_WIDTH, vocabulary)
        self.head.weight = self.embedding.weight
        _initialise(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, tokens] of the token behind each place, from token ids [batch, length]."""
        x = self.dropout(self.embedding(tokens))
        state = x.new_zeros(len(x), ELMAN_WIDTH)
        states = []
        for inputs in x.unbind(dim=1):
            state = self.cell(inputs, state)
            states.append(state)
        logits: Tensor = self.head(self.dropout(torch.stack(states, dim=1)))
        return logits


def recurrent_layer(module: str) -> str:
    """Embedding, every recurrent layer, head: modules as they are, `layers.0` as `layer.0`."""
    return module.replace("layers.", "layer.")


def _initialise(network: nn.Module) -> None:
    for name, parameter in network.named_parameters():
        if name == "head.bias":
            nn.init.zeros_(parameter)
        else:
            nn.init.uniform_(parameter, -_INITIAL, _INITIAL)
