"""Records as one table: a row per setting and method, with schedule, seeds and n beside every number."""

from collections.abc import Iterable, Sequence
from statistics import mean

from osscl.methods import CONFIGURATIONS
from osscl.methods.base import PAPER
from osscl.metrics import sample_std
from osscl.paper.tables import published_of
from osscl.report.formats import SPREAD, Column, Number, ResultTable, Row, to_markdown
from osscl.report.naming import device_words, method_label, setting_words
from osscl.runs.record import RunRecord
from osscl.runs.spec import display_name

PLUS = ("ursl-plus", "ursl-plus-unlimited")  # ours
URSLS = ("ursl", "ursl-as-printed", *PLUS)  # compared with the paper's URSL
COLUMNS = (
    Column("setting"), Column("method"), Column("schedule"), Column("seeds", "seeds"), Column("rows"),
    Column("final %", "mean", ("final", "final_std", "n"), ours=True),
    Column("the paper %", "published", ("paper", "paper_std")), Column("forgetting", "number"),
    Column("gate AUROC, first step", "number", ("gate_auroc_first",)),
    Column("gate AUROC, last step", "number", ("gate_auroc_last",)), Column("minutes", "number"), Column("device"),
)  # fmt: skip


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


def headline_table(records: Iterable[RunRecord]) -> ResultTable:
    """One row per setting and method: ours, the paper's at its schedule, the gate, the time."""
    rows = [headline_values(runs) for runs in runs_by_method(records)]
    theirs = (
        "The paper's numbers are means over three runs of its full schedule, of the same method; beside ursl-plus, of "
        "its URSL. They are not shown beside shorter schedules."
    )
    return ResultTable("Results", COLUMNS, rows, (SPREAD, theirs))


def headline_values(runs: Sequence[RunRecord]) -> Row:
    first = runs[0]
    finals, theirs = [run.final for run in runs], published_beside(first)
    whose = "URSL" if display_name(first.spec) in PLUS else ""  # the paper has no number of ours
    paper = None if theirs is None else Number(*theirs, remark=whose)
    final = Number(
        mean(finals), sample_std(finals), len(finals), is_percent=True,
        published=None if theirs is None else theirs[0],
    )  # fmt: skip
    gates = [mean_number(side, 3) for side in zip(*map(_gate_ends, runs), strict=True)]
    return (
        setting_words(first.spec.scenario), method_label(first), first.spec.schedule.name,
        tuple(run.spec.seed for run in runs), first.evaluated_on, final, paper,
        mean_number([run.forgetting for run in runs]), *gates, mean_number([run.minutes for run in runs]),
        "; ".join(sorted({device_words(run.made_by.device) for run in runs})),
    )  # fmt: skip


def published_beside(record: RunRecord) -> tuple[float, float] | None:
    """The paper's mean and std for a run's method, for ours that of its URSL; None at any schedule but the paper's."""
    spec = record.spec
    if spec.schedule != PAPER:
        return None
    theirs = published_of(spec.scenario, CONFIGURATIONS["ursl"] if display_name(spec) in URSLS else spec.method)
    return None if theirs is None else (theirs.mean, theirs.std or 0.0)


def mean_number(values: Sequence[float | None], digits: int = 1) -> Number | None:
    """The mean, where every value is known."""
    known = [value for value in values if value is not None]
    return Number(mean(known), digits=digits) if known and len(known) == len(values) else None


def _gate_ends(run: RunRecord) -> tuple[float | None, float | None]:
    """AUROC of the gate for seen classes, at the first and the last step that have one."""
    values = [step.gate.auroc_seen for step in run.steps if step.gate is not None]
    known = [value for value in values if value is not None]
    return (known[0], known[-1]) if known else (None, None)


def markdown(records: Iterable[RunRecord]) -> str:
    return to_markdown(headline_table(records))
