"""Exported agents: run the file that `osscl export --format onnx` writes, with onnxruntime."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from osscl.config import from_plain
from osscl.data.folders import named_files
from osscl.data.images import Array
from osscl.data.pictures import hearing_warnings, read_photo
from osscl.errors import OTHER_VERSION, DamagedFile, DataError, UserError
from osscl.runs.model import Prediction, calibrated_prediction, joined

FORMAT = "osscl agent 2"  # of the metadata in the file
INPUT, OUTPUTS = "pictures", ("probabilities", "known_share", "known")
AT_A_TIME = 32  # pictures per pass, so that memory is bounded
DIGEST, UNSIGNED = "digest", "0" * 32  # metadata: a digest of the file in which these zeros stand for the digest


@dataclass(frozen=True)
class ExportedPreprocessing:
    """What a caller does to a picture before it goes into the graph; normalization and views are inside."""

    size: int  # pixels per side
    crop: bool  # the central square is resized; else the whole picture, whatever its proportions
    resample: int  # Pillow's number

    def apply(self, picture: Image.Image) -> Image.Image:
        """An RGB picture of `size` by `size` pixels."""
        filter, shape = Image.Resampling(self.resample), (self.size, self.size)
        return ImageOps.fit(picture, shape, filter) if self.crop else picture.resize(shape, filter)


@dataclass(frozen=True)
class ExportedDescription:
    """The metadata of an exported file."""

    agent: str  # its id
    osscl: str  # version
    encoder: str
    views: int
    classes: tuple[str, ...]  # columns of the probabilities
    reject: float  # known shares below it count as unknown
    preprocessing: ExportedPreprocessing

    def as_metadata(self) -> dict[str, str]:
        """Text values by name, as ONNX files store them; lists and objects are JSON."""
        found = {key: value if isinstance(value, str) else json.dumps(value) for key, value in asdict(self).items()}
        return {"format": FORMAT, DIGEST: UNSIGNED, **found}

    @classmethod
    def from_metadata(cls, found: dict[str, str]) -> "ExportedDescription":
        text = {"agent", "osscl", "encoder"}
        names = ("agent", "osscl", "encoder", "views", "classes", "reject", "preprocessing")
        return from_plain(cls, {name: found[name] if name in text else json.loads(found[name]) for name in names})


class OnnxModel:
    """An exported agent for prediction."""

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        content = _content(self.file)
        self.session = _session(content, self.file)
        self.description = _description(self.session, self.file)
        _require_sealed(content, self.session.get_modelmeta().custom_metadata_map.get(DIGEST, ""), self.file)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.description.classes

    @property
    def reject(self) -> float:
        return self.description.reject

    def read(self, path: Path) -> Image.Image:
        """An image file as the graph takes it."""
        prepare = self.description.preprocessing
        with hearing_warnings():
            return prepare.apply(read_photo(path, 2 * prepare.size).image)

    def predict(self, images: Any, reject: float | None = None) -> Prediction:
        """Classify image files, folders of them, RGB Pillow images of any size, or uint8 arrays (n, 3, size, size)."""
        if isinstance(images, torch.Tensor | np.ndarray):
            return self._answer(np.asarray(images), reject)
        files, prepare = named_files(images), self.description.preprocessing
        given = images if files is None else files
        return self._answer(
            as_batch([self.read(Path(x)) if isinstance(x, str | Path) else prepare.apply(x) for x in given]), reject
        )

    def predict_files(
        self, files: Sequence[Path], reject: float | None = None
    ) -> tuple[tuple[Prediction, list[Path]] | None, list[str]]:
        """Predictions and the files that could be read, or None if there are none; and the problems of the others."""
        parts, kept, problems = list[Prediction](), list[Path](), list[str]()
        for start in range(0, len(files), AT_A_TIME):
            read = list[Image.Image]()
            for file in files[start : start + AT_A_TIME]:
                try:
                    read.append(self.read(file))
                except DataError as error:
                    problems.append(str(error))
                else:
                    kept.append(file)
            parts += [self._answer(as_batch(read), reject)] if read else []
        return (joined(parts), kept) if parts else None, problems

    def _answer(self, pictures: Array, reject: float | None) -> Prediction:
        size = self.description.preprocessing.size
        if pictures.dtype != np.uint8 or pictures.shape[1:] != (3, size, size):
            raise DataError(f"images must be uint8 (n, 3, {size}, {size}), got {pictures.dtype} {pictures.shape}")
        parts = [self.session.run(OUTPUTS, {INPUT: part}) for part in _parts(pictures)]
        probabilities, share, known = (torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True))
        return calibrated_prediction(probabilities, share, known if reject is None else share >= reject, self.classes)


def as_batch(pictures: Sequence[Image.Image]) -> Array:
    """RGB pictures of one size as uint8 (n, 3, height, width)."""
    if not pictures:
        raise DataError("no images given")
    return np.stack([np.asarray(picture.convert("RGB")) for picture in pictures]).transpose(0, 3, 1, 2)


def _parts(pictures: Array) -> list[Array]:
    starts = range(0, max(len(pictures), 1), AT_A_TIME)
    return [np.ascontiguousarray(pictures[start : start + AT_A_TIME]) for start in starts]


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        raise DataError(f"{file} does not exist, or is not a file: expected one that `osscl export` wrote") from None


def onnxruntime_module() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise UserError('ONNX files need onnxruntime: pip install "osscl[export]"') from None
    return onnxruntime


def seal_onnx(file: Path) -> None:
    """Put a digest of the file into its metadata, which the exporter has left as zeros."""
    content = file.read_bytes()
    file.write_bytes(content.replace(UNSIGNED.encode(), _digest_of(content).encode(), 1))


def _require_sealed(content: bytes, digest: str, file: Path) -> None:
    if len(digest) != len(UNSIGNED) or _digest_of(content.replace(digest.encode(), UNSIGNED.encode(), 1)) != digest:
        raise DamagedFile(f"{file} is damaged: its content is not what was written; export the agent again")


def _digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=len(UNSIGNED) // 2).hexdigest()


def _session(content: bytes, file: Path) -> Any:
    runtime = onnxruntime_module()
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # what is wrong is reported in one line
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each kind of failure, without a common public base
        reason = type(error).__name__
        raise DataError(f"{file} is damaged or not an ONNX file ({reason}): export the agent again") from None


def _description(session: Any, file: Path) -> ExportedDescription:
    found = session.get_modelmeta().custom_metadata_map
    if found.get("format") != FORMAT:
        raise DataError(f"{file} was not written by `osscl export` of this version")
    try:
        return ExportedDescription.from_metadata(found)
    except OTHER_VERSION as error:
        raise DataError(f"{file} was not written by `osscl export` ({type(error).__name__}: {error})") from None
