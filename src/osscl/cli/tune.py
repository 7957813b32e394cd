"""`osscl tune`: hyperparameter search on validation rows."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osscl.cli.options import Data, Device
from osscl.cli.specs import Changes, Flags, ScheduleName, SpecFile, spec_from_file, spec_of, with_scenario_options
from osscl.errors import SpecError, Stopped

if TYPE_CHECKING:
    from osscl.runs.spec import RunSpec
    from osscl.tools.tune import Search, TrialSummary

SEARCH = (
    "A field to search, as in learner.lam=[.05,.2], learner.optimiser.rate=1e-4..1e-2:log or "
    "learner.gamma=learner.lam; may be repeated."
)


@with_scenario_options
def tune(
    scenario: Flags,
    method: Annotated[str | None, typer.Option(help="A method; see `osscl list`. Default: ursl.")] = None,
    schedule: ScheduleName = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed. Default: 0.", show_default=False)] = None,
    spec_file: SpecFile = None,
    changes: Changes = None,
    search: Annotated[list[str] | None, typer.Option(metavar="FIELD=VALUES", help=SEARCH)] = None,
    space: Annotated[str | None, typer.Option(help="Predefined space: paper (Table 7), the default for ursl.")] = None,
    trials: Annotated[int, typer.Option(min=1, help="Number of trials, in total for all workers.")] = 20,
    max_minutes: Annotated[float | None, typer.Option(min=0, help="Stop cleanly after this time.")] = None,
    prune_after: Annotated[int, typer.Option(min=1, help="Finished trials before pruning starts.")] = 5,
    device: Device = "auto",
    data: Data = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where trials and their runs are written.")] = Path("tuning"),
) -> None:  # fmt: skip
    """Search hyperparameters on validation rows. Run the command again to resume, or in parallel to share the work."""
    from osscl.device import pick_device
    from osscl.runs.checkpoint import Options
    from osscl.runs.spec import on_validation_rows, with_seed
    from osscl.tools.tune import Search, space_of

    if (share := scenario["validation"]) is not None and not share > 0:
        raise SpecError(f"--validation must be positive here, got {share}; a search is scored on validation images")
    if spec_file is not None:
        spec = spec_from_file(spec_file, {**scenario, "method": method, "schedule": schedule, "set": changes})
        command = []
    else:
        spec = spec_of(scenario, method, schedule, changes or [])
        flags = {**scenario, "validation": None, "method": method, "schedule": schedule, "set": changes, "seed": seed}
        command = ["osscl", "run", *arguments(flags)]
    named = space or ("paper" if not search and spec.type == "ursl" else None)
    sought = space_of(search or [], named, spec.method)
    pick_device(device)  # refuse a wrong one before anything is stored
    spec = spec if seed is None else with_seed(spec, seed)
    plan = Search(on_validation_rows(spec), sought, out, prune_after)
    run_search(plan, Options(data=data, device=device), trials, max_minutes, command)


def arguments(flags: Flags) -> list[str]:
    """The arguments of a command line with the same meaning."""
    words: list[str] = []
    for key, value in flags.items():
        option = [] if key == "experiment" else [f"--{key.replace('_', '-')}"]
        given = value if isinstance(value, list) else [value]
        words += [word for one in given if one is not None for word in (*option, str(one))]
    return words


def run_search(search: "Search", options: Any, trials: int, max_minutes: float | None, command: Sequence[str]) -> None:
    from osscl.cli.show import console, quoted, watching
    from osscl.tools.tune import as_changes, best_trial, open_study, run_trials, trial_summaries

    stopped = False
    try:
        seconds = None if max_minutes is None else 60 * max_minutes
        run_trials(search, options, trials, seconds, lambda title: watching(f"{title} ({trials} in total)"))
    except Stopped:
        stopped = True
    found = trial_summaries(open_study(search))
    typer.echo(search_text(found, search, console().width))
    leader = best_trial(found)
    if leader is not None:
        words = command or ["osscl", "run", "--spec", str(write_best(search, leader))]
        settings = [word for change in as_changes(leader.values) for word in ("--set", change)] if command else []
        typer.echo(f"best, trial {leader.number}: {quoted(*words, *settings)}")
    if stopped:
        raise Stopped


def search_text(trials: "Sequence[TrialSummary]", search: "Search", width: int) -> str:
    """What was searched, then one paragraph per trial, best first."""
    import textwrap

    from osscl.report.naming import setting_words
    from osscl.runs.spec import describe_schedule

    spec, names = search.spec, short_names(search)
    caption = (
        f"Accuracy in % on validation rows ({100 * spec.scenario.validation_share:g} % of the main training images); "
        f"{setting_words(spec.scenario)}; schedule {describe_schedule(spec)}, seed {spec.seed}, n = 1 run per trial. "
        f"Searched: {', '.join(names)}."
    )
    paragraphs = [caption, *(trial_words(trial, names) for trial in sorted(trials, key=trial_place))]
    return "\n".join(
        textwrap.fill(text, width, subsequent_indent="    " * (i > 0), break_long_words=False, break_on_hyphens=False)
        for i, text in enumerate(paragraphs)
    )


def short_names(search: "Search") -> dict[str, str]:
    """The searched fields without tied ones, each by the shortest ending that is unique."""
    from osscl.tools.tune import Tied

    fields = [dimension.field for dimension in search.space if not isinstance(dimension, Tied)]
    ends = {field: [".".join(field.split(".")[i:]) for i in range(field.count("."), -1, -1)] for field in fields}
    every = [end for field in fields for end in ends[field]]
    return {field: next((end for end in ends[field] if every.count(end) == 1), field) for field in fields}


def trial_place(trial: "TrialSummary") -> tuple[bool, float, int]:
    """Finished trials first, best first; of equal ones, the earliest first."""
    return trial.final is None, -(trial.final or 0.0), trial.number


def trial_words(trial: "TrialSummary", names: dict[str, str]) -> str:
    """Number, state, last accuracy, values of the searched fields, and why it failed."""
    from osscl.cli.show import number

    values = {field: json.loads(text) for field, text in trial.values.items()}
    pairs = [f"{name}={_short(values[field])}" for field, name in names.items() if field in values]
    last = max(trial.by_step, default=None)
    accuracy = trial.final if trial.final is not None or last is None else trial.by_step[last]
    state = f"{trial.state} after step {last + 1}" if trial.state == "pruned" and last is not None else trial.state
    why = [f"({trial.why})"] if trial.why else []
    return "  ".join([f"trial {trial.number}", state, f"{number(accuracy)} %", " ".join(pairs), *why])


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def write_best(search: "Search", leader: "TrialSummary") -> Path:
    """Write the best spec, evaluated on test rows, to a file; used for a search that was started from a file."""
    from dataclasses import replace

    from osscl.config import override
    from osscl.runs.run import as_json
    from osscl.storage import write_text
    from osscl.tools.tune import as_changes

    spec: RunSpec = replace(
        search.spec,
        method=override(search.spec.method, as_changes(leader.values)),
        scenario=replace(search.spec.scenario, validation_share=0.0),
    )
    path = search.folder / f"best-{search.name}.json"
    write_text(path, as_json(spec))
    return path
