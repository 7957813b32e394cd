"""Hyperparameter search on validation rows with Optuna: spaces of values, and resumable trials for several workers."""

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import yaml
from filelock import FileLock

from osscl.config import content_id, override, plain
from osscl.errors import Diverged, SpecError, Stopped, UserError, require_known, unknown
from osscl.methods.base import Progress
from osscl.runs.checkpoint import Options, Unwatched, Watcher
from osscl.runs.engine import run_one
from osscl.runs.record import StepRecord
from osscl.runs.spec import RunSpec
from osscl.storage import remove_state

Config = TypeVar("Config")

# Table 7 of the paper: one tau, one optimiser and one rate for both networks. Its text ties gamma to lambda.
PAPER_SPACE: dict[str, str] = {
    "learner.epochs": "[100, 200]",  # E_S
    "reference.epochs_first": "[200, 300, 400]",  # E_T1
    "reference.epochs_later": "[100, 200]",  # E_T>1
    "reference.tau": "[0.1, 0.5]",
    "learner.tau": "reference.tau",
    "learner.lam": "[0.05, 0.2, 0.4]",
    "learner.gamma": "learner.lam",
    "gate.eta": "[[-4, -2], [-2, 0], [-2, 2]]",
    "reference.optimiser.kind": "[sgd, adam]",
    "learner.optimiser.kind": "reference.optimiser.kind",
    "reference.optimiser.rate": "[0.1, 0.01]",
    "learner.optimiser.rate": "reference.optimiser.rate",
}
SPACES: dict[str, Mapping[str, str]] = {"paper": PAPER_SPACE}


@dataclass(frozen=True)
class Choice:
    """One of several values, each written as JSON."""

    field: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Range:
    """Any number between two, both included; whole numbers for a field of whole numbers."""

    field: str
    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Tied:
    """The same value as another field's."""

    field: str
    to: str


Dimension = Choice | Range | Tied
Space = tuple[Dimension, ...]


def space_of(entries: Sequence[str], named: str | None, config: Any) -> Space:
    """The space of this name with further entries, which take precedence, checked against the method's config."""
    if named is not None:
        require_known("space", named, SPACES)
    written = dict(SPACES[named]) if named is not None else {}
    for entry in entries:
        field, equals, text = entry.partition("=")
        if not equals or not text.strip():
            raise SpecError(f"a search must be field=[a, b], field=low..high[:log] or field=other, got {entry!r}")
        written[field.strip().removeprefix("method.")] = text.strip()
    space = tuple(
        _dimension(field, text, Checked(config, _followers(written, field))) for field, text in written.items()
    )
    if all(isinstance(dimension, Tied) for dimension in space):
        raise SpecError("nothing to search: give --search field=[a, b] or field=low..high")
    for field in (ties := _ties(space)):
        _end_of(field, ties)
    return space


@dataclass(frozen=True)
class Checked:
    """What values of a field are checked against: the config, and the fields that are tied to this one."""

    config: Any
    followers: tuple[str, ...]

    def admitted(self, field: str, text: str) -> Any:
        """A value in the declared type of its field, refused before the search starts."""
        changes = [f"{name}={text}" for name in (field, *self.followers)]
        return value_at(override(self.config, changes), field)


def _followers(written: Mapping[str, str], field: str) -> tuple[str, ...]:
    return tuple(other for other, text in written.items() if text.removeprefix("method.") == field)


def _dimension(field: str, text: str, checked: Checked) -> Dimension:
    value_at(checked.config, field)
    if text.startswith("["):
        return _choice(field, text, checked)
    low, dots, high = text.partition("..")
    if dots:
        return _range(field, low, high, checked)
    value_at(checked.config, text.removeprefix("method."))
    return Tied(field, text.removeprefix("method."))


def _choice(field: str, text: str, checked: Checked) -> Choice:
    try:
        values = yaml.safe_load(text)
        json.dumps(values)  # YAML dates are not values of any field
    except (yaml.YAMLError, ValueError, TypeError):
        raise SpecError(f"{field}: cannot read the values {text!r}") from None
    if not isinstance(values, list) or not values:
        raise SpecError(f"{field}: values must be a list [a, b, c], got {text!r}")
    admitted = [_as_json(checked.admitted(field, json.dumps(value))) for value in values]
    return Choice(field, tuple(dict.fromkeys(admitted)))


def _range(field: str, low: str, high: str, checked: Checked) -> Range:
    high, colon, kind = high.partition(":")
    if colon and kind != "log":
        raise SpecError(f"{field}: a range must be low..high or low..high:log, got {kind!r} after the colon")
    ends = [checked.admitted(field, end) for end in (low, high)]
    if any(isinstance(end, bool) or not isinstance(end, int | float) for end in ends):
        raise SpecError(f"{field}: a range needs two numbers, got {low!r} and {high!r}")
    if not ends[0] < ends[1] or (colon and ends[0] <= 0):
        need = "0 < low < high" if colon else "low < high"
        raise SpecError(f"{field}: a range needs {need}, got {low}..{high}")
    return Range(field, ends[0], ends[1], bool(colon))


def _as_json(value: Any) -> str:
    return json.dumps(plain(value))


def value_at(config: Any, field: str) -> Any:
    """The value of a field by its dotted name."""
    value, parts = config, field.split(".")
    for depth, name in enumerate(parts, 1):
        names = list(getattr(value, "__dataclass_fields__", {}))
        if not names:
            raise SpecError(f"{field}: {parts[depth - 2]!r} is not a group of fields")
        if name not in names:
            raise unknown("field", ".".join(parts[:depth]), names)
        value = getattr(value, name)
    return value


def with_tied(chosen: Mapping[str, str], space: Space, config: Any) -> dict[str, str]:
    """The chosen values and those of tied fields, as JSON by field."""
    values = dict(chosen)
    for field in (ties := _ties(space)):
        end = _end_of(field, ties)
        values[field] = values.get(end) or _as_json(value_at(config, end))
    return values


def as_changes(values: Mapping[str, str]) -> list[str]:
    """Values as they are written for --set."""
    return [f"{field}={text}" for field, text in values.items()]


def _ties(space: Space) -> dict[str, str]:
    return {dimension.field: dimension.to for dimension in space if isinstance(dimension, Tied)}


def _end_of(field: str, ties: Mapping[str, str]) -> str:
    """The field that a chain of ties leads to."""
    met = {field}
    while (field := ties.get(field, field)) in ties:
        if field in met:
            raise SpecError(f"{field} is tied to itself through other fields")
        met.add(field)
    return field


def own_point(space: Space, config: Any) -> dict[str, Any] | None:
    """The config's own point in the space, as Optuna's parameters; None if it is outside."""
    point: dict[str, Any] = {}
    for dimension in space:
        value = value_at(config, dimension.field)
        if isinstance(dimension, Choice) and _as_json(value) in dimension.values:
            point[dimension.field] = _as_json(value)
        elif isinstance(dimension, Range) and value is not None and dimension.low <= value <= dimension.high:
            point[dimension.field] = value
        elif not isinstance(dimension, Tied) or value != value_at(config, dimension.to):
            return None
    return point


DIGITS = 4  # of a number drawn from a range, so that commands stay readable
HEARTBEAT, GRACE = 10, 30  # seconds: a worker that is silent for longer is lost, and its trial is retried

WatchTrial = Callable[[str], AbstractContextManager[Watcher]]  # makes the watcher of a trial, by its title


@dataclass(frozen=True)
class Search:
    """What is searched, and where its trials are stored."""

    spec: RunSpec
    space: Space
    folder: Path
    prune_after: int = 5  # finished trials before any is pruned

    def __post_init__(self) -> None:
        if not self.spec.scenario.validation_share > 0:
            raise SpecError("a search needs validation rows: validation_share must be positive")

    @property
    def name(self) -> str:
        """Name of the study: the same search in the same folder is resumed."""
        return content_id([self.spec.type, self.spec, self.space])

    def lock(self, name: str) -> FileLock:
        return FileLock(self.folder / "locks" / name)


@dataclass(frozen=True)
class TrialSummary:
    """One stored trial."""

    number: int
    state: str  # finished, pruned, failed or running
    values: Mapping[str, str]  # of the searched and tied fields, as JSON
    by_step: dict[int, float]  # accuracy in % on validation rows after each reported step, from 0
    final: float | None
    why: str = ""  # the reason why it failed


def open_study(search: Search) -> Any:
    """The study in the search's folder, created if there is none."""
    try:
        import optuna
    except ImportError:
        raise UserError('a search needs Optuna: pip install "osscl[tune]"') from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)  # of heartbeats
    try:
        (search.folder / "locks").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to the output folder {search.folder}: {error.strerror}") from None
    file = search.folder.resolve() / "trials.sqlite3"
    with search.lock("study"):  # two workers must not create the tables at once
        try:
            study = optuna.create_study(
                storage=_storage(file), study_name=search.name, direction="maximize", load_if_exists=True
            )
        except Exception as error:
            if type(error).__module__.split(".")[0] not in ("optuna", "sqlalchemy"):
                raise
            raise UserError(f"{file} is not an Optuna storage: {str(error).splitlines()[0]}") from None
        if not study.get_trials(deepcopy=False) and (point := own_point(search.space, search.spec.method)) is not None:
            study.enqueue_trial(point)  # try the configuration itself first
    return study


def _storage(file: Path) -> Any:
    from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
    from sqlalchemy.engine import URL

    url = URL.create("sqlite", database=str(file)).render_as_string()  # the path may have any characters
    return RDBStorage(
        str(url), engine_kwargs={"connect_args": {"timeout": 60}}, heartbeat_interval=HEARTBEAT, grace_period=GRACE,
        heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
    )  # fmt: skip


def _counts(trial: Any) -> bool:
    """Whether a trial counts towards the requested number; one that will be retried does not."""
    return trial.state.name in ("COMPLETE", "PRUNED", "RUNNING") or "why" in trial.user_attrs


def trial_summaries(study: Any) -> list[TrialSummary]:
    """Every trial, without those that were retried."""
    states = {"COMPLETE": "finished", "PRUNED": "pruned", "RUNNING": "running", "FAIL": "failed"}
    return [
        TrialSummary(
            trial.number, states[trial.state.name], trial.user_attrs.get("values", {}),
            dict(sorted(trial.intermediate_values.items())),
            trial.value if trial.state.name == "COMPLETE" else None, trial.user_attrs.get("why", ""),
        )
        for trial in study.get_trials(deepcopy=False)
        if _counts(trial)
    ]  # fmt: skip


def best_trial(trials: Sequence[TrialSummary]) -> TrialSummary | None:
    """The trial with the highest final accuracy; of equal ones, the earliest."""
    finished = [trial for trial in trials if trial.final is not None]
    return max(finished, key=lambda trial: (trial.final or 0.0, -trial.number), default=None)


def unwatched_trial(title: str) -> AbstractContextManager[Watcher]:
    return nullcontext(Unwatched())


def run_trials(
    search: Search, options: Options, trials: int, seconds: float | None = None, watch: WatchTrial = unwatched_trial
) -> None:
    """Run trials until there are `trials` over all workers and sessions; raises Stopped after `seconds`."""
    study, deadline = open_study(search), None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise Stopped
        limited = options if left is None else replace(options, max_minutes=left / 60)
        if not _run_next(study, search, limited, trials, watch):
            return


def _run_next(study: Any, search: Search, options: Options, trials: int, watch: WatchTrial) -> bool:
    """Run one trial unless there are enough; Optuna keeps its heartbeat and retries the trials of lost workers."""
    from optuna.samplers import TPESampler
    from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials

    lock, number = search.lock("study"), None

    def objective(trial: Any) -> float:
        nonlocal number
        number = trial.number
        trial.set_user_attr("chosen", {one.field: _suggested(trial, one) for one in _drawn(search)})
        lock.release()  # the trial is counted and its values are stored: the next worker may draw
        with watch(f"trial {number}") as watcher:
            return _run_trial(study, trial, search, replace(options, watcher=watcher))

    with lock:  # counting and drawing are one step
        fail_stale_trials(study)
        stored = study.get_trials(deepcopy=False)
        if sum(map(_counts, stored)) >= trials:
            return False
        # One seed per trial: with one for all, a resumed search would draw its first points again.
        study.sampler = TPESampler(seed=int(content_id([search.name, len(stored)], 8), 16), constant_liar=True)
        try:
            study.optimize(objective, n_trials=1, catch=(Diverged,))
        except BaseException:  # Optuna retries lost workers, but not trials that were stopped
            if number is not None:
                RetryHeartbeatStaleTrialCallback()(study, study.get_trials()[number])
            raise
    return True


def _drawn(search: Search) -> list[Choice | Range]:
    return [dimension for dimension in search.space if isinstance(dimension, Choice | Range)]


def _suggested(trial: Any, dimension: Choice | Range) -> str:
    """A drawn value as it is written in a change."""
    if isinstance(dimension, Choice):
        return str(trial.suggest_categorical(dimension.field, list(dimension.values)))
    low, high = dimension.low, dimension.high
    if isinstance(low, int):
        return str(trial.suggest_int(dimension.field, low, high, log=dimension.log))
    drawn = float(f"{trial.suggest_float(dimension.field, low, high, log=dimension.log):.{DIGITS}g}")
    return json.dumps(min(max(drawn, low), high))


def _run_trial(study: Any, trial: Any, search: Search, options: Options) -> float:
    """The final accuracy of a trial. A trial that diverges, or whose values do not fit together, counts as failed."""
    try:
        try:
            values = with_tied(trial.user_attrs["chosen"], search.space, search.spec.method)
            method = override(search.spec.method, as_changes(values))
        except SpecError as error:  # values that are each allowed, but not together
            raise Diverged(str(error)) from None
        trial.set_user_attr("values", values)
        return _run_spec(study, trial, search, replace(search.spec, method=method), options)
    except Diverged as error:
        trial.set_user_attr("why", str(error))
        raise


def _run_spec(study: Any, trial: Any, search: Search, spec: RunSpec, options: Options) -> float:
    from optuna import TrialPruned

    trial.set_user_attr("run", spec.id)
    watcher = TrialWatcher(study, trial, search.prune_after, options.watcher)
    with search.lock(spec.id):  # a worker that drew the same point waits, and then reads the record
        if (twin := _pruned_before(study, spec.id)) is not None:
            watcher.report(twin.intermediate_values)
            raise TrialPruned
        try:
            record = run_one(spec, replace(options, out=search.folder / "runs", watcher=watcher))
        except TrialPruned:
            remove_state(search.folder / "runs" / spec.id / "checkpoint")  # never resumed
            raise
    watcher.report(dict(enumerate(record.overall)))
    return record.final


def _pruned_before(study: Any, run: str) -> Any:
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False, states=(TrialState.PRUNED,))
    return next((trial for trial in trials if trial.user_attrs.get("run") == run), None)


def falls_behind(value: float, others: Sequence[float], least: int) -> bool:
    """Whether a value is below the median of at least `least` other trials after the same step.

    Optuna's median pruner compares the best value so far, which here is nearly always the first step's: accuracy falls
    as classes are added, so it would hardly ever prune.
    """
    return len(others) >= least and value < median(others)


class TrialWatcher:
    """Stores the accuracy of a trial after each step, and prunes it where it falls behind."""

    def __init__(self, study: Any, trial: Any, least: int, beside: Watcher) -> None:
        self.study, self.trial, self.least, self.beside = study, trial, least, beside
        self.reported: set[int] = set()

    def report(self, by_step: Mapping[int, float]) -> None:
        """Store accuracies that are not stored yet; a resumed or recorded run reports earlier steps at the end."""
        for t, overall in by_step.items():
            if t not in self.reported:
                self.trial.report(overall, t)
                self.reported.add(t)

    def progress(self, t: int, steps: int, progress: Progress) -> None:
        self.beside.progress(t, steps, progress)

    def stepped(self, t: int, steps: int, overall: float, record: StepRecord) -> None:
        from optuna import TrialPruned
        from optuna.trial import TrialState

        self.beside.stepped(t, steps, overall, record)
        self.report({t: overall})
        others = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        then = [other.intermediate_values[t] for other in others if t in other.intermediate_values]
        if t + 1 < steps and falls_behind(overall, then, self.least):
            raise TrialPruned
