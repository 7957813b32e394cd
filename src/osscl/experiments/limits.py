"""The limitations that the paper states, as runs: imbalanced classes, little unlabelled data, a very small memory."""

from collections.abc import Mapping
from dataclasses import replace

from osscl.experiments.cells import Cell, Table, with_plus
from osscl.experiments.published import ABLATION
from osscl.stream.scenario import ScenarioSpec

BESIDE = "Co2L, which learns from labels alone, stands beside URSL; the paper states these limits without numbers"


def limit(
    id: str, title: str, rows: Mapping[str, ScenarioSpec], notes: tuple[str, ...], of_paper: tuple[str, ...] = ()
) -> Table:
    """URSL and Co2L, a row for each scenario, from the paper's own to the worst."""
    usual = ABLATION.related, ABLATION.unrelated  # Co2L looks at none: one run serves rows that differ in them
    cells = []
    for row, scenario in rows.items():
        cells.append(Cell(row, "co2l", replace(scenario, related=usual[0], unrelated=usual[1]), "co2l"))
        cells.append(Cell(row, "ursl", scenario, "ursl"))
    return Table(id, title, with_plus(cells), (*notes, BESIDE), of_paper)


def _little(related: int) -> ScenarioSpec:
    return replace(ABLATION, related=related, unrelated=related)


L1 = limit("L1", "imbalanced classes", {
    "balanced": ABLATION,
    "10-to-1": replace(ABLATION, imbalance=10.0),
    "30-to-1": replace(ABLATION, imbalance=30.0),
}, (
    "training images of the largest class over those of the smallest, an exponential tail in random class order",
    "where labels are a count and not a share, as on the demo's data, the unlabelled images alone are imbalanced",
))  # fmt: skip

L2 = limit("L2", "little unlabelled data", {
    "9000-9000": _little(9000),
    "900-900": _little(900),
    "180-180": _little(180),
}, ("related and unrelated images a step; Co2L uses neither",))  # fmt: skip

L3 = limit("L3", "a very small memory", {
    "memory-500": ABLATION,
    "memory-200": replace(ABLATION, memory=200),
    "memory-100": replace(ABLATION, memory=100),
}, (), ("100 is one image a class at the end",))  # fmt: skip

LIMITS: Mapping[str, Table] = {"L1": L1, "L2": L2, "L3": L3}
