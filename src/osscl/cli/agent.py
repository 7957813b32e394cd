"""`osscl fit`, `update` and `inspect`: an agent of one's own images, from folders that arrive over time."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli.run import Changes
from osscl.cli.wanted import MaxMinutes
from osscl.errors import Occupied, UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from osscl.agent.classifier import ContinualClassifier
    from osscl.agent.tested import Tested

OWN = ("model", "checkpoint", ".")  # how an agent's files begin, and hidden ones of anybody
EVERY = 5.0  # seconds between two lines about reading
TOLD = 20  # files that could not be read and are named
Agent = Annotated[Path, typer.Argument(metavar="AGENT", help="The agent's folder.")]
LabeledDir = Annotated[
    Path, typer.Option("--labeled", metavar="DIR", help="A folder of folders, each named as the class of its images.")
]
Unlabeled = Annotated[
    list[Path] | None,
    typer.Option("--unlabeled", metavar="PATH", help="Images, or folders of them and all below; may be repeated."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")]


def fit(
    agent: Agent,
    labeled: LabeledDir,
    unlabeled: Unlabeled = None,
    method: Annotated[str, typer.Option(help="A configuration; see `osscl list`.")] = "ursl-plus",
    schedule: Annotated[str, typer.Option(help="paper, short, smoke, demo (small networks: no GPU).")] = "short",
    changes: Changes = None,
    size: Annotated[int, typer.Option(min=8, help="Pixels a side that images are brought to; a multiple of 8.")] = 32,
    grey: Annotated[bool, typer.Option("--grey", help="Without colours.")] = False,
    augmentation: Annotated[
        str, typer.Option(help="photos; or glyphs, whose mirror image or colour is another thing.")
    ] = "photos",
    memory: Annotated[int, typer.Option(min=0, help="Labelled images kept over all classes.")] = 1000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: Device = "auto",
    max_minutes: MaxMinutes = None,
) -> None:
    """Begin an agent: learn the classes in a folder, beside unlabelled images."""
    from osscl.agent.classifier import ContinualClassifier
    from osscl.agent.home import checkpoint_file, model_file
    from osscl.data.folders import class_folders

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
            raise UserError(f"{agent} has learned already: `osscl update` brings new classes; or give another folder")
        if not same:
            raise UserError(f"{agent} was begun with other settings; give those again, or another folder")
    _teach(made, agent, labeled, unlabeled, size, channels, max_minutes)


def _require_own_folder(agent: Path, labeled: Path) -> None:
    """An agent among images would be taken for a class, and its files for somebody's."""
    if agent.exists() and not agent.is_dir():
        raise UserError(f"{agent} is a file; give a folder for the agent")
    others = [path.name for path in agent.iterdir() if not path.name.startswith(OWN)] if agent.exists() else []
    if others:
        raise UserError(f"{agent} holds other things ({sorted(others)[0]}); give the agent a folder of its own")
    if agent.resolve().is_relative_to(labeled.resolve()):
        raise UserError(f"{agent} lies in {labeled}, where it would be taken for a class; give another folder")


def update(
    agent: Agent,
    labeled: LabeledDir,
    unlabeled: Unlabeled = None,
    device: Device = "auto",
    max_minutes: MaxMinutes = None,
) -> None:
    """Teach an agent new classes; it needs no images of the old ones. Folders of classes that it knows are left out."""
    from osscl.agent.classifier import ContinualClassifier

    made = ContinualClassifier.load(agent, device)
    assert made.setting is not None
    if not made.history:
        raise UserError(f"the first step of {agent} was interrupted: `osscl fit` goes on with it")
    _teach(made, agent, labeled, unlabeled, made.setting.images.size, made.setting.images.channels, max_minutes)


def _teach(
    made: "ContinualClassifier", folder: Path, labeled: Path, unlabeled: list[Path] | None, size: int, channels: int,
    max_minutes: float | None,
) -> None:  # fmt: skip
    from osscl.agent.lesson import checked
    from osscl.cli.show import quoted, watching
    from osscl.data.folders import class_folders, load_folder, load_pictures
    from osscl.experiments.checkpoint import Options, is_occupied
    from osscl.experiments.sizes import is_small

    if is_occupied(folder):
        raise Occupied(f"another process is at work in {folder}")
    last = {*made.history[-1].classes} if made.history and made.begun is None else set()
    again = bool(last) and {*class_folders(labeled)} <= {*made.class_names}
    known = {*made.class_names} - last if again else made.class_names
    pictures = load_folder(labeled, size, channels, known, _counting("labelled"))
    others = load_pictures(unlabeled, size, channels, _counting("unlabelled")) if unlabeled else None
    lesson = pictures.images, pictures.labels, others.images if others is not None else None
    if again and checked(*lesson).content == made.history[-1].content:
        typer.echo("nothing new: this very step is learned already")
        _show_history(made)
        return
    _tell([*pictures.problems, *(others.problems if others is not None else ())])
    made.require_teachable(*lesson)
    classes = len(set(pictures.labels))
    typer.echo(
        f"{classes} new class{'es' * (classes != 1)}, {len(pictures)} labelled images; "
        f"{0 if others is None else len(others)} unlabelled"
    )
    if made.device.type == "cpu" and not is_small(made.recipe.method):
        typer.echo("on a CPU a step of this network takes hours; --schedule demo has small ones")
    learn = made.update if made.history else made.fit
    with watching(folder.name) as watcher, made.living_in(folder, Options(max_minutes=max_minutes, watcher=watcher)):
        learn(*lesson)
    _show_history(made)
    typer.echo(f"predict: {quoted('osscl', 'predict', folder, 'photo.jpg')}")


def _counting(kind: str) -> "Callable[[int, int], None]":
    """A line now and then while images are read."""
    shown = time.monotonic()

    def count(read: int, of: int) -> None:
        nonlocal shown
        if time.monotonic() - shown > EVERY:
            shown = time.monotonic()
            typer.echo(f"{read:,} of {of:,} {kind} images read")

    return count


def _tell(problems: Sequence[str]) -> None:
    """What was left out, on the error stream."""
    for problem in problems[:TOLD]:
        typer.echo(f"left out: {_in_one_line(problem)}", err=True)
    if (more := len(problems) - TOLD) > 0:
        typer.echo(f"left out: {more} more", err=True)


def _in_one_line(text: str) -> str:
    """A file's name may hold anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def back(
    agent: Agent,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="One of its earlier models, as model-1.")],
) -> None:
    """Make an earlier model of an agent the one that is asked and taught; the newest stays under its number."""
    from osscl.agent.classifier import ContinualClassifier
    from osscl.agent.home import go_back

    if not agent.is_dir():
        raise UserError(f"no agent in {agent}: `osscl fit` makes one")
    go_back(agent, model)
    _show_history(ContinualClassifier.load(agent, "cpu", finished=True))


def inspect(
    agent: Agent,
    on: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folders of labelled images to test it on; classes not learned, too."),
    ] = None,
    device: Device = "auto",
) -> None:
    """What an agent has learned, and how well it does on a folder of labelled images."""
    from osscl.agent.classifier import ContinualClassifier
    from osscl.agent.home import earlier_models, is_interrupted, model_file
    from osscl.experiments.checkpoint import is_occupied

    made = ContinualClassifier.load(agent, device, finished=model_file(agent).exists())
    _show_history(made)
    if earlier := [*earlier_models(agent)]:
        typer.echo(f"earlier models, for `osscl back`: {', '.join(earlier)}")
    if is_occupied(agent):
        typer.echo("another process teaches it")
    elif is_interrupted(agent):
        typer.echo("a step was interrupted: the same command goes on with it")
    if on is not None:
        if not made.history:
            raise UserError(f"nothing is learned yet: the first step of {agent} was interrupted")
        _test(made, on)


def _show_history(made: "ContinualClassifier") -> None:
    from osscl.cli.show import DASH, console, table
    from osscl.experiments.spec import name_of_config

    assert made.setting is not None
    shown = table("step", "classes", "labelled", "unlabelled", "let in", "seconds", "date")
    for number, one in enumerate(made.history, start=1):
        let_in = DASH if one.let_in is None else str(one.let_in)
        counts = str(one.labeled), str(one.unlabeled), let_in, f"{one.seconds:.0f}"
        shown.add_row(str(number), _in_one_line(", ".join(one.classes)), *counts, one.date[:16].replace("T", " "))
    console().print(shown)
    images, recipe, count = made.setting.images, made.recipe, len(made.class_names)
    typer.echo(
        f"{count} class{'es' * (count != 1)}; {name_of_config(recipe.method)}, schedule {recipe.schedule.name}, "
        f"seed {recipe.seed}; {images.size} x {images.size} pixels, {'grey' if images.channels == 1 else 'colours'}; "
        f"memory {recipe.memory}"
    )


def _test(made: "ContinualClassifier", folder: Path) -> None:
    """Accuracy and what looks known, class by class; classes that were not learned should look unknown."""
    from osscl.cli.show import console, table
    from osscl.data.folders import load_folder

    assert made.setting is not None
    pictures = load_folder(folder, made.setting.images.size, made.setting.images.channels)
    _tell(pictures.problems)
    tested = made.test(pictures.images, pictures.labels)
    shown = table("class", "images", "right %", "looks known %")
    for label in sorted(set(tested.labels), key=lambda label: (label not in made.class_names, label)):
        rows = [i for i, name in enumerate(tested.labels) if name == label]
        learned = label in made.class_names
        shares = _share(tested.right if learned else None, rows), _share(tested.found.known, rows)
        shown.add_row(label if learned else f"{label} (not learned)", str(len(rows)), *shares)
    console().print(shown)
    _sum_up(tested)


def _sum_up(tested: "Tested") -> None:
    for words, which in (("learned", True), ("not learned", False)):
        rows = [i for i, learned in enumerate(tested.learned.tolist()) if learned is which]
        parts = [f"{_share(tested.right, rows)} % right"] if which else []
        parts += [f"{_share(tested.found.known, rows)} % look known"] if tested.found.known is not None else []
        if rows and parts:
            typer.echo(f"{len(rows)} images of classes {words}: {', '.join(parts)}")
    if tested.auroc is not None:
        typer.echo(f"AUROC of the score, classes learned against others: {tested.auroc:.3f}")


def _share(values: "Tensor | None", rows: "list[int]") -> str:
    from osscl.cli.show import DASH

    return DASH if values is None or not rows else f"{100 * float(values[rows].float().mean()):.1f}"
