"""The contract between a method and its runner, and parts that several methods have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from osscl.config import require, require_declared, require_positive
from osscl.data.images import Labeled, concat
from osscl.learn.linear_head import Head, HeadFit
from osscl.learn.memory import Memory
from osscl.learn.optimiser import OptimiserConfig
from osscl.seeding import seeded
from osscl.stream.build import Step
from osscl.vision.augment import Augmentation
from osscl.vision.backbones import require_backbone
from osscl.vision.encoder import BackboneModule, Classifier, ImageFormat, build_on_device, in_chunks

T = TypeVar("T")
State = dict[str, Any]  # nested dicts of tensors, numbers, strings, lists and None


def on_device(device: torch.device, fields: State) -> State:
    """The same fields with their tensors on `device`."""
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in fields.items()}


def parts_of(agent: object, *names: str) -> State:
    """Parts of a method as `state` saves them: weights, a part's own state, the fields of a dataclass, or None."""
    return {name: _saved(getattr(agent, name)) for name in names}


def _saved(part: Any) -> Any:
    if part is None:
        return None
    if isinstance(part, nn.Module):
        return part.state_dict()
    return part.state() if hasattr(part, "state") else vars(part)


def rebuilt(kind: type[T], fields: State | None, device: torch.device) -> T | None:
    """The dataclass whose fields were saved; None if there was none."""
    return None if fields is None else kind(**on_device(device, fields))


# ----- what a method is given


@dataclass(frozen=True)
class Schedule:
    """How much of a method's own epochs to run; printed next to every number."""

    name: str
    share: float = 1.0  # of the epochs in the method's config, heads excepted
    max_updates: int | None = None  # per phase
    row_cap: int | None = None  # on U_t and on the rows that accuracy is computed on
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

    def updates(self, epochs: int, per_epoch: int, min_updates: int = 0) -> int:
        """Updates of a phase whose config asks for `epochs` epochs and at least `min_updates` updates."""
        asked = max(round(min_updates * self.share), self.epochs(epochs) * per_epoch)
        return asked if self.max_updates is None else min(asked, self.max_updates)


PAPER = Schedule("paper")
SHORT = Schedule("short", share=0.25)
SMOKE = Schedule("smoke", max_updates=3, row_cap=512, small_net=True)
DEMO = Schedule("demo")
SCHEDULES = {schedule.name: schedule for schedule in (PAPER, SHORT, SMOKE, DEMO)}


@dataclass(frozen=True)
class Setting:
    """What a method knows before the first step: nothing about the classes to come."""

    images: ImageFormat
    augmentation: Augmentation
    memory: int  # |M|
    seed: int
    schedule: Schedule
    whole_pool: Tensor | None = None  # all unlabelled images, for methods that declare `wants_whole_pool`

    def no_images(self) -> Labeled:
        """An empty set of images of this format."""
        shape = (0, self.images.channels, self.images.size, self.images.size)
        return Labeled(torch.empty(shape, dtype=torch.uint8), torch.empty(0, dtype=torch.long))


@dataclass(frozen=True)
class Progress:
    """Position within a phase; the loss stays on the device until it is read."""

    phase: str
    update: int
    updates: int
    views: int  # augmented images seen in this phase
    loss: Tensor | None = None


def _ignore(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Runtime:
    """What the runner offers a method, so that methods never import from the layers above."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: torch.dtype = torch.float32  # of forward passes; losses are float32
    # Called after every update and, with True, at the end of every phase: the run may save state() or stop here.
    maybe_checkpoint: Callable[[bool], None] = _ignore
    progress: Callable[[Progress], None] = _ignore
    reference_cache: Path | None = None
    shared_device: bool = False  # timings are not meaningful: the device runs other work too


# ----- parts that several methods have


def require_classifier(config: Any) -> None:
    """Raise a SpecError unless a config has declared types, a known backbone, epochs, and batches of two or more."""
    require_backbone(config.backbone)
    require_declared(config)
    require_positive(config, "epochs")
    require_fresh_optimisers(config)
    require(config.batch > 1, config, "batch", "at least 2")


def require_fresh_optimisers(config: Any) -> None:
    """Refuse to keep an optimiser from step to step: its moments do not fit a head that has grown."""
    for part in vars(config).values():
        if isinstance(part, OptimiserConfig):
            require(part.fresh, part, "fresh", "true: the moments of a smaller head do not fit the grown one")


def new_classifier(backbone: str, name: str, setting: Setting, runtime: Runtime) -> Classifier:
    """A classifier without classes; its weights depend only on the seed and this name."""
    make = lambda: Classifier(backbone, setting.images, runtime.precision)  # noqa: E731
    return build_on_device(make, seeded(setting.seed, "init", name), runtime.device)


def new_memory(setting: Setting, runtime: Runtime) -> Memory:
    """The memory M before the first step."""
    return Memory(setting.memory, setting.no_images().to(runtime.device))


def head_fit(
    encoder: BackboneModule, step: Step, memory: Memory, classes: Sequence[int], setting: Setting, name: str = "head"
) -> HeadFit:
    """What a head on `encoder` learns from: T_t, and the other classes of M before its update."""
    labeled = concat(step.labeled, memory.without(step.new_classes))
    names, cap = (name, step.index), setting.schedule.max_updates
    return HeadFit(encoder, labeled, list(classes), setting.augmentation, setting.seed, names, cap)


def our_head(model: BackboneModule, head: Head | None) -> dict[str, Callable[[Tensor], Tensor]]:
    """Our head on another method's features, as a control (see `OtherHeads`)."""
    return {} if head is None else {"our head": lambda images: head(in_chunks(model.features, images))}


# ----- what a method reports


@dataclass(frozen=True)
class PhaseReport:
    """Cost of one phase of one step."""

    name: str
    seconds: float
    updates: int = 0
    views: int = 0
    cached: bool = False  # the seconds are those of the run that trained it
    shared: bool = False  # the device was shared, at least part of the time


@dataclass(frozen=True)
class GateReport:
    """What the gate decided for each row of U_t."""

    scores: Tensor  # (m,) S(x), higher is more like the classes seen
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


# ----- the contract


class Method(Protocol):
    """The whole contract: a structural type, nothing is inherited. Created as `MyMethod(config, setting, runtime)`."""

    classes: list[int]  # seen so far, in order; column j of predict() is classes[j]

    def learn(self, step: Step) -> StepReport:
        """Learn from one step; predict() is valid afterwards. After load_state() it resumes inside the saved step."""
        ...

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes seen so far); changes nothing."""
        ...

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...


@runtime_checkable
class Discerning(Protocol):
    """Optional: a method that distinguishes images of classes it has seen from others."""

    @property
    def known_above(self) -> float | None:
        """The score above which an image is known; None if no threshold exists yet."""
        ...

    def known_scores(self, images: Tensor) -> Tensor:
        """How much each image looks like a seen class, (n,); only called while `known_above` is a number."""
        ...


@runtime_checkable
class FeatureExtractor(Protocol):
    """Optional: a method with a feature space in which images of one class, seen or not, are close."""

    def features(self, images: Tensor) -> Tensor:
        """Features (n, width); changes nothing."""
        ...


@runtime_checkable
class Forgetting(Protocol):
    """Optional: a method that can drop a class; its networks are not unlearned."""

    def forget(self, column: int) -> None:
        """Delete everything kept about the class in this column; class ids must equal column numbers."""
        ...


@runtime_checkable
class Keeping(Protocol):
    """Optional: a method that keeps more of past data than the labelled images of `memory`."""

    def kept(self) -> dict[str, Tensor]:
        """Every tensor that derives from past data; not weights, heads, teachers or optimiser state."""
        ...


@runtime_checkable
class OtherHeads(Protocol):
    """Optional: a method whose trained networks can also be evaluated in other ways, as controls."""

    def other_heads(self) -> Mapping[str, Callable[[Tensor], Tensor]]:
        """Functions that return logits like predict(), by the name that a record gives them."""
        ...


def bytes_of(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def bytes_kept(agent: Any) -> int | None:
    """Bytes of past data that an agent keeps from step to step; None for methods that do not say."""
    if isinstance(agent, Keeping):
        return bytes_of(agent.kept())
    labeled = getattr(getattr(agent, "memory", None), "labeled", None)
    return labeled.images.numel() if isinstance(labeled, Labeled) else None
