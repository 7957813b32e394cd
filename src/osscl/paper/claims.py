"""The paper's comparative claims as statements that records confirm or refute, pair by pair, on identical streams."""

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Literal

from osscl.methods.base import DEMO, SMOKE, Schedule
from osscl.paper.cells import Cell, Measure
from osscl.paper.plan import Records, told_by
from osscl.paper.score import ROUNDING, measured
from osscl.paper.stand_in import cell_on_demo
from osscl.paper.tables import cell_of
from osscl.runs.record import RunRecord

ENOUGH = 3  # paired seeds, below which nothing is decided
LEVEL = 1.0  # points of accuracy that are no difference
SMALL = 2.0  # points of accuracy that are a small one
TRIALS = (SMOKE.name, DEMO.name)  # schedules that show that something runs, and nothing about the paper

Quantity = Literal["accuracy", "minutes", "auroc", "precision"]
Data = Literal["paper", "demo"]
Verdict = Literal["holds", "refuted", "undecided", "tried"]


@dataclass(frozen=True)
class Comparison:
    """Two cells of a table; or one, at its last step and at its first."""

    table: str
    better: Cell
    worse: Cell

    @property
    def words(self) -> str:
        return f"{self.table} {self.better.name}" + ("" if self.better == self.worse else f" − {self.worse.name}")

    @property
    def published(self) -> float | None:
        """The difference that the paper prints."""
        if self.better == self.worse or self.better.published is None or self.worse.published is None:
            return None
        return self.better.published.mean - self.worse.published.mean


@dataclass(frozen=True)
class Claim:
    """A statement about differences: it holds where each mean difference is from `low` to `high`, and above 0 where
    `low` is 0; it is refuted where one is not. What lies within a standard error of those bounds decides nothing."""

    statement: str
    comparisons: tuple[Comparison, ...]
    quantity: Quantity = "accuracy"
    low: float = 0.0
    high: float = math.inf
    unsettled: str = ""  # why our runs cannot speak of it yet, whatever comes out

    def fits(self, difference: float) -> bool:
        above = difference > ROUNDING if self.low == 0 else difference >= self.low - ROUNDING
        return above and difference <= self.high + ROUNDING


@dataclass(frozen=True)
class Part:
    """One comparison and what the records say of it."""

    comparison: Comparison
    seeds: tuple[int, ...]
    differences: tuple[float, ...]  # one a seed

    def verdict(self, claim: Claim) -> Verdict:
        if len(self.seeds) < ENOUGH or claim.unsettled:
            return "undecided"
        middle, error = mean(self.differences), stdev(self.differences) / math.sqrt(len(self.differences))
        if claim.fits(middle - error) and claim.fits(middle + error):
            return "holds"
        below, above = claim.low - (middle - error), middle + error - claim.high
        astride = below > 0 and above > 0  # a spread wider than all that is allowed
        outside = not claim.fits(middle - error) and not claim.fits(middle + error) and not claim.fits(middle)
        return "refuted" if outside and not astride else "undecided"


@dataclass(frozen=True)
class Finding:
    """A claim over the pairs of one schedule; without a schedule where there is no pair at all."""

    claim: Claim
    data: Data | None
    schedule: Schedule | None
    parts: tuple[Part, ...]  # comparisons that have pairs
    comparisons: tuple[Comparison, ...]  # all there are; on the demo's data several of the paper's are one

    @property
    def trial(self) -> bool:
        """Of pairs that say nothing about the paper."""
        return self.data is not None and self.schedule is not None and is_trial(self.data, self.schedule)

    @property
    def verdict(self) -> Verdict:
        """Refuted by any comparison; held by all of them together; tried, whatever comes out, by a trial."""
        if self.trial:
            return "tried"
        verdicts = [part.verdict(self.claim) for part in self.parts]
        if "refuted" in verdicts:
            return "refuted"
        return "holds" if verdicts.count("holds") == len(self.comparisons) else "undecided"

    @property
    def needed(self) -> tuple[list[str], list[int]]:
        """Tables and seeds of the pairs that are missing."""
        parts = {part.comparison: part for part in self.parts}
        decided = {one for one, part in parts.items() if part.verdict(self.claim) != "undecided"}
        wanted = [one for one in self.comparisons if one not in decided]
        lacking = [(one.table, _further(parts[one].seeds if one in parts else ())) for one in wanted]
        tables = dict.fromkeys(table for table, seeds in lacking if seeds)
        return list(tables), sorted({seed for _, seeds in lacking for seed in seeds})


def _further(paired: Sequence[int]) -> list[int]:
    """The first seeds that are not among these: as many as make them enough, or as many again where those disagree."""
    free = (seed for seed in itertools.count() if seed not in paired)
    return list(itertools.islice(free, ENOUGH if len(paired) >= ENOUGH else ENOUGH - len(paired)))


def is_trial(data: Data, schedule: Schedule) -> bool:
    """On stand-in data, or at a schedule that learns next to nothing."""
    return data == "demo" or only_tries(schedule)


def only_tries(schedule: Schedule) -> bool:
    """Whether runs are too small to stand beside anything of the paper's."""
    capped = schedule.max_updates is not None or schedule.row_cap is not None
    return capped or schedule.small_net or schedule.name in TRIALS


def compare(table: str, better: str, worse: str, against: str | None = None) -> Comparison:
    """Two cells by their names; `against` is the other's table where it is another."""
    return Comparison(table, cell_of(table, better), cell_of(against or table, worse))


def findings(claims: Iterable[Claim], records: Records, trials: bool = False) -> list[Finding]:
    """What the records say of each claim, by data and schedule; trials where they are asked for."""
    seen = {world: seeds for world, seeds in worlds(records).items() if trials or not is_trial(*world)}
    found = []
    for claim in claims:
        of_claim = [_finding(claim, records, data, schedule, seeds) for (data, schedule), seeds in seen.items()]
        told = [finding for finding in of_claim if finding.parts]
        found += told or [Finding(claim, None, None, (), claim.comparisons)]
    return found


def worlds(records: Records) -> Mapping[tuple[Data, Schedule], Sequence[int]]:
    """The data and schedules that records are of, and their seeds."""
    seeds: dict[tuple[Data, Schedule], set[int]] = {}
    for record in records.values():
        seeds.setdefault(world_of(record), set()).add(record.spec.seed)
    return {world: sorted(some) for world, some in seeds.items()}


def world_of(record: RunRecord) -> tuple[Data, Schedule]:
    """The data and schedule of one."""
    return "demo" if record.spec.scenario.main == "digits" else "paper", record.spec.schedule


def _finding(claim: Claim, records: Records, data: Data, schedule: Schedule, seeds: Sequence[int]) -> Finding:
    distinct = {
        tuple(_id(cell, data, schedule, seeds[0]) for cell in (comparison.better, comparison.worse)): comparison
        for comparison in reversed(claim.comparisons)
    }
    comparisons = tuple(reversed(distinct.values()))
    parts = [_part(one, claim.quantity, records, data, schedule, seeds) for one in comparisons]
    return Finding(claim, data, schedule, tuple(part for part in parts if part.seeds), comparisons)


def _part(
    comparison: Comparison, quantity: Quantity, records: Records, data: Data, schedule: Schedule, seeds: Sequence[int]
) -> Part:
    pairs, cells = {}, (comparison.better, comparison.worse)
    measure: Measure = "reference" if quantity == "minutes" else "accuracy"
    for seed in seeds:
        better, worse = (told_by(records, _id(cell, data, schedule, seed), measure) for cell in cells)
        if better is not None and worse is not None and same_stream(better, worse):
            pairs[seed] = difference(better, worse, quantity)
    told = {seed: change for seed, change in pairs.items() if change is not None}
    return Part(comparison, tuple(told), tuple(told.values()))


@functools.cache
def _id(cell: Cell, data: Data, schedule: Schedule, seed: int) -> str:
    return (cell_on_demo(cell) if data == "demo" else cell).spec(schedule, seed).id


def same_stream(one: RunRecord, other: RunRecord) -> bool:
    """The same classes in the same order, tested on the same rows of the same data: unlabelled rows may differ, where
    they are what is compared."""
    shared = set(one.content) & set(other.content)
    return (
        one.class_order == other.class_order
        and (one.evaluated_on, one.evaluated_rows) == (other.evaluated_on, other.evaluated_rows)
        and one.spec.stream == other.spec.stream
        and all(one.content[name] == other.content[name] for name in shared)
    )


def difference(better: RunRecord, worse: RunRecord, quantity: Quantity) -> float | None:
    """Of final accuracies, of the references' minutes on one kind of device; or of the gate between the last step and
    the first."""
    if quantity == "accuracy":
        return better.final - worse.final
    if quantity == "minutes":
        if better.made_by.device != worse.made_by.device:
            return None
        longer, shorter = measured(better, "reference"), measured(worse, "reference")
        return None if longer is None or shorter is None else longer - shorter
    gates = [better.steps[0].gate, better.steps[-1].gate]
    values = [None if gate is None else gate.auroc_related if quantity == "auroc" else gate.precision for gate in gates]
    return None if values[0] is None or values[1] is None else values[1] - values[0]


FEW_LABELS = {
    "T1": ("p01-cifar100", "p01-tinyimagenet", "p10-cifar100", "p10-tinyimagenet"),
    "T2": ("p05-cifar10", "p05-tinyimagenet", "p10-cifar10", "p10-tinyimagenet"),
    "T3": ("p05-cifar10", "p05-cifar100", "p10-cifar10", "p10-cifar100"),
}


def _above(competitor: str) -> Claim:
    """URSL and a competitor in every setting of the main tables where the paper's own numbers say so."""
    settings = [
        compare(table, f"{row}/ursl", f"{row}/{competitor}") for table, rows in FEW_LABELS.items() for row in rows
    ]
    told = tuple(comparison for comparison in settings if (comparison.published or 0) > 0)
    but = "" if len(told) == len(settings) else ", but where the paper's own table has it ahead"
    return Claim(f"URSL is above {competitor}{but}", told)


def _against_full_supervision(competitor: str) -> tuple[Comparison, ...]:
    """URSL with the larger P and a competitor with all labels."""
    return tuple(
        compare(table, f"{row}/ursl", f"all-labels/{competitor}")
        for table, rows in FEW_LABELS.items()
        for row in rows
        if row.startswith("p10")
    )


CLAIMS: tuple[Claim, ...] = (
    Claim("L_sup helps", (compare("T4", "all-losses/ursl", "without-sup/ursl"),)),
    Claim("L_TD helps", (compare("T4", "all-losses/ursl", "without-td/ursl"),)),
    Claim("L_KD helps", (compare("T4", "all-losses/ursl", "without-kd/ursl"),)),
    Claim("L_TD helps beside L_sup alone", (compare("T4", "without-kd/ursl", "only-sup/ursl"),)),
    Claim("L_KD helps beside L_sup alone", (compare("T4", "without-td/ursl", "only-sup/ursl"),)),
    Claim("L_KD alone beats L_KD with L_TD", (compare("T4", "only-kd/ursl", "without-sup/ursl"),)),
    Claim(
        "T-hat helps",
        (compare("T5", "variant3/ursl", "variant1/ursl"), compare("T5", "variant4/ursl", "variant2/ursl")),
    ),
    Claim(
        "U-hat helps",
        (compare("T5", "variant2/ursl", "variant1/ursl"), compare("T5", "variant4/ursl", "variant3/ursl")),
    ),
    Claim(
        "more related images help",
        (
            compare("T12", "4500-9000/ursl", "1000-9000/ursl"),
            compare("T12", "9000-9000/ursl", "4500-9000/ursl"),
            compare("T12", "9000-4500/ursl", "4500-4500/ursl"),
        ),
    ),
    Claim(
        "unrelated images alone beat labels alone, by Co2L",
        (compare("T10", "only-unrelated/ursl", "only-supervised/co2l"),),
    ),
    Claim(
        "unrelated images alone beat labels alone, by URSL with an empty U_t",
        (compare("T10", "only-unrelated/ursl", "only-supervised/ursl"),),
    ),
    *(
        Claim(
            f"unlabelled images of {classes} classes alone beat labels alone, by {name}",
            (compare("T9", f"{row}/ursl", f"only-supervised/{column}"),),
        )
        for row, classes in (("after", "this step's and later"), ("before", "earlier"))
        for name, column in (("Co2L", "co2l"), ("URSL with an empty U_t", "ursl"))
    ),
    Claim("unrelated images help beside related ones", (compare("T10", "osscl/ursl", "only-related/ursl"),)),
    Claim(
        "unlabelled images of a part of the main classes beat labels alone, by Co2L",
        tuple(compare("T11", f"{part}/ursl", "only-supervised/co2l") for part in ("25-percent", "50-percent")),
    ),
    Claim("rainbow is level with random", (compare("T15", "rainbow/ursl", "random/ursl"),), low=-LEVEL, high=LEVEL),
    Claim("random beats high confidence", (compare("T15", "random/ursl", "high-confidence/ursl"),)),
    Claim("high confidence beats low", (compare("T15", "high-confidence/ursl", "low-confidence/ursl"),)),
    Claim(
        "BYOL is better than SimCLR",
        (compare("T17", "byol/ursl", "simclr/ursl"), compare("T18", "byol/ursl", "simclr/ursl")),
        unsettled="needs a BYOL that does not collapse, chosen on validation rows",
    ),
    Claim(
        "BYOL is slower than SimCLR",
        (compare("T17", "byol/minutes", "simclr/minutes"), compare("T18", "byol/minutes", "simclr/minutes")),
        "minutes",
    ),
    Claim("pre-training is a small gain", (compare("T16", "pretrained/ursl", "continual/ursl"),), high=SMALL),
    Claim(
        "the gate's AUROC rises over time",
        (compare("F1", "9000-9000/ursl", "9000-9000/ursl"), compare("F2", "4500-4500/ursl", "4500-4500/ursl")),
        "auroc",
    ),
    Claim(
        "the gate's precision rises over time",
        (compare("F1", "9000-9000/ursl", "9000-9000/ursl"), compare("F2", "4500-4500/ursl", "4500-4500/ursl")),
        "precision",
    ),
    *(
        Claim(
            f"URSL with a tenth of the labels is at most {SMALL:g} points below {name} with all of them",
            _against_full_supervision(name),
            low=-SMALL,
        )
        for name in ("co2l", "gem", "icarl")
    ),
    *(_above(name) for name in ("co2l", "co2l-j", "co2l-p", "gd", "dm")),
)
