"""Benchmark training loops against the fastest possible loop on the same device: URSL's, and those of every method."""

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from osscl.data.images import Labeled
from osscl.device import Replay, device_name, precision_of, prepare, synchronise
from osscl.errors import require_known
from osscl.learn.optimiser import Descent, OptimiserConfig
from osscl.losses.contrastive import nt_xent
from osscl.methods import CONFIGURATIONS, URSL, method_class
from osscl.methods.base import Progress, Runtime, Schedule, Setting
from osscl.methods.gate import Segregated
from osscl.methods.phases import Phases
from osscl.methods.reference import Reference, ReferenceConfig
from osscl.methods.ursl import LearnerConfig, Ursl, UrslConfig
from osscl.runs.record import commit
from osscl.seeding import seeded
from osscl.stream.build import Step
from osscl.vision.augment import Augmentation, draws, two_views
from osscl.vision.encoder import (
    Classifier,
    Encoder,
    EncoderConfig,
    ImageFormat,
    build_on_device,
    frozen_copy,
    new_encoder,
)

CIFAR = ImageFormat(3, 32, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


@dataclass(frozen=True)
class BenchSpec:
    """Network, batch and number of repetitions."""

    net: EncoderConfig = field(default_factory=EncoderConfig)
    batch: int = 512
    pool: int = 18_000  # images in U_t
    updates: int = 100  # per timed stretch
    repeats: int = 5  # stretches; the median is reported


@dataclass(frozen=True)
class BenchRecord:
    """Views per second, and their ratios."""

    spec: BenchSpec
    device: str
    precision: str
    torch: str
    commit: str
    date: str
    ceiling: float  # views/s of the bare training step on ready-made views
    forward: float  # views/s of a teacher's forward pass
    augmentation: float  # views/s of augmentation alone
    reference: float  # views/s of the whole reference loop
    reference_share: float  # of the ceiling
    learner_ms: float  # per update of the learner: two batches, two teachers
    learner_floor_ms: float  # its passes at the ceiling
    learner_share: float  # floor / measured
    first_seconds: float  # of the first updates of every loop: compiling, capturing, allocating
    peak_bytes: int | None
    against: dict[str, float]  # views/s of common alternatives, by name


def bench(spec: BenchSpec, device: torch.device, against: dict[str, float] | None = None) -> BenchRecord:
    """Run all measurements on one device."""
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
    """Random images and networks to measure; zeros would run faster than real data."""

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
        """Forward, loss, backward and optimiser on ready-made views."""
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
        """The reference's loop, as in a run."""
        meter = Meter(self.spec.updates, self.device)
        runtime = Runtime(self.device, self.precision, progress=meter.progress)
        config = ReferenceConfig(net=self.spec.net, batch=self.spec.batch, optimiser=URSL.reference.optimiser)
        phases = Phases(self.setting, runtime)
        phases.begin_step(0)
        Reference(config, self.setting, phases).learn(self.images, 0)
        return 2 * self.spec.batch / meter.seconds(), meter.first

    def learner(self) -> tuple[float, float]:
        """Seconds per update of the learner's loop, with both batches and both teachers."""
        meter = Meter(self.spec.updates, self.device)
        runtime = Runtime(self.device, self.precision, progress=meter.progress)
        learner = LearnerConfig(
            net=self.spec.net, batch=self.spec.batch, optimiser=URSL.learner.optimiser, epochs=10**6
        )  # fmt: skip
        agent = Ursl(UrslConfig(ReferenceConfig(net=self.spec.net), learner=learner), self.setting, runtime)
        n = min(3000, self.spec.pool)
        labels = torch.randint(0, 20, (n,), generator=self.rng, device=self.device)
        step = Step(1, tuple(range(10)), Labeled(self.images[:n], labels), self.images[:0])
        agent.phases.begin_step(1)
        agent.past = agent.teacher(agent.learner)
        agent.reference.history["0"] = "bench"  # type: ignore[union-attr]
        agent.train_learner(step, Segregated(Labeled(self.images[:0], labels[:0]), self.images[n:4000]))
        return meter.seconds(), meter.first

    def _rate(self, call: Callable[[], Tensor]) -> tuple[float, float]:
        """Views per second, and the seconds of the first calls."""
        seconds, first = seconds_per_call(call, self.device, self.spec.updates, self.spec.repeats)
        return 2 * self.spec.batch / seconds, first


class Meter:
    """Times a loop by its progress reports, of one phase where it is named; the first stretch is warm-up."""

    def __init__(self, updates: int, device: torch.device, phase: str | None = None) -> None:
        self.updates, self.device, self.phase = updates, device, phase
        self.began = time.perf_counter()
        self.first = 0.0
        self.marks: list[float] = []

    def progress(self, progress: Progress) -> None:
        if self.phase not in (None, progress.phase):
            return
        if progress.update == 5:
            synchronise(self.device)
            self.first = time.perf_counter() - self.began
        if progress.update % self.updates == 0:
            synchronise(self.device)
            self.marks.append(time.perf_counter())

    def seconds(self) -> float:
        """Seconds per update, median over the stretches."""
        return statistics.median((b - a) / self.updates for a, b in itertools.pairwise(self.marks))


def seconds_per_call(call: Callable[[], object], device: torch.device, calls: int, repeats: int) -> tuple[float, float]:
    """Seconds of one call (median of several stretches), and of the first five calls together."""
    began = _now(device)
    for _ in range(5):
        call()
    first = _now(device) - began
    stretches = []
    for _ in range(repeats):
        began = _now(device)
        for _ in range(calls):
            call()
        stretches.append((_now(device) - began) / calls)
    return statistics.median(stretches), first


def _now(device: torch.device) -> float:
    synchronise(device)
    return time.perf_counter()


# ----- every method: one update against the bare passes of the same update

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
        require_known("method", name, PASSES)
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
    meter = Meter(updates, device, passes.phase)
    runtime = Runtime(device, precision_of(device), progress=meter.progress)
    schedule = Schedule("bench", max_updates=updates * (repeats + 1))
    agent: Any = method_class(CONFIGURATIONS[name])(
        on_backbone(CONFIGURATIONS[name], backbone), Setting(CIFAR, Augmentation(), MEMORY, 0, schedule), runtime
    )
    for t in range(2):
        meter.marks.clear()
        agent.learn(_step(t, device))
    milliseconds = 1000 * meter.seconds()
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

    return seconds_per_call(Replay(update, device), device, updates, repeats)[0]


def _views(n: int, device: torch.device) -> Tensor:
    shape = (n, CIFAR.channels, CIFAR.size, CIFAR.size)
    return torch.rand(shape, generator=seeded(0, "bench views", n, device=device), device=device)


# ----- common alternatives


def against(spec: BenchSpec, device: torch.device) -> dict[str, float]:
    """Views/s of a data loader and of training from it, in float32 and, on a GPU, in bf16 autocast."""
    name, view = user_transform()
    workers = max(1, (os.cpu_count() or 2) - 1)
    pairs = TwoViews(spec.pool, view)
    loader: DataLoader[Any] = DataLoader(
        pairs, spec.batch, shuffle=True, num_workers=workers, drop_last=True, persistent_workers=True,
        pin_memory=device.type == "cuda",
    )  # fmt: skip
    found = {f"{name}, {workers} workers, loader alone": _rate(loader, spec, lambda x: None, device)}
    precisions = [torch.float32] + ([torch.bfloat16] if device.type == "cuda" else [])
    for precision in precisions:
        update = plain_update(spec, device, precision)
        words = str(precision).removeprefix("torch.")
        found[f"{name}, {workers} workers, training in {words}"] = _rate(loader, spec, update, device)
    kornia = kornia_views() if device.type == "cpu" else None
    if kornia is not None:
        found["kornia's augmentation alone"] = _batch_rate(kornia, spec)
    return found


def kornia_views() -> Callable[[Tensor], Tensor] | None:
    """The same views in batches by kornia, if it is installed."""
    try:
        from kornia import augmentation as kornia
    except ImportError:
        return None
    return kornia.AugmentationSequential(  # type: ignore[no-any-return]
        kornia.RandomResizedCrop((32, 32), scale=(0.2, 1.0)),
        kornia.RandomHorizontalFlip(),
        kornia.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        kornia.RandomGrayscale(p=0.2),
    )


def user_transform() -> tuple[str, Callable[[Image.Image], Tensor]]:
    """torchvision's transforms if it can be imported, else the same transforms with Pillow."""
    try:
        from torchvision import transforms as tv  # the only place where it is imported
    except Exception:  # a torchvision that does not fit its torch fails in many ways
        return "Pillow", pillow_view
    steps = [
        tv.RandomResizedCrop(32, scale=(0.2, 1.0)),
        tv.RandomHorizontalFlip(),
        tv.RandomApply([tv.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        tv.RandomGrayscale(0.2),
        tv.ToTensor(),
    ]
    return "torchvision", tv.Compose(steps)


def pillow_view(image: Image.Image, spec: Augmentation = Augmentation()) -> Tensor:
    """One view with Pillow, one image at a time."""
    rng = np.random.default_rng()
    size = image.width
    side = max(1, round(size * float(np.sqrt(rng.uniform(*spec.scale)))))
    left, top = (int(rng.integers(0, size - side + 1)) for _ in range(2))
    view = image.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
    if rng.random() < spec.flip:
        view = ImageOps.mirror(view)
    if rng.random() < spec.jitter:
        view = _jittered(view, spec, rng)
    if rng.random() < spec.grey:
        view = view.convert("L").convert("RGB")
    return torch.from_numpy(np.array(view)).permute(2, 0, 1).float() / 255


def _jittered(view: Image.Image, spec: Augmentation, rng: np.random.Generator) -> Image.Image:
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    strengths = (spec.brightness, spec.contrast, spec.saturation)
    for i in rng.permutation(3):
        view = kinds[i](view).enhance(rng.uniform(1 - strengths[i], 1 + strengths[i]))
    hue, *others = view.convert("HSV").split()
    turn = round(255 * rng.uniform(-spec.hue, spec.hue))
    return Image.merge("HSV", (hue.point(lambda v: (v + turn) % 256), *others)).convert("RGB")


class TwoViews(Dataset[tuple[Tensor, Tensor]]):
    """Random images, each in two views."""

    def __init__(self, n: int, view: Callable[[Image.Image], Tensor]) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
        self.images, self.view = [Image.fromarray(row) for row in pixels], view

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.view(self.images[i]), self.view(self.images[i])


def plain_update(spec: BenchSpec, device: torch.device, precision: torch.dtype) -> Callable[[Tensor], None]:
    """Forward, loss, backward, Adam; not compiled, not captured, default memory layout."""
    net = new_encoder(spec.net, CIFAR, seeded(0, "against"), device, precision).learning(True)
    net = net.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)

    def update(x: Tensor) -> None:
        x = ((x - net.mean) / net.std).contiguous()
        with torch.autocast(device.type, precision, enabled=precision != torch.float32):
            z = net.projector(net.backbone(x))
        loss = nt_xent(F.normalize(z.float(), dim=1), 0.1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return update


def _batch_rate(views: Callable[[Tensor], Tensor], spec: BenchSpec) -> float:
    """Views/s of a function of a whole batch; the first pass is warm-up."""
    x, times = torch.rand(2 * spec.batch, 3, 32, 32, generator=seeded(0, "against")), []
    for _ in range(1 + spec.repeats):
        began = time.perf_counter()
        views(x)
        times.append(time.perf_counter() - began)
    return len(x) / statistics.median(times[1:])


def _rate(loader: "DataLoader[Any]", spec: BenchSpec, use: Callable[[Tensor], None], device: torch.device) -> float:
    """Views/s over stretches of updates; the first is warm-up."""
    times = []
    for turn in range(3):
        began, batches = time.perf_counter(), 0
        for first, second in itertools.islice(loader, spec.updates):
            use(torch.cat((first, second)).to(device, non_blocking=True))
            batches += 1
        synchronise(device)
        if turn:
            times.append((time.perf_counter() - began) / max(1, batches))
    return 2 * spec.batch / statistics.median(times)
