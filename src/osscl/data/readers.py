"""Readers of the official, extracted layouts of the benchmarks, one function each."""

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from osscl.data.images import Array, Decoded
from osscl.data.pickles import read_pickle
from osscl.errors import DataError, shown

SIDE = 32  # pixels per side: all benchmarks are used at CIFAR's size, as in the paper
PICTURES = {".jpg", ".jpeg", ".png"}
MOST_PIXELS = 100_000_000  # decoded at one time; 4 to 16 bytes each


def read_cifar10(folder: Path) -> Decoded:
    """`cifar-10-batches-py`: five training batches and a test batch."""
    names = _cifar_names(folder / "batches.meta", b"label_names")
    parts = [_cifar_batch(folder / f"data_batch_{i}", b"labels", len(names)) for i in range(1, 6)]
    test_images, test_labels = _cifar_batch(folder / "test_batch", b"labels", len(names))
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Decoded(images, labels, test_images, test_labels, names)


def read_cifar100(folder: Path) -> Decoded:
    """`cifar-100-python`, with the fine labels."""
    names = _cifar_names(folder / "meta", b"fine_label_names")
    images, labels = _cifar_batch(folder / "train", b"fine_labels", len(names))
    test_images, test_labels = _cifar_batch(folder / "test", b"fine_labels", len(names))
    return Decoded(images, labels, test_images, test_labels, names)


def _cifar_names(path: Path, key: bytes) -> tuple[str, ...]:
    """The class names in a meta file."""
    names = read_pickle(path).get(key)
    try:
        assert isinstance(names, list)
        return tuple(name if isinstance(name, str) else name.decode() for name in names)
    except (AssertionError, AttributeError, UnicodeDecodeError):
        raise DataError(f"{path}: expected a list of names under {key.decode()!r}") from None


def _cifar_batch(path: Path, key: bytes, classes: int) -> tuple[Array, Array]:
    """Images (n, 3, 32, 32) uint8 and labels (n,) int64 of one batch file."""
    content = read_pickle(path)
    data, labels = content.get(b"data"), content.get(key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3 * SIDE * SIDE,):
        found = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise DataError(f"{path}: expected 'data' as rows of {3 * SIDE * SIDE} uint8, found {found}")
    if not isinstance(labels, list) or not all(_is_label(label, classes) for label in labels):
        raise DataError(f"{path}: expected {key.decode()!r} as a list of numbers from 0 to {classes - 1}")
    if len(labels) != len(data):
        raise DataError(f"{path}: expected one label per image, found {len(labels)} for {len(data)}")
    return data.reshape(-1, 3, SIDE, SIDE), np.array(labels, dtype=np.int64)


def _is_label(value: Any, classes: int) -> bool:
    """Whether a value is a class number."""
    return isinstance(value, int | np.integer) and 0 <= int(value) < classes


def read_tinyimagenet(folder: Path) -> Decoded:
    """`tiny-imagenet-200`; its validation images are used as test images, since the test images have no labels."""
    wnids = sorted(_lines(folder / "wnids.txt"))
    if odd := [wnid for wnid in wnids if not wnid.isalnum()]:
        raise DataError(f"{folder / 'wnids.txt'}: expected names such as n01443537, found {shown(odd[0])}")
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    words = dict(line.split("\t", 1) for line in _lines(folder / "words.txt") if "\t" in line)
    names = tuple(words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids)

    train = [(path, label_of[wnid]) for wnid in wnids for path in pictures_in(folder / "train" / wnid / "images")]
    annotations = folder / "val" / "val_annotations.txt"
    test = []
    for line in _lines(annotations):
        file, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in label_of or Path(file).name != file or "\0" in file:
            raise DataError(f"{annotations}: expected a file name and a name of wnids.txt, found {shown(line)}")
        test.append((folder / "val" / "images" / file, label_of[wnid]))
    return Decoded(*_decode(train, _halved), *_decode(test, _halved), names)


def read_caltech256(folder: Path) -> Decoded:
    """`256_ObjectCategories`: one folder per class; without an official split, there are no test images."""
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    pictures = [(path, label) for label, entry in enumerate(classes) for path in pictures_in(entry)]
    names = tuple(entry.name.partition(".")[2] or entry.name for entry in classes)
    return Decoded(*_decode(pictures, centred), *_decode([], centred), names)


def _lines(path: Path) -> list[str]:
    """The non-blank lines of a text file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}): expected the file of the official archive"
        ) from None
    return [line for line in text.splitlines() if line.strip()]


def pictures_in(folder: Path) -> list[Path]:
    """The image files directly in a folder, without the other files of Caltech-256 and the hidden ones of macOS."""
    if not folder.is_dir():
        raise DataError(f"{folder} is missing: expected a folder of images")
    visible = [path for path in folder.iterdir() if not path.name.startswith(".")]
    found = [path for path in visible if path.suffix.lower() in PICTURES and not path.is_dir()]
    if not found:
        raise DataError(f"{folder} contains no images")
    return sorted(found)


class PixelBudget:
    """Bounds the pixels that all threads together decode at one time: a small file can hold a very large picture."""

    def __init__(self, most: int = MOST_PIXELS) -> None:
        self.most = self.free = most
        self.changed = threading.Condition()

    @contextlib.contextmanager
    def reserved(self, image: Image.Image) -> Iterator[None]:
        """Wait until an opened picture may be decoded; raises a DataError if it is too large by itself."""
        pixels = image.width * image.height
        if pixels > self.most:
            raise DataError(f"it has more than {self.most:,} pixels")
        with self.changed:
            self.changed.wait_for(lambda: pixels <= self.free)
            self.free -= pixels
        try:
            yield
        finally:
            with self.changed:
                self.free += pixels
                self.changed.notify_all()


def _decode(pictures: Sequence[tuple[Path, int]], fit: Callable[[Image.Image], Image.Image]) -> tuple[Array, Array]:
    """Images (n, 3, 32, 32) and labels (n,) of image files; in threads, since Pillow releases Python's lock."""
    labels = np.array([label for _, label in pictures], dtype=np.int64)
    images = np.empty((len(pictures), 3, SIDE, SIDE), dtype=np.uint8)
    budget = PixelBudget()
    with ThreadPoolExecutor(os.cpu_count()) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, about damaged metadata
        for row, image in enumerate(pool.map(lambda picture: _pixels(picture[0], fit, budget), pictures)):
            images[row] = image
    return images, labels


def _pixels(path: Path, fit: Callable[[Image.Image], Image.Image], budget: PixelBudget) -> Array:
    """One image file as (3, 32, 32) uint8."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a valid image: it is not a file")  # reading a pipe would block
    try:
        with Image.open(path, formats=("JPEG", "PNG")) as image, budget.reserved(image):
            return np.asarray(fit(image.convert("RGB"))).transpose(2, 0, 1)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except Image.DecompressionBombError:
        reason = f"it has more than {budget.most:,} pixels"
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly any exception for damaged files
        reason = getattr(error, "strerror", None) or " ".join(str(error).replace(str(path), "it").split())[:200]
    raise DataError(f"{path} is not a valid image ({reason})")


def _halved(image: Image.Image) -> Image.Image:
    """The whole image at 32 pixels: for one of 64, the mean of every 2 x 2 block."""
    return image.resize((SIDE, SIDE), Image.Resampling.BOX)


def centred(image: Image.Image, size: int = SIDE) -> Image.Image:
    """The largest central square, resized with a box filter."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.resize((size, size), Image.Resampling.BOX, box=(left, top, left + side, top + side))
