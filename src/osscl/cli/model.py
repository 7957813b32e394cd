"""`osscl predict`: what a run ends in, put to use."""

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osscl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from osscl.data.images import ImageBank

ASKED = 400  # held-out rows of a set that the closing line speaks of


def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    images: Annotated[list[Path] | None, typer.Argument(metavar="[IMAGE]...", help="Files; else test rows.")] = None,
    sample: Annotated[int, typer.Option(min=1, help="How many held-out rows, where no image is given.")] = 8,
    threshold: Annotated[
        float | None,
        typer.Option(help="Score above which an image looks known; the run's own by default.", show_default=False),
    ] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where data sets lie.", show_default=False)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")] = "auto",
) -> None:  # fmt: skip
    """Name the class of each image, and whether it looks like anything learned."""
    from osscl.experiments.saved import load, read_images, read_spec

    if threshold is not None and isnan(threshold):
        raise UserError("--threshold must be a number")
    loaded = load(folder, device)
    if threshold is not None and loaded.threshold is None:
        raise UserError(f"--threshold: the method of {folder} does not tell what it knows")
    threshold = loaded.threshold if threshold is None else threshold
    if images:
        _show(loaded, read_images(images, loaded.images), [str(path) for path in images], [], threshold)
        return
    import torch

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
    _show(loaded, pictures, names, truth, threshold)
    for name, bank in held_out.items():
        typer.echo(_summary(loaded, name, bank, every[name], threshold, learned=name == scenario.main))
    if threshold is not None:
        typer.echo(f"an image looks known where its score is above {threshold:.3f}; --threshold moves that")


def _show(loaded: Any, rows: "Tensor", names: list[str], truth: list[str], threshold: float | None) -> None:
    from osscl.cli.show import DASH, console, table

    found = loaded.predict(rows, threshold)
    shown = table("image", *(["truth"] if truth else []), "class", "probability", "score", "looks known")
    for i, name in enumerate(names):
        score = DASH if found.scores is None else f"{float(found.scores[i]):.3f}"
        known = DASH if found.known is None else ("yes" if found.known[i] else "no")
        true = [truth[i]] if truth else []
        shown.add_row(name, *true, found.names[i], f"{float(found.probabilities[i]):.2f}", score, known)
    console().print(shown)


def _summary(
    loaded: Any, name: str, bank: "ImageBank", rows: "Tensor", threshold: float | None, *, learned: bool
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
    from osscl.data.places import cache_dir, data_dir

    return load_bank(name, data_dir(data), cache_dir())


def _rows(bank: "ImageBank", classes: "Sequence[int] | None") -> "Tensor":
    """Of the test part, those of these classes where they are given; in an order that is random and always the same."""
    import torch

    from osscl.stream.randomness import seeded

    rows = torch.randperm(len(bank.test), generator=seeded(0, "sample", bank.name))
    return rows if classes is None else rows[torch.isin(bank.test.labels[rows], torch.tensor(classes))]


def _words(bank: "ImageBank", rows: "Tensor") -> list[str]:
    return [bank.class_names[label] for label in bank.test.labels[rows].tolist()]
