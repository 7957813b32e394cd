"""Vision models in Hugging Face layout as frozen encoders; `transformers` builds only the network.

The embedding is the model's `pooler_output` where it has one (for a ViT the projected class token, for DINOv2 and
DINOv3 the class token, for SigLIP its attention pooling, for ConvNeXt the mean over positions). A model without one, or
whose weights do not contain its pooler, is read from its last hidden state: the class token where there is one, else
the mean over tokens or positions.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osscl.errors import DataError, UserError
from osscl.vision.preprocessing import CONFIG, preprocessing_in
from osscl.vision.pretrained import FrozenEncoder

WEIGHTS = "*.safetensors"  # nothing is ever unpickled
FILES = ("config.json", CONFIG, "*.safetensors", "*.safetensors.index.json")
NOT_CONTENT = ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "architectures")


def hub_encoder(model: str, device: torch.device) -> FrozenEncoder:
    """A model of the hub, downloaded once into Hugging Face's cache."""
    return folder_encoder(_downloaded(model), device, name=model)


def model_files(name: str) -> list[Path]:
    """The files of a model in a folder, or of one on the hub."""
    folder = Path(name) if Path(name).is_dir() else _downloaded(name)
    return sorted({file for pattern in FILES for file in folder.glob(pattern)})


def _downloaded(model: str) -> Path:
    _transformers()
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(model, allow_patterns=list(FILES)))
    except Exception as error:  # no network, no such model, no access: there are many types
        raise UserError(
            f"cannot get {model!r} from the Hugging Face hub ({_first_line(error)}); a folder with the model works too"
        ) from None


def folder_encoder(folder: Path, device: torch.device, name: str | None = None) -> FrozenEncoder:
    """A model in a folder, without network access."""
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder} has no config.json: expected a model in Hugging Face layout")
    config, kind = _architecture(folder)
    preprocessing = preprocessing_in(folder)
    if not any(folder.glob(WEIGHTS)):
        raise DataError(f"{folder} has no {WEIGHTS}: only weights in this format are read; others can run code")
    model, pooled = _load(folder, config, kind)
    model.to(device)
    try:
        return FrozenEncoder(
            name or str(folder.resolve()), preprocessing, PooledOutput(model, pooled), content_of(folder), device
        )
    except (ValueError, RuntimeError) as error:  # of a forward pass on a picture of this size
        height, width = preprocessing.shape
        reason = _first_line(error)
        raise DataError(f"{folder} does not accept the {height}x{width} pictures of its {CONFIG}: {reason}") from None


def content_of(folder: Path) -> str:
    """A hash of the weights and of the settings that change what they compute."""
    digest = hashlib.sha256()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kept = {key: value for key, value in config.items() if key not in NOT_CONTENT}
    digest.update(json.dumps(kept, sort_keys=True).encode())
    for path in sorted(folder.glob(WEIGHTS)):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _architecture(folder: Path) -> tuple[Any, Any]:
    """The settings and the class of an image model; for a model of images and text, those of its image part."""
    transformers = _transformers()
    try:
        with _quietly(transformers):
            config = transformers.AutoConfig.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # an unknown type, not JSON, impossible settings
        raise DataError(f"{folder}/config.json cannot be used: {_first_line(error)}") from None
    config = getattr(config, "vision_config", config)
    kind = transformers.models.auto.modeling_auto.MODEL_MAPPING.get(type(config), None)
    if isinstance(kind, tuple | list):
        kind = kind[0]
    if kind is None or kind.main_input_name != "pixel_values":
        raise DataError(f"{folder} holds a model of type {config.model_type!r}, which is not an image encoder")
    return config, kind


def _load(folder: Path, config: Any, kind: Any) -> tuple[Any, bool]:
    """The network with its weights, and whether its pooler has been trained."""
    try:
        with _quietly(_transformers()):
            model, info = kind.from_pretrained(
                str(folder), config=config, output_loading_info=True, use_safetensors=True, local_files_only=True,
                dtype=torch.float32, ignore_mismatched_sizes=True,
            )  # fmt: skip
    except Exception as error:  # shapes that differ, damaged files, impossible settings: there are many types
        raise DataError(f"{folder}: the weights do not fit its config.json ({_first_line(error)})") from None
    missing, different = sorted(info["missing_keys"]), sorted(str(key[0]) for key in info["mismatched_keys"])
    absent = [key for key in missing if "pooler" not in key.split(".")]
    for keys, problem in ((absent, "are missing"), (different, "have another shape")):
        if keys:  # transformers would continue with random values
            raise DataError(
                f"{folder}: the weights do not fit its config.json ({len(keys)} {problem}, first {keys[0]})"
            )
    return model.eval().requires_grad_(False), not missing


class PooledOutput(nn.Module):
    """The embedding that a model computes from normalized pixels; see the top of this file."""

    def __init__(self, model: Any, pooled: bool) -> None:
        super().__init__()
        self.model, self.pooled = model, pooled
        self.has_class_token = any(name.endswith("cls_token") for name, _ in model.named_parameters())

    def forward(self, pixels: Tensor) -> Tensor:
        output = self.model(pixel_values=pixels)
        pooler_output: Tensor | None = getattr(output, "pooler_output", None)
        if self.pooled and pooler_output is not None:
            return pooler_output.flatten(1)
        hidden: Tensor = output.last_hidden_state
        if hidden.ndim == 4:
            return hidden.mean((2, 3))
        return hidden[:, 0] if self.has_class_token else hidden.mean(1)


def _transformers() -> Any:
    try:
        import transformers
        import transformers.models.auto.modeling_auto
    except ImportError as error:
        if getattr(error, "name", None) not in ("transformers", None):
            raise UserError(
                f'transformers cannot be imported ({_first_line(error)}): pip install "osscl[hub]"'
            ) from None
        raise UserError('models in Hugging Face layout need transformers: pip install "osscl[hub]"') from None
    return transformers


@contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """Silence the load report; its findings are checked and reported in one line."""
    log = transformers.utils.logging
    before, bar = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(log.CRITICAL)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(before)
        if bar:
            log.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]
