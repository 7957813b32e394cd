"""The contract between a method and whoever runs it."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from osscl.config import require, require_declared
from osscl.data.images import Labeled
from osscl.device import Replay, synchronise
from osscl.learn.optimiser import Descent, OptimiserConfig
from osscl.stream.step import Step
from osscl.vision.augment import Augmentation
from osscl.vision.encoder import ImageFormat

State = dict[str, Any]  # nested dicts of tensors, numbers, strings, lists and None


def on_device(device: torch.device, fields: State) -> State:
    """The same with its tensors there."""
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in fields.items()}


@dataclass(frozen=True)
class Schedule:
    """How much of a method's own epochs is carried out; printed beside every number."""

    name: str
    share: float = 1.0  # of the epochs that the method's config names, heads excepted
    max_updates: int | None = None  # a phase
    row_cap: int | None = None  # rows of U_t, and of the rows that accuracy is taken on
    small_net: bool = False

    def __post_init__(self) -> None:
        require_declared(self)
        word = self.name.replace("-", "").replace("_", "").replace(".", "")  # it becomes part of a folder's name
        require(word.isalnum() and self.name[0] != ".", self, "name", "letters, digits, '-', '_' and '.'")
        require(0 < self.share <= 1000, self, "share", "in (0, 1000]")
        require(self.max_updates is None or self.max_updates > 0, self, "max_updates", "positive")
        require(self.row_cap is None or self.row_cap > 0, self, "row_cap", "positive")

    def epochs(self, full: int) -> int:
        return max(1, round(full * self.share))

    def capped(self, updates: int) -> int:
        return updates if self.max_updates is None else min(updates, self.max_updates)


PAPER = Schedule("paper")
SHORT = Schedule("short", share=0.25)
SMOKE = Schedule("smoke", max_updates=3, row_cap=512, small_net=True)
DEMO = Schedule("demo")
SCHEDULES = {schedule.name: schedule for schedule in (PAPER, SHORT, SMOKE, DEMO)}


@dataclass(frozen=True)
class Setting:
    """What a method is told before the first step; nothing of the classes to come."""

    images: ImageFormat
    augmentation: Augmentation
    memory: int  # |M|
    seed: int
    schedule: Schedule
    whole_pool: Tensor | None = None  # every unlabelled image there is, for methods that declare `wants_whole_pool`

    def no_images(self) -> Labeled:
        """An empty set of images of this format."""
        shape = (0, self.images.channels, self.images.size, self.images.size)
        return Labeled(torch.empty(shape, dtype=torch.uint8), torch.empty(0, dtype=torch.long))


@dataclass(frozen=True)
class Progress:
    """Where a method is; the loss stays on the device until somebody looks."""

    phase: str
    update: int
    updates: int
    views: int  # augmented images seen in this phase
    loss: Tensor | None = None


def _nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Runtime:
    """What a method is handed by whoever runs it, so that it never reaches upwards."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: torch.dtype = torch.float32  # of forward passes; losses are float32
    keep: Callable[[bool], None] = (
        _nothing  # "a good moment": the run may save state() now, or stop; True at phase edges
    )
    progress: Callable[[Progress], None] = _nothing
    reference_cache: Path | None = None
    shared_device: bool = False  # other work goes on there: phases say so of their seconds


@dataclass(frozen=True)
class PhaseReport:
    """What one phase of one step cost."""

    name: str
    seconds: float
    updates: int = 0
    views: int = 0
    cached: bool = False  # the seconds are those of the run that did the work
    shared: bool = False  # the device did other work meanwhile, for a part of the time at least


@dataclass(frozen=True)
class GateReport:
    """What the gate said of each row of U_t."""

    scores: Tensor  # (m,) S(x), higher is more like the classes met
    passed: Tensor  # (m,) bool, rows of U-hat
    confident: Tensor  # (m,) bool, rows above the higher threshold
    pseudo_labels: Tensor  # (m,) the nearest prototype's class
    threshold: float  # tau_id
    pseudo_threshold: float  # tau_pl
    used: int  # rows of T-hat that entered training


@dataclass(frozen=True)
class StepReport:
    """What a method did in one step."""

    phases: tuple[PhaseReport, ...]
    gate: GateReport | None = None
    notes: Mapping[str, float] = field(default_factory=dict)


class Method(Protocol):
    """The whole contract; structural, nothing to inherit. Built as `MyMethod(config, setting, runtime)`."""

    classes: list[int]  # met so far, in order; column j of predict() is classes[j]

    def learn(self, step: Step) -> StepReport:
        """Learn from one step; leaves predict() valid. After load_state() it goes on inside the step that was saved."""
        ...

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes met so far); changes nothing."""
        ...

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...


@runtime_checkable
class Discerning(Protocol):
    """What a method may offer beside the contract: whether an image looks like a class met."""

    @property
    def known_above(self) -> float | None:
        """The score above which an image looks known; None where nothing tells."""
        ...

    def known_scores(self, images: Tensor) -> Tensor:
        """How much each image looks like a class met, (n,); asked only where `known_above` is a number."""
        ...


@runtime_checkable
class Placing(Protocol):
    """What a method may offer beside the contract: a space in which images of a class, learned or not, lie together."""

    def features(self, images: Tensor) -> Tensor:
        """Of each image, (n, width); changes nothing."""
        ...


class PhaseLog:
    """Seconds, updates and views of the phases of one step, kept across interruptions."""

    def __init__(self, runtime: Runtime) -> None:
        self.device, self.shared = runtime.device, runtime.shared_device
        self.reports: dict[str, PhaseReport] = {}
        self.open: str | None = None
        self.before = PhaseReport("", 0.0)  # what the open phase was before an interruption
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

    def add(self, report: PhaseReport) -> None:
        self.reports[report.name] = report

    def state(self) -> State:
        reports = dict(self.reports)
        if self.open is not None:
            reports[self.open] = self._so_far(self.open)
        return {name: [r.seconds, r.updates, r.views, r.cached, r.shared] for name, r in reports.items()}

    def load_state(self, state: State) -> None:
        self.open = None
        self.reports = {name: PhaseReport(name, *values) for name, values in state.items()}


@dataclass(frozen=True)
class Training:
    """One phase of training."""

    nets: Sequence[nn.Module]  # what learns
    optimiser: OptimiserConfig
    updates: int
    per_epoch: int
    views: int  # images that one update looks at
    update: Callable[[Descent], Callable[..., Tensor]]  # one update as a function of a batch's tensors
    batches: Callable[[int], Iterator[tuple[Tensor, ...]]]  # from a number on
    captured: bool = True  # as one CUDA graph; an update that asks the CPU something captures its parts itself


def descend(
    name: str, descent: Descent, update: Callable[..., Tensor], batches: Iterable[tuple[Tensor, ...]], views: int,
    runtime: Runtime,
) -> None:  # fmt: skip
    """The updates that are left of a phase, on batches from the next one on; after each of them a run may stop."""
    for inputs in batches:
        if descent.done == descent.updates:
            break
        descent.set_rate()
        loss = update(*inputs)
        descent.done += 1
        runtime.progress(Progress(name, descent.done, descent.updates, views * descent.done, loss))
        runtime.keep(False)


class Phases:
    """Which phases of the step are over, and how far the open one has come."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.step = -1  # that is open, or was last
        self.over: list[str] = []
        self.log = PhaseLog(runtime)
        self.descent: Descent | None = None
        self.interrupted: State | None = None

    def open(self, t: int) -> bool:
        """Whether step t begins now; a stopped run goes on inside it."""
        if self.step == t:
            return False
        self.step, self.over, self.log = t, [], PhaseLog(self.runtime)
        return True

    def train(self, name: str, training: Callable[[], Training]) -> None:
        """Carry a phase out, or go on with it; nothing where it is over."""
        if name in self.over:
            return
        phase = training()
        self.log.begin(name)
        descent = Descent(phase.nets, phase.optimiser, phase.updates, phase.per_epoch)
        self.descent, self.interrupted = descent.taken_up(self.interrupted), None
        for net in phase.nets:
            net.train().requires_grad_(True)
        update = phase.update(descent)
        update = Replay(update, self.runtime.device) if phase.captured else update
        descend(name, descent, update, phase.batches(descent.done), phase.views, self.runtime)
        for net in phase.nets:
            net.eval().requires_grad_(False)
        self.log.end(phase.updates, phase.views * phase.updates)
        self._close(name)

    def once(self, name: str, work: Callable[[], None]) -> None:
        """Work without updates, timed as a phase of its own."""
        if name in self.over:
            return
        self.log.begin(name)
        work()
        self.log.end()
        self._close(name)

    def _close(self, name: str) -> None:
        self.over.append(name)
        self.descent = None
        self.runtime.keep(True)

    def state(self) -> State:
        open_phase = self.descent.state() if self.descent is not None else self.interrupted
        return {"step": self.step, "over": list(self.over), "log": self.log.state(), "descent": open_phase}

    def load_state(self, state: State) -> None:
        self.step, self.over, self.interrupted = state["step"], list(state["over"]), state["descent"]
        self.log.load_state(state["log"])
