"""Detect unknown images: a score, calibrated as the share of known images that score lower.

The score is the relative Mahalanobis distance of Ren et al. (arXiv:2106.09022): how much nearer a row is to a class
than to the mean of all rows, labelled or not. Deviation: the paper's gate compares with the prototypes alone.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from osscl.learn.embedded import (
    FLOOR,
    ClassSums,
    EmbeddingHead,
    LeftOut,
    candidates,
    distances,
    left_out_distances,
    packed,
    split_layers,
    unpacked,
    without_noise,
)
from osscl.seeding import seeded

SHRUNK = 0.95  # shrinkage of the covariances of a class and of all rows; less hides unknown kinds that are in no pile
CLOSE = 0.05  # mean loss by which a layer may classify worse than the best one and still be used
POOLING = 5.0  # weight of earlier scores, in rows, in estimating how far scores have moved
SAME = 1e-4  # standard deviations within which two rows are taken for the same image
FEW = 40  # scores below which their distribution is taken to be Student's t
MOST_SCORES = 1000  # from which a share is computed; more are subsampled evenly
SMOOTHING = 0.1  # standard deviations; a plain count would give all scores below the lowest the same share


@dataclass(frozen=True)
class PileSums:
    """The unlabelled rows as sums, and two numbers per image that identify the images of the pile.

    Takes 2 d^2 bytes for each layer and 8 for each image.
    """

    count: int
    means: tuple[Tensor, ...]  # (d,) for each layer
    scatters: tuple[Tensor, ...]  # (d, d) about that mean
    marks: Tensor  # (count, 2) float32, sorted by the first

    def joined(self, other: "PileSums") -> "PileSums":
        """Sums over both piles."""
        if not self.count or not other.count:
            return self if self.count else other
        total = self.count + other.count
        means, scatters = [], []
        for i, (a, b) in enumerate(zip(self.means, other.means, strict=True)):
            apart = (a - b).double()
            means.append(((self.count * a.double() + other.count * b.double()) / total).float())
            between = self.count * other.count / total * torch.outer(apart, apart)
            scatters.append((self.scatters[i].double() + other.scatters[i].double() + between).float())
        marks = torch.cat((self.marks, other.marks))
        return PileSums(total, tuple(means), tuple(scatters), marks[marks[:, 0].argsort()])

    def state(self) -> dict[str, Tensor]:
        """The fields as tensors to store."""
        found = {"count": torch.tensor(self.count), "marks": self.marks}
        for i, (mean, scatter) in enumerate(zip(self.means, self.scatters, strict=True)):
            found[f"mean.{i}"], found[f"scatter.{i}"] = mean, packed(scatter)
        return found

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "PileSums":
        """Restore what `state` returned."""
        means = tuple(state[f"mean.{i}"] for i in range(sum(key.startswith("mean.") for key in state)))
        scatters = tuple(unpacked(state[f"scatter.{i}"], len(mean)) for i, mean in enumerate(means))
        return cls(int(state["count"].item()), means, scatters, state["marks"])


def summarise_pile(pile: Iterable[Tensor], widths: Sequence[int]) -> PileSums:
    """Sums of unlabelled rows, given in chunks (m, sum of widths); there may be none."""
    sums = [torch.zeros(d, dtype=torch.float64) for d in widths]
    squares = [torch.zeros(d, d, dtype=torch.float64) for d in widths]
    marks = [torch.zeros(0, 2)]
    for rows in pile:
        marks.append(marks_of(rows, widths))
        for i, x in enumerate(split_layers(rows, widths)):
            sums[i] += x.sum(0)
            squares[i] += x.T @ x
    every = torch.cat(marks)
    m = max(len(every), 1)
    means = tuple((total / m).float() for total in sums)
    scatters = tuple((q - m * torch.outer(t / m, t / m)).float() for q, t in zip(squares, sums, strict=True))
    return PileSums(len(every), means, scatters, every[every[:, 0].argsort()])


def marks_of(rows: Tensor, widths: Sequence[int]) -> Tensor:
    """Two fixed random projections of each row, (n, 2): the same image has the same ones up to rounding."""
    return (torch.cat(split_layers(rows, widths), 1) @ mark_directions(widths)).float()


def mark_directions(widths: Sequence[int]) -> Tensor:
    """The two directions onto which rows are projected, (sum of widths, 2)."""
    return torch.randn(sum(widths), 2, generator=seeded(0, "marks"), dtype=torch.float64)


def copies_in(world: PileSums, marks: Tensor) -> Tensor:
    """How often each image, by its marks (n, 2), is in the pile, (n,)."""
    if world.count == 0:
        return torch.zeros(len(marks), dtype=torch.float64)
    near = SAME * world.marks.std(0, correction=0).clamp(min=SAME)
    low = torch.searchsorted(world.marks[:, 0].contiguous(), (marks[:, 0] - near[0]).contiguous())
    high = torch.searchsorted(world.marks[:, 0].contiguous(), (marks[:, 0] + near[0]).contiguous(), right=True)
    found = torch.zeros(len(marks), dtype=torch.float64)
    for i in (high > low).nonzero().squeeze(1).tolist():
        beside = world.marks[int(low[i]) : int(high[i]), 1]
        found[i] = ((beside - marks[i, 1]).abs() <= near[1]).sum()
    return found


@dataclass(frozen=True)
class LayerBackground:
    """The Gaussian of all rows of one layer, labelled or not."""

    middle: Tensor  # (d,)
    inverse: Tensor  # (d, d) of the shrunken covariance
    count: float


def layer_background(sums: ClassSums, world: PileSums, layer: int) -> LayerBackground:
    """The background of labelled rows and pile, all weighted equally; a single class without a pile has none."""
    counts, means = sums.counts, sums.means[layer].double()
    total = float(counts.sum()) + world.count
    pile = world.means[layer].double()
    middle = ((counts[:, None] * means).sum(0) + world.count * pile) / total
    off, away = means - middle, pile - middle
    scatter = sums.scatters[layer].double() + world.scatters[layer].double()
    scatter = scatter + off.T @ (counts[:, None] * off) + world.count * torch.outer(away, away)
    inverse = _inverse(scatter / max(total - 1, 1.0))
    return LayerBackground(middle, inverse if world.count or len(counts) > 1 else torch.zeros_like(inverse), total)


def _inverse(covariance: Tensor) -> Tensor:
    d = len(covariance)
    level = (SHRUNK * covariance.trace() + FLOOR) / d
    inverse: Tensor = torch.linalg.inv((1 - SHRUNK) * covariance + level * torch.eye(d, dtype=covariance.dtype))
    return inverse


def far_from_background(rows: Tensor, background: LayerBackground, copies: Tensor) -> Tensor:
    """Squared distances (n,) to the mean of all rows, computed without the row's own `copies` (n,)."""
    off, n = rows - background.middle, background.count
    plain = ((off @ background.inverse) * off).sum(1)
    others = (n - copies).clamp(min=1)
    share = (1 - SHRUNK) / max(n - 1, 1.0) * copies * n / others
    return plain / (1 - share * plain).clamp(min=1e-3) * (n / others) ** 2


@dataclass(frozen=True)
class Calibration:
    """Scores of labelled rows that were left out, for the nearest class and in every layer: plain numbers, no images.

    Like new images, these rows are scored by their nearest class, which need not be their own.

    Scores are stored as differences from the score that is expected of the class, which changes with every class and
    pile that is added. Takes 8 bytes for each label and layer. All layers are kept, since a later step may use others.
    """

    names: tuple[str, ...]
    parts: Tensor  # (n, layers)
    owners: Tensor  # (n,) the nearest class, an index of names

    def columns(self, names: Sequence[str]) -> Tensor:
        """The nearest class of each row as an index of `names`, (n,)."""
        places = [names.index(name) if name in names else -1 for name in self.names]  # -1: removed with its rows
        return torch.tensor(places, dtype=torch.long)[self.owners]

    def joined(self, other: "Calibration | None", expected: Tensor, names: Sequence[str]) -> "Calibration":
        """Add the scores of earlier steps, shifted and scaled to match those of this step.

        `expected` (k, layers) is the score that is now expected of classes `names`.

        More labels and more classes change all left-out scores. Earlier rows are no longer stored; their scores are
        assumed to have changed as those of this step's rows suggest, the more so the more of these there are.
        """
        if other is None or not len(other.parts):
            return self
        if not len(self.parts):
            return Calibration(other.names, other.parts, other.owners)
        before, now = (one.parts + expected[one.columns(names)] for one in (other, self))
        trust = len(now) / (len(now) + POOLING)
        center = before.mean(0)
        ratio = (_spread(now) / _spread(before)) ** trust if min(len(now), len(before)) > 1 else 1.0
        moved = center + trust * (now.mean(0) - center) + ratio * (before - center)
        every = tuple(dict.fromkeys(other.names + self.names))
        owners = torch.cat((other.columns(every), self.columns(every)))
        return Calibration(every, torch.cat((other.parts + moved - before, self.parts)), owners)

    def without(self, name: str) -> "Calibration":
        """Forget the scores of a class."""
        kept = self.owners != (self.names.index(name) if name in self.names else -1)
        return Calibration(self.names, self.parts[kept], self.owners[kept])

    def renamed(self, old: str, new: str) -> "Calibration":
        """Scores of a class under another name, which may be that of a class it is merged into."""
        names = tuple(new if name == old else name for name in self.names)
        unique = tuple(dict.fromkeys(names))
        return Calibration(unique, self.parts, torch.tensor([unique.index(n) for n in names])[self.owners])

    def state(self) -> dict[str, Tensor]:
        """As tensors to store, without the names."""
        return {"parts": self.parts, "owners": self.owners}


def _spread(scores: Tensor) -> Tensor:
    """Standard deviations (layers,) of scores (n, layers), never 0."""
    return scores.std(0).clamp(min=1e-6)


@dataclass(frozen=True)
class KnownScores:
    """Scores of known rows with the layers in use, as a smooth distribution.

    Classes are not distinguished: subtracting a class's usual score would let in unknown images near a broad class.
    """

    scores: Tensor  # (n,)

    @property
    def compared(self) -> Tensor:
        """Scores that shares are computed from, at most MOST_SCORES, sorted."""
        places = torch.linspace(0, len(self.scores) - 1, min(len(self.scores), MOST_SCORES), dtype=torch.float64)
        return self.scores.sort().values[places.round().long()]

    @property
    def width(self) -> float:
        """The unit in which scores are compared: of the smoothing, or of Student's t for few scores."""
        spread, n = float(self.scores.std().clamp(min=1e-9)), len(self.scores)
        return SMOOTHING * spread if n >= FEW else spread * (1 + 1 / n) ** 0.5

    def share_below(self, scores: Tensor) -> Tensor:
        """Share of known rows that would score lower than each of `scores` (n,), from 0 to 1."""
        n = len(self.scores)
        if n < 2:
            return torch.ones_like(scores)
        if n >= FEW:
            return ((scores[:, None] - self.compared) / self.width).sigmoid().mean(1)
        from scipy.stats import t

        return torch.from_numpy(t.cdf(((scores - self.scores.mean()) / self.width).numpy(), n - 1))

    def threshold(self, reject: float) -> float | None:
        """The score below which rows are rejected; None if none ever is."""
        if len(self.scores) < 2:
            return None
        reach = 20 * float(self.scores.std()) + 1e-6
        low, high = float(self.scores.min()) - reach, float(self.scores.max()) + reach
        for _ in range(100):
            middle = (low + high) / 2
            below = float(self.share_below(torch.tensor([middle], dtype=torch.float64))) < reject
            low, high = (middle, high) if below else (low, middle)
        return high


@dataclass(frozen=True)
class Unknown:
    """Separates rows of known classes from others."""

    head: EmbeddingHead
    world: PileSums
    layers: tuple[int, ...]
    backgrounds: tuple[LayerBackground, ...]  # for each of the layers
    expected: Tensor  # (k,) score of a typical row of each class, summed over the layers
    calibration: Calibration

    def scores(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Score (n,), higher is more like a known class, and the nearest class (n,)."""
        sums = self.head.sums
        x, copies = split_layers(rows, sums.widths), copies_in(self.world, marks_of(rows, sums.widths))
        parts = []
        for layer, background in zip(self.layers, self.backgrounds, strict=True):
            spread = self.head.sums.spread(layer)
            near = without_noise(distances(x[layer], sums.means[layer], spread, SHRUNK), sums.counts, spread, SHRUNK)
            parts.append(far_from_background(x[layer], background, copies)[:, None] - near)
        best = torch.stack(parts).sum(0).max(1)
        return best.values, best.indices

    def known_share(self, rows: Tensor) -> Tensor:
        """The share of known images that look less known than each row, (n,)."""
        return self.known_scores().share_below(self.scores(rows)[0])

    def known_scores(self) -> KnownScores:
        """Scores of the labelled rows of all steps with the layers in use."""
        kept = self.calibration
        return KnownScores(kept.parts[:, list(self.layers)].sum(1) + self.expected[kept.columns(self.head.names)])

    def rejects(self, rows: Tensor, reject: float = 0.05) -> Tensor:
        """Whether each row counts as unknown, (n,); about a share `reject` of known rows does."""
        return self.known_share(rows) < reject


def fit_unknown(head: EmbeddingHead, world: PileSums, left: LeftOut, before: Calibration | None = None) -> Unknown:
    """Calibrate on the labelled rows of this step, each left out, and on the stored scores of earlier steps."""
    each = tuple(layer_background(head.sums, world, layer) for layer in range(len(head.sums.means)))
    expected = torch.stack([expected_scores(head, one, layer) for layer, one in enumerate(each)], 1)
    layers = layers_for(head)
    found = left_out_scores(head, each, left, layers)
    rest = Calibration(found.names, found.parts - expected[found.owners], found.owners)
    found = rest.joined(before, expected, head.names)
    return Unknown(head, world, layers, tuple(each[i] for i in layers), expected[:, list(layers)].sum(1), found)


def unknown_from(head: EmbeddingHead, world: PileSums, calibration: Calibration) -> Unknown:
    """Like `fit_unknown`, with a stored calibration."""
    layers = layers_for(head)
    each = tuple(layer_background(head.sums, world, layer) for layer in layers)
    expected = torch.stack([expected_scores(head, one, i) for i, one in zip(layers, each, strict=True)], 1)
    return Unknown(head, world, layers, each, expected.sum(1), calibration)


def expected_scores(head: EmbeddingHead, background: LayerBackground, layer: int) -> Tensor:
    """The average score of a row of each class under the two Gaussians, (k,)."""
    sums, within = head.sums, head.sums.spread(layer)
    means, none = sums.means[layer].double(), torch.zeros(len(sums.names), dtype=torch.float64)
    spread_around = (background.inverse * sums.scatters[layer].double()).sum() / max(within.degrees, 1.0)
    return far_from_background(means, background, none) + spread_around - within.noise(SHRUNK)


def layers_for(head: EmbeddingHead) -> tuple[int, ...]:
    """The layers that classify well on their own, by the left-out loss over all steps."""
    if head.trials.rows == 0:
        return (0,)
    alone = [math.inf] * len(head.sums.means)
    for way, loss in zip(candidates(len(alone)), head.trials.loss.min(1).values.tolist(), strict=True):
        if way.shrinkage is not None:
            alone[way.layer] = min(alone[way.layer], loss / head.trials.rows)
    return tuple(i for i, loss in enumerate(alone) if loss <= min(alone) + CLOSE)


def left_out_scores(
    head: EmbeddingHead, each: Sequence[LayerBackground], left: LeftOut, layers: Sequence[int]
) -> Calibration:
    """Scores of labelled rows, each left out, for the class that is nearest by these layers."""
    sums, parts = head.sums, list[Tensor]()
    others = left.others(sums.counts)
    for layer, background in enumerate(each):
        spread = head.sums.spread(layer)
        near = left_out_distances(left, layer, sums.counts, sums.means[layer], spread, SHRUNK)
        near = without_noise(near, others, spread, SHRUNK)
        parts.append(far_from_background(left.layers[layer], background, left.copies)[:, None] - near)
    nearest = torch.stack([parts[layer] for layer in layers]).sum(0).argmax(1)
    return Calibration(sums.names, torch.stack([p.gather(1, nearest[:, None])[:, 0] for p in parts], 1), nearest)
