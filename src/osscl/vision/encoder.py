"""Encoder = backbone f and projector g; both of the paper's networks are one."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from osscl.config import require, require_declared
from osscl.device import fused
from osscl.vision.backbones import BACKBONES, require_backbone

CHUNK = 1024  # images a forward pass without gradients; one shape, so that one compiled graph serves them all
WIDEST = 65536  # layer that a config may ask for


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of a network."""

    backbone: str = "resnet18"
    hidden: int | None = None  # width of the projector's hidden layer; the backbone's where None
    dim: int = 128  # d, the size of z
    projector_norm: bool = False  # batch norm in the projector

    def __post_init__(self) -> None:
        require_backbone(self.backbone)
        require_declared(self)
        require(self.hidden is None or 0 < self.hidden <= WIDEST, self, "hidden", f"in [1, {WIDEST}], or null")
        require(0 < self.dim <= WIDEST, self, "dim", f"in [1, {WIDEST}]")


@dataclass(frozen=True)
class ImageFormat:
    """What every image of a run looks like, and the one normaliser that all of them pass."""

    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        require(self.size % 8 == 0, self, "size", "divisible by 8")


class Body(nn.Module):
    """The backbone f of a network, with the normaliser before it; x is uint8, or float in [0, 1]."""

    def __init__(self, backbone: str, images: ImageFormat, precision: torch.dtype) -> None:
        super().__init__()
        self.precision = precision
        self.compiles = True  # where the device profits; see `fused`
        self.backbone = BACKBONES[backbone](images.channels)
        self.width = self.backbone.width
        self.register_buffer("mean", torch.tensor(images.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(images.std).view(1, -1, 1, 1), persistent=False)

    def learning(self, on: bool) -> Self:
        """Training mode with gradients, or evaluation mode without: two modes, and two compiled graphs, in all."""
        return self.train(on).requires_grad_(on)

    def features(self, x: Tensor) -> Tensor:
        """f(x), (n, width), for heads."""
        features = features_of if self.compiles else features_of.__wrapped__  # type: ignore[attr-defined]
        return features(_unit(x), self)  # type: ignore[no-any-return]


Net = TypeVar("Net", bound=Body)


class Encoder(Body):
    """z = g(f(x)) on the unit sphere; x is uint8, or float in [0, 1]."""

    def __init__(self, config: EncoderConfig, images: ImageFormat, precision: torch.dtype = torch.float32) -> None:
        super().__init__(config.backbone, images, precision)
        self.projector = projector(self.width, config.hidden or self.width, config.dim, norm=config.projector_norm)

    def project(self, x: Tensor) -> Tensor:
        """g(f(x)), (n, d), before it is put on the sphere."""
        return _project(_unit(x), self)

    def forward(self, x: Tensor) -> Tensor:
        """z, (n, d), unit rows."""
        embed = _embed if self.compiles else _embed.__wrapped__  # type: ignore[attr-defined]
        return embed(_unit(x), self)  # type: ignore[no-any-return]


# Functions of (x, net), not methods: networks of one shape then share one compiled graph, their weights its inputs.
@fused
def features_of(x: Tensor, net: Body) -> Tensor:
    """f(x) of any network with a body, (n, width) float32."""
    return _backbone(x, net).float()


@fused
def _project(x: Tensor, net: Encoder) -> Tensor:
    with torch.autocast(x.device.type, net.precision, enabled=net.precision != torch.float32):
        return net.projector(_backbone(x, net)).float()  # type: ignore[no-any-return]


@fused
def _embed(x: Tensor, net: Encoder) -> Tensor:
    with torch.autocast(x.device.type, net.precision, enabled=net.precision != torch.float32):
        z = net.projector(_backbone(x, net))
    return F.normalize(z.float(), dim=1)


def _unit(x: Tensor) -> Tensor:
    return x.float() / 255 if x.dtype == torch.uint8 else x


def _backbone(x: Tensor, net: Body) -> Tensor:
    x = ((x - net.mean) / net.std).contiguous(memory_format=torch.channels_last)  # type: ignore[operator]
    with torch.autocast(x.device.type, net.precision, enabled=net.precision != torch.float32):
        return net.backbone(x)  # type: ignore[no-any-return]


def projector(inputs: int, hidden: int, outputs: int, *, norm: bool) -> nn.Sequential:
    """A two-layer perceptron; Co2L's shape, biases on."""
    layers: list[nn.Module] = [nn.Linear(inputs, hidden)]
    if norm:
        layers.append(nn.BatchNorm1d(hidden))
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(hidden, outputs))


def new_encoder(
    config: EncoderConfig, images: ImageFormat, rng: torch.Generator, device: torch.device, precision: torch.dtype
) -> Encoder:
    """A network with random weights that depend on `rng` (a CPU generator) alone, wherever the network lives."""
    return placed(lambda: Encoder(config, images, precision), rng, device)


def placed(make: Callable[[], Net], rng: torch.Generator, device: torch.device) -> Net:
    """What `make` makes, with the random weights of `rng`, laid out as the device likes it, not learning."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(rng.initial_seed())
        net = make()
    return net.to(device, memory_format=torch.channels_last).learning(False)  # type: ignore[call-overload, no-any-return]


def frozen_copy(net: Net, *, batch_statistics: bool = False) -> Net:
    """A teacher: it never learns. With `batch_statistics` its norms go by the batch at hand (as Co2L's code has it)."""
    teacher = copy.deepcopy(net).learning(False)
    if batch_statistics:
        for module in teacher.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.running_mean = module.running_var = None
    return teacher


@torch.no_grad()
def in_chunks(function: Callable[..., Tensor], *inputs: Tensor, chunk: int = CHUNK) -> Tensor:
    """`function` over all rows of the inputs without gradients, `chunk` rows at a time, the last filled up on CUDA."""
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
    """The network in evaluation mode inside the block, as it was after it."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __enter__(self) -> None:
        self.was_training = self.net.training
        self.net.eval()

    def __exit__(self, *_: Any) -> None:
        self.net.train(self.was_training)


class Rows(nn.Module):
    """One weight row and one bias for each class met; more rows are added as classes come."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, width))
        self.bias = nn.Parameter(torch.empty(0))

    def grow(self, more: int, rng: Generator) -> None:
        """Rows for `more` classes, drawn from `rng` (a CPU generator) as torch's linear layers are; old rows stay."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        drawn = (2 * torch.rand(more, self.weight.shape[1] + 1, generator=rng) - 1).to(self.weight.device) * bound
        learns = self.weight.requires_grad
        self.weight = nn.Parameter(torch.cat((self.weight.detach(), drawn[:, :-1])), learns)
        self.bias = nn.Parameter(torch.cat((self.bias.detach(), drawn[:, -1])), learns)

    def restart(self, k: int, rng: Generator) -> None:
        """New rows for `k` classes in place of all that were there."""
        self.weight = nn.Parameter(self.weight.detach()[:0], self.weight.requires_grad)
        self.bias = nn.Parameter(self.bias.detach()[:0], self.bias.requires_grad)
        self.grow(k, rng)

    def shape_as(self, state: dict[str, Tensor], prefix: str) -> None:
        """As many rows as a saved state has, to load it into."""
        device, learns = self.weight.device, self.weight.requires_grad
        self.weight = nn.Parameter(torch.empty_like(state[prefix + "weight"], device=device), learns)
        self.bias = nn.Parameter(torch.empty_like(state[prefix + "bias"], device=device), learns)

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)


class Classifier(Body):
    """Logits (n, classes met) by a linear head."""

    def __init__(self, backbone: str, images: ImageFormat, precision: torch.dtype) -> None:
        super().__init__(backbone, images, precision)
        self.head = Rows(self.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]

    def load(self, state: dict[str, Tensor]) -> None:
        """Take a saved state over, whatever number of classes it has."""
        self.head.shape_as(state, "head.")
        self.load_state_dict(state)


class Deconfident(Body):
    """DeConf-C of Generalized ODIN, as DistillMatch has it: h_k(x) / g(x); h is high where x is of a class met."""

    def __init__(self, backbone: str, images: ImageFormat, precision: torch.dtype) -> None:
        super().__init__(backbone, images, precision)
        self.rows = Rows(self.width)  # directions of the classes; their biases play no part
        self.scale = nn.Linear(self.width, 1, bias=False)
        self.scale_norm = nn.BatchNorm1d(1)
        self.divisor = nn.Linear(self.width, 1)
        self.divisor_norm = nn.BatchNorm1d(1)

    def scores(self, features: Tensor) -> Tensor:
        """h: scaled cosines, (n, classes met)."""
        cosines = F.normalize(features, dim=1) @ F.normalize(self.rows.weight, dim=1).T
        return self.scale_norm(self.scale(features)).exp() * cosines  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """h / g, (n, classes met): what is trained."""
        features = self.features(x)
        return self.scores(features) / self.divisor_norm(self.divisor(features)).sigmoid()  # type: ignore[no-any-return]

    def load(self, state: dict[str, Tensor]) -> None:
        """Take a saved state over, whatever number of classes it has."""
        self.rows.shape_as(state, "rows.")
        self.load_state_dict(state)
