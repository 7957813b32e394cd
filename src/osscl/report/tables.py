"""Records as tables. Every number carries its schedule, seeds and n; missing is a dash."""

from collections.abc import Iterable, Sequence
from statistics import mean, pstdev

from osscl.methods import CONFIGURATIONS
from osscl.paper.claims import only_tries
from osscl.paper.tables import published_of
from osscl.report.formats import DASH, TableSection, as_markdown
from osscl.report.naming import method_name, seeds_and_n, setting_words
from osscl.runs.record import RunRecord
from osscl.runs.spec import display_name

HEADLINE = (
    "setting", "method", "schedule", "seeds", "final %", "the paper %", "forgetting",
    "gate AUROC, first → last step", "minutes", "device",
)  # fmt: skip

URSLS = ("ursl", "ursl-as-printed", "ursl-plus")  # what the paper's URSL is held against


def grouped(records: Iterable[RunRecord]) -> list[list[RunRecord]]:
    """Records that differ in their seed alone, together; groups of one setting one after the other, best first."""
    groups: dict[object, list[RunRecord]] = {}
    for record in sorted(records, key=lambda record: record.spec.seed):
        spec = record.spec
        same = (spec.scenario, spec.method, spec.schedule, spec.stream)  # what it was called says nothing more
        groups.setdefault(same, []).append(record)
    return sorted(groups.values(), key=_place)


def _place(runs: Sequence[RunRecord]) -> tuple[str, str, str, float]:
    spec = runs[0].spec
    return spec.scenario.main, setting_words(spec.scenario), spec.schedule.name, -mean(run.final for run in runs)


def accuracy_words(runs: Sequence[RunRecord]) -> str:
    finals = [run.final for run in runs]
    spread = f" ± {pstdev(finals):.1f}" if len(finals) > 1 else ""
    return f"{mean(finals):.1f}{spread}"


def headline(records: Iterable[RunRecord]) -> TableSection:
    """One row a setting and method: ours, the paper's where it has the cell, the gate, the time."""
    rows = [headline_row(runs) for runs in grouped(records)]
    note = (
        "Mean ± population std over the seeds. The paper's are means over three runs of its full schedule, of the same "
        "method; beside ursl-plus, of its URSL."
    )
    return TableSection("Headline", HEADLINE, rows, note)


def beside(record: RunRecord) -> tuple[float, float] | None:
    """What the paper has for the same method; beside ours, for its URSL; None beside a run not meant to reach it."""
    spec = record.spec
    if only_tries(spec.schedule):
        return None
    return published_of(spec.scenario, CONFIGURATIONS["ursl"] if display_name(spec) in URSLS else spec.method)


def beside_words(record: RunRecord) -> str:
    theirs = beside(record)
    if theirs is None:
        return DASH
    whose = " (URSL)" if display_name(record.spec) == "ursl-plus" else ""  # the paper has no number of ours
    return f"{theirs[0]:.1f} ± {theirs[1]:.1f}{whose}"


def paper_of(record: RunRecord) -> tuple[float, float] | None:
    """The paper's URSL, beside a run of URSL or of ours alone."""
    return beside(record) if display_name(record.spec) in URSLS else None


def headline_row(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    first = runs[0]
    devices = sorted({run.made_by.device for run in runs})
    return (
        setting_words(first.spec.scenario), method_name(first), first.spec.schedule.name, seeds_and_n(runs),
        f"{accuracy_words(runs)} ({first.evaluated_on})", beside_words(first),
        mean_words([run.forgetting for run in runs]), gate_words(runs), mean_words([minutes(run) for run in runs]),
        "; ".join(devices),
    )  # fmt: skip


def markdown(records: Iterable[RunRecord]) -> str:
    return as_markdown(headline(records))


def mean_of(values: Sequence[float | None]) -> float | None:
    """Mean where every value is known."""
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None


def mean_words(values: Sequence[float | None], digits: int = 1) -> str:
    value = mean_of(values)
    return DASH if value is None else f"{value:.{digits}f}"


def gate_words(runs: Sequence[RunRecord]) -> str:
    """AUROC of the classes met, at the first and the last step that have one."""
    ends = []
    for run in runs:
        values = [step.gate.auroc_seen for step in run.steps if step.gate is not None]
        known = [value for value in values if value is not None]
        ends.append((known[0], known[-1]) if known else (None, None))
    first, last = (mean_words(side, 3) for side in zip(*ends, strict=True))
    return DASH if DASH in (first, last) else f"{first} → {last}"


def minutes(record: RunRecord) -> float | None:
    """Wall-clock minutes of the run, with the reference's own where it came from the cache; None where they
    measure something else, see `Provenance.timed`."""
    cached = sum(phase.seconds for step in record.steps for phase in step.phases if phase.cached)
    return (record.made_by.seconds + cached) / 60 if record.made_by.timed else None
