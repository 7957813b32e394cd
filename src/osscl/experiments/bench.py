"""How fast the loops are, against the limit of the same card in the same run."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import torch
from torch import Tensor

from osscl.data.images import Labeled
from osscl.device import Replay, device_name, precision_of, prepare, synchronise
from osscl.experiments.record import commit
from osscl.learn.descent import Descent
from osscl.losses.contrastive import nt_xent
from osscl.methods import URSL
from osscl.methods.learner import Learner, Lesson
from osscl.methods.method import PhaseLog, Progress, Runtime, Schedule, Setting
from osscl.methods.reference import Reference
from osscl.stream.randomness import seeded
from osscl.vision.augment import Augmentation, draws, two_views
from osscl.vision.encoder import Encoder, EncoderConfig, ImageFormat, frozen_copy, new_encoder

CIFAR = ImageFormat(3, 32, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


@dataclass(frozen=True)
class BenchSpec:
    """What is measured: a network, a batch, and how often."""

    net: EncoderConfig = field(default_factory=EncoderConfig)
    batch: int = 512
    pool: int = 18_000  # images in U_t
    updates: int = 100  # a timed stretch
    repeats: int = 5  # stretches; the median counts


@dataclass(frozen=True)
class BenchRecord:
    """Views a second and the ratios between them."""

    spec: BenchSpec
    device: str
    precision: str
    torch: str
    commit: str
    date: str
    ceiling: float  # views/s of the bare training step on data augmented before
    forward: float  # views/s of a teacher's forward pass
    augmentation: float  # views/s of augmentation alone
    reference: float  # views/s of the whole reference loop
    reference_share: float  # of the ceiling
    learner_ms: float  # an update of the learner: two batches, two teachers
    learner_floor_ms: float  # its passes at the ceiling
    learner_share: float  # floor / measured
    first_seconds: float  # of the first updates of every loop: compiling, capturing, allocating
    peak_bytes: int | None
    against: dict[str, float]  # views/s of what a user would write otherwise, by name


def bench(spec: BenchSpec, device: torch.device, against: dict[str, float] | None = None) -> BenchRecord:
    """Measure on one device, in one go."""
    prepare(device)
    world = World(spec, device)
    ceiling, first = world.ceiling()
    forward = world.forward()
    augmentation = world.augmentation()
    reference, first_reference = world.reference()
    learner, first_learner = world.learner()
    views = 2 * spec.batch
    floor = 2 * views / ceiling + 2 * views / forward
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return BenchRecord(
        spec, device_name(device), str(precision_of(device)).removeprefix("torch."), torch.__version__, commit(),
        datetime.now(UTC).isoformat(timespec="seconds"), ceiling, forward, augmentation, reference, reference / ceiling,
        1000 * learner, 1000 * floor, floor / learner, first + first_reference + first_learner, peak, against or {},
    )  # fmt: skip


class World:
    """Random images and networks to measure on; never zeros, which run faster than real data."""

    def __init__(self, spec: BenchSpec, device: torch.device) -> None:
        self.spec, self.device, self.precision = spec, device, precision_of(device)
        rng = seeded(0, "bench", device=device)
        shape = (spec.pool, CIFAR.channels, CIFAR.size, CIFAR.size)
        self.images = torch.randint(0, 256, shape, generator=rng, device=device, dtype=torch.uint8)
        self.rng = rng
        schedule = Schedule("bench", max_updates=spec.updates * (spec.repeats + 1))
        self.setting = Setting(CIFAR, Augmentation(), 0, 0, schedule)

    def net(self) -> Encoder:
        return new_encoder(self.spec.net, CIFAR, seeded(0, "bench"), self.device, self.precision)

    def views(self) -> Tensor:
        rows = torch.randint(0, self.spec.pool, (self.spec.batch,), generator=self.rng, device=self.device)
        return two_views(self.images[rows], draws(2 * self.spec.batch, self.rng), self.setting.augmentation)

    def ceiling(self) -> tuple[float, float]:
        """Forward, loss, backward and optimiser on views that are there already."""
        net = self.net().learning(True)
        descent = Descent([net], URSL.reference.optimiser, 10**6)
        ready = [self.views() for _ in range(4)]

        def update(x: Tensor) -> Tensor:
            loss = nt_xent(net(x), 0.1)
            descent.step(loss)
            return loss.detach()

        replay = Replay(update, self.device)
        turn = iter(range(10**9))
        return self._rate(lambda: replay(ready[next(turn) % 4]))

    def forward(self) -> float:
        teacher = frozen_copy(self.net())
        ready = [self.views() for _ in range(4)]
        turn = iter(range(10**9))
        with torch.no_grad():
            return self._rate(lambda: teacher(ready[next(turn) % 4]))[0]

    def augmentation(self) -> float:
        return self._rate(self.views)[0]

    def reference(self) -> tuple[float, float]:
        """The loop as runs have it: rows, draws, views, update, rate, progress."""
        meter = Meter(self.spec, self.device)
        runtime = Runtime(self.device, self.precision, progress=meter.progress)
        config = URSL.reference.__class__(net=self.spec.net, batch=self.spec.batch, optimiser=URSL.reference.optimiser)
        Reference(config, self.setting, runtime).learn(self.images, 0, PhaseLog(runtime))
        return 2 * self.spec.batch / meter.seconds(), meter.first

    def learner(self) -> tuple[float, float]:
        """Seconds an update with a supervised batch, a guide batch and both teachers."""
        meter = Meter(self.spec, self.device)
        runtime = Runtime(self.device, self.precision, progress=meter.progress)
        config = URSL.learner.__class__(
            net=self.spec.net, batch=self.spec.batch, optimiser=URSL.learner.optimiser, epochs=10**6
        )
        learner = Learner(config, self.setting, runtime)
        learner.remember_past()
        n = min(3000, self.spec.pool)
        labels = torch.randint(0, 20, (n,), generator=self.rng, device=self.device)
        lesson = Lesson(Labeled(self.images[:n], labels), (n, 0, 0), labels < 10, self.images[:4000], self.net())
        learner.learn(lesson, 0, PhaseLog(runtime))
        return meter.seconds(), meter.first

    def _rate(self, call: Callable[[], Tensor]) -> tuple[float, float]:
        """Views a second, the median of several stretches, and the seconds of the first calls."""
        synchronise(self.device)
        began = time.perf_counter()
        for _ in range(5):
            call()
        synchronise(self.device)
        first = time.perf_counter() - began
        times = []
        for _ in range(self.spec.repeats):
            began = time.perf_counter()
            for _ in range(self.spec.updates):
                call()
            synchronise(self.device)
            times.append((time.perf_counter() - began) / self.spec.updates)
        return 2 * self.spec.batch / statistics.median(times), first


class Meter:
    """Times a loop from outside, by its progress: the first stretch warms up, the others count."""

    def __init__(self, spec: BenchSpec, device: torch.device) -> None:
        self.spec, self.device = spec, device
        self.began = time.perf_counter()
        self.first = 0.0
        self.marks: list[float] = []

    def progress(self, progress: Progress) -> None:
        if progress.update == 5:
            synchronise(self.device)
            self.first = time.perf_counter() - self.began
        if progress.update % self.spec.updates == 0:
            synchronise(self.device)
            self.marks.append(time.perf_counter())

    def seconds(self) -> float:
        """An update, the median over the stretches."""
        pairs: Iterator[tuple[float, float]] = zip(self.marks, self.marks[1:], strict=False)
        return statistics.median((b - a) / self.spec.updates for a, b in pairs)
