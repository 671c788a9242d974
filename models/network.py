"""What a network is to this suite: how to build it, what it eats, how its modules group into layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from torch import nn


class Kind(StrEnum):
    """What a network eats."""

    IMAGES = "images"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleShape:
    """One sample: images are `channels` × `size` × `size` of `num_classes`; texts are `size` tokens."""

    size: int
    channels: int = 3
    num_classes: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One network.

    Attributes:
        build: from a sample's shape and the dropout probability.
        data: names of the data sets that fit, the default first.
        image_size: side of the images that it is made for; 0 for text.
        dropout: its usual probability.
        num_parameters: at the default sample shape (tied weights once).
        num_classes: classes, or tokens of the vocabulary.
        activation_bytes: saved for backward, by a sample at `image_size` or by a token.
        layer_of: the layer that a module with parameters belongs to, by the module's name.
        profile: the default profile for replay, empty where none is shipped.
        next_token: a text's every next token is to be predicted, rather than the masked ones.
    """

    name: str
    summary: str
    kind: Kind
    build: Callable[[SampleShape, float], nn.Module]
    data: tuple[str, ...]
    image_size: int
    num_classes: int
    dropout: float
    num_parameters: int
    activation_bytes: int
    layer_of: Callable[[str], str]
    profile: str = ""
    next_token: bool = False

    def usual_shape(self, *, image_size: int, sequence_length: int) -> SampleShape:
        """The sample that it is made for, at another size. `image_size` 0 is its own."""
        size = sequence_length if self.kind is Kind.TEXT else image_size or self.image_size
        return SampleShape(size=size, num_classes=self.num_classes)
