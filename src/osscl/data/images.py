"""Images and labels in memory, the form that the rest of the package uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from osscl.errors import DataError

Array = NDArray[Any]


@dataclass(frozen=True)
class Labeled:
    """Images with their labels, on one device."""

    images: Tensor  # (n, c, s, s) uint8
    labels: Tensor  # (n,) int64

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Labeled:
        """The same rows on another device."""
        return Labeled(self.images.to(device), self.labels.to(device))

    def rows(self, index: Tensor) -> Labeled:
        """The rows in `index`, in its order."""
        return Labeled(self.images[index], self.labels[index])


def concat(*parts: Labeled) -> Labeled:
    """All rows of all parts, in order."""
    return Labeled(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))


def as_tensor(images: Tensor | Array) -> Tensor:
    """Images as a tensor; arrays with negative strides or without write access are copied."""
    try:
        return torch.as_tensor(
            np.require(images, requirements=["C", "W"]) if isinstance(images, np.ndarray) else images
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"images must be one tensor or array, got {type(images).__name__} ({error})") from None


def columns_of(labels: Tensor, classes: Sequence[int]) -> Tensor:
    """The index of each label in `classes`, (n,); raises ValueError for a label that is not in it."""
    places = torch.full((max(classes, default=-1) + 2,), -1)  # the last one is for all larger labels
    places[torch.tensor(classes, dtype=torch.long)] = torch.arange(len(classes))
    columns = places.to(labels.device)[labels.clamp(max=len(places) - 1)]
    if len(others := labels[columns < 0]):
        raise ValueError(f"label {int(others[0])} is not among the classes {list(classes)}")
    return columns


@dataclass(frozen=True)
class ImageBank:
    """A whole data set: training and test images and the names of the classes."""

    name: str
    train: Labeled
    test: Labeled
    class_names: tuple[str, ...]
    content: str  # hash of all pixels and labels

    def to(self, device: torch.device | str) -> ImageBank:
        """The same bank on another device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))


@dataclass(frozen=True)
class Decoded:
    """A data set as its reader returns it: images (n, c, s, s) uint8, labels (n,) int64."""

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array
    class_names: tuple[str, ...]


def canonical(images: Array, labels: Array) -> tuple[Array, Array]:
    """The rows sorted by label, then by a hash of the pixels, so that the order in the files does not matter."""
    images = np.ascontiguousarray(images)
    digests = b"".join(blake2b(row.data, digest_size=8).digest() for row in images)
    order = np.lexsort((np.frombuffer(digests, dtype=">u8"), labels))
    return images[order], labels[order]


def content_hash(decoded: Decoded) -> str:
    """Hash of the shapes, pixels and labels of both splits, 32 hex digits."""
    digest = blake2b(digest_size=16)
    for images, labels in (
        (decoded.train_images, decoded.train_labels),
        (decoded.test_images, decoded.test_labels),
    ):
        digest.update(repr(images.shape).encode())
        digest.update(np.ascontiguousarray(images, dtype=np.uint8).data)
        digest.update(np.ascontiguousarray(labels, dtype="<i8").data)
    return digest.hexdigest()


def in_canonical_order(decoded: Decoded) -> Decoded:
    """Both splits in canonical order."""
    train_images, train_labels = canonical(decoded.train_images, decoded.train_labels)
    test_images, test_labels = canonical(decoded.test_images, decoded.test_labels)
    return Decoded(train_images, train_labels, test_images, test_labels, decoded.class_names)


def as_bank(name: str, decoded: Decoded, content: str) -> ImageBank:
    """A bank of copies, since the arrays may be read-only maps of a file."""
    train = Labeled(torch.from_numpy(np.array(decoded.train_images)), torch.from_numpy(np.array(decoded.train_labels)))
    test = Labeled(torch.from_numpy(np.array(decoded.test_images)), torch.from_numpy(np.array(decoded.test_labels)))
    return ImageBank(name, train, test, decoded.class_names, content)
