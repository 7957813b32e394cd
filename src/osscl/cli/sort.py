"""`osscl sort`: pictures into folders, those that look like nothing learned in groups that may be new classes."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli.inspect import in_one_line, tell
from osscl.cli.options import Device

if TYPE_CHECKING:
    from osscl.agent.sorting import Place
    from osscl.runs.model import Model


def sort(
    model: Annotated[Path, typer.Argument(metavar="AGENT", help="The folder of an agent, or of a finished run.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Files, or folders and all below them.")],
    into: Annotated[Path, typer.Option(metavar="DIR", help="A new folder for what is sorted.")],
    groups: Annotated[
        int | None,
        typer.Option(min=1, help="Groups of unknown pictures; else as many as suit them.", show_default=False),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Score above which a picture looks known; the agent's own by default.", show_default=False),
    ] = None,
    link: Annotated[bool, typer.Option("--link", help="Links to the pictures in place of copies.")] = False,
    device: Device = "auto",
) -> None:
    """Sort pictures into a folder for each class; unknown ones into groups, to be named and learned next."""
    from osscl.agent.sorting import PAGE, bring, new_folder, places_for, require_new
    from osscl.cli.show import quoted
    from osscl.data.folders import load_pictures
    from osscl.runs.model import load, require_threshold
    from osscl.storage import write_text

    require_new(into, [*images, model])
    loaded = load(model, device)
    require_threshold(loaded, threshold, model)
    pictures = load_pictures(images, loaded.images.size, loaded.images.channels)
    tell(pictures.problems)
    places = places_for(loaded, pictures, threshold, groups)
    with new_folder(into) as draft:
        brought = bring(places, draft, link=link)
        write_text(draft / PAGE, _page(brought, loaded))
    tell([f"{place.file}: it is gone" for place in places if place not in brought])
    _show(brought)
    typer.echo(f"look at:  {into / PAGE}")
    unknown = next((place.to.parts[0] for place in brought if place.known is False), None)
    if unknown is not None:
        typer.echo(f"to learn what is new: clear the groups in {into / unknown}, rename them to what they show, then")
        again = quoted(
            "osscl", "update", model, "--labeled", into / unknown, *(w for x in images for w in ("--unlabeled", x))
        )
        typer.echo(f"          {again}")


def _show(places: "Sequence[Place]") -> None:
    """How many went where."""
    from osscl.cli.show import console, table

    counts = Counter(str(place.to.parent) for place in sorted(places, key=_rank))
    shown = table("folder", "pictures")
    for folder, n in counts.items():
        shown.add_row(in_one_line(folder), str(n))
    console().print(shown)


def _page(places: "Sequence[Place]", loaded: "Model") -> str:
    """The pictures themselves, those that look unknown first."""
    from osscl.report.contact import Picture, contact_sheet

    folders: dict[str, list[Picture]] = {}
    for place in sorted(places, key=lambda place: (place.known is not False, *_rank(place))):
        words = f"nearest: {place.name}" if place.known is False else f"{place.probability:.2f}"
        score = "" if place.score is None else f", score {place.score:.3f}"
        more = f"{place.file}: {place.name} {place.probability:.2f}{score}"
        folders.setdefault(str(place.to.parent), []).append(Picture(place.to, words, more))
    notes = ["Under a picture: the probability of its class, or the class that is nearest to what looks unknown."]
    if loaded.threshold is None:
        notes.append("This method does not tell what it knows: every picture went to its nearest class.")
    return contact_sheet(f"{len(places)} pictures, sorted", notes, folders)


def _rank(place: "Place") -> tuple[bool, str, int, float]:
    """Classes by name, then groups by number; within a folder what is surest first."""
    score = place.score if place.score is not None else place.probability
    unknown = place.known is False
    number = int(place.to.parent.name.removeprefix("group-")) if unknown else 0
    return unknown, "" if unknown else str(place.to.parent), number, -score
