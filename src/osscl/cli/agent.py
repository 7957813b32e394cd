"""`osscl fit` and `update`: an agent of your own images, from folders that arrive over time."""

import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli.inspect import Agent, in_one_line, show_history, tell
from osscl.cli.options import Device
from osscl.cli.run import Changes
from osscl.errors import Occupied, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from osscl.agent.classifier import ContinualClassifier
    from osscl.data.folders import Pictures
    from osscl.vision.encoder import ImageFormat

OWN = ("model", "checkpoint", ".")  # how an agent's files begin, and hidden ones of anybody
EVERY = 5.0  # seconds between two lines about reading
LABELED = typer.Option("--labeled", metavar="DIR", help="A folder of folders, each named as the class of its images.")
Unlabeled = Annotated[
    list[Path] | None,
    typer.Option("--unlabeled", metavar="PATH", help="Images, or folders of them and all below; may be repeated."),
]
AgentMinutes = Annotated[
    float | None, typer.Option("--max-minutes", min=0, help="Stop cleanly after so long; the same command resumes.")
]


def fit(
    agent: Agent,
    labeled: Annotated[Path, LABELED],
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
    max_minutes: AgentMinutes = None,
) -> None:
    """Begin an agent: learn the classes in a folder, beside unlabelled images."""
    from osscl.agent.classifier import ContinualClassifier
    from osscl.agent.home import checkpoint_file, model_file
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
            raise UserError(f"{agent} has learned already: `osscl update` teaches it more; or give another folder")
        if not same:
            raise UserError(f"{agent} was begun with other settings; give those again, or another folder")
    _teach(made, agent, labeled, unlabeled, ImageFormat(channels, size, (), ()), max_minutes, begins=True)


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
    labeled: Annotated[Path | None, LABELED] = None,
    unlabeled: Unlabeled = None,
    device: Device = "auto",
    max_minutes: AgentMinutes = None,
) -> None:
    """Teach an agent new classes, more images of classes it knows, or unlabelled images alone.

    It needs no images of before; those that it has learned are recognised and left out, so a growing folder will do.
    """
    from osscl.agent.classifier import ContinualClassifier

    if labeled is None and not unlabeled:
        raise UserError("give --labeled, --unlabeled, or both")
    made = ContinualClassifier.load(agent, device)
    assert made.setting is not None
    if not made.history:
        raise UserError(f"the first step of {agent} was interrupted: `osscl fit` resumes it")
    _teach(made, agent, labeled, unlabeled, made.setting.images, max_minutes)


def _teach(
    made: "ContinualClassifier", folder: Path, labeled: Path | None, unlabeled: list[Path] | None,
    images: "ImageFormat", max_minutes: float | None, *, begins: bool = False,
) -> None:  # fmt: skip
    from osscl.cli.show import quoted, watching
    from osscl.runs.checkpoint import Options, is_occupied

    if is_occupied(folder):
        raise Occupied(f"another process is at work in {folder}")
    _require_names(labeled)
    pictures, others = _read(labeled, unlabeled, images)
    lesson = pictures.images, pictures.labels, others.images
    _require_one_class_each(pictures)
    done, learned = made.has_learned(*lesson), made.learned_as(pictures.images)
    nothing_new = done or (not len(others) and None not in learned)
    if begins and made.history and not nothing_new:
        raise UserError(f"{folder} has learned already: `osscl update` teaches it more; or give another folder")
    tell([*pictures.problems, *others.problems, *(() if done else _met_before(learned, pictures))])
    if nothing_new:
        typer.echo("nothing new: all of this is learned already")
        show_history(made)
        return
    made.require_teachable(*lesson)
    _announce(made, [name for name, was in zip(pictures.labels, learned, strict=True) if was is None], len(others))
    learn = made.update if made.history else made.fit
    with watching(folder.name) as watcher, made.living_in(folder, Options(max_minutes=max_minutes, watcher=watcher)):
        learn(*lesson)
    show_history(made)
    typer.echo(f"predict: {quoted('osscl', 'predict', folder, 'photo.jpg')}")


def _read(labeled: Path | None, unlabeled: list[Path] | None, images: "ImageFormat") -> "tuple[Pictures, Pictures]":
    """Labelled images and unlabelled ones; none where no folder is given."""
    from osscl.data.folders import load_folder, load_pictures, no_pictures

    size, channels = images.size, images.channels
    none = no_pictures(size, channels)
    pictures = load_folder(labeled, size, channels, _counting("labelled")) if labeled is not None else none
    return pictures, load_pictures(unlabeled, size, channels, _counting("unlabelled")) if unlabeled else none


def _require_names(labeled: Path | None) -> None:
    """A group that `osscl sort` made wants a name; the next sorting makes other groups of the same number."""
    from osscl.data.folders import class_folders

    for name in class_folders(labeled) if labeled is not None else ():
        if re.fullmatch(r"group-\d+", name):
            raise UserError(f"{name} in {labeled} is a group of unknown pictures: rename it after what it shows")


def _require_one_class_each(pictures: "Pictures") -> None:
    from osscl.agent.lesson import contradiction

    if (twice := contradiction(pictures.images, pictures.labels)) is not None:
        one, other = (pictures.files[row] for row in twice)
        raise UserError(f"{one} and {other} are the same picture in two classes: which is it?")


def _met_before(learned: "Sequence[str | None]", pictures: "Pictures") -> list[str]:
    """Images that were learned already: how many, and those that have another class now."""
    from osscl.cli.show import counted

    rows = [row for row, name in enumerate(learned) if name is not None]
    told = [f"{counted(len(rows), 'image')} learned before"] if rows else []
    moved = [row for row in rows if learned[row] != pictures.labels[row]]
    return told + [f"{pictures.files[row]}: was learned as {learned[row]}, which cannot be undone" for row in moved]


def _announce(made: "ContinualClassifier", fresh: list[str], others: int) -> None:
    """What a step with labels that are `fresh` brings, and what it may cost."""
    from osscl.cli.show import counted

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
            "without unlabelled images nothing shows how the networks change: what is carried of earlier classes is "
            "dropped, and scores of what looks known may be on another scale afterwards"
        )
    from osscl.runs.run import is_small

    if made.device.type == "cpu" and not is_small(made.agent):
        typer.echo("on a CPU a step of this network takes hours; --schedule demo has small networks, tuned on digits")


def _doubtful(labels: list[str], known: list[str]) -> list[str]:
    """Classes that somebody may have meant otherwise, or that are too few to judge by."""
    alone = sorted(name for name, n in Counter(labels).items() if n == 1 and name not in known)
    told = [f"a single image of {in_one_line(', '.join(alone))}: what looks known is unsure there"] if alone else []
    spelled: dict[str, list[str]] = {}
    for name in dict.fromkeys([*known, *labels]):
        spelled.setdefault(" ".join(name.split()).casefold(), []).append(name)
    alike = [names for names in spelled.values() if len(names) > 1 and not {*names} <= {*known}]
    return told + [f"{in_one_line(' and '.join(map(repr, names)))} are learned as different classes" for names in alike]


def _counting(kind: str) -> "Callable[[int, int], None]":
    """A line now and then while images are read."""
    shown = time.monotonic()

    def count(read: int, of: int) -> None:
        nonlocal shown
        if time.monotonic() - shown > EVERY:
            shown = time.monotonic()
            typer.echo(f"{read:,} of {of:,} {kind} images read")

    return count
