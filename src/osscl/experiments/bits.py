"""Where two states or objects differ, bit for bit."""

from types import ModuleType
from typing import Any

import torch
from torch import Generator, Tensor


def leaves(value: Any, place: str, seen: set[int]) -> dict[str, Any]:
    """Tensors, generators and plain values of an object and all that it holds, by place; a network's modes, too."""
    if isinstance(value, Tensor | Generator):
        return {place: value.clone() if isinstance(value, Tensor) else value.get_state()}
    if value is None or isinstance(value, bool | int | float | str):
        return {place: value}
    if id(value) in seen or isinstance(value, type | ModuleType):
        return {}
    seen.add(id(value))
    inner = dict(enumerate(value)) if isinstance(value, list | tuple) else value
    inner = inner if isinstance(inner, dict) else getattr(inner, "__dict__", {})
    names = (key if isinstance(key, str) else i for i, key in enumerate(inner))
    parts = [leaves(part, f"{place}.{name}", seen) for name, part in zip(names, inner.values(), strict=True)]
    return {key: leaf for part in parts for key, leaf in part.items()}


def difference(one: Any, other: Any) -> str | None:
    """Where two states or their likes differ, bit for bit; None if they do not."""
    ours, theirs = leaves(one, "", set()), leaves(other, "", set())
    for name in {**ours, **theirs}:
        a, b = ours.get(name, leaves), theirs.get(name, leaves)
        if type(a) is not type(b) or not (torch.equal(a, b) if isinstance(a, Tensor) else a == b):
            return name.lstrip(".")
    return None
