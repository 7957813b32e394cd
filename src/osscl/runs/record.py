"""The record of a finished run: one typed value, one JSON file."""

import dataclasses
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osscl.config import added_later, from_plain, plain
from osscl.errors import DataError, UserError
from osscl.methods.base import PhaseReport
from osscl.runs.spec import RunSpec, spec_from_plain, spec_to_plain
from osscl.storage import write_text

FORMAT = "osscl record 1"
BINS = 50  # of the score histograms, over [-1, 1]
TIMED = "timed"  # folder, below that of all runs, of runs that were repeated for their time


@dataclass(frozen=True)
class GateRecord:
    """The gate compared with the truth, at one step; None where one side of a comparison is empty."""

    auroc_seen: float | None  # known rows, of classes seen so far, against the rest of U_t
    auroc_related: float | None  # the main set against the foreign ones
    auroc_seen_foreign: float | None
    precision: float | None  # share of U-hat that is of the main set
    precision_seen: float | None  # share of U-hat that is known
    recall: float | None  # share of known rows that are in U-hat
    fpr95: float | None  # known images positive: unknown rows accepted where 95 % of known rows are
    pass_rates: Mapping[str, float | None]  # seen, unseen, foreign
    histograms: Mapping[str, tuple[int, ...]]  # of the scores, by true kind
    threshold: float  # tau_id
    pseudo_threshold: float  # tau_pl
    passed: int  # |U-hat|
    pseudo_labeled: int  # |T-hat|, the rows that entered training
    pseudo_accuracy: float | None  # of the known rows above the higher threshold
    let_in: tuple[tuple[str, int], ...]  # a few rows of U-hat: set, row
    kept_out: tuple[tuple[str, int], ...]
    fpr95_unknown: float | None = added_later(
        None, legacy=None
    )  # OpenOOD: known rows rejected where 95 % of unknown are


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

    @property
    def minutes(self) -> float | None:
        """Wall-clock minutes, a cached reference at its original training time; None where times do not count."""
        cached = sum(phase.seconds for step in self.steps for phase in step.phases if phase.cached)
        return (self.made_by.seconds + cached) / 60 if self.made_by.timed else None


def record_to_plain(record: RunRecord) -> dict[str, Any]:
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {"format": FORMAT, **plain({**fields, "spec": None}), "spec": spec_to_plain(record.spec)}


def write_record(record: RunRecord, path: Path) -> None:
    """Write one file atomically."""
    write_text(path, json.dumps(record_to_plain(record), indent=1, allow_nan=False) + "\n")


def read_record(path: Path | str, config: type | None = None) -> RunRecord:
    """Read a record; a damaged file is a DataError of one line. `config`: see `spec_from_plain`."""
    try:
        data = json.loads(Path(path).read_text())
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise DataError(f"expected the format {FORMAT!r}")
        record = from_plain(RunRecord, {**data, "spec": spec_from_plain(data.get("spec", {}), config, recorded=True)})
        if flaw := flaw_of(record):
            raise DataError(flaw)
        return record
    except OSError as error:
        raise DataError(f"{path} cannot be read as a record: {error.strerror}") from None
    except (UserError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as a record: {error}") from None


def flaw_of(record: RunRecord) -> str:
    """An inconsistency in a record, such as an edit by hand leaves; empty if there is none."""
    steps = record.spec.scenario.steps
    lengths = {len(record.accuracy), len(record.overall), len(record.steps)}
    classes = len(record.class_order)
    if lengths != {steps} or [len(row) for row in record.accuracy] != list(range(1, steps + 1)):
        return f"accuracy, overall and steps must have {steps} steps"
    if sum(len(step.new_classes) for step in record.steps) != classes:
        return "class_order must have the classes of the steps"
    if [len(row) for row in record.confusion] != [classes] * classes:
        return f"confusion must be {classes} by {classes}"
    gates = [step.gate for step in record.steps if step.gate is not None]
    if any(len(counts) != BINS for gate in gates for counts in gate.histograms.values()):
        return f"histograms must have {BINS} bins"
    return ""


def read_records(folder: Path) -> tuple[list[RunRecord], list[str]]:
    """Every record below a folder, once, and one problem per damaged file."""
    records: dict[str, RunRecord] = {}
    problems = []
    for path in record_files(folder):
        try:
            record = read_record(path)
        except DataError as error:
            problems.append(str(error))
            continue
        first = records.setdefault(record.id, record)
        if first != record and not is_retimed(first, record):
            problems.append(f"{path} is another record of {record.id}")
    return list(records.values()), problems


def is_retimed(first: RunRecord, other: RunRecord) -> bool:
    """Whether another record of a run has the time that the first one lacks."""
    return other.made_by.timed and not first.made_by.timed


def record_files(folder: Path) -> list[Path]:
    """The record files below a folder, repeated runs last; other JSON is skipped."""
    found = sorted(folder.rglob("*.json"), key=lambda path: (TIMED in path.relative_to(folder).parts, path))
    return [
        path
        for path in found
        if not (path.name.startswith(".") or path.name == "spec.json" or path.parent.name in ("bench", "studies"))
    ]


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


def python_version() -> str:
    return platform.python_version()
