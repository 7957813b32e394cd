"""Images and labels in the forms people have them: arrays, lists of files, folders, tables with a path column."""

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from osscl.data.folders import image_files, list_labeled, list_unlabeled
from osscl.errors import DataError

PATHS = ("path", "file", "filename", "image")  # names of the column with image files
LABELS = ("label", "class")


def labelled_images(images: Any, labels: Any) -> tuple[Any, Any]:
    """Images and one label each. A folder has its labels in its folders' names, a table may have them in a column."""
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
    return _as_list(images)


def unlabelled_images(images: Any) -> Any:
    """A pile: as `plain_images`, with each file of a folder once."""
    return list(list_unlabeled(images).files) if isinstance(images, str | Path) else plain_images(images)


def are_integers(labels: Sequence[Any]) -> bool:
    """Whether all labels are integers, as scikit-learn users have them."""
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
