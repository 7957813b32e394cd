"""GEM: gradient episodic memory (Lopez-Paz and Ranzato, NeurIPS 2017); labels only.

An update must not increase the loss on the memory of any past step: a gradient that would do so is replaced by the
nearest one that does not.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osscl.config import require_not_negative
from osscl.data.images import Labeled, columns_of
from osscl.device import SideBySide, compiled_for_several_gradients
from osscl.learn.optimiser import OptimiserConfig
from osscl.methods.base import (
    Runtime,
    Setting,
    State,
    StepReport,
    new_classifier,
    new_memory,
    parts_of,
    require_classifier,
)
from osscl.methods.phases import Phase, Phases
from osscl.seeding import seeded
from osscl.stream.build import Step
from osscl.vision.encoder import in_chunks
from osscl.vision.randaugment import WeakAugmentation, weak_view

PLAIN = OptimiserConfig("sgd", 0.03, min_rate=0.03, decay=0.0, momentum=0.0)
MANY = 4000  # updates: from here on, compiling for a small batch pays off
STRIPS = 1024  # of a gradient; their products are computed in parallel
RIDGE = 1e-3  # on the diagonal of the dual problem, as in the authors' code


@dataclass(frozen=True)
class GemConfig:
    """GEM's hyperparameters; the URSL paper gives none, these are Mammoth's."""

    backbone: str = "resnet18"
    epochs: int = 50
    batch: int = 32
    margin: float = 0.5  # least weight of a violated past gradient
    constrained: bool = True  # false: plain training on the labels of the step
    # Batch norm: separate passes for the batch and each past step, which update the running statistics (shared, as in
    # Mammoth) or not (apart); or one pass over all (joint, our `gem-joint`), because with separate passes the
    # constraints hold for a network that is never tested.
    memory_statistics: Literal["joint", "shared", "apart"] = "shared"
    optimiser: OptimiserConfig = PLAIN

    def __post_init__(self) -> None:
        require_classifier(self)
        require_not_negative(self, "margin")

    @property
    def needs_new_classes(self) -> bool:
        return True

    @property
    def demo_changes(self) -> dict[str, int]:
        return {"epochs": 200}


def dual_weights(among: Tensor, with_new: Tensor, margin: float) -> Tensor:
    """How much of each past gradient to add to the new one, (k,); zeros if no constraint is violated.

    `among` has the past gradients' products (k, k), `with_new` theirs with the new gradient (k,), both on the CPU. The
    dual of the paper's Eq. 11: min_v v'(GG' + ridge)v / 2 + (Gg)'v over v >= margin; shifted by the margin it is
    non-negative least squares.
    """
    if bool((with_new >= 0).all()) or not bool(among.isfinite().all() & with_new.isfinite().all()):
        return torch.zeros_like(with_new)  # divergence is reported after the step
    from scipy.optimize import nnls

    values, vectors = np.linalg.eigh(among.double().numpy() + RIDGE * np.eye(len(among)))
    # Rounding may leave similar gradients an eigenvalue below the ridge.
    root = vectors * np.sqrt(values.clip(min=RIDGE))
    gram = root @ root.T
    linear = with_new.double().numpy() + gram @ np.full(len(among), margin)
    shifted, _ = nnls(root.T, np.linalg.solve(root, -linear))
    return torch.as_tensor(shifted + margin, dtype=with_new.dtype)


class Statistics:
    """Batch norms whose passes write their statistics to separate buffers, merged into the running ones later.

    Parallel passes would otherwise write to the same buffer in undefined order.
    """

    def __init__(self, net: nn.Module, passes: int) -> None:
        self.norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
        self.running = [(norm.running_mean, norm.running_var, norm.num_batches_tracked) for norm in self.norms]
        device = next(net.parameters()).device
        self.places = [[torch.zeros(2, norm.num_features, device=device) for norm in self.norms] for _ in range(passes)]
        self.momentum = [norm.momentum for norm in self.norms]

    @contextmanager
    def at(self, number: int) -> Iterator[None]:
        """Inside the block the norms use the current batch and write its statistics to buffer `number`."""
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
        """Merge these passes as if they had run one after another."""
        for number in numbers:
            for (mean, var, _), place, share in zip(self.running, self.places[number], self.momentum, strict=True):
                assert mean is not None and var is not None and share is not None
                mean.lerp_(place[0], share)
                var.lerp_(place[1], share)


class Gem:
    """The agent: a classifier and a memory."""

    Config = GemConfig

    def __init__(self, config: GemConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        self.classes: list[int] = []
        self.sizes: list[int] = []  # number of new classes of each step
        self.model = new_classifier(config.backbone, "model", setting, runtime)
        self.memory = new_memory(setting, runtime)
        self.views = WeakAugmentation(setting.augmentation.flip)
        self.phases = Phases(setting, runtime)

    def learn(self, step: Step) -> StepReport:
        """One step: the network, then the memory."""
        if self.phases.begin_step(step.index):
            self.model.head.grow(len(step.new_classes), seeded(self.setting.seed, "head", step.index))
            self.classes.extend(step.new_classes)
            self.sizes.append(len(step.new_classes))
            self.memory.add(step.further)
        self.train(step)
        self.memory.update(step.labeled, self.classes, seeded(self.setting.seed, "memory", step.index))
        return StepReport(self.phases.reports())

    def train(self, step: Step) -> None:
        """Updates on T_t whose gradients do not raise the loss on any past step's part of M."""
        config, past = self.config, self._past_steps() if self.config.constrained else []
        new, n = self.phases.shuffled("model", len(step.labeled), config.batch), sum(map(len, past))
        stored = self.phases.shuffled("model", n, max(1, n), "memory")
        updates = self.setting.schedule.updates(config.epochs, new.per_epoch)
        # Separate passes are not compiled: each would be bound to one buffer of its statistics.
        compiles = config.memory_statistics == "joint" and bool(past) and updates >= MANY
        phase = self.phases.train(
            "model", [self.model], config.optimiser, config.epochs, [(new, 1), (stored, 1)], compiles=compiles
        )
        update = GemUpdate(self, step.labeled, past, phase)
        for batch in phase.batches():
            phase.report(update(*batch))

    def _past_steps(self) -> list[Labeled]:
        """The memory's images of each past step that has any."""
        columns, start, parts = columns_of(self.memory.labeled.labels, self.classes), 0, []
        for size in self.sizes[:-1]:
            rows = ((columns >= start) & (columns < start + size)).nonzero().squeeze(1)
            parts += [self.memory.labeled.rows(rows)] if len(rows) else []
            start += size
        return parts

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes seen so far); changes nothing."""
        return in_chunks(self.model, images)

    def state(self) -> State:
        parts = parts_of(self, "phases", "model", "memory")
        return {**parts, "classes": list(self.classes), "sizes": list(self.sizes)}

    def load_state(self, state: State) -> None:
        self.classes, self.sizes = list(state["classes"]), list(state["sizes"])
        self.model.load(state["model"])
        self.memory.load_state(state["memory"])
        self.phases.load_state(state["phases"])


class GemUpdate:
    """One update: gradients of the batch and of every past step, their products, the projection, the step.

    The projection is solved on the CPU, so the update is captured as two CUDA graphs.
    """

    def __init__(self, agent: Gem, labeled: Labeled, past: list[Labeled], phase: Phase) -> None:
        self.agent, self.past, self.phase = agent, past, phase
        self.labeled, self.columns = labeled, columns_of(labeled.labels, agent.classes)
        self.past_columns = [columns_of(part.labels, agent.classes) for part in past]
        device, self.parameters = agent.runtime.device, list(agent.model.parameters())
        length = sum(p.numel() for p in self.parameters)
        self.padded = torch.zeros(len(past) + 1, -(-length // STRIPS) * STRIPS, device=device)
        self.gradients = self.padded[:, :length]  # the last row: of the batch
        self.loss = torch.zeros((), device=device)
        self.joint = agent.config.memory_statistics == "joint"
        if not self.joint:
            self.statistics = Statistics(agent.model, len(past) + 1)
        self.find, self.move = phase.capture(self._find), phase.capture(self._move)

    def __call__(self, rows: Tensor, u: Tensor, _: Tensor | None = None, past_u: Tensor | None = None) -> Tensor:
        """Update on the batch's rows, with the random numbers of its views and of the memory's."""
        products = self.find(rows, u, *([past_u] if past_u is not None else [])).cpu()  # the only synchronisation
        weights = dual_weights(products[:-1, :-1], products[:-1, -1], self.agent.config.margin)
        self.move(weights.to(rows.device))
        return self.loss

    def _find(self, rows: Tensor, u: Tensor, past_u: Tensor | None = None) -> Tensor:
        """Write every gradient into its row; return their products, (k + 1, k + 1)."""
        loss = self._find_together(rows, u, past_u) if self.joint else self._find_apart(rows, u, past_u)
        self.loss.copy_(loss)
        # In strips: few rows of millions of columns occupy only a small part of a GPU.
        strips = self.padded.view(len(self.padded), STRIPS, -1).transpose(0, 1)
        return (strips @ strips.transpose(1, 2)).sum(0)

    def _find_together(self, rows: Tensor, u: Tensor, past_u: Tensor | None) -> Tensor:
        """One pass over the batch and the whole memory, and a gradient for each part of it."""
        images, columns = self.labeled.images[rows], self.columns[rows]
        sizes = [len(rows)]
        if past_u is not None:
            images = torch.cat((images, *(part.images for part in self.past)))
            columns, u = torch.cat((columns, *self.past_columns)), torch.cat((u, past_u))
            sizes += [len(part) for part in self.past]
        with compiled_for_several_gradients() if self.phase.compiles else nullcontext():
            logits = self.agent.model(weak_view(images, u, self.agent.views))
        losses = [F.cross_entropy(*part) for part in zip(logits.split(sizes), columns.split(sizes), strict=True)]
        for i, loss in enumerate(losses):
            self._store(i - 1, loss, again=i + 1 < len(losses))  # row -1: the batch
        return losses[0].detach()

    def _find_apart(self, rows: Tensor, u: Tensor, past_u: Tensor | None) -> Tensor:
        """A pass for the batch and one for each past step's part of the memory."""
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
        self._store(i, loss)
        return loss.detach()

    def _store(self, i: int, loss: Tensor, again: bool = False) -> None:
        parts = torch.autograd.grad(loss, list(self.agent.model.parameters()), retain_graph=again)
        self.gradients[i] = torch.cat([part.flatten() for part in parts])

    def _move(self, weights: Tensor) -> Tensor:
        g = self.gradients[-1] + weights @ self.gradients[:-1]
        for p, part in zip(self.parameters, g.split([p.numel() for p in self.parameters]), strict=True):
            p.grad = torch.empty_like(p).copy_(part.view_as(p))  # in the weight's memory layout: the optimiser is fused
        self.phase.apply_gradients()
        return g
