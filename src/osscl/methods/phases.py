"""Phases: how a method trains a network, reports on it, and resumes exactly where it was interrupted."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from osscl.device import WORTH_COMPILING, Replay, synchronise
from osscl.errors import UserError
from osscl.learn.batches import Shuffled, zip_pools
from osscl.learn.optimiser import Descent, OptimiserConfig
from osscl.methods.base import PhaseReport, Progress, Runtime, Setting, State


class PhaseLog:
    """Seconds, updates and views of the phases of one step, accumulated across interruptions."""

    def __init__(self, runtime: Runtime) -> None:
        self.device, self.shared = runtime.device, runtime.shared_device
        self.reports: dict[str, PhaseReport] = {}
        self.open: str | None = None
        self.before = PhaseReport("", 0.0)  # the open phase's report before the interruption
        self.started = 0.0

    def begin(self, name: str) -> None:
        synchronise(self.device)
        self.before = self.reports.get(name, PhaseReport(name, 0.0))
        self.open, self.started = name, time.perf_counter()

    def end(self, updates: int = 0, views: int = 0) -> None:
        synchronise(self.device)
        assert self.open is not None
        self.reports[self.open] = self._so_far(self.open, updates, views)
        self.open = None

    def _so_far(self, name: str, updates: int = 0, views: int = 0) -> PhaseReport:
        seconds = self.before.seconds + time.perf_counter() - self.started
        return PhaseReport(name, seconds, updates, views, shared=self.shared or self.before.shared)

    def state(self) -> State:
        reports = dict(self.reports)
        if self.open is not None:
            reports[self.open] = self._so_far(self.open)
        return {name: [r.seconds, r.updates, r.views, r.cached, r.shared] for name, r in reports.items()}

    def load_state(self, state: State) -> None:
        self.open = None
        self.reports = {name: PhaseReport(name, *values) for name, values in state.items()}


class Phases:
    """The phases of the current step: which are finished, what they cost, and where an interrupted one stopped.

    A method calls `begin_step`, then `train` or `once` for each phase. Repeated after an interruption, the same calls
    skip what is finished and resume the open phase at its next update.
    """

    def __init__(self, setting: Setting, runtime: Runtime) -> None:
        self.setting, self.runtime = setting, runtime
        self.t = -1  # the current step, or the last
        self.finished: list[str] = []  # names of phases
        self.log = PhaseLog(runtime)
        self.open: str | None = None  # the training phase that is running or was interrupted
        self.training: Phase | None = None  # the phase that is running
        self.descent: Descent | None = None  # its optimiser
        self.interrupted: State | None = None  # the saved optimiser of the phase `open`
        self.moments: dict[str, State] = {}  # of optimisers that are kept from step to step, by phase

    def begin_step(self, t: int) -> bool:
        """Begin step t; False if it is the current one, which resumes."""
        if self.t == t:
            return False
        self.t, self.finished, self.log = t, [], PhaseLog(self.runtime)
        self.open = self.training = self.descent = self.interrupted = None
        return True

    def has_begun(self, name: str) -> bool:
        return name in self.finished or name == self.open

    def shuffled(self, name: str, length: int, batch: int, *more: str, drop_last: bool = False) -> Shuffled:
        """Batches over `length` rows in an order that depends on the seed, the step and these names."""
        seed, device = self.setting.seed, self.runtime.device
        return Shuffled(length, batch, seed, (name, self.t, *more), device, drop_last)

    def train(
        self,
        name: str,
        nets: Sequence[nn.Module],
        optimiser: OptimiserConfig,
        epochs: int,
        pools: Sequence[tuple[Shuffled, int]],  # and the number of views of each row in an update
        *,
        min_updates: int = 0,
        extra_rows: int = 0,  # by which an epoch is longer than the first pool
        compiles: bool | None = None,  # forward passes on CUDA; None: if the smallest batch is large enough
    ) -> "Phase":
        """A training phase of `epochs` passes over the first pool. Nothing happens until its batches are consumed."""
        first, pools = pools[0][0], [(pool, views) for pool, views in pools if pool.length]
        if not first.length:
            raise UserError(f"the phase {name!r} has no images to learn from")
        rows = first.length + extra_rows
        per_epoch = first.per_epoch if not extra_rows else math.ceil(rows / min(first.size, rows))
        updates = self.setting.schedule.updates(epochs, per_epoch, min_updates)
        if compiles is None:
            # All batches compiled or none: a compiled pass overwrites the batch-norm statistics of an eager one.
            compiles = min(views * pool.rows for pool, views in pools) >= WORTH_COMPILING
        return Phase(self, name, nets, optimiser, updates, per_epoch, pools, compiles)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time work without updates as a phase."""
        self.log.begin(name)
        yield
        self.log.end()

    def once(self, name: str, work: Callable[[], None]) -> None:
        """Do and time work without updates, once per step; its results must be part of the method's state."""
        if name not in self.finished:
            with self.timed(name):
                work()
            self.finished.append(name)
            self.runtime.maybe_checkpoint(True)

    def add_cached(self, report: PhaseReport) -> None:
        """Count a phase whose result was loaded as finished."""
        self.log.reports[report.name] = report
        self.close(report.name)

    def close(self, name: str) -> None:
        self.finished.append(name)
        self.open = self.training = self.descent = None
        self.runtime.maybe_checkpoint(True)

    def reports(self) -> tuple[PhaseReport, ...]:
        return tuple(self.log.reports.values())

    def state(self) -> State:
        return {
            "step": self.t,
            "finished": list(self.finished),
            "log": self.log.state(),
            "open": self.open,
            "descent": self.descent.state() if self.descent is not None else self.interrupted,
            "moments": dict(self.moments),
        }

    def load_state(self, state: State) -> None:
        if self.training is not None:  # loaded over a phase that was stopped in this object
            self.training.end_training()
        self.training = self.descent = None
        self.t, self.finished, self.open = state["step"], list(state["finished"]), state["open"]
        self.interrupted, self.moments = state["descent"], dict(state["moments"])
        self.log.load_state(state["log"])


@dataclass
class Phase:
    """One training phase. `for batch in phase.batches(): phase.report(update(*batch))` runs or resumes it."""

    phases: Phases
    name: str
    nets: Sequence[nn.Module]  # those that learn
    optimiser: OptimiserConfig
    updates: int
    per_epoch: int
    pools: Sequence[tuple[Shuffled, int]]
    compiles: bool
    loss: Tensor | None = None  # of the last update

    @property
    def views(self) -> int:
        """Augmented images per update."""
        return sum(views * pool.rows for pool, views in self.pools)

    @property
    def progress(self) -> float:
        """Share of the phase that is done."""
        return self.phases.descent.done / self.updates if self.phases.descent is not None else 0.0

    def sizes(self, anchors: Tensor) -> dict[str, float]:
        """Notes for the record; `anchors` marks the rows of the first pool that are anchors of a contrastive loss."""
        rows = self.pools[0][0].rows
        anchors_per_batch = float(anchors.float().mean()) * rows
        return {"updates_per_epoch": self.per_epoch, "learner_batch": rows, "anchors_per_batch": anchors_per_batch}

    def capture(self, update: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """`update` as one CUDA graph; unchanged on other devices."""
        return Replay(update, self.phases.runtime.device)

    def batches(self) -> Iterator[tuple[Tensor, ...]]:
        """Row numbers and random numbers of the remaining batches; a run may stop after any of them."""
        if self.name in self.phases.finished:
            return
        descent, runtime = self._begin(), self.phases.runtime
        for batch in zip_pools(self.pools, descent.done):
            if descent.done == self.updates:
                break
            descent.set_rate()
            yield batch
            descent.done += 1
            runtime.progress(Progress(self.name, descent.done, self.updates, self.views * descent.done, self.loss))
            runtime.maybe_checkpoint(False)
        self._end(descent)

    def report(self, loss: Tensor) -> None:
        """Give progress displays the loss of this update."""
        self.loss = loss

    def step(self, loss: Tensor, clip_norm: float | None = None) -> Tensor:
        """Update the weights; return the loss without its graph."""
        assert self.phases.descent is not None
        self.phases.descent.step(loss, clip_norm)
        return loss.detach()

    def apply_gradients(self) -> None:
        """Update the weights with the gradients in their `grad`."""
        assert self.phases.descent is not None
        self.phases.descent.optimiser.step()

    def _begin(self) -> Descent:
        phases = self.phases
        phases.log.begin(self.name)
        descent = Descent(self.nets, self.optimiser, self.updates, self.per_epoch)
        if phases.descent is not None and phases.open == self.name:  # stopped in this object
            phases.interrupted = phases.descent.state()
        if phases.interrupted is not None and phases.open == self.name:
            descent.load_state(phases.interrupted)
        elif self.name in phases.moments:
            descent.load_moments(phases.moments[self.name])
        phases.open, phases.training, phases.descent, phases.interrupted = self.name, self, descent, None
        self._learning(True, self.compiles)
        return descent

    def _end(self, descent: Descent) -> None:
        self.end_training()
        if not self.optimiser.fresh:
            self.phases.moments[self.name] = descent.moments()
        self.phases.log.end(self.updates, self.views * self.updates)
        self.phases.close(self.name)

    def end_training(self) -> None:
        """Put the networks back into evaluation mode."""
        self._learning(False, True)

    def _learning(self, on: bool, compiles: bool) -> None:
        for net in self.nets:
            net.train(on).requires_grad_(on)
            if hasattr(net, "compiles"):
                net.compiles = compiles  # type: ignore[assignment]
