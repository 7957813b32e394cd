"""Heads on embeddings of a frozen encoder, fitted from sums that are carried from step to step.

An embedding is a row that consists of parts ("layers"), for instance pooled features of several depths of one network;
each part is scaled to unit length. Only a count and a mean per class are kept, and one scatter matrix about the class
means for all classes together. Sums of two steps add up to those of both, so earlier images are not needed.

Deviation: the paper trains its learner network with L_sup, L_TD and L_KD. Here the reference network is one that was
trained on a far larger set, the learner is the identity, and only the head is learned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

SHRINKAGES = (0.1, 0.3, 0.6, 0.9)  # candidates; the share of the isotropic part in the within-class covariance
BASELINE_SHRINKAGE = 0.3
TEMPERATURES = tuple(2.0**i for i in range(-10, 5))
COSINE_SCALE = 64.0  # logits of class means before the temperature
FLOOR = 1e-4  # variance added per unit of length, spread over all directions, in case classes have no spread
SHARPNESS = 0.2  # of weights exp(-SHARPNESS * loss): left-out rows share all the others, so 5 count as one
LEAST_WEIGHT = 1e-3  # of a candidate that is part of the average
DOUBT = 0.5  # mistakes added to those counted: a few rows without a mistake do not prove certainty
NEAR = 0.12  # of the median squared distance within a class: nearer rows are taken for copies, as in a burst of photos
MOST_TRIED = 2000  # labelled rows that are left out one by one
ROWS_LEFT_OUT = 256


def split_layers(rows: Tensor, widths: Sequence[int]) -> tuple[Tensor, ...]:
    """Parts of rows (n, sum of widths), each (n, width) of unit length, in double precision."""
    if rows.ndim != 2 or rows.shape[1] != sum(widths):
        raise ValueError(f"expected rows of width {sum(widths)}, got shape {tuple(rows.shape)}")
    return tuple(F.normalize(part, dim=1) for part in rows.double().split(list(widths), dim=1))


@dataclass(frozen=True)
class ClassSums:
    """All labelled rows so far, as sums; no embedding of a single image, unless a class has only one.

    Takes 4 (k + d / 2) d bytes for k classes and each layer of d numbers when stored by `state`.
    """

    names: tuple[str, ...]
    counts: Tensor  # (k,) rows behind each mean
    means: tuple[Tensor, ...]  # (k, d) for each layer
    scatters: tuple[Tensor, ...]  # (d, d) for each layer: sum over classes of the scatter about the class mean
    degrees: float  # of freedom in the scatters: rows minus classes

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(mean.shape[1] for mean in self.means)

    @cached_property
    def _spreads(self) -> "dict[int, Spread]":
        return {}

    def spread(self, layer: int) -> "Spread":
        """The spread of a layer, decomposed when it is first used: that takes a second."""
        if layer not in self._spreads:
            self._spreads[layer] = Spread.of(self.scatters[layer], self.degrees)
        return self._spreads[layer]

    def joined(self, other: "ClassSums") -> "ClassSums":
        """Sums over the rows of both; classes of the same name are one class."""
        names = tuple(dict.fromkeys(self.names + other.names))
        a, b = self._as(names), other._as(names)
        counts = a.counts + b.counts
        both = a.counts * b.counts / counts.clamp(min=1)
        means, scatters = [], []
        for mean_a, mean_b, scatter_a, scatter_b in zip(a.means, b.means, a.scatters, b.scatters, strict=True):
            apart = (mean_a - mean_b).double()
            mean = (a.counts[:, None] * mean_a.double() + b.counts[:, None] * mean_b.double()) / counts[:, None]
            means.append(mean.float())
            between = apart.T @ (both[:, None] * apart)
            scatters.append((scatter_a.double() + scatter_b.double() + between).float())
        degrees = a.degrees + b.degrees + float((both > 0).sum())
        return ClassSums(names, counts, tuple(means), tuple(scatters), degrees)

    def _as(self, names: tuple[str, ...]) -> "ClassSums":
        """The same sums with the classes in another order; new names become empty classes."""
        place = torch.tensor([self.names.index(n) if n in self.names else len(self.names) for n in names])
        counts = torch.cat((self.counts, self.counts.new_zeros(1)))[place]
        means = tuple(torch.cat((mean, mean.new_zeros(1, mean.shape[1])))[place] for mean in self.means)
        return replace(self, names=names, counts=counts, means=means)

    def without(self, name: str) -> "ClassSums":
        """Forget a class: its count, its mean, and its expected share of the pooled scatter."""
        rows = float(self.counts[self.names.index(name)])
        degrees = max(self.degrees - max(rows - 1, 0.0), 0.0)
        share = degrees / self.degrees if self.degrees > 0 else 0.0
        return replace(self._others(name), scatters=tuple(s * share for s in self.scatters), degrees=degrees)

    def _others(self, name: str) -> "ClassSums":
        """All classes but one, with the scatter of all."""
        left = [i for i, other in enumerate(self.names) if other != name]
        means = tuple(mean[left] for mean in self.means)
        return replace(self, names=tuple(self.names[i] for i in left), counts=self.counts[left], means=means)

    def without_row(self, row: Tensor, name: str) -> "ClassSums":
        """The sums without one row (sum of widths,) of a class, and without the class if that was its only row."""
        place = self.names.index(name)
        n = float(self.counts[place])
        if n <= 1:
            return self._others(name)
        means, scatters = [], []
        for x, mean, scatter in zip(split_layers(row[None], self.widths), self.means, self.scatters, strict=True):
            off = x[0] - mean[place].double()
            moved = mean.clone()
            moved[place] = (mean[place].double() - off / (n - 1)).float()
            means.append(moved)
            scatters.append((scatter.double() - n / (n - 1) * torch.outer(off, off)).float())
        counts = self.counts.clone()
        counts[place] -= 1
        return ClassSums(self.names, counts, tuple(means), tuple(scatters), max(self.degrees - 1, 0.0))

    def renamed(self, old: str, new: str) -> "ClassSums":
        """Rename a class; an existing name is refused (see `merged`)."""
        if new in self.names:
            raise ValueError(f"class {new!r} exists")
        self.names.index(old)
        return replace(self, names=tuple(new if name == old else name for name in self.names))

    def merged(self, gone: str, into: str) -> "ClassSums":
        """Merge two classes, exactly as if all rows had been labelled `into`."""
        if gone == into:
            raise ValueError("a class cannot be merged with itself")
        one = self.names.index(gone)
        empty = tuple(torch.zeros_like(s) for s in self.scatters)
        moved = ClassSums((into,), self.counts[[one]], tuple(m[[one]] for m in self.means), empty, 0.0)
        return self._others(gone).joined(moved)

    def state(self) -> dict[str, Tensor]:
        """The sums as tensors to store, without the names; only the upper half of each scatter."""
        found = {"counts": self.counts, "degrees": torch.tensor(self.degrees, dtype=torch.float64)}
        for i, (mean, scatter) in enumerate(zip(self.means, self.scatters, strict=True)):
            found[f"mean.{i}"], found[f"scatter.{i}"] = mean, packed(scatter)
        return found

    @classmethod
    def from_state(cls, names: Sequence[str], state: Mapping[str, Tensor]) -> "ClassSums":
        """What `state` stored."""
        layers = range(sum(key.startswith("mean.") for key in state))
        means = tuple(state[f"mean.{i}"] for i in layers)
        scatters = tuple(unpacked(state[f"scatter.{i}"], m.shape[1]) for i, m in enumerate(means))
        return cls(tuple(names), state["counts"], means, scatters, float(state["degrees"].item()))


def packed(symmetric: Tensor) -> Tensor:
    """The upper half of a symmetric matrix (d, d) as a vector."""
    rows, columns = torch.triu_indices(len(symmetric), len(symmetric))
    return symmetric[rows, columns].contiguous()


def unpacked(half: Tensor, d: int) -> Tensor:
    """The symmetric matrix (d, d) that `packed` reduced to a vector."""
    rows, columns = torch.triu_indices(d, d)
    full = half.new_zeros(d, d)
    full[rows, columns] = half
    full[columns, rows] = half
    return full


def summarise(rows: Tensor, targets: Tensor, names: Sequence[str], widths: Sequence[int]) -> ClassSums:
    """Sums of labelled rows (n, sum of widths); `targets` (n,) index `names`. Every class needs a row."""
    k = len(names)
    counts = torch.bincount(targets, minlength=k).double()
    if bool((counts == 0).any()):
        raise ValueError("every class needs at least one row")
    each, means, scatters = F.one_hot(targets, k).double(), [], []
    for x in split_layers(rows, widths):
        mean = ((each.T @ x) / counts[:, None]).float()
        off = x - mean.double()[targets]
        means.append(mean)
        scatters.append((off.T @ off).float())
    return ClassSums(tuple(names), counts, tuple(means), tuple(scatters), float(len(rows) - k))


@dataclass(frozen=True)
class Candidate:
    """One way to classify: class means of a layer by cosine, or discriminants."""

    layer: int
    shrinkage: float | None = None  # None: class means

    def __str__(self) -> str:
        if self.shrinkage is None:
            return f"class means, layer {self.layer}"
        return f"discriminants, layer {self.layer}, shrinkage {self.shrinkage:g}"


MEANS = Candidate(0)
DISCRIMINANTS = Candidate(0, BASELINE_SHRINKAGE)


def candidates(layers: int) -> tuple[Candidate, ...]:
    """Class means and discriminants on every layer; both baselines are among them."""
    return tuple(Candidate(i, shrinkage) for i in range(layers) for shrinkage in (None, *SHRINKAGES))


@dataclass(frozen=True)
class Spread:
    """Eigenvectors of a scatter, from which shrunken inverses follow for any shrinkage and any row left out."""

    vectors: Tensor  # (d, d)
    values: Tensor  # (d,)
    degrees: float

    @classmethod
    def of(cls, scatter: Tensor, degrees: float) -> "Spread":
        values, vectors = torch.linalg.eigh(scatter.double())
        return cls(vectors, values.clamp(min=0), degrees)

    def weights(self, shrinkage: float) -> Tensor:
        """Inverse variances in the eigenvectors' basis, (d,)."""
        return self._inverses(shrinkage, self.values.sum(), max(self.degrees, 1.0))

    def weights_without(self, shrinkage: float, removed: Tensor, copies: Tensor) -> Tensor:
        """The same (n, d) after removing `copies` (n,) rows, whose squared length is `removed` (n,) in total."""
        total = (self.values.sum() - removed).clamp(min=0)[:, None]
        return self._inverses(shrinkage, total, (self.degrees - copies).clamp(min=1)[:, None])

    def _inverses(self, shrinkage: float, total: Tensor, degrees: Tensor | float) -> Tensor:
        level = total / degrees / len(self.values)
        floor = FLOOR / len(self.values)
        return 1 / ((1 - shrinkage) * self.values / degrees + shrinkage * level + floor)

    def noise(self, shrinkage: float) -> float:
        """The mean squared distance of a row from the true mean of its class."""
        return float((self.values / max(self.degrees, 1.0) * self.weights(shrinkage)).sum())


def distances(rows: Tensor, means: Tensor, spread: Spread, shrinkage: float) -> Tensor:
    """Squared Mahalanobis distances (n, k) of rows (n, d) to means (k, d)."""
    scale = spread.weights(shrinkage).sqrt()
    a, b = (rows @ spread.vectors) * scale, (means.double() @ spread.vectors) * scale
    return ((a * a).sum(1)[:, None] - 2 * a @ b.T + (b * b).sum(1)).clamp(min=0)


@dataclass(frozen=True)
class LeftOut:
    """Labelled rows that are left out one by one, each together with its near copies.

    Photos of the same burst or scene must not count as evidence for each other.
    """

    targets: Tensor  # (n,)
    layers: tuple[Tensor, ...]  # (n, d) each
    copies: Tensor  # (n,) rows of the class that are nearly the same, itself included
    middles: tuple[Tensor, ...]  # (n, d) each: the mean of these rows

    def only(self, kept: Tensor) -> "LeftOut":
        """Some of the rows."""
        layers, middles = (tuple(part[kept] for part in parts) for parts in (self.layers, self.middles))
        return LeftOut(self.targets[kept], layers, self.copies[kept], middles)

    def others(self, counts: Tensor) -> Tensor:
        """Rows behind each mean of `counts` (k,) when a row is left out, (n, k)."""
        return counts - self.copies[:, None] * F.one_hot(self.targets, len(counts))


def leave_out(sums: ClassSums, rows: Tensor, targets: Tensor) -> LeftOut:
    """Rows (n, width) that can be left out: of classes with another row, evenly sampled if there are too many."""
    able = (sums.counts[targets] > 1).nonzero().squeeze(1)
    picked = able[torch.linspace(0, max(len(able) - 1, 0), min(len(able), MOST_TRIED)).long()]
    layers = split_layers(rows[picked], sums.widths)
    copies, middles = torch.ones(len(picked), dtype=torch.float64), tuple(part.clone() for part in layers)
    for target in targets.unique().tolist():
        own, here = (targets == target).nonzero().squeeze(1), (targets[picked] == target).nonzero().squeeze(1)
        every = split_layers(rows[own], sums.widths)
        same = _near_copies(layers[0][here], every[0], picked[here][:, None] == own)
        if int(same.sum()) > len(here):
            copies[here] = same.sum(1)
            for part, middle in zip(every, middles, strict=True):
                middle[here] = same @ part / copies[here][:, None]
    left = LeftOut(targets[picked], layers, copies, middles)
    return left.only(sums.counts[left.targets] > copies)


def _near_copies(rows: Tensor, every: Tensor, itself: Tensor) -> Tensor:
    """Which rows of `every` (n, d), all of one class, each of `rows` (m, d) nearly equals, (m, n) of 0 and 1. `itself`
    marks where a row is compared with itself, which counts as equal."""
    if len(every) < 3 or not len(rows):
        return itself.to(rows.dtype)
    apart = torch.cdist(rows, every).square()
    return (itself | (apart <= NEAR * apart[~itself].median())).to(rows.dtype)


def left_out_distances(
    left: LeftOut, layer: int, counts: Tensor, means: Tensor, spread: Spread, shrinkage: float
) -> Tensor:
    """Like `distances`, with each row and its copies left out of the means and the scatter.

    Uses a rank-one change of the inverse, which is exact except for the differences between copies. A class without
    another row is infinitely far from its only row.
    """
    found = []
    m = means.double() @ spread.vectors
    for start in range(0, len(left.targets), ROWS_LEFT_OUT):
        part = slice(start, start + ROWS_LEFT_OUT)
        x, middle = (rows[layer][part] @ spread.vectors for rows in (left.layers, left.middles))
        found.append(_left_out_chunk(x, middle, left.targets[part], left.copies[part], counts, m, spread, shrinkage))
    return torch.cat(found) if found else m.new_zeros(0, len(m))


def without_noise(apart: Tensor, counts: Tensor, spread: Spread, shrinkage: float) -> Tensor:
    """Squared distances (n, k) minus the part due to noise in the means: every row is farther from a noisier mean.

    `counts` (k,) or (n, k) are the rows behind each mean.
    """
    return apart - spread.noise(shrinkage) / counts.clamp(min=1)


def _left_out_chunk(
    x: Tensor,
    middle: Tensor,
    own: Tensor,
    copies: Tensor,
    counts: Tensor,
    m: Tensor,
    spread: Spread,
    shrinkage: float,
) -> Tensor:
    n = counts[own]
    off = middle - m[own]
    moved = torch.where(n > copies, copies / (n - copies).clamp(min=1), torch.zeros_like(n))
    factor = moved * n  # share of off off' in the scatter; the mean moves by moved * off
    w = spread.weights_without(shrinkage, factor * (off * off).sum(1), copies)
    share = (1 - shrinkage) / (spread.degrees - copies).clamp(min=1) * factor
    y = off * w
    gain = share / (1 - share * (off * y).sum(1)).clamp(min=1e-9)
    plain = ((x * x) * w).sum(1)[:, None] - 2 * (x * w) @ m.T + w @ (m * m).T
    cross = (x * y).sum(1)[:, None] - y @ m.T
    found = (plain + gain[:, None] * cross**2).clamp(min=0)
    apart = x - m[own] + moved[:, None] * off
    alone = (apart * apart * w).sum(1) + gain * (apart * y).sum(1) ** 2
    alone = torch.where(n > copies, alone, torch.full_like(alone, torch.inf))
    return found.scatter(1, own[:, None], alone[:, None])


@dataclass(frozen=True)
class Trials:
    """Results of candidates on labelled rows that were left out one by one, summed over steps."""

    loss: Tensor  # (candidates, temperatures) summed cross entropy, each class with the same weight
    right: Tensor  # (candidates,)
    rows: int
    averaged: float  # rows that the average of candidates had right

    def joined(self, other: "Trials | None") -> "Trials":
        """The sums of these trials and those of earlier steps."""
        if other is None:
            return self
        sums = self.loss + other.loss, self.right + other.right, self.rows + other.rows, self.averaged + other.averaged
        return Trials(*sums)

    def state(self) -> dict[str, Tensor]:
        """As tensors to store."""
        averaged = torch.tensor(self.averaged, dtype=torch.float64)
        return {"loss": self.loss, "right": self.right, "rows": torch.tensor(self.rows), "averaged": averaged}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "Trials":
        """What `state` stored."""
        return cls(state["loss"], state["right"], int(state["rows"].item()), float(state["averaged"].item()))


@dataclass(frozen=True)
class Voice:
    """A candidate in the average."""

    way: Candidate
    weight: float  # all weights sum to 1
    temperature: float  # that fits left-out rows best


@dataclass(frozen=True)
class EmbeddingHead:
    """A classifier of embeddings: the weighted geometric mean of calibrated candidates. `names[j]` is column j.

    Every candidate is linear in the rows up to a term that all classes share, and so is their average.
    """

    sums: ClassSums
    voices: tuple[Voice, ...]
    trials: Trials

    @property
    def names(self) -> tuple[str, ...]:
        return self.sums.names

    @cached_property
    def linear(self) -> tuple[dict[int, Tensor], Tensor]:
        """Weights (k, d) of each layer in use, and biases (k,)."""
        weights: dict[int, Tensor] = {}
        biases = torch.zeros(len(self.names), dtype=torch.float64)
        for voice in self.voices:
            scale = voice.weight * voice.temperature
            layer = voice.way.layer
            w, b = linear_logits(self.sums, voice.way)
            weights[layer] = weights.get(layer, 0) + scale * w
            biases = biases + scale * b
        return weights, biases

    def logits(self, rows: Tensor, candidate: Candidate | None = None) -> Tensor:
        """Logits (n, k) of rows (n, sum of widths), by the average or by one candidate."""
        head = self if candidate is None else replace(self, voices=(Voice(candidate, 1.0, 1.0),))
        weights, biases = head.linear
        x = split_layers(rows, self.sums.widths)
        return torch.stack([x[layer] @ w.T for layer, w in weights.items()]).sum(0) + biases

    def predict_proba(self, rows: Tensor) -> Tensor:
        """Probabilities (n, k)."""
        return self.logits(rows).softmax(1)

    def right(self, way: Candidate | None = None) -> float:
        """Share of left-out rows that a candidate, or the average, had right; 0 without any."""
        trials, ways = self.trials, candidates(len(self.sums.means))
        found = trials.averaged if way is None else float(trials.right[ways.index(way)])
        return found / max(trials.rows, 1)

    def __str__(self) -> str:
        """What is averaged, the three with the most weight by name."""
        if len(self.voices) == 1:
            return str(self.voices[0].way)
        shown = ", ".join(f"{voice.weight:.0%} {voice.way}" for voice in self.voices[:3]).replace("%", " %")
        return f"average of {len(self.voices)}: {shown}" + ", ..." * (len(self.voices) > 3)


def linear_logits(sums: ClassSums, way: Candidate) -> tuple[Tensor, Tensor]:
    """Weights (k, d) and biases (k,) of class means or discriminants on one layer."""
    means = sums.means[way.layer].double()
    if way.shrinkage is None:
        weights = COSINE_SCALE * F.normalize(means, dim=1)
        return weights, weights.new_zeros(len(weights))
    spread = sums.spread(way.layer)
    turned = means @ spread.vectors
    scaled = turned * spread.weights(way.shrinkage)
    lengths = without_noise((turned * scaled).sum(1), sums.counts, spread, way.shrinkage)
    return scaled @ spread.vectors.T, -0.5 * lengths


def fit_embedding_head(sums: ClassSums, left: LeftOut, before: Trials | None = None) -> EmbeddingHead:
    """Weigh candidates by their loss on left-out rows of this step, which are in `sums` already.

    Earlier steps count by their trials, in which later classes had no part.
    """
    y, logits = left.targets, left_out_logits(sums, left)
    trials = try_candidates(logits, y).joined(before)
    voices = weigh_candidates(trials, sums)
    scales = {voice.way: voice.weight * voice.temperature for voice in voices}
    total = torch.stack([scale * logits[way] for way, scale in scales.items()]).sum(0)
    averaged = trials.averaged + float((total.argmax(1) == y).sum())
    return EmbeddingHead(sums, voices, replace(trials, averaged=averaged))


def left_out_logits(sums: ClassSums, left: LeftOut) -> dict[Candidate, Tensor]:
    """Logits (n, k) of every candidate for the rows left out."""
    others, found = left.others(sums.counts), {}
    for way in candidates(len(left.layers)):
        i = way.layer
        if way.shrinkage is None:
            found[way] = _left_out_cosines(left, i, sums)
        else:
            apart = left_out_distances(left, i, sums.counts, sums.means[i], sums.spread(i), way.shrinkage)
            found[way] = -0.5 * without_noise(apart, others, sums.spread(i), way.shrinkage)
    return found


def try_candidates(logits: Mapping[Candidate, Tensor], y: Tensor) -> Trials:
    """How well candidates classify rows that were left out; `y` (m,) are their classes.

    Classes with few rows count as much as those with many, otherwise candidates that suit only a large class would win.
    """
    shares = 1 / y.bincount().clamp(min=1)[y].double()
    shares = shares * (len(y) / shares.sum().clamp(min=1e-9))
    loss = [torch.stack([_trial_loss(t * each, y, shares) for t in TEMPERATURES]) for each in logits.values()]
    right = torch.stack([(each.argmax(1) == y).sum() for each in logits.values()])
    return Trials(torch.stack(loss), right.float(), len(y), 0.0)


def _trial_loss(logits: Tensor, y: Tensor, shares: Tensor) -> Tensor:
    smoothing = min(DOUBT / max(len(y), 1), 0.5) if logits.shape[1] > 1 else 0.0
    return (shares * F.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing)).sum()


def _left_out_cosines(left: LeftOut, layer: int, sums: ClassSums) -> Tensor:
    x, y, means = left.layers[layer], left.targets, sums.means[layer].double()
    gone = left.copies[:, None] * left.middles[layer]
    own = F.normalize(sums.counts[y][:, None] * means[y] - gone, dim=1)  # along the mean of the others
    cosines = (x @ F.normalize(means, dim=1).T).scatter(1, y[:, None], (x * own).sum(1, keepdim=True))
    return COSINE_SCALE * cosines


def weigh_candidates(trials: Trials, sums: ClassSums) -> tuple[Voice, ...]:
    """Candidates in the average, the heaviest first: tempered posterior weights by the loss on left-out rows."""
    ways = candidates(len(sums.means))
    if trials.rows == 0:
        return (Voice(DISCRIMINANTS if sums.degrees > 0 else MEANS, 1.0, 1.0),)
    best = trials.loss.min(1)
    weights = (-SHARPNESS * best.values).softmax(0)
    weights = weights.masked_fill(weights < LEAST_WEIGHT, 0) / weights[weights >= LEAST_WEIGHT].sum()
    order = weights.argsort(descending=True, stable=True)[: int((weights > 0).sum())].tolist()
    return tuple(Voice(ways[i], float(weights[i]), TEMPERATURES[int(best.indices[i])]) for i in order)
