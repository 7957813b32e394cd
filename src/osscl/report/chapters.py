"""Records sorted for a page, a chapter per setting and schedule and an entry per method; and as one table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from statistics import mean, stdev

from osscl.config import plain
from osscl.methods import CONFIGURATIONS, method_name
from osscl.methods.base import PAPER, SMOKE, Schedule
from osscl.metrics import sample_std
from osscl.paper.tables import published_of
from osscl.report.formats import SPREAD, Column, Number, ResultTable, Row
from osscl.report.naming import (
    changes,
    device_words,
    method_label,
    sentence_name,
    setting_words,
    unusual_in_prose,
)
from osscl.runs.record import RunRecord
from osscl.runs.spec import describe_schedule, display_name, is_changed
from osscl.tools.compare import PairedDifference, pair_by_seed

READINGS = ("ursl", "ursl-as-printed")  # of the paper's algorithm
OURS = ("ursl-plus", "ursl-plus-unlimited")
FAMILY = (*READINGS, *OURS)  # compared with the paper's URSL; everything else is a competitor
DATA_NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tinyimagenet": "Tiny-ImageNet",
    "caltech256": "Caltech-256",
}
SPACE = "\N{NO-BREAK SPACE}"
FEW_UPDATES = 0.25  # of the subject's updates: at a shortened schedule, a method with fewer is not a baseline


@dataclass(frozen=True)
class Entry:
    """One method in one chapter: runs that differ only in their seed, lowest seed first."""

    name: str
    runs: tuple[RunRecord, ...]

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    @property
    def called(self) -> str:
        """Its name in a sentence."""
        return sentence_name(self.name)

    @cached_property
    def configuration(self) -> str | None:
        """The configuration's name, or that of a method of another package; None for a changed configuration."""
        spec = self.first.spec
        return None if is_changed(spec.method) else display_name(spec)

    @property
    def is_foreign(self) -> bool:
        """Whether its method belongs to another package, so that its usual configuration is unknown."""
        return method_name(self.first.spec.method) is None

    @cached_property
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
        """The paper's mean and deviation for this method; None for runs at another schedule and for URSL-plus."""
        return None if self.configuration in OURS else published_beside(self.first)

    @property
    def updates(self) -> int:
        """The number of updates in the lowest seed's run."""
        return self.first.updates

    @property
    def result(self) -> str:
        """The final accuracy in words, such as: 36.6 ± 0.4 %."""
        finals = list(self.finals.values())
        spread = f"{SPACE}±{SPACE}{stdev(finals):.1f}" if len(finals) > 1 else ""
        return f"{self.mean:.1f}{spread}{SPACE}%"

    @property
    def n(self) -> str:
        return f"n{SPACE}={SPACE}{len(self.runs)}"


@dataclass(frozen=True)
class Chapter:
    """One setting under one schedule, on test or on validation rows: what may share a figure. Best entry first."""

    entries: tuple[Entry, ...]

    @property
    def first(self) -> RunRecord:
        return self.entries[0].first

    @property
    def setting(self) -> str:
        """The setting in words that distinguish it from every other."""
        scenario = self.first.spec.scenario
        return ", ".join([f"{self._data}, {self._labels}, memory {scenario.memory}", *unusual_in_prose(scenario)])

    @property
    def place(self) -> str:
        """The same for use in a sentence, such as: CIFAR-100 among CIFAR-10 with 5 % labels."""
        scenario = self.first.spec.scenario
        unusual = ", ".join(unusual_in_prose(replace(scenario, validation_share=0.0)))  # the rows are named separately
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
        return "all labels" if scenario.labeled_fraction == 1 else f"{100 * scenario.labeled_fraction:g}{SPACE}% labels"

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
        """Steps, and the unlabelled images of a step: as many as the runs actually used."""
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
        """The entry that the conclusion is about: URSL, else URSL-plus, else the best one."""
        usual_size_last = sorted(self.entries, key=lambda entry: entry.name == entry.configuration)
        named = {entry.configuration: entry for entry in usual_size_last}
        return next((named[name] for name in ("ursl", *OURS) if name in named), self.entries[0])

    @property
    def highlighted(self) -> list[Entry]:
        """Entries that figures show in colour until the reader chooses others."""
        ours = [entry for entry in self.entries if entry.configuration in OURS and entry is not self.subject]
        return [self.subject, *ours]

    @property
    def competitor(self) -> Entry | None:
        """The best baseline outside the subject's family; if there is none, the best one other than the subject."""
        others = [entry for entry in self.entries if entry is not self.subject and self.is_baseline(entry)]
        outside = [entry for entry in others if entry.configuration and entry.configuration not in FAMILY]
        return next(iter(outside or [entry for entry in others if self.subject.configuration not in FAMILY]), None)

    def is_baseline(self, entry: Entry) -> bool:
        """Whether it was trained long enough for a comparison: not with a fraction of a shortened schedule's updates.

        At `short` on CIFAR-100, Co2L makes 900 updates and URSL 14,275, so that beating Co2L shows little.
        """
        shortened = is_shortened(entry.first.spec.schedule)
        return not (shortened and entry.updates < FEW_UPDATES * self.subject.updates)

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


def runs_by_method(records: Iterable[RunRecord]) -> list[list[RunRecord]]:
    """Groups of records that differ in their seed only; those of one setting together, best first."""
    groups: dict[object, list[RunRecord]] = {}
    for record in sorted(records, key=lambda record: record.spec.seed):
        spec = record.spec
        same = (spec.scenario, spec.method, spec.schedule, spec.stream)
        groups.setdefault(same, []).append(record)
    return sorted(groups.values(), key=_place)


def _place(runs: Sequence[RunRecord]) -> tuple[str, str, str, float]:
    spec = runs[0].spec
    return spec.scenario.main, setting_words(spec.scenario), spec.schedule.name, -mean(run.final for run in runs)


def published_beside(record: RunRecord) -> tuple[float, float] | None:
    """The paper's mean and std for a run's method, for ours that of its URSL; None at any schedule but the paper's."""
    spec = record.spec
    if spec.schedule != PAPER:
        return None
    theirs = published_of(spec.scenario, CONFIGURATIONS["ursl"] if display_name(spec) in FAMILY else spec.method)
    return None if theirs is None else (theirs.mean, theirs.std or 0.0)


def chapters_of(records: Iterable[RunRecord]) -> list[Chapter]:
    """Chapters never mix schedules, settings, or test and validation rows."""
    found: dict[object, list[Entry]] = {}
    for runs in runs_by_method(records):
        spec = runs[0].spec
        key = (spec.scenario, spec.schedule, spec.stream, runs[0].evaluated_on)
        found.setdefault(key, []).append(Entry(method_label(runs[0]).in_prose, tuple(runs)))
    best_first = (sorted(entries, key=lambda entry: -entry.mean) for entries in found.values())
    return [Chapter(tuple(_with_short_names(entries))) for entries in best_first]


def _with_short_names(entries: Sequence[Entry]) -> list[Entry]:
    """A method of another package is named without a hash where the chapter has one configuration of it."""
    kinds = [entry.first.spec.type for entry in entries]
    return [
        replace(entry, name=kind) if entry.is_foreign and kinds.count(kind) == 1 else entry
        for entry, kind in zip(entries, kinds, strict=True)
    ]


def is_shortened(schedule: Schedule) -> bool:
    """Whether a schedule makes fewer updates than the configurations ask for."""
    return schedule.share < 1 or schedule.max_updates is not None or schedule.row_cap is not None


def opening(chapters: Sequence[Chapter]) -> Chapter:
    """The chapter that the page opens with: the paper's schedule, URSL in it, and the most methods."""

    def weight(chapter: Chapter) -> tuple[bool, bool, int, int]:
        named = [entry for entry in chapter.entries if entry.configuration]
        ursl = any(entry.configuration == "ursl" for entry in named)
        return chapter.first.spec.schedule == PAPER, ursl, len(named), sum(len(entry.runs) for entry in named)

    return max(chapters, key=weight)


def conclusion(chapter: Chapter) -> list[str]:
    """The main finding in one sentence; then how certain it is, and the results of our extension."""
    subject, competitor, spec = chapter.subject, chapter.competitor, chapter.first.spec
    under = "" if spec.schedule == PAPER else f" under the {spec.schedule.name} schedule"
    rows = " on validation images" if chapter.first.evaluated_on != "test" else ""
    n = f"{subject.n}{SPACE}seed{'s' * (len(subject.runs) != 1)}"
    said = f"On {chapter.place}{under}{rows}, {subject.called} reaches a final accuracy of {subject.result} ({n})"
    more = []
    if competitor:
        whom = "the best competitor, " if subject.configuration in FAMILY else "the next best, "
        whom = "" if competitor.configuration == "labels-only" else whom  # our ablation is not a competitor
        said += f", {_gap(subject, competitor)} {whom}{competitor.called} ({competitor.result}, {competitor.n})"
        if sure := _interval(subject, competitor):
            more.append(f"The difference from {competitor.called} {sure}.")
    if subject.published:
        theirs = f"{subject.published[0]:.1f}{SPACE}±{SPACE}{subject.published[1]:.1f}{SPACE}%"
        said += f"; the paper reports {theirs} for {subject.called}"
        more += _printed_rates(chapter)
    for one in chapter.highlighted[1:]:
        sure = _interval(one, subject)
        words = f"{one.called} reaches {one.result} ({one.n}), {_gap(one, subject)} {subject.called}"
        more.append(f"{words}{f'; this difference {sure}' if sure else ''}.")
    return [f"{said}.", *more, *_cautions(chapter)]


def _printed_rates(chapter: Chapter) -> list[str]:
    """A note on the recipe of the subject, if the paper's number is shown next to it."""
    if chapter.subject.configuration != "ursl":
        return []
    printed = [entry for entry in chapter.entries if entry.configuration == "ursl-as-printed"]
    ends = "".join(f"; with the rates that the paper prints, it reaches {one.result} ({one.n})" for one in printed)
    return [f"URSL uses our optimisers, projector and head{ends}."]


def _cautions(chapter: Chapter) -> list[str]:
    compared = [entry for entry in (chapter.subject, chapter.competitor, *chapter.highlighted[1:]) if entry]
    few = len(compared) > 1 and min(len(entry.runs) for entry in compared) == 1
    smoke = chapter.first.spec.schedule == SMOKE
    return ["Single runs: variation between seeds is not measured."] * few + [
        "The smoke schedule shows that the code runs, not how well it learns."
    ] * smoke


def _gap(first: Entry, second: Entry) -> str:
    """The difference in words, such as: 8.8 points above."""
    pairs = _paired(first, second)
    gap = pairs.mean if pairs.n else first.mean - second.mean
    return f"{abs(gap):.1f} points {'above' if gap >= 0 else 'below'}"


def _interval(first: Entry, second: Entry) -> str | None:
    """What several paired seeds say about the difference; None for fewer than two."""
    pairs = _paired(first, second)
    if pairs.n < 2:
        return None
    if (ends := pairs.interval()) is None:
        return f"is the same in all {pairs.n} paired seeds"
    low, high = (f"{end:+.1f}".replace("-", "−") for end in ends)
    if ends[0] <= 0 <= ends[1]:
        interval = f"95{SPACE}% interval {low} to {high}, {pairs.n} paired seeds"
        return f"is not significant at the 5{SPACE}% level ({interval})"
    return f"has a 95{SPACE}% interval of {low} to {high} ({pairs.n} paired seeds)"


def _paired(first: Entry, second: Entry) -> PairedDifference:
    """The seeds for which both had the same stream."""
    return pair_by_seed(first.runs, second.runs).difference(attrgetter("final"))


# ----- records as one table: a row per setting and method, with schedule, seeds and n next to every number

COLUMNS = (
    Column("setting"), Column("method"), Column("schedule"), Column("seeds", "seeds"), Column("rows"),
    Column("final %", "mean", ("final", "final_std", "n"), ours=True),
    Column("paper %", "published", ("paper", "paper_std")), Column("forgetting", "number"),
    Column("gate AUROC, first step", "number", ("gate_auroc_first",)),
    Column("gate AUROC, last step", "number", ("gate_auroc_last",)), Column("minutes", "number"), Column("device"),
)  # fmt: skip


def headline_table(records: Iterable[RunRecord]) -> ResultTable:
    """One row per setting and method: ours, the paper's at its schedule, the gate, the time."""
    rows = [headline_values(runs) for runs in runs_by_method(records)]
    theirs = (
        "The paper's numbers are means over three runs of the same method at its full schedule; next to ursl-plus, of "
        "URSL. They are not shown for shorter schedules."
    )
    return ResultTable("Results", COLUMNS, rows, (SPREAD, theirs))


def headline_values(runs: Sequence[RunRecord]) -> Row:
    first = runs[0]
    finals, theirs = [run.final for run in runs], published_beside(first)
    whose = "URSL" if display_name(first.spec) in OURS else ""  # the paper has no number of ours
    paper = None if theirs is None else Number(*theirs, remark=whose)
    final = Number(
        mean(finals), sample_std(finals), len(finals), is_percent=True,
        published=None if theirs is None else theirs[0],
    )  # fmt: skip
    gates = [mean_number(side, 3) for side in zip(*map(_gate_ends, runs), strict=True)]
    return (
        setting_words(first.spec.scenario), str(method_label(first)), first.spec.schedule.name,
        tuple(run.spec.seed for run in runs), first.evaluated_on, final, paper,
        mean_number([run.forgetting for run in runs]), *gates, mean_number([run.minutes for run in runs]),
        "; ".join(sorted({device_words(run.made_by.device) for run in runs})),
    )  # fmt: skip


def mean_number(values: Sequence[float | None], digits: int = 1) -> Number | None:
    """The mean, where every value is known."""
    known = [value for value in values if value is not None]
    return Number(mean(known), digits=digits) if known and len(known) == len(values) else None


def _gate_ends(run: RunRecord) -> tuple[float | None, float | None]:
    """AUROC of the gate for seen classes, at the first and the last step that have one."""
    values = [step.gate.auroc_seen for step in run.steps if step.gate is not None]
    known = [value for value in values if value is not None]
    return (known[0], known[-1]) if known else (None, None)
