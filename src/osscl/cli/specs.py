"""From a name, flags and changes to a spec."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from osscl.errors import SpecError

MOST_SEEDS = 1000  # of one command
RENAMED = {"labeled": "labeled_fraction", "validation": "validation_share"}  # flags of fields with other names
OWN_FLAGS = {"seed": "--seed", "stream": "--stream", "method": "--method"}

if TYPE_CHECKING:
    from osscl.runs.spec import RunSpec


def seeds_of(seed: int | None, seeds: str | None) -> list[int]:
    """`0-2` is 0, 1, 2; `0,3` is 0, 3; both may be mixed."""
    if seed is not None and seeds is not None:
        raise SpecError("give --seed or --seeds, not both")
    if seeds is None:
        return [seed or 0]
    chosen: list[int] = []
    for part in seeds.split(","):
        first, dash, last = part.strip().partition("-")
        written = all(end.isdecimal() and len(end) < 20 for end in (first, last if dash else first))
        if not written or (dash and int(last) < int(first)):
            raise SpecError(f"seeds must be written as 0-2 or 0,3,5, got {seeds!r}")
        last = last or first
        if len(chosen) + int(last) - int(first) >= MOST_SEEDS:
            raise SpecError(f"at most {MOST_SEEDS} seeds go in one command, got {seeds!r}")
        chosen += range(int(first), int(last) + 1)
    return list(dict.fromkeys(chosen))


def spec_of(
    name: str | None, flags: dict[str, Any], method: str, schedule: str, changes: list[str], scenario: Any
) -> "RunSpec":
    """The spec that a name, flags and changes make."""
    from dataclasses import fields, replace

    from osscl.config import from_plain, override
    from osscl.runs.spec import RunSpec, experiment, make_spec
    from osscl.stream.scenario import ScenarioSpec

    if scenario is not None:
        made = from_plain(ScenarioSpec, scenario, "scenario")
    else:
        made = scenario_of(experiment(name) if name is not None else None, flags)
    spec = make_spec(made, method, schedule, 0)
    by_flag = {f"scenario.{RENAMED.get(key, key)}": as_typed(key) for key in said(flags)}
    own, ours, methods = {field.name for field in fields(RunSpec)} - {"method"}, [], []
    for change in changes:
        path = change.partition("=")[0].strip()
        if path in OWN_FLAGS:
            raise SpecError(f"{path} has a flag of its own: {OWN_FLAGS[path]}")
        if path.startswith("scenario.") and scenario is not None:
            raise SpecError(f"--stream brings the scenario: leave --set {path} out")
        if (flag := by_flag.get(path)) is not None:
            raise SpecError(f"--set {path} and {flag} say the same: leave one out")
        if path.split(".")[0] in own:
            ours.append(change)
        else:
            methods.append(change.strip().removeprefix("method."))
    # method is typed Any; its own fields check themselves
    spec = replace(override(spec, ours), method=override(spec.method, methods))
    return known(spec)


def known(spec: "RunSpec") -> "RunSpec":
    """The spec, if its data sets are known and a file could hold all of it."""
    from osscl.data.benchmarks import dataset
    from osscl.runs.spec import spec_from_plain, spec_to_plain

    for name in (spec.scenario.main, *spec.scenario.peripheral):
        dataset(name)
    return spec_from_plain(spec_to_plain(spec))


def scenario_of(base: Any, flags: dict[str, Any]) -> Any:
    from dataclasses import replace

    from osscl.stream.scenario import ScenarioSpec

    given: dict[str, Any] = {RENAMED.get(key, key): value for key, value in said(flags).items()}
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
    if set(given) & {"main", "peripheral", "regime", "labeled_fraction"}:  # counts were filled in for the old ones
        given = {"related": None, "unrelated": None, **given}
    if "main" in given:
        given.setdefault("classes_per_step", None)
    return replace(base, **given)


def spec_from_file(path: Path, flags: dict[str, Any]) -> "RunSpec":
    """The spec that a file holds; `flags` are those that would say something else."""
    import yaml

    from osscl.runs.spec import spec_from_plain

    if given(flags):
        raise SpecError(f"--spec says it all: leave {', '.join(given(flags))} out")
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise SpecError(f"{path} is neither YAML nor JSON") from None
    try:
        return known(spec_from_plain(data))
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def given(flags: dict[str, Any]) -> list[str]:
    """Names of the flags that were given, as they are typed."""
    return [as_typed(key) for key in said(flags)]


def said(flags: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flags.items() if value is not None and value != []}


def as_typed(flag: str) -> str:
    return "the experiment" if flag == "experiment" else f"--{flag.replace('_', '-')}"


def manifest_of(path: Path | None, flags: dict[str, Any]) -> dict[str, Any] | None:
    """The stream that a file holds; `flags` are those that would say something else."""
    if path is None:
        return None
    if given(flags):
        raise SpecError(f"--stream brings scenario and seed: leave {', '.join(given(flags))} out")
    from osscl.stream.manifest import read_manifest

    return read_manifest(path)
