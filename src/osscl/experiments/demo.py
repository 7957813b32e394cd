"""The tour on embedded data: handwritten digits among letters, learned from labels alone, with URSL and with ours."""

from osscl.experiments.sizes import demo_sized
from osscl.experiments.spec import EXPERIMENTS, RunSpec
from osscl.methods import LABELS_ONLY, URSL, URSL_PLUS
from osscl.methods.method import DEMO, SMOKE, Schedule


def demo_specs(seed: int, smallest: bool = False) -> dict[str, RunSpec]:
    """The runs of the demo, on one stream: the same network, memory and number of updates."""
    schedule: Schedule = SMOKE if smallest else DEMO
    scenario = EXPERIMENTS["digits"]
    return {
        "labels only": RunSpec(scenario, demo_sized(LABELS_ONLY), schedule, seed),
        "URSL": RunSpec(scenario, demo_sized(URSL), schedule, seed),
        "URSL-plus": RunSpec(scenario, demo_sized(URSL_PLUS), schedule, seed),
    }
