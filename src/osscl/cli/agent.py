"""`osscl fit`, `update` and `inspect`: an agent of one's own images, from folders that arrive over time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli.run import Changes
from osscl.cli.wanted import MaxMinutes
from osscl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from osscl.data.folders import Pictures
    from osscl.model import ContinualClassifier

TOLD = 5  # files that could not be read and are named
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
    from osscl.model import ContinualClassifier
    from osscl.stored import SUFFIX

    if (agent / f"model{SUFFIX}").exists():
        raise UserError(f"{agent} has learned already: `osscl update` brings new classes; or give another folder")
    config = _changed(method, schedule, changes)
    asked = ContinualClassifier(config, schedule, memory=memory, seed=seed, augmentation=augmentation, device=device)
    begun = agent / f"checkpoint{SUFFIX}"
    made = ContinualClassifier.load(agent, device) if begun.exists() else asked
    ours, theirs = ((one.config, one.schedule, one.memory, one.seed, one.augmentation) for one in (asked, made))
    if ours != theirs:
        raise UserError(f"{agent} was begun with other settings; give those again, or another folder")
    _teach(made, agent, labeled, unlabeled, size, 1 if grey else 3, max_minutes)


def _changed(method: str, schedule: str, changes: list[str] | None) -> object:
    """The configuration of this name at the schedule's size, with fields changed."""
    from osscl.experiments.sizes import sized
    from osscl.experiments.spec import configuration, scheduled
    from osscl.frozen import override

    return override(sized(configuration(method), scheduled(schedule)), changes or [])


def update(
    agent: Agent,
    labeled: LabeledDir,
    unlabeled: Unlabeled = None,
    device: Device = "auto",
    max_minutes: MaxMinutes = None,
) -> None:
    """Teach an agent new classes; it needs no images of the old ones. Folders of classes that it knows are left out."""
    from osscl.model import ContinualClassifier

    made = ContinualClassifier.load(agent, device)
    assert made.setting is not None
    if not made.history:
        raise UserError(f"the first step of {agent} was interrupted: `osscl fit` goes on with it")
    _teach(made, agent, labeled, unlabeled, made.setting.images.size, made.setting.images.channels, max_minutes)


def _teach(
    made: "ContinualClassifier", folder: Path, labeled: Path, unlabeled: list[Path] | None, size: int, channels: int,
    max_minutes: float | None,
) -> None:  # fmt: skip
    from osscl.cli.show import quoted, watching
    from osscl.data.folders import load_folder, load_pictures
    from osscl.experiments.checkpoint import Options
    from osscl.experiments.sizes import is_small
    from osscl.model import living_in

    known = set(made.class_names)
    pictures = load_folder(labeled, size, channels, leave_out=known)
    _tell(pictures)
    others = load_pictures(unlabeled, size, channels) if unlabeled else None
    if others is not None:
        _tell(others)
    typer.echo(
        f"{len(set(pictures.labels))} new classes, {len(pictures)} labelled images; "
        f"{len(others) if others is not None else 0} unlabelled"
    )
    if made.device.type == "cpu" and not is_small(made.config):
        typer.echo("on a CPU a step of this network takes hours; --schedule demo has small ones")
    with watching(folder.name) as watcher:
        options = Options(max_minutes=max_minutes, watcher=watcher)
        with living_in(folder, made, options):
            learn = made.update if made.history else made.fit
            learn(pictures.images, pictures.labels, others.images if others is not None else None)
    show_history(made)
    typer.echo(f"predict: {quoted('osscl', 'predict', folder, 'photo.jpg')}")


def _tell(pictures: "Pictures") -> None:
    """What was left out, on the error stream."""
    for problem in pictures.problems[:TOLD]:
        typer.echo(f"left out: {problem}", err=True)
    if (more := len(pictures.problems) - TOLD) > 0:
        typer.echo(f"left out: {more} more", err=True)


def inspect(
    agent: Agent,
    on: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folders of labelled images to test it on; classes not learned, too."),
    ] = None,
    device: Device = "auto",
) -> None:
    """What an agent has learned, and how well it does on a folder of labelled images."""
    from osscl.model import ContinualClassifier

    made = ContinualClassifier.load(agent, device)
    show_history(made)
    if made.begun is not None:
        typer.echo("a step was interrupted: the same command goes on with it")
    elif on is not None:
        _test(made, on)


def show_history(made: "ContinualClassifier") -> None:
    from osscl.cli.show import DASH, console, table
    from osscl.experiments.spec import name_of_config

    assert made.setting is not None
    shown = table("step", "classes", "labelled", "unlabelled", "let in", "seconds", "date")
    for number, one in enumerate(made.history, start=1):
        let_in = DASH if one.let_in is None else str(one.let_in)
        shown.add_row(
            str(number), ", ".join(one.classes), str(one.labeled), str(one.unlabeled), let_in, f"{one.seconds:.0f}",
            one.date[:16].replace("T", " "),
        )  # fmt: skip
    console().print(shown)
    images = made.setting.images
    typer.echo(
        f"{len(made.class_names)} classes; {name_of_config(made.config)}, schedule {made.schedule.name}, "
        f"seed {made.seed}; "
        f"{images.size} x {images.size} pixels, {'grey' if images.channels == 1 else 'colours'}; memory {made.memory}"
    )


def _test(made: "ContinualClassifier", folder: Path) -> None:
    """Accuracy and what looks known, class by class; classes that were not learned should look unknown."""
    from osscl.cli.show import console, table
    from osscl.data.folders import load_folder
    from osscl.metrics import auroc

    assert made.setting is not None
    pictures = load_folder(folder, made.setting.images.size, made.setting.images.channels)
    _tell(pictures)
    found = made.predict(pictures.images)
    learned = torch_bool(label in made.class_names for label in pictures.labels)
    right = torch_bool(name == label for name, label in zip(found.names, pictures.labels, strict=True))
    shown = table("class", "images", "right %", "looks known %")
    for label in sorted(set(pictures.labels), key=lambda label: (label not in made.class_names, label)):
        rows = torch_bool(name == label for name in pictures.labels)
        name = label if label in made.class_names else f"{label} (not learned)"
        shown.add_row(name, str(int(rows.sum())), _share(right, rows & learned), _share(found.known, rows))
    console().print(shown)
    for words, rows in (("learned", learned), ("not learned", ~learned)):
        if rows.any():
            known = _share(found.known, rows)
            accuracy = f"{_share(right, rows)} % right, " if words == "learned" else ""
            typer.echo(f"{int(rows.sum())} images of classes {words}: {accuracy}{known} % look known")
    if found.scores is not None and (told := auroc(found.scores, learned)) is not None:
        typer.echo(f"AUROC of the score, classes learned against others: {told:.3f}")


def torch_bool(values: "Iterable[bool]") -> "Tensor":
    import torch

    return torch.tensor(list(values), dtype=torch.bool)


def _share(values: "Tensor | None", rows: "Tensor") -> str:
    from osscl.cli.show import DASH

    return DASH if values is None or not rows.any() else f"{100 * float(values[rows].float().mean()):.1f}"
