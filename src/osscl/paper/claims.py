"""The paper's comparative claims, confirmed or refuted by pairs of runs on identical streams."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from osscl.methods.base import DEMO, PAPER, SMOKE, Schedule
from osscl.paper.cells import LARGER, Cell, Measure, cell_on_demo
from osscl.paper.plan import Records, record_for
from osscl.paper.score import ENOUGH, ROUNDING, measured
from osscl.paper.tables import cell_of
from osscl.paper.verdict import Verdict, VerdictKind
from osscl.runs.record import GateRecord, RunRecord
from osscl.tools.compare import PairedDifference, Pairs, pair_by_seed, same_stream

LEVEL = 1.0  # points of accuracy that count as no difference
SMALL = 2.0  # points of accuracy that count as a small difference
TRIALS = (SMOKE.name, DEMO.name)  # schedules that only show that something runs

Quantity = Literal["accuracy", "minutes", "auroc", "precision"]
Data = Literal["paper", "demo"]


@dataclass(frozen=True)
class Comparison:
    """Two cells of a table; or one cell, at its last step and at its first."""

    table: str
    better: Cell
    worse: Cell

    @property
    def words(self) -> str:
        return f"{self.table} {self.better.name}" + ("" if self.better == self.worse else f" − {self.worse.name}")

    @property
    def published(self) -> float | None:
        """The difference between the numbers that the paper prints."""
        if self.better == self.worse or self.better.published is None or self.worse.published is None:
            return None
        return self.better.published.mean - self.worse.published.mean


@dataclass(frozen=True)
class Claim:
    """A statement about differences.

    It holds if every mean difference lies between `low` and `high` (above 0 if `low` is 0), and is refuted if one does
    not. A mean within a standard error of a bound leaves it undecided.
    """

    statement: str
    comparisons: tuple[Comparison, ...]
    quantity: Quantity = "accuracy"
    low: float = 0.0
    high: float = math.inf
    unsettled: str = ""  # why our runs cannot decide it yet, whatever their numbers

    def fits(self, difference: float) -> bool:
        above = difference > ROUNDING if self.low == 0 else difference >= self.low - ROUNDING
        return above and difference <= self.high + ROUNDING


@dataclass(frozen=True)
class Compared:
    """One comparison and the recorded differences, one per seed."""

    comparison: Comparison
    difference: PairedDifference

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.difference.seeds

    def verdict(self, claim: Claim) -> Literal["holds", "refuted", "undecided"]:
        error = self.difference.standard_error
        if self.difference.n < ENOUGH or claim.unsettled or error is None:
            return "undecided"
        low, middle, high = (self.difference.mean + shift for shift in (-error, 0.0, error))
        if claim.fits(low) and claim.fits(high):
            return "holds"
        is_wider = low < claim.low and high > claim.high  # the error exceeds the whole allowed range
        return "undecided" if is_wider or any(map(claim.fits, (low, middle, high))) else "refuted"


@dataclass(frozen=True)
class Needs:
    """What would decide a claim: a sentence, or further seeds of some tables."""

    reason: str = ""
    tables: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    timed: bool = False  # on one kind of device that runs nothing else


@dataclass(frozen=True)
class Finding:
    """A claim over the pairs of one schedule; schedule and data are None where there is no pair at all."""

    claim: Claim
    data: Data | None
    schedule: Schedule | None
    compared: tuple[Compared, ...]  # comparisons that have pairs
    comparisons: tuple[Comparison, ...]  # all of them; on the demo's data several of the paper's coincide

    @property
    def is_trial(self) -> bool:
        """Whether the pairs say nothing about the paper."""
        return self.data is not None and self.schedule is not None and is_trial(self.data, self.schedule)

    @property
    def is_beside_paper(self) -> bool:
        """Whether the paper's differences, of its full schedule and data, may be shown next to ours."""
        return self.data == "paper" and self.schedule == PAPER

    @property
    def verdict(self) -> Verdict:
        """Refuted if any comparison is, holds if all do; a trial decides nothing."""
        verdicts = [one.verdict(self.claim) for one in self.compared]
        all_hold = verdicts.count("holds") == len(self.comparisons)
        kind: VerdictKind = "refuted" if "refuted" in verdicts else "holds" if all_hold else "undecided"
        return Verdict(
            "tried" if self.is_trial else kind, compared=len(self.compared), comparisons=len(self.comparisons)
        )

    @property
    def needs(self) -> Needs | None:
        """What would decide the claim; None if it is decided, or a trial."""
        if self.verdict.kind != "undecided":
            return None
        if self.claim.unsettled:
            return Needs(self.claim.unsettled)
        known = {one.comparison: one for one in self.compared}
        decided = {one for one, part in known.items() if part.verdict(self.claim) != "undecided"}
        missing = [
            (one.table, _further_seeds(known[one].seeds if one in known else ()))
            for one in self.comparisons
            if one not in decided
        ]
        tables = tuple(dict.fromkeys(table for table, _ in missing))
        seeds = tuple(sorted({seed for _, some in missing for seed in some}))
        return Needs("", tables, seeds, self.claim.quantity == "minutes")


def _further_seeds(paired: Sequence[int]) -> list[int]:
    """The first unused seeds: as many as are missing, or as many again if there are enough and they disagree."""
    free = (seed for seed in itertools.count() if seed not in paired)
    return list(itertools.islice(free, ENOUGH if len(paired) >= ENOUGH else ENOUGH - len(paired)))


def is_trial(data: Data, schedule: Schedule) -> bool:
    """Whether runs are on stand-in data, or at a schedule too short to learn."""
    return data == "demo" or only_tries(schedule)


def only_tries(schedule: Schedule) -> bool:
    """Whether runs of a schedule are too small to say anything about the paper."""
    is_capped = schedule.max_updates is not None or schedule.row_cap is not None
    return is_capped or schedule.small_net or schedule.name in TRIALS


def versus(table: str, better: str, worse: str) -> Comparison:
    """Two cells of a table, by name."""
    return Comparison(table, cell_of(table, better), cell_of(table, worse))


def findings(claims: Iterable[Claim], records: Records, trials: bool = False) -> list[Finding]:
    """What the records say about each claim, by data and schedule; with trials on request."""
    seen = {world: seeds for world, seeds in worlds(records).items() if trials or not is_trial(*world)}
    found: list[Finding] = []
    for claim in claims:
        of_claim = [_finding(claim, records, data, schedule, seeds) for (data, schedule), seeds in seen.items()]
        with_pairs = [finding for finding in of_claim if finding.compared]
        found += with_pairs or [Finding(claim, None, None, (), claim.comparisons)]
    return found


def worlds(records: Records) -> Mapping[tuple[Data, Schedule], tuple[int, ...]]:
    """The data and schedules of records, and their seeds."""
    seeds: dict[tuple[Data, Schedule], set[int]] = {}
    for record in records.values():
        seeds.setdefault(world_of(record), set()).add(record.spec.seed)
    return {world: tuple(sorted(some)) for world, some in seeds.items()}


def world_of(record: RunRecord) -> tuple[Data, Schedule]:
    """The data and schedule of a record."""
    return "demo" if record.spec.scenario.main == "digits" else "paper", record.spec.schedule


def _finding(claim: Claim, records: Records, data: Data, schedule: Schedule, seeds: tuple[int, ...]) -> Finding:
    distinct = {
        tuple(_run_ids(cell, data, schedule, seeds)[0] for cell in (comparison.better, comparison.worse)): comparison
        for comparison in reversed(claim.comparisons)
    }
    comparisons = tuple(reversed(distinct.values()))
    measure: Measure = "reference" if claim.quantity == "minutes" else "accuracy"

    def recorded(cell: Cell) -> list[RunRecord]:
        found = (record_for(records, id, measure) for id in _run_ids(cell, data, schedule, seeds))
        return [record for record in found if record is not None]

    compared = [
        Compared(
            one, quantity_difference(pair_by_seed(recorded(one.better), recorded(one.worse), _alike(claim)), claim)
        )
        for one in comparisons
    ]
    return Finding(claim, data, schedule, tuple(one for one in compared if one.seeds), comparisons)


@functools.cache
def _run_ids(cell: Cell, data: Data, schedule: Schedule, seeds: tuple[int, ...]) -> list[str]:
    return (cell_on_demo(cell) if data == "demo" else cell).run_ids(schedule, seeds)


def _alike(claim: Claim) -> Callable[[RunRecord, RunRecord], bool]:
    """Minutes are compared on one kind of device only."""
    if claim.quantity != "minutes":
        return same_stream
    return lambda one, other: same_stream(one, other) and one.made_by.device == other.made_by.device


def quantity_difference(pairs: Pairs, claim: Claim) -> PairedDifference:
    """Of final accuracies, of the references' minutes, or of the gate between the last step and the first."""
    if claim.quantity == "accuracy":
        return pairs.difference(lambda record: record.final)
    if claim.quantity == "minutes":
        return pairs.difference(lambda record: measured(record, "reference"))

    def of_gate(gate: GateRecord | None) -> float | None:
        if gate is None:
            return None
        return gate.auroc_related if claim.quantity == "auroc" else gate.precision

    return pairs.difference(lambda record: of_gate(record.steps[-1].gate), lambda record: of_gate(record.steps[0].gate))


FEW_LABELS = {
    "T1": ("p01-cifar100", "p01-tinyimagenet", "p10-cifar100", "p10-tinyimagenet"),
    "T2": ("p05-cifar10", "p05-tinyimagenet", "p10-cifar10", "p10-tinyimagenet"),
    "T3": ("p05-cifar10", "p05-cifar100", "p10-cifar10", "p10-cifar100"),
}


def _above(competitor: str) -> Claim:
    """URSL is above a competitor in every setting of the main tables where the paper's own numbers say so."""
    settings = [
        versus(table, f"{row}/ursl", f"{row}/{competitor}") for table, rows in FEW_LABELS.items() for row in rows
    ]
    stated = tuple(comparison for comparison in settings if (comparison.published or 0) > 0)
    but = "" if len(stated) == len(settings) else ", except where the paper's own table has it ahead"
    return Claim(f"URSL is above {competitor}{but}", stated)


def _against_full_supervision(competitor: str) -> tuple[Comparison, ...]:
    """URSL with the larger P against a competitor with all labels."""
    settings = (
        versus(table, f"{row}/ursl", f"all-labels/{competitor}") for table, rows in FEW_LABELS.items() for row in rows
    )
    return tuple(one for one in settings if (one.better.scenario.labeled_fraction or 0) >= LARGER)


CLAIMS: tuple[Claim, ...] = (
    Claim("L_sup helps", (versus("T4", "all-losses/ursl", "without-sup/ursl"),)),
    Claim("L_TD helps", (versus("T4", "all-losses/ursl", "without-td/ursl"),)),
    Claim("L_KD helps", (versus("T4", "all-losses/ursl", "without-kd/ursl"),)),
    Claim("L_TD helps when added to L_sup alone", (versus("T4", "without-kd/ursl", "only-sup/ursl"),)),
    Claim("L_KD helps when added to L_sup alone", (versus("T4", "without-td/ursl", "only-sup/ursl"),)),
    Claim("L_KD alone beats L_KD with L_TD", (versus("T4", "only-kd/ursl", "without-sup/ursl"),)),
    Claim(
        "T-hat helps",
        (
            versus("T5", "variant3/ursl", "variant1/ursl"),
            versus("T5", "variant4/ursl", "variant2/ursl"),
        ),
    ),
    Claim(
        "U-hat helps",
        (
            versus("T5", "variant2/ursl", "variant1/ursl"),
            versus("T5", "variant4/ursl", "variant3/ursl"),
        ),
    ),
    Claim(
        "more related images help",
        (
            versus("T12", "4500-9000/ursl", "1000-9000/ursl"),
            versus("T12", "9000-9000/ursl", "4500-9000/ursl"),
            versus("T12", "9000-4500/ursl", "4500-4500/ursl"),
        ),
    ),
    Claim(
        "unrelated images alone help, compared with Co2L on labels alone",
        (versus("T10", "only-unrelated/ursl", "only-supervised/co2l"),),
    ),
    Claim(
        "unrelated images alone help, compared with URSL with an empty U_t",
        (versus("T10", "only-unrelated/ursl", "only-supervised/ursl"),),
    ),
    *(
        Claim(
            f"unlabelled images of {classes} classes alone help, compared with {name}",
            (versus("T9", f"{row}/ursl", f"only-supervised/{column}"),),
        )
        for row, classes in (("after", "this step's and later"), ("before", "earlier"))
        for name, column in (("Co2L on labels alone", "co2l"), ("URSL with an empty U_t", "ursl"))
    ),
    Claim("unrelated images help in addition to related ones", (versus("T10", "osscl/ursl", "only-related/ursl"),)),
    Claim(
        "unlabelled images of a part of the main classes help, compared with Co2L on labels alone",
        tuple(versus("T11", f"{part}/ursl", "only-supervised/co2l") for part in ("25-percent", "50-percent")),
    ),
    Claim("rainbow is level with random", (versus("T15", "rainbow/ursl", "random/ursl"),), low=-LEVEL, high=LEVEL),
    Claim("random beats high confidence", (versus("T15", "random/ursl", "high-confidence/ursl"),)),
    Claim("high confidence beats low", (versus("T15", "high-confidence/ursl", "low-confidence/ursl"),)),
    Claim(
        "BYOL is better than SimCLR",
        (versus("T17", "byol/ursl", "simclr/ursl"), versus("T18", "byol/ursl", "simclr/ursl")),
        unsettled="a configuration of BYOL that does not collapse, chosen on validation rows",
    ),
    Claim(
        "BYOL is slower than SimCLR",
        (
            versus("T17", "byol/minutes", "simclr/minutes"),
            versus("T18", "byol/minutes", "simclr/minutes"),
        ),
        "minutes",
    ),
    Claim("pre-training is a small gain", (versus("T16", "pretrained/ursl", "continual/ursl"),), high=SMALL),
    Claim(
        "the gate's AUROC rises over time",
        (
            versus("F1", "9000-9000/ursl", "9000-9000/ursl"),
            versus("F2", "4500-4500/ursl", "4500-4500/ursl"),
        ),
        "auroc",
    ),
    Claim(
        "the gate's precision rises over time",
        (
            versus("F1", "9000-9000/ursl", "9000-9000/ursl"),
            versus("F2", "4500-4500/ursl", "4500-4500/ursl"),
        ),
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
