"""A step of one's own images: what a stream is to a data set, as it arrives."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from osscl.data.images import Labeled, as_tensor
from osscl.errors import DataError
from osscl.stream.step import Step
from osscl.vision.encoder import ImageFormat

Images = Tensor | np.ndarray[Any, Any]
FLATTEST = 1 / 255  # least std of a channel: images may all be of one colour


@dataclass(frozen=True)
class Arrived:
    """Labelled images of new classes, and unlabelled ones of anything."""

    images: Tensor  # (n, channels, size, size) uint8
    labels: tuple[str, ...]
    unlabeled: Tensor
    content: str  # hash of every pixel and label

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.labels)))

    @property
    def format(self) -> ImageFormat:
        """Channels, size, and the mean and std of all of these images."""
        mean, std = channel_statistics(self.images, self.unlabeled)
        return ImageFormat(self.images.shape[1], self.images.shape[2], mean, tuple(max(x, FLATTEST) for x in std))

    def as_step(self, t: int, first_class: int, row_cap: int | None, device: torch.device) -> Step:
        """What a method is handed; classes are numbered from `first_class` on."""
        ids = {name: first_class + i for i, name in enumerate(self.classes)}
        labeled = Labeled(self.images, torch.tensor([ids[name] for name in self.labels])).to(device)
        return Step(t, tuple(ids.values()), labeled, self.unlabeled[:row_cap].to(device))


def checked(images: Images, labels: Sequence[Any], unlabeled: Images | None) -> Arrived:
    """What was given, or one line that says what is wrong with it."""
    rows = as_tensor(images).cpu().contiguous()
    fits = rows.dim() == 4 and rows.shape[2] == rows.shape[3] and rows.shape[1] in (1, 3)
    if rows.dtype != torch.uint8 or not fits:
        raise DataError(f"images must be uint8 (n, 1 or 3, size, size), got {rows.dtype} {tuple(rows.shape)}")
    names = class_names(labels)
    if len(names) != len(rows) or not names:
        raise DataError(f"a label for each image is wanted, got {len(names)} for {len(rows)}")
    others = rows[:0] if unlabeled is None or not len(unlabeled) else as_tensor(unlabeled).cpu().contiguous()
    if others.dtype != torch.uint8 or others.shape[1:] != rows.shape[1:]:
        wanted, got = ", ".join(map(str, rows.shape[1:])), f"{others.dtype} {tuple(others.shape)}"
        raise DataError(f"unlabelled images must be uint8 (n, {wanted}) as the labelled ones, got {got}")
    return Arrived(rows, names, others, _content(rows, others, names))


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
