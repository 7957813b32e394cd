"""`osscl inspect` and `back`: what an agent has learned, how well it does, and the way to an earlier model of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli.options import Device
from osscl.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from osscl.agent.classifier import ContinualClassifier
    from osscl.agent.home import Learned
    from osscl.agent.tested import Tested

TOLD = 20  # files that could not be read and are named
Agent = Annotated[Path, typer.Argument(metavar="AGENT", help="The agent's folder.")]


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
    show_history(ContinualClassifier.load(agent, "cpu", finished=True))


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
    from osscl.runs.checkpoint import is_occupied

    made = ContinualClassifier.load(agent, device, finished=model_file(agent).exists())
    if not made.history:
        typer.echo("nothing is learned yet")
    else:
        show_history(made)
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


def show_history(made: "ContinualClassifier") -> None:
    from osscl.cli.show import DASH, console, table
    from osscl.runs.spec import config_display_name

    assert made.setting is not None
    shown = table("step", "classes", "labelled", "unlabelled", "let in", "seconds", "date")
    for number, one in enumerate(made.history, start=1):
        let_in = DASH if one.let_in is None else str(one.let_in)
        counts = str(one.labeled), str(one.unlabeled), let_in, f"{one.seconds:.0f}"
        shown.add_row(str(number), _classes_of(one), *counts, one.date[:16].replace("T", " "))
    console().print(shown)
    images, recipe, count = made.setting.images, made.recipe, len(made.class_names)
    typer.echo(
        f"{count} class{'es' * (count != 1)}; {config_display_name(recipe.method)}, schedule {recipe.schedule.name}, "
        f"seed {recipe.seed}; {images.size} x {images.size} pixels, {'grey' if images.channels == 1 else 'colours'}; "
        f"memory {recipe.memory}"
    )


def _classes_of(step: "Learned") -> str:
    """The classes that a step brought, and those that it brought more of."""
    from osscl.cli.show import DASH

    more = [f"more of {', '.join(step.further)}"] if step.further else []
    return in_one_line("; ".join([*([", ".join(step.classes)] if step.classes else []), *more])) or DASH


def _test(made: "ContinualClassifier", folder: Path) -> None:
    """Accuracy and what looks known, class by class; classes that were not learned should look unknown."""
    from osscl.cli.show import console, table
    from osscl.data.folders import load_folder

    assert made.setting is not None
    pictures = load_folder(folder, made.setting.images.size, made.setting.images.channels)
    tell(pictures.problems)
    if again := sum(name is not None for name in made.learned_as(pictures.images)):
        typer.echo(f"{again} of these {len(pictures)} images were learned from: on those it is no test", err=True)
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


def tell(problems: Sequence[str]) -> None:
    """What was left out, on the error stream."""
    for problem in problems[:TOLD]:
        typer.echo(f"left out: {in_one_line(problem)}", err=True)
    if (more := len(problems) - TOLD) > 0:
        typer.echo(f"left out: {more} more", err=True)


def in_one_line(text: str) -> str:
    """A file's name may hold anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
