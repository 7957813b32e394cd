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
    distances,
    left_out_distances,
    packed,
    split_layers,
    tried_rows,
    unpacked,
)
from osscl.seeding import seeded

WITHIN, AROUND = 0.95, 0.9  # shrinkage of a class and of everything; a world shrunk far less hides kinds in no pile
CLOSE = 0.05  # mean loss by which a layer may classify worse than the best one and still have a say
POOLING = 5.0  # rows that the average class weighs in the location of a class's scores
SAME = 1e-4  # standard deviations within which two rows are taken for the same image
FEW = 40  # scores below which the tail is that of Student's t


@dataclass(frozen=True)
class PileSums:
    """The unlabelled rows as sums, and two numbers per image by which an image of the pile is recognised.

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
        return cls(int(state["count"]), means, scatters, state["marks"])


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
class Everything:
    """The Gaussian of all rows of one layer, labelled or not."""

    middle: Tensor  # (d,)
    inverse: Tensor  # (d, d) of the shrunken covariance
    count: float


def everything(sums: ClassSums, world: PileSums, layer: int) -> Everything:
    """Labels and pile together; each row weighs the same."""
    counts, means = sums.counts, sums.means[layer].double()
    total = float(counts.sum()) + world.count
    pile = world.means[layer].double()
    middle = ((counts[:, None] * means).sum(0) + world.count * pile) / total
    off, away = means - middle, pile - middle
    scatter = sums.scatters[layer].double() + world.scatters[layer].double()
    scatter = scatter + off.T @ (counts[:, None] * off) + world.count * torch.outer(away, away)
    return Everything(middle, _inverse(scatter / max(total - 1, 1.0)), total)


def _inverse(covariance: Tensor) -> Tensor:
    d = len(covariance)
    level = (AROUND * covariance.trace() + FLOOR) / d
    inverse: Tensor = torch.linalg.inv((1 - AROUND) * covariance + level * torch.eye(d, dtype=covariance.dtype))
    return inverse


def far_from_everything(rows: Tensor, all_rows: Everything, copies: Tensor) -> Tensor:
    """Squared distances (n,) to the mean of all rows, computed without the row's own `copies` (n,)."""
    off, n = rows - all_rows.middle, all_rows.count
    plain = ((off @ all_rows.inverse) * off).sum(1)
    others = (n - copies).clamp(min=1)
    share = (1 - AROUND) / max(n - 1, 1.0) * copies * n / others
    return plain / (1 - share * plain).clamp(min=1e-3) * (n / others) ** 2


@dataclass(frozen=True)
class Calibration:
    """Scores of labelled rows that were left out, for the nearest class and in every layer: plain numbers, no images.

    A new image is judged by its nearest class, which need not be its own, and so are these.

    They are stored less the score that is expected of the class, since that changes with every class that is added.
    Takes 8 bytes for each label and layer. All layers are kept since a later step may use others.
    """

    names: tuple[str, ...]
    parts: Tensor  # (n, layers)
    owners: Tensor  # (n,) the nearest class, an index of names

    def joined(self, other: "Calibration | None") -> "Calibration":
        """With those of earlier steps, moved and stretched to where scores are now.

        More labels and more classes change all left-out scores; earlier rows, which are gone, are taken to have changed
        as this step's rows show, as far as that is more than chance.
        """
        if other is None or not len(other.parts):
            return self
        if not len(self.parts):
            return Calibration(other.names, other.parts, other.owners)
        middle = other.parts.mean(0)
        parts = middle + (other.parts - middle) * _stretched(other, self) + _moved(other, self)
        other = Calibration(other.names, parts, other.owners)
        names = tuple(dict.fromkeys(other.names + self.names))
        mine = torch.tensor([names.index(n) for n in self.names], dtype=torch.long)[self.owners]
        theirs = torch.tensor([names.index(n) for n in other.names], dtype=torch.long)[other.owners]
        return Calibration(names, torch.cat((other.parts, self.parts)), torch.cat((theirs, mine)))

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


def _moved(before: Calibration, now: Calibration) -> Tensor:
    """How far scores have moved from one step to the next, (layers,), as far as classes do not differ anyway."""
    a, b = (torch.stack([c.parts[c.owners == i].mean(0) for i in c.owners.unique()]) for c in (before, now))
    freedom = len(a) + len(b) - 2
    if freedom < 1:
        return torch.zeros_like(b[0])
    between = ((a - a.mean(0)).square().sum(0) + (b - b.mean(0)).square().sum(0)) / freedom
    return _shrunk(b.mean(0) - a.mean(0), between * (1 / len(a) + 1 / len(b)))


def _stretched(before: Calibration, now: Calibration) -> Tensor:
    """By which factor scores of a class spread more than in the step before, (layers,)."""
    (a, free_a), (b, free_b) = _variances(before), _variances(now)
    if min(free_a, free_b) < 1:
        return torch.ones_like(b)
    ratio = (b.clamp(min=1e-12) / a.clamp(min=1e-12)).log() / 2
    return _shrunk(ratio, torch.full_like(ratio, (1 / free_a + 1 / free_b) / 2)).exp()


def _variances(scores: Calibration) -> tuple[Tensor, int]:
    """Variances within classes, (layers,), and their degrees of freedom."""
    present, own = scores.owners.unique(return_inverse=True)
    means = torch.stack([scores.parts[own == i].mean(0) for i in range(len(present))])
    freedom = len(own) - len(present)
    return (scores.parts - means[own]).square().sum(0) / max(freedom, 1), freedom


def _shrunk(found: Tensor, variance: Tensor) -> Tensor:
    """Differences shrunk to 0 by what chance alone would make of them (James and Stein)."""
    return found * (1 - variance / found.square().clamp(min=1e-12)).clamp(min=0)


@dataclass(frozen=True)
class KnownScores:
    """Scores of known rows with the layers in use, and the class of each."""

    names: tuple[str, ...]
    scores: Tensor  # (n,)
    owners: Tensor  # (n,)

    def locations(self, names: Sequence[str]) -> Tensor:
        """The mean score of each class, (k,), pooled with the overall mean as if that had POOLING rows."""
        if not len(self.scores):
            return torch.zeros(len(names), dtype=torch.float64)
        middle, found = self.scores.mean(), []
        for name in names:
            own = self.scores[self.owners == self.names.index(name)] if name in self.names else self.scores[:0]
            found.append((own.sum() + POOLING * middle) / (len(own) + POOLING))
        return torch.stack(found)

    @property
    def rest(self) -> Tensor:
        """The scores less the location of their class, (n,)."""
        return self.scores - self.locations(self.names)[self.owners]

    def threshold(self, reject: float) -> float | None:
        """The score, less the location of its class, below which rows are rejected; None if none ever is."""
        rest, n = self.rest.sort().values, len(self.scores)
        if n < 2:
            return None
        if n >= FEW:
            place = math.ceil(reject * (n + 1) - 0.5)  # rows that may score lower or the same
            return float(rest[place - 1]) if place > 0 else None
        from scipy.stats import t

        width = float(rest.std().clamp(min=1e-9)) * (1 + 1 / n) ** 0.5
        return float(rest.mean() + width * float(t.ppf(reject, n - 1)))

    def share_below(self, scores: Tensor, classes: Tensor, names: Sequence[str]) -> Tensor:
        """Share of known rows that would score lower than `scores` (n,) of predicted `classes` (n,), in (0, 1)."""
        if len(self.scores) < 2:
            return torch.ones_like(scores)
        rest = self.rest
        off = scores - self.locations(names)[classes]
        n = len(rest)
        if n >= FEW:
            below = torch.searchsorted(rest.sort().values, off.contiguous(), right=True)
            return (below.double() + 0.5) / (n + 1)
        from scipy.stats import t

        width = float(rest.std().clamp(min=1e-9)) * (1 + 1 / n) ** 0.5
        return torch.from_numpy(t.cdf(((off - rest.mean()) / width).numpy(), n - 1))


@dataclass(frozen=True)
class Unknown:
    """Separates rows of known classes from others."""

    head: EmbeddingHead
    world: PileSums
    layers: tuple[int, ...]
    all_rows: tuple[Everything, ...]  # for each of the layers
    expected: Tensor  # (k,) score of a typical row of each class, summed over the layers
    calibration: Calibration

    def scores(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Score (n,), higher is more like a known class, and the nearest class (n,)."""
        sums = self.head.sums
        x, copies = split_layers(rows, sums.widths), copies_in(self.world, marks_of(rows, sums.widths))
        parts = []
        for layer, all_rows in zip(self.layers, self.all_rows, strict=True):
            near = distances(x[layer], sums.means[layer], self.head.spreads[layer], WITHIN)
            parts.append(far_from_everything(x[layer], all_rows, copies)[:, None] - near)
        best = torch.stack(parts).sum(0).max(1)
        return best.values, best.indices

    def known(self, rows: Tensor) -> Tensor:
        """The share of known images that look less known than each row, (n,) in (0, 1)."""
        scores, classes = self.scores(rows)
        return self.known_scores().share_below(scores - self.expected[classes], classes, self.head.names)

    def known_scores(self) -> KnownScores:
        """Scores of the labelled rows of all steps with the layers in use, less the expected score of their class."""
        kept = self.calibration
        return KnownScores(kept.names, kept.parts[:, list(self.layers)].sum(1), kept.owners)

    def rejects(self, rows: Tensor, reject: float = 0.05) -> Tensor:
        """Whether each row counts as unknown, (n,); about a share `reject` of known rows does."""
        return self.known(rows) < reject


def fit_unknown(
    head: EmbeddingHead, world: PileSums, rows: Tensor, targets: Tensor, before: Calibration | None = None
) -> Unknown:
    """Calibrate on the labelled rows of this step, each left out, and on the stored scores of earlier steps."""
    each = tuple(everything(head.sums, world, layer) for layer in range(len(head.sums.means)))
    expected = torch.stack([expected_scores(head, one, layer) for layer, one in enumerate(each)], 1)
    layers = layers_for(head)
    found = left_out_scores(head, each, rows, targets, layers)
    found = Calibration(found.names, found.parts - expected[found.owners], found.owners).joined(before)
    return Unknown(head, world, layers, tuple(each[i] for i in layers), expected[:, list(layers)].sum(1), found)


def unknown_from(head: EmbeddingHead, world: PileSums, calibration: Calibration) -> Unknown:
    """As `fit_unknown` with a calibration that was stored."""
    layers = layers_for(head)
    each = tuple(everything(head.sums, world, layer) for layer in layers)
    expected = torch.stack([expected_scores(head, one, i) for i, one in zip(layers, each, strict=True)], 1)
    return Unknown(head, world, layers, each, expected.sum(1), calibration)


def expected_scores(head: EmbeddingHead, all_rows: Everything, layer: int) -> Tensor:
    """The score that a row of each class has on average by the two Gaussians, (k,)."""
    sums, within = head.sums, head.spreads[layer]
    means, none = sums.means[layer].double(), torch.zeros(len(sums.names), dtype=torch.float64)
    variances = within.values / max(within.degrees, 1.0)
    spread_around = (all_rows.inverse * sums.scatters[layer].double()).sum() / max(within.degrees, 1.0)
    spread_within = (variances * within.weights(WITHIN)).sum() * (1 + 1 / sums.counts)
    return far_from_everything(means, all_rows, none) + spread_around - spread_within


def layers_for(head: EmbeddingHead) -> tuple[int, ...]:
    """The layers that classify well on their own, by the left-out loss over all steps."""
    if head.trials.rows == 0:
        return (0,)
    best: dict[tuple[int, ...], float] = {}
    for way, loss in zip(head.trials.ways(len(head.sums.means)), head.trials.loss.min(1).values.tolist(), strict=True):
        if way.shrinkage is not None:
            best[way.layers] = min(loss / head.trials.rows, best.get(way.layers, math.inf))
    alone = [best[(i,)] for i in range(len(head.sums.means))]
    return tuple(i for i, loss in enumerate(alone) if loss <= min(alone) + CLOSE)


def left_out_scores(
    head: EmbeddingHead, each: Sequence[Everything], rows: Tensor, targets: Tensor, layers: Sequence[int]
) -> Calibration:
    """Scores of labelled rows, each left out, for the class that is nearest by these layers."""
    sums, picked = head.sums, tried_rows(head.sums, targets)
    x, y, parts = split_layers(rows[picked], sums.widths), targets[picked], []
    once = torch.ones(len(y), dtype=torch.float64)
    for layer, all_rows in enumerate(each):
        near = left_out_distances(x[layer], y, sums.counts, sums.means[layer], head.spreads[layer], WITHIN)
        parts.append(far_from_everything(x[layer], all_rows, once)[:, None] - near)
    nearest = torch.stack([parts[layer] for layer in layers]).sum(0).argmax(1)
    return Calibration(sums.names, torch.stack([p.gather(1, nearest[:, None])[:, 0] for p in parts], 1), nearest)
