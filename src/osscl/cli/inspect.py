"""`osscl inspect`: what an agent has learned, and how well it does on test folders."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osscl.cli.agent import Agent, report_problems
from osscl.cli.options import Device
from osscl.errors import UserError, require_known
from osscl.text import counted, printable

if TYPE_CHECKING:
    from torch import Tensor

    from osscl.agent.classifier import ContinualClassifier
    from osscl.runs.model import Evaluation

WIDE = 120  # terminal columns from which the times of steps are shown
MEDIUM = 100  # terminal columns from which the baselines are shown
MOST_CONFUSIONS = 5  # pairs of classes in the table; JSON has all


def inspect(
    agent: Agent,
    on: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", help="A folder of labelled test images, unknown classes included; may be repeated."
        ),
    ] = None,
    format: Annotated[str, typer.Option(help="table or json.")] = "table",
    device: Device = "auto",
) -> None:
    """Show what an agent has learned, and its accuracy on folders of labelled images."""
    from osscl.agent.classifier import ContinualClassifier
    from osscl.agent.store import checkpoint_file, earlier_models, is_interrupted, model_file, read_command
    from osscl.storage import is_locked

    require_known("format", format, ("table", "json"))
    command = read_command(agent)
    if command is not None and not model_file(agent).exists() and not checkpoint_file(agent).exists():
        typer.echo(f"nothing learned yet: the first step was interrupted; resume it with: {command}")
        return
    made = ContinualClassifier.load(agent, device, finished=model_file(agent).exists())
    interrupted = command is not None or is_interrupted(agent)
    if on and not made.history:
        raise UserError(f"nothing learned yet: the first step of {agent} was interrupted")
    tests = [_tested(made, folder) for folder in on or ()]
    if format == "json":
        known = {"interrupted": interrupted, "resume_with": command, "earlier_models": [*earlier_models(agent)]}
        typer.echo(
            json.dumps({**_as_json(made), **known, "tests": [_test_as_json(made, *one) for one in tests]}, indent=1)
        )
        return
    if made.history:
        show_history(made)
        _show_head(made)
    else:
        typer.echo("nothing learned yet")
    if earlier := [*earlier_models(agent)]:
        typer.echo(f"other models (see `osscl back`): {', '.join(earlier)}")
    if is_locked(agent):
        typer.echo("another process is teaching this agent")
    elif interrupted:
        how = "run the same command again to resume it" if command is None else f"resume it with: {command}"
        typer.echo(f"a step was interrupted; {how}")
    for folder, result, baselines in tests:
        _show_test(made, folder, result, baselines)


def show_history(made: "ContinualClassifier") -> None:
    """Print the steps of an agent, its settings, and warnings."""
    from osscl.cli.show import DASH, console, new_table, number

    has_choices, width = any(step.measured for step in made.history), console().width
    columns = ("left-out %", "class means", "discriminants")[: 0 if not has_choices else 3 if width >= MEDIUM else 1]
    when = ("seconds", "date") if width >= WIDE else ()
    shown = new_table("step", "classes", "labelled", "unlabelled", "look known", *columns, *when)
    for i, step in enumerate(made.history, start=1):
        cells = [number(value) for value in step.accuracies][: len(columns)]
        counts = [DASH if count is None else str(count) for count in step.counts]
        times = ("" if step.edit else f"{step.seconds:.0f}", step.minute) if when else ()
        shown.add_row(str(i), printable(step.words), *counts, *cells, *times)
    console().print(shown)
    typer.echo(_settings_line(made))
    for warning in warnings_about(made):
        typer.echo(f"warning: {warning}")


def _show_head(made: "ContinualClassifier") -> None:
    from osscl.agent.photos import PhotoLearner

    if isinstance(made.learner, PhotoLearner):
        typer.echo(f"head: {made.learner.choice().head}")


def _settings_line(made: "ContinualClassifier") -> str:
    from osscl.agent.network import NetworkLearner

    count, learner = len(made.class_names), made.learner
    start = f"{counted(count, 'class', 'classes')}; "
    if isinstance(learner, NetworkLearner):
        assert learner.setting is not None
        images, recipe = learner.setting.images, learner.recipe
        return start + (
            f"{recipe.display_name}, schedule {recipe.schedule.name}, seed {recipe.seed}; "
            f"{images.size} x {images.size} pixels, {'grey' if images.channels == 1 else 'colour'}; "
            f"memory {recipe.memory}"
        )
    settings = learner.settings
    return start + (
        f"encoder {settings.encoder}, {counted(settings.views, 'view')}; "
        f"memory {settings.memory}, reject {100 * settings.reject:g} %"
    )


def warnings_about(made: "ContinualClassifier") -> list[str]:
    """Reasons to doubt what the agent says about unknown images."""
    from osscl.agent.network import NetworkLearner

    learned = [step for step in made.history if not step.edit and step.unlabeled]
    if not learned:
        return []
    last, learner, found = learned[-1], made.learner, []
    trained = isinstance(learner, NetworkLearner)
    if last.let_in is not None and last.let_in > (0.5 if trained else 0.9) * last.unlabeled:
        found.append(f"{last.let_in} of {last.unlabeled} unlabelled images look known; unknown ones may go unnoticed")
    if isinstance(learner, NetworkLearner):
        width, pile = learner.width, last.unlabeled
    else:
        assert learner.knowledge is not None
        width, pile = max(learner.encoder.widths), learner.knowledge.world.count
    if pile < width:
        found.append(
            f"only {pile} unlabelled images for embeddings of width {width:,}; known/unknown decisions are more "
            "reliable with a larger pile"
        )
    return found


def _tested(made: "ContinualClassifier", folder: Path) -> "tuple[Path, Evaluation, dict[str, float]]":
    """Predictions on a test folder, and the accuracy of the baselines in percent."""
    from osscl.agent.photos import PhotoLearner, image_rows
    from osscl.data.folders import list_labeled, load_folder
    from osscl.runs.model import compare_with_truth

    learner = made.learner
    if not isinstance(learner, PhotoLearner):
        assert learner.setting is not None
        pictures = load_folder(folder, learner.setting.images.size, learner.setting.images.channels)
        report_problems(pictures.problems)
        _warn_if_learned(made.learned_as(pictures.images))
        return folder, made.test(pictures.images, pictures.labels), {}
    given = list_labeled(folder)
    found = learner.embed(given.files)
    report_problems([*given.notes, *(one.reason for one in found.skipped)])
    if not len(found):
        raise UserError(f"{folder} contains no readable image")
    from osscl.agent.photos import image_digests

    _warn_if_learned(made.classes_by_digest(image_digests(found)))
    rows, labels = image_rows(found), tuple(given.labels[i] for i in found.indices)
    result = compare_with_truth(made.model.predict_rows(rows), labels, made.class_names)
    found_right = {name: result.accuracy_of(names) for name, names in made.model.baseline_names(rows).items()}
    return folder, result, {name: 100 * share for name, share in found_right.items() if share is not None}


def _warn_if_learned(learned: "list[str | None]") -> None:
    if again := sum(name is not None for name in learned):
        typer.echo(f"warning: {again} of these {len(learned)} images were used for training", err=True)


def _show_test(made: "ContinualClassifier", folder: Path, result: "Evaluation", baselines: "dict[str, float]") -> None:
    """Print accuracy and the share that looks known, by class; unlearned classes should look unknown."""
    from osscl.cli.show import console, new_table

    typer.echo(f"test images in {folder}:")
    shown = new_table("class", "images", "correct %", "looks known %")
    for label in sorted(set(result.labels), key=lambda label: (label not in made.class_names, label)):
        rows = result.rows_of(label)
        learned = label in made.class_names
        shares = _share(result.right if learned else None, rows), _share(result.prediction.known, rows)
        shown.add_row(label if learned else f"{label} (not learned)", str(int(rows.sum())), *shares)
    console().print(shown)
    for words, which in (("learned classes", True), ("other classes", False)):
        rows = result.learned == which
        parts = [f"{_share(result.right, rows)} % correct"] if which else []
        parts += (
            [f"{_share(result.prediction.known, rows)} % look known"] if result.prediction.known is not None else []
        )
        if parts and (count := int(rows.sum())):
            typer.echo(f"{count} images of {words}: {', '.join(parts)}")
    if baselines:
        typer.echo(f"baselines: {', '.join(f'{name} {value:.1f} % correct' for name, value in baselines.items())}")
    if result.auroc is not None:
        typer.echo(f"AUROC of the known/unknown score: {result.auroc:.3f}")
    mistakes = Counter(_mistakes(result)).most_common(MOST_CONFUSIONS)
    if mistakes:
        typer.echo("most frequent errors: " + ", ".join(f"{true} as {taken} {n}x" for (true, taken), n in mistakes))


def _mistakes(result: "Evaluation") -> list[tuple[str, str]]:
    rows = zip(result.labels, result.prediction.names, result.learned.tolist(), strict=True)
    return [(label, name) for label, name, learned in rows if learned and label != name]


def _share(values: "Tensor | None", rows: "Tensor") -> str:
    from osscl.cli.show import DASH

    return DASH if values is None or not bool(rows.any()) else f"{100 * float(values[rows].float().mean()):.1f}"


def _as_json(made: "ContinualClassifier") -> dict[str, Any]:
    from osscl.agent.network import NetworkLearner
    from osscl.config import plain

    learner = made.learner
    if isinstance(learner, NetworkLearner):
        settings = {"encoder": "scratch", **learner.recipe.as_made(), "memory": learner.recipe.memory}
    else:
        settings = dict(vars(learner.settings))
    return {
        "classes": made.class_names,
        "settings": settings,
        "history": plain(made.history),
        "warnings": warnings_about(made),
    }


def _test_as_json(
    made: "ContinualClassifier", folder: Path, result: "Evaluation", baselines: "dict[str, float]"
) -> dict[str, Any]:
    """A test with its confusion: rows are true classes, columns are `classes`."""
    true, known = sorted(set(result.labels)), result.prediction.known
    counts = result.confusion(true, made.class_names)
    return {
        "folder": str(folder),
        "images": len(result.labels),
        "accuracy": result.accuracy,
        "baselines": {name: value / 100 for name, value in baselines.items()},
        "auroc": result.auroc,
        "known": {} if known is None else {c: float(known[result.rows_of(c)].float().mean()) for c in true},
        "confusion": {"true": true, "predicted": made.class_names, "counts": counts},
    }
