"""Every method, by the type of its config; every named configuration."""

from dataclasses import replace
from typing import Any

from osscl.learn.linear_head import HeadConfig
from osscl.learn.optimiser import OptimiserConfig
from osscl.methods.co2l import Co2l, Co2lConfig
from osscl.methods.dm import Dm, DmConfig
from osscl.methods.gate import GateConfig
from osscl.methods.gd import Gd, GdConfig
from osscl.methods.gem import Gem, GemConfig
from osscl.methods.icarl import Icarl, IcarlConfig
from osscl.methods.learner import LearnerConfig
from osscl.methods.reference import ReferenceConfig
from osscl.methods.ursl import Ursl, UrslConfig
from osscl.vision.encoder import EncoderConfig

METHODS: dict[type, Any] = {
    UrslConfig: Ursl, Co2lConfig: Co2l, GdConfig: Gd, DmConfig: Dm, GemConfig: Gem, IcarlConfig: Icarl,
}  # fmt: skip
METHOD_TYPES: dict[str, type] = {  # how a config's type is written in a file
    "ursl": UrslConfig, "co2l": Co2lConfig, "gd": GdConfig, "dm": DmConfig, "gem": GemConfig, "icarl": IcarlConfig,
}  # fmt: skip

# The paper's table of hyperparameters. It names a minimum rate but neither schedule nor decay; Co2L, its ancestor,
# has a cosine and this decay.
AS_PRINTED_OPTIMISER = OptimiserConfig("adam", rate=1e-2, min_rate=1e-4, decay=1e-4, rate_per="epoch")
AS_PRINTED = UrslConfig(
    reference=ReferenceConfig(optimiser=AS_PRINTED_OPTIMISER),
    learner=LearnerConfig(optimiser=AS_PRINTED_OPTIMISER),
)

# The paper's algorithm with optimisers, a projector (whose shape the paper does not give) and a head that suit it.
NET = EncoderConfig(hidden=2048, projector_norm=True)
URSL = UrslConfig(
    reference=ReferenceConfig(
        net=NET, optimiser=OptimiserConfig("adamw", rate=3e-3, min_rate=1e-5, decay=0.2, warmup=0.05)
    ),
    learner=LearnerConfig(net=NET, optimiser=OptimiserConfig("adam", rate=1e-3, min_rate=1e-5, decay=1e-6)),
    head=HeadConfig(solver="ridge"),
)

# Ours: the learner starts as a copy of the reference and is trained for a quarter of the epochs; half of the prediction
# is the reference's; both heads also learn from what the gate lets in, and from what is carried along of labels whose
# images have left M.
URSL_PLUS = replace(
    URSL,
    learner=replace(URSL.learner, start="reference", epochs=50),
    head=replace(URSL.head, reference=0.5, pseudo="past", carried=True),
)

# L_sup and L_TD alone: no reference, no unlabelled image. Without T-hat an epoch is shorter; the floor gives this
# learner as many updates as URSL's gets on CIFAR-100.
LABELS_ONLY = replace(URSL, gate=GateConfig(pseudo="none"), learner=replace(URSL.learner, lam=0.0, min_updates=1200))

# As its authors' code has it: SGD with warm-up, SupCon's factor tau / 0.07, teachers with batch statistics. The URSL
# paper ran 200 epochs at every step.
CO2L = Co2lConfig(
    learner=LearnerConfig(
        tau=0.5, base_temperature=0.07, gamma=1.0, lam=0.0, teacher_statistics="batch",
        optimiser=OptimiserConfig(
            "sgd", rate=0.5, min_rate=5e-4, decay=1e-4, warmup=0.05, rate_per="epoch", fresh=False, nesterov=False
        ),
    ),
    head=URSL.head,
)  # fmt: skip

# The paper gives both URSL's hyperparameters; ours are those of `ursl`: no competitor loses by its optimiser.
CO2L_J = Co2lConfig(replace(URSL.learner, lam=1.0), "joint", head=URSL.head)
CO2L_P = Co2lConfig(replace(URSL.learner, lam=0.0), "pretrain", URSL.reference, URSL.head)

CONFIGURATIONS: dict[str, Any] = {
    "ursl": URSL,
    "ursl-as-printed": AS_PRINTED,
    "ursl-plus": URSL_PLUS,
    "labels-only": LABELS_ONLY,
    "co2l": CO2L,
    "co2l-j": CO2L_J,
    "co2l-p": CO2L_P,
    "gd": GdConfig(),
    "dm": DmConfig(),
    "gem": GemConfig(),
    "icarl": IcarlConfig(),
}
