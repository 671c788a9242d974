"""Residual networks: ResNet-50 and ResNet-101 for large images, ResNet-20 for small ones.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016. ResNet-50 and ResNet-101 have torchvision's
parameter names, order and initialisation (stride in the 3×3 convolution, "v1.5"), so their weights
load there and back. ResNet-20 is the paper's CIFAR network with parameter-free shortcuts (option A).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

# Blocks in each of the four stages.
RESNET50 = (3, 4, 6, 3)
RESNET101 = (3, 4, 23, 3)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions; a shortcut that changes shape drops pixels and pads channels with zeros."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.padding = (channels - in_channels) // 2

    def forward(self, x: Tensor) -> Tensor:
        """From feature maps [batch, channels, height, width] to the block's own."""
        y = functional.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.stride > 1 or self.padding:
            x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return functional.relu(y + x)


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions with four times as many channels at the end."""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Module | None = None
        if stride > 1 or in_channels != out_channels:
            projection = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """From feature maps [batch, channels, height, width] to the block's own."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        return functional.relu(self.bn3(self.conv3(y)) + shortcut)


class ResNet20(nn.Module):
    """Logits [batch, classes] of images [batch, channels, size, size], size ≥ 8. With `zero_gamma` every block is the
    identity at first."""

    def __init__(self, num_classes: int, in_channels: int = 3, *, zero_gamma: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _basic_stage(16, 16, stride=1)
        self.layer2 = _basic_stage(16, 32, stride=2)
        self.layer3 = _basic_stage(32, 64, stride=2)
        self.fc = nn.Linear(64, num_classes)
        _initialise(self)
        if zero_gamma:
            _start_as_identity(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes] of images [batch, channels, height, width]."""
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


class BottleneckResNet(nn.Module):
    """Logits [batch, classes] of images [batch, channels, size, size], size ≥ 32, through stages of `depths` blocks."""

    def __init__(self, depths: tuple[int, int, int, int], num_classes: int, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = _bottleneck_stage(64, 64, depth=depths[0], stride=1)
        self.layer2 = _bottleneck_stage(256, 128, depth=depths[1], stride=2)
        self.layer3 = _bottleneck_stage(512, 256, depth=depths[2], stride=2)
        self.layer4 = _bottleneck_stage(1024, 512, depth=depths[3], stride=2)
        self.fc = nn.Linear(2048, num_classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes] of images [batch, channels, height, width]."""
        x = self.maxpool(functional.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


def _basic_stage(in_channels: int, channels: int, *, stride: int) -> nn.Sequential:
    first = BasicBlock(in_channels, channels, stride)
    return nn.Sequential(first, *(BasicBlock(channels, channels, 1) for _ in range(2)))


def _bottleneck_stage(in_channels: int, channels: int, *, depth: int, stride: int) -> nn.Sequential:
    first = Bottleneck(in_channels, channels, stride)
    out_channels = channels * Bottleneck.expansion
    return nn.Sequential(first, *(Bottleneck(out_channels, channels, 1) for _ in range(depth - 1)))


def _start_as_identity(network: ResNet20) -> None:
    """As Goyal et al., 2017, section 5.1: the last γ of every block is 0, and the last layer's weights are small."""
    for module in network.modules():
        if isinstance(module, BasicBlock):
            nn.init.zeros_(module.bn2.weight)
    nn.init.normal_(network.fc.weight, std=0.01)


def _initialise(network: nn.Module) -> None:
    """He initialisation by fan-out for convolutions; the other layers keep torch's own."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
