"""Every method, by the type of its config; every named configuration."""

from dataclasses import replace
from typing import Any

from osscl.learn.descent import OptimiserConfig
from osscl.learn.heads import HeadConfig
from osscl.methods.learner import LearnerConfig
from osscl.methods.reference import ReferenceConfig
from osscl.methods.segregation import GateConfig
from osscl.methods.ursl import Ursl, UrslConfig
from osscl.vision.encoder import EncoderConfig

METHODS: dict[type, Any] = {UrslConfig: Ursl}
METHOD_TYPES: dict[str, type] = {"ursl": UrslConfig}  # how a config's type is written in a file

# The paper's table of hyperparameters. It names a minimum rate but no schedule; Co2L, its ancestor, has a cosine.
AS_PRINTED_OPTIMISER = OptimiserConfig("adam", rate=1e-2, min_rate=1e-4, decay=1e-4, rate_per="epoch")
AS_PRINTED = UrslConfig(
    reference=ReferenceConfig(optimiser=AS_PRINTED_OPTIMISER),
    learner=LearnerConfig(optimiser=AS_PRINTED_OPTIMISER),
)

# The paper's algorithm with optimisers and a head that suit it.
URSL = UrslConfig(
    reference=ReferenceConfig(optimiser=OptimiserConfig("adamw", rate=3e-3, min_rate=1e-5, decay=0.2, warmup=0.05)),
    learner=LearnerConfig(optimiser=OptimiserConfig("adam", rate=1e-3, min_rate=1e-5, decay=1e-6)),
    head=HeadConfig(solver="ridge"),
)

# Ours: the learner starts as a copy of the reference and listens to both teachers more.
URSL_PLUS = replace(URSL, learner=replace(URSL.learner, start="reference", gamma=1.0, lam=1.0))

# L_sup and L_TD alone: no reference, no unlabelled image. Without T-hat an epoch is shorter; the floor gives this
# learner as many updates as URSL's gets on CIFAR-100.
LABELS_ONLY = replace(URSL, gate=GateConfig(pseudo="none"), learner=replace(URSL.learner, lam=0.0, min_updates=1200))

CONFIGURATIONS: dict[str, Any] = {
    "ursl": URSL,
    "ursl-as-printed": AS_PRINTED,
    "ursl-plus": URSL_PLUS,
    "labels-only": LABELS_ONLY,
}


def on_small_net(config: Any) -> Any:
    """`config` with the small network in place of each of its own, for schedules that only try the plumbing."""
    small = EncoderConfig("small", dim=64)
    return replace(config, reference=replace(config.reference, net=small), learner=replace(config.learner, net=small))
