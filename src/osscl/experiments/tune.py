"""Hyperparameter search on validation rows with Optuna: it goes on where it stopped, and several workers share it."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from statistics import median
from typing import Any

from osscl.errors import Diverged, SpecError, Stopped
from osscl.experiments.checkpoint import Options, Unwatched, Watcher
from osscl.experiments.engine import carry_out_one
from osscl.experiments.record import RunRecord, StepRecord
from osscl.experiments.space import changed
from osscl.experiments.spec import RunSpec
from osscl.experiments.trials import Search, again, begin, held, open_study
from osscl.methods.method import Progress

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
            record = carry_out_one(spec, replace(options, out=search.folder / "runs", watcher=judge))
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
