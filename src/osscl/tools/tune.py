"""Hyperparameter search on validation rows with Optuna: resumable, and shared by several workers."""

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from filelock import FileLock

from osscl.config import content_id
from osscl.errors import Diverged, SpecError, Stopped, UserError
from osscl.methods.base import Progress
from osscl.runs.checkpoint import Options, Unwatched, Watcher
from osscl.runs.engine import run_one
from osscl.runs.record import StepRecord
from osscl.runs.spec import RunSpec
from osscl.storage import remove_state
from osscl.tools.search_space import Choice, Range, Space, changed, own_point

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
    changes: tuple[str, ...]
    by_step: dict[int, float]  # accuracy in % on validation rows after each reported step, from 0
    final: float | None
    why: str = ""  # it failed


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
    """Whether a trial is one of those requested; one that is to be retried is not."""
    return trial.state.name in ("COMPLETE", "PRUNED", "RUNNING") or "why" in trial.user_attrs


def trial_summaries(study: Any) -> list[TrialSummary]:
    """Every trial, without those that were retried."""
    states = {"COMPLETE": "finished", "PRUNED": "pruned", "RUNNING": "running", "FAIL": "failed"}
    return [
        TrialSummary(
            trial.number, states[trial.state.name], tuple(trial.user_attrs.get("changes", ())),
            dict(sorted(trial.intermediate_values.items())),
            trial.value if trial.state.name == "COMPLETE" else None, trial.user_attrs.get("why", ""),
        )
        for trial in study.get_trials(deepcopy=False)
        if _counts(trial)
    ]  # fmt: skip


def best_trial(trials: Sequence[TrialSummary]) -> TrialSummary | None:
    """The highest final accuracy; the earliest of several."""
    finished = [trial for trial in trials if trial.final is not None]
    return max(finished, key=lambda trial: (trial.final or 0.0, -trial.number), default=None)


def on_validation_rows(spec: RunSpec) -> RunSpec:
    """Hold out a tenth of the main training set, as the paper did to choose its hyperparameters."""
    if spec.scenario.validation_share:
        return spec
    return replace(spec, scenario=replace(spec.scenario, validation_share=0.1))


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
            method, changes = changed(search.spec.method, search.space, trial.user_attrs["chosen"])
        except SpecError as error:  # values that are each allowed, but not together
            raise Diverged(str(error)) from None
        trial.set_user_attr("changes", changes)
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
