"""The reference network UR_t: self-supervised on U_t, shared by runs that would train the same one."""

import contextlib
import functools
import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from osscl.config import (
    added_later,
    content_id,
    from_plain,
    plain,
    require,
    require_declared,
    require_not_negative,
    require_positive,
)
from osscl.device import device_name
from osscl.errors import UserError
from osscl.learn.optimiser import OptimiserConfig
from osscl.losses.contrastive import nt_xent
from osscl.losses.distillation import byol_regression
from osscl.methods.base import PhaseReport, Setting, State
from osscl.methods.phases import Phase, Phases
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
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    ema: float = 0.99  # BYOL: decay of the target network, a moving average of this one
    ema_end: float | None = added_later(None, legacy=None)  # BYOL: its last value, on a cosine; null: constant
    predictor: int = 512  # BYOL: hidden width
    pretrained: bool = False  # trained once on the whole pools before the first step, then frozen (Table 16)
    min_updates: int = added_later(0, legacy=0)  # per step, scaled by the schedule's share

    def __post_init__(self) -> None:
        require_declared(self)
        require_positive(self, "tau", "epochs_first", "epochs_later")
        require(self.batch > 1, self, "batch", "at least 2")
        require_not_negative(self, "min_updates")
        require(0 <= self.ema < 1, self, "ema", "in [0, 1)")
        rises = self.ema_end is None or self.ema <= self.ema_end <= 1
        require(rises, self, "ema_end", "between ema and 1, or null")
        require(0 < self.predictor <= WIDEST, self, "predictor", f"in [1, {WIDEST}]")


def ema_at(config: ReferenceConfig, progress: float) -> float:
    """BYOL's momentum after a fraction `progress` of a phase."""
    if config.ema_end is None:
        return config.ema
    return config.ema_end - (config.ema_end - config.ema) * (1 + math.cos(math.pi * progress)) / 2


class Reference:
    """UR_t over time."""

    def __init__(self, config: ReferenceConfig, setting: Setting, phases: Phases) -> None:
        self.config, self.setting, self.phases, self.runtime = config, setting, phases, phases.runtime
        rng = seeded(setting.seed, "init", "reference")
        self.encoder = new_encoder(config.net, setting.images, rng, self.runtime.device, self.runtime.precision)
        self.predictor: nn.Module | None = None
        if config.ssl == "byol":
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seeded(setting.seed, "init", "predictor").initial_seed())
                self.predictor = projector(config.net.dim, config.predictor, config.net.dim, norm=True)
            self.predictor = self.predictor.to(self.runtime.device)
            self.target = frozen_copy(self.encoder, batch_statistics=True)
            # How far an update moves the target to the encoder; on the device, so that a captured update can change it.
            self.target_moves = torch.tensor(1 - config.ema, device=self.runtime.device)
        self.history: dict[str, str] = {}  # by step at which it learned: digest of all t and U_t up to that step

    @property
    def trained(self) -> bool:
        return bool(self.history)

    def learn(self, unlabeled: Tensor, t: int) -> None:
        """Update theta_t on U_t (Algorithm 1, line 4), or load the weights of a run that did the same."""
        if self.config.pretrained:
            assert self.setting.whole_pool is not None
            unlabeled = self.setting.whole_pool if t == 0 else unlabeled[:0]
        if len(unlabeled) < 2 or "reference" in self.phases.finished:
            return
        first = self.history.keys() <= {str(t)}
        key = self.cache_key(self._record_digest(unlabeled, t))
        if not self.phases.has_begun("reference") and (cached := self._load_cached(key)) is not None:
            self.phases.add_cached(cached)
            return
        # Not in the paper: an incomplete last batch is dropped, as in SimCLR's loaders.
        rows = self.phases.shuffled("reference", len(unlabeled), self.config.batch, drop_last=True)
        epochs = self.config.epochs_first if first else self.config.epochs_later
        nets = [self.encoder] if self.predictor is None else [self.encoder, self.predictor]
        phase = self.phases.train(
            "reference", nets, self.config.optimiser, epochs, [(rows, 2)], min_updates=self.config.min_updates
        )
        update = phase.capture(self._byol(unlabeled, phase) if self.predictor else self._simclr(unlabeled, phase))
        for batch in phase.batches():
            if self.predictor is not None:
                self.target_moves.fill_(1 - ema_at(self.config, phase.progress))
            phase.report(update(*batch))
        self._save_cached(key, unlabeled[:8])

    def _simclr(self, unlabeled: Tensor, phase: Phase) -> Callable[..., Tensor]:
        def update(rows: Tensor, u: Tensor) -> Tensor:
            x = two_views(unlabeled[rows], u, self.setting.augmentation)
            return phase.step(nt_xent(self.encoder(x), self.config.tau))

        return update

    def _byol(self, unlabeled: Tensor, phase: Phase) -> Callable[..., Tensor]:
        predict_target = self.predictor
        assert predict_target is not None

        def update(rows: Tensor, u: Tensor) -> Tensor:
            x = two_views(unlabeled[rows], u, self.setting.augmentation)
            # Deviation: BYOL's predictor reads the projection itself, ours the projection on the unit sphere. On a
            # small network this changed nothing (docs/LOG.md).
            predicted = predict_target(self.encoder(x))
            with torch.no_grad():
                partner = self.target(x).roll(len(rows), 0)  # the other view of each image
            loss = phase.step(byol_regression(predicted, partner))
            with torch.no_grad():
                for old, new in zip(self.target.parameters(), self.encoder.parameters(), strict=True):
                    old.lerp_(new, self.target_moves)
            return loss

        return update

    def batch_rows(self, unlabeled: Tensor) -> int:
        """Images per update on U_t, or on the pool that a pretrained reference learned from."""
        pool = self.setting.whole_pool if self.config.pretrained else unlabeled
        assert pool is not None
        return min(self.config.batch, len(pool))

    # ----- sharing with other runs

    def _record_digest(self, unlabeled: Tensor, t: int) -> str:
        """Digest of every U_t learned from so far, this one included; entered into the history."""
        before = next((digest for step, digest in reversed(self.history.items()) if step != str(t)), "")
        content = hashlib.blake2b(f"{before}, step {t}".encode(), digest_size=16)
        content.update(unlabeled.cpu().numpy().tobytes())
        self.history[str(t)] = content.hexdigest()
        return content.hexdigest()

    def cache_key(self, digest: str) -> str:
        """Id of everything that the weights depend on."""
        sub_spec = self.config, self.setting.augmentation, self.setting.images
        training = (
            self.setting.schedule.share,
            self.setting.schedule.max_updates,
            self.setting.seed,
            digest,
            code_digest(),
        )
        machine = str(self.runtime.precision), self.runtime.device.type, torch.__version__
        return content_id([*sub_spec, *training, *machine], 24)

    def _load_cached(self, key: str) -> PhaseReport | None:
        """Load the networks of a cache entry; an entry that cannot be used only costs time."""
        found = read_cached_state(self.runtime.reference_cache / key) if self.runtime.reference_cache else None
        if found is None or not self._fits(found.get("networks")):
            return None
        try:
            cost = from_plain(PhaseReport, found["cost"])
            elsewhere = found["device"] != device_name(self.runtime.device)  # its seconds do not compare with ours
            moments = found["moments"]
        except (UserError, KeyError):
            return None
        self._load_networks(found["networks"])
        if moments is not None:
            self.phases.moments["reference"] = moments
        return replace(cost, cached=True, shared=cost.shared or elsewhere)

    def _fits(self, networks: object) -> bool:
        """Whether saved networks have the names and shapes of these."""
        return shapes_of(networks) == shapes_of(self._networks())

    def _save_cached(self, key: str, some: Tensor) -> None:
        """Share the network, unless its output on some images shows that it has diverged."""
        if self.runtime.reference_cache is None or not bool(in_chunks(self.encoder, some).isfinite().all()):
            return
        cost = plain(self.phases.log.reports["reference"])
        moments = self.phases.moments.get("reference")
        made = {"cost": cost, "device": device_name(self.runtime.device), "written": time.time()}
        with contextlib.suppress(OSError):  # an unwritable cache only costs time
            write_state(self.runtime.reference_cache / key, {"networks": self._networks(), "moments": moments, **made})

    # ----- state

    def _networks(self) -> State:
        networks: State = {"encoder": self.encoder.state_dict()}
        if self.predictor is not None:
            networks |= {"predictor": self.predictor.state_dict(), "target": self.target.state_dict()}
        return networks

    def _load_networks(self, networks: State) -> None:
        self.encoder.load_state_dict(networks["encoder"])
        if self.predictor is not None:
            self.predictor.load_state_dict(networks["predictor"])
            self.target.load_state_dict(networks["target"])

    def state(self) -> State:
        return {"networks": self._networks(), "history": dict(self.history)}

    def load_state(self, state: State) -> None:
        self._load_networks(state["networks"])
        self.history = dict(state["history"])


def shapes_of(state: object) -> object:
    """The names and shapes in a nested state."""
    if isinstance(state, Mapping):
        return {name: shapes_of(value) for name, value in state.items()}
    return tuple(state.shape) if isinstance(state, Tensor) else None


@functools.cache
def code_digest() -> str:
    """Digest of the code that the weights depend on: after a change to it, cached networks are not used."""
    here = Path(__file__).parents[1]
    files = [here / f"{name}.py" for name in ("learn/optimiser", "learn/batches", "device", "seeding")]
    files += [here / "methods" / f"{module}.py" for module in ("base", "phases", "reference")]
    files += [file for folder in ("vision", "losses") for file in sorted((here / folder).glob("*.py"))]
    return hashlib.blake2b(b"".join(file.read_bytes() for file in files), digest_size=8).hexdigest()
