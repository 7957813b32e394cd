"""A trained agent on disk, and the model that one can use."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from osscl.data.readers import centred, pictures_in
from osscl.device import pick_device, precision_of
from osscl.errors import DataError, SpecError
from osscl.experiments.spec import RunSpec, spec_from_plain, spec_to_plain
from osscl.frozen import from_plain, plain
from osscl.methods import METHOD_TYPES, METHODS
from osscl.methods.method import Discerning, Method, Runtime, Setting
from osscl.stored import SUFFIX, read_state, write_state
from osscl.stream.step import Stream
from osscl.vision.augment import Augmentation
from osscl.vision.encoder import ImageFormat


def save_model(folder: Path, agent: Method, setting: Setting, spec: RunSpec, stream: Stream) -> None:
    """The agent as it is after the last step, with all that predicting needs."""
    entry = {
        "spec": spec_to_plain(spec),
        "images": plain(setting.images),
        "augmentation": plain(setting.augmentation),
        "memory": setting.memory,
        "class_names": list(stream.main.class_names),
        "method": agent.state(),
    }
    write_state(folder / "model", entry)


@dataclass(frozen=True)
class Prediction:
    """One entry an image."""

    labels: Tensor  # (n,) class ids
    names: tuple[str, ...]
    probabilities: Tensor  # (n,) of the class named
    scores: Tensor | None  # (n,) how much it looks like a class learned; None for methods that do not tell
    known: Tensor | None  # (n,) bool: the score is above the threshold; else the image looks like nothing learned


class Model:
    """What a run ends in."""

    def __init__(self, agent: Method, images: ImageFormat, class_names: Sequence[str], device: torch.device) -> None:
        self.agent, self.images, self.class_names, self.device = agent, images, tuple(class_names), device

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes learned, in the order in which they were met."""
        return tuple(self.class_names[c] for c in self.agent.classes)

    @property
    def threshold(self) -> float | None:
        """The score above which an image looks known, as the last step set it; None where the method does not tell."""
        return self.agent.known_above if isinstance(self.agent, Discerning) else None

    def read(self, paths: str | Path | Sequence[str | Path]) -> Tensor:
        """Image files, and those right in folders, as `predict` wants them: their central square at this size."""
        given = [paths] if isinstance(paths, str | Path) else paths
        return read_images([file for path in given for file in image_files(Path(path))], self.images)

    def predict(self, images: Tensor | np.ndarray[Any, Any], threshold: float | None = None) -> Prediction:
        """Labels and scores of (n, channels, size, size) uint8 images; known above `threshold`, or the run's own."""
        x = self._checked(torch.as_tensor(images))
        probabilities = self.agent.predict(x).softmax(1).cpu()
        best = probabilities.max(1)
        labels = torch.tensor(self.agent.classes)[best.indices]
        scores = known = None
        if isinstance(self.agent, Discerning) and (own := self.agent.known_above) is not None:
            scores = self.agent.known_scores(x).cpu()
            known = scores > (own if threshold is None else threshold)
        names = tuple(self.class_names[c] for c in labels.tolist())
        return Prediction(labels, names, best.values, scores, known)

    def _checked(self, x: Tensor) -> Tensor:
        wanted = (self.images.channels, self.images.size, self.images.size)
        if x.dtype != torch.uint8 or tuple(x.shape[1:]) != wanted:
            raise DataError(
                f"images must be uint8 of shape (n, {', '.join(map(str, wanted))}), got {x.dtype} {tuple(x.shape)}"
            )
        return x.to(self.device)


def _read(folder: Path) -> dict[str, Any]:
    file = (folder / "model").with_suffix(SUFFIX)
    try:
        saved = read_state(file)
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}): a finished run's folder is wanted") from None
    if saved is None:
        found = f"{file} is damaged" if file.exists() else f"no model in {folder}"
        raise DataError(f"{found}: a finished run's folder is wanted, as `osscl runs` lists them")
    return saved


def read_spec(folder: Path) -> RunSpec:
    """What made the model in a run folder."""
    saved = _read(folder)
    if not isinstance(saved, dict) or "spec" not in saved:
        raise DataError(f"the model in {folder} is of another program or version")
    return spec_from_plain(saved["spec"])


def load(folder: str | Path, device: str = "auto", *, method: type | None = None) -> Model:
    """The model that a run folder holds. `method` is the class of a method of your own, with its `Config` in it."""
    saved = _read(Path(folder))
    where = pick_device(device)
    kind = saved.get("spec", {}).get("method", {}).get("type")
    if method is None and isinstance(kind, str) and kind not in METHOD_TYPES:
        raise DataError(f"{kind!r} is a method elsewhere: osscl.load({str(folder)!r}, method=...) takes its class")
    try:
        return _made(saved, where, method)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, SpecError) as error:
        raise DataError(f"the model in {folder} is of another version ({type(error).__name__}: {error})") from error


def _made(saved: dict[str, Any], where: torch.device, method: type | None) -> Model:
    spec = spec_from_plain(saved["spec"], getattr(method, "Config", None))
    images = from_plain(ImageFormat, saved["images"])
    setting = Setting(
        images, from_plain(Augmentation, saved["augmentation"]), saved["memory"], spec.seed, spec.schedule
    )
    agent = (method or METHODS[type(spec.method)])(spec.method, setting, Runtime(where, precision_of(where)))
    agent.load_state(saved["method"])
    return Model(agent, images, saved["class_names"], where)


def image_files(path: Path) -> list[Path]:
    """The files that are meant: a folder stands for the images right in it."""
    if not path.is_dir():
        return [path]
    return pictures_in(path, {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN})


def read_images(paths: Sequence[Path], images: ImageFormat) -> Tensor:
    """Image files in a model's format: upright, on white where they are clear, cropped to the central square,
    box-filtered to its size."""
    rows = []
    for path in paths:
        square = centred(_picture(path, "L" if images.channels == 1 else "RGB"), images.size)
        rows.append(torch.from_numpy(np.array(square).reshape(images.size, images.size, -1)).permute(2, 0, 1))
    return torch.stack(rows) if rows else torch.empty(0, images.channels, images.size, images.size, dtype=torch.uint8)


def _picture(path: Path, mode: str) -> Image.Image:
    """An image as one sees it; one line where it cannot be."""
    try:
        with Image.open(path) as opened:
            if opened.mode[0] not in "IF":
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
