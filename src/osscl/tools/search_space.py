"""A space of hyperparameters: fields by name, their possible values, and which follow another."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml

from osscl.config import override, plain
from osscl.errors import SpecError, unknown

Config = TypeVar("Config")

# Table 7 of the paper: one tau, one optimiser and one rate for both networks. Its text ties gamma to lambda.
PAPER: dict[str, str] = {
    "learner.epochs": "[100, 200]",  # E_S
    "reference.epochs_first": "[200, 300, 400]",  # E_T1
    "reference.epochs_later": "[100, 200]",  # E_T>1
    "reference.tau": "[0.1, 0.5]",
    "learner.tau": "reference.tau",
    "learner.lam": "[0.05, 0.2, 0.4]",
    "learner.gamma": "learner.lam",
    "gate.eta": "[[-4, -2], [-2, 0], [-2, 2]]",
    "reference.optimiser.kind": "[sgd, adam]",
    "learner.optimiser.kind": "reference.optimiser.kind",
    "reference.optimiser.rate": "[0.1, 0.01]",
    "learner.optimiser.rate": "reference.optimiser.rate",
}
SPACES: dict[str, Mapping[str, str]] = {"paper": PAPER}


@dataclass(frozen=True)
class Choice:
    """One of several values, each written as JSON."""

    field: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Range:
    """Any number between two, both included; whole numbers for a field of whole numbers."""

    field: str
    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Tied:
    """The same value as another field's."""

    field: str
    to: str


Dimension = Choice | Range | Tied
Space = tuple[Dimension, ...]


def space_of(entries: Sequence[str], named: str | None, config: Any) -> Space:
    """The space of this name with further entries, checked against the method's config; later ones win."""
    if named is not None and named not in SPACES:
        raise unknown("space", named, SPACES)
    written = dict(SPACES[named]) if named is not None else {}
    for entry in entries:
        field, equals, text = entry.partition("=")
        if not equals or not text.strip():
            raise SpecError(f"a search must be field=[a, b], field=low..high[:log] or field=other, got {entry!r}")
        written[field.strip().removeprefix("method.")] = text.strip()
    space = tuple(
        _dimension(field, text, Checked(config, _followers(written, field))) for field, text in written.items()
    )
    if all(isinstance(dimension, Tied) for dimension in space):
        raise SpecError("nothing to search: give --search field=[a, b] or field=low..high")
    for field in (ties := _ties(space)):
        _end_of(field, ties)
    return space


@dataclass(frozen=True)
class Checked:
    """What values of a field are checked with: the config, and the fields that follow this one."""

    config: Any
    followers: tuple[str, ...]

    def admitted(self, field: str, text: str) -> Any:
        """A value in the declared type of its field, refused before the search starts."""
        changes = [f"{name}={text}" for name in (field, *self.followers)]
        return value_at(override(self.config, changes), field)


def _followers(written: Mapping[str, str], field: str) -> tuple[str, ...]:
    return tuple(other for other, text in written.items() if text.removeprefix("method.") == field)


def _dimension(field: str, text: str, checked: Checked) -> Dimension:
    value_at(checked.config, field)
    if text.startswith("["):
        return _choice(field, text, checked)
    low, dots, high = text.partition("..")
    if dots:
        return _range(field, low, high, checked)
    value_at(checked.config, text.removeprefix("method."))
    return Tied(field, text.removeprefix("method."))


def _choice(field: str, text: str, checked: Checked) -> Choice:
    try:
        values = yaml.safe_load(text)
        json.dumps(values)  # YAML dates are not values of any field
    except (yaml.YAMLError, ValueError, TypeError):
        raise SpecError(f"{field}: cannot read the values {text!r}") from None
    if not isinstance(values, list) or not values:
        raise SpecError(f"{field}: values must be a list [a, b, c], got {text!r}")
    admitted = [_as_json(checked.admitted(field, json.dumps(value))) for value in values]
    return Choice(field, tuple(dict.fromkeys(admitted)))


def _range(field: str, low: str, high: str, checked: Checked) -> Range:
    high, colon, kind = high.partition(":")
    if colon and kind != "log":
        raise SpecError(f"{field}: a range must be low..high or low..high:log, got {kind!r} after the colon")
    ends = [checked.admitted(field, end) for end in (low, high)]
    if any(isinstance(end, bool) or not isinstance(end, int | float) for end in ends):
        raise SpecError(f"{field}: a range needs two numbers, got {low!r} and {high!r}")
    if not ends[0] < ends[1] or (colon and ends[0] <= 0):
        need = "0 < low < high" if colon else "low < high"
        raise SpecError(f"{field}: a range needs {need}, got {low}..{high}")
    return Range(field, ends[0], ends[1], bool(colon))


def _as_json(value: Any) -> str:
    return json.dumps(plain(value))


def value_at(config: Any, field: str) -> Any:
    """The value of a field by its dotted name."""
    value, parts = config, field.split(".")
    for depth, name in enumerate(parts, 1):
        names = list(getattr(value, "__dataclass_fields__", {}))
        if not names:
            raise SpecError(f"{field}: {parts[depth - 2]!r} is not a group of fields")
        if name not in names:
            raise unknown("field", ".".join(parts[:depth]), names)
        value = getattr(value, name)
    return value


def changed(config: Config, space: Space, chosen: Mapping[str, str]) -> tuple[Config, tuple[str, ...]]:
    """The config at one point of the space, and the changes that produce it."""
    values = dict(chosen)
    for field in (ties := _ties(space)):
        end = _end_of(field, ties)
        values[field] = values.get(end) or _as_json(value_at(config, end))
    changes = tuple(f"{field}={text}" for field, text in values.items())
    return override(config, changes), changes


def _ties(space: Space) -> dict[str, str]:
    return {dimension.field: dimension.to for dimension in space if isinstance(dimension, Tied)}


def _end_of(field: str, ties: Mapping[str, str]) -> str:
    """The field that a chain of ties leads to."""
    met = {field}
    while (field := ties.get(field, field)) in ties:
        if field in met:
            raise SpecError(f"{field} is tied to itself through other fields")
        met.add(field)
    return field


def own_point(space: Space, config: Any) -> dict[str, Any] | None:
    """The config's own point in the space, as Optuna's parameters; None if it is outside."""
    point: dict[str, Any] = {}
    for dimension in space:
        value = value_at(config, dimension.field)
        if isinstance(dimension, Choice) and _as_json(value) in dimension.values:
            point[dimension.field] = _as_json(value)
        elif isinstance(dimension, Range) and value is not None and dimension.low <= value <= dimension.high:
            point[dimension.field] = value
        elif not isinstance(dimension, Tied) or value != value_at(config, dimension.to):
            return None
    return point
