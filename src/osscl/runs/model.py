"""A trained agent on disk, and the model that one can use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from osscl.config import from_plain, plain
from osscl.data.folders import image_files, read_images
from osscl.data.images import as_tensor
from osscl.device import pick_device, precision_of
from osscl.errors import OTHER_VERSION, DataError, UserError, memory_told
from osscl.methods import METHOD_TYPES, METHODS
from osscl.methods.base import Discerning, Method, Placing, Runtime, Schedule, Setting
from osscl.runs.spec import RunSpec, config_from_plain, spec_from_plain, spec_to_plain
from osscl.storage import SUFFIX, read_state, write_state
from osscl.stream.step import Stream
from osscl.vision.augment import Augmentation
from osscl.vision.encoder import ImageFormat


def save_model(folder: Path, agent: Method, setting: Setting, spec: RunSpec, stream: Stream) -> None:
    """The agent as it is after the last step, with all that predicting needs."""
    write_state(folder / "model", entry_of(agent, setting, spec_to_plain(spec), stream.main.class_names))


def entry_of(agent: Method, setting: Setting, made: Mapping[str, Any], class_names: Sequence[str]) -> dict[str, Any]:
    """What a file holds of an agent; `made` names method, schedule and seed."""
    return {
        "spec": made,
        "images": plain(setting.images),
        "augmentation": plain(setting.augmentation),
        "memory": setting.memory,
        "class_names": list(class_names),
        "method": agent.state(),
    }


def agent_of(saved: Mapping[str, Any], runtime: Runtime, method: type | None = None) -> tuple[Method, Setting, Any]:
    """The agent that such an entry holds, its setting and its config."""
    made = saved["spec"]
    config = config_from_plain(made["method"], getattr(method, "Config", None))
    images, augmentation = from_plain(ImageFormat, saved["images"]), from_plain(Augmentation, saved["augmentation"])
    setting = Setting(images, augmentation, saved["memory"], made["seed"], from_plain(Schedule, made["schedule"]))
    with memory_told():
        agent: Method = (method or METHODS[type(config)])(config, setting, runtime)
        agent.load_state(saved["method"])
    return agent, setting, config


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
        """Image files, and all in folders and below, as `predict` wants them: their central square at this size."""
        given = [paths] if isinstance(paths, str | Path) else paths
        return read_images([file for path in given for file in image_files(Path(path))], self.images)

    def predict(self, images: Tensor | np.ndarray[Any, Any], threshold: float | None = None) -> Prediction:
        """Labels and scores of (n, channels, size, size) uint8 images; known above `threshold`, or the run's own."""
        x = self._checked(as_tensor(images))
        probabilities = self.agent.predict(x).softmax(1).cpu()
        best = probabilities.max(1)
        labels = torch.tensor(self.agent.classes)[best.indices]
        scores = known = None
        if isinstance(self.agent, Discerning) and (own := self.agent.known_above) is not None:
            scores = self.agent.known_scores(x).cpu()
            known = scores > (own if threshold is None else threshold)
        names = tuple(self.class_names[c] for c in labels.tolist())
        return Prediction(labels, names, best.values, scores, known)

    def features(self, images: Tensor | np.ndarray[Any, Any]) -> Tensor:
        """Where images are in a space that tells classes apart, learned or not, (n, width)."""
        if not isinstance(self.agent, Placing):
            raise UserError(f"{type(self.agent).__name__} does not tell where images are in its space")
        return self.agent.features(self._checked(as_tensor(images))).cpu()

    def _checked(self, x: Tensor) -> Tensor:
        wanted = (self.images.channels, self.images.size, self.images.size)
        if x.dtype != torch.uint8 or tuple(x.shape[1:]) != wanted:
            raise DataError(
                f"images must be uint8 of shape (n, {', '.join(map(str, wanted))}), got {x.dtype} {tuple(x.shape)}"
            )
        return x.to(self.device)


def read_entry(folder: Path, name: str = "model", *, tensors: bool = True) -> dict[str, Any]:
    """What a file of an agent holds; one line where it cannot be read."""
    file = (folder / name).with_suffix(SUFFIX)
    try:
        saved = read_state(file, tensors=tensors, damaged_as_none=True)
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}): a finished run's folder is wanted") from None
    if saved is not None and not isinstance(saved, dict):
        raise DataError(f"{file} is of another program")
    if saved is None and name == "model" and not file.exists() and (folder / f"checkpoint{SUFFIX}").exists():
        raise DataError(f"no model in {folder} yet: it was interrupted, and the same command goes on with it")
    if saved is None:
        found = f"{file} is damaged" if file.exists() else f"no model in {folder}"
        raise DataError(f"{found}: a finished run's folder is wanted, as `osscl runs` lists them, or an agent's")
    return saved


def read_spec(folder: Path) -> RunSpec:
    """What made the model in a run folder."""
    saved = read_entry(folder)
    if "spec" not in saved:
        raise DataError(f"the model in {folder} is of another program or version")
    if "scenario" not in saved["spec"]:
        raise DataError(f"{folder} has learned from images of one's own: give images to look at")
    return spec_from_plain(saved["spec"])


def load(folder: str | Path, device: str = "auto", *, method: type | None = None) -> Model:
    """The model that a run folder holds. `method` is the class of a method of your own, with its `Config` in it."""
    saved = read_entry(Path(folder))
    where = pick_device(device)
    kind = saved.get("spec", {}).get("method", {}).get("type")
    if method is None and isinstance(kind, str) and kind not in METHOD_TYPES:
        raise DataError(f"{kind!r} is a method elsewhere: osscl.load({str(folder)!r}, method=...) takes its class")
    try:
        return _made(saved, where, method)
    except OTHER_VERSION as error:
        raise DataError(f"the model in {folder} is of another version ({type(error).__name__}: {error})") from error


def _made(saved: dict[str, Any], where: torch.device, method: type | None) -> Model:
    agent, setting, _ = agent_of(saved, Runtime(where, precision_of(where)), method)
    return Model(agent, setting.images, saved["class_names"], where)


def require_threshold(model: Model, threshold: float | None, folder: Path) -> None:
    """Refuse a threshold that is no number, or that nothing is held against."""
    if threshold is not None and isnan(threshold):
        raise UserError("--threshold must be a number")
    if threshold is not None and model.threshold is None:
        raise UserError(f"--threshold: the method of {folder} does not tell what it knows")
