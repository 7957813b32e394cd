"""Backbones for small images: ResNets with a 32-px stem, WideResNets, and a small network for demos."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from osscl.errors import require_known


class Backbone(nn.Module):
    """An image encoder f: (n, channels, s, s) -> (n, width), s divisible by 8."""

    width: int

    if TYPE_CHECKING:  # nn.Module's own call returns Any

        def __call__(self, x: Tensor) -> Tensor: ...


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv(3, inputs, planes, stride),
            nn.BatchNorm2d(planes),
            nn.ReLU(inplace=True),
            conv(3, planes, planes),
            nn.BatchNorm2d(planes),
        )
        self.shortcut = shortcut(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut; the 3x3 one carries the stride."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        outputs = planes * self.expansion
        self.body = nn.Sequential(
            conv(1, inputs, planes),
            nn.BatchNorm2d(planes),
            nn.ReLU(inplace=True),
            conv(3, planes, planes, stride),
            nn.BatchNorm2d(planes),
            nn.ReLU(inplace=True),
            conv(1, planes, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


class ResNet(Backbone):
    """He et al. 2016, with a 3x3 stem of stride 1 and no max-pool."""

    def __init__(self, channels: int, block: type[BasicBlock] | type[Bottleneck], depths: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv(3, channels, 64), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        width = 64
        for planes, stride, depth in zip((64, 128, 256, 512), (1, 2, 2, 2), depths, strict=True):
            for i in range(depth):
                layers.append(block(width, planes, stride if i == 0 else 1))
                width = planes * block.expansion
        self.layers = nn.Sequential(*layers)
        self.width = width
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return pooled(self.layers(x))


class PreactivationBlock(nn.Module):
    """Norm and ReLU before each of two 3x3 convolutions; a shortcut that changes shape starts after the first ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(inplace=True))
        self.body = nn.Sequential(
            conv(3, inputs, outputs, stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            conv(3, outputs, outputs),
        )
        self.shortcut = conv(1, inputs, outputs, stride) if stride != 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        active: Tensor = self.before(x)
        residual: Tensor = self.body(active)
        return residual + (x if self.shortcut is None else self.shortcut(active))


class WideResNet(Backbone):
    """Zagoruyko & Komodakis 2016, WRN-depth-factor without dropout."""

    def __init__(self, channels: int, depth: int, factor: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv(3, channels, 16)]
        width = 16
        for planes, stride in ((16, 1), (32, 2), (64, 2)):
            for i in range((depth - 4) // 6):
                layers.append(PreactivationBlock(width, planes * factor, stride if i == 0 else 1))
                width = planes * factor
        self.layers = nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.width = width
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return pooled(self.layers(x))


class SmallNet(Backbone):
    """3x3 convolutions of p, 2p and 4p planes, `depth` of each, for images of 8 to 32 px.

    Its features keep a grid of 2 x 2 places: for a glyph, it matters where a stroke is.
    """

    def __init__(self, channels: int, planes: int = 16, depth: int = 1) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = channels
        for outputs, stride in ((planes, 1), (2 * planes, 2), (4 * planes, 2)):
            for i in range(depth):
                layers += [conv(3, width, outputs, stride if i == 0 else 1)]
                layers += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
                width = outputs
        self.layers = nn.Sequential(*layers)
        self.width = 4 * width
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(self.layers(x), 2).flatten(1)


def conv(kernel: int, inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the image size at stride 1; no bias, because a norm follows."""
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The identity if shapes match, else a 1x1 convolution and a norm."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(conv(1, inputs, outputs, stride), nn.BatchNorm2d(outputs))


def initialise(net: nn.Module) -> None:
    """Kaiming-normal convolutions by fan-out, in place; norms keep torch's weight 1 and bias 0."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def pooled(maps: Tensor) -> Tensor:
    """Global average of feature maps, (n, c, h, w) -> (n, c)."""
    return maps.mean(dim=(2, 3))


BACKBONES: dict[str, Callable[[int], Backbone]] = {  # name -> network for a number of image channels
    "resnet18": lambda channels: ResNet(channels, BasicBlock, (2, 2, 2, 2)),
    "resnet34": lambda channels: ResNet(channels, BasicBlock, (3, 4, 6, 3)),
    "resnet50": lambda channels: ResNet(channels, Bottleneck, (3, 4, 6, 3)),
    "wrn-40-2": lambda channels: WideResNet(channels, depth=40, factor=2),
    "wrn-28-10": lambda channels: WideResNet(channels, depth=28, factor=10),
    "small": SmallNet,
    "small-wide": lambda channels: SmallNet(channels, 32),
    "small-deep": lambda channels: SmallNet(channels, depth=2),
}


def require_backbone(name: str) -> None:
    """Refuse an unknown name."""
    require_known("backbone", name, BACKBONES)
