"""Image files: labelled folders, unlabelled piles, and decoding to one size."""

import contextlib
import functools
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from osscl.data.pictures import heif_opens, shrink_while_decoding
from osscl.data.readers import centred
from osscl.errors import DataError
from osscl.vision.encoder import ImageFormat

LARGEST_SIZE = 1024  # pixels per side
ReadProgress = Callable[[int, int], None]  # (images read, images in total)


def silent(done: int, of: int) -> None:
    pass


@dataclass(frozen=True)
class FileList:
    """Image files, not yet read."""

    files: tuple[Path, ...]
    labels: tuple[str, ...] = ()  # the class of each; empty for unlabelled images
    notes: tuple[str, ...] = ()  # about files that are ignored


@dataclass(frozen=True)
class Pictures:
    """Decoded image files; files that could not be read are listed in `problems`."""

    images: Tensor  # (n, channels, size, size) uint8
    files: tuple[Path, ...]
    labels: tuple[str, ...] = ()  # the class of each; empty for unlabelled images
    problems: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.files)


def load_folder(folder: str | Path, size: int = 32, channels: int = 3, progress: ReadProgress = silent) -> Pictures:
    """Read labelled images from a folder with one folder per class."""
    require_format(size, channels)
    found = list_labeled(Path(folder))
    read, kept, problems = decoded(found.files, size, channels, progress)
    _require_some(kept, problems)
    require_every_class(Path(folder), found, problems)
    label_of = dict(zip(found.files, found.labels, strict=True))
    labels = tuple(label_of[path] for path in kept)
    return Pictures(read, kept, labels, (*found.notes, *problems.values()))


def require_every_class(folder: Path, found: FileList, problems: Mapping[Path, str]) -> None:
    """Require a readable image of every class; `problems` has the reason for each file that cannot be read."""
    pairs = list(zip(found.files, found.labels, strict=True))
    if unreadable := sorted({*found.labels} - {label for file, label in pairs if file not in problems}):
        reason = next(problems[file] for file, label in pairs if label == unreadable[0])
        raise DataError(f"{folder / unreadable[0]} contains no readable image ({reason})")


def list_labeled(root: Path) -> FileList:
    """The images of a folder with one folder per class."""
    entries = _visible(root)
    classes = [entry for entry in entries if entry.is_dir()]
    if not classes:
        raise DataError(f"{root} contains no folders: expected one folder per class")
    notes = [f"{path}: not in a class folder" for path in entries if _looks_like_an_image(path)]
    files: dict[Path, str] = {}
    for entry in classes:
        inside = _visible(entry)
        files |= dict.fromkeys(_images_in(entry, inside), entry.name)
        notes += [f"{inner}: folders inside a class folder are not read" for inner in inside if inner.is_dir()]
        notes += _count_other_files(entry, inside)
    return FileList(tuple(files), tuple(files.values()), tuple(notes))


def no_pictures(size: int, channels: int) -> Pictures:
    """No pictures, in this format."""
    return Pictures(_stacked([], size, channels), ())


def class_folders(folder: Path) -> list[str]:
    """The class names in a folder of class folders."""
    return [entry.name for entry in _visible(folder) if entry.is_dir()]


def load_pictures(
    paths: str | Path | Sequence[str | Path], size: int = 32, channels: int = 3, progress: ReadProgress = silent
) -> Pictures:
    """Read unlabelled images: files, and folders searched recursively."""
    require_format(size, channels)
    found = list_unlabeled(paths)
    read, kept, problems = decoded(found.files, size, channels, progress)
    _require_some(kept, problems)
    return Pictures(read, kept, problems=(*found.notes, *problems.values()))


def list_unlabeled(paths: str | Path | Sequence[str | Path]) -> FileList:
    """All image files given, and those below the folders given, each once."""
    given = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if missing := [path for path in given if not path.exists()]:
        raise DataError(f"{missing[0]} does not exist: expected an image or a folder")
    below = {path: _below(path) for path in given}
    unique: dict[Path, Path] = {}  # by real path: one file may be given under several names
    for path in given:
        for file in _selected(path, below[path]):
            unique.setdefault(file.resolve(), file)
    notes = [note for path in given if path.is_dir() for note in _count_other_files(path, below[path])]
    notes += [f"{x}: broken link or link to a folder, not followed" for x in _unfollowed_links(below.values())]
    return FileList(tuple(unique.values()), notes=tuple(notes))


def require_format(size: int, channels: int) -> None:
    require_size(size)
    if channels not in (1, 3):
        raise DataError(f"channels must be 1 or 3, got {channels!r}")


def require_size(size: int) -> None:
    if type(size) is not int or size % 8 or not 8 <= size <= LARGEST_SIZE:
        raise DataError(f"size must be divisible by 8, from 8 to {LARGEST_SIZE}, got {size!r}")


def _below(path: Path) -> list[Path]:
    """The file itself, or everything below a folder except hidden files."""
    if not path.is_dir():
        return [path]
    parts = [(found, found.relative_to(path).parts) for found in path.rglob("*")]
    return sorted(found for found, inside in parts if not any(part.startswith(".") for part in inside))


def _unfollowed_links(found: Iterable[Sequence[Path]]) -> list[Path]:
    return [path for part in found for path in part if path.is_symlink() and not path.is_file()]


def _count_other_files(place: Path, found: Sequence[Path]) -> list[str]:
    """Notes with the number of files of each kind that cannot be read."""
    kinds = Counter(path.suffix.lower() for path in found if path.is_file() and not _looks_like_an_image(path))
    hint = dict.fromkeys((".heic", ".heif"), ' (pip install "osscl[photos]", or convert to JPEG)')
    return [
        f"{place}: {n} {kind or 'suffixless'} file{'s' * (n > 1)} not read{hint.get(kind, '')}"
        for kind, n in kinds.items()
    ]


def _images_in(entry: Path, inside: Sequence[Path]) -> list[Path]:
    """The images of a class folder; refused if there are none."""
    if images := [path for path in inside if path.suffix.lower() in suffixes() and not path.is_dir()]:
        return images
    if any(path.is_dir() for path in inside):
        raise DataError(f"{entry} contains folders instead of images: give the folder that contains the class folders")
    kinds = sorted({path.suffix.lower() or "no suffix" for path in inside if path.is_file()})
    raise DataError(f"{entry} contains no images{f' (found only {kinds[0]})' if kinds else ''}")


def _require_some(kept: Sequence[Path], problems: Mapping[Path, str]) -> None:
    if not kept:
        first, more = next(iter(problems.values())), f"; none of the {len(problems)} files can be read"
        raise DataError(first + more * (len(problems) > 1))


def _looks_like_an_image(path: Path) -> bool:
    return path.suffix.lower() in suffixes() and path.is_file()


def _visible(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read as a folder: {error.strerror}") from None


def decoded(
    files: Sequence[Path], size: int, channels: int, progress: ReadProgress = silent
) -> tuple[Tensor, tuple[Path, ...], dict[Path, str]]:
    """Decoded rows, their files, and the problem of each other file, read in threads."""

    def try_to_read(file: Path) -> Tensor | str:
        try:
            return read_picture(file, size, channels)
        except DataError as error:
            return str(error)

    found = []
    # Threads suffice: Pillow releases the interpreter lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool, without_warnings_of_pillow():
        for row in pool.map(try_to_read, files):
            found.append(row)
            progress(len(found), len(files))
    rows = [(file, row) for file, row in zip(files, found, strict=True) if isinstance(row, Tensor)]
    problems = {file: row for file, row in zip(files, found, strict=True) if isinstance(row, str)}
    return _stacked([row for _, row in rows], size, channels), tuple(file for file, _ in rows), problems


@functools.cache
def suffixes() -> set[str]:
    """Suffixes of the files that Pillow opens, HEIC included if its plugin is installed."""
    heif_opens()
    return {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}


def image_files(path: Path) -> list[Path]:
    """The file itself, or all images below a folder."""
    return _selected(path, _below(path))


def named_files(images: Any) -> list[Path] | None:
    """The image files that a path or a list of paths names, including those below folders; None for other images."""
    paths = [images] if isinstance(images, str | Path) else images
    if not isinstance(paths, list | tuple) or not paths or not all(isinstance(path, str | Path) for path in paths):
        return None
    return [file for path in paths for file in image_files(Path(path))]


def _selected(path: Path, below: Sequence[Path]) -> list[Path]:
    """A file given explicitly, whatever its suffix; of a folder's files, the images."""
    if not (found := [file for file in below if file == path or _looks_like_an_image(file)]):
        raise DataError(f"{path} contains no images")
    return found


def read_images(paths: Sequence[Path], images: ImageFormat) -> Tensor:
    """Read image files in a model's format."""
    with without_warnings_of_pillow():
        rows = [read_picture(path, images.size, images.channels) for path in paths]
    return _stacked(rows, images.size, images.channels)


@contextlib.contextmanager
def without_warnings_of_pillow() -> Iterator[None]:
    """Large photographs and odd metadata are fine; a picture that cannot be decoded is refused by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", module=r"PIL(\.|$)")
        yield


def _stacked(rows: Sequence[Tensor], size: int, channels: int) -> Tensor:
    return torch.stack([*rows]) if rows else torch.empty(0, channels, size, size, dtype=torch.uint8)


def read_picture(path: Path, size: int, channels: int) -> Tensor:
    """Read one image: upright, on white if transparent, its central square resized with a box filter."""
    square = centred(_picture(path, "L" if channels == 1 else "RGB", size), size)
    return torch.from_numpy(np.array(square).reshape(size, size, -1)).permute(2, 0, 1)


def _picture(path: Path, mode: str, size: int) -> Image.Image:
    """Decode an image upright, at no less than four times `size`."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} cannot be read as an image: not a regular file")  # reading a pipe would block
    try:
        with Image.open(path) as opened:
            if opened.mode[0] not in "IF":
                shrink_while_decoding(opened, 4 * size)
                picture = ImageOps.exif_transpose(opened)
                if picture.has_transparency_data:
                    seen = picture.convert("RGBA")
                    picture = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
                return picture.convert(mode)
    except Image.DecompressionBombError:
        reason = f"it has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels"
    except Exception as error:  # decoders of damaged files raise anything
        reason = getattr(error, "strerror", None) or "it is damaged or not an image"
    else:
        reason = "it has more than 8 bits per channel; convert it to 8"  # convert() clips at 255
    raise DataError(f"{path} cannot be read as an image: {reason}")
