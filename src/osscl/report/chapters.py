"""Records sorted for a page: a chapter a setting and schedule, in it one entry a method, in it one run a seed."""

from collections.abc import Iterable
from dataclasses import dataclass

from osscl.report.naming import method_name, seeds_and_n, setting_words
from osscl.report.tables import grouped, paper_of
from osscl.runs.record import RunRecord
from osscl.runs.spec import describe_schedule


@dataclass(frozen=True)
class Entry:
    """One method in one setting: runs that differ in their seed alone, lowest seed first."""

    name: str
    runs: tuple[RunRecord, ...]

    @property
    def label(self) -> str:
        return f"{self.name} · seed{'s' * (len(self.runs) > 1)} {seeds_and_n(self.runs)}"

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    @property
    def gated(self) -> bool:
        return any(step.gate is not None for step in self.first.steps)

    @property
    def tells(self) -> bool:
        """Whether all of its runs say of an image that it looks known; earlier records do not."""
        return all(any(step.known is not None for step in run.steps) for run in self.runs)


@dataclass(frozen=True)
class Chapter:
    """One setting under one schedule, on test or on validation rows: what may be drawn into one figure."""

    number: int
    entries: tuple[Entry, ...]

    @property
    def first(self) -> RunRecord:
        return self.entries[0].first

    @property
    def title(self) -> str:
        scenario = self.first.spec.scenario
        return f"{scenario.main} among {', '.join(scenario.peripheral)}" if scenario.peripheral else scenario.main

    @property
    def words(self) -> str:
        """What every number of the chapter must carry."""
        return f"{self.conditions}; {self.rows_words}"

    @property
    def conditions(self) -> str:
        """The same for what was not measured on the held-out rows."""
        return f"{self.setting}; schedule {self.first.spec.schedule.name}"

    @property
    def setting(self) -> str:
        return setting_words(self.first.spec.scenario)

    @property
    def rows_words(self) -> str:
        return f"{self.first.evaluated_on} rows"

    @property
    def schedule_words(self) -> str:
        """The schedule, and how long each method is trained under it."""
        name, names = self.first.spec.schedule.name, dict[str, list[str]]()
        for entry in self.entries:
            length = describe_schedule(entry.first.spec).removeprefix(name).strip(" ()")
            names.setdefault(length, []).append(entry.name)
        if len(names) == 1:
            return describe_schedule(self.first.spec)
        return f"{name}: {'; '.join(_by_length(names))}"

    @property
    def paper(self) -> tuple[float, float] | None:
        """The paper's URSL, where a run of the chapter may stand beside it."""
        return next((found for entry in self.entries if (found := paper_of(entry.first))), None)


def _by_length(names: dict[str, list[str]]) -> list[str]:
    """Who is trained how long; where more than two are trained alike, they come last, as the others."""
    largest = max(names, key=lambda length: len(names[length]))
    others = [f"the others {largest}"] if len(names[largest]) > 2 else []
    return [
        f"{' and '.join(who)} {length}" for length, who in names.items() if not others or length != largest
    ] + others


def chapters_of(records: Iterable[RunRecord]) -> list[Chapter]:
    """Never two schedules, two settings, or test and validation rows in one chapter."""
    found: dict[object, list[Entry]] = {}
    for runs in grouped(records):
        spec = runs[0].spec
        found.setdefault((spec.scenario, spec.schedule, spec.stream), []).append(
            Entry(method_name(runs[0]), tuple(runs))
        )
    return [Chapter(i + 1, tuple(entries)) for i, entries in enumerate(found.values())]
