"""The tour on embedded data: handwritten digits among letters, learned from labels alone and with URSL."""

from dataclasses import replace

from osscl.experiments.spec import EXPERIMENTS, RunSpec
from osscl.learn.descent import OptimiserConfig
from osscl.learn.heads import HeadConfig
from osscl.methods.learner import LearnerConfig
from osscl.methods.method import DEMO, SMOKE, Schedule
from osscl.methods.reference import ReferenceConfig
from osscl.methods.segregation import GateConfig
from osscl.methods.ursl import UrslConfig
from osscl.vision.encoder import EncoderConfig

SMALL = EncoderConfig("small-wide", dim=128)
QUICK = OptimiserConfig("adam", rate=2e-3, min_rate=1e-5, decay=1e-6)

# Thresholds by std: variances of these scores are so small that mean - 4 var would shut most known digits out.
DEMO_URSL = UrslConfig(
    reference=ReferenceConfig(net=SMALL, tau=0.5, epochs_first=30, epochs_later=10, batch=128, optimiser=QUICK),
    gate=GateConfig(eta=(-2.0, -1.0), spread="std"),
    learner=LearnerConfig(net=SMALL, epochs=1, min_updates=200, batch=64, optimiser=QUICK),
    head=HeadConfig(solver="ridge", penalty=1.0),
)

# The same network, memory and number of updates, without a reference and without unlabelled images.
DEMO_LABELS_ONLY = replace(
    DEMO_URSL, gate=replace(DEMO_URSL.gate, pseudo="none"), learner=replace(DEMO_URSL.learner, lam=0.0)
)


def demo_specs(seed: int, smallest: bool = False) -> dict[str, RunSpec]:
    """Both runs of the demo, on one stream."""
    schedule: Schedule = SMOKE if smallest else DEMO
    scenario = EXPERIMENTS["digits"]
    return {
        "labels only": RunSpec(scenario, DEMO_LABELS_ONLY, schedule, seed),
        "URSL": RunSpec(scenario, DEMO_URSL, schedule, seed),
    }
