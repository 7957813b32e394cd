"""`osscl sort`: pictures into folders, those that look like nothing learned in groups that may be new classes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli.inspect import Device, tell

if TYPE_CHECKING:
    from osscl.agent.sorting import Place
    from osscl.experiments.saved import Model


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
    from osscl.agent.sorting import bring, places_for, require_empty
    from osscl.cli.show import quoted
    from osscl.data.folders import load_pictures
    from osscl.experiments.saved import load, require_threshold

    require_empty(into)
    loaded = load(model, device)
    require_threshold(loaded, threshold, model)
    pictures = load_pictures(images, loaded.images.size, loaded.images.channels)
    tell(pictures.problems)
    places = places_for(loaded, pictures, threshold, groups)
    bring(places, into, link=link)
    _show(places, into, loaded)
    unknown = next((place.to.parts[0] for place in places if place.known is False), None)
    if unknown is not None:
        typer.echo(f"to learn what is new: clear the groups in {into / unknown}, rename them to what they show, then")
        typer.echo(f"          {quoted('osscl', 'update', model, '--labeled', into / unknown)}")


def _show(places: "Sequence[Place]", into: Path, loaded: "Model") -> None:
    """How many went where, on the terminal; the pictures themselves on a page, those that look unknown first."""
    from osscl.cli.show import console, table
    from osscl.report.contact import Picture, contact_sheet
    from osscl.stored import write_text

    folders: dict[str, list[Picture]] = {}
    for place in sorted(places, key=_rank):
        words = f"nearest: {place.name}" if place.known is False else f"{place.probability:.2f}"
        score = "" if place.score is None else f", score {place.score:.3f}"
        more = f"{place.file}: {place.name} {place.probability:.2f}{score}"
        folders.setdefault(str(place.to.parent), []).append(Picture(place.to, words, more))
    counts = table("folder", "pictures")
    for folder, pictures in folders.items():
        counts.add_row(folder, str(len(pictures)))
    console().print(counts)
    notes = ["Under a picture: the probability of its class, or the class that is nearest to what looks unknown."]
    if loaded.threshold is None:
        notes.append("This method does not tell what it knows: every picture went to its nearest class.")
    unknown = [place.to.parts[0] for place in places if place.known is False]
    first = sorted(folders, key=lambda folder: folder.partition("/")[0] not in unknown)
    page = contact_sheet(f"{len(places)} pictures, sorted", notes, {folder: folders[folder] for folder in first})
    write_text(into / "index.html", page)
    typer.echo(f"look at:  {into / 'index.html'}")


def _rank(place: "Place") -> tuple[bool, list[str | int], float]:
    """Classes by name, then groups by number; within a folder what is surest first."""
    score = place.score if place.score is not None else place.probability
    parts = [int(part) if part.isdigit() else part for part in str(place.to.parent).split("-")]
    return place.known is False, parts if place.known is False else [str(place.to.parent)], -score
