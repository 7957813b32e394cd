"""`osscl fit`, `update`, `inspect` and `back`: an agent that learns your own images, step by step."""

import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli.run import Changes
from osscl.cli.wanted import Device
from osscl.errors import Occupied, UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from osscl.agent.classifier import ContinualClassifier
    from osscl.agent.evaluation import Evaluation
    from osscl.agent.store import LearnedStep
    from osscl.data.folders import Pictures
    from osscl.vision.encoder import ImageFormat

OWN_FILES = ("model", "checkpoint", ".")  # prefixes of an agent's files, and hidden files
MOST_PROBLEMS = 20  # listed one by one
SECONDS_BETWEEN_LINES = 5.0  # while reading images

Agent = Annotated[Path, typer.Argument(metavar="AGENT", help="The agent's folder.")]
LABELED = typer.Option("--labeled", metavar="DIR", help="A folder with one folder per class.")
Unlabeled = Annotated[
    list[Path] | None,
    typer.Option("--unlabeled", metavar="PATH", help="Image files or folders, searched recursively; may be repeated."),
]
AgentMinutes = Annotated[
    float | None, typer.Option("--max-minutes", min=0, help="Stop cleanly after this time; the same command resumes.")
]


def fit(
    agent: Agent,
    labeled: Annotated[Path, LABELED],
    unlabeled: Unlabeled = None,
    method: Annotated[str, typer.Option(help="A configuration; see `osscl list`.")] = "ursl-plus",
    schedule: Annotated[str, typer.Option(help="paper, short, smoke, demo (small networks: no GPU).")] = "short",
    changes: Changes = None,
    size: Annotated[
        int, typer.Option(min=8, help="Images are resized to this many pixels per side; a multiple of 8.")
    ] = 32,
    grey: Annotated[bool, typer.Option("--grey", help="Convert images to grey.")] = False,
    augmentation: Annotated[
        str, typer.Option(help="photos; or glyphs, for signs and letters: no mirroring or recolouring.")
    ] = "photos",
    memory: Annotated[int, typer.Option(min=0, help="Labelled images kept, over all classes.")] = 1000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: Device = "auto",
    max_minutes: AgentMinutes = None,
) -> None:
    """Create an agent: learn the classes in a folder, with unlabelled images beside them."""
    from osscl.agent.classifier import ContinualClassifier
    from osscl.agent.store import checkpoint_file, model_file
    from osscl.data.folders import class_folders
    from osscl.vision.encoder import ImageFormat

    _require_own_folder(agent, labeled)
    channels = 1 if grey else 3
    made = ContinualClassifier(
        method, schedule, changes=changes or (), memory=memory, seed=seed, augmentation=augmentation, device=device
    )
    if model_file(agent).exists() or checkpoint_file(agent).exists():
        asked, made = made.recipe, ContinualClassifier.load(agent, device)
        assert made.setting is not None
        same = asked == made.recipe and (size, channels) == (made.setting.images.size, made.setting.images.channels)
        again = same and len(made.history) == 1 and {*class_folders(labeled)} == {*made.class_names}
        if made.history and not again:
            raise UserError(f"{agent} already holds a trained agent: use `osscl update`, or give another folder")
        if not same:
            raise UserError(f"{agent} was started with other settings: give the same settings, or another folder")
    _teach(made, agent, labeled, unlabeled, ImageFormat(channels, size, (), ()), max_minutes, is_first=True)


def _require_own_folder(agent: Path, labeled: Path) -> None:
    """The agent's folder must hold nothing else and not count as a class."""
    if agent.exists() and not agent.is_dir():
        raise UserError(f"{agent} is a file: give a folder")
    others = [path.name for path in agent.iterdir() if not path.name.startswith(OWN_FILES)] if agent.exists() else []
    if others:
        raise UserError(f"{agent} contains other files ({sorted(others)[0]}): give the agent its own folder")
    if agent.resolve().is_relative_to(labeled.resolve()):
        raise UserError(f"{agent} is inside {labeled}, where it would count as a class: give another folder")


def update(
    agent: Agent,
    labeled: Annotated[Path | None, LABELED] = None,
    unlabeled: Unlabeled = None,
    device: Device = "auto",
    max_minutes: AgentMinutes = None,
) -> None:
    """Teach an agent new classes, more images of known classes, or unlabelled images only.

    Earlier images are not needed; those given again are recognised and skipped, so a growing folder works.
    """
    from osscl.agent.classifier import ContinualClassifier

    if labeled is None and not unlabeled:
        raise UserError("give --labeled, --unlabeled, or both")
    made = ContinualClassifier.load(agent, device)
    assert made.setting is not None
    if not made.history:
        raise UserError(f"the first step of {agent} was interrupted: resume it with `osscl fit`")
    _teach(made, agent, labeled, unlabeled, made.setting.images, max_minutes)


def back(
    agent: Agent,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="One of its earlier models, such as model-1.")],
) -> None:
    """Restore an earlier model of an agent; the newest one is kept under its number."""
    from osscl.agent.classifier import ContinualClassifier
    from osscl.agent.store import go_back

    if not agent.is_dir():
        raise UserError(f"no agent in {agent}: `osscl fit` creates one")
    go_back(agent, model)
    show_history(ContinualClassifier.load(agent, "cpu", finished=True))


def inspect(
    agent: Agent,
    on: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder of labelled images to test on; it may contain unknown classes."),
    ] = None,
    device: Device = "auto",
) -> None:
    """Show what an agent has learned, and its accuracy on a folder of labelled images."""
    from osscl.agent.classifier import ContinualClassifier
    from osscl.agent.store import earlier_models, is_interrupted, model_file
    from osscl.runs.checkpoint import is_occupied

    made = ContinualClassifier.load(agent, device, finished=model_file(agent).exists())
    if not made.history:
        typer.echo("nothing learned yet")
    else:
        show_history(made)
    if earlier := [*earlier_models(agent)]:
        typer.echo(f"earlier models (see `osscl back`): {', '.join(earlier)}")
    if is_occupied(agent):
        typer.echo("another process is teaching this agent")
    elif is_interrupted(agent):
        typer.echo("a step was interrupted: run the same command again to resume it")
    if on is not None:
        if not made.history:
            raise UserError(f"nothing learned yet: the first step of {agent} was interrupted")
        _test(made, on)


def _teach(
    made: "ContinualClassifier", folder: Path, labeled: Path | None, unlabeled: list[Path] | None,
    images: "ImageFormat", max_minutes: float | None, *, is_first: bool = False,
) -> None:  # fmt: skip
    from osscl.cli.show import quoted, watching
    from osscl.runs.checkpoint import Options, is_occupied

    if is_occupied(folder):
        raise Occupied(f"{folder} is locked by another process")
    _require_names(labeled)
    pictures, others = _read(labeled, unlabeled, images)
    step = pictures.images, pictures.labels, others.images
    _require_one_class_each(pictures)
    done, learned = made.has_learned(*step), made.learned_as(pictures.images)
    nothing_new = done or (not len(others) and None not in learned)
    if is_first and made.history and not nothing_new:
        raise UserError(f"{folder} already holds a trained agent: use `osscl update`, or give another folder")
    report_problems([*pictures.problems, *others.problems, *(() if done else _met_before(learned, pictures))])
    if nothing_new:
        typer.echo("nothing new: all of these images have been learned")
        show_history(made)
        return
    made.require_teachable(*step)
    _announce(made, [name for name, was in zip(pictures.labels, learned, strict=True) if was is None], len(others))
    learn = made.update if made.history else made.fit
    with watching(folder.name) as watcher, made.saving_to(folder, Options(max_minutes=max_minutes, watcher=watcher)):
        learn(*step)
    show_history(made)
    typer.echo(f"predict: {quoted('osscl', 'predict', folder, 'photo.jpg')}")


def _read(labeled: Path | None, unlabeled: list[Path] | None, images: "ImageFormat") -> "tuple[Pictures, Pictures]":
    """Read the labelled and the unlabelled images."""
    from osscl.data.folders import load_folder, load_pictures, no_pictures

    size, channels = images.size, images.channels
    none = no_pictures(size, channels)
    pictures = load_folder(labeled, size, channels, _counting("labelled")) if labeled is not None else none
    return pictures, load_pictures(unlabeled, size, channels, _counting("unlabelled")) if unlabeled else none


def _require_names(labeled: Path | None) -> None:
    """Refuse unnamed groups of `osscl sort`: the next sort numbers other groups the same way."""
    from osscl.data.folders import class_folders

    for name in class_folders(labeled) if labeled is not None else ():
        if re.fullmatch(r"group-\d+", name):
            raise UserError(f"{name} in {labeled} is an unnamed group: rename the folder to its class")


def _require_one_class_each(pictures: "Pictures") -> None:
    from osscl.agent.inputs import conflicting_pair

    if (twice := conflicting_pair(pictures.images, pictures.labels)) is not None:
        one, other = (pictures.files[row] for row in twice)
        raise UserError(f"{one} and {other} are the same picture in two classes: keep one of them")


def _met_before(learned: "Sequence[str | None]", pictures: "Pictures") -> list[str]:
    """Notes on images learned before: how many, and which ones changed their class."""
    from osscl.cli.show import counted

    rows = [row for row, name in enumerate(learned) if name is not None]
    notes = [f"{counted(len(rows), 'image')} learned before"] if rows else []
    moved = [row for row in rows if learned[row] != pictures.labels[row]]
    return notes + [f"{pictures.files[row]}: already learned as {learned[row]}" for row in moved]


def _announce(made: "ContinualClassifier", fresh: list[str], others: int) -> None:
    """Print what the step contains, and warnings about it."""
    from osscl.cli.show import counted
    from osscl.runs.presets import is_small

    new = len({*fresh} - {*made.class_names})
    further = sorted({*fresh} & {*made.class_names})
    more = f", more of {in_one_line(', '.join(further))}" if further else ""
    typer.echo(
        f"{new} new class{'es' * (new != 1)}{more}; {counted(len(fresh), 'labelled image')}, {others} unlabelled"
    )
    for words in _doubtful(fresh, made.class_names):
        typer.echo(words)
    if made.recipe.carries_labels and any(step.unlabeled for step in made.history) and others < 2:
        typer.echo(
            "warning: without unlabelled images the statistics of earlier classes are dropped, and known/unknown "
            "scores may change their scale"
        )
    if made.device.type == "cpu" and not is_small(made.recipe.method):
        typer.echo(
            "warning: on a CPU this network takes hours per step; --schedule demo uses small networks, tuned on digits"
        )


def _doubtful(labels: list[str], known: list[str]) -> list[str]:
    """Warnings about classes with a single image and about names that differ only in case or spaces."""
    alone = sorted(name for name, n in Counter(labels).items() if n == 1 and name not in known)
    notes = [f"warning: only one image of {in_one_line(', '.join(alone))}"] if alone else []
    spelled: dict[str, list[str]] = {}
    for name in dict.fromkeys([*known, *labels]):
        spelled.setdefault(" ".join(name.split()).casefold(), []).append(name)
    alike = [names for names in spelled.values() if len(names) > 1 and not {*names} <= {*known}]
    return notes + [f"warning: {in_one_line(' and '.join(map(repr, names)))} are different classes" for names in alike]


def _counting(kind: str) -> "Callable[[int, int], None]":
    """Print a line every few seconds while images are read."""
    shown = time.monotonic()

    def count(read: int, of: int) -> None:
        nonlocal shown
        if time.monotonic() - shown > SECONDS_BETWEEN_LINES:
            shown = time.monotonic()
            typer.echo(f"{read:,} of {of:,} {kind} images read")

    return count


def show_history(made: "ContinualClassifier") -> None:
    from osscl.cli.show import DASH, console, table
    from osscl.runs.spec import name_of_config

    assert made.setting is not None
    shown = table("step", "classes", "labelled", "unlabelled", "let in", "seconds", "date")
    for number, one in enumerate(made.history, start=1):
        let_in = DASH if one.let_in is None else str(one.let_in)
        counts = str(one.labeled), str(one.unlabeled), let_in, f"{one.seconds:.0f}"
        shown.add_row(str(number), _classes_of(one), *counts, one.date[:16].replace("T", " "))
    console().print(shown)
    images, recipe, count = made.setting.images, made.recipe, len(made.class_names)
    typer.echo(
        f"{count} class{'es' * (count != 1)}; {name_of_config(recipe.method)}, schedule {recipe.schedule.name}, "
        f"seed {recipe.seed}; {images.size} x {images.size} pixels, {'grey' if images.channels == 1 else 'colours'}; "
        f"memory {recipe.memory}"
    )


def _classes_of(step: "LearnedStep") -> str:
    """The new classes of a step, and the known ones that got more images."""
    from osscl.cli.show import DASH

    more = [f"more of {', '.join(step.further)}"] if step.further else []
    return in_one_line("; ".join([*([", ".join(step.classes)] if step.classes else []), *more])) or DASH


def _test(made: "ContinualClassifier", folder: Path) -> None:
    """Show accuracy and the share that looks known, by class; unlearned classes should look unknown."""
    from osscl.cli.show import console, table
    from osscl.data.folders import load_folder

    assert made.setting is not None
    pictures = load_folder(folder, made.setting.images.size, made.setting.images.channels)
    report_problems(pictures.problems)
    if again := sum(name is not None for name in made.learned_as(pictures.images)):
        typer.echo(f"warning: {again} of these {len(pictures)} images were used for training", err=True)
    result = made.test(pictures.images, pictures.labels)
    shown = table("class", "images", "right %", "looks known %")
    for label in sorted(set(result.labels), key=lambda label: (label not in made.class_names, label)):
        rows = [i for i, name in enumerate(result.labels) if name == label]
        learned = label in made.class_names
        shares = _share(result.right if learned else None, rows), _share(result.prediction.known, rows)
        shown.add_row(label if learned else f"{label} (not learned)", str(len(rows)), *shares)
    console().print(shown)
    _print_summary(result)


def _print_summary(result: "Evaluation") -> None:
    for words, which in (("learned classes", True), ("other classes", False)):
        rows = [i for i, learned in enumerate(result.learned.tolist()) if learned is which]
        parts = [f"{_share(result.right, rows)} % right"] if which else []
        parts += (
            [f"{_share(result.prediction.known, rows)} % look known"] if result.prediction.known is not None else []
        )
        if rows and parts:
            typer.echo(f"{len(rows)} images of {words}: {', '.join(parts)}")
    if result.auroc is not None:
        typer.echo(f"AUROC of the known/unknown score: {result.auroc:.3f}")


def _share(values: "Tensor | None", rows: "list[int]") -> str:
    from osscl.cli.show import DASH

    return DASH if values is None or not rows else f"{100 * float(values[rows].float().mean()):.1f}"


def report_problems(problems: Sequence[str]) -> None:
    """Print what was skipped to stderr."""
    for problem in problems[:MOST_PROBLEMS]:
        typer.echo(f"skipped: {in_one_line(problem)}", err=True)
    if (more := len(problems) - MOST_PROBLEMS) > 0:
        typer.echo(f"skipped: {more} more", err=True)


def in_one_line(text: str) -> str:
    """Replace unprintable characters, which file names may contain."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
