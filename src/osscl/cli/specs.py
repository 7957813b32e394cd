"""Build a spec from the command line or a file: the options of a scenario, and what they mean."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osscl.errors import SpecError

if TYPE_CHECKING:
    from osscl.runs.spec import RunSpec

Flags = dict[str, Any]  # values of options by name; None or [] where they were not given
SpecFile = Annotated[Path | None, typer.Option("--spec", metavar="FILE", help="Read the spec from a file.")]
StreamFile = Annotated[Path | None, typer.Option("--stream", metavar="FILE", help="Read the stream from a file.")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Set a field; may be repeated.")]
ScheduleName = Annotated[
    str | None,
    typer.Option(
        "--schedule", help="paper, short, smoke or demo. Default: paper; demo for digits.", show_default=False
    ),
]
SCENARIO_OPTIONS: dict[str, Any] = {  # of every command that builds a stream, by parameter
    "experiment": Annotated[
        str | None, typer.Argument(metavar="EXPERIMENT", help="A named experiment; see `osscl list`.")
    ],
    "main": Annotated[str | None, typer.Option(help="Main data set.")],
    "peripheral": Annotated[list[str] | None, typer.Option(help="Peripheral data set; may be repeated.")],
    "labeled": Annotated[float | None, typer.Option(help="P: labelled share of the main training images.")],
    "labels_per_class": Annotated[int | None, typer.Option(help="Labels per class, instead of a share.")],
    "memory": Annotated[int | None, typer.Option("--memory", help="|M|: labelled images kept; 0 for none.")],
    "regime": Annotated[str | None, typer.Option(help="Which classes occur unlabelled at each step. Default: osscl.")],
    "validation": Annotated[
        float | None, typer.Option(help="Share of the main training images held out for validation.")
    ],
}
MAX_SEEDS = 1000  # in one command
SCENARIO_FIELDS = {"labeled": "labeled_fraction", "validation": "validation_share"}  # of flags with shorter names
OWN_FLAGS = {"seed": "--seed", "stream": "--stream", "method": "--method"}


def with_scenario_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options in place of its first parameter, which receives them as one dict."""
    own = list(inspect.signature(command).parameters.values())[1:]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    shared = [inspect.Parameter(key, kind, default=None, annotation=SCENARIO_OPTIONS[key]) for key in SCENARIO_OPTIONS]

    @functools.wraps(command)
    def typed(**given: Any) -> None:
        command({key: given.pop(key) for key in SCENARIO_OPTIONS}, **given)

    typed.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
    return typed


def seeds_of(seed: int | None, seeds: str | None) -> list[int]:
    """0-2 means 0, 1, 2; 0,3 means 0 and 3; both can be combined."""
    if seed is not None and seeds is not None:
        raise SpecError("give --seed or --seeds, not both")
    if seeds is None:
        return [seed or 0]
    chosen: list[int] = []
    for part in seeds.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not all(end.isdecimal() and len(end) < 20 for end in (first, last)) or int(last) < int(first):
            raise SpecError(f"seeds must be written as 0-2 or 0,3,5, got {seeds!r}")
        if len(chosen) + int(last) - int(first) >= MAX_SEEDS:
            raise SpecError(f"at most {MAX_SEEDS:,} seeds are allowed, got {seeds!r}")
        chosen += range(int(first), int(last) + 1)
    return list(dict.fromkeys(chosen))


def spec_of(
    flags: Flags, method: str | None, schedule: str | None, changes: list[str], scenario: Any = None
) -> "RunSpec":  # fmt: skip
    """The spec of a named experiment, or of the `scenario` of a stream file, with flags and `--set` changes applied."""
    from dataclasses import fields, replace

    from osscl.config import from_plain, override
    from osscl.runs.spec import RunSpec, experiment, make_spec, usual_schedule
    from osscl.stream.scenario import ScenarioSpec

    if scenario is not None:
        made = from_plain(ScenarioSpec, scenario, "scenario")
    else:
        name = flags["experiment"]
        made = scenario_of(experiment(name) if name is not None else None, flags)
    names = "ursl" if method is None else method, usual_schedule(made) if schedule is None else schedule
    spec = make_spec(made, *names, 0)
    set_by_flag = {f"scenario.{SCENARIO_FIELDS.get(key, key)}": _as_typed(key) for key in _given(flags)}
    own, of_spec, of_method = {field.name for field in fields(RunSpec)} - {"method"}, [], []
    for change in changes:
        path = change.partition("=")[0].strip()
        if path in OWN_FLAGS:
            raise SpecError(f"--set {path}: use {OWN_FLAGS[path]} instead")
        if path.startswith("scenario.") and scenario is not None:
            raise SpecError(f"--stream defines the scenario: remove --set {path}")
        if (flag := set_by_flag.get(path)) is not None:
            raise SpecError(f"--set {path} and {flag} set the same field: remove one of them")
        if path.split(".")[0] in own:
            of_spec.append(change)
        else:
            of_method.append(change.strip().removeprefix("method."))
    # RunSpec.method is typed Any, so override() must be given the config itself to check its fields
    return known(replace(override(spec, of_spec), method=override(spec.method, of_method)))


def known(spec: "RunSpec") -> "RunSpec":
    """The spec, after checking that its data sets are known and that it survives being written to a file."""
    from osscl.data.benchmarks import dataset
    from osscl.runs.spec import spec_from_plain, spec_to_plain

    for name in (spec.scenario.main, *spec.scenario.peripheral):
        dataset(name)
    return spec_from_plain(spec_to_plain(spec))


def scenario_of(base: Any, flags: Flags) -> Any:
    """The scenario `base` with flags applied, or one made from flags only."""
    from dataclasses import replace

    from osscl.stream.scenario import ScenarioSpec

    given = {SCENARIO_FIELDS.get(key, key): value for key, value in _given(flags).items() if key != "experiment"}
    if "peripheral" in given:
        given["peripheral"] = tuple(name for entry in given["peripheral"] for name in entry.split(","))
    if base is None:
        if "main" not in given:
            raise SpecError(
                "name an experiment (see `osscl list`) or give --main, --peripheral, --labeled and --memory"
            )
        return ScenarioSpec(**given)
    if "labels_per_class" in given:
        given.setdefault("labeled_fraction", None)
    if "labeled_fraction" in given and given["labeled_fraction"] is not None:
        given.setdefault("labels_per_class", None)
    if set(given) & {"main", "peripheral", "regime", "labeled_fraction"}:  # let ScenarioSpec fill the counts in again
        given = {"related": None, "unrelated": None, **given}
    if "main" in given:
        given.setdefault("classes_per_step", None)
    return replace(base, **given)


def spec_from_file(path: Path, flags: Flags) -> "RunSpec":
    """The spec in a file; none of `flags` may be given with it."""
    import yaml

    from osscl.runs.spec import is_misplaced, spec_from_plain

    if given := _given(flags):
        raise SpecError(f"--spec defines the whole run: remove {', '.join(map(_as_typed, given))}")
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise SpecError(f"{path} is neither YAML nor JSON") from None
    try:
        spec = known(spec_from_plain(data))
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    if is_misplaced(spec, path):
        raise SpecError(
            f"{path} was edited or is damaged: it does not match its folder; to run it, copy it to another folder"
        )
    return spec


def read_stream_file(path: Path | None, flags: Flags) -> dict[str, Any] | None:
    """The stream in a file; none of `flags` may be given with it."""
    if path is None:
        return None
    if given := _given(flags):
        raise SpecError(f"--stream defines scenario and seed: remove {', '.join(map(_as_typed, given))}")
    from osscl.stream.manifest import read_manifest

    return read_manifest(path)


def _given(flags: Flags) -> Flags:
    return {key: value for key, value in flags.items() if value is not None and value != []}


def _as_typed(flag: str) -> str:
    return "the experiment" if flag == "experiment" else f"--{flag.replace('_', '-')}"
