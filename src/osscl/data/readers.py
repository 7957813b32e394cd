"""The official extracted layouts of the benchmarks, each read by one function of its folder."""

import os
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from osscl.data.images import Array, Decoded
from osscl.data.pickles import read_pickle
from osscl.errors import DataError

SIDE = 32  # every benchmark is brought to CIFAR's size, as in the paper
PICTURES = {".jpg", ".jpeg", ".png"}


def read_cifar10(folder: Path) -> Decoded:
    """`cifar-10-batches-py`: five training batches and one of tests."""
    names = _cifar_names(folder / "batches.meta", b"label_names")
    parts = [_cifar_batch(folder / f"data_batch_{i}", b"labels", len(names)) for i in range(1, 6)]
    test_images, test_labels = _cifar_batch(folder / "test_batch", b"labels", len(names))
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Decoded(images, labels, test_images, test_labels, names)


def read_cifar100(folder: Path) -> Decoded:
    """`cifar-100-python`, with its hundred fine labels."""
    names = _cifar_names(folder / "meta", b"fine_label_names")
    images, labels = _cifar_batch(folder / "train", b"fine_labels", len(names))
    test_images, test_labels = _cifar_batch(folder / "test", b"fine_labels", len(names))
    return Decoded(images, labels, test_images, test_labels, names)


def _cifar_names(path: Path, key: bytes) -> tuple[str, ...]:
    """The class names in a meta file."""
    names = read_pickle(path).get(key)
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise DataError(f"{path}: expected a list of names under {key.decode()!r}")
    return tuple(name.decode() if isinstance(name, bytes) else name for name in names)


def _cifar_batch(path: Path, key: bytes, classes: int) -> tuple[Array, Array]:
    """Images (n, 3, 32, 32) uint8 and labels (n,) int64 of one batch file."""
    content = read_pickle(path)
    data, labels = content.get(b"data"), content.get(key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(data), 3 * SIDE * SIDE):
        raise DataError(f"{path}: expected 'data' as rows of {3 * SIDE * SIDE} uint8, found {_described(data)}")
    if not isinstance(labels, list) or not all(_is_label(label, classes) for label in labels):
        raise DataError(f"{path}: expected {key.decode()!r} as a list of numbers from 0 to {classes - 1}")
    if len(labels) != len(data):
        raise DataError(f"{path}: expected a label for every image, found {len(labels)} for {len(data)}")
    return data.reshape(-1, 3, SIDE, SIDE), np.array(labels, dtype=np.int64)


def _is_label(value: Any, classes: int) -> bool:
    """Whether a value is a class number."""
    return isinstance(value, int | np.integer) and 0 <= int(value) < classes


def _described(value: Any) -> str:
    """What a value is, in a few words."""
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def read_tinyimagenet(folder: Path) -> Decoded:
    """`tiny-imagenet-200`: its labelled validation images are the tests, for the real ones have no labels."""
    wnids = sorted(_lines(folder / "wnids.txt"))
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    words = dict(line.split("\t", 1) for line in _lines(folder / "words.txt") if "\t" in line)
    names = tuple(words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids)

    train = [(path, label_of[wnid]) for wnid in wnids for path in pictures_in(folder / "train" / wnid / "images")]
    annotations = folder / "val" / "val_annotations.txt"
    test = []
    for line in _lines(annotations):
        file, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in label_of:
            raise DataError(f"{annotations}: expected a file name and one of the names in wnids.txt, found {line!r}")
        test.append((folder / "val" / "images" / file, label_of[wnid]))
    return Decoded(*_decode(train, _halved), *_decode(test, _halved), names)


def read_caltech256(folder: Path) -> Decoded:
    """`256_ObjectCategories`: a folder a class, no official split, so that nothing is a test."""
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    pictures = [(path, label) for label, entry in enumerate(classes) for path in pictures_in(entry)]
    names = tuple(entry.name.partition(".")[2] or entry.name for entry in classes)
    return Decoded(*_decode(pictures, centred), *_decode([], centred), names)


def _lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): expected as in the official archive") from None
    return [line for line in text.splitlines() if line.strip()]


def pictures_in(folder: Path, kinds: Container[str] = PICTURES) -> list[Path]:
    """The image files right in a folder; Caltech-256 has others among them, and macOS adds hidden ones."""
    if not folder.is_dir():
        raise DataError(f"{folder} is missing: expected a folder of images")
    visible = [path for path in folder.iterdir() if not path.name.startswith(".")]
    found = [path for path in visible if path.suffix.lower() in kinds and not path.is_dir()]
    if not found:
        raise DataError(f"{folder} holds no images")
    return sorted(found)


def _decode(pictures: Sequence[tuple[Path, int]], fit: Callable[[Image.Image], Image.Image]) -> tuple[Array, Array]:
    """Images (n, 3, 32, 32) and labels (n,) of image files; Pillow decodes outside the interpreter's lock."""
    labels = np.array([label for _, label in pictures], dtype=np.int64)
    images = np.empty((len(pictures), 3, SIDE, SIDE), dtype=np.uint8)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for row, image in enumerate(pool.map(lambda picture: _pixels(picture[0], fit), pictures)):
            images[row] = image
    return images, labels


def _pixels(path: Path, fit: Callable[[Image.Image], Image.Image]) -> Array:
    """One image file as (3, 32, 32) uint8."""
    try:
        with Image.open(path) as image:
            return np.asarray(fit(image.convert("RGB"))).transpose(2, 0, 1)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is not a whole image ({error})") from error


def _halved(image: Image.Image) -> Image.Image:
    """The whole image at 32 pixels: from 64, the mean of every 2 x 2 block."""
    return image.resize((SIDE, SIDE), Image.Resampling.BOX)


def centred(image: Image.Image, size: int = SIDE) -> Image.Image:
    """The largest central square, box-filtered to a size."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.resize((size, size), Image.Resampling.BOX, box=(left, top, left + side, top + side))
