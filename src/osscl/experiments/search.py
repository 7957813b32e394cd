"""Tables 7 and 8 of the paper: the values that were tried, and those that were chosen."""

from collections.abc import Mapping
from typing import Any

import yaml

from osscl.experiments.cells import Table
from osscl.experiments.space import PAPER as TRIED
from osscl.experiments.spec import configuration
from osscl.frozen import flat, plain

# Field -> the value that the paper names.
CHOSEN: Mapping[str, Any] = {
    "learner.epochs": 200,
    "reference.epochs_first": 400,
    "reference.epochs_later": 100,
    "reference.batch": 512,
    "learner.batch": 512,
    "reference.tau": 0.1,
    "learner.tau": 0.1,
    "learner.tau_teacher": 0.01,
    "learner.tau_student": 0.2,
    "learner.lam": 0.2,
    "learner.gamma": 0.2,
    "gate.eta": (-4.0, -2.0),
    "reference.optimiser.kind": "adam",
    "learner.optimiser.kind": "adam",
    "reference.optimiser.rate": 0.01,
    "learner.optimiser.rate": 0.01,
    "reference.optimiser.min_rate": 1e-4,
    "learner.optimiser.min_rate": 1e-4,
}

T7 = Table("T7", "the values that were tried", notes=(
    "gamma is not in the paper's table; its text gives both weights one value",
    "one tau, one optimiser and one rate serve both networks",
))  # fmt: skip
T8 = Table("T8", "the values that were chosen, and where our configurations differ", notes=(
    "the paper names neither schedule, decay nor warm-up of the optimisers, nor the head's optimiser",
    "the shape of the projector is not in the paper either",
), short="the values that were chosen")  # fmt: skip
COMPARED = ("ursl-as-printed", "ursl", "ursl-plus")


def search_rows() -> list[tuple[str, str]]:
    """Field, and the values tried or the field that it follows."""
    return [(field, f"as {text}" if text in TRIED else _values(text)) for field, text in TRIED.items()]


def _values(text: str) -> str:
    return ", ".join(_written(value) for value in yaml.safe_load(text))


def chosen_rows() -> list[tuple[str, ...]]:
    """Field, the paper's value and that of each of our configurations, for all that the paper names or that differ."""
    ours = [flat(plain(configuration(name))) for name in COMPARED]
    named = [field for field in ours[0] if field in CHOSEN]
    differ = [field for field in ours[0] if field not in CHOSEN and any(one[field] != ours[0][field] for one in ours)]
    return [(f, _written(CHOSEN.get(f)), *(_written(one[f]) for one in ours)) for f in (*named, *differ)]


def _written(value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, list | tuple):
        return f"({', '.join(_written(item) for item in value)})"
    return f"{value:g}" if isinstance(value, float) else str(value)
