"""Networks that end in classes: by a linear head that grows with the classes met, and by one that knows its doubts."""

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from osscl.vision.encoder import Body, ImageFormat


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
