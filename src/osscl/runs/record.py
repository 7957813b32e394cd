"""What came out of a run: one typed record, one JSON file."""

import dataclasses
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osscl.config import from_plain, plain
from osscl.errors import DataError, UserError
from osscl.methods.base import PhaseReport
from osscl.runs.spec import RunSpec, spec_from_plain, spec_to_plain
from osscl.storage import write_text

FORMAT = "osscl record 1"
BINS = 50  # of the score histograms, over [-1, 1]
TIMED = "timed"  # the folder, below that of all runs, of runs made anew for their time


@dataclass(frozen=True)
class GateRecord:
    """The gate against the truth, at one step. None where one side of a comparison is empty."""

    auroc_seen: float | None  # classes met so far against the rest of U_t
    auroc_related: float | None  # the main set against the foreign ones
    auroc_seen_foreign: float | None
    precision: float | None  # share of U-hat that is of the main set
    precision_seen: float | None  # share of U-hat that is of a class met
    recall: float | None  # share of the rows of classes met that U-hat holds
    fpr95: float | None  # share of the rest that passes where .95 of the rows of classes met do
    pass_rates: Mapping[str, float | None]  # seen, unseen, foreign
    histograms: Mapping[str, tuple[int, ...]]  # of the scores, by true kind
    threshold: float  # tau_id
    pseudo_threshold: float  # tau_pl
    passed: int  # |U-hat|
    pseudo_labeled: int  # |T-hat|, the rows that entered training
    pseudo_accuracy: float | None  # of the rows above the higher threshold that are of a class met
    let_in: tuple[tuple[str, int], ...]  # a few rows of U-hat: set, row
    kept_out: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class KnownRecord:
    """What looks known after a step, of held-out rows and of peripheral rows that no U_t holds. None: no such row."""

    auroc: float | None  # classes met so far against classes to come and peripheral sets
    fpr95: float | None
    recall: float | None  # share of the rows of classes met that look known
    foreign: float | None  # share of the rows of peripheral sets that do
    threshold: float


@dataclass(frozen=True)
class StepRecord:
    """One step of the stream."""

    new_classes: tuple[int, ...]
    labeled: int
    unlabeled: int
    asked: int  # unlabelled rows that the spec asked for
    phases: tuple[PhaseReport, ...]
    notes: Mapping[str, float]
    gate: GateRecord | None = None
    known: KnownRecord | None = None


@dataclass(frozen=True)
class Session:
    """With what a part of a run was carried out."""

    commit: str
    device: str
    torch: str


@dataclass(frozen=True)
class Provenance:
    """Where, when and by what a record was made."""

    command: str
    commit: str
    device: str
    precision: str
    osscl: str
    torch: str
    python: str
    date: str
    seconds: float  # of wall-clock time over all sessions of the run, evaluation and checkpoints included
    sessions: int  # 1 + how often the run was interrupted and went on
    peak_memory: int | None  # bytes on the device
    shared_device: bool = False  # with other work on the device, so that seconds measure both
    earlier: tuple[Session, ...] = ()  # of parts that were carried out with something else than the last one

    @property
    def timed(self) -> bool:
        """Whether its seconds measure the method on its device: neither other work there nor another device before."""
        return not self.shared_device and all(part.device == self.device for part in self.earlier)


@dataclass(frozen=True)
class RunRecord:
    """One finished run."""

    id: str
    configuration: str  # the name of the method's configuration when it ran
    spec: RunSpec
    accuracy: tuple[tuple[float, ...], ...]  # [t][k]: % on step k's classes after learning step t
    overall: tuple[float, ...]  # [t]: % over all classes met up to t
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

    @property
    def minutes(self) -> float | None:
        """Wall-clock minutes, a cached reference at its original training time; None where times do not count."""
        cached = sum(phase.seconds for step in self.steps for phase in step.phases if phase.cached)
        return (self.made_by.seconds + cached) / 60 if self.made_by.timed else None


def record_to_plain(record: RunRecord) -> dict[str, Any]:
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {"format": FORMAT, **plain({**fields, "spec": None}), "spec": spec_to_plain(record.spec)}


def write_record(record: RunRecord, path: Path) -> None:
    """One file a run, whole or not at all."""
    write_text(path, json.dumps(record_to_plain(record), indent=1, allow_nan=False) + "\n")


def read_record(path: Path | str, config: type | None = None) -> RunRecord:
    """The record in `path`, or one line that says what is wrong with the file. `config`: see `spec_from_plain`."""
    try:
        data = json.loads(Path(path).read_text())
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise DataError(f"it is not of the format {FORMAT!r}")
        record = from_plain(RunRecord, {**data, "spec": spec_from_plain(data.get("spec", {}), config, recorded=True)})
        if flaw := flaw_of(record):
            raise DataError(flaw)
        return record
    except OSError as error:
        raise DataError(f"{path} cannot be read as a record: {error.strerror}") from None
    except (UserError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as a record: {error}") from None


def flaw_of(record: RunRecord) -> str:
    """What in a record does not fit together, as after an edit by hand; empty where all does."""
    steps = record.spec.scenario.steps
    lengths = {len(record.accuracy), len(record.overall), len(record.steps)}
    classes = len(record.class_order)
    if lengths != {steps} or [len(row) for row in record.accuracy] != list(range(1, steps + 1)):
        return f"accuracy, overall and steps are not those of {steps} steps"
    if sum(len(step.new_classes) for step in record.steps) != classes:
        return "class_order does not hold the classes of the steps"
    if [len(row) for row in record.confusion] != [classes] * classes:
        return f"confusion is not {classes} by {classes}"
    gates = [step.gate for step in record.steps if step.gate is not None]
    if any(len(counts) != BINS for gate in gates for counts in gate.histograms.values()):
        return f"a histogram has not {BINS} bins"
    return ""


def read_records(folder: Path) -> tuple[list[RunRecord], list[str]]:
    """Every record below a folder, once, and what is wrong with the files that are damaged."""
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
    """The files below a folder that are meant to be records, runs made anew last; other JSON is passed over."""
    found = sorted(folder.rglob("*.json"), key=lambda path: (TIMED in path.relative_to(folder).parts, path))
    return [
        path
        for path in found
        if not (path.name.startswith(".") or path.name == "spec.json" or path.parent.name in ("bench", "studies"))
    ]


def commit() -> str:
    """Of the code that runs: OSSCL_COMMIT, or what git says of the folder it lies in."""
    if given := os.environ.get("OSSCL_COMMIT"):
        return given
    here = Path(__file__).parent
    try:
        tracked = ["git", "-C", str(here), "ls-files", "--error-unmatch", Path(__file__).name]
        subprocess.run(tracked, capture_output=True, check=True)  # or it lies in a repository of someone else's
        head = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(
            ["git", "-C", here, "status", "--porcelain", "--", here], capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def python_version() -> str:
    return platform.python_version()
