"""A step of one's own images: what `Stream` is to a data set, as it arrives."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from osscl.data.images import Labeled
from osscl.errors import DataError
from osscl.stream.step import Step

Images = Tensor | np.ndarray[Any, Any]


@dataclass(frozen=True)
class Lesson:
    """Labelled images of new classes, and unlabelled ones of anything."""

    images: Tensor  # (n, channels, size, size) uint8
    labels: tuple[str, ...]
    unlabeled: Tensor

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.labels)))

    @property
    def content(self) -> str:
        """Hash of every pixel and label."""
        digest = blake2b(digest_size=16)
        for part in (self.images, self.unlabeled):
            digest.update(repr(tuple(part.shape)).encode())
            digest.update(np.ascontiguousarray(part.numpy()).data)
        digest.update(repr(self.labels).encode())
        return digest.hexdigest()

    def as_step(self, t: int, first_class: int, device: torch.device) -> Step:
        """What a method is handed; classes are numbered from `first_class` on."""
        ids = {name: first_class + i for i, name in enumerate(self.classes)}
        labeled = Labeled(self.images, torch.tensor([ids[name] for name in self.labels])).to(device)
        return Step(t, tuple(ids.values()), labeled, self.unlabeled.to(device))


def lesson_of(images: Images, labels: Sequence[str], unlabeled: Images | None) -> Lesson:
    """The same as given, checked."""
    rows = torch.as_tensor(images)
    fits = rows.dim() == 4 and rows.shape[2] == rows.shape[3] and rows.shape[1] in (1, 3)
    if rows.dtype != torch.uint8 or not fits:
        raise DataError(f"images must be uint8 (n, 1 or 3, size, size), got {rows.dtype} {tuple(rows.shape)}")
    if len(labels) != len(rows) or not len(rows):
        raise DataError(f"a label for each image is wanted, got {len(labels)} for {len(rows)}")
    others = rows[:0] if unlabeled is None else torch.as_tensor(unlabeled)
    if others.dtype != torch.uint8 or others.shape[1:] != rows.shape[1:]:
        wanted = ", ".join(map(str, rows.shape[1:]))
        raise DataError(
            f"unlabelled images must be uint8 (n, {wanted}) as the labelled ones, "
            f"got {others.dtype} {tuple(others.shape)}"
        )
    return Lesson(rows.cpu(), tuple(map(str, labels)), others.cpu())
