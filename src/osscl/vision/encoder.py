"""Networks: an Encoder is a backbone f and a projector g; classifiers end in a growing linear layer."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from osscl.config import added_later, require, require_declared
from osscl.device import fused
from osscl.vision.backbones import BACKBONES, require_backbone

CHUNK = 1024  # images per forward pass without gradients; one shape, so one compiled graph
WIDEST = 65536  # widest layer that a config may request


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of a network."""

    backbone: str = "resnet18"
    hidden: int | None = None  # width of the projector's hidden layer; None: the backbone's width
    dim: int = 128  # d, the size of z
    projector_norm: bool = False  # batch norm in the projector
    output_norm: bool = added_later(False, legacy=False)  # batch norm on the projector's output, as in SimSiam

    def __post_init__(self) -> None:
        require_backbone(self.backbone)
        require_declared(self)
        require(self.hidden is None or 0 < self.hidden <= WIDEST, self, "hidden", f"in [1, {WIDEST}], or null")
        require(0 < self.dim <= WIDEST, self, "dim", f"in [1, {WIDEST}]")


@dataclass(frozen=True)
class ImageFormat:
    """Shape of every image of a run, and the mean and standard deviation that normalise it."""

    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        require(self.size % 8 == 0, self, "size", "divisible by 8")


class BackboneModule(nn.Module):
    """A backbone f behind input normalisation; x is uint8, or float in [0, 1]."""

    def __init__(self, backbone: str, images: ImageFormat, precision: torch.dtype) -> None:
        super().__init__()
        self.precision = precision
        self.compiles = True  # large batches on CUDA, see `fused`
        self.backbone = BACKBONES[backbone](images.channels)
        self.width = self.backbone.width
        self.register_buffer("mean", torch.tensor(images.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(images.std).view(1, -1, 1, 1), persistent=False)

    def learning(self, on: bool) -> Self:
        """Switch between training mode with gradients and evaluation mode without: two compiled graphs in all."""
        return self.train(on).requires_grad_(on)

    def load(self, state: dict[str, Tensor]) -> None:
        """Load a saved state; a network with a growing layer takes its size from it."""
        self.load_state_dict(state)

    def features(self, x: Tensor) -> Tensor:
        """f(x), (n, width), for heads."""
        features = features_of if self.compiles else features_of.__wrapped__  # type: ignore[attr-defined]
        return features(_unit(x), self)  # type: ignore[no-any-return]


Net = TypeVar("Net", bound=BackboneModule)


class Encoder(BackboneModule):
    """z = g(f(x)) on the unit sphere."""

    def __init__(self, config: EncoderConfig, images: ImageFormat, precision: torch.dtype = torch.float32) -> None:
        super().__init__(config.backbone, images, precision)
        hidden = config.hidden or self.width
        self.projector = projector(
            self.width, hidden, config.dim, norm=config.projector_norm, output_norm=config.output_norm
        )

    def forward(self, x: Tensor) -> Tensor:
        """z, (n, d), unit rows."""
        embed = _embed if self.compiles else _embed.__wrapped__  # type: ignore[attr-defined]
        return embed(_unit(x), self)  # type: ignore[no-any-return]


# Functions of (x, net), not methods, so that networks of one shape share one compiled graph.
@fused
def features_of(x: Tensor, net: BackboneModule) -> Tensor:
    """f(x), (n, width) float32."""
    return _backbone(x, net).float()


@fused
def _embed(x: Tensor, net: Encoder) -> Tensor:
    with torch.autocast(x.device.type, net.precision, enabled=net.precision != torch.float32):
        z = net.projector(_backbone(x, net))
    return F.normalize(z.float(), dim=1)


def _unit(x: Tensor) -> Tensor:
    return x.float() / 255 if x.dtype == torch.uint8 else x


def _backbone(x: Tensor, net: BackboneModule) -> Tensor:
    x = ((x - net.mean) / net.std).contiguous(memory_format=torch.channels_last)  # type: ignore[operator]
    with torch.autocast(x.device.type, net.precision, enabled=net.precision != torch.float32):
        return net.backbone(x)  # type: ignore[no-any-return]


def projector(inputs: int, hidden: int, outputs: int, *, norm: bool, output_norm: bool = False) -> nn.Sequential:
    """A two-layer perceptron with biases, as in Co2L; with batch norm after either layer."""
    layers: list[nn.Module] = [nn.Linear(inputs, hidden), *([nn.BatchNorm1d(hidden)] if norm else [])]
    last: list[nn.Module] = [nn.Linear(hidden, outputs), *([nn.BatchNorm1d(outputs)] if output_norm else [])]
    return nn.Sequential(*layers, nn.ReLU(), *last)


def new_encoder(
    config: EncoderConfig, images: ImageFormat, rng: torch.Generator, device: torch.device, precision: torch.dtype
) -> Encoder:
    """A network whose random weights depend only on `rng` (a CPU generator), not on the device."""
    return build_on_device(lambda: Encoder(config, images, precision), rng, device)


def build_on_device(make: Callable[[], Net], rng: torch.Generator, device: torch.device) -> Net:
    """Build a network with weights drawn from `rng` and move it to the device, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(rng.initial_seed())
        net = make()
    return net.to(device, memory_format=torch.channels_last).learning(False)  # type: ignore[call-overload, no-any-return]


def frozen_copy(net: Net, *, batch_statistics: bool = False) -> Net:
    """A teacher that never learns. With `batch_statistics` its batch norms use the batch (as in Co2L's code)."""
    teacher = copy.deepcopy(net).learning(False)
    if batch_statistics:
        for module in teacher.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.running_mean = module.running_var = None
    return teacher


def restored(net: Net, saved: dict[str, Tensor] | None) -> Net | None:
    """`net` with a saved state; None if none was saved."""
    if saved is None:
        return None
    net.load(saved)
    return net


@torch.no_grad()
def embed_frozen(teacher: Encoder, x: Tensor) -> Tensor:
    """z of a teacher, without gradients."""
    return teacher(x)  # type: ignore[no-any-return]


@torch.no_grad()
def in_chunks(function: Callable[..., Tensor], *inputs: Tensor, chunk: int = CHUNK) -> Tensor:
    """Apply `function` without gradients, `chunk` rows at a time; on CUDA the last one is padded to the same shape."""
    if not len(inputs[0]):
        return function(*(given.new_zeros(1, *given.shape[1:]) for given in inputs))[:0]
    parts = []
    for start in range(0, len(inputs[0]), chunk):
        piece = [given[start : start + chunk] for given in inputs]
        n = len(piece[0])
        if n < chunk and piece[0].is_cuda:
            piece = [torch.cat((part, part.new_zeros(chunk - n, *part.shape[1:]))) for part in piece]
        parts.append(function(*piece)[:n])
    return torch.cat(parts)


class eval_mode:
    """Evaluation mode inside the block; the previous mode after it."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __enter__(self) -> None:
        self.was_training = self.net.training
        self.net.eval()

    def __exit__(self, *_: Any) -> None:
        self.net.train(self.was_training)


class GrowingLinear(nn.Module):
    """A linear layer with one row per class seen so far."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, width))
        self.bias = nn.Parameter(torch.empty(0))

    def grow(self, more: int, rng: Generator) -> None:
        """Add rows for `more` classes, initialised from `rng` (a CPU generator) like torch's linear layers."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        drawn = (2 * torch.rand(more, self.weight.shape[1] + 1, generator=rng) - 1).to(self.weight.device) * bound
        learns = self.weight.requires_grad
        self.weight = nn.Parameter(torch.cat((self.weight.detach(), drawn[:, :-1])), learns)
        self.bias = nn.Parameter(torch.cat((self.bias.detach(), drawn[:, -1])), learns)

    def restart(self, k: int, rng: Generator) -> None:
        """Replace all rows by new ones for `k` classes."""
        self.weight = nn.Parameter(self.weight.detach()[:0], self.weight.requires_grad)
        self.bias = nn.Parameter(self.bias.detach()[:0], self.bias.requires_grad)
        self.grow(k, rng)

    def shape_as(self, state: dict[str, Tensor], prefix: str) -> None:
        """Resize to the number of rows of a saved state, before loading it."""
        device, learns = self.weight.device, self.weight.requires_grad
        self.weight = nn.Parameter(torch.empty_like(state[prefix + "weight"], device=device), learns)
        self.bias = nn.Parameter(torch.empty_like(state[prefix + "bias"], device=device), learns)

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)


class Classifier(BackboneModule):
    """Logits (n, classes seen) from a linear head."""

    def __init__(self, backbone: str, images: ImageFormat, precision: torch.dtype) -> None:
        super().__init__(backbone, images, precision)
        self.head = GrowingLinear(self.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]

    def load(self, state: dict[str, Tensor]) -> None:
        self.head.shape_as(state, "head.")
        super().load(state)


class Deconfident(BackboneModule):
    """DeConf-C of Generalized ODIN, as in DistillMatch: h_k(x) / g(x); h is high for images of classes seen."""

    def __init__(self, backbone: str, images: ImageFormat, precision: torch.dtype) -> None:
        super().__init__(backbone, images, precision)
        self.rows = GrowingLinear(self.width)  # one direction per class; the biases are unused
        self.scale = nn.Linear(self.width, 1, bias=False)
        self.scale_norm = nn.BatchNorm1d(1)
        self.divisor = nn.Linear(self.width, 1)
        self.divisor_norm = nn.BatchNorm1d(1)

    def scores(self, features: Tensor) -> Tensor:
        """h: scaled cosines, (n, classes seen)."""
        cosines = F.normalize(features, dim=1) @ F.normalize(self.rows.weight, dim=1).T
        return self.scale_norm(self.scale(features)).exp() * cosines  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """h / g, (n, classes seen): the logits that are trained."""
        features = self.features(x)
        return self.scores(features) / self.divisor_norm(self.divisor(features)).sigmoid()  # type: ignore[no-any-return]

    def load(self, state: dict[str, Tensor]) -> None:
        self.rows.shape_as(state, "rows.")
        super().load(state)
