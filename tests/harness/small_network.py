"""A residual network for trials of real processes, whose step takes half of ResNet-20's time.

It has what those trials look at: convolutions, running statistics, some twenty tensors, and as many bytes of gradients
as ResNet-20, a little more than one bucket of DDP.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from models.nets.resnet import BasicBlock
from models.network import Kind, Network, SampleShape

NAME = f"{__file__}:SMALL"  # as a workload names it
NUM_HIDDEN = 3_072
SCALE = 8  # of the wide layer: as it is, it diverges at the usual rate


class SmallResNet(nn.Module):
    """Logits [batch, classes] of images [batch, channels, 8, 8]."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, 16, 3, 2, 1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(BasicBlock(16, 32, 2), BasicBlock(32, 64, 2))
        self.wide = nn.Linear(64, NUM_HIDDEN)
        self.fc = nn.Linear(NUM_HIDDEN, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.blocks(functional.relu(self.bn(self.conv(images))))
        logits: Tensor = self.fc(functional.relu(self.wide(maps.mean(dim=(2, 3)))) / SCALE)
        return logits


SMALL = Network(
    name="small",
    summary="two residual blocks and a wide layer",
    kind=Kind.IMAGES,
    build=lambda shape, dropout: SmallResNet(shape.num_classes, shape.channels),
    data=("digits", "shifted-digits", "synthetic"),
    image_size=8,
    num_classes=10,
    dropout=0.0,
    num_parameters=sum(parameter.numel() for parameter in SmallResNet(10, SampleShape(size=8).channels).parameters()),
    activation_bytes=60_000,
    layer_of=lambda module: module.replace("bn", "conv"),
)
