"""Export an agent as one ONNX file, which is checked against the agent before it appears."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from osscl import __version__
from osscl.agent.exported_graph import PhotoGraph, exported_size
from osscl.agent.hub_export import public_name
from osscl.agent.onnx_model import (
    INPUT,
    OUTPUTS,
    ExportedDescription,
    ExportedPreprocessing,
    OnnxModel,
    as_batch,
    onnxruntime_module,
    seal_onnx,
)
from osscl.agent.photos import PhotoModel
from osscl.data.demo_photos import KINDS, draw_picture
from osscl.data.pictures import hearing_warnings, read_photo
from osscl.errors import UserError
from osscl.storage import atomic_write, refuse_to_overwrite
from osscl.vision.pretrained import FrozenEncoder

CHECKED = 200  # pictures
TOLERANCE = 1e-3  # of probabilities and known shares


@dataclass(frozen=True)
class Agreement:
    """How the exported graph compares with the agent on the same pictures."""

    pictures: int
    difference: float  # largest, of probabilities and known shares
    decisions: int  # pictures that one calls known and the other unknown


def require_exporters() -> None:
    """Refuse early if a package that the export needs is missing."""
    onnxruntime_module()
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f'ONNX export needs {error.name}: pip install "osscl[export]"') from None
    del onnx


def export_onnx(model: PhotoModel, agent: str, out: Path, files: Sequence[Path] = ()) -> Agreement:
    """Write an agent as one graph; refuse a graph that does not answer as the agent does.

    Args:
        model: an agent for prediction, on the CPU.
        agent: its id, for the metadata.
        out: a file that does not exist.
        files: pictures to check the graph on; drawn ones make up the rest of 200.
    """
    refuse_to_overwrite(out)
    require_exporters()
    with contextlib.ExitStack() as stack:
        try:
            draft = stack.enter_context(atomic_write(out))
            draft.touch()
        except OSError as error:  # refused before the work starts
            raise UserError(f"{out} cannot be written: {error.strerror}") from None
        description = _describe(model, agent)
        _write_graph(model, description, draft)
        exported = OnnxModel(draft)
        agreement = measure_agreement(model, exported, _check_pictures(exported, files))
        if agreement.decisions or not agreement.difference <= TOLERANCE:
            raise UserError(
                f"not exported: on {agreement.pictures} pictures the graph differs from the agent by up to "
                f"{agreement.difference:.2g} and in {agreement.decisions} decisions; the limits are {TOLERANCE:g} and 0"
            )
        refuse_to_overwrite(out)  # it may have been created meanwhile
    return agreement


def _describe(model: PhotoModel, agent: str) -> ExportedDescription:
    encoder, views = model.learner.encoder.encoder, model.learner.encoder.views
    if not isinstance(encoder, FrozenEncoder):
        raise UserError(f"the encoder {encoder.name} is not a network that can be exported")
    pixels = encoder.preprocessing
    prepare = ExportedPreprocessing(exported_size(pixels, views), pixels.shortest_edge is not None, pixels.resample)
    name = public_name(encoder.name)
    return ExportedDescription(agent, __version__, name, views, model.classes, model.reject, prepare)


def _write_graph(model: PhotoModel, description: ExportedDescription, file: Path) -> None:
    import onnx

    size = description.preprocessing.size
    graph = PhotoGraph(model.learner.encoder, model.knowledge, model.reject, size).eval()
    example = torch.zeros(2, 3, size, size, dtype=torch.uint8)
    batch = torch.export.Dim("n", min=1)
    try:
        with _quietly(), torch.inference_mode():
            made: Any = torch.onnx.export(
                graph, (example,), dynamo=True, input_names=[INPUT], output_names=list(OUTPUTS),
                dynamic_shapes={"pictures": {0: batch}}, verbose=False,
            )  # fmt: skip
    except torch.onnx.errors.OnnxExporterError as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"the encoder {description.encoder} cannot be expressed in ONNX: {reason}") from error
    proto = made.model_proto
    onnx.helper.set_model_props(proto, description.as_metadata())
    proto.producer_name, proto.producer_version = "osscl", __version__
    try:
        onnx.save_model(proto, str(file))
        seal_onnx(file)
    except ValueError as error:  # a protocol buffer of more than 2 GB
        raise UserError(f"the agent is too large for one ONNX file: {error}") from None


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silence the exporter's notes about packages that are not needed."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def _check_pictures(exported: OnnxModel, files: Sequence[Path]) -> list[Image.Image]:
    """Pictures as the graph takes them: up to 200 of the files, evenly spaced, then drawn ones."""
    prepare = exported.description.preprocessing
    chosen = [files[i] for i in np.linspace(0, len(files) - 1, min(len(files), CHECKED)).astype(int)]
    with hearing_warnings():
        found = [prepare.apply(read_photo(file, 2 * prepare.size).image) for file in chosen]
    rng, kinds = np.random.default_rng(0), [*KINDS]
    drawn = (prepare.apply(draw_picture(kinds[i % len(kinds)], rng)) for i in range(CHECKED - len(found)))
    return [*found, *drawn]


def measure_agreement(model: PhotoModel, exported: OnnxModel, pictures: Sequence[Image.Image]) -> Agreement:
    """Compare the agent and the graph on the same square pictures."""
    encoder = model.learner.encoder
    rows = torch.cat([encoder.embed(encoder.preprocess(picture)) for picture in pictures])
    expected, found = model.predict_rows(rows), exported.predict(as_batch(pictures))
    assert expected.class_probabilities is not None and found.class_probabilities is not None
    assert expected.known is not None and found.known is not None
    apart = float((expected.class_probabilities - found.class_probabilities).abs().max())
    assert expected.scores is not None and found.scores is not None
    shares = float((expected.scores - found.scores).abs().max())
    return Agreement(len(pictures), max(apart, shares), int((expected.known != found.known).sum()))
