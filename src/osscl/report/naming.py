"""Names of settings, methods and seeds in tables and reports, different wherever the fields differ."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from osscl.config import content_id, plain
from osscl.methods import CONFIGURATIONS
from osscl.runs.record import RunRecord
from osscl.runs.spec import configuration_name, demo_sized, on_small_net
from osscl.stream.scenario import ScenarioSpec

MOST_CHANGES = 4  # listed in a name
REGIMES = {
    "only_supervised": "no unlabelled images",
    "after": "unlabelled images of this and later classes",
    "before": "unlabelled images of earlier classes",
    "only_related": "unlabelled images of the main set only",
    "only_unrelated": "unlabelled images of foreign sets only",
    "non_iid": "unlabelled images of changing classes",
}
FIELDS = {
    "related": "{:,} unlabelled images of the main set",
    "unrelated": "{:,} unlabelled images of each foreign set",
    "class_share": "{:.0%} of the main classes in each U_t",
}
CHANGES = {  # of URSL, in the paper's terms
    "learner.sup=0": "without L_sup",
    "learner.gamma=0": "without L_TD",
    "learner.lam=0": "without L_KD",
    "gate.pseudo=none": "without T̂",
    "gate.guide=all": "L_KD on all of U_t",
}


def setting_words(scenario: ScenarioSpec) -> str:
    world = f" / {', '.join(scenario.peripheral)}" if scenario.peripheral else ""
    return f"{scenario.main}{world}, {condition_words(scenario)}"


def condition_words(scenario: ScenarioSpec) -> str:
    """Labels, memory, and unusual fields."""
    share = f"P={scenario.labeled_fraction:g}" if scenario.labeled_fraction else f"{scenario.labels_per_class} labels"
    return ", ".join([share, f"M={scenario.memory}", *unusual_words(scenario)])


def unusual_words(scenario: ScenarioSpec) -> list[str]:
    """The fields in which a scenario differs from the default for its sets, labels and memory."""
    usual = ScenarioSpec(
        scenario.main, scenario.peripheral, scenario.labeled_fraction, scenario.labels_per_class, scenario.memory,
        regime=scenario.regime,
    )  # fmt: skip
    regime = [] if scenario.regime == "osscl" else [str(scenario.regime)]
    changed = changes(plain(usual), plain(scenario))
    held_out = [f"{100 * scenario.validation_share:g} % held out as validation rows"]
    own = held_out if changed.pop("validation_share", None) else []
    return regime + [f"{key}={value}" for key, value in changed.items()] + own


def unusual_in_prose(scenario: ScenarioSpec) -> list[str]:
    """The same for readers who do not know the fields."""
    found = []
    for word in unusual_words(scenario):
        field = word.partition("=")[0]
        known = FIELDS[field].format(getattr(scenario, field)) if field in FIELDS else word
        found.append(REGIMES.get(word, known))
    return found


def label_in_prose(label: str) -> str:
    """A method's label with its changes in the paper's terms, as in: ursl, without L_TD."""
    return ", ".join(CHANGES.get(part, part) for part in label.split(", "))


def change_in_words(field: str, value: str) -> str:
    """A change to a method's configuration, in the paper's terms where it has them."""
    return CHANGES.get(f"{field}={value}", f"{field}={value}")


def method_label(record: RunRecord) -> str:
    """The configuration's name; for fields without a name, the nearest configuration and what differs from it."""
    method, kind = record.spec.method, record.spec.type
    if (name := configuration_name(method)) is not None:
        return name
    near = [(name, changes(plain(config), plain(method))) for name, config in _named_configs(type(method))]
    # Prefer the name it ran under, though its fields may have changed since.
    near = [one for one in near if one[0] == record.configuration] or near
    if near:
        name, changed = min(near, key=lambda one: len(one[1]))
        if len(changed) <= MOST_CHANGES:
            return ", ".join([name, *(f"{key}={value}" for key, value in changed.items())])
    return f"{kind} {content_id(method, 6)}"


def _named_configs(kind: type) -> Iterator[tuple[str, Any]]:
    for name, config in CONFIGURATIONS.items():
        if type(config) is kind:
            yield from ((name, sized) for sized in (config, on_small_net(config), demo_sized(config)))


def changes(base: Mapping[str, Any], other: Mapping[str, Any], where: str = "") -> dict[str, str]:
    """Dotted names of the fields in which two plain dataclasses differ, with the value of the second."""
    found: dict[str, str] = {}
    for key, value in other.items():
        before = base.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            found |= changes(before, value, f"{where}{key}.")
        elif value != before:
            found[f"{where}{key}"] = f"{value:g}" if isinstance(value, float) else str(value)
    return found


def seeds_and_n(runs: Sequence[RunRecord]) -> str:
    return f"{', '.join(str(seed) for seed in sorted(run.spec.seed for run in runs))} (n={len(runs)})"
