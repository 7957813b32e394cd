"""The phases of a step, one after another; a run that was stopped goes on inside the phase that was open."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from osscl.device import Replay
from osscl.learn.descent import Descent, OptimiserConfig
from osscl.methods.method import PhaseLog, Progress, Runtime, State


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
