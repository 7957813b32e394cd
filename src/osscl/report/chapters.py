"""Records sorted for a page: a chapter per setting and schedule, an entry per method, a run per seed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, stdev

from osscl.config import plain
from osscl.methods import CONFIGURATIONS
from osscl.methods.base import PAPER, SMOKE
from osscl.paper.tables import published_of
from osscl.report.naming import changes, method_label, unusual_words
from osscl.report.tables import runs_by_method
from osscl.runs.record import RunRecord
from osscl.runs.spec import describe_schedule, display_name
from osscl.tools.compare import PairedDifference

READINGS = ("ursl", "ursl-as-printed")  # of the paper's algorithm
FAMILY = (*READINGS, "ursl-plus")  # everything else is a competitor
DATA_NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tinyimagenet": "Tiny-ImageNet",
    "caltech256": "Caltech-256",
}
METHOD_NAMES = {
    "ursl": "URSL", "ursl-plus": "URSL-plus, our extension,", "ursl-as-printed": "URSL as printed", "co2l": "Co2L",
    "co2l-j": "Co2L-j", "co2l-p": "Co2L-p", "gd": "GD", "dm": "DM", "gem": "GEM", "icarl": "iCaRL",
    "labels-only": "training on labels only",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One method in one chapter: runs that differ only in their seed, lowest seed first."""

    name: str
    runs: tuple[RunRecord, ...]

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    @cached_property
    def configuration(self) -> str | None:
        """The configuration's name; None for a changed one."""
        name = display_name(self.first.spec)
        return name if name in CONFIGURATIONS else None

    @property
    def finals(self) -> dict[int, float]:
        """Final accuracy by seed."""
        return {run.spec.seed: run.final for run in self.runs}

    @property
    def mean(self) -> float:
        return mean(self.finals.values())

    @property
    def gated(self) -> bool:
        return any(step.gate is not None for step in self.first.steps)

    @property
    def published(self) -> tuple[float, float] | None:
        """The paper's mean and deviation for this method; None beside runs of another schedule and beside URSL-plus."""
        spec = self.first.spec
        method = CONFIGURATIONS["ursl"] if self.configuration in READINGS else spec.method
        theirs = published_of(spec.scenario, method) if spec.schedule == PAPER else None
        return None if theirs is None else (theirs.mean, theirs.std or 0.0)

    @property
    def result(self) -> str:
        """As in: 36.6 ± 0.4 % (n = 3)."""
        finals = list(self.finals.values())
        spread = f" ± {stdev(finals):.1f}" if len(finals) > 1 else ""
        return f"{self.mean:.1f}{spread}\N{NO-BREAK SPACE}% (n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{len(finals)})"


@dataclass(frozen=True)
class Chapter:
    """One setting under one schedule, on test or on validation rows: what may share a figure. Best entry first."""

    entries: tuple[Entry, ...]

    @property
    def first(self) -> RunRecord:
        return self.entries[0].first

    @property
    def setting(self) -> str:
        """The setting in words that tell it from every other."""
        scenario = self.first.spec.scenario
        return ", ".join([f"{self._data}, {self._labels}, memory {scenario.memory}", *unusual_words(scenario)])

    @property
    def place(self) -> str:
        """The same in a sentence, as in: CIFAR-100 among CIFAR-10 with 5 % labels."""
        unusual = ", ".join(unusual_words(self.first.spec.scenario))
        return f"{self._data} with {self._labels}" + (f" ({unusual})" if unusual else "")

    @property
    def _data(self) -> str:
        scenario = self.first.spec.scenario
        main, *around = (DATA_NAMES.get(name, name) for name in (scenario.main, *scenario.peripheral))
        return f"{main} among {', '.join(around)}" if around else main

    @property
    def _labels(self) -> str:
        scenario = self.first.spec.scenario
        if scenario.labeled_fraction is None:
            return f"{scenario.labels_per_class} labels per class"
        return "all labels" if scenario.labeled_fraction == 1 else f"{100 * scenario.labeled_fraction:g} % labels"

    @property
    def schedule_words(self) -> str:
        """The schedule, and how long each method is trained under it."""
        by_length: dict[str, list[str]] = {}
        for entry in self.entries:
            by_length.setdefault(describe_schedule(entry.first.spec), []).append(entry.name)
        most = max(by_length, key=lambda length: len(by_length[length]))
        if len(by_length) == 1:
            return most
        return "; ".join(
            f"{'others' if length == most else ' and '.join(names)}: {length}"
            for length, names in sorted(by_length.items(), key=lambda item: item[0] == most)
        )

    @property
    def facts(self) -> str:
        """Steps, and the unlabelled images of a step: as many as the runs really used."""
        scenario, used = self.first.spec.scenario, [step.unlabeled for step in self.first.steps]
        low, high = min(used), max(used)
        related, unrelated = scenario.related or 0, scenario.unrelated or 0
        if low == high == related + unrelated * len(scenario.peripheral):
            images = f"{related:,} unlabelled images of the main set and {unrelated:,} of each other set per step"
        else:
            capped = ", capped by the schedule" if high == self.first.spec.schedule.row_cap else ""
            images = f"{low:,}{f' to {high:,}' if high > low else ''} unlabelled images per step{capped}"
        return f"{scenario.steps} steps; {images}"

    @property
    def subject(self) -> Entry:
        """Whom the conclusion is about: URSL, else URSL-plus, else the best."""
        named = {entry.configuration: entry for entry in self.entries}
        return named.get("ursl") or named.get("ursl-plus") or self.entries[0]

    @property
    def highlighted(self) -> list[Entry]:
        """Entries that figures show in colour until the reader chooses others."""
        ours = [entry for entry in self.entries if entry.configuration == "ursl-plus" and entry is not self.subject]
        return [self.subject, *ours]

    @property
    def competitor(self) -> Entry | None:
        """The best entry besides the subject's family, or besides the subject where there is no other."""
        others = [entry for entry in self.entries if entry is not self.subject]
        outside = [entry for entry in others if entry.configuration and entry.configuration not in FAMILY]
        return next(iter(outside or [entry for entry in others if self.subject.configuration not in FAMILY]), None)

    def base_of(self, entry: Entry) -> tuple[Entry, dict[str, str]] | None:
        """The full method that an ablation was made from, and what was changed."""
        if entry.configuration:
            return None
        method = entry.first.spec.method
        full = [
            other for other in self.entries if other.configuration and type(other.first.spec.method) is type(method)
        ]
        changed = [(other, changes(plain(other.first.spec.method), plain(method))) for other in full]
        return min(changed, key=lambda one: len(one[1]), default=None)


def chapters_of(records: Iterable[RunRecord]) -> list[Chapter]:
    """Chapters never mix schedules, settings, or test and validation rows."""
    found: dict[object, list[Entry]] = {}
    for runs in runs_by_method(records):
        spec = runs[0].spec
        key = (spec.scenario, spec.schedule, spec.stream, runs[0].evaluated_on)
        found.setdefault(key, []).append(Entry(method_label(runs[0]), tuple(runs)))
    return [Chapter(tuple(sorted(entries, key=lambda entry: -entry.mean))) for entries in found.values()]


def opening(chapters: Sequence[Chapter]) -> Chapter:
    """The chapter that the page opens with: the paper's schedule, URSL in it, and the most methods."""

    def weight(chapter: Chapter) -> tuple[bool, bool, int, int]:
        named = [entry for entry in chapter.entries if entry.configuration]
        ursl = any(entry.configuration == "ursl" for entry in named)
        return chapter.first.spec.schedule == PAPER, ursl, len(named), sum(len(entry.runs) for entry in named)

    return max(chapters, key=weight)


def conclusion(chapter: Chapter) -> list[str]:
    """What was found and by how much, in one sentence; then our extension, and how sure it is."""
    subject, competitor, spec = chapter.subject, chapter.competitor, chapter.first.spec
    under = "" if spec.schedule == PAPER else f" under the {spec.schedule.name} schedule"
    rows = " on validation images" if chapter.first.evaluated_on != "test" else ""
    said = f"On {chapter.place}{under}{rows}, {_called(subject)} ends at {subject.result}"
    if competitor:
        whom = "the best competitor," if subject.configuration in FAMILY else "the next,"
        said += f", {_gap(subject, competitor, f'{whom} {_called(competitor)} at {competitor.result}')}"
    if subject.published:
        said += f"; the paper reports {subject.published[0]:.1f} ± {subject.published[1]:.1f}"
    others = chapter.highlighted[1:]
    more = [f"{_called(one)} ends at {one.result}, {_gap(one, subject, _called(subject))}." for one in others]
    compared = [entry for entry in (subject, competitor, *others) if entry]
    if len(compared) > 1 and min(len(entry.runs) for entry in compared) == 1:
        more.append("These are single runs: the spread over seeds is not measured.")
    if spec.schedule == SMOKE:
        more.append("The smoke schedule shows that the code runs, not how well it learns.")
    return [f"{said}.", *more]


def _called(entry: Entry) -> str:
    return METHOD_NAMES.get(entry.configuration or "", entry.name)


def _gap(first: Entry, second: Entry, whom: str) -> str:
    """As in: 8.8 points above DM at 27.8 % (n = 1); with the interval where several seeds are paired."""
    seeds = sorted(first.finals.keys() & second.finals.keys())
    values = [tuple(entry.finals[seed] for seed in seeds) for entry in (first, second)]
    pairs = PairedDifference(tuple(seeds), *values)
    gap = pairs.mean if seeds else first.mean - second.mean
    words = f"{abs(gap):.1f} points {'above' if gap >= 0 else 'below'} {whom}"
    if len(seeds) < 2:
        return words
    if (ends := pairs.interval()) is None:
        return f"{words} ({len(seeds)} paired seeds)"
    zero = " includes 0" if ends[0] <= 0 <= ends[1] else ""
    interval = f"95 % interval {ends[0]:+.1f} to {ends[1]:+.1f}".replace("-", "−")
    return f"{words} ({interval}{zero}, {len(seeds)} paired seeds)"
