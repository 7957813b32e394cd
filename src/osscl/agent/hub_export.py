"""Export an agent as a folder in Hugging Face layout: settings, weights, a model card, and the encoder.

The folder is an agent's folder, too. What could identify single photographs is left out: embeddings and example
pictures in memory, and the hashes of images. Answers do not depend on them.
"""

import json
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from html import escape
from pathlib import Path
from typing import Any

import yaml

from osscl import __version__
from osscl.agent.classifier import ContinualClassifier
from osscl.agent.inputs import NO_IMAGES
from osscl.agent.photos import PhotoModel, PhotoSettings
from osscl.agent.store import FORMAT, LearnedStep, contents_of
from osscl.config import plain
from osscl.errors import DataError, UserError
from osscl.learn.unknown import FEW
from osscl.storage import new_folder, refuse_to_overwrite, write_state
from osscl.text import counted, printable
from osscl.vision.pretrained import LITE0, encoder_files, write_lite0

CONFIG, CARD, KIND = "config.json", "README.md", "osscl-agent"
LITE0_LICENCE = "apache-2.0"
USE = """```python
import osscl

model = osscl.load("this-folder")
found = model.predict(["photo.jpg"])
print(found.names, found.probabilities, found.known)
```"""


def exportable(agent: ContinualClassifier) -> PhotoModel:
    """The model of a finished agent with a pretrained encoder; others are refused."""
    if agent.begun is not None or not agent.history:
        raise UserError("a step of this agent was interrupted: finish it before you export the agent")
    model = agent.model
    if not isinstance(model, PhotoModel):
        raise UserError("only agents with a pretrained encoder can be exported; this one was trained from scratch")
    return model


def agent_id(agent: ContinualClassifier) -> str:
    """A hash of the agent's settings and of every step that it has learned."""
    assert isinstance(agent.learner.settings, PhotoSettings)  # type: ignore[union-attr]
    return _id_of(vars(agent.learner.settings), agent.contents)  # type: ignore[union-attr]


def _id_of(settings: Mapping[str, Any], contents: Sequence[str]) -> str:
    kept = {name: value for name, value in settings.items() if name != "encoder"}  # its hash counts, not its place
    return blake2b(json.dumps([kept, list(contents)]).encode(), digest_size=8).hexdigest()


def export_hub(agent: ContinualClassifier, folder: Path | None, out: Path) -> None:
    """Write the folder `out`, which must not exist.

    Args:
        agent: finished, with a pretrained encoder.
        folder: the agent's own folder, where the encoder may be bundled.
        out: what to write.
    """
    refuse_to_overwrite(out)
    model = exportable(agent)
    source = folder / "encoder" if folder is not None and (folder / "encoder").is_dir() else None
    licence = encoder_licence(model.learner.settings.encoder)
    with new_folder(out) as draft:
        _write_text(draft / CONFIG, json.dumps(_config(agent, model, licence), indent=2, ensure_ascii=False) + "\n")
        _write_text(draft / CARD, model_card(agent, model, licence))
        write_state(draft / "model", _entry(agent, model))
        _write_encoder(model.learner.settings.encoder, source, draft / "encoder")
        refuse_to_overwrite(out)


def exported_config(folder: Path) -> dict[str, Any] | None:
    """The config.json of an exported folder; None in an agent's own folder. Files of other programs are refused."""
    file = folder / CONFIG
    if not file.exists():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("model_type") != KIND:
        raise DataError(f"{file} was not written by `osscl export`: expected the folder of a run or an agent")
    return found


def require_export(folder: Path, entry: Mapping[str, Any]) -> None:
    """Refuse a folder whose config.json describes neither its model nor an earlier state of it."""
    found = exported_config(folder)
    if found is None:
        return
    contents = contents_of(entry)
    states = [_id_of(entry["settings"], contents[: n + 1]) for n in range(len(contents))]  # an id may be unhashable
    if found.get("agent_id") not in states:
        raise DataError(f"{folder / CONFIG} does not describe the agent in {folder}")


def public_name(encoder: str) -> str:
    """An encoder's name; of a folder only the last part, since the others may name people."""
    return Path(encoder).name if Path(encoder).is_dir() else encoder


def encoder_licence(name: str) -> str | None:
    """The licence of an encoder's weights; None if it is not known."""
    if name == LITE0:
        return LITE0_LICENCE
    card = Path(name) / CARD
    if not card.is_file():
        return None
    text = card.read_text(encoding="utf-8", errors="replace")
    try:
        found = yaml.safe_load(text.split("---")[1]) if text.startswith("---") else None
    except (yaml.YAMLError, IndexError):
        return None
    licence = found.get("license") if isinstance(found, dict) else None
    return licence if isinstance(licence, str) else None


def _config(agent: ContinualClassifier, model: PhotoModel, licence: str | None) -> dict[str, Any]:
    settings, names = model.learner.settings, model.classes
    return {
        "model_type": KIND,
        "library_name": "osscl",
        "osscl_version": __version__,
        "agent_id": agent_id(agent),
        "encoder": public_name(settings.encoder),
        "encoder_hash": settings.content_hash,
        "encoder_license": licence,
        "views": settings.views,
        "reject": settings.reject,
        "head": str(model.knowledge.head),
        "classes": list(agent.class_names),
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def _entry(agent: ContinualClassifier, model: PhotoModel) -> dict[str, Any]:
    """The agent's file without embeddings, pictures and hashes of single images."""
    settings = model.learner.settings
    knowledge = replace(model.knowledge, kept=model.knowledge.kept[:0], kept_labels=(), kept_examples=())
    return {
        "format": FORMAT,
        "history": plain(agent.history),
        "begun": None,
        "learned_images": vars(NO_IMAGES),
        "settings": vars(replace(settings, encoder=public_name(settings.encoder))),
        "class_names": list(agent.class_names),
        "knowledge": knowledge.state(),
        "pile_digests": model.learner.pile_digests[:0],
        "integer_labels": agent.integer_labels,
    }


def _write_encoder(name: str, bundled: Path | None, folder: Path) -> None:
    folder.mkdir()
    files = sorted(bundled.iterdir()) if bundled is not None else encoder_files(name)
    if name == LITE0:
        write_lite0(files[0], folder / LITE0)
        return
    for file in files:
        shutil.copyfile(file, folder / file.name)


def _write_text(file: Path, text: str) -> None:
    file.write_text(text.encode("utf-8", "replace").decode(), encoding="utf-8")


# ----- the card


def model_card(agent: ContinualClassifier, model: PhotoModel, licence: str | None) -> str:
    """A model card, filled from the agent's history."""
    front = {
        "library_name": "osscl",
        "pipeline_tag": "image-classification",
        "license": licence if licence is not None else "other",
        "tags": ["osscl", "continual-learning", "open-set-recognition"],
    }
    parts = (
        _opening(agent, model),
        _classes(model),
        _accuracy(agent),
        _unknown(model),
        _steps(agent),
        _origin(model, licence),
    )
    return f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n" + "\n\n".join(parts) + "\n"


def _opening(agent: ContinualClassifier, model: PhotoModel) -> str:
    about = _wrapped(
        f"Agent `{agent_id(agent)}`, exported by osscl {__version__}. It names the class of a photograph, or says that",
        "it looks like none of its classes.",
    )
    return f"# An image classifier with {len(model.classes)} classes\n\n{about}\n\n{USE}"


def _classes(model: PhotoModel) -> str:
    counts = model.knowledge.sums.counts.tolist()
    rows = [f"| {_cell(name)} | {count:.0f} |" for name, count in zip(model.classes, counts, strict=True)]
    return "\n".join(["## Classes", "", "| class | labelled images |", "|---|---|", *rows])


def _accuracy(agent: ContinualClassifier) -> str:
    choice = next((step.choice for step in reversed(agent.history) if step.choice is not None), None)
    if choice is None or not choice.tried:
        return "## Accuracy\n\nNot measured: no class had two labelled images, so none could be left out."
    return "## Accuracy\n\n" + _wrapped(
        f"Of labelled images that were left out one at a time, n = {choice.tried}, the head in use ({choice.head})",
        f"named {choice.agent:.1f} % correctly; class means {choice.class_means:.1f} %, discriminants",
        f"{choice.discriminants:.1f} % on the same embeddings. The weights with which the head averages",
        "classifiers were fitted on these images, so the first number is slightly optimistic. This folder contains no",
        "other test results.",
    )


def _unknown(model: PhotoModel) -> str:
    n, reject = len(model.knowledge.unknown.known_scores().scores), model.learner.settings.reject
    if n < 2:
        how = "There were too few labelled images to calibrate it: every image counts as known."
    else:
        tail = "Student's t with these scores" if n < FEW else "these scores"
        how = f"It was calibrated on n = {n} labelled images, each scored without itself; shares are read from {tail}."
    return "## Known and unknown\n\n" + _wrapped(
        "Each image gets a known share: the share of images of known classes that look less known.",
        f"Below {reject:g} it counts as unknown, so that about {100 * reject:g} % of images of known classes are",
        "called unknown. The score says how much nearer an image is to a class than to everything seen,",
        f"{model.knowledge.world.count} unlabelled images included. {how}",
    )


def _steps(agent: ContinualClassifier) -> str:
    rows = [_step_row(number, step) for number, step in enumerate(agent.history, 1)]
    head = ["| step | date | learned | labelled | unlabelled | left-out accuracy |", "|---|---|---|---|---|---|"]
    return "\n".join(["## History", "", *head, *rows])


def _step_row(number: int, step: LearnedStep) -> str:
    made = step.measured
    accuracy = "—" if made is None else f"{made.agent:.1f} % (n = {made.tried})"
    labeled, unlabeled, _ = ("—" if count is None else count for count in step.counts)
    return f"| {number} | {step.date[:10]} | {_cell(step.words)} | {labeled} | {unlabeled} | {accuracy} |"


def _origin(model: PhotoModel, licence: str | None) -> str:
    name, views = public_name(model.learner.settings.encoder), model.learner.settings.views
    terms = licence if licence is not None else "not known to osscl; see the source of the encoder"
    encoder = _wrapped(
        f"Encoder: `{_cell(name)}`, frozen, {counted(views, 'view')} of each image. Licence of its weights:",
        f"{_cell(terms)}.",
    )
    contents = _wrapped(
        "`model.safetensors` holds sums per class and over the unlabelled images, calibration scores, and two numbers",
        "per unlabelled image by which a copy of it is recognised. Photographs, thumbnails, hashes of photographs and",
        "the embeddings kept in memory are not in this folder. Class names and counts are; the mean of a class with",
        "one labelled image is that image's embedding.",
    )
    return f"## Encoder and contents\n\n{encoder}\n\n{contents}"


def _wrapped(*lines: str) -> str:
    return textwrap.fill(" ".join(lines), 110, break_long_words=False, break_on_hyphens=False)


def _cell(text: str) -> str:
    """Text that cannot break out of a table's cell or a line."""
    return escape(printable(text), quote=False).replace("|", "\\|").replace("`", "'")
