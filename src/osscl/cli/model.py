"""`osscl predict`: what a run ends in, put to use."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osscl.errors import DataError, UserError, unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from osscl.data.images import ImageBank
    from osscl.runs.model import Model

ASKED = 400  # held-out rows of a set that the closing line speaks of


def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run, or of an agent.")],
    images: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[IMAGE]...", help="Files, or folders and all below; central squares. Else test rows."),
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="How many held-out rows, where no image is given.")] = 8,
    threshold: Annotated[
        float | None,
        typer.Option(help="Score above which an image looks known; the run's own by default.", show_default=False),
    ] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where data sets lie.", show_default=False)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")] = "auto",
    format: Annotated[str, typer.Option(help="table, csv or json.")] = "table",
) -> None:  # fmt: skip
    """Name the class of each image, and whether it looks like anything learned."""
    from osscl.runs.model import load, require_threshold

    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    loaded = load(folder, device)
    require_threshold(loaded, threshold, folder)
    threshold = loaded.threshold if threshold is None else threshold
    unread = False
    if images:
        rows, names, unread = _read(images, loaded)
        _show(loaded, rows, names, [], threshold, format)
    else:
        _sample(folder, loaded, sample, threshold, data, format)
    if threshold is not None and format == "table":
        typer.echo(f"an image looks known where its score is above {threshold:.3f}; --threshold moves that")
    if unread:
        raise typer.Exit(2)


def _read(images: list[Path], loaded: "Model") -> "tuple[Tensor, list[str], bool]":
    """The images that can be read and their names; of several, one that cannot is told and left out."""
    from osscl.data.folders import decoded, image_files

    files, problems = list[Path](), list[str]()
    for path in images:
        try:
            files += image_files(path)
        except DataError as error:
            problems.append(str(error))
    rows, kept, unread = decoded(files, loaded.images.size, loaded.images.channels)
    problems += unread
    if not kept:
        raise UserError(problems[0] + f", and {len(problems) - 1} more" * (len(problems) > 1))
    for problem in problems:
        typer.echo(f"skipped: {problem}", err=True)
    return rows, list(map(str, kept)), bool(problems)


def _sample(folder: Path, loaded: "Model", sample: int, threshold: float | None, data: Path | None, form: str) -> None:
    """Test rows of the main data set, and of a peripheral one."""
    import torch

    from osscl.runs.model import read_spec

    scenario = read_spec(folder).scenario
    counts = {scenario.main: sample - sample // 4, **dict.fromkeys(scenario.peripheral[:1], sample // 4)}
    held_out = {name: bank for name in counts if len((bank := _bank(name, data)).test)}
    if scenario.main not in held_out:
        raise UserError(f"{scenario.main} has no test images to show: give image files")
    every = {
        name: _rows(bank, loaded.agent.classes if name == scenario.main else None) for name, bank in held_out.items()
    }
    rows = {name: every[name][: counts[name]] for name in held_out}
    names = [f"{name} test {row}" for name in held_out for row in rows[name].tolist()]
    truth = [word for name, bank in held_out.items() for word in _words(bank, rows[name])]
    pictures = torch.cat([bank.test.images[rows[name]] for name, bank in held_out.items()])
    _show(loaded, pictures, names, truth, threshold, form)
    if form == "table":
        for name, bank in held_out.items():
            typer.echo(_summary(loaded, name, bank, every[name], threshold, learned=name == scenario.main))


def _show(
    loaded: "Model", rows: "Tensor", names: list[str], truth: list[str], threshold: float | None, form: str
) -> None:
    found = loaded.predict(rows, threshold)
    scores = [None] * len(names) if found.scores is None else found.scores.tolist()
    known = [None] * len(names) if found.known is None else found.known.tolist()
    columns: dict[str, Sequence[Any]] = {"image": names, **({"truth": truth} if truth else {}), "class": found.names}
    columns |= {"probability": found.probabilities.tolist(), "score": scores, "looks_known": known}
    FORMATS[form]([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])


def _as_table(rows: "Sequence[dict[str, Any]]") -> None:
    from osscl.cli.show import DASH, console, number, table

    shown = table(*(name.replace("_", " ") for name in rows[0]))
    for row in rows:
        known = {True: "yes", False: "no", None: DASH}[row["looks_known"]]
        numbers = number(row["probability"], 2), number(row["score"], 3)
        shown.add_row(*[row[name] for name in row if name in ("image", "truth", "class")], *numbers, known)
    console().print(shown)


def _as_csv(rows: "Sequence[dict[str, Any]]") -> None:
    """Empty where the method does not tell."""
    import csv
    import sys

    written = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
    written.writeheader()
    written.writerows(rows)


def _as_json(rows: "Sequence[dict[str, Any]]") -> None:
    import json

    typer.echo(json.dumps(rows, indent=1))


FORMATS = {"table": _as_table, "csv": _as_csv, "json": _as_json}


def _summary(
    loaded: "Model", name: str, bank: "ImageBank", rows: "Tensor", threshold: float | None, *, learned: bool
) -> str:
    """How such images fare as a whole: a handful may be an unlucky one."""
    rows = rows[:ASKED]
    found = loaded.predict(bank.test.images[rows], threshold)
    right = sum(a == b for a, b in zip(found.names, _words(bank, rows), strict=True))
    words = [f"{right} named right"] if learned else []
    if found.known is not None:
        words.append(f"{int(found.known.sum())} look known")
    return f"of {len(rows)} test images of {name}: {', '.join(words) or 'classes that are not learned'}"


def _bank(name: str, data: Path | None) -> "ImageBank":
    from osscl.data.benchmarks import load_bank
    from osscl.data.cache import cache_dir, data_dir

    return load_bank(name, data_dir(data), cache_dir())


def _rows(bank: "ImageBank", classes: "Sequence[int] | None") -> "Tensor":
    """Of the test part, those of these classes where they are given; in an order that is random and always the same."""
    import torch

    from osscl.seeding import seeded

    rows = torch.randperm(len(bank.test), generator=seeded(0, "sample", bank.name))
    return rows if classes is None else rows[torch.isin(bank.test.labels[rows], torch.tensor(classes))]


def _words(bank: "ImageBank", rows: "Tensor") -> list[str]:
    return [bank.class_names[label] for label in bank.test.labels[rows].tolist()]
