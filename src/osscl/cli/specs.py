"""From a name, flags and changes to a spec."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from osscl.errors import SpecError

if TYPE_CHECKING:
    from osscl.experiments.spec import RunSpec


def seeds_of(seed: int | None, seeds: str | None) -> list[int]:
    """`0-2` is 0, 1, 2; `0,3` is 0, 3; both may be mixed."""
    if seed is not None and seeds is not None:
        raise SpecError("give --seed or --seeds, not both")
    if seeds is None:
        return [seed or 0]
    chosen: list[int] = []
    for part in seeds.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise SpecError(f"seeds must be written as 0-2 or 0,3,5, got {seeds!r}")
        chosen += range(int(first), int(last if dash else first) + 1)
    return list(dict.fromkeys(chosen))


def spec_of(
    name: str | None, flags: dict[str, Any], method: str, schedule: str, changes: list[str], scenario: Any
) -> "RunSpec":
    """The spec that a name, flags and changes make."""
    from dataclasses import fields, replace

    from osscl.experiments.spec import RunSpec, configuration, experiment, make_spec
    from osscl.experiments.spec import schedule as schedule_of
    from osscl.frozen import from_plain, override
    from osscl.stream.scenario import ScenarioSpec

    if scenario is not None:
        made = from_plain(ScenarioSpec, scenario, "scenario")
    else:
        made = scenario_of(experiment(name) if name is not None else None, flags)
    spec = make_spec(made, configuration(method), schedule_of(schedule), 0)
    own = {field.name for field in fields(RunSpec)}
    rooted = [change if change.partition("=")[0].split(".")[0] in own else f"method.{change}" for change in changes]
    for change in rooted:  # method is typed Any; its own fields check themselves
        head, _, rest = change.partition(".")
        spec = replace(spec, method=override(spec.method, [rest])) if head == "method" else override(spec, [change])
    return spec


def scenario_of(base: Any, flags: dict[str, Any]) -> Any:
    from dataclasses import replace

    from osscl.stream.scenario import ScenarioSpec

    renamed = {"labeled": "labeled_fraction", "validation": "validation_share"}
    given = {renamed.get(key, key): value for key, value in flags.items() if value is not None and value != []}
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


def spec_from_file(path: Path, name: str | None, flags: dict[str, Any], changes: list[str]) -> "RunSpec":
    import yaml

    from osscl.experiments.spec import spec_from_plain

    if name is not None or changes or any(value is not None and value != [] for value in flags.values()):
        raise SpecError("--spec says it all: leave the experiment, the scenario's flags and --set out")
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise SpecError(f"{path} is neither YAML nor JSON") from None
    return spec_from_plain(data)


def manifest_of(
    path: Path | None, name: str | None, flags: dict[str, Any], seed: int | None, seeds: str | None, spec: Path | None
) -> dict[str, Any] | None:
    if path is None:
        return None
    given = [key for key, value in flags.items() if value is not None and value != []]
    if name is not None or given or seed is not None or seeds is not None or spec is not None:
        raise SpecError("--stream brings scenario and seed: leave the experiment, its flags, --seed and --spec out")
    from osscl.stream.manifest import read_manifest

    return read_manifest(path)
