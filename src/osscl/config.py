"""Frozen dataclasses as data: to plain values and back, changes by field name, and a content id."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from osscl.errors import SpecError, shown, unknown

T = TypeVar("T")
PLAIN_TYPES = (str, bool, int, float)
PLAIN = frozenset({*PLAIN_TYPES, type(None)})
LARGEST = {int: 2**63 - 1, float: sys.float_info.max}  # numbers that tensors and JSON can hold

# The declared types of a dataclass; without the cache, reading a hundred records takes a second longer.
field_types: Callable[[type], dict[str, Any]] = functools.cache(get_type_hints)


@functools.cache
def _parts_of(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


@dataclasses.dataclass(frozen=True)
class _Fields:
    """The fields of a dataclass that files hold."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    legacy: dict[str, Any]  # see `added_later`


@functools.cache
def _fields_of(kind: type) -> _Fields:
    given = [field for field in dataclasses.fields(kind) if field.init]
    required = [field.name for field in given if field.default is field.default_factory is dataclasses.MISSING]
    legacy = {field.name: field.metadata["legacy"] for field in given if "legacy" in field.metadata}
    return _Fields(tuple(field.name for field in given), tuple(required), legacy)


# ----- checks


def require(holds: bool, spec: object, name: str, allowed: str) -> None:
    """Unless `holds`, raise a SpecError with the field's name (`a.b` in a group), its value and what is allowed."""
    if not holds:
        raise SpecError(f"{name} must be {allowed}, got {shown(attrgetter(name)(spec))}")


def require_positive(spec: object, *names: str) -> None:
    """Raise a SpecError for the first of these fields that is 0 or less."""
    for name in names:
        require(getattr(spec, name) > 0, spec, name, "positive")


def require_not_negative(spec: object, *names: str) -> None:
    """Raise a SpecError for the first of these fields that is below 0."""
    for name in names:
        require(getattr(spec, name) >= 0, spec, name, "0 or more")


def require_declared(spec: Any) -> None:
    """Raise a SpecError for the first field whose value is not of its declared type or among its `Literal` choices."""
    for name, hint in field_types(type(spec)).items():
        value = getattr(spec, name)
        if get_origin(hint) is Literal:
            convert(hint, value, name)
        elif isinstance(value, float) and not math.isfinite(value):
            raise SpecError(f"{name} must be finite, got {value}")
        elif not _fits(hint, value):
            raise SpecError(f"{name} must be of type {getattr(hint, '__name__', hint)}, got {shown(value)}")


def _fits(hint: Any, value: Any) -> bool:
    try:
        return bool(convert(hint, value, "") == value)
    except SpecError:
        return False


# ----- plain values


def plain(value: Any) -> Any:
    """Dataclasses as dicts and tuples as lists, at every depth: what JSON and YAML can hold."""
    if type(value) in PLAIN:
        return value  # fast path: most values of a record
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(value) if PLAIN.issuperset(map(type, value)) else [plain(item) for item in value]
    return value


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested plain fields by their dotted names."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {key: item for k, v in value.items() for key, item in flat(v, _dotted(name, str(k))).items()}


def from_plain(kind: type[T], data: Any, where: str = "") -> T:
    """The dataclass that `data` describes; unknown keys and values of the wrong type raise a SpecError."""
    if not isinstance(data, Mapping):
        raise SpecError(f"{where or kind.__name__} must be a mapping of fields, got {shown(data)}")
    hints, fields = field_types(kind), _fields_of(kind)  # type: ignore[arg-type]
    for key in data:
        if key not in fields.names:
            raise unknown("field", _dotted(where, str(key)), fields.names)
    values = fields.legacy | {key: convert(hints[key], item, _dotted(where, key)) for key, item in data.items()}
    if missing := [name for name in fields.required if name not in values]:
        raise SpecError(f"{where or kind.__name__} lacks {', '.join(missing)}")
    return _naming_group(where, lambda: kind(**values))


def _naming_group(where: str, make: Callable[[], T]) -> T:
    """Prefix the errors of `make` with the group of fields: several groups have epochs or a tau."""
    try:
        return make()
    except SpecError as error:
        raise SpecError(f"{where}: {error}" if where else str(error)) from None


def _dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


# ----- ids


def added_later(default: Any, *, legacy: Any) -> Any:
    """A field that older versions lack. `legacy` is the value that reproduces them: files without the field get it,
    and at this value the field is left out of the id, so that ids of older runs stay the same."""
    return dataclasses.field(default=default, metadata={"legacy": legacy})


def content_id(value: Any, length: int = 12) -> str:
    """A hash of the content; fields that were added later count only where they differ from their legacy value."""
    return text_id(identifying_text(identifying(value)), length)


def text_id(text: str, length: int = 12) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()[:length]


def identifying_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def identifying(value: Any) -> Any:
    """What counts in the id of a value, as JSON holds it."""
    if type(value) in PLAIN:
        return value  # fast path: most values
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = field_types(type(value))
        return {
            field.name: identifying(_as_declared(hints[field.name], getattr(value, field.name)))
            for field in dataclasses.fields(value)
            if "legacy" not in field.metadata or getattr(value, field.name) != field.metadata["legacy"]
        }
    if isinstance(value, list | tuple):
        return list(value) if PLAIN.issuperset(map(type, value)) else [identifying(item) for item in value]
    return value


def _as_declared(hint: Any, value: Any) -> Any:
    """`value` in its field's type, so that rates of 1 and 1.0 give the same id; unchanged if that fails."""
    if type(value) is hint:
        return value  # fast path: most values
    try:
        return convert(hint, value, "")
    except (SpecError, TypeError):
        return value


# ----- changes by name


class Group(dict[str, Any]):
    """Changes to one group of fields, by name; a value is a Group where the changes are deeper."""


def override(spec: T, changes: Sequence[str]) -> T:
    """`spec` with `a.b=c` changes, values read as YAML; all changes are applied before validation."""
    changed = Group()
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals:
            raise SpecError(f"changes are written field=value, got {shown(change)}")
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, OverflowError, RecursionError):  # ValueError: an impossible date
            raise SpecError(f"{path}: cannot read the value {shown(text)}") from None
        *groups, name = path.strip().split(".")
        group, place = changed, ""
        for outer in groups:
            group, place = group.setdefault(outer, Group()), _dotted(place, outer)
            _refuse_both(not isinstance(group, Group), place)
        _refuse_both(isinstance(group.get(name), Group), _dotted(place, name))
        group[name] = value
    return _changed(spec, changed, "") if changed else spec


def _refuse_both(set_both_ways: bool, place: str) -> None:
    if set_both_ways:
        raise SpecError(f"{place}: set it as a whole or field by field, not both")


def _changed(spec: Any, group: Group, where: str) -> Any:
    names, new = [field.name for field in dataclasses.fields(spec)], {}
    for key, value in group.items():
        place = _dotted(where, key)
        if key not in names:
            raise unknown("field", place, names)
        inner = getattr(spec, key)
        if not isinstance(value, Group):
            new[key] = convert(field_types(type(spec))[key], value, place)
        elif dataclasses.is_dataclass(inner) and not isinstance(inner, type):
            new[key] = _changed(inner, value, place)
        else:
            raise SpecError(f"{_dotted(place, next(iter(value)))}: {key!r} is not a group of fields")
    return _naming_group(where, lambda: dataclasses.replace(spec, **new))


# ----- conversion


def convert(hint: Any, value: Any, where: str) -> Any:
    """`value`, as read from JSON, YAML or a command line, in the type that a field declares."""
    if type(value) is hint and hint in PLAIN_TYPES and (hint in (str, bool) or abs(value) <= LARGEST[hint]):
        return value  # fast path: most values of a record
    origin, args = _parts_of(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _first_that_fits([arg for arg in args if arg is not type(None)], value, where)
    if origin is Literal:
        return _choice(args, value, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else from_plain(hint, value, where)
    if origin in (tuple, list):
        return _sequence(origin, args, value, where)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise SpecError(f"{where} must be a mapping, got {shown(value)}")
        return {str(key): convert(args[1], item, f"{where}.{key}") for key, item in value.items()}
    return _scalar(hint, value, where)


def _first_that_fits(hints: Sequence[Any], value: Any, where: str) -> Any:
    problems = []
    for hint in hints:
        try:
            return convert(hint, value, where)
        except SpecError as error:
            problems.append(error)
    raise problems[-1]


def _choice(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value in choices:
        return value
    group, _, name = where.rpartition(".")
    problem = unknown(name, value, [str(choice) for choice in choices])
    raise SpecError(f"{group}: {problem}") if group else problem


def _sequence(origin: type, args: tuple[Any, ...], value: Any, where: str) -> Any:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise SpecError(f"{where} must be a list, got {shown(value)}")
    fixed = origin is tuple and Ellipsis not in args
    if fixed and len(value) != len(args):
        raise SpecError(f"{where} must have {len(args)} entries, got {len(value)}")
    if not fixed and args[0] is int and _all_counts(value):
        return origin(value)
    hints = args if fixed else [args[0]] * len(value)
    return origin(convert(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(hints, value, strict=True)))


def _all_counts(values: Sequence[Any]) -> bool:
    """Whether all values are valid counts, as in most rows of a record; this fast path halves loading time."""
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= LARGEST[int]


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if not isinstance(hint, type):  # a type of a user's own config that has no plain form
        return value
    if hint is float and isinstance(value, str):  # YAML 1.1 reads 1e-3 as a string
        with contextlib.suppress(ValueError):
            value = float(value)
    if hint in (int, float) and isinstance(value, (int, hint)) and not isinstance(value, bool):
        if not abs(value) <= LARGEST[hint]:
            raise SpecError(f"{where} must be {'finite' if hint is float else 'below 2^63'}, got {shown(value)}")
        value = float(value) if hint is float else value
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise SpecError(f"{where} must be of type {hint.__name__}, got {shown(value)}")
