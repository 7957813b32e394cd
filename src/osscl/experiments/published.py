"""The paper's numbers for its main cells: final accuracy in %, mean and std over 3 runs (Tables 1-3, URSL)."""

from osscl.stream.scenario import ScenarioSpec

Cell = tuple[str, tuple[str, ...], float | None, int]  # main set, peripheral sets, P, |M|

URSL: dict[Cell, tuple[float, float]] = {
    ("cifar10", ("cifar100",), 0.01, 50): (58.2, 0.8),
    ("cifar10", ("tinyimagenet",), 0.01, 50): (51.0, 11.9),
    ("cifar10", ("cifar100",), 0.1, 200): (72.8, 0.9),
    ("cifar10", ("tinyimagenet",), 0.1, 200): (72.8, 0.6),
    ("cifar100", ("cifar10",), 0.05, 500): (30.4, 0.2),
    ("cifar100", ("tinyimagenet",), 0.05, 500): (30.5, 0.5),
    ("cifar100", ("cifar10",), 0.1, 1000): (37.5, 0.4),
    ("cifar100", ("tinyimagenet",), 0.1, 1000): (37.2, 0.3),
    ("tinyimagenet", ("cifar10",), 0.05, 1000): (17.2, 0.1),
    ("tinyimagenet", ("cifar100",), 0.05, 1000): (17.5, 0.2),
    ("tinyimagenet", ("cifar10",), 0.1, 2000): (21.9, 0.2),
    ("tinyimagenet", ("cifar100",), 0.1, 2000): (20.8, 1.0),
}


def published(scenario: ScenarioSpec) -> tuple[float, float] | None:
    """URSL's mean and std in the paper for this scenario; None where the paper has no such cell."""
    if scenario != ScenarioSpec(
        scenario.main, scenario.peripheral, labeled_fraction=scenario.labeled_fraction, memory=scenario.memory,
        labels_per_class=scenario.labels_per_class,
    ):  # fmt: skip
        return None  # some other field is not the paper's
    return URSL.get((scenario.main, scenario.peripheral, scenario.labeled_fraction, scenario.memory))
