"""An agent as one network for export: from uint8 pictures of one size to probabilities and known shares.

The arithmetic is that of `Preprocessing`, `CombinedViews`, `EmbeddingHead` and `Unknown`, in operations that ONNX has.
"""

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from osscl.agent.knowledge import Knowledge
from osscl.errors import UserError
from osscl.learn.embedded import EmbeddingHead, Spread
from osscl.learn.unknown import FEW, SAME, SHRUNK, KnownScores, Unknown, mark_directions
from osscl.vision.preprocessing import VIEWS, ZOOM, Preprocessing
from osscl.vision.pretrained import CombinedViews, FrozenEncoder

PILLOW_ONE = 2.0**22  # in Pillow's fixed-point weights
WIDE = torch.float64  # of everything after the encoder: distances are small differences of large numbers


def exported_size(preprocessing: Preprocessing, views: int) -> int:
    """Pixels per side of the pictures that the graph takes: enough for the closest view to need no enlargement."""
    edge = preprocessing.shortest_edge or max(preprocessing.shape)
    zoom = min((share for share, _ in VIEWS[:views] if share is not None), default=ZOOM)
    return round(edge / zoom)


class View(nn.Module):
    """One fixed view of square pictures, resampled as Pillow does: along rows, then along columns, each rounded."""

    def __init__(self, preprocessing: Preprocessing, size: int, share: float | None, flipped: bool) -> None:
        super().__init__()
        height, width = preprocessing.shape
        if share is None and height != width:
            raise UserError("views 5 and 6 can only be exported for encoders with square inputs; use at most 4 views")
        whole = (0.0, 0.0, float(size), float(size))
        left, top, right, bottom = whole if share is None else preprocessing.kept((size, size), share)
        self.rows = Axis(size, width, (left, right), preprocessing.resample)
        self.columns = Axis(size, height, (top, bottom), preprocessing.resample)
        self.flipped = flipped

    def forward(self, pixels: Tensor) -> Tensor:
        """(n, 3, size, size) float values of 0 to 255 -> (n, 3, height, width)."""
        view: Tensor = self.columns(self.rows(pixels).transpose(2, 3)).transpose(2, 3)
        return view.flip(3) if self.flipped else view


class Axis(nn.Module):
    """Resample the last axis: a matrix product, or a slice where every pixel is copied."""

    weights: Tensor

    def __init__(self, size: int, wanted: int, part: tuple[float, float], resample: int) -> None:
        super().__init__()
        weights = _pillow_weights(size, wanted, part, resample)
        first = round(part[0])
        copied = torch.eye(size, dtype=WIDE)[:, first : first + wanted]
        self.part = (first, first + wanted) if torch.equal(weights, copied) else None
        self.register_buffer("weights", None if self.part else weights)

    def forward(self, pixels: Tensor) -> Tensor:
        if self.part is not None:
            return pixels[..., self.part[0] : self.part[1]]
        return torch.floor(pixels.to(WIDE) @ self.weights + 0.5).clamp(0, 255).float()


def _pillow_weights(size: int, wanted: int, part: tuple[float, float], resample: int) -> Tensor:
    """The weight of each of `size` pixels in each of the `wanted` ones, (size, wanted): Pillow resizes an identity.

    Rounded to multiples of 2^-22, as Pillow computes with integers: many sums lie halfway between two pixel values.
    """
    identity = Image.fromarray(np.eye(size, dtype=np.float32))
    box = (part[0], 0.0, part[1], float(size))
    weights = np.asarray(identity.resize((wanted, size), Image.Resampling(resample), box), np.float64)
    return torch.from_numpy(np.round(weights * PILLOW_ONE) / PILLOW_ONE)


class Embedding(nn.Module):
    """Views, normalization and the encoder: pictures to embeddings, each layer of unit length."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: CombinedViews, size: int) -> None:
        super().__init__()
        frozen = encoder.encoder
        if not isinstance(frozen, FrozenEncoder) or not isinstance(frozen.features, nn.Module):
            raise UserError(f"the encoder {encoder.name} is not a network that can be exported")
        preprocessing = frozen.preprocessing
        self.views = nn.ModuleList(View(preprocessing, size, *view) for view in VIEWS[: encoder.views])
        self.features, self.widths, self.scale = frozen.features, list(encoder.widths), preprocessing.scale
        self.register_buffer("mean", torch.tensor(preprocessing.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(preprocessing.std).view(1, -1, 1, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        pixels = pictures.float()
        views = torch.cat([view(pixels) for view in self.views])
        rows = self.features((views * self.scale - self.mean) / self.std).float()
        units = [F.normalize(part, dim=1) for part in rows.split(self.widths, dim=1)]
        summed = [part.unflatten(0, (len(self.views), -1)).sum(0) for part in units]
        return torch.cat([F.normalize(part, dim=1) for part in summed], 1)


class ClassHead(nn.Module):
    """The head, which is linear up to a term that all classes share."""

    weights: Tensor
    bias: Tensor

    def __init__(self, head: EmbeddingHead) -> None:
        super().__init__()
        weights, bias = head.linear
        self.layers = list(weights)
        self.register_buffer("weights", torch.cat([weights[i] for i in self.layers], 1).to(WIDE))
        self.register_buffer("bias", bias.to(WIDE))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Probabilities (n, k)."""
        return (torch.cat([layers[i] for i in self.layers], 1) @ self.weights.T + self.bias).softmax(1)


def _inverse(spread: Spread, shrinkage: float) -> Tensor:
    return (spread.vectors * spread.weights(shrinkage)) @ spread.vectors.T


class KnownShare(nn.Module):
    """The share of known images that look less known than each row."""

    def __init__(self, unknown: Unknown) -> None:
        super().__init__()
        self.layers, head = unknown.layers, unknown.head
        self.count = unknown.backgrounds[0].count
        for i, background in zip(self.layers, unknown.backgrounds, strict=True):
            within, means = _inverse(head.sums.spread(i), SHRUNK), head.sums.means[i].to(WIDE)
            self.register_buffer(f"middle{i}", background.middle)
            self.register_buffer(f"around{i}", background.inverse.float())
            self.register_buffer(f"within{i}", within.float())
            self.register_buffer(f"to_means{i}", (means @ within).T)
            self.register_buffer(f"of_means{i}", ((means @ within) * means).sum(1))
            self.register_buffer(f"noise{i}", head.sums.spread(i).noise(SHRUNK) / head.sums.counts.clamp(min=1))
        self.copies = Copies(unknown)
        self.tail = Tail(unknown.known_scores())

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        copies = self.copies(torch.cat(list(layers), 1))
        parts = [self._score(layers[i], i, copies) for i in self.layers]
        share: Tensor = self.tail(reduce(torch.add, parts).amax(1))
        return share

    def _score(self, x: Tensor, i: int, copies: Tensor) -> Tensor:
        """How much nearer rows are to each class than to everything, (n, k)."""
        off = x - self.get_buffer(f"middle{i}")
        plain = ((off @ self.get_buffer(f"around{i}").to(WIDE)) * off).sum(1)
        others = (self.count - copies).clamp(min=1)
        share = (1 - SHRUNK) / max(self.count - 1, 1.0) * copies * self.count / others
        far = plain / (1 - share * plain).clamp(min=1e-3) * (self.count / others) ** 2
        own = ((x @ self.get_buffer(f"within{i}").to(WIDE)) * x).sum(1, keepdim=True)
        near = own - 2 * x @ self.get_buffer(f"to_means{i}") + self.get_buffer(f"of_means{i}")
        return far[:, None] - (near.clamp(min=0) - self.get_buffer(f"noise{i}"))


class Copies(nn.Module):
    """How often each row is in the pile."""

    directions: Tensor
    marks: Tensor
    near: Tensor

    def __init__(self, unknown: Unknown) -> None:
        super().__init__()
        marks = unknown.world.marks
        self.register_buffer("directions", mark_directions(unknown.head.sums.widths))
        self.register_buffer("marks", marks)
        self.register_buffer(
            "near", SAME * marks.std(0, correction=0).clamp(min=SAME) if len(marks) else torch.zeros(2)
        )

    def forward(self, rows: Tensor) -> Tensor:
        if not len(self.marks):
            return torch.zeros_like(rows[:, 0])
        off = ((rows @ self.directions).float()[:, None] - self.marks).abs()
        return (off <= self.near).all(2).to(WIDE).sum(1)


class Tail(nn.Module):
    """The share of known scores below a score."""

    compared: Tensor

    def __init__(self, known: KnownScores) -> None:
        super().__init__()
        self.count = len(known.scores)
        if self.count >= FEW:
            self.register_buffer("compared", known.compared)
        if self.count >= 2:
            self.middle, self.width = float(known.scores.mean()), known.width

    def forward(self, scores: Tensor) -> Tensor:
        if self.count < 2:
            return torch.ones_like(scores)
        if self.count >= FEW:
            return ((scores[:, None] - self.compared) / self.width).sigmoid().mean(1)
        return student_cdf((scores - self.middle) / self.width, self.count - 1)


def student_cdf(t: Tensor, degrees: int) -> Tensor:
    """The distribution function of Student's t for whole degrees of freedom, a finite sum.

    Abramowitz and Stegun (1964), 26.7.3 and 26.7.4.
    """
    tangent = t / math.sqrt(degrees)
    cosine = 1 / (1 + tangent**2).sqrt()
    sine = tangent * cosine
    odd = degrees % 2
    term = cosine if odd else torch.ones_like(t)
    total = term if degrees > 1 else torch.zeros_like(t)
    for i in range(2 + odd, degrees - 1, 2):
        term = term * cosine**2 * ((i - 1) / i)
        total = total + term
    if not odd:
        return 0.5 + sine * total / 2
    angle = torch.atan(tangent.float()).to(t.dtype)  # onnxruntime has no atan of doubles
    return 0.5 + (angle + sine * total) / torch.pi


class PhotoGraph(nn.Module):
    """A photo agent: uint8 pictures (n, 3, size, size) to probabilities (n, k), known shares (n,), decisions (n,)."""

    def __init__(self, encoder: CombinedViews, knowledge: Knowledge, reject: float, size: int) -> None:
        super().__init__()
        self.embedding, self.head = Embedding(encoder, size), ClassHead(knowledge.head)
        self.known_share, self.reject = KnownShare(knowledge.unknown), reject

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = self.embedding(pictures).to(WIDE)
        layers = [F.normalize(part, dim=1) for part in rows.split(self.embedding.widths, dim=1)]
        share = self.known_share(layers).float()
        return self.head(layers).float(), share, share >= self.reject
