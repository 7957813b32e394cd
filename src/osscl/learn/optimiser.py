"""The optimiser of one training phase and its learning-rate schedule."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from osscl.config import require, require_declared, require_not_negative, require_positive

CO2L_WARMUP = 0.01  # the rate at which the warm-up of Co2L's code begins


@dataclass(frozen=True)
class OptimiserConfig:
    """Optimiser and learning-rate schedule."""

    kind: Literal["adam", "adamw", "sgd"] = "adam"  # adamw: no decay on biases and norms
    rate: float = 1e-3
    min_rate: float = 1e-4  # where the cosine ends
    decay: float = 1e-4  # L2 in adam and sgd, decoupled in adamw
    warmup: float = 0.0  # share of the phase over which the rate rises from 0
    momentum: float = 0.9  # of sgd
    rate_per: Literal["epoch", "update", "co2l"] = "update"  # how often the rate changes; co2l: as in Co2L's code
    fresh: bool = True  # a new optimiser at every step of the stream, or moments kept
    nesterov: bool = True  # of sgd
    milestones: tuple[float, ...] = ()  # shares of the phase after which the rate is divided by ten

    def __post_init__(self) -> None:
        require_declared(self)
        require_positive(self, "rate")
        require(0 <= self.min_rate <= self.rate, self, "min_rate", "between 0 and the rate")
        require_not_negative(self, "decay")
        require(0 <= self.warmup < 1, self, "warmup", "a share in [0, 1)")
        require(0 <= self.momentum < 1, self, "momentum", "in [0, 1)")
        require(all(0 < share < 1 for share in self.milestones), self, "milestones", "shares in (0, 1)")
        require(not self.milestones or self.warmup == 0, self, "warmup", "0 with milestones")


def rate_at(config: OptimiserConfig, update: int, updates: int, per_epoch: int = 1) -> float:
    """Linear warm-up, then a cosine from `rate` to `min_rate`; with milestones, a step function."""
    if config.rate_per == "co2l":
        return _rate_of_co2l(config, update, updates, per_epoch)
    if config.rate_per == "epoch":
        update = update // per_epoch * per_epoch
    if config.milestones:
        return config.rate * 0.1 ** sum(update >= share * updates for share in config.milestones)
    warm = config.warmup * updates
    if update < warm:
        return config.rate * (update + 1) / (warm + 1)
    return _cosine(config, (update - warm) / max(1.0, updates - warm))


def _cosine(config: OptimiserConfig, progress: float) -> float:
    return config.min_rate + (config.rate - config.min_rate) * (1 + math.cos(math.pi * progress)) / 2


def _rate_of_co2l(config: OptimiserConfig, update: int, updates: int, per_epoch: int) -> float:
    """A warm-up by update that meets the cosine, which runs over the whole phase, by epoch; epochs count from 1.

    Deviation: a longer first phase warms up to its own cosine, not to that of the shorter ones after it.
    """
    warm = config.warmup * updates
    if update < warm:
        return CO2L_WARMUP + (_cosine(config, config.warmup) - CO2L_WARMUP) * update / warm
    return _cosine(config, (update // per_epoch + 1) * per_epoch / updates)


class Descent:
    """The optimiser of one phase and its progress, `done` of `updates`."""

    def __init__(self, nets: Iterable[nn.Module], config: OptimiserConfig, updates: int, per_epoch: int = 1) -> None:
        self.config, self.updates, self.per_epoch, self.done = config, updates, per_epoch, 0
        self.parameters = [p for net in nets for p in net.parameters()]
        self.on_cuda = self.parameters[0].is_cuda
        self.optimiser = self._optimiser()

    def _optimiser(self) -> torch.optim.Optimizer:
        # A rate on the device can change between replays of a captured update.
        rate: Any = (
            torch.tensor(self.config.rate, device=self.parameters[0].device) if self.on_cuda else self.config.rate
        )
        decay = self.config.decay
        if self.config.kind == "sgd":
            momentum = self.config.momentum
            nesterov = self.config.nesterov and momentum > 0
            return torch.optim.SGD(self.parameters, rate, momentum, weight_decay=decay, nesterov=nesterov, fused=True)
        if self.config.kind == "adam":
            return torch.optim.Adam(self.parameters, rate, weight_decay=decay, fused=True, capturable=self.on_cuda)
        groups = [
            {"params": [p for p in self.parameters if p.ndim > 1], "weight_decay": decay},
            {"params": [p for p in self.parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, rate, fused=True, capturable=self.on_cuda)

    def set_rate(self) -> None:
        """Set the learning rate of the next update; called outside the captured graph."""
        rate = rate_at(self.config, self.done, self.updates, self.per_epoch)
        for group in self.optimiser.param_groups:
            if self.on_cuda:
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def step(self, loss: Tensor, clip_norm: float | None = None) -> None:
        """Update the weights, clipping the gradient to norm `clip_norm` where given."""
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, clip_norm)
        self.optimiser.step()

    def state(self) -> dict[str, Any]:
        return {"done": self.done, "moments": self.moments()}

    def moments(self) -> dict[str, Any]:
        """The optimiser's state of each parameter."""
        return {str(i): dict(self.optimiser.state.get(p, {})) for i, p in enumerate(self.parameters)}

    def load_state(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
        self.load_moments(state["moments"])

    def load_moments(self, moments: dict[str, Any]) -> None:
        for i, p in enumerate(self.parameters):
            self.optimiser.state[p] = {
                key: _like_parameter(value, p, scalar_on_device=self.on_cuda)
                for key, value in moments.get(str(i), {}).items()
            }


def _like_parameter(value: Tensor, p: Tensor, *, scalar_on_device: bool) -> Tensor:
    """A saved moment in its parameter's layout; Adam's step count stays on the CPU unless captured."""
    if value.shape == p.shape:
        return torch.empty_like(p).copy_(value)
    if value.dim():  # a fused optimiser would write beyond the end of it
        raise ValueError(f"the saved optimiser has {tuple(value.shape)} for a parameter of shape {tuple(p.shape)}")
    return value.to(p.device) if scalar_on_device else value.clone()
