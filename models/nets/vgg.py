"""VGG-16 (configuration D, no batch normalisation), with torchvision's parameter names and initialisation.

Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015.
Nine tenths of its 138,357,544 parameters sit in three linear layers: the classic hard case for communication.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Output channels of each 3×3 convolution; 0 halves the resolution.
_FEATURES = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


class VGG16(nn.Module):
    """Logits [batch, classes] of images [batch, channels, size, size], size ≥ 32."""

    def __init__(self, num_classes: int, in_channels: int = 3, dropout: float = 0.5) -> None:
        super().__init__()
        self.features = nn.Sequential(*_feature_layers(in_channels))
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, num_classes),
        )
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes] of images [batch, channels, height, width]."""
        x = self.avgpool(self.features(x))
        logits: Tensor = self.classifier(torch.flatten(x, 1))
        return logits


def _feature_layers(in_channels: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for channels in _FEATURES:
        if channels == 0:
            layers.append(nn.MaxPool2d(2, 2))
            continue
        layers += [nn.Conv2d(in_channels, channels, 3, padding=1), nn.ReLU(inplace=True)]
        in_channels = channels
    return layers


def _initialise(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.01)
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.zeros_(module.bias)
