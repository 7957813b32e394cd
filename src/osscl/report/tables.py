"""Records as tables. Every number carries its schedule, seeds and n; missing is a dash."""

from collections.abc import Iterable, Sequence
from statistics import mean, pstdev

from osscl.experiments.published import published
from osscl.experiments.record import RunRecord
from osscl.stream.scenario import ScenarioSpec

DASH = "—"


def grouped(records: Iterable[RunRecord]) -> list[list[RunRecord]]:
    """Records that differ in their seed alone, together."""
    groups: dict[object, list[RunRecord]] = {}
    for record in sorted(records, key=lambda r: (r.spec.scenario.main, -r.final)):
        spec = record.spec
        groups.setdefault((spec.scenario, spec.method, spec.schedule, spec.stream, record.configuration), []).append(
            record
        )
    return list(groups.values())


def setting_words(scenario: ScenarioSpec) -> str:
    share = f"P={scenario.labeled_fraction:g}" if scenario.labeled_fraction else f"{scenario.labels_per_class} labels"
    world = f" / {', '.join(scenario.peripheral)}" if scenario.peripheral else ""
    regime = "" if scenario.regime == "osscl" else f", {scenario.regime}"
    return f"{scenario.main}{world}, {share}, M={scenario.memory}{regime}"


def accuracy_words(runs: Sequence[RunRecord]) -> str:
    finals = [run.final for run in runs]
    spread = f" ± {pstdev(finals):.1f}" if len(finals) > 1 else ""
    return f"{mean(finals):.1f}{spread}"


def seeds_words(runs: Sequence[RunRecord]) -> str:
    return f"{', '.join(str(seed) for seed in sorted(run.spec.seed for run in runs))} (n={len(runs)})"


def markdown(records: Iterable[RunRecord]) -> str:
    """One row a setting and method: ours, the paper's where it has the cell, the gate, the time."""
    lines = [
        "| setting | method | schedule | seeds | final % | paper's URSL % | forgetting | gate AUROC, first → last step "
        "| minutes | device |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for runs in grouped(records):
        first = runs[0]
        theirs = published(first.spec.scenario)
        minutes = mean(training_seconds(run) for run in runs) / 60
        cells = (
            setting_words(first.spec.scenario), first.configuration, first.spec.schedule.name, seeds_words(runs),
            f"{accuracy_words(runs)} ({first.evaluated_on})", f"{theirs[0]:.1f} ± {theirs[1]:.1f}" if theirs else DASH,
            f"{mean(r.forgetting for r in runs):.1f}" if all(r.forgetting is not None for r in runs) else DASH,  # type: ignore[type-var]
            gate_words(first), f"{minutes:.1f}", first.made_by.device,
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def gate_words(record: RunRecord) -> str:
    values = [step.gate.auroc_seen for step in record.steps if step.gate is not None]
    known = [value for value in values if value is not None]
    return f"{known[0]:.3f} → {known[-1]:.3f}" if known else DASH


def training_seconds(record: RunRecord) -> float:
    """Wall-clock seconds of the run, with the reference's own seconds where it came from the cache."""
    cached = sum(phase.seconds for step in record.steps for phase in step.phases if phase.cached)
    return record.made_by.seconds + cached
