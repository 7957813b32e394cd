"""The record of a finished run: one typed value, one JSON file."""

import dataclasses
import functools
import json
import operator
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osscl import metrics
from osscl.config import added_later, from_plain, plain
from osscl.errors import DataError, UserError, shown
from osscl.methods.base import PhaseReport
from osscl.runs.spec import ForeignConfig, RunSpec, spec_from_plain, spec_to_plain
from osscl.storage import DIGEST, seal, unsealed, write_text

FORMAT = "osscl record 1"
BINS = 50  # of the score histograms, over [-1, 1]
ROUNDING = 1e-3  # of accuracies in %, which are means in single precision
LONGEST_REASON = 500  # characters of a message about a record, which may quote values of any length


@dataclass(frozen=True)
class GateRecord:
    """The gate compared with the truth, at one step; None where one side of a comparison is empty."""

    auroc_seen: float | None  # known rows, of classes seen so far, against the rest of U_t
    auroc_related: float | None  # the main set against the foreign ones
    auroc_seen_foreign: float | None
    precision: float | None  # share of U-hat that is of the main set
    precision_seen: float | None  # share of U-hat that is known
    recall: float | None  # share of known rows that are in U-hat
    fpr95: float | None  # share of unknown rows accepted at the threshold that accepts 95 % of known rows
    pass_rates: Mapping[str, float | None]  # seen, unseen, foreign
    histograms: Mapping[str, tuple[int, ...]]  # of the scores, by true kind
    threshold: float  # tau_id
    pseudo_threshold: float  # tau_pl
    passed: int  # |U-hat|
    pseudo_labeled: int  # |T-hat|, the rows that entered training
    pseudo_accuracy: float | None  # share of correct pseudo-labels among known rows above tau_pl
    let_in: tuple[tuple[str, int], ...]  # a few rows of U-hat: set, row
    kept_out: tuple[tuple[str, int], ...]
    # As OpenOOD defines it: share of known rows rejected at the threshold that rejects 95 % of unknown rows.
    fpr95_unknown: float | None = added_later(None, legacy=None)


@dataclass(frozen=True)
class KnownRecord:
    """What looks known after a step, of held-out rows and peripheral rows outside U_t; None without such rows."""

    auroc: float | None  # classes seen so far against later classes and peripheral sets
    fpr95: float | None  # as in GateRecord
    recall: float | None  # share of the rows of seen classes that look known
    foreign: float | None  # share of the rows of peripheral sets that look known
    threshold: float
    fpr95_unknown: float | None = added_later(None, legacy=None)  # as in GateRecord


@dataclass(frozen=True)
class StepRecord:
    """One step of the stream."""

    new_classes: tuple[int, ...]
    labeled: int
    unlabeled: int
    asked: int  # unlabelled rows that the spec requests
    phases: tuple[PhaseReport, ...]
    notes: Mapping[str, float]
    gate: GateRecord | None = None
    known: KnownRecord | None = None


@dataclass(frozen=True)
class Session:
    """Code and device of one part of a run."""

    commit: str
    device: str
    torch: str


@dataclass(frozen=True)
class Provenance:
    """Where, when and with what a record was made."""

    command: str
    commit: str
    device: str
    precision: str
    osscl: str
    torch: str
    python: str
    date: str
    seconds: float  # wall-clock time over all sessions, evaluation and checkpoints included
    sessions: int  # 1 + how often the run was resumed
    peak_memory: int | None  # bytes on the device
    shared_device: bool = False  # other work ran on the device, so seconds do not count
    earlier: tuple[Session, ...] = ()  # parts whose code or device differ from the last one's

    @property
    def timed(self) -> bool:
        """Whether the seconds measure the method: nothing else ran on the device, and it was one kind of device."""
        return not self.shared_device and all(part.device == self.device for part in self.earlier)


@dataclass(frozen=True)
class RunRecord:
    """One finished run."""

    id: str
    configuration: str  # the name of the method's configuration at the time of the run
    spec: RunSpec
    accuracy: tuple[tuple[float, ...], ...]  # [t][k]: % on step k's classes after learning step t
    overall: tuple[float, ...]  # [t]: % over all classes seen up to t
    final: float  # the paper's number: % over all classes after the last step
    average: float | None  # mean of overall
    forgetting: float | None
    backward_transfer: float | None
    evaluated_on: str  # test or validation
    evaluated_rows: int
    confusion: tuple[tuple[int, ...], ...]  # rows: truth, columns: prediction, in class_order
    class_order: tuple[int, ...]
    content: Mapping[str, str]  # hash of each data set
    steps: tuple[StepRecord, ...]
    made_by: Provenance
    # Bytes of past data kept after the last step: images of M, statistics; None in records of earlier versions.
    memory_bytes: int | None = added_later(None, legacy=None)
    # % over all classes after the last step with other heads on the same networks, by name; None where there are none.
    other_heads: Mapping[str, float] | None = added_later(None, legacy=None)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Fields of a record from the index that have not been used yet, see `index.read_files`."""
            later = self.__dict__.get("later", {})
            if name not in later:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            object.__setattr__(self, name, later[name]())
            return self.__dict__[name]

    @property
    def updates(self) -> int:
        """The number of updates of all phases in all steps."""
        return sum(phase.updates for step in self.steps for phase in step.phases)

    @functools.cached_property
    def minutes(self) -> float | None:
        """Wall-clock minutes, a cached reference at its original training time; None where times do not count."""
        cached = sum(phase.seconds for step in self.steps for phase in step.phases if phase.cached)
        return (self.made_by.seconds + cached) / 60 if self.made_by.timed else None


def record_to_plain(record: RunRecord) -> dict[str, Any]:
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {"format": FORMAT, **plain({**fields, "spec": None}), "spec": spec_to_plain(record.spec)}


def write_record(record: RunRecord, path: Path) -> None:
    """Write one file atomically."""
    write_text(path, json.dumps(seal(record_to_plain(record)), indent=1, allow_nan=False) + "\n")


def read_record(path: Path | str, config: type | None = None) -> RunRecord:
    """Read a record, from its file or the folder of its run; a damaged file raises a one-line DataError. `config`: see
    `spec_from_plain`."""
    try:
        path = _record_file(Path(path))
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise DataError(f"expected the format {FORMAT!r}")
        if DIGEST in data:  # version 0.1 wrote none
            data = unsealed(data)
        del data["format"]
        record = from_plain(RunRecord, {**data, "spec": spec_from_plain(data.get("spec", {}), config, recorded=True)})
        if flaw := flaw_of(record):
            raise DataError(flaw)
        return record
    except OSError as error:
        raise DataError(f"{path} cannot be read as a record: {error.strerror}") from None
    except (UserError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as a record: {str(error)[:LONGEST_REASON]}") from None


def _record_file(path: Path) -> Path:
    """The record file in a run's folder, see `run`; a path to a file is returned unchanged."""
    return path / f"{path.resolve().name}.json" if path.is_dir() else path


def flaw_of(record: RunRecord) -> str:
    """How a record contradicts itself, e.g. after a manual edit or on a faulty disk; empty if it does not."""
    steps = (flaw for t, step in enumerate(record.steps) if (flaw := _flaw_of_step(step, f"step {t + 1}")))
    return (
        _flaw_of_id(record) or _flaw_of_shape(record) or _flaw_of_values(record) or _flaw_of_measures(record)
        or next(steps, "")
    )  # fmt: skip


def _flaw_of_id(record: RunRecord) -> str:
    """The hash in the id of a foreign method needs its config type, so only the readable part of it is compared."""
    spec = record.spec
    if isinstance(spec.method, ForeignConfig):
        ending = f"-{spec.scenario.main}-{spec.schedule.name}-s{spec.seed}-"
        fits = re.search(re.escape(ending) + "[0-9a-f]{12}$", record.id) is not None
        return "" if fits else f"the id {shown(record.id)} does not match the spec: expected {ending} and a hash"
    return "" if record.id == spec.id else f"the id {shown(record.id)} does not match the spec: expected {spec.id}"


def _flaw_of_shape(record: RunRecord) -> str:
    steps, classes = record.spec.scenario.steps, len(record.class_order)
    lengths = {len(record.accuracy), len(record.overall), len(record.steps)}
    if lengths != {steps} or [len(row) for row in record.accuracy] != list(range(1, steps + 1)):
        return f"accuracy, overall and steps must each have {steps} steps"
    taught = [label for step in record.steps for label in step.new_classes]
    if sorted(taught) != sorted({*record.class_order}) or len(taught) != classes:
        return "class_order must contain each class of the steps exactly once"
    if [len(row) for row in record.confusion] != [classes] * classes:
        return f"confusion must be {classes} by {classes}"
    sets = {record.spec.scenario.main, *record.spec.scenario.peripheral}
    return "" if {*record.content} == sets else f"content must name exactly the data sets {', '.join(sorted(sets))}"


def _flaw_of_values(record: RunRecord) -> str:
    """Values that no run can have."""
    percents = [value for row in (*record.accuracy, record.overall) for value in row]
    if not all(0 <= value <= 100 + ROUNDING for value in percents):
        return "accuracies must be in [0, 100]"
    if not all(0 <= value <= 100 + ROUNDING for value in (record.other_heads or {}).values()):
        return "other_heads must be in [0, 100]"
    if any(min(row) < 0 for row in record.confusion):
        return "confusion must not contain negative counts"
    if sum(map(sum, record.confusion)) != record.evaluated_rows:
        return f"confusion must add up to evaluated_rows, {record.evaluated_rows}"
    if record.evaluated_on != ("validation" if record.spec.scenario.validation_share else "test"):
        return f"evaluated_on {shown(record.evaluated_on)} contradicts the validation share of the spec"
    made_by = record.made_by
    if made_by.seconds < 0 or made_by.sessions < 1 or (made_by.peak_memory or 0) < 0:
        return "made_by must not contain negative seconds or memory, and must have at least 1 session"
    return ""


def _flaw_of_measures(record: RunRecord) -> str:
    """Measures that do not follow from the accuracies, or accuracies that do not follow from the confusion."""
    expected = {
        "final": record.overall[-1], "average": metrics.average_of_steps(record.overall),
        "forgetting": metrics.forgetting(record.accuracy),
        "backward_transfer": metrics.backward_transfer(record.accuracy),
    }  # fmt: skip
    for name, value in expected.items():
        if not _close(getattr(record, name), value):
            return f"{name} is {getattr(record, name)}, but the accuracies give {value}"
    position = {label: row for row, label in enumerate(record.class_order)}
    places = [[position[label] for label in step.new_classes] for step in record.steps]
    rows = [sum(sum(record.confusion[i]) for i in place) for place in places]
    right = [sum(record.confusion[i][i] for i in place) for place in places]
    for k, (correct, total) in enumerate(zip(right, rows, strict=True)):
        if total and not _close(record.accuracy[-1][k], 100 * correct / total):
            last = record.accuracy[-1][k]
            return f"the last accuracy of step {k + 1} is {last}, which does not match the confusion matrix"
    for t, (overall, row) in enumerate(zip(record.overall, record.accuracy, strict=True)):
        seen = sum(rows[: t + 1])
        if seen and not _close(overall, sum(map(operator.mul, row, rows)) / seen):
            return f"overall[{t}] is {overall}, which does not match the accuracies after step {t + 1}"
    return ""


def _close(value: float | None, expected: float | None) -> bool:
    """Equal up to the rounding of accuracies, which are means in single precision."""
    return value is expected is None or (None not in (value, expected) and abs(value - expected) <= ROUNDING)  # type: ignore[operator]


def _flaw_of_step(step: StepRecord, where: str) -> str:
    if not (step.labeled >= 0 and 0 <= step.unlabeled <= step.asked):
        return f"{where}: labeled must be 0 or more, and unlabeled in [0, {step.asked}]"
    if any(phase.seconds < 0 or phase.updates < 0 or phase.views < 0 for phase in step.phases):
        return f"{where}: a phase has negative seconds, updates or views"
    gate, known = step.gate, step.known
    shares = [] if known is None else [known.auroc, known.fpr95, known.fpr95_unknown, known.recall, known.foreign]
    if gate is not None:
        shares += [
            gate.auroc_seen, gate.auroc_related, gate.auroc_seen_foreign, gate.precision, gate.precision_seen,
            gate.recall, gate.fpr95, gate.fpr95_unknown, gate.pseudo_accuracy, *gate.pass_rates.values(),
        ]  # fmt: skip
        if any(len(counts) != BINS or min(counts) < 0 for counts in gate.histograms.values()):
            return f"{where}: histograms must have {BINS} bins without negative counts"
        if sum(map(sum, gate.histograms.values())) != step.unlabeled:
            return f"{where}: histograms must add up to the unlabelled rows, {step.unlabeled}"
        if not (0 <= gate.passed <= step.unlabeled and 0 <= gate.pseudo_labeled <= step.unlabeled):
            return f"{where}: passed and pseudo_labeled must be in [0, {step.unlabeled}], the unlabelled rows"
    return "" if all(0 <= value <= 1 for value in shares if value is not None) else f"{where}: shares must be in [0, 1]"


def commit() -> str:
    """The commit of the running code: OSSCL_COMMIT, or that of the git repository it is in."""
    if given := os.environ.get("OSSCL_COMMIT"):
        return given
    here = Path(__file__).parent
    try:
        tracked = ["git", "-C", str(here), "ls-files", "--error-unmatch", Path(__file__).name]
        subprocess.run(
            tracked, capture_output=True, check=True
        )  # fails where the code is in a repository of something else
        head = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(
            ["git", "-C", here, "status", "--porcelain", "--", here], capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")
