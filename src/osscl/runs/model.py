"""Trained models on disk: saving, loading, predicting."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from osscl.config import from_plain, plain
from osscl.data.folders import named_files, read_images
from osscl.data.images import Array, as_tensor
from osscl.device import pick_device, precision_of
from osscl.errors import OTHER_VERSION, DataError, UserError, as_memory_error, reason_of
from osscl.methods import METHODS, method_class
from osscl.methods.base import Discerning, FeatureExtractor, Method, Runtime, Schedule, Setting
from osscl.metrics import auroc
from osscl.runs.spec import RunSpec, config_from_plain, spec_from_plain, spec_to_plain
from osscl.storage import SUFFIX, read_state, write_state
from osscl.stream.build import Stream
from osscl.vision.augment import Augmentation
from osscl.vision.encoder import ImageFormat


def save_model(folder: Path, agent: Method, setting: Setting, spec: RunSpec, stream: Stream) -> None:
    """Save the agent after the last step, with everything that prediction needs."""
    write_state(folder / "model", entry_of(agent, setting, spec_to_plain(spec), stream.main.class_names))


def entry_of(agent: Method, setting: Setting, made: Mapping[str, Any], class_names: Sequence[str]) -> dict[str, Any]:
    """The contents of a model file; `made` has method, schedule and seed."""
    return {
        "spec": made,
        "images": plain(setting.images),
        "augmentation": plain(setting.augmentation),
        "memory": setting.memory,
        "class_names": list(class_names),
        "method": agent.state(),
    }


def agent_of(saved: Mapping[str, Any], runtime: Runtime, method: type | None = None) -> tuple[Method, Setting, Any]:
    """The agent in a model file, its setting and its config."""
    made = saved["spec"]
    config = config_from_plain(made["method"], getattr(method, "Config", None))
    images, augmentation = from_plain(ImageFormat, saved["images"]), from_plain(Augmentation, saved["augmentation"])
    setting = Setting(images, augmentation, saved["memory"], made["seed"], from_plain(Schedule, made["schedule"]))
    with as_memory_error():
        agent: Method = (method or method_class(config))(config, setting, runtime)
        agent.load_state(saved["method"])
    return agent, setting, config


Files = str | Path | Sequence[str | Path]  # image files, and folders of them


@dataclass(frozen=True)
class Prediction:
    """Predictions for n images, one entry per image."""

    labels: Tensor  # (n,) class ids
    names: tuple[str, ...]
    probabilities: Tensor  # (n,) of the predicted class
    scores: Tensor | None  # (n,) how much it looks like a learned class; None for methods without such a score
    known: Tensor | None  # (n,) bool: the score is above the threshold
    classes: tuple[str, ...] = ()  # columns of `class_probabilities`
    class_probabilities: Tensor | None = None  # (n, k)
    calibrated: bool = False  # whether a score is the share of known images that look less known

    def top(self, number: int) -> list[list[tuple[str, float]]]:
        """The most probable classes of each image with their probabilities, best first."""
        if self.class_probabilities is None:
            return [[(name, p)] for name, p in zip(self.names, self.probabilities.tolist(), strict=True)]
        found = self.class_probabilities.topk(min(number, len(self.classes)), dim=1)
        pairs = zip(found.indices.tolist(), found.values.tolist(), strict=True)
        return [[(self.classes[c], p) for c, p in zip(*pair, strict=True)] for pair in pairs]


@dataclass(frozen=True)
class Evaluation:
    """Predictions, compared with the true classes."""

    prediction: Prediction
    labels: tuple[str, ...]
    learned: Tensor  # (n,) bool: the true class was learned
    right: Tensor  # (n,) bool

    @property
    def accuracy(self) -> float | None:
        """Share of correct predictions among images of learned classes; None without such images."""
        return float(self.right[self.learned].float().mean()) if bool(self.learned.any()) else None

    @property
    def auroc(self) -> float | None:
        """AUROC of the score, learned classes against others; None without scores or with one kind only."""
        return None if self.prediction.scores is None else auroc(self.prediction.scores, self.learned)

    def accuracy_of(self, names: Sequence[str]) -> float | None:
        """What `accuracy` would be with other predicted names."""
        right = [a == b for a, b, known in zip(names, self.labels, self.learned.tolist(), strict=True) if known]
        return sum(right) / len(right) if right else None

    def rows_of(self, label: str) -> Tensor:
        """The images of one true class, (n,) bool."""
        return torch.tensor([one == label for one in self.labels], dtype=torch.bool)

    def confusion(self, true: Sequence[str], predicted: Sequence[str]) -> list[list[int]]:
        """How many images of each of the true classes were predicted as each of the others."""
        counts = Counter(zip(self.labels, self.prediction.names, strict=True))
        return [[counts[one, other] for other in predicted] for one in true]


def compare_with_truth(prediction: Prediction, labels: tuple[str, ...], class_names: Sequence[str]) -> Evaluation:
    """Evaluate the predictions of an agent that has learned `class_names`."""
    if len(labels) != len(prediction.names):
        raise DataError(f"expected one label per image, got {len(labels)} labels for {len(prediction.names)} images")
    learned = torch.tensor([label in class_names for label in labels], dtype=torch.bool)
    pairs = zip(labels, prediction.names, strict=True)
    right = torch.tensor([label == name for label, name in pairs], dtype=torch.bool)
    return Evaluation(prediction, labels, learned, right)


def calibrated_prediction(probabilities: Tensor, scores: Tensor, known: Tensor, classes: tuple[str, ...]) -> Prediction:
    """The prediction of these probabilities (n, k) and calibrated scores (n,)."""
    best = probabilities.max(1)
    names = tuple(classes[c] for c in best.indices.tolist())
    return Prediction(best.indices, names, best.values, scores, known, classes, probabilities, calibrated=True)


def joined(parts: Sequence[Prediction]) -> Prediction:
    """Calibrated predictions of several batches as one."""

    def cat(name: str) -> Any:
        return torch.cat([getattr(part, name) for part in parts])

    names = tuple(name for part in parts for name in part.names)
    numbers = cat("labels"), names, cat("probabilities"), cat("scores"), cat("known")
    return Prediction(*numbers, parts[0].classes, cat("class_probabilities"), calibrated=True)


class Model:
    """The trained model of a run, for prediction."""

    def __init__(self, agent: Method, images: ImageFormat, class_names: Sequence[str], device: torch.device) -> None:
        self.agent, self.images, self.class_names, self.device = agent, images, tuple(class_names), device

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes learned, in order."""
        return tuple(self.class_names[c] for c in self.agent.classes)

    @property
    def threshold(self) -> float | None:
        """The score above which an image is known; None for methods without such a score."""
        return self.agent.known_above if isinstance(self.agent, Discerning) else None

    def read(self, paths: Files) -> Tensor:
        """Read image files and folders as `predict` does: the central square at the model's size."""
        return read_images(named_files(paths) or [], self.images)

    def predict(self, images: Tensor | Array | Files, threshold: float | None = None) -> Prediction:
        """Classify (n, channels, size, size) uint8 images, or image files and folders.

        An image looks known if its score is above `threshold`, by default the model's."""
        files = named_files(images)
        pixels = images if files is None else read_images(files, self.images)
        x = self._checked(as_tensor(pixels))  # type: ignore[arg-type]
        probabilities = self.agent.predict(x).softmax(1).cpu()
        best = probabilities.max(1)
        labels = torch.tensor(self.agent.classes)[best.indices]
        scores = known = None
        if isinstance(self.agent, Discerning) and (own := self.agent.known_above) is not None:
            scores = self.agent.known_scores(x).cpu()
            known = scores > (own if threshold is None else threshold)
        names = tuple(self.class_names[c] for c in labels.tolist())
        return Prediction(labels, names, best.values, scores, known, self.classes, probabilities)

    def features(self, images: Tensor | np.ndarray[Any, Any]) -> Tensor:
        """Features (n, width) in which images of one class, learned or not, are close."""
        if not isinstance(self.agent, FeatureExtractor):
            raise UserError(f"{type(self.agent).__name__} has no features")
        return self.agent.features(self._checked(as_tensor(images))).cpu()

    def _checked(self, x: Tensor) -> Tensor:
        wanted = (self.images.channels, self.images.size, self.images.size)
        if x.dtype != torch.uint8 or tuple(x.shape[1:]) != wanted:
            raise DataError(
                f"images must be uint8 of shape (n, {', '.join(map(str, wanted))}), got {x.dtype} {tuple(x.shape)}"
            )
        return x.to(self.device)


def read_entry(folder: Path, name: str = "model", *, tensors: bool = True) -> dict[str, Any]:
    """Read a model file."""
    file = (folder / name).with_suffix(SUFFIX)
    try:
        saved = read_state(file, tensors=tensors, damaged_as_none=True)
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}): expected the folder of a finished run") from None
    if saved is not None and not isinstance(saved, dict):
        raise DataError(f"{file} is not an osscl file")
    if saved is None and name == "model" and not file.exists() and (folder / f"checkpoint{SUFFIX}").exists():
        raise DataError(f"no model in {folder} yet: run the same command again to resume it")
    if saved is None:
        found = f"{file} is damaged" if file.exists() else f"no model in {folder}"
        raise DataError(f"{found}: expected the folder of a finished run (see `osscl runs`) or of an agent")
    return saved


def read_spec(folder: Path) -> RunSpec:
    """The spec of the model in a run folder."""
    saved = read_entry(folder)
    if "spec" not in saved:
        raise DataError(f"the model in {folder} was written by another program or version")
    if isinstance(saved["spec"], dict) and "scenario" not in saved["spec"]:
        raise DataError(f"{folder} is an agent that learned from your own images: pass images to classify")
    return spec_from_plain(saved["spec"])


def load_model(folder: str | Path, device: str = "auto", *, method: type | None = None) -> Model:
    """Load the model in a run folder. `method` is the class of your own method, with its `Config`."""
    saved = read_entry(Path(folder))
    if "knowledge" in saved:
        raise DataError(f"{folder} is an agent with a pretrained encoder: use osscl.load")
    where = pick_device(device)
    if method is None and (kind := _method_type(saved, folder)) not in METHODS:
        raise DataError(f"{kind!r} is not a method of this package: call osscl.load({str(folder)!r}, method=...)")
    try:
        return _model_of(saved, where, method)
    except OTHER_VERSION as error:
        raise DataError(f"the model in {folder} was written by another version ({reason_of(error)})") from error


def _method_type(saved: Mapping[str, Any], folder: str | Path) -> str:
    try:
        return str(saved["spec"]["method"]["type"])
    except (LookupError, TypeError):
        raise DataError(f"the model in {folder} was written by another version: it names no method") from None


def _model_of(saved: dict[str, Any], where: torch.device, method: type | None) -> Model:
    agent, setting, _ = agent_of(saved, Runtime(where, precision_of(where)), method)
    return Model(agent, setting.images, saved["class_names"], where)


def require_threshold(model: Model, threshold: float | None, folder: Path) -> None:
    """Refuse a threshold that is not a number, or that a method without scores cannot use."""
    if threshold is not None and isnan(threshold):
        raise UserError("--threshold must be a number")
    if threshold is not None and model.threshold is None:
        raise UserError(f"--threshold does not apply: the method of {folder} does not score how known an image looks")
