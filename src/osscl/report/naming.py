"""Names of settings, methods and seeds in tables and reports, different wherever the fields differ."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from osscl.config import content_id, plain
from osscl.methods import CONFIGURATIONS, method_class
from osscl.runs.record import RunRecord
from osscl.runs.spec import RunSpec, configuration_name, sized, sizes_of
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
    ("learner.sup", "0"): "without L_sup",
    ("learner.gamma", "0"): "without L_TD",
    ("learner.lam", "0"): "without L_KD",
    ("gate.pseudo", "none"): "without T̂",
    ("gate.guide", "all"): "L_KD on all of U_t",
}


class MethodWords(NamedTuple):
    """What the report says of a configuration."""

    name: str  # in a sentence
    row: str  # what its row shows


# A method that is not listed has its own name, and is described by the first line of its docstring.
METHOD_WORDS = {
    "ursl": MethodWords(
        "URSL",
        "the paper's method: a reference network, trained on everything unlabelled, and a gate choose the "
        "images that the learner may use",
    ),
    "ursl-as-printed": MethodWords("URSL as printed", "ursl with the optimisers that the paper prints"),
    "ursl-plus": MethodWords(
        "URSL-plus, our extension,", "our extension of ursl, within the bytes of the paper's memory"
    ),
    "ursl-plus-unlimited": MethodWords(
        "URSL-plus without a limit on its statistics, our extension,",
        "our extension of ursl, which keeps more than the paper's memory",
    ),
    "labels-only": MethodWords("labels alone", "our ablation: ursl's learner on labels alone"),
    "co2l": MethodWords("Co2L", "contrastive continual learning, on labels alone"),
    "co2l-authors": MethodWords("co2l-authors", "co2l as its authors run it"),
    "co2l-j": MethodWords("Co2L-j", "co2l with an additional contrastive loss on unlabelled images"),
    "co2l-p": MethodWords("Co2L-p", "co2l after pre-training on unlabelled images"),
    "gd": MethodWords("GD", "global distillation: three teachers and confidence calibration"),
    "dm": MethodWords("DM", "DistillMatch: pseudo-labels behind a novelty detector"),
    "gem": MethodWords("GEM", "gradient episodic memory, on labels alone"),
    "gem-joint": MethodWords("gem-joint", "gem with joint batch statistics"),
    "icarl": MethodWords("iCaRL", "incremental classifier and representation learning, on labels alone"),
    "reference-only": MethodWords("reference-only", "a yardstick: a head on the reference network, without a learner"),
    "supervised": MethodWords("supervised", "a yardstick: the same network trained on all labels at once"),
}


def sentence_name(name: str) -> str:
    """What a sentence calls a configuration."""
    return METHOD_WORDS[name].name if name in METHOD_WORDS else name


def row_words(name: str) -> str:
    """What the row of a configuration shows."""
    if name in METHOD_WORDS:
        return METHOD_WORDS[name].row
    return (inspect.getdoc(method_class(CONFIGURATIONS[name])) or "").partition("\n")[0]


def setting_words(scenario: ScenarioSpec) -> str:
    world = f" / {', '.join(scenario.peripheral)}" if scenario.peripheral else ""
    return f"{scenario.main}{world}, {condition_words(scenario)}"


def condition_words(scenario: ScenarioSpec) -> str:
    """Labels, memory, and unusual fields."""
    share = f"P={scenario.labeled_fraction:g}" if scenario.labeled_fraction else f"{scenario.labels_per_class} labels"
    return ", ".join([share, f"M={scenario.memory}", *unusual_words(scenario)])


def unusual_fields(scenario: ScenarioSpec) -> dict[str, str]:
    """The fields in which a scenario differs from the default for its sets, labels and memory."""
    usual = ScenarioSpec(
        scenario.main, scenario.peripheral, scenario.labeled_fraction, scenario.labels_per_class, scenario.memory,
        regime=scenario.regime,
    )  # fmt: skip
    regime = {} if scenario.regime == "osscl" else {"regime": str(scenario.regime)}
    changed = changes(plain(usual), plain(scenario))
    held_out = {field: changed.pop(field) for field in ("validation_share",) if field in changed}
    return regime | changed | held_out


def unusual_words(scenario: ScenarioSpec) -> list[str]:
    """Those fields with their values, as they are set."""
    words = {"regime": str(scenario.regime), "validation_share": _held_out_words(scenario)}
    return [words.get(field, f"{field}={value}") for field, value in unusual_fields(scenario).items()]


def unusual_in_prose(scenario: ScenarioSpec) -> list[str]:
    """The same for readers who do not know the fields."""
    known = {field: words.format(getattr(scenario, field)) for field, words in FIELDS.items()}
    known |= {"regime": REGIMES.get(scenario.regime, ""), "validation_share": _held_out_words(scenario)}
    return [known.get(field, f"{field}={value}") for field, value in unusual_fields(scenario).items()]


def _held_out_words(scenario: ScenarioSpec) -> str:
    return f"{100 * scenario.validation_share:g} % held out as validation rows"


def change_in_words(field: str, value: str) -> str:
    """A change to a method's configuration, in the paper's terms where it has them."""
    return CHANGES.get((field, value), f"{field}={value}")


@dataclass(frozen=True)
class MethodLabel:
    """What distinguishes a method from others: its configuration and the fields that differ from it, or a hash."""

    name: str
    size: str | None = None  # of the networks, where the schedule asks for another
    changes: tuple[tuple[str, str], ...] = ()  # fields and values
    hash: str | None = None  # of all fields, where no configuration is similar

    def __str__(self) -> str:
        return self._with([f"{field}={value}" for field, value in self.changes])

    @property
    def in_prose(self) -> str:
        """The same with changes in the paper's terms, as in: ursl, without L_TD."""
        return self._with([change_in_words(*change) for change in self.changes])

    def _with(self, changes: Sequence[str]) -> str:
        name = self.name if self.hash is None else f"{self.name} {self.hash}"
        return ", ".join([name, *([] if self.size is None else [self.size]), *changes])


def method_label(record: RunRecord) -> MethodLabel:
    """The configuration's name, its size where the schedule asks for another, and the fields that differ from it."""
    spec = record.spec
    own = configuration_name(spec.method)
    if own is not None and spec.method == sized(CONFIGURATIONS[own], spec.schedule):
        return MethodLabel(own)
    near = [named for named in _named_configs(spec) if own in (None, named.name)]
    if own is None:  # prefer the name it ran under, though its fields may have changed since
        near = [named for named in near if named.name == record.configuration] or near
    differing = [(changes(plain(named.config), plain(spec.method)), named) for named in near]
    changed, named = min(differing, key=lambda one: (len(one[0]), one[1].size is not None), default=({}, None))
    if named is None or len(changed) > MOST_CHANGES:
        return MethodLabel(spec.type, hash=content_id(spec.method, 6))
    return MethodLabel(named.name, named.size, tuple(changed.items()))


class NamedConfig(NamedTuple):
    """A named configuration at one of its sizes; None means the size that the schedule requires."""

    name: str
    size: str | None
    config: Any


def _named_configs(spec: RunSpec) -> Iterator[NamedConfig]:
    for name, usual in CONFIGURATIONS.items():
        if type(usual) is type(spec.method):
            asked = sized(usual, spec.schedule)
            for size, config in sizes_of(usual).items():
                yield NamedConfig(name, None if config == asked else size, config)


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


def device_words(device: str) -> str:
    """A device as a record names it, in the singular where there is one thread."""
    return re.sub(r"\b1 threads$", "1 thread", device)


def seeds_and_n(runs: Sequence[RunRecord]) -> str:
    return f"{', '.join(str(seed) for seed in sorted(run.spec.seed for run in runs))} (n={len(runs)})"
