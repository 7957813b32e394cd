"""`osscl.load`: any trained model for prediction, from a run, an agent, or an export."""

from pathlib import Path

from osscl.agent.classifier import ContinualClassifier
from osscl.agent.hub_export import exported_config, require_export
from osscl.agent.onnx_model import OnnxModel
from osscl.agent.photos import PhotoModel
from osscl.runs.model import Model, load_model, read_entry


def load(path: str | Path, device: str = "auto", *, method: type | None = None) -> Model | PhotoModel | OnnxModel:
    """Load a trained model; `predict` then takes images and returns a `Prediction`.

    Args:
        path: the folder of a run, of an agent, or of `osscl export --format hub`; or an exported .onnx file.
        device: "auto", "cpu" or "cuda"; an .onnx file runs on the CPU.
        method: the class of your own method, with its `Config`, for the folder of a run.
    """
    place = Path(path)
    if place.suffix == ".onnx" or place.is_file():
        return OnnxModel(place)
    photos = photo_model(place, device)
    return load_model(place, device, method=method) if photos is None else photos


def photo_model(folder: Path, device: str) -> PhotoModel | None:
    """The model of an agent with a pretrained encoder; None for other models."""
    exported_config(folder)  # those of other programs are refused
    entry = read_entry(folder, tensors=False)
    if "knowledge" not in entry:
        return None
    require_export(folder, entry)
    found = ContinualClassifier.load(folder, device, finished=True).model
    assert isinstance(found, PhotoModel)
    return found
