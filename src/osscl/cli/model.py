"""`osscl predict`: what a run ends in, put to use."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torch import Tensor


def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    images: Annotated[list[Path] | None, typer.Argument(metavar="[IMAGE]...", help="Files; else test rows.")] = None,
    sample: Annotated[int, typer.Option(min=1, help="How many held-out rows, where no image is given.")] = 8,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where data sets lie.", show_default=False)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")] = "auto",
) -> None:  # fmt: skip
    """Name the class of each image, and whether it looks like anything learned."""
    from osscl.cli.show import DASH, console, table
    from osscl.experiments.saved import load, read_images

    loaded = load(folder, device)
    truth: list[str] = []
    if images:
        rows, names = read_images(images, loaded.images), [str(path) for path in images]
    else:
        rows, names, truth = _held_out(folder, data, sample)
    found = loaded.predict(rows)
    shown = table("image", *(["truth"] if truth else []), "class", "probability", "gate score", "looks known")
    for i, name in enumerate(names):
        score = DASH if found.scores is None else f"{float(found.scores[i]):.3f}"
        known = DASH if found.known is None else ("yes" if found.known[i] else "no")
        true = [truth[i]] if truth else []
        shown.add_row(name, *true, found.names[i], f"{float(found.probabilities[i]):.2f}", score, known)
    console().print(shown)


def _held_out(folder: Path, data: Path | None, n: int) -> tuple["Tensor", list[str], list[str]]:
    """A few test rows of the main set and, beside them, a few of the first peripheral one."""
    import torch

    from osscl.data.benchmarks import load_bank
    from osscl.data.places import cache_dir, data_dir
    from osscl.experiments.saved import read_spec
    from osscl.stream.randomness import seeded

    scenario = read_spec(folder).scenario
    parts, names, truth = [], [], []
    shares = {scenario.main: n - n // 4, **dict.fromkeys(scenario.peripheral[:1], n // 4)}
    for name, count in shares.items():
        bank = load_bank(name, data_dir(data), cache_dir())
        if not len(bank.test):
            continue
        chosen = torch.randperm(len(bank.test), generator=seeded(0, "sample", name))[:count]
        picked = bank.test.rows(chosen)
        parts.append(picked.images)
        names += [f"{name} test {row}" for row in chosen.tolist()]
        truth += [bank.class_names[label] for label in picked.labels.tolist()]
    return torch.cat(parts), names, truth
