"""The images and labels of one step as a user provides them: validated, hashed and converted to a `Step`."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from hashlib import blake2b
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from osscl.agent.recipe import Recipe
from osscl.data.folders import image_files, list_labeled, list_unlabeled
from osscl.data.images import Labeled, as_tensor
from osscl.errors import DataError, UserError
from osscl.methods import method_name
from osscl.stream.build import Step
from osscl.text import counted
from osscl.vision.encoder import ImageFormat

Images = Tensor | np.ndarray[Any, Any]
PATHS = ("path", "file", "filename", "image")  # names of the column with image files
LABELS = ("label", "class")
LOWEST_STD = 1 / 255  # of a channel: all images may have one colour


class StepInput(Protocol):
    """What every kind of step has: labels of new and known classes, and unlabelled images."""

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def digests(self) -> tuple[int, ...]: ...  # one for each labelled image

    @property
    def unlabeled(self) -> Sized: ...

    @property
    def content(self) -> str: ...  # hash of all images and labels given

    @property
    def skipped(self) -> int: ...  # labelled images left out: learned before, or copies of another one

    def only(self, rows: Sequence[int]) -> Self: ...  # the same step with only these labelled images


@dataclass(frozen=True)
class PixelStep:
    """A step of images in memory, for a network trained from scratch."""

    images: Tensor  # (n, channels, size, size) uint8
    labels: tuple[str, ...]
    unlabeled: Tensor
    content: str
    digests: tuple[int, ...]
    skipped: int = 0

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.labels)))

    @property
    def format(self) -> ImageFormat:
        """Channels and size, with mean and std over all of these images."""
        mean, std = channel_statistics(self.images, self.unlabeled)
        return ImageFormat(self.images.shape[1], self.images.shape[2], mean, tuple(max(x, LOWEST_STD) for x in std))

    def only(self, rows: Sequence[int]) -> Self:
        labels = tuple(self.labels[row] for row in rows)
        digests = tuple(self.digests[row] for row in rows)
        skipped = self.skipped + len(self.labels) - len(rows)
        return replace(self, images=self.images[list(rows)], labels=labels, digests=digests, skipped=skipped)

    def as_step(self, t: int, known: Sequence[str], row_cap: int | None, device: torch.device) -> Step:
        """The step a method learns from; class ids index the known classes followed by the new ones."""
        new = [name for name in self.classes if name not in known]
        labels = class_ids(self.labels, [*known, *new])
        is_new = labels >= len(known)
        labeled, further = (Labeled(self.images[rows], labels[rows]).to(device) for rows in (is_new, ~is_new))
        ids = tuple(range(len(known), len(known) + len(new)))
        return Step(t, ids, labeled, self.unlabeled[:row_cap].to(device), further if len(further) else None)


@dataclass(frozen=True)
class LearnedImages:
    """A hash of every labelled image learned, and its class id. The images themselves are not kept."""

    digests: Tensor  # (n,) int64
    classes: Tensor  # (n,) int64

    def classes_of(self, digests: Sequence[int]) -> list[int | None]:
        """The class each image was learned as; None for an image that was not learned."""
        learned = dict(zip(self.digests.tolist(), self.classes.tolist(), strict=True))
        return [learned.get(digest) for digest in digests]

    def with_more(self, given: StepInput, class_names: Sequence[str]) -> "LearnedImages":
        more, ids = torch.tensor(given.digests, dtype=torch.long), class_ids(given.labels, class_names)
        return LearnedImages(torch.cat((self.digests, more)), torch.cat((self.classes, ids)))


NO_IMAGES = LearnedImages(torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long))


def pixel_digests(images: Images) -> tuple[int, ...]:
    """A 64-bit hash of each image's pixels."""
    rows = as_tensor(images).cpu().contiguous()
    require_images(rows, rows[:0])
    return tuple(int.from_bytes(blake2b(row.numpy().data, digest_size=8).digest(), signed=True) for row in rows)


def class_ids(labels: Sequence[str], class_names: Sequence[str]) -> Tensor:
    """The index of each label in `class_names`, (n,)."""
    index = {name: i for i, name in enumerate(class_names)}
    return torch.tensor([index[name] for name in labels], dtype=torch.long)


def check_pixels(images: Images | None, labels: Sequence[Any], unlabeled: Images | None) -> PixelStep:
    """Validate what a user provides for one step."""
    others = None if unlabeled is None or not len(unlabeled) else as_tensor(unlabeled).cpu().contiguous()
    if images is None or not len(images):
        if others is None:
            raise DataError("nothing to learn from: give labelled images, unlabelled images, or both")
        rows = others[:0]
    else:
        rows = as_tensor(images).cpu().contiguous()
    others = rows[:0] if others is None else others
    require_images(rows, others)
    names = as_class_names(labels)
    digests = pixel_digests(rows)
    require_consistent(digests, names)
    return PixelStep(rows, names, others, _content_hash(rows, others, names), digests)


def require_arrays(*parts: Any) -> None:
    """Refuse files: networks trained from scratch need pixels of one size, which only the caller can choose."""
    for images in parts:
        if isinstance(images, list | tuple) and images and isinstance(images[0], str | PathLike):
            raise DataError("encoder='scratch' takes uint8 arrays: read files with osscl.load_folder(folder, size=64)")


def require_consistent(digests: Sequence[int], names: Sequence[str]) -> None:
    """Require one label per image, and no image with two labels."""
    if len(names) != len(digests):
        raise DataError(f"expected one label per image, got {len(names)} labels for {len(digests)} images")
    if (pair := conflicting_pair(digests, names)) is not None:
        one, other = pair
        raise DataError(f"images {one} and {other} are identical but labelled {names[one]!r} and {names[other]!r}")


def require_learnable(given: StepInput, known: Sequence[str], recipe: Recipe) -> None:
    """Refuse a later step from which the method cannot learn."""
    new = set(given.classes) - set(known)
    require_memory_for(recipe, len(known) + len(new), "; it is fixed by the first step")
    if not given.labels and not len(given.unlabeled):
        raise UserError("nothing new: all of these images have already been learned")
    if not new and recipe.needs_new_classes:
        raise UserError(f"{method_name(recipe.method)} needs a new class in every step")
    if not given.labels and not recipe.memory:
        raise UserError("with memory 0 no labelled images are kept: give labelled images as well")
    if not given.labels and not recipe.learns_unlabeled:
        raise UserError(f"{method_name(recipe.method)} cannot learn from unlabelled images alone: give labelled images")
    if not given.labels and len(given.unlabeled) < 2:
        raise UserError("one unlabelled image is not enough to learn from: give more, or labelled images as well")
    absent = sorted({*known} - {*given.classes})
    if absent and not new and not recipe.memory:
        forgotten = absent[0] + (f" and {counted(len(absent) - 1, 'other class', 'other classes')}" * (len(absent) > 1))
        if not recipe.carries_labels:
            name = method_name(recipe.method)
            raise UserError(f"with memory 0 {name} would forget {forgotten}: give images of all classes")
        if len(given.unlabeled) < 2:
            raise UserError(f"with memory 0 a step without new classes or unlabelled images would forget {forgotten}")


def require_memory_for(recipe: Recipe, classes: int, note: str = "") -> None:
    """Require a memory for at least one image of each class, or no memory at all."""
    if 0 < recipe.memory < classes:
        raise UserError(f"memory must be 0 or at least {classes}, the number of classes{note}; got {recipe.memory}")


def require_images(rows: Tensor, others: Tensor) -> None:
    """Both must be uint8 images of one square format."""
    fits = rows.dim() == 4 and rows.shape[2] == rows.shape[3] and rows.shape[1] in (1, 3)
    if rows.dtype != torch.uint8 or not fits:
        raise DataError(f"images must be uint8 (n, 1 or 3, size, size), got {rows.dtype} {tuple(rows.shape)}")
    if others.dtype != torch.uint8 or others.shape[1:] != rows.shape[1:]:
        wanted, got = ", ".join(map(str, rows.shape[1:])), f"{others.dtype} {tuple(others.shape)}"
        raise DataError(f"unlabelled images must be uint8 (n, {wanted}) like the labelled ones, got {got}")


def conflicting_pair(digests: Sequence[int], labels: Sequence[str]) -> tuple[int, int] | None:
    """Two rows with the same image and different labels, if there are any."""
    first: dict[int, int] = {}
    for row, digest in enumerate(digests):
        before = first.setdefault(digest, row)
        if labels[before] != labels[row]:
            return before, row
    return None


def as_class_names(labels: Sequence[Any]) -> tuple[str, ...]:
    """Labels as strings; arrays and tensors of integers are converted."""
    values = labels.tolist() if isinstance(labels, Tensor | np.ndarray) else labels
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise DataError(f"labels must be a list, got {type(labels).__name__}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | Integral) or not str(value).strip():
            raise DataError(f"a label must be a non-empty string or an integer, got {value!r}")
    return tuple(map(str, values))


def channel_statistics(*parts: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of each channel over uint8 images scaled to [0, 1], computed in chunks."""
    pixels = 0
    total = squares = torch.zeros(parts[0].shape[1], dtype=torch.float64)
    for chunk in (chunk for part in parts for chunk in part.split(1024)):
        values = chunk.double() / 255
        pixels += values[:, 0].numel()
        total, squares = total + values.sum((0, 2, 3)), squares + values.square().sum((0, 2, 3))
    mean = total / pixels
    std = (squares / pixels - mean.square()).clamp(min=0).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())


def _content_hash(rows: Tensor, others: Tensor, names: tuple[str, ...]) -> str:
    digest = blake2b(digest_size=16)
    for part in (rows, others):
        digest.update(repr(tuple(part.shape)).encode())
        digest.update(part.numpy().data)
    digest.update(repr(names).encode())
    return digest.hexdigest()


# ----- images and labels in the forms that users have them: arrays, lists of files, folders, tables with a path column


def labeled_images(images: Any, labels: Any) -> tuple[Any, Any]:
    """Images and one label each. The labels of a folder are its folders' names; a table may have a label column."""
    if isinstance(images, str | Path):
        if labels is not None and len(labels):
            raise DataError(f"the labels of {images} are the names of its folders; do not pass labels as well")
        found = list_labeled(Path(images))
        return list(found.files), list(found.labels)
    if _is_frame(images) and labels is None:
        labels = _column(images, LABELS, "labels")
    if labels is None:
        raise DataError("expected one label per image: give labels, a folder with one folder per class, or a table")
    return plain_images(images), _as_list(labels)


def plain_images(images: Any) -> Any:
    """Images without labels: those below a folder, those of a table's path column, or what was given."""
    if isinstance(images, str | Path):
        return image_files(Path(images))
    if _is_frame(images):
        return _column(images, PATHS, "image files")
    return [images] if isinstance(images, Image) else _as_list(images)


def unlabeled_images(images: Any) -> Any:
    """A pile: like `plain_images`, but with each file of a folder only once."""
    return list(list_unlabeled(images).files) if isinstance(images, str | Path) else plain_images(images)


def are_integers(labels: Sequence[Any]) -> bool:
    """Whether all labels are integers, as is usual with scikit-learn."""
    values = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else labels
    return bool(len(values)) and all(isinstance(value, Integral) and not isinstance(value, bool) for value in values)


def _is_frame(images: Any) -> bool:
    """A table of pandas or polars, which need not be installed."""
    return hasattr(images, "columns") and hasattr(images, "shape") and len(images.shape) == 2


def _column(frame: Any, names: Sequence[str], what: str) -> list[Any]:
    for name in names:
        if name in frame.columns:
            return list(_as_list(frame[name]))
    found = ", ".join(map(str, frame.columns)) or "none"
    raise DataError(f"the table needs a column of {what} named {' or '.join(map(repr, names))}; its columns: {found}")


def _as_list(values: Any) -> Any:
    """A column of pandas or polars as a list; anything else unchanged."""
    for name in ("to_list", "tolist"):
        if hasattr(values, name) and not isinstance(values, np.ndarray | Tensor):
            return getattr(values, name)()
    return values
