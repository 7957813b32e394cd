"""One's own images: a folder a class, and pictures that nobody has named."""

import functools
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from osscl.data.readers import centred
from osscl.errors import DataError
from osscl.vision.encoder import ImageFormat

LARGEST = 1024  # pixels a side
Counted = Callable[[int, int], None]  # told how many of how many are read


def _quietly(read: int, of: int) -> None:
    pass


@dataclass(frozen=True)
class Pictures:
    """Image files as rows of one tensor; what could not be read is told, and left out."""

    images: Tensor  # (n, channels, size, size) uint8
    files: tuple[Path, ...]
    labels: tuple[str, ...] = ()  # the class of each; none where nobody has named them
    problems: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.files)


def load_folder(folder: str | Path, size: int = 32, channels: int = 3, progress: Counted = _quietly) -> Pictures:
    """Labelled images: a folder of folders, each named as the class of the images right in it."""
    require_format(size, channels)
    root = Path(folder)
    entries = _visible(root)
    classes = [entry for entry in entries if entry.is_dir()]
    if not classes:
        raise DataError(f"{root} has no folders in it: expected one for each class, named as the class is")
    told = [f"{path}: it is in no class's folder" for path in entries if _looks_like_an_image(path)]
    files: dict[Path, str] = {}
    for entry in classes:
        inside = _visible(entry)
        files |= dict.fromkeys(_images_in(entry, inside), entry.name)
        told += [f"{inner}: a folder in a class's folder is not looked into" for inner in inside if inner.is_dir()]
        told += _of_other_kinds(entry, inside)
    read, kept, problems = decoded([*files], size, channels, progress)
    _require_some(kept, problems)
    labels = tuple(files[path] for path in kept)
    if lost := [entry for entry in classes if entry.name not in labels]:
        raise DataError(f"{lost[0]} holds no image that can be read")
    return Pictures(read, kept, labels, (*told, *problems))


def no_pictures(size: int, channels: int) -> Pictures:
    """None at all, in a format."""
    return Pictures(_stacked([], size, channels), ())


def class_folders(folder: Path) -> list[str]:
    """The names of the classes that a folder of folders holds."""
    return [entry.name for entry in _visible(folder) if entry.is_dir()]


def load_pictures(
    paths: str | Path | Sequence[str | Path], size: int = 32, channels: int = 3, progress: Counted = _quietly
) -> Pictures:
    """Images without labels: files, and all images in folders and below them."""
    require_format(size, channels)
    given = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if missing := [path for path in given if not path.exists()]:
        raise DataError(f"{missing[0]} does not exist: expected an image, or a folder of them")
    below = {path: _below(path) for path in given}
    met: dict[Path, Path] = {}  # by where it really is: one picture may be given by several names
    for path in given:
        for file in _meant(path, below[path]):
            met.setdefault(file.resolve(), file)
    files = [*met.values()]
    told = [words for path in given if path.is_dir() for words in _of_other_kinds(path, below[path])]
    told += [f"{x}: a link that leads nowhere or to a folder, not followed" for x in _links(below.values())]
    read, kept, problems = decoded(files, size, channels, progress)
    _require_some(kept, problems)
    return Pictures(read, kept, problems=(*told, *problems))


def require_format(size: int, channels: int) -> None:
    require_size(size)
    if channels not in (1, 3):
        raise DataError(f"channels must be 1 or 3, got {channels!r}")


def require_size(size: int) -> None:
    if type(size) is not int or size % 8 or not 8 <= size <= LARGEST:
        raise DataError(f"size must be divisible by 8, from 8 to {LARGEST}, got {size!r}")


def _below(path: Path) -> list[Path]:
    """A file itself; of a folder all files in it and below, but for hidden ones."""
    if not path.is_dir():
        return [path]
    parts = [(found, found.relative_to(path).parts) for found in path.rglob("*")]
    return sorted(found for found, inside in parts if not any(part.startswith(".") for part in inside))


def _links(found: Iterable[Sequence[Path]]) -> list[Path]:
    return [path for part in found for path in part if path.is_symlink() and not path.is_file()]


def _of_other_kinds(place: Path, found: Sequence[Path]) -> list[str]:
    """How many files are there that nothing here reads, by kind; a photograph may be among them."""
    kinds = Counter(path.suffix.lower() for path in found if path.is_file() and not _looks_like_an_image(path))
    return [f"{place}: {n} file{'s' * (n > 1)} {kind or 'without a suffix'}, not read" for kind, n in kinds.items()]


def _images_in(entry: Path, inside: Sequence[Path]) -> list[Path]:
    """Those of a class; one line that says what is there in their place."""
    if images := [path for path in inside if path.suffix.lower() in suffixes() and not path.is_dir()]:
        return images
    if any(path.is_dir() for path in inside):
        raise DataError(f"{entry} holds folders and no images: give the folder whose folders are the classes")
    others = [words.partition(": ")[2] for words in _of_other_kinds(entry, inside)]
    raise DataError(f"{entry} holds no images{f' ({others[0]})' if others else ''}")


def _require_some(kept: Sequence[Path], problems: Sequence[str]) -> None:
    if not kept:
        raise DataError(f"{problems[0]}; so it is with all of {len(problems)} files" if problems[1:] else problems[0])


def _looks_like_an_image(path: Path) -> bool:
    return path.suffix.lower() in suffixes() and path.is_file()


def _visible(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read as a folder: {error.strerror}") from None


def decoded(
    files: Sequence[Path], size: int, channels: int, progress: Counted = _quietly
) -> tuple[Tensor, tuple[Path, ...], tuple[str, ...]]:
    """Rows, their files, and what is wrong with the others; Pillow decodes outside the interpreter's lock."""

    def tried(file: Path) -> Tensor | str:
        try:
            return read_picture(file, size, channels)
        except DataError as error:
            return str(error)

    found = []
    with ThreadPoolExecutor(os.cpu_count()) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # large, and one's own
        for row in pool.map(tried, files):
            found.append(row)
            progress(len(found), len(files))
    rows = [(file, row) for file, row in zip(files, found, strict=True) if isinstance(row, Tensor)]
    problems = tuple(row for row in found if isinstance(row, str))
    return _stacked([row for _, row in rows], size, channels), tuple(file for file, _ in rows), problems


@functools.cache
def suffixes() -> set[str]:
    """Of the files that Pillow opens."""
    return {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}


def image_files(path: Path) -> list[Path]:
    """The files that are meant: a folder stands for all images in it and below."""
    return _meant(path, _below(path))


def _meant(path: Path, below: Sequence[Path]) -> list[Path]:
    """A file that was given itself, whatever it is; of what is below a folder, the images."""
    if not (found := [file for file in below if file == path or _looks_like_an_image(file)]):
        raise DataError(f"{path} holds no images")
    return found


def read_images(paths: Sequence[Path], images: ImageFormat) -> Tensor:
    """Image files in a model's format."""
    return _stacked([read_picture(path, images.size, images.channels) for path in paths], images.size, images.channels)


def _stacked(rows: Sequence[Tensor], size: int, channels: int) -> Tensor:
    return torch.stack([*rows]) if rows else torch.empty(0, channels, size, size, dtype=torch.uint8)


def read_picture(path: Path, size: int, channels: int) -> Tensor:
    """One image file: upright, on white where it is clear, cropped to the central square, box-filtered to its size."""
    square = centred(_picture(path, "L" if channels == 1 else "RGB", size), size)
    return torch.from_numpy(np.array(square).reshape(size, size, -1)).permute(2, 0, 1)


def _shrink_while_decoding(opened: Image.Image, least: int) -> None:
    """JPEGs can be decoded at a half, a quarter or an eighth: a photograph of 12 megapixels in a sixth of the time."""
    share = least / max(1, min(opened.size))
    if share < 1:
        opened.draft(None, (math.ceil(opened.width * share), math.ceil(opened.height * share)))


def _picture(path: Path, mode: str, size: int) -> Image.Image:
    """An image as one sees it, at least four times as large as `size` if it was; one line where it cannot be."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} cannot be read as an image: it is no file")  # a pipe would be waited for
    try:
        with Image.open(path) as opened:
            if opened.mode[0] not in "IF":
                _shrink_while_decoding(opened, 4 * size)
                picture = ImageOps.exif_transpose(opened)
                if picture.has_transparency_data:
                    seen = picture.convert("RGBA")
                    picture = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
                return picture.convert(mode)
    except Image.DecompressionBombError:
        reason = f"it has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels"
    except Exception as error:  # decoders of damaged files raise whatever they come upon
        reason = getattr(error, "strerror", None) or "it is damaged, or no image"
    else:
        reason = "it has more than 8 bits a channel, convert it to 8"  # convert() cuts off at 255
    raise DataError(f"{path} cannot be read as an image: {reason}")
