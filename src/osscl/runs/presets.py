"""Configurations that need no GPU: for checking that everything runs, and for learning the digits."""

from dataclasses import replace
from typing import Any

from osscl.learn.linear_head import HeadConfig
from osscl.learn.optimiser import OptimiserConfig
from osscl.methods import method_name
from osscl.methods.base import DEMO, Schedule
from osscl.methods.gate import GateConfig
from osscl.methods.reference import ReferenceConfig
from osscl.methods.ursl import LearnerConfig, UrslConfig
from osscl.vision.encoder import EncoderConfig

SMALL = EncoderConfig("small-wide", dim=128)
QUICK = OptimiserConfig("adam", rate=2e-3, min_rate=1e-5, decay=1e-6)

# Thresholds by std: the variance of these scores is so small that mean - 4 var would reject most known digits.
DEMO_URSL = UrslConfig(
    reference=ReferenceConfig(net=SMALL, tau=0.5, epochs_first=30, epochs_later=10, batch=128, optimiser=QUICK),
    gate=GateConfig(eta=(-2.0, -1.0), spread="std"),
    learner=LearnerConfig(net=SMALL, epochs=1, min_updates=200, batch=64, optimiser=QUICK),
    head=HeadConfig(solver="ridge", penalty=1.0),
)


def sized(config: Any, schedule: Schedule) -> Any:
    """`config` resized as a schedule requires; configs of foreign methods stay as they are."""
    if method_name(config) is None:
        return config
    if schedule == DEMO:
        return demo_sized(config)
    return on_small_net(config) if schedule.small_net else config


def on_small_net(config: Any) -> Any:
    """`config` with small networks, for schedules that only check that everything runs."""
    if hasattr(config, "backbone"):
        return replace(config, backbone="small")
    encoders = {name: getattr(config, name) for name in ("reference", "learner") if hasattr(config, name)}
    small = {
        name: replace(part, net=replace(part.net, backbone="small", hidden=None, dim=64))
        for name, part in encoders.items()
    }
    return replace(config, **small)


def demo_sized(config: Any) -> Any:
    """`config` with networks, batches, epochs and optimisers that suit digits."""
    if hasattr(config, "backbone"):
        # With a handful of labels an epoch is one or two updates: methods name the epochs that they need.
        return replace(config, backbone=SMALL.backbone, **getattr(config, "demo_changes", {}))
    if not hasattr(config, "reference"):
        return config
    like = DEMO_URSL.reference
    reference = replace(
        config.reference, net=like.net, tau=like.tau, epochs_first=like.epochs_first, epochs_later=like.epochs_later,
        batch=like.batch, optimiser=like.optimiser,
    )  # fmt: skip
    head = replace(config.head, penalty=DEMO_URSL.head.penalty)
    changes: dict[str, Any] = {"reference": reference, "head": head}
    if hasattr(config, "learner"):
        small = DEMO_URSL.learner
        changes["learner"] = replace(
            config.learner, net=small.net, epochs=small.epochs, min_updates=small.min_updates, batch=small.batch,
            optimiser=small.optimiser,
        )  # fmt: skip
    if hasattr(config, "epochs_first"):
        changes["epochs_first"] = None  # the floor of updates is the same at every step
    if isinstance(config, UrslConfig):
        changes["gate"] = replace(config.gate, eta=DEMO_URSL.gate.eta, spread=DEMO_URSL.gate.spread)
    return replace(config, **changes)
