"""Frozen dataclasses as data: their plain form, the way back, changes by name, and an id of what they say."""

import contextlib
import dataclasses
import hashlib
import json
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from osscl.errors import SpecError, unknown

T = TypeVar("T")
LARGEST = {int: 2**63 - 1, float: sys.float_info.max}  # numbers that tensors and JSON can hold


_HINTS: dict[type, dict[str, Any]] = {}


def hints_of(kind: type) -> dict[str, Any]:
    """What a dataclass declares of its fields; asking anew for every value of a hundred records takes a second."""
    if kind not in _HINTS:
        _HINTS[kind] = get_type_hints(kind)
    return _HINTS[kind]


def require(holds: bool, spec: object, name: str, allowed: str) -> None:
    """Refuse a spec at birth: which field, what it was given, what is allowed."""
    if not holds:
        raise SpecError(f"{name} must be {allowed}, got {getattr(spec, name)!r}")


def require_declared(spec: Any) -> None:
    """Refuse a value of another type than its field declares, or outside its `Literal`."""
    for name, hint in hints_of(type(spec)).items():
        value = getattr(spec, name)
        if _is_declared(hint, value):
            continue
        if get_origin(hint) is Literal:
            raise unknown(name, value, [str(choice) for choice in get_args(hint)])
        raise SpecError(f"{name} must be of type {getattr(hint, '__name__', hint)}, got {value!r}")


def _is_declared(hint: Any, value: Any) -> bool:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_is_declared(arg, value) for arg in args)
    if origin is Literal:
        return value in args
    if origin is tuple:
        items = [args[0]] * len(value) if args[1:] == (...,) and isinstance(value, tuple) else args
        return isinstance(value, tuple) and len(value) == len(items) and all(map(_is_declared, items, value))
    if hint in (int, float):
        return type(value) is int or (hint is float and type(value) is float)
    return not isinstance(hint, type) or isinstance(value, hint)


def added_later(default: Any, *, legacy: Any) -> Any:
    """A field that older versions did not have: at `legacy` it means what they did, and is left out of the id."""
    return dataclasses.field(default=default, metadata={"legacy": legacy})


def plain(value: Any) -> Any:
    """Dataclasses as dicts, tuples as lists, all the way down: what JSON and YAML can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """A plain dataclass as dotted fields."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {key: item for k, v in value.items() for key, item in flat(v, f"{name}.{k}" if name else str(k)).items()}


def content_id(value: Any, length: int = 12) -> str:
    """The same for the same content, whatever fields later versions have added at their legacy value."""
    text = json.dumps(_identifying(value), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()[:length]


def _identifying(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = hints_of(type(value))
        return {
            field.name: _identifying(_declared(hints[field.name], getattr(value, field.name)))
            for field in dataclasses.fields(value)
            if "legacy" not in field.metadata or getattr(value, field.name) != field.metadata["legacy"]
        }
    if isinstance(value, list | tuple):
        return [_identifying(item) for item in value]
    return value


def _declared(hint: Any, value: Any) -> Any:
    """`value` in its field's type, so that a rate of 1 is a rate of 1.0; an id is no check, so it never refuses."""
    try:
        return convert(hint, value, "")
    except (SpecError, TypeError):
        return value


def from_plain(kind: type[T], data: Any, where: str = "") -> T:
    """The dataclass that `data` describes; an unknown key or a value of the wrong type is the user's error."""
    if not isinstance(data, Mapping):
        raise SpecError(f"{where or kind.__name__} must be a mapping of fields, got {data!r}")
    hints = hints_of(kind)
    names = [field.name for field in dataclasses.fields(kind) if field.init]  # type: ignore[arg-type]
    for key in data:
        if key not in names:
            raise unknown("field", _dotted(where, str(key)), names)
    values = {key: convert(hints[key], item, _dotted(where, key)) for key, item in data.items()}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if "legacy" in field.metadata:  # a file that does not know the field means what it meant then
            values.setdefault(field.name, field.metadata["legacy"])
    missing = [name for name in _required(kind) if name not in values]
    if missing:
        raise SpecError(f"{where or kind.__name__} lacks {', '.join(missing)}")
    return _of_group(where, lambda: kind(**values))


def _required(kind: type) -> list[str]:
    absent = dataclasses.MISSING
    fields = [field for field in dataclasses.fields(kind) if field.init]  # type: ignore[arg-type]
    return [field.name for field in fields if field.default is absent and field.default_factory is absent]


def _of_group(where: str, make: Callable[[], T]) -> T:
    """What `make` makes; its refusal names the group of fields, for more than one has epochs or a tau."""
    try:
        return make()
    except SpecError as error:
        raise SpecError(f"{where}: {error}" if where else str(error)) from None


def convert(hint: Any, value: Any, where: str) -> Any:
    """`value`, as read from JSON, YAML or a command line, in the type that a field declares."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _first_that_fits([arg for arg in args if arg is not type(None)], value, where)
    if origin is Literal:
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else from_plain(hint, value, where)
    if origin in (tuple, list):
        return _sequence(origin, args, value, where)
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return {str(key): convert(args[1], item, f"{where}.{key}") for key, item in value.items()}
    return _scalar(hint, value, where)


class Group(dict[str, Any]):
    """Changes to the fields of one group, by name; a value is a Group where they lie deeper."""


def override(spec: T, changes: Sequence[str]) -> T:
    """`spec` with `a.b=c` changes carried out, values read as YAML; all at once, so that only the whole must hold."""
    group = Group()
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals:
            raise SpecError(f"a change is written field=value, got {change!r}")
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):  # the latter of a date that is none
            raise SpecError(f"{path}: cannot read the value {text!r}") from None
        _enter(group, path.strip().split("."), value, path.strip())
    return _changed(spec, group, "") if group else spec


def _enter(group: Group, path: list[str], value: Any, where: str) -> None:
    """Put one change where it belongs; a later one of the same field wins."""
    if len(path) == 1:
        group[path[0]] = value
        return
    inner = group.setdefault(path[0], Group())
    if not isinstance(inner, Group):
        raise SpecError(f"{where}: {path[0]} is given as a whole already")
    _enter(inner, path[1:], value, where)


def _changed(spec: Any, group: Group, where: str) -> Any:
    names, new = [field.name for field in dataclasses.fields(spec)], {}
    for key, value in group.items():
        place = _dotted(where, key)
        if key not in names:
            raise unknown("field", place, names)
        if not isinstance(value, Group):
            new[key] = convert(hints_of(type(spec))[key], value, place)
            continue
        inner = getattr(spec, key)
        if not dataclasses.is_dataclass(inner) or isinstance(inner, type):
            raise SpecError(f"{_dotted(place, next(iter(value)))}: {key!r} is not a group of fields")
        new[key] = _changed(inner, value, place)
    return _of_group(where, lambda: dataclasses.replace(spec, **new))


def _dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _first_that_fits(hints: Sequence[Any], value: Any, where: str) -> Any:
    problems = []
    for hint in hints:
        try:
            return convert(hint, value, where)
        except SpecError as error:
            problems.append(error)
    raise problems[-1]


def _sequence(origin: type, args: tuple[Any, ...], value: Any, where: str) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise SpecError(f"{where} must be a list, got {value!r}")
    fixed = origin is tuple and Ellipsis not in args
    if fixed and len(value) != len(args):
        raise SpecError(f"{where} must have {len(args)} entries, got {len(value)}")
    if not fixed and args[0] is int and _small_whole_numbers(value):
        return origin(value)
    hints = args if fixed else [args[0]] * len(value)
    return origin(convert(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(hints, value, strict=True)))


def _small_whole_numbers(values: Sequence[Any]) -> bool:
    """Whether nothing is to be converted or refused; most of a record are rows of counts."""
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= LARGEST[int]


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, str):  # YAML 1.1 reads 1e-3 as a string
        with contextlib.suppress(ValueError):
            value = float(value)
    if hint in (int, float) and isinstance(value, (int, hint)) and not isinstance(value, bool):
        if not abs(value) <= LARGEST[hint]:
            raise SpecError(f"{where} must be {'finite' if hint is float else 'below 2^63'}, got {value!r}")
        value = float(value) if hint is float else value
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise SpecError(f"{where} must be of type {hint.__name__}, got {value!r}")
