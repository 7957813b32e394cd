"""`osscl predict` and `sort`: use a trained model on images."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osscl.cli.agent import report_problems
from osscl.cli.options import Device
from osscl.errors import DataError, UserError, require_known
from osscl.text import csv_text, printable

if TYPE_CHECKING:
    from torch import Tensor

    from osscl.agent.onnx_model import OnnxModel
    from osscl.agent.photos import PhotoModel
    from osscl.agent.sorting import SortedPicture
    from osscl.data.images import ImageBank
    from osscl.runs.model import Model, Prediction

MOST_SUMMARIZED = 400  # test images that the summary counts


def predict(
    folder: Annotated[
        Path, typer.Argument(metavar="MODEL", help="The folder of a run or of an agent, or an exported .onnx file.")
    ],
    images: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="IMAGE", help="Image files or folders (searched recursively). Default: test images of the run."
        ),
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Number of classes to show per image.")] = None,
    reject: Annotated[
        float | None,
        typer.Option(help="Share of known images to reject as unknown. Default: the agent's setting."),
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="Number of test images to use if no image is given.")] = 8,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Score above which an image looks known, for models without a pretrained encoder.", show_default=False
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Data folder.", show_default=False)] = None,
    device: Device = "auto",
    format: Annotated[str, typer.Option(help="table, csv or json.")] = "table",
) -> None:  # fmt: skip
    """Predict the class of each image, and whether it looks known."""
    from osscl.runs.model import load_model, require_threshold

    require_known("format", format, OUTPUT_FORMATS)
    if folder.suffix == ".onnx" or folder.is_file():
        _predict_photos(_onnx_model(folder, threshold, reject), images, reject, top or 3, format)
        return
    if (photos := photos_or_none(folder, device, threshold, reject)) is not None:
        _predict_photos(photos, images, reject, top or 3, format)
        return
    loaded = load_model(folder, device)
    require_threshold(loaded, threshold, folder)
    threshold = loaded.threshold if threshold is None else threshold
    unread = False
    if images:
        rows, names, unread = _read(images, loaded)
        _show(loaded.predict(rows, threshold), names, [], top or 1, format)
    else:
        _sample(folder, loaded, sample, threshold, data, format)
    if threshold is not None and format == "table":
        typer.echo(f"an image looks known if its score is above {threshold:.3f} (--threshold)")
    if unread:
        raise typer.Exit(2)


def photos_or_none(folder: Path, device: str, threshold: float | None, reject: float | None) -> "PhotoModel | None":
    """The model of an agent with a pretrained encoder; None for other models. Refuses an option that does not apply."""
    from osscl.agent.loading import photo_model

    _require_share(reject)
    found = photo_model(folder, device)
    if found is None and reject is not None:
        raise UserError("--reject applies only to agents with a pretrained encoder; use --threshold instead")
    if found is not None:
        _refuse_threshold(threshold)
    return found


def _refuse_threshold(threshold: float | None) -> None:
    if threshold is not None:
        raise UserError("--threshold applies only to models without a pretrained encoder; use --reject instead")


def _require_share(reject: float | None) -> None:
    if reject is not None and not 0 < reject < 1:
        raise UserError(f"--reject must be between 0 and 1, got {reject:g}")


def _image_files(paths: list[Path]) -> tuple[list[Path], list[str]]:
    """Image files below the given paths, and what is wrong with paths that have none."""
    from osscl.data.folders import image_files

    files, problems = list[Path](), list[str]()
    for path in paths:
        try:
            files += image_files(path)
        except DataError as error:
            problems.append(str(error))
    return files, problems


def _first_of(problems: list[str]) -> DataError:
    return DataError(problems[0] + f", and {len(problems) - 1} more" * (len(problems) > 1))


def _onnx_model(file: Path, threshold: float | None, reject: float | None) -> "OnnxModel":
    from osscl.agent.onnx_model import OnnxModel

    _require_share(reject)
    _refuse_threshold(threshold)
    return OnnxModel(file)


def _predict_photos(
    model: "PhotoModel | OnnxModel", images: list[Path] | None, reject: float | None, top: int, form: str
) -> None:
    """Show predictions for photographs; if several are given, unreadable ones are reported and skipped."""
    if not images:
        raise UserError("no images to predict: give image files or folders")
    files, problems = _image_files(images)
    found, more = model.predict_files(files, reject)
    problems += more
    if not found:
        raise _first_of(problems)
    report_problems(problems)
    _show(found[0], [str(path) for path in found[1]], [], top, form)
    if form == "table":
        limit = f"an image below {100 * (model.reject if reject is None else reject):g} % counts as unknown (--reject)"
        typer.echo(f"known %: share of known images with a lower score; {limit}")
    if problems:
        raise typer.Exit(2)


def _read(images: list[Path], loaded: "Model") -> "tuple[Tensor, list[str], bool]":
    """The readable images and their names; if several are given, unreadable ones are reported and skipped."""
    from osscl.data.folders import decoded

    files, problems = _image_files(images)
    rows, kept, unread = decoded(files, loaded.images.size, loaded.images.channels)
    problems += unread.values()
    if not kept:
        raise _first_of(problems)
    report_problems(problems)
    return rows, list(map(str, kept)), bool(problems)


def _sample(folder: Path, loaded: "Model", sample: int, threshold: float | None, data: Path | None, form: str) -> None:
    """Predict test images of the main data set and of a peripheral one."""
    import torch

    from osscl.runs.model import read_spec

    scenario = read_spec(folder).scenario
    counts = {scenario.main: sample - sample // 4, **dict.fromkeys(scenario.peripheral[:1], sample // 4)}
    held_out = {name: bank for name in counts if len((bank := _bank(name, data)).test)}
    if scenario.main not in held_out:
        raise UserError(f"{scenario.main} has no test images: give image files")
    every = {
        name: _rows(bank, loaded.agent.classes if name == scenario.main else None) for name, bank in held_out.items()
    }
    rows = {name: every[name][: counts[name]] for name in held_out}
    names = [f"{name} test {row}" for name in held_out for row in rows[name].tolist()]
    truth = [word for name, bank in held_out.items() for word in _words(bank, rows[name])]
    pictures = torch.cat([bank.test.images[rows[name]] for name, bank in held_out.items()])
    _show(loaded.predict(pictures, threshold), names, truth, 1, form)
    if form == "table":
        for name, bank in held_out.items():
            typer.echo(_summary(loaded, name, bank, every[name], threshold, learned=name == scenario.main))


@dataclass(frozen=True)
class PredictedImage:
    """An image, its true class where that is known, and what the model says about it."""

    image: str
    truth: str | None
    name: str
    probability: float
    further: Sequence[tuple[str, float]]  # less probable classes with their probabilities, best first
    score: float | None
    known: bool | None
    is_calibrated: bool  # whether the score is a share of known images

    def columns(self) -> dict[str, Any]:
        """The columns of CSV and JSON."""
        found: dict[str, Any] = {"image": self.image, **({} if self.truth is None else {"truth": self.truth})}
        for place, (name, probability) in enumerate([(self.name, self.probability), *self.further], 1):
            end = "" if place == 1 else f"_{place}"
            found |= {f"class{end}": name, f"probability{end}": probability}
        score = {"known_percent": self.known_percent} if self.is_calibrated else {"score": self.score}
        return {**found, **score, "looks_known": self.known}

    @property
    def known_percent(self) -> float | None:
        return None if self.score is None else round(100 * self.score, 1)


def _show(found: "Prediction", names: list[str], truth: list[str], top: int, form: str) -> None:
    nothing = [None] * len(names)
    scores = nothing if found.scores is None else found.scores.tolist()
    known = nothing if found.known is None else found.known.tolist()
    further = [ranked[1:] for ranked in found.top(top)]
    calibrated = [found.calibrated] * len(names)
    parts = names, truth or nothing, found.names, found.probabilities.tolist(), further, scores, known, calibrated
    OUTPUT_FORMATS[form]([PredictedImage(*row) for row in zip(*parts, strict=True)])


def _as_table(rows: Sequence[PredictedImage]) -> None:
    """Further classes are in one column: "dog 0.04, fox 0.01"."""
    from osscl.cli.show import DASH, console, new_table, number

    first = rows[0]
    truth, further = ["truth"] * (first.truth is not None), ["then"] * bool(first.further)
    score = "known %" if first.is_calibrated else "score"
    shown = new_table("image", *truth, "class", "probability", *further, score, "looks known")
    for row in rows:
        then = ", ".join(f"{name} {probability:.2f}" for name, probability in row.further)
        shown.add_row(
            row.image, *([] if row.truth is None else [row.truth]), row.name, number(row.probability, 2),
            *([then] if row.further else []),
            number(row.known_percent, 1) if row.is_calibrated else number(row.score, 3),
            {True: "yes", False: "no", None: DASH}[row.known],
        )  # fmt: skip
    console().print(shown)


def _as_csv(rows: Sequence[PredictedImage]) -> None:
    """Cells are empty if the method does not detect unknown images."""
    import csv
    import sys

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(rows[0].columns())
    for row in rows:
        writer.writerow(csv_text(value) if isinstance(value, str) else value for value in row.columns().values())


def _as_json(rows: Sequence[PredictedImage]) -> None:
    import json

    typer.echo(json.dumps([row.columns() for row in rows], indent=1))


OUTPUT_FORMATS = {"table": _as_table, "csv": _as_csv, "json": _as_json}


def _summary(
    loaded: "Model", name: str, bank: "ImageBank", rows: "Tensor", threshold: float | None, *, learned: bool
) -> str:
    """One line about many images, since the few shown may not be representative."""
    rows = rows[:MOST_SUMMARIZED]
    found = loaded.predict(bank.test.images[rows], threshold)
    right = sum(a == b for a, b in zip(found.names, _words(bank, rows), strict=True))
    words = [f"{right} correct"] if learned else []
    if found.known is not None:
        words.append(f"{int(found.known.sum())} look known")
    return f"of {len(rows)} test images of {name}: {', '.join(words) or 'classes not learned'}"


def _bank(name: str, data: Path | None) -> "ImageBank":
    from osscl.data.benchmarks import load_bank
    from osscl.places import cache_dir, data_dir

    return load_bank(name, data_dir(data), cache_dir())


def _rows(bank: "ImageBank", classes: "Sequence[int] | None") -> "Tensor":
    """Test rows, of these classes if given, in a fixed random order."""
    import torch

    from osscl.seeding import seeded

    rows = torch.randperm(len(bank.test), generator=seeded(0, "sample", bank.name))
    return rows if classes is None else rows[torch.isin(bank.test.labels[rows], torch.tensor(classes))]


def _words(bank: "ImageBank", rows: "Tensor") -> list[str]:
    return [bank.class_names[label] for label in bank.test.labels[rows].tolist()]


def sort(
    model: Annotated[Path, typer.Argument(metavar="AGENT", help="The folder of an agent, or of a finished run.")],
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE", help="Image files or folders, searched recursively.")
    ],
    into: Annotated[Path, typer.Option(metavar="DIR", help="A new folder for the sorted pictures.")],
    groups: Annotated[
        int | None,
        typer.Option(min=1, help="Number of groups of unknown pictures. Default: determined from the data."),
    ] = None,
    reject: Annotated[
        float | None,
        typer.Option(help="Share of known images to reject as unknown. Default: the agent's setting."),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Score above which a picture looks known, for models without a pretrained encoder."),
    ] = None,
    link: Annotated[bool, typer.Option("--link", help="Create links instead of copies.")] = False,
    device: Device = "auto",
) -> None:  # fmt: skip
    """Sort pictures into one folder per class, and unknown ones into groups that can be named and learned next."""
    from osscl.agent.sorting import PAGE, place_pictures, require_new_folder, sheet_of
    from osscl.cli.show import quoted
    from osscl.storage import new_folder, write_text

    require_new_folder(into, [*images, model])
    photos = photos_or_none(model, device, threshold, reject)
    if photos is not None:
        pictures = _sorted_photos(photos, images, reject, groups)
    else:
        pictures = _sorted_pixels(model, images, threshold, groups, device)
    with new_folder(into) as draft:
        done, missing = place_pictures(pictures, draft, link=link)
        write_text(draft / PAGE, sheet_of(done))
    report_problems([f"{picture.file}: no longer exists" for picture in missing])
    _show_counts(done)
    typer.echo(f"open:     {into / PAGE}")
    unknown_folder = next((picture.target.parts[0] for picture in done if picture.known is False), None)
    if unknown_folder is not None:
        typer.echo(f"to learn new classes: clean up the groups in {into / unknown_folder}, rename them, then run")
        pile = (word for path in images for word in ("--unlabeled", path))
        typer.echo(f"          {quoted('osscl', 'update', model, '--labeled', into / unknown_folder, *pile)}")


def _sorted_photos(
    photos: "PhotoModel", images: list[Path], reject: float | None, groups: int | None
) -> "list[SortedPicture]":
    from osscl.agent.sorting import predict_embedded, sort_files
    from osscl.data.folders import list_unlabeled

    given = list_unlabeled(images)
    found = photos.learner.embed(given.files)
    report_problems([*given.notes, *(one.reason for one in found.skipped)])
    if not len(found):
        raise DataError(found.skipped[0].reason)
    predictions = predict_embedded(photos, found, reject, groups)
    return sort_files([given.files[i] for i in found.indices], predictions, photos.classes)


def _sorted_pixels(
    folder: Path, images: list[Path], threshold: float | None, groups: int | None, device: str
) -> "list[SortedPicture]":
    from osscl.agent.sorting import predict_pixels, sort_files
    from osscl.data.folders import load_pictures
    from osscl.runs.model import load_model, require_threshold

    loaded = load_model(folder, device)
    require_threshold(loaded, threshold, folder)
    pictures = load_pictures(images, loaded.images.size, loaded.images.channels)
    report_problems(pictures.problems)
    return sort_files(pictures.files, predict_pixels(loaded, pictures, threshold, groups), loaded.classes)


def _show_counts(pictures: "Sequence[SortedPicture]") -> None:
    """Print the number of pictures in each folder."""
    from osscl.agent.sorting import rank
    from osscl.cli.show import console, new_table

    counts = Counter(str(picture.target.parent) for picture in sorted(pictures, key=rank))
    shown = new_table("folder", "pictures")
    for folder, n in counts.items():
        shown.add_row(printable(folder), str(n))
    console().print(shown)
