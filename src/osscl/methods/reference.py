"""The reference network UR_t: self-supervised on all that is unlabelled, shared by runs that would train the same."""

import contextlib
import functools
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from osscl.config import content_id, from_plain, plain, require, require_declared
from osscl.device import Replay, device_name
from osscl.learn.batches import Shuffled, with_draws
from osscl.learn.optimiser import Descent, OptimiserConfig
from osscl.losses.contrastive import nt_xent
from osscl.losses.distillation import byol_regression
from osscl.methods.base import PhaseLog, PhaseReport, Runtime, Setting, State, descend
from osscl.seeding import seeded
from osscl.storage import read_cached_state, write_state
from osscl.vision.augment import two_views
from osscl.vision.encoder import WIDEST, EncoderConfig, frozen_copy, in_chunks, new_encoder, projector


@dataclass(frozen=True)
class ReferenceConfig:
    """The reference network and how it learns."""

    ssl: Literal["simclr", "byol"] = "simclr"
    net: EncoderConfig = field(default_factory=EncoderConfig)
    tau: float = 0.1  # temperature of Eq. 1
    epochs_first: int = 400  # E_T1
    epochs_later: int = 100  # E_T>1
    batch: int = 512
    drop_last: bool = True  # an epoch is floor(m / batch) updates, or ceil
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    later_rate: float = 1.0  # the rate at t > 1, as a multiple of the first step's
    ema: float = 0.99  # BYOL: how much of the target network stays at each update
    predictor: int = 512  # BYOL: hidden width
    pretrained: bool = False  # trained once on the whole pools before the first step, then frozen

    def __post_init__(self) -> None:
        require_declared(self)
        require(self.tau > 0, self, "tau", "positive")
        require(self.epochs_first > 0, self, "epochs_first", "positive")
        require(self.epochs_later > 0, self, "epochs_later", "positive")
        require(self.batch > 1, self, "batch", "at least 2")
        require(self.later_rate > 0, self, "later_rate", "positive")
        require(0 <= self.ema < 1, self, "ema", "in [0, 1)")
        require(0 < self.predictor <= WIDEST, self, "predictor", f"in [1, {WIDEST}]")


class Reference:
    """UR_t over time."""

    def __init__(self, config: ReferenceConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        rng = seeded(setting.seed, "init", "reference")
        self.encoder = new_encoder(config.net, setting.images, rng, runtime.device, runtime.precision)
        self.predictor: nn.Module | None = None
        if config.ssl == "byol":
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seeded(setting.seed, "init", "predictor").initial_seed())
                self.predictor = projector(config.net.dim, config.predictor, config.net.dim, norm=True)
            self.predictor = self.predictor.to(runtime.device)
            self.target = frozen_copy(self.encoder, batch_statistics=True)
        self.steps_done = 0
        self.trainings = 0  # steps at which it did learn; none while U_t is empty
        self.history = ""  # digest of every t and U_t that it learned from
        self.descent: Descent | None = None
        self.interrupted: State | None = None
        self.moments: State | None = None  # of the optimiser, where they are kept from step to step

    @property
    def trained(self) -> bool:
        return self.trainings > 0

    def learn(self, unlabeled: Tensor, t: int, log: PhaseLog) -> None:
        """Update theta_t on U_t (Algorithm 1, line 4), or take the weights from whoever has done so before."""
        if self.steps_done > t:
            return
        if self.config.pretrained:
            assert self.setting.whole_pool is not None
            unlabeled = self.setting.whole_pool if t == 0 else unlabeled[:0]
        if len(unlabeled) > 1:
            self._learn(unlabeled, t, log)
        self.steps_done = t + 1
        self.runtime.keep(True)

    def _learn(self, unlabeled: Tensor, t: int, log: PhaseLog) -> None:
        content = hashlib.blake2b(f"{self.history}, step {t}".encode(), digest_size=16)
        content.update(unlabeled.cpu().numpy().tobytes())
        key = self.cache_key(content.hexdigest())
        if self.interrupted is None and (cached := self._from_cache(key)) is not None:
            log.add(cached)
        else:
            log.begin("reference")
            updates, views = self._train(unlabeled, t)
            log.end(updates, views)
            self._to_cache(key, log.reports["reference"], unlabeled[:8])
        self.trainings += 1
        self.history = content.hexdigest()

    def _train(self, unlabeled: Tensor, t: int) -> tuple[int, int]:
        config, device = self.config, self.runtime.device
        names = ("reference", t)
        batches = Shuffled(len(unlabeled), config.batch, self.setting.seed, names, device, config.drop_last)
        first = self.trainings == 0
        epochs = self.setting.schedule.epochs(config.epochs_first if first else config.epochs_later)
        updates = self.setting.schedule.capped(epochs * batches.per_epoch)
        descent = Descent(self._learning(), self._optimiser(first), updates, batches.per_epoch)
        self.descent, self.interrupted = descent.taken_up(self.interrupted, self.moments), None
        update = Replay(self._update(unlabeled, descent), device)
        self.encoder.learning(True)
        drawn = with_draws(batches, names, self.setting.seed, descent.done, device)
        descend("reference", descent, update, drawn, 2 * batches.rows, self.runtime)
        self.encoder.learning(False)
        self.moments = None if config.optimiser.fresh else descent.moments()
        self.descent = None
        return updates, updates * 2 * batches.rows

    def _update(self, unlabeled: Tensor, descent: Descent) -> Callable[..., Tensor]:
        """One update as a function of the batch's rows and the uniform numbers of its views."""

        def simclr(rows: Tensor, u: Tensor) -> Tensor:
            x = two_views(unlabeled[rows], u, self.setting.augmentation)
            loss = nt_xent(self.encoder(x), self.config.tau)
            descent.step(loss)
            return loss.detach()

        def byol(rows: Tensor, u: Tensor) -> Tensor:
            x = two_views(unlabeled[rows], u, self.setting.augmentation)
            assert self.predictor is not None
            # Deviation: the predictor reads the projection on the unit sphere; its first batch norm undoes the scale.
            predicted = self.predictor(self.encoder(x))
            with torch.no_grad():
                target = self.target(x).roll(len(rows), 0)  # the partner view's
            loss = byol_regression(predicted, target)
            descent.step(loss)
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(self.target.parameters()), list(self.encoder.parameters()), 1 - self.config.ema
                )
            return loss.detach()

        return byol if self.config.ssl == "byol" else simclr

    def _learning(self) -> list[nn.Module]:
        return [self.encoder] if self.predictor is None else [self.encoder, self.predictor]

    def _optimiser(self, first: bool) -> OptimiserConfig:
        config = self.config.optimiser
        if first or self.config.later_rate == 1:
            return config
        rate = config.rate * self.config.later_rate
        return replace(config, rate=rate, min_rate=min(config.min_rate, rate))

    # ----- what is shared with other runs

    def cache_key(self, history: str) -> str:
        """Of everything that these weights depend on; `history` stands for every U_t so far, its t and its pixels."""
        sub_spec = self.config, self.setting.augmentation, self.setting.images
        training = self.setting.schedule.share, self.setting.schedule.max_updates, self.setting.seed, history, code()
        machine = str(self.runtime.precision), self.runtime.device.type, torch.__version__
        return content_id([*sub_spec, *training, *machine], 24)

    def _from_cache(self, key: str) -> PhaseReport | None:
        if self.runtime.reference_cache is None:
            return None
        found = None
        with contextlib.suppress(OSError):  # a cache that cannot be read costs time, not the run
            found = read_cached_state(self.runtime.reference_cache / key)
        if found is None:
            return None
        self._load_networks(found["networks"])
        cost = from_plain(PhaseReport, found["cost"])
        here = device_name(self.runtime.device)
        elsewhere = found.get("device", here) != here  # its seconds are no more a measure than if it had been shared
        return replace(cost, cached=True, shared=cost.shared or elsewhere)

    def _to_cache(self, key: str, cost: PhaseReport, some: Tensor) -> None:
        """Keep the network for others, unless what it makes of some images shows that it has diverged."""
        if self.runtime.reference_cache is None or not bool(in_chunks(self.encoder, some).isfinite().all()):
            return
        device = device_name(self.runtime.device)
        entry = {"networks": self._networks(), "cost": plain(cost), "device": device, "written": time.time()}
        with contextlib.suppress(OSError):  # a cache that cannot be written costs time, not the run
            write_state(self.runtime.reference_cache / key, entry)

    # ----- state

    def _networks(self) -> State:
        networks: State = {"encoder": self.encoder.state_dict(), "moments": self.moments}
        if self.predictor is not None:
            networks |= {"predictor": self.predictor.state_dict(), "target": self.target.state_dict()}
        return networks

    def _load_networks(self, networks: State) -> None:
        self.encoder.load_state_dict(networks["encoder"])
        self.moments = networks["moments"]
        if self.predictor is not None:
            self.predictor.load_state_dict(networks["predictor"])
            self.target.load_state_dict(networks["target"])

    def state(self) -> State:
        return {
            "networks": self._networks(),
            "steps_done": self.steps_done,
            "trainings": self.trainings,
            "history": self.history,
            "descent": self.descent.state() if self.descent is not None else self.interrupted,
        }

    def load_state(self, state: State) -> None:
        self._load_networks(state["networks"])
        self.steps_done, self.trainings = state["steps_done"], state["trainings"]
        self.history, self.interrupted = state["history"], state["descent"]


@functools.cache
def code() -> str:
    """A digest of the code that these weights depend on: after a change to it nothing old is taken from the cache."""
    here = Path(__file__).parents[1]
    modules = ("learn/optimiser", "learn/batches", "methods/base", "methods/reference", "device", "seeding")
    files = [file for folder in ("vision", "losses") for file in sorted((here / folder).glob("*.py"))]
    files += [here / f"{module}.py" for module in modules]
    return hashlib.blake2b(b"".join(file.read_bytes() for file in files), digest_size=8).hexdigest()
