"""A toy stream, made here and now, and a setting for methods to be tried on it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator, Tensor

from osscl.data.images import ImageBank, Labeled, concat
from osscl.methods.method import Method, Runtime, Schedule, Setting
from osscl.stream.build import build_stream
from osscl.stream.scenario import ScenarioSpec
from osscl.stream.step import Stream
from osscl.vision.augment import Augmentation
from osscl.vision.encoder import ImageFormat

FEW, ENOUGH = 3, 24  # updates a phase: to go through the motions, to learn something
TOY = ScenarioSpec(
    "toy", ("foreign toy",), labels_per_class=4, memory=13, classes_per_step=(2, 2, 2), related=24, unrelated=8
)


def toy_stream(spec: ScenarioSpec = TOY, seed: int = 0) -> Stream:
    """Three steps of two classes: noisy 8 x 8 patterns, among others in the unlabelled rows that are of no class."""
    patterns = torch.rand(10, 1, 4, 4, generator=Generator().manual_seed(0)).round()
    banks = {"toy": _bank("toy", patterns[:6], 1), "foreign toy": _bank("foreign toy", patterns[6:], 2)}
    return build_stream(spec, banks, seed)


def _bank(name: str, patterns: Tensor, seed: int) -> ImageBank:
    rng = Generator().manual_seed(seed)
    train, test = (_noisy(patterns, rows, rng) for rows in (24, 10))
    return ImageBank(name, train, test, tuple(f"{name} {c}" for c in range(len(patterns))), content=name)


def _noisy(patterns: Tensor, rows: int, rng: Generator) -> Labeled:
    """`rows` images of each pattern."""
    labels = torch.arange(len(patterns)).repeat_interleave(rows)
    clean = patterns[labels].repeat_interleave(2, 2).repeat_interleave(2, 3)
    noise = 40 * torch.randn(clean.shape, generator=rng)
    return Labeled((48 + 160 * clean + noise).clamp(0, 255).to(torch.uint8), labels)


@dataclass(frozen=True)
class Maker:
    """New instances of one method, all told the same."""

    method: Callable[[Any, Setting, Runtime], Method]
    config: object
    setting: Setting
    runtime: Runtime = field(default_factory=Runtime)

    def __call__(self, keep: Callable[[bool], None] = lambda edge: None, updates: int | None = FEW) -> Method:
        setting = replace(self.setting, schedule=Schedule("toy", max_updates=updates))
        return self.method(self.config, setting, replace(self.runtime, keep=keep))


def maker(method: Callable[[Any, Setting, Runtime], Method], config: object, stream: Stream) -> Maker:
    """Instances that know what the images of a toy stream look like."""
    pixels = stream.main.train.images.float() / 255
    images = ImageFormat(pixels.shape[1], pixels.shape[-1], (float(pixels.mean()),), (float(pixels.std()),))
    augmentation = Augmentation(scale=(0.6, 1.0), flip=0.0, jitter=0.0, grey=0.0)
    pool = stream.whole_pool() if getattr(config, "wants_whole_pool", False) else None
    return Maker(method, config, Setting(images, augmentation, stream.spec.memory, stream.seed, Schedule("toy"), pool))


def held_out(stream: Stream) -> Labeled:
    """The rows that accuracy is taken on, of all classes."""
    return concat(*(stream.evaluation(t) for t in range(len(stream))))


def accuracy(agent: Method, stream: Stream) -> float:
    """Share of the held-out rows that the agent is right on."""
    rows = held_out(stream)
    return float((torch.tensor(agent.classes)[agent.predict(rows.images).argmax(1)] == rows.labels).float().mean())
