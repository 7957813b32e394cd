"""`osscl tune`: hyperparameter search on validation rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osscl.cli.run import Changes, Data, Labeled, Main, MemorySize, Name, PerClass, Peripheral, Regime, Validation
from osscl.cli.specs import spec_from_file, spec_of
from osscl.errors import SpecError, Stopped

if TYPE_CHECKING:
    from osscl.experiments.spec import RunSpec
    from osscl.experiments.trials import Search, Tried

SEARCH = "learner.lam=[.05,.2], learner.optimiser.rate=1e-4..1e-2:log, learner.gamma=learner.lam; may be repeated."


def tune(
    name: Name = None,
    main: Main = None,
    peripheral: Peripheral = None,
    labeled: Labeled = None,
    labels_per_class: PerClass = None,
    memory: MemorySize = None,
    regime: Regime = None,
    validation: Validation = None,
    method: Annotated[str | None, typer.Option(help="A configuration; see `osscl list`; ursl by default.")] = None,
    schedule: Annotated[str | None, typer.Option(help="paper (the default), short, smoke, demo.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    spec_file: Annotated[Path | None, typer.Option("--spec", metavar="FILE", help="A spec from a file.")] = None,
    changes: Changes = None,
    search: Annotated[list[str] | None, typer.Option(metavar="FIELD=VALUES", help=SEARCH)] = None,
    space: Annotated[str | None, typer.Option(help="paper: its Table 7; ursl's where no --search is given.")] = None,
    trials: Annotated[int, typer.Option(min=1, help="Over all workers and sessions.")] = 20,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="SECONDS", help="Stop cleanly after so long.")] = None,
    prune_after: Annotated[int, typer.Option(min=1, help="Finished trials before any is pruned.")] = 5,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")] = "auto",
    data: Data = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where trials and their runs go.")] = Path("tuning"),
) -> None:  # fmt: skip
    """Search hyperparameters on validation rows. Given again it goes on; given elsewhere it shares the work."""
    from osscl.device import pick_device
    from osscl.experiments.checkpoint import Options
    from osscl.experiments.space import space_of
    from osscl.experiments.spec import with_seed
    from osscl.experiments.trials import Search
    from osscl.experiments.tune import on_validation_rows

    flags = {
        "main": main, "peripheral": peripheral, "labeled": labeled, "labels_per_class": labels_per_class,
        "memory": memory, "regime": regime,
    }  # fmt: skip
    if validation is not None and not validation > 0:
        raise SpecError(f"--validation must be positive here, got {validation}: test rows choose nothing")
    command = ["osscl", "run", *typed(name, {**flags, "method": method, "schedule": schedule, "set": changes})]
    held_out = {**flags, "validation": validation}
    if spec_file is not None:
        spec = spec_from_file(
            spec_file, {"experiment": name, **held_out, "method": method, "schedule": schedule, "set": changes}
        )
    else:
        spec = spec_of(name, held_out, method or "ursl", schedule or "paper", changes or [], None)
    named = space or ("paper" if not search and spec.type == "ursl" else None)
    sought = space_of(search or [], named, spec.method)
    pick_device(device)  # a wrong one is told before anything is stored
    plan = Search(on_validation_rows(with_seed(spec, seed)), sought, out, prune_after)
    carry_out(plan, Options(data=data, device=device), trials, timeout, [] if spec_file is not None else command)


def typed(name: str | None, flags: dict[str, Any]) -> list[str]:
    """The words of a command line that say the same."""
    words = [name] if name is not None else []
    for key, value in flags.items():
        for one in value if isinstance(value, list) else [value]:
            words += [f"--{key.replace('_', '-')}", str(one)] if one is not None else []
    return words


def carry_out(search: "Search", options: Any, trials: int, timeout: float | None, command: Sequence[str]) -> None:
    from osscl.cli.show import console, quoted, watching
    from osscl.experiments.trials import best, open_study, tried
    from osscl.experiments.tune import tune

    stopped = False
    try:
        tune(search, options, trials, timeout, watching)
    except Stopped:
        stopped = True
    found = tried(open_study(search))
    console().print(shown(found, search))
    leader = best(found)
    if leader is not None:
        words = command or ["osscl", "run", "--spec", str(write_best(search, leader))]
        settings = [word for change in leader.changes for word in ("--set", change)] if command else []
        typer.echo(f"best, trial {leader.number}: {quoted(*words, *settings)}")
    if stopped:
        raise Stopped


def shown(trials: "Sequence[Tried]", search: "Search") -> Any:
    from osscl.cli.show import DASH, number, table
    from osscl.experiments.spec import describe_schedule
    from osscl.report.naming import setting_words

    spec = search.spec
    caption = (
        f"Accuracy in % on validation rows ({100 * spec.scenario.validation_share:g} % of the main training images); "
        f"{setting_words(spec.scenario)}; schedule {describe_schedule(spec)}, seed {spec.seed}, n = 1 run a trial"
    )
    made = table(
        "trial", "state", *(dimension.field for dimension in search.space), "by step", "final %", caption=caption
    )
    for trial in trials:
        values = dict(change.split("=", 1) for change in trial.changes)
        cells = [values.get(dimension.field, DASH).strip('"') for dimension in search.space]
        steps = " ".join(number(value) for value in trial.by_step) or DASH
        made.add_row(str(trial.number), trial.why or trial.state, *cells, steps, number(trial.final))
    return made


def write_best(search: "Search", leader: "Tried") -> Path:
    """The best spec as a file, on test rows again; for a search that began from a file."""
    from dataclasses import replace

    from osscl.experiments.run import as_json
    from osscl.frozen import override
    from osscl.stored import write_text

    spec: RunSpec = replace(
        search.spec,
        method=override(search.spec.method, leader.changes),
        scenario=replace(search.spec.scenario, validation_share=0.0),
    )
    path = search.folder / f"best-{search.name}.json"
    write_text(path, as_json(spec))
    return path
