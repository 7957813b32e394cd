"""Hyperparameter search on validation rows with Optuna: it goes on where it stopped, and several workers share it."""

import contextlib
import fcntl
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from osscl.config import content_id
from osscl.errors import Diverged, SpecError, Stopped, UserError
from osscl.methods.base import Progress
from osscl.runs.checkpoint import Options, Unwatched, Watcher
from osscl.runs.engine import run_one
from osscl.runs.record import RunRecord, StepRecord
from osscl.runs.spec import RunSpec
from osscl.tools.search_space import Choice, Range, Space, changed, own_point

DIGITS = 4  # of a number drawn from a range: a command that can be read


@dataclass(frozen=True)
class Search:
    """What is searched and where its trials are stored."""

    spec: RunSpec
    space: Space
    folder: Path
    prune_after: int = 5  # finished trials before any is pruned

    def __post_init__(self) -> None:
        if not self.spec.scenario.validation_share > 0:
            raise SpecError(
                "a search needs validation rows: validation_share must be positive; test rows choose nothing"
            )

    @property
    def name(self) -> str:
        """Of the study: the same search in the same folder goes on."""
        return content_id([self.spec.type, self.spec, self.space])

    def lock(self, name: str) -> Path:
        return self.folder / "locks" / name


@dataclass(frozen=True)
class Tried:
    """One trial, as it is stored."""

    number: int
    state: str  # finished, pruned, failed or at work
    changes: tuple[str, ...]
    by_step: dict[int, float]  # accuracy in % on validation rows after each step (from 0) that it was heard of
    final: float | None
    why: str = ""  # it failed


def _address(file: Path) -> str:
    """Of a database in a file, whatever characters its path has."""
    from sqlalchemy.engine import URL

    return str(URL.create("sqlite", database=str(file)).render_as_string())


def open_study(search: Search) -> Any:
    """The study in the search's folder, made where there is none."""
    try:
        import optuna
    except ImportError:
        raise UserError('a search needs Optuna: pip install "osscl[tune]"') from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        search.lock("").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to the output folder {search.folder}: {error.strerror}") from None
    file = search.folder.resolve() / "trials.sqlite3"
    with held(search.lock("study")):  # two workers that make the tables at once would trip over each other
        try:
            storage = optuna.storages.RDBStorage(_address(file), engine_kwargs={"connect_args": {"timeout": 60}})
            study = optuna.create_study(
                storage=storage, study_name=search.name, direction="maximize", load_if_exists=True
            )
        except Exception as error:
            if type(error).__module__.split(".")[0] not in ("optuna", "sqlalchemy"):
                raise
            raise UserError(f"{file} is no storage of Optuna's: {str(error).splitlines()[0]}") from None
        if not study.get_trials(deepcopy=False) and (point := own_point(search.space, search.spec.method)) is not None:
            study.enqueue_trial(point)  # what there is already is tried first
    return study


def begin(study: Any, search: Search, trials: int, alive: contextlib.ExitStack) -> Any:
    """The next trial, its values chosen; None where there are enough, finished or at work."""
    from optuna.samplers import TPESampler
    from optuna.trial import TrialState

    with held(search.lock("study")):
        running = study.get_trials(states=(TrialState.RUNNING,))
        free = {trial.number for trial in running if not is_held(search.lock(f"{search.name}-{trial.number}"))}
        # A worker tells what came of a trial before it lets go of it: one that still runs now is lost.
        for lost in study.get_trials(states=(TrialState.RUNNING,)):
            if lost.number in free:
                again(study, lost.number, lost.params)  # its worker is gone; its checkpoint is not
        stored = study.get_trials(deepcopy=False)
        if sum(_counts(trial) for trial in stored) >= trials:
            return None
        # A seed a trial: with one for all, a search that goes on would draw its first points again.
        study.sampler = TPESampler(seed=int(content_id([search.name, len(stored)], 8), 16), constant_liar=True)
        trial = study.ask()
        alive.enter_context(held(search.lock(f"{search.name}-{trial.number}"), remove=True))
        trial.set_user_attr("chosen", {dimension.field: _suggested(trial, dimension) for dimension in _drawn(search)})
        return trial


def _drawn(search: Search) -> list[Choice | Range]:
    return [dimension for dimension in search.space if isinstance(dimension, Choice | Range)]


def _suggested(trial: Any, dimension: Choice | Range) -> str:
    """A value as it is written in a change."""
    if isinstance(dimension, Choice):
        return str(trial.suggest_categorical(dimension.field, list(dimension.values)))
    low, high = dimension.low, dimension.high
    if isinstance(low, int):
        return str(trial.suggest_int(dimension.field, low, high, log=dimension.log))
    drawn = float(f"{trial.suggest_float(dimension.field, low, high, log=dimension.log):.{DIGITS}g}")
    return json.dumps(min(max(drawn, low), high))


def _counts(trial: Any) -> bool:
    """Whether a trial is one of those asked for: not one that is to be made again, or waits for it."""
    return trial.state.name in ("COMPLETE", "PRUNED", "RUNNING") or "why" in trial.user_attrs


def again(study: Any, number: int, params: dict[str, Any]) -> None:
    """A trial that came to nothing is to be made again, by whoever is next."""
    from optuna.trial import TrialState

    study.tell(number, state=TrialState.FAIL)
    study.enqueue_trial(params)


def tried(study: Any) -> list[Tried]:
    """Every trial but those that were made again."""
    words = {"COMPLETE": "finished", "PRUNED": "pruned", "RUNNING": "at work", "FAIL": "failed"}
    return [
        Tried(
            trial.number, words[trial.state.name], tuple(trial.user_attrs.get("changes", ())),
            dict(sorted(trial.intermediate_values.items())),
            trial.value if trial.state.name == "COMPLETE" else None, trial.user_attrs.get("why", ""),
        )
        for trial in study.get_trials(deepcopy=False)
        if _counts(trial)
    ]  # fmt: skip


def best(trials: Sequence[Tried]) -> Tried | None:
    """The highest final accuracy; the earliest of several."""
    finished = [trial for trial in trials if trial.final is not None]
    return max(finished, key=lambda trial: (trial.final or 0.0, -trial.number), default=None)


@contextlib.contextmanager
def held(path: Path, remove: bool = False) -> Iterator[None]:
    """A lock that waits, and that goes with the process, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if remove:
                path.unlink(missing_ok=True)


def is_held(path: Path) -> bool:
    """Whether a process that is alive holds this lock."""
    try:
        with path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


Watch = Callable[[str], AbstractContextManager[Watcher]]  # who looks on at a trial, by its title


def nobody(title: str) -> AbstractContextManager[Watcher]:
    return nullcontext(Unwatched())


class Pruned(Exception):
    """A trial is behind the others, and ends."""


def on_validation_rows(spec: RunSpec) -> RunSpec:
    """The paper chose on a tenth of each main training set, held out."""
    if spec.scenario.validation_share:
        return spec
    return replace(spec, scenario=replace(spec.scenario, validation_share=0.1))


def tune(search: Search, options: Options, trials: int, seconds: float | None = None, watch: Watch = nobody) -> None:
    """Try points of the space until there are `trials`, over all workers and sessions; Stopped where time is up."""
    study, deadline = open_study(search), None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise Stopped
        with contextlib.ExitStack() as alive:
            trial = begin(study, search, trials, alive)
            if trial is None:
                return
            limited = options if left is None else replace(options, max_minutes=left / 60)
            with watch(f"trial {trial.number}") as watcher:
                _finish(study, trial, search, replace(limited, watcher=watcher))


def _finish(study: Any, trial: Any, search: Search, options: Options) -> None:
    """Carry a trial out and store what came of it; whatever is no result of the search is made again."""
    from optuna.trial import TrialState

    try:
        record = _run(study, trial, search, options)
    except Pruned:
        study.tell(trial, state=TrialState.PRUNED)
    except Diverged as error:
        trial.set_user_attr("why", str(error))
        study.tell(trial, state=TrialState.FAIL)
    except BaseException:
        again(study, trial.number, trial.params)
        raise
    else:
        study.tell(trial, record.final)


def _run(study: Any, trial: Any, search: Search, options: Options) -> RunRecord:
    try:
        method, changes = changed(search.spec.method, search.space, trial.user_attrs["chosen"])
    except SpecError as error:  # values that are each admitted, but not together
        raise Diverged(str(error)) from None
    spec = replace(search.spec, method=method)
    trial.set_user_attr("changes", changes)
    trial.set_user_attr("run", spec.id)
    judge = Judge(study, trial, search.prune_after, options.watcher)
    with held(search.lock(spec.id)):  # who drew the same point waits, and then finds the record
        if (twin := _pruned_before(study, spec.id)) is not None:
            judge.hears(twin.intermediate_values)
            raise Pruned
        try:
            record = run_one(spec, replace(options, out=search.folder / "runs", watcher=judge))
        except Pruned:
            (search.folder / "runs" / spec.id / "checkpoint.safetensors").unlink(missing_ok=True)  # nobody goes on
            raise
    judge.hears(dict(enumerate(record.overall)))
    return record


def _pruned_before(study: Any, run: str) -> Any:
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False, states=(TrialState.PRUNED,))
    return next((trial for trial in trials if trial.user_attrs.get("run") == run), None)


def falls_behind(value: float, others: Sequence[float], least: int) -> bool:
    """Below the median of what at least so many others had after the same step.

    Optuna's own median rule takes the best value so far, which here is nearly always the first step's: accuracy falls
    as classes come, so it would hardly ever prune.
    """
    return len(others) >= least and value < median(others)


class Judge:
    """Looks on at a trial, stores its accuracy after each step, and ends it where it falls behind."""

    def __init__(self, study: Any, trial: Any, least: int, beside: Watcher) -> None:
        self.study, self.trial, self.least, self.beside = study, trial, least, beside
        self.heard: set[int] = set()

    def hears(self, by_step: Mapping[int, float]) -> None:
        """Store what is not stored yet: a run that went on, or was there already, tells of its steps at the end."""
        for t, overall in by_step.items():
            if t not in self.heard:
                self.trial.report(overall, t)
                self.heard.add(t)

    def progress(self, t: int, steps: int, progress: Progress) -> None:
        self.beside.progress(t, steps, progress)

    def stepped(self, t: int, steps: int, overall: float, record: StepRecord) -> None:
        from optuna.trial import TrialState

        self.beside.stepped(t, steps, overall, record)
        self.hears({t: overall})
        others = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        then = [other.intermediate_values[t] for other in others if t in other.intermediate_values]
        if t + 1 < steps and falls_behind(overall, then, self.least):
            raise Pruned
