"""Every method by name, and every named configuration."""

from dataclasses import replace
from typing import Any

from osscl.errors import SpecError
from osscl.learn.linear_head import HeadConfig
from osscl.learn.optimiser import OptimiserConfig
from osscl.methods.co2l import Co2l, Co2lConfig
from osscl.methods.dm import Dm
from osscl.methods.gate import GateConfig
from osscl.methods.gd import Gd
from osscl.methods.gem import Gem, GemConfig
from osscl.methods.icarl import Icarl
from osscl.methods.reference import ReferenceConfig
from osscl.methods.ursl import LearnerConfig, Ursl, UrslConfig
from osscl.methods.ursl_plus import UrslPlus, UrslPlusConfig
from osscl.methods.yardsticks import ReferenceOnly, ReferenceOnlyConfig, Supervised
from osscl.vision.encoder import EncoderConfig

# A new method is one line here: its name, and its class with the class of its configuration as `Config`.
METHODS: dict[str, Any] = {
    "ursl": Ursl,
    "ursl-plus": UrslPlus,
    "co2l": Co2l,
    "gd": Gd,
    "dm": Dm,
    "gem": Gem,
    "icarl": Icarl,
    "reference-only": ReferenceOnly,
    "supervised": Supervised,
}


def method_name(config: Any) -> str | None:
    """The name of the method that a config belongs to; None for methods of other packages."""
    return next((name for name, method in METHODS.items() if method.Config is type(config)), None)


def method_class(config: Any) -> Any:
    """The method that a config of this package belongs to."""
    name = method_name(config)
    if name is None:
        raise SpecError(f"no method of this package has the config {type(config).__qualname__}")
    return METHODS[name]


# The paper's table of hyperparameters. It gives a minimum rate but no schedule and no decay; Co2L, its ancestor,
# has a cosine and this decay.
AS_PRINTED_OPTIMISER = OptimiserConfig("adam", rate=1e-2, min_rate=1e-4, decay=1e-4, rate_per="epoch")
AS_PRINTED = UrslConfig(
    reference=ReferenceConfig(optimiser=AS_PRINTED_OPTIMISER),
    learner=LearnerConfig(optimiser=AS_PRINTED_OPTIMISER),
)

# The paper's algorithm. Deviation: the optimisers, the projector (whose shape the paper does not give) and the head are
# ours; docs/methods/ursl.md says what each is worth.
NET = EncoderConfig(hidden=2048, projector_norm=True)
URSL = UrslConfig(
    reference=ReferenceConfig(
        net=NET, optimiser=OptimiserConfig("adamw", rate=3e-3, min_rate=1e-5, decay=0.2, warmup=0.05)
    ),
    learner=LearnerConfig(net=NET, optimiser=OptimiserConfig("adam", rate=1e-3, min_rate=1e-5, decay=1e-6)),
    head=HeadConfig(solver="ridge"),
)

# Ours: a quarter of the learner's epochs, because it starts as a copy of the reference. Images and statistics together
# fit into the bytes of |M| images, except where an image is smaller than a class mean: there, only without a limit.
URSL_PLUS_UNLIMITED = UrslPlusConfig(
    URSL.reference, URSL.gate, replace(URSL.learner, epochs=50), URSL.memory, URSL.head
)  # fmt: skip
URSL_PLUS = replace(URSL_PLUS_UNLIMITED, statistics_share=0.6)

# L_sup and L_TD only: no reference, no unlabelled image. Without T-hat an epoch is shorter; `min_updates` gives this
# learner as many updates as URSL's gets on CIFAR-100.
LABELS_ONLY = replace(URSL, gate=GateConfig(pseudo="none"), learner=replace(URSL.learner, lam=0.0, min_updates=1200))

# As in its authors' code: SGD with warm-up, SupCon's factor tau / 0.07, teachers with batch statistics. The URSL paper
# ran 200 epochs at every step.
CO2L = Co2lConfig(
    LearnerConfig(
        tau=0.5, gamma=1.0, lam=0.0, teacher_statistics="batch",
        optimiser=OptimiserConfig(
            "sgd", rate=0.5, min_rate=5e-4, decay=1e-4, warmup=0.05, rate_per="epoch", fresh=False, nesterov=False
        ),
    ),
    base_temperature=0.07,
    head=URSL.head,
)  # fmt: skip

# Co2L's code in full: a longer first step, its rates (warm-up over ten epochs of every step), its head. Run it with
# scenario.class_order=natural for its order of classes.
CO2L_AUTHORS = replace(
    CO2L,
    learner=replace(CO2L.learner, epochs=100, optimiser=replace(CO2L.learner.optimiser, warmup=0.1, rate_per="co2l")),
    epochs_first=500,
    head=HeadConfig(solver="sgd", rate=1.0),
)

# The paper gives both variants URSL's hyperparameters; ours use those of `ursl`, so that no competitor is held back by
# its optimiser.
CO2L_J = Co2lConfig(replace(URSL.learner, lam=1.0), unlabeled="joint", head=URSL.head)
CO2L_P = Co2lConfig(replace(URSL.learner, lam=0.0), unlabeled="pretrain", reference=URSL.reference, head=URSL.head)

# Every method with its default configuration, and the configurations that have names of their own.
CONFIGURATIONS: dict[str, Any] = {
    **{name: method.Config() for name, method in METHODS.items()},
    "ursl": URSL,
    "ursl-as-printed": AS_PRINTED,
    "ursl-plus": URSL_PLUS,
    "ursl-plus-unlimited": URSL_PLUS_UNLIMITED,
    "labels-only": LABELS_ONLY,
    "co2l": CO2L,
    "co2l-authors": CO2L_AUTHORS,
    "co2l-j": CO2L_J,
    "co2l-p": CO2L_P,
    "gem-joint": GemConfig(memory_statistics="joint"),
    "reference-only": ReferenceOnlyConfig(URSL.reference, URSL.head),
}
