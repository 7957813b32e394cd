"""A step of one's own images: what a stream is to a data set, as it arrives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from osscl.agent.recipe import Recipe
from osscl.data.images import Labeled, as_tensor
from osscl.errors import DataError, UserError
from osscl.methods import METHODS, method_name
from osscl.methods.base import Method
from osscl.stream.step import Step
from osscl.vision.encoder import ImageFormat

Images = Tensor | np.ndarray[Any, Any]
FLATTEST = 1 / 255  # least std of a channel: images may all be of one colour


@dataclass(frozen=True)
class Arrived:
    """Labelled images of new classes and of classes met before, and unlabelled ones of anything."""

    images: Tensor  # (n, channels, size, size) uint8
    labels: tuple[str, ...]
    unlabeled: Tensor
    content: str  # hash of every pixel and label that was given
    left_out: int = 0  # labelled images that are given and not to be learned

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.labels)))

    @property
    def format(self) -> ImageFormat:
        """Channels, size, and the mean and std of all of these images."""
        mean, std = channel_statistics(self.images, self.unlabeled)
        return ImageFormat(self.images.shape[1], self.images.shape[2], mean, tuple(max(x, FLATTEST) for x in std))

    def only(self, rows: Sequence[int]) -> "Arrived":
        """With these labelled images alone."""
        labels = tuple(self.labels[row] for row in rows)
        return replace(self, images=self.images[list(rows)], labels=labels, left_out=len(self.labels) - len(labels))

    def as_step(self, t: int, known: Sequence[str], row_cap: int | None, device: torch.device) -> Step:
        """What a method is handed; a class goes by its place among those `known` and the new ones after them."""
        new = [name for name in self.classes if name not in known]
        labels = ids_of(self.labels, [*known, *new])
        fresh = labels >= len(known)
        labeled, further = (Labeled(self.images[rows], labels[rows]).to(device) for rows in (fresh, ~fresh))
        ids = tuple(range(len(known), len(known) + len(new)))
        return Step(t, ids, labeled, self.unlabeled[:row_cap].to(device), further if len(further) else None)


@dataclass(frozen=True)
class Met:
    """Every labelled image that was learned: a hash of its pixels, and the number of its class. No image is kept."""

    digests: Tensor  # (n,) int64
    classes: Tensor  # (n,) int64

    def classes_of(self, images: Images) -> list[int | None]:
        """The class that each image was learned as; None for one that was not."""
        rows = as_tensor(images).cpu().contiguous()
        require_images(rows, rows[:0])
        learned = dict(zip(self.digests.tolist(), self.classes.tolist(), strict=True))
        return [learned.get(digest) for digest in digests(rows)]

    def with_more(self, arrived: Arrived, class_names: Sequence[str]) -> "Met":
        more = torch.tensor(digests(arrived.images), dtype=torch.long)
        return Met(torch.cat((self.digests, more)), torch.cat((self.classes, ids_of(arrived.labels, class_names))))


NOTHING_MET = Met(torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long))


def met_in(agent: Method) -> Met:
    """What the memory of an agent holds: all that is left of it where no hashes were kept."""
    kept = agent.memory.labeled if hasattr(agent, "memory") else None
    if kept is None:
        return NOTHING_MET
    return Met(torch.tensor(digests(kept.images.cpu()), dtype=torch.long), kept.labels.cpu())


def digests(images: Tensor) -> list[int]:
    """A hash of each image's pixels."""
    return [int.from_bytes(blake2b(row.numpy().data, digest_size=8).digest(), signed=True) for row in images]


def ids_of(labels: Sequence[str], class_names: Sequence[str]) -> Tensor:
    """The place of each label among the names, (n,)."""
    places = {name: i for i, name in enumerate(class_names)}
    return torch.tensor([places[name] for name in labels], dtype=torch.long)


def checked(images: Images | None, labels: Sequence[Any], unlabeled: Images | None) -> Arrived:
    """What was given, or one line that says what is wrong with it."""
    others = None if unlabeled is None or not len(unlabeled) else as_tensor(unlabeled).cpu().contiguous()
    if images is None or not len(images):
        if others is None:
            raise DataError("there is nothing to learn from: give labelled images, unlabelled ones, or both")
        rows = others[:0]
    else:
        rows = as_tensor(images).cpu().contiguous()
    others = rows[:0] if others is None else others
    require_images(rows, others)
    names = class_names(labels)
    if len(names) != len(rows):
        raise DataError(f"a label for each image is wanted, got {len(names)} for {len(rows)}")
    if (twice := contradiction(rows, names)) is not None:
        one, other = twice
        raise DataError(f"images {one} and {other} are the same, labelled {names[one]!r} and {names[other]!r}")
    return Arrived(rows, names, others, _content(rows, others, names))


def require_news(fresh: Arrived, known: Sequence[str], recipe: Recipe) -> None:
    """A step must bring something that the method can learn from."""
    new = set(fresh.classes) - set(known)
    require_room(recipe, len(known) + len(new), ", and is set at the first step")
    if not fresh.labels and not len(fresh.unlabeled):
        raise UserError("nothing new: all of these images were learned before")
    if not new and getattr(recipe.method, "needs_new_classes", False):
        able = ", ".join(name for name, kind in METHODS.items() if not hasattr(kind.Config, "needs_new_classes"))
        raise UserError(f"a step without a new class is nothing to {method_name(recipe.method)}; it is to {able}")
    if not fresh.labels and not recipe.memory:
        raise UserError("an agent with memory 0 has no labels left to learn from: give labelled images, too")
    if not fresh.labels and not recipe.learns_unlabeled:
        raise UserError("this method learns nothing from unlabelled images alone: give labelled images, too")
    if not fresh.labels and len(fresh.unlabeled) < 2:
        raise UserError("a single unlabelled image is nothing to learn from: give more, or labelled images, too")
    if not new and not recipe.memory and len(fresh.unlabeled) < 2:
        raise UserError("with memory 0 and no pile the other classes would be forgotten: give unlabelled images, too")


def require_room(recipe: Recipe, classes: int, when: str = "") -> None:
    """Every class has an image in the memory, or none has."""
    if 0 < recipe.memory < classes:
        raise UserError(f"memory must be 0 or at least the {classes} classes{when}, got {recipe.memory}")


def require_images(rows: Tensor, others: Tensor) -> None:
    fits = rows.dim() == 4 and rows.shape[2] == rows.shape[3] and rows.shape[1] in (1, 3)
    if rows.dtype != torch.uint8 or not fits:
        raise DataError(f"images must be uint8 (n, 1 or 3, size, size), got {rows.dtype} {tuple(rows.shape)}")
    if others.dtype != torch.uint8 or others.shape[1:] != rows.shape[1:]:
        wanted, got = ", ".join(map(str, rows.shape[1:])), f"{others.dtype} {tuple(others.shape)}"
        raise DataError(f"unlabelled images must be uint8 (n, {wanted}) as the labelled ones, got {got}")


def contradiction(images: Tensor, labels: Sequence[str]) -> tuple[int, int] | None:
    """Two rows of the same pixels and other labels, where there are any."""
    first: dict[int, int] = {}
    for row, digest in enumerate(digests(images)):
        before = first.setdefault(digest, row)
        if labels[before] != labels[row]:
            return before, row
    return None


def class_names(labels: Sequence[Any]) -> tuple[str, ...]:
    """Words, or whole numbers as words; of arrays and tensors, too."""
    values = labels.tolist() if isinstance(labels, Tensor | np.ndarray) else labels
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise DataError(f"labels must be a list of them, got {type(labels).__name__}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | Integral) or value == "":
            raise DataError(f"a label is a word or a whole number, got {value!r}")
    return tuple(map(str, values))


def channel_statistics(*parts: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of each channel over uint8 images as numbers in [0, 1]; in pieces, for there may be many."""
    pixels = 0
    total = squares = torch.zeros(parts[0].shape[1], dtype=torch.float64)
    for piece in (piece for part in parts for piece in part.split(1024)):
        values = piece.double() / 255
        pixels += values[:, 0].numel()
        total, squares = total + values.sum((0, 2, 3)), squares + values.square().sum((0, 2, 3))
    mean = total / pixels
    std = (squares / pixels - mean.square()).clamp(min=0).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())


def _content(rows: Tensor, others: Tensor, names: tuple[str, ...]) -> str:
    digest = blake2b(digest_size=16)
    for part in (rows, others):
        digest.update(repr(tuple(part.shape)).encode())
        digest.update(part.numpy().data)
    digest.update(repr(names).encode())
    return digest.hexdigest()
