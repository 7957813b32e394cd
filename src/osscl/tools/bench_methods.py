"""Benchmark one update of every method against the bare passes of the same update."""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.data.images import Labeled
from osscl.device import Replay, device_name, precision_of, prepare, synchronise
from osscl.errors import unknown
from osscl.learn.optimiser import Descent, OptimiserConfig
from osscl.methods import CONFIGURATIONS, method_class
from osscl.methods.base import Progress, Runtime, Schedule, Setting
from osscl.runs.record import commit
from osscl.seeding import seeded
from osscl.stream.step import Step
from osscl.tools.bench import CIFAR
from osscl.vision.augment import Augmentation
from osscl.vision.encoder import Classifier, build_on_device, frozen_copy

CLASSES = 10  # per step
LABELED, UNLABELED, MEMORY = 1000, 4000, 200


@dataclass(frozen=True)
class Passes:
    """The passes that one update of a method's main phase needs, at its second step."""

    phase: str
    trained: tuple[int, ...]  # views of each forward and backward pass
    watched: tuple[int, ...] = ()  # views of each teacher's forward pass
    backward: int = 1  # backward passes


PASSES = {
    "ursl": Passes("learner", (1024, 1024), (1024, 1024)),
    "co2l": Passes("learner", (1024,), (1024,)),
    "co2l-j": Passes("learner", (1024, 1024), (1024,)),
    "co2l-p": Passes("learner", (1024,), (1024,)),
    "gd": Passes("model", (128,), (128, 128)),
    "dm": Passes("model", (320,), (192,)),
    "gem-joint": Passes("model", (32 + MEMORY,), backward=2),
    "icarl": Passes("model", (32,), (32,)),
}


@dataclass(frozen=True)
class MethodCost:
    """One method on one device."""

    name: str
    views: int  # per update, without forward passes of teachers
    milliseconds: float  # per update
    floor: float  # its bare passes, milliseconds
    ratio: float


@dataclass(frozen=True)
class MethodsRecord:
    """Measurements so far, and their conditions."""

    device: str
    precision: str
    torch: str
    commit: str
    date: str
    backbone: str
    updates: int  # per timed stretch
    repeats: int
    methods: tuple[MethodCost, ...] = ()


def bench_methods(
    device: torch.device, updates: int, repeats: int, backbone: str = "resnet18", names: Sequence[str] = tuple(PASSES)
) -> Iterator[MethodsRecord]:
    """Measure methods one after another; yield the record after each."""
    for name in names:
        if name not in PASSES:
            raise unknown("method", name, PASSES)
    prepare(device)
    record = MethodsRecord(
        device_name(device), str(precision_of(device)).removeprefix("torch."), torch.__version__, commit(),
        datetime.now(UTC).isoformat(timespec="seconds"), backbone, updates, repeats,
    )  # fmt: skip
    for name in names:
        cost = _cost(name, PASSES[name], device, updates, repeats, backbone)
        record = replace(record, methods=(*record.methods, cost))
        yield record


def _cost(
    name: str, passes: Passes, device: torch.device, updates: int, repeats: int, backbone: str
) -> MethodCost:  # fmt: skip
    watch = StopWatch(passes.phase, updates, device)
    runtime = Runtime(device, precision_of(device), progress=watch.progress)
    schedule = Schedule("bench", max_updates=updates * (repeats + 1))
    agent: Any = method_class(CONFIGURATIONS[name])(
        on_backbone(CONFIGURATIONS[name], backbone), Setting(CIFAR, Augmentation(), MEMORY, 0, schedule), runtime
    )
    for t in range(2):
        watch.marks.clear()
        agent.learn(_step(t, device))
    milliseconds = 1000 * watch.seconds()
    floor = 1000 * bare_seconds(passes, device, updates, repeats, backbone)
    return MethodCost(name, sum(passes.trained), milliseconds, floor, milliseconds / floor)


def on_backbone(config: Any, backbone: str) -> Any:
    """`config` with this backbone in all its networks."""
    if hasattr(config, "backbone"):
        return replace(config, backbone=backbone)
    reference = replace(config.reference, net=replace(config.reference.net, backbone=backbone))
    return replace(config, reference=reference, learner=replace(config.learner, net=reference.net))


def _step(t: int, device: torch.device) -> Step:
    """Random images; some kernels are faster on zeros."""
    rng = seeded(0, "bench", t, device=device)
    shape = (CIFAR.channels, CIFAR.size, CIFAR.size)
    pixels = torch.randint(0, 256, (LABELED + UNLABELED, *shape), generator=rng, device=device, dtype=torch.uint8)
    classes = tuple(range(CLASSES * t, CLASSES * (t + 1)))
    labels = torch.arange(LABELED, device=device) % CLASSES + CLASSES * t
    return Step(t, classes, Labeled(pixels[:LABELED], labels), pixels[LABELED:])


def bare_seconds(passes: Passes, device: torch.device, updates: int, repeats: int, backbone: str) -> float:
    """Seconds of the same passes on ready-made views, captured as one graph: median of several stretches."""
    net = build_on_device(lambda: Classifier(backbone, CIFAR, precision_of(device)), seeded(0, "bench"), device)
    net.head.grow(2 * CLASSES, seeded(0, "bench head"))
    teacher = frozen_copy(net)
    net.learning(True)
    descent = Descent([net], OptimiserConfig("sgd"), 10**6)
    views = [_views(n, device) for n in (*passes.trained, *passes.watched)]
    labels = [torch.arange(n, device=device) % (2 * CLASSES) for n in passes.trained]

    def update() -> Tensor:
        with torch.no_grad():
            for x in views[len(passes.trained) :]:
                teacher(x)
        losses = [F.cross_entropy(net(x), y) for x, y in zip(views[: len(labels)], labels, strict=True)]
        loss = torch.stack(losses).sum()
        for _ in range(passes.backward - 1):
            torch.autograd.grad(loss, descent.parameters, retain_graph=True)
        descent.step(loss)
        return loss.detach()

    replay = Replay(update, device)
    for _ in range(5):
        replay()
    stretches = []
    for _ in range(repeats):
        synchronise(device)
        began = time.perf_counter()
        for _ in range(updates):
            replay()
        synchronise(device)
        stretches.append((time.perf_counter() - began) / updates)
    return statistics.median(stretches)


def _views(n: int, device: torch.device) -> Tensor:
    shape = (n, CIFAR.channels, CIFAR.size, CIFAR.size)
    return torch.rand(shape, generator=seeded(0, "bench views", n, device=device), device=device)


class StopWatch:
    """Times one phase by its progress reports; the first stretch is warm-up."""

    def __init__(self, phase: str, updates: int, device: torch.device) -> None:
        self.phase, self.updates, self.device = phase, updates, device
        self.marks: list[float] = []

    def progress(self, progress: Progress) -> None:
        if progress.phase == self.phase and progress.update % self.updates == 0:
            synchronise(self.device)
            self.marks.append(time.perf_counter())

    def seconds(self) -> float:
        """Seconds per update, median over the stretches."""
        pairs: Sequence[tuple[float, float]] = list(zip(self.marks, self.marks[1:], strict=False))
        return statistics.median((b - a) / self.updates for a, b in pairs)
