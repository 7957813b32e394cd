"""From a picture of any size to an encoder's pixels: resize, crop, fixed views, normalization."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from osscl.errors import DataError, SpecError

CONFIG = "preprocessor_config.json"  # as Hugging Face's image processors write it
VERSION = 1  # of what this file and data/pictures.py do to a photograph; part of an encoder's content hash
ZOOM = 0.8  # share of each side that the close views keep
CONVNEXT_CROPS_BELOW = 384  # from this size on, ConvNeXt's processor squashes instead of cropping

# `views=k` means the first k: the share of each side that is kept (None: all of it, letterboxed), and whether flipped.
# Another scale comes before the mirror image, which networks trained with flips hardly distinguish from the picture.
VIEWS = ((1.0, False), (ZOOM, False), (1.0, True), (ZOOM, True), (None, False), (None, True))


@dataclass(frozen=True)
class Preprocessing:
    """How pictures become the uint8 pixels, and these the floats, that an encoder was trained on."""

    shape: tuple[int, int]  # height and width of the result
    shortest_edge: int | None  # resize to it, then crop the center; None squashes the picture to `shape`
    resample: int  # Pillow's number
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 1 / 255

    @property
    def decode_size(self) -> int:
        """The shortest side worth decoding: twice what is kept, so that the resampling filter decides."""
        return 2 * max(*self.shape, self.shortest_edge or 0)

    def at_size(self, pixels: int) -> "Preprocessing":
        """The same for square results of another size; the same part of a picture's border is cropped."""
        edge = self.shortest_edge and round(self.shortest_edge * pixels / max(self.shape))
        return replace(self, shape=(pixels, pixels), shortest_edge=edge)

    def apply(self, picture: Image.Image, views: int = 1) -> Tensor:
        """The first views of an RGB picture, uint8 (views, 3, height, width)."""
        require_views(views)
        made: dict[float | None, Image.Image] = {}
        rows = []
        for share, flipped in VIEWS[:views]:
            view = made.get(share) or made.setdefault(share, self._view(picture, share))
            row = np.asarray(view).transpose(2, 0, 1)
            rows.append(row[:, :, ::-1] if flipped else row)
        return torch.from_numpy(np.stack(rows))  # stacked by NumPy: torch would wake all its threads for a copy

    def normalize(self, pixels: Tensor) -> Tensor:
        """Float32 in the encoder's range."""
        mean = torch.tensor(self.mean, device=pixels.device).view(1, -1, 1, 1)
        std = torch.tensor(self.std, device=pixels.device).view(1, -1, 1, 1)
        return (pixels.float() * self.scale - mean) / std

    def content(self) -> bytes:
        """What a content hash covers."""
        return json.dumps({"version": VERSION, "views": VIEWS, **asdict(self)}, sort_keys=True).encode()

    def _view(self, picture: Image.Image, share: float | None) -> Image.Image:
        """One view: the central part that is kept, in one resampling."""
        if share is None:
            return self._letterboxed(picture)
        return self._resized(picture, (self.shape[1], self.shape[0]), self.kept(picture.size, share))

    def kept(self, size: tuple[int, int], share: float) -> tuple[float, float, float, float]:
        """The part of a picture of this width and height that a view shows: left, top, right, bottom."""
        width, height = size
        if self.shortest_edge is None:
            wide, high = width * share, height * share
        else:
            scale = share * min(width, height) / self.shortest_edge  # pixels of the picture for one of the result
            wide, high = min(width, scale * self.shape[1]), min(height, scale * self.shape[0])
        left, top = (width - wide) / 2, (height - high) / 2
        return left, top, left + wide, top + high

    def _letterboxed(self, picture: Image.Image) -> Image.Image:
        """The whole picture with its proportions kept, on the encoder's mean color."""
        height, width = self.shape
        share = min(width / picture.width, height / picture.height)
        size = max(1, round(picture.width * share)), max(1, round(picture.height * share))
        color = [min(255, max(0, round(value / self.scale))) for value in self.mean]
        canvas = Image.new("RGB", (width, height), tuple(color))
        canvas.paste(
            self._resized(picture, size, (0.0, 0.0, float(picture.width), float(picture.height))),
            ((width - size[0]) // 2, (height - size[1]) // 2),
        )
        return canvas

    def _resized(
        self, picture: Image.Image, size: tuple[int, int], box: tuple[float, float, float, float]
    ) -> Image.Image:
        return picture.resize(size, Image.Resampling(self.resample), box, reducing_gap=3.0)


def require_views(views: int) -> None:
    if type(views) is not int or not 1 <= views <= len(VIEWS):
        raise SpecError(f"views must be from 1 to {len(VIEWS)}, got {views!r}")


def preprocessing_in(folder: Path) -> Preprocessing:
    """Read a Hugging Face model folder's `preprocessor_config.json`, without its image processor class.

    Those classes import torchvision for some models; the file describes everything that they do.
    """
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{folder} has no {CONFIG}: it describes how pictures are prepared; download it with the model"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    try:
        return preprocessing_of(config)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def preprocessing_of(config: Any) -> Preprocessing:
    """The preprocessing that a Hugging Face image processor's settings describe; unknown settings are refused."""
    if not isinstance(config, dict):
        raise DataError("expected an object with settings")
    for setting in ("do_pad", "rescale_offset", "do_flip_channel_order", "do_reduce_labels"):
        if config.get(setting):
            raise DataError(f"{setting} is not supported")
    if config.get("do_resize") is False:
        raise DataError("do_resize is false, but an encoder needs pictures of one size")
    shape, shortest_edge = _geometry(config)
    normalizes = config.get("do_normalize") is not False
    resample = _setting(config, "resample")
    if resample not in [filter.value for filter in Image.Resampling]:
        raise DataError(f"resample must be one of Pillow's filters, 0 to 5, got {resample!r}")
    return Preprocessing(
        shape=shape,
        shortest_edge=shortest_edge,
        resample=int(resample),
        mean=_triple(config, "image_mean") if normalizes else (0.0, 0.0, 0.0),
        std=_triple(config, "image_std") if normalizes else (1.0, 1.0, 1.0),
        scale=float(config.get("rescale_factor") or 1 / 255) if config.get("do_rescale") is not False else 1.0,
    )


def _geometry(config: Mapping[str, Any]) -> tuple[tuple[int, int], int | None]:
    """The shape of the result, and the shortest edge before the crop; None where the picture is squashed."""
    size = _setting(config, "size")
    crops = bool(config.get("do_center_crop", config.get("crop_size") is not None))
    edge = size.get("shortest_edge") if isinstance(size, dict) else size
    if isinstance(size, dict) and {"height", "width"} <= size.keys():
        resized = _pixels(size["height"], "size"), _pixels(size["width"], "size")
        if not crops:
            return resized, None
        crop = _square(_setting(config, "crop_size"), "crop_size")
        if crop != resized:
            raise DataError("size with height and width and a smaller crop_size are not supported together")
        return crop, None
    if edge is None:
        raise DataError(f"size must have height and width, or shortest_edge, got {size!r}")
    edge = _pixels(edge, "size")
    if config.get("crop_pct") is not None:  # ConvNeXt: `size` is what is left after the crop
        share = float(config["crop_pct"])
        return (edge, edge), int(edge / share) if edge < CONVNEXT_CROPS_BELOW else None
    if crops:
        crop = _square(_setting(config, "crop_size"), "crop_size")
        if max(crop) > edge:
            raise DataError(f"crop_size {max(crop)} is larger than size {edge}")
        return crop, edge
    # A bare number is a square for the models whose processors do not crop; a shortest edge alone leaves pictures of
    # several shapes, and their central square is taken.
    return (edge, edge), edge if isinstance(size, dict) else None


def _square(value: Any, name: str) -> tuple[int, int]:
    if isinstance(value, dict):
        return _pixels(value.get("height"), name), _pixels(value.get("width"), name)
    return _pixels(value, name), _pixels(value, name)


def _pixels(value: Any, name: str) -> int:
    if type(value) is not int or not 8 <= value <= 4096:
        raise DataError(f"{name} must be a whole number of pixels from 8 to 4096, got {value!r}")
    return value


def _triple(config: Mapping[str, Any], name: str) -> tuple[float, ...]:
    value = _setting(config, name)
    values = [value] * 3 if isinstance(value, int | float) else value
    if not isinstance(values, list) or len(values) != 3 or not all(isinstance(x, int | float) for x in values):
        raise DataError(f"{name} must be three numbers, got {value!r}")
    return tuple(float(x) for x in values)


def _setting(config: Mapping[str, Any], name: str) -> Any:
    if config.get(name) is None:
        raise DataError(f"{name} is missing")
    return config[name]
