"""GEM: gradient episodic memory (Lopez-Paz and Ranzato, NeurIPS 2017); labels only.

An update may not raise the loss on what the memory holds of any past step: a gradient that would is replaced by the
nearest one that does not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osscl.config import require, require_declared
from osscl.data.images import Labeled, columns_of
from osscl.device import Replay, SideBySide, compiled_for_several_gradients
from osscl.learn.batches import Shuffled, side_by_side
from osscl.learn.memory import Memory
from osscl.learn.optimiser import Descent, OptimiserConfig
from osscl.methods.base import Phases, Runtime, Setting, State, StepReport, Training
from osscl.seeding import seeded
from osscl.stream.step import Step
from osscl.vision.backbones import require_backbone
from osscl.vision.encoder import Classifier, in_chunks, placed
from osscl.vision.randaugment import WeakAugmentation, weak_view

PLAIN = OptimiserConfig("sgd", 0.03, min_rate=0.03, decay=0.0, momentum=0.0)
MANY = 4000  # updates, which repay compiling for their one small batch
STRIPS = 1024  # of a gradient, whose products are made side by side
RIDGE = 1e-3  # on the diagonal of the dual problem, as the authors' code has it


@dataclass(frozen=True)
class GemConfig:
    """GEM's hyperparameters; the URSL paper names none, these are Mammoth's."""

    needs_new_classes: ClassVar[bool] = True  # in every step

    backbone: str = "resnet18"
    epochs: int = 50
    batch: int = 32
    margin: float = 0.5  # least weight of a past gradient in the answer; pushes towards past steps
    constrained: bool = True  # without it, plain training on the labels of the step
    # Deviation: batch and memory are normalised together. In passes of their own (Mammoth), which move the running
    # statistics ("shared") or leave them alone ("apart"), the constraints hold for a network that is never tested.
    memory_statistics: Literal["joint", "shared", "apart"] = "joint"
    optimiser: OptimiserConfig = PLAIN

    def __post_init__(self) -> None:
        require_backbone(self.backbone)
        require_declared(self)
        require(self.epochs > 0, self, "epochs", "positive")
        require(self.batch > 1, self, "batch", "at least 2")
        require(self.margin >= 0, self, "margin", "0 or more")


def dual_weights(among: Tensor, with_new: Tensor, margin: float) -> Tensor:
    """How much of each past gradient is to be added to the new one, (k,); zeros where none is violated.

    `among` are the past gradients' products (k, k), `with_new` theirs with the new gradient (k,), both on the CPU. The
    dual of the paper's Eq. 11: min_v v'(GG' + ridge)v / 2 + (Gg)'v over v >= margin; shifted by the margin it is
    non-negative least squares.
    """
    if bool((with_new >= 0).all()) or not bool(among.isfinite().all() & with_new.isfinite().all()):
        return torch.zeros_like(with_new)  # what has diverged is told after the step
    from scipy.optimize import nnls

    values, vectors = np.linalg.eigh(among.double().numpy() + RIDGE * np.eye(len(among)))
    # Rounding may leave gradients that are alike a value below the ridge.
    root = vectors * np.sqrt(values.clip(min=RIDGE))
    gram = root @ root.T
    linear = with_new.double().numpy() + gram @ np.full(len(among), margin)
    shifted, _ = nnls(root.T, np.linalg.solve(root, -linear))
    return torch.as_tensor(shifted + margin, dtype=with_new.dtype)


class Statistics:
    """Batch norms whose passes leave their statistics in places of their own, to be folded into the running ones later.

    Passes that go side by side would otherwise write to the same place in no order.
    """

    def __init__(self, net: nn.Module, passes: int) -> None:
        self.norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
        self.running = [(norm.running_mean, norm.running_var, norm.num_batches_tracked) for norm in self.norms]
        device = next(net.parameters()).device
        self.places = [[torch.zeros(2, norm.num_features, device=device) for norm in self.norms] for _ in range(passes)]
        self.momentum = [norm.momentum for norm in self.norms]

    @contextmanager
    def at(self, number: int) -> Iterator[None]:
        """Inside the block the norms go by the batch at hand, and pass `number`'s place takes its statistics."""
        for norm, place in zip(self.norms, self.places[number], strict=True):
            norm.running_mean, norm.running_var, norm.num_batches_tracked = place[0], place[1], None
            norm.momentum = 1.0
        try:
            yield
        finally:
            for norm, running, momentum in zip(self.norms, self.running, self.momentum, strict=True):
                norm.running_mean, norm.running_var, norm.num_batches_tracked = running
                norm.momentum = momentum

    def fold(self, numbers: Sequence[int]) -> None:
        """As if these passes had been made one after another."""
        for number in numbers:
            for (mean, var, _), place, share in zip(self.running, self.places[number], self.momentum, strict=True):
                assert mean is not None and var is not None and share is not None
                mean.lerp_(place[0], share)
                var.lerp_(place[1], share)


class Gem:
    """The agent: a classifier and a memory."""

    def __init__(self, config: GemConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        self.classes: list[int] = []
        self.sizes: list[int] = []  # classes that each step brought
        rng, precision = seeded(setting.seed, "init", "model"), runtime.precision
        self.model = placed(lambda: Classifier(config.backbone, setting.images, precision), rng, runtime.device)
        self.memory = Memory(setting.memory, setting.no_images().to(runtime.device))
        self.views = WeakAugmentation(setting.augmentation.flip)
        self.phases = Phases(runtime)

    def learn(self, step: Step) -> StepReport:
        """One step: the network, then the memory."""
        if self.phases.open(step.index):
            self.model.head.grow(len(step.new_classes), seeded(self.setting.seed, "head", step.index))
            self.classes.extend(step.new_classes)
            self.sizes.append(len(step.new_classes))
            self.memory.take_in(step.further)
        self.phases.train("model", lambda: self._training(step))
        self.model.compiles = True
        rng = seeded(self.setting.seed, "memory", step.index)
        self.memory.update(step.labeled, self.classes, "random", rng)
        return StepReport(tuple(self.phases.log.reports.values()))

    def _training(self, step: Step) -> Training:
        config, device, seed = self.config, self.runtime.device, self.setting.seed
        names = ("model", step.index)
        batches = Shuffled(len(step.labeled), config.batch, seed, names, device)
        past = self._past_steps() if config.constrained else []
        kept = Shuffled(sum(map(len, past)), max(1, sum(map(len, past))), seed, (*names, "memory"), device)
        update = GemUpdate(self, step.labeled, past)
        schedule = self.setting.schedule
        updates = schedule.capped(schedule.epochs(config.epochs) * batches.per_epoch)
        return Training(
            [self.model], config.optimiser, updates, batches.per_epoch, batches.rows + kept.pool, update.starting,
            lambda start: side_by_side([(batches, 1), (kept, 1)], start), captured=False,
        )  # fmt: skip

    def _past_steps(self) -> list[Labeled]:
        """What the memory holds of each step that is over, where it holds anything."""
        columns, start, parts = columns_of(self.memory.labeled.labels, self.classes), 0, []
        for size in self.sizes[:-1]:
            rows = ((columns >= start) & (columns < start + size)).nonzero().squeeze(1)
            parts += [self.memory.labeled.rows(rows)] if len(rows) else []
            start += size
        return parts

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes met so far); changes nothing."""
        return in_chunks(self.model, images)

    def state(self) -> State:
        return {
            "classes": list(self.classes),
            "sizes": list(self.sizes),
            "model": self.model.state_dict(),
            "memory": vars(self.memory.labeled),
            "phases": self.phases.state(),
        }

    def load_state(self, state: State) -> None:
        self.classes, self.sizes = list(state["classes"]), list(state["sizes"])
        self.model.load(state["model"])
        self.memory.labeled = Labeled(**state["memory"]).to(self.runtime.device)
        self.phases.load_state(state["phases"])


class GemUpdate:
    """One update: the gradients of the batch and of every past step, their products, the projection, the move."""

    def __init__(self, agent: Gem, labeled: Labeled, past: list[Labeled]) -> None:
        self.agent, self.past = agent, past
        self.labeled, self.columns = labeled, columns_of(labeled.labels, agent.classes)
        self.past_columns = [columns_of(part.labels, agent.classes) for part in past]

    def starting(self, descent: Descent) -> Callable[..., Tensor]:
        """The update as a function of the batch's rows, its uniform numbers and those of the memory."""
        device, length = self.agent.runtime.device, sum(p.numel() for p in descent.parameters)
        padded = -(-length // STRIPS) * STRIPS
        self.padded = torch.zeros(len(self.past) + 1, padded, device=device)
        self.gradients = self.padded[:, :length]  # the last: new
        self.loss = torch.zeros((), device=device)
        if self.agent.config.memory_statistics != "joint":
            self.statistics = Statistics(self.agent.model, len(self.past) + 1)
        # Passes apart are not compiled: each would be bound to one place of its statistics.
        joint = self.agent.config.memory_statistics == "joint"
        self.compiled = joint and bool(self.past) and descent.updates >= MANY
        self.agent.model.compiles = self.compiled
        find = Replay(self._find, device)
        move = Replay(lambda weights: self._move(weights, descent), device)

        def update(rows: Tensor, u: Tensor, _: Tensor | None = None, past_u: Tensor | None = None) -> Tensor:
            products = find(rows, u, *([past_u] if past_u is not None else [])).cpu()  # waited for once
            weights = dual_weights(products[:-1, :-1], products[:-1, -1], self.agent.config.margin)
            move(weights.to(device))
            return self.loss

        return update

    def _find(self, rows: Tensor, u: Tensor, past_u: Tensor | None = None) -> Tensor:
        """Every gradient into its row; returns their products, (k + 1, k + 1)."""
        joint = self.agent.config.memory_statistics == "joint"
        loss = self._find_together(rows, u, past_u) if joint else self._find_apart(rows, u, past_u)
        self.loss.copy_(loss)
        # Strip by strip: few rows of millions of columns keep a small part of a GPU busy.
        strips = self.padded.view(len(self.padded), STRIPS, -1).transpose(0, 1)
        return (strips @ strips.transpose(1, 2)).sum(0)

    def _find_together(self, rows: Tensor, u: Tensor, past_u: Tensor | None) -> Tensor:
        """One pass over the batch and all of the memory, and from it a gradient for each part."""
        images, columns = self.labeled.images[rows], self.columns[rows]
        sizes = [len(rows)]
        if past_u is not None:
            images = torch.cat((images, *(part.images for part in self.past)))
            columns, u = torch.cat((columns, *self.past_columns)), torch.cat((u, past_u))
            sizes += [len(part) for part in self.past]
        with compiled_for_several_gradients() if self.compiled else nullcontext():
            logits = self.agent.model(weak_view(images, u, self.agent.views))
        losses = [F.cross_entropy(*part) for part in zip(logits.split(sizes), columns.split(sizes), strict=True)]
        for i, loss in enumerate(losses):
            self._keep(i - 1, loss, again=i + 1 < len(losses))  # the batch's is the last row
        return losses[0].detach()

    def _find_apart(self, rows: Tensor, u: Tensor, past_u: Tensor | None) -> Tensor:
        """A pass for the batch and one for what the memory holds of each past step."""
        beside, new = SideBySide(rows.device), len(self.past)
        if past_u is not None:
            parts = past_u.split([len(part) for part in self.past])
            for i, (part, columns, v) in enumerate(zip(self.past, self.past_columns, parts, strict=True)):
                with beside.another():
                    self._gradient(i, part.images, columns, v)
        loss = self._gradient(new, self.labeled.images[rows], self.columns[rows], u)
        beside.join()
        self.statistics.fold([new] if self.agent.config.memory_statistics == "apart" else range(new + 1))
        return loss

    def _gradient(self, i: int, images: Tensor, columns: Tensor, u: Tensor) -> Tensor:
        model = self.agent.model
        with self.statistics.at(i):
            loss = F.cross_entropy(model(weak_view(images, u, self.agent.views)), columns)
        self._keep(i, loss)
        return loss.detach()

    def _keep(self, i: int, loss: Tensor, again: bool = False) -> None:
        parts = torch.autograd.grad(loss, list(self.agent.model.parameters()), retain_graph=again)
        self.gradients[i] = torch.cat([part.flatten() for part in parts])

    def _move(self, weights: Tensor, descent: Descent) -> Tensor:
        g = self.gradients[-1] + weights @ self.gradients[:-1]
        for p, part in zip(descent.parameters, g.split([p.numel() for p in descent.parameters]), strict=True):
            # In the weight's own memory layout: a fused optimiser goes through both as they lie.
            p.grad = torch.empty_like(p).copy_(part.view_as(p))
        descent.optimiser.step()
        return g
