"""The trials of a search, as they are stored: one SQLite file that goes on and that several workers share."""

import contextlib
import fcntl
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osscl.errors import SpecError, UserError
from osscl.experiments.space import Choice, Range, Space, own_point
from osscl.experiments.spec import RunSpec
from osscl.frozen import content_id

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
