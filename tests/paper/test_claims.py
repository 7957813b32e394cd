"""Claims over recorded pairs: which hold, which are refuted, and which are undecided with too few seeds."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from osscl.methods.base import DEMO, PAPER, SHORT, SMOKE, PhaseReport, Schedule
from osscl.paper.cells import cell_on_demo
from osscl.paper.claims import CLAIMS, Claim, Finding, Needs, findings, quantity_difference, versus
from osscl.paper.tables import ABLATION, cell_of
from osscl.report.curves import gate_points, gate_svg, gate_table
from osscl.report.formats import Number
from osscl.report.paper_comparison import (
    claims_table,
    compare_with_paper,
    needs_words,
    schedule_words,
    sorted_findings,
    summary,
)
from osscl.runs.record import GateRecord, Provenance, RunRecord, StepRecord, record_to_plain
from osscl.tools.compare import pair_by_seed

BY_STATEMENT = {claim.statement: claim for claim in CLAIMS}
HELPS = BY_STATEMENT["L_TD helps"]
TRIED = [{"schedule": SMOKE}, {"schedule": DEMO}, {"on": cell_on_demo}, {"on": cell_on_demo, "schedule": SHORT}]


def gate(value):
    """A gate whose numbers all differ, so that no claim can confuse them."""
    nothing = dict.fromkeys(("seen", "unseen", "foreign"))
    squared = None if value is None else value**2
    return GateRecord(
        auroc_seen=None, auroc_related=value, auroc_seen_foreign=None, precision=squared, precision_seen=None,
        recall=None, fpr95=None, pass_rates=nothing, histograms={}, threshold=0.1, pseudo_threshold=0.2, passed=1,
        pseudo_labeled=1, pseudo_accuracy=None, let_in=(), kept_out=(),
    )  # fmt: skip


def record(cell, seed, final, schedule=PAPER, gates=(0.5, 0.7), minutes=1.0):
    """An invented record of the run of this cell."""
    spec = cell.spec(schedule, seed)
    phases = (PhaseReport("reference", 60 * minutes / 2), PhaseReport("learner", 30.0))
    steps = tuple(StepRecord((t,), 5, 10, 10, phases, {}, gate(value)) for t, value in enumerate(gates))
    made_by = Provenance("osscl", "here", "CPU", "float32", "0", "0", "0", "2026-01-01", 10.0, 1, None)
    return RunRecord(
        spec.id, cell.configuration, spec, ((final,),), (final,), final, final, None, None, "test", 100, ((1,),),
        (seed, 7), {"cifar100": "abc"}, steps, made_by,
    )  # fmt: skip


def found(claim, *records, trials=False):
    return findings([claim], {one.id: one for one in records}, trials)


def verdict(claim, *records):
    return found(claim, *records)[0].verdict.kind


def pairs(claim, differences, on=lambda cell: cell, **changes):
    """Records of the only comparison of a claim, one pair per seed."""
    (comparison,) = claim.comparisons
    for seed, change in enumerate(differences):
        yield record(on(comparison.better), seed, 30.0 + change, **changes)
        yield record(on(comparison.worse), seed, 30.0, **changes)


def first_comparison(claim):
    return replace(claim, comparisons=claim.comparisons[:1])


def trial_name(how):
    """The same in every process, as parallel test runs need."""
    return " ".join(value.name if key == "schedule" else "on demo" for key, value in how.items())


# ----- verdicts

LEVEL, GAIN = BY_STATEMENT["rainbow is level with random"], BY_STATEMENT["pre-training is a small gain"]


@pytest.mark.parametrize(
    ("claim", "differences", "kind"),
    [
        (HELPS, [], "undecided"),
        (HELPS, [5.0], "undecided"),
        (HELPS, [5.0, 5.0], "undecided"),
        (HELPS, [5.0, 5.0, 5.0], "holds"),
        (HELPS, [5.0, 2.0, -1.0], "holds"),
        (HELPS, [5.0, -1.0, -1.0], "undecided"),
        (HELPS, [-0.02, 0.01, -0.01], "undecided"),
        (HELPS, [-1.0, -1.0, 0.5], "refuted"),
        (HELPS, [0.0, 0.0, 0.0], "refuted"),
        *((LEVEL, [change] * 3, "holds") for change in (-1.0, -0.9, 0.9, 1.0)),
        *((LEVEL, [change] * 3, "refuted") for change in (-1.2, 1.2)),
        (LEVEL, [0.5, 0.7, 1.5], "undecided"),
        (LEVEL, [-9.0, 9.0, 5.0], "undecided"),
        (LEVEL, [1.1, 2.0, 1.4], "refuted"),
        (LEVEL, [-0.2, 0.3, 0.8], "holds"),
        *((GAIN, [change] * 3, "holds") for change in (0.9, 2.0)),
        *((GAIN, [change] * 3, "refuted") for change in (-0.1, 2.5)),
    ],
)
def test_a_claim_holds_is_refuted_or_lacks_pairs(claim, differences, kind):
    (finding,) = found(claim, *pairs(claim, differences))
    assert finding.verdict.kind == kind
    assert [len(one.seeds) for one in finding.compared] == ([len(differences)] if differences else [])


def test_a_claim_whose_recipe_is_unsettled_is_undecided():
    byol = BY_STATEMENT["BYOL is better than SimCLR"]
    parts = [replace(byol, comparisons=(comparison,)) for comparison in byol.comparisons]
    (finding,) = found(byol, *(one for part in parts for one in pairs(part, [-9.0] * 3)))
    assert (
        finding.verdict.kind == "undecided" and "a configuration of BYOL that does not collapse" in finding.needs.reason
    )


def test_pairs_share_their_schedule_and_stream_and_each_schedule_has_a_verdict():
    (comparison,) = HELPS.comparisons
    apart = [record(comparison.better, s, 40.0, PAPER) for s in range(3)]
    apart += [record(comparison.worse, s, 30.0, SHORT) for s in range(3)]
    assert not found(HELPS, *apart)[0].compared
    better, worse = pairs(HELPS, [1.0])
    assert not found(HELPS, better, replace(worse, class_order=(1, 2)))[0].compared
    both = found(HELPS, *pairs(HELPS, [1.0] * 3), *pairs(HELPS, [-1.0] * 3, schedule=SHORT))
    assert {(one.schedule.name, one.verdict.kind) for one in both} == {("paper", "holds"), ("short", "refuted")}


def test_one_comparison_refutes_a_claim_and_a_missing_one_leaves_it_undecided():
    claim = BY_STATEMENT["T-hat helps"]
    cells = [[one.better, one.worse] for one in claim.comparisons]
    for_it = [record(cell, s, 30.0 + (cell is pair[0])) for pair in cells for cell in pair for s in range(3)]
    assert verdict(claim, *for_it) == "holds"
    partial = found(claim, *for_it[:6])[0].verdict
    assert (partial.kind, partial.compared, partial.comparisons, partial.is_partial) == ("undecided", 1, 2, True)
    against = [record(cell, s, 30.0 - (cell is cells[1][0])) for cell in cells[1] for s in range(3)]
    assert verdict(claim, *for_it[:6], *against) == "refuted"


def test_slower_compares_the_references_minutes_and_the_gate_its_last_and_first_step():
    cell = cell_of("F1", "9000-9000/ursl")
    slow, fast = record(cell, 0, 30.0, minutes=4.0), record(cell, 0, 30.0, minutes=1.0)
    for quantity, other, expected in (("minutes", fast, 3.0), ("auroc", slow, 0.7 - 0.5), ("precision", slow, 0.24)):
        claim = Claim("", (), quantity)
        assert quantity_difference(pair_by_seed([slow], [other]), claim).values == (pytest.approx(expected),)
    slower = first_comparison(BY_STATEMENT["BYOL is slower than SimCLR"])
    (comparison,) = slower.comparisons
    both = [record(comparison.better, 0, 30.0, minutes=4.0), record(comparison.worse, 0, 30.0)]
    assert found(slower, *both)[0].compared
    elsewhere = replace(both[1], made_by=replace(both[1].made_by, device="GPU"))
    assert not found(slower, both[0], elsewhere)[0].compared


def test_every_claim_of_the_paper_is_there():
    statements = " / ".join(BY_STATEMENT)
    for word in ("L_sup", "L_TD", "L_KD alone", "T-hat", "U-hat", "more related", "with Co2L", "empty U_t", "rainbow",
                 "random beats high", "high confidence beats low", "BYOL is better", "BYOL is slower", "pre-training",
                 "AUROC rises", "with all of them", "above gd", "above dm", "above co2l-j"):  # fmt: skip
        assert word in statements
    above = [claim for claim in CLAIMS if claim.statement.startswith("URSL is above")]
    assert [len(claim.comparisons) for claim in above] == [12, 12, 12, 12, 11]
    assert above[-1].statement == "URSL is above dm, except where the paper's own table has it ahead"
    quantities = {"the gate's precision rises over time": "precision", "the gate's AUROC rises over time": "auroc",
                  "BYOL is slower than SimCLR": "minutes"}  # fmt: skip
    assert all(BY_STATEMENT[statement].quantity == quantity for statement, quantity in quantities.items())
    against = [claim for claim in CLAIMS if "compared with" in claim.statement]
    assert len(against) == 7
    for comparison in (comparison for claim in against for comparison in claim.comparisons):
        assert comparison.worse.row == "only-supervised" and comparison.better.scenario.regime != "only_supervised"
    assert {comparison.better.scenario for comparison in HELPS.comparisons} == {ABLATION}
    assert Claim("L_TD helps", (versus("T4", "all-losses/ursl", "without-td/ursl"),)) == HELPS


def test_the_papers_own_numbers_support_its_claims():
    for claim in CLAIMS:
        for comparison in claim.comparisons:
            assert comparison.published is None or claim.fits(comparison.published), comparison.words


@pytest.mark.parametrize(
    ("statement", "seeds", "needs"),
    [
        ("L_TD helps", [], "T4, seeds 0-2"),
        ("L_TD helps", [0], "T4, seeds 1-2"),
        ("L_TD helps", [1], "T4, seeds 0, 2"),
        ("L_TD helps", [0, 7], "T4, seed 1"),
        ("BYOL is better than SimCLR", [], "a configuration of BYOL that does not collapse, chosen on validation rows"),
        ("BYOL is slower than SimCLR", [], "T17, T18, seeds 0-2, timed on one kind of device that runs nothing else"),
        ("URSL is above gd", [0, 1, 2], "T1, T2, T3, seeds 0-2"),
        ("the gate's AUROC rises over time", [0, 1, 2], "F2, seeds 0-2"),
    ],
)
def test_an_undecided_claim_says_what_would_decide_it(statement, seeds, needs):
    claim = BY_STATEMENT[statement]
    first = claim.comparisons[0]
    records = [record(cell, seed, 30.0 + (cell is first.better))
               for seed in seeds for cell in (first.better, first.worse)]  # fmt: skip
    (finding,) = found(claim, *records)
    assert needs_words(finding.needs) == needs and len(finding.compared) == bool(seeds)


def test_seeds_that_disagree_need_as_many_again():
    (finding,) = found(HELPS, *pairs(HELPS, [5.0, -1.0, -1.0]))
    assert finding.needs == Needs("", ("T4",), (3, 4, 5))
    assert found(HELPS, *pairs(HELPS, [5.0] * 3))[0].needs is None


# ----- trials


@pytest.mark.parametrize("how", TRIED, ids=trial_name)
@pytest.mark.parametrize("change", [5.0, -5.0])
def test_trials_are_left_out_and_decide_nothing_on_request(how, change):
    records = list(pairs(HELPS, [change] * 3, **how))
    assert found(HELPS, *records) == [Finding(HELPS, None, None, (), HELPS.comparisons)]
    (finding,) = found(HELPS, *records, trials=True)
    assert finding.verdict.kind == "tried" and [one.seeds for one in finding.compared] == [(0, 1, 2)]
    assert summary([finding]) == "1 claim: 1 tried."
    known = {one.id: one for one in records}
    left_out, shown = (claims_table(sorted_findings(known, t), known, t) for t in (False, True))
    assert "Based on 0 of 6 records. Left out: 6 " in left_out.notes[1]
    assert "Tried (decides nothing): 6 " in shown.notes[1]
    assert shown.rows[0][:2] == ("L_TD helps", finding.verdict)
    real = list(pairs(HELPS, [1.0] * 3))
    assert found(HELPS, *real, *records) == found(HELPS, *real)
    assert {one.verdict.kind for one in found(HELPS, *real, *records, trials=True)} == {"holds", "tried"}


def test_a_capped_schedule_is_a_trial_and_schedules_of_one_name_differ_in_their_share():
    for schedule in (Schedule("quick", max_updates=3), Schedule("few", row_cap=100), Schedule("tiny", small_net=True)):
        assert not found(HELPS, *pairs(HELPS, [5.0] * 3, schedule=schedule))[0].compared
    half, tenth = (list(pairs(HELPS, [5.0] * 3, schedule=Schedule("mine", share=share))) for share in (0.5, 0.1))
    assert set(map(schedule_words, found(HELPS, *half, *tenth))) == {
        "mine (0.5 of the epochs)", "mine (0.1 of the epochs)",
    }  # fmt: skip


# ----- as a table


def test_a_row_has_the_difference_its_deviation_and_the_papers_at_its_schedule_only():
    for schedule, theirs in ((PAPER, 2.0), (SHORT, None)):
        records = {one.id: one for one in pairs(HELPS, [1.0, 2.0, 3.0], schedule=schedule)}
        (row,) = claims_table(findings([HELPS], records), records).rows
        assert row[0] == "L_TD helps" and row[2] == schedule.name
        assert row[5] == "T4 all-losses/ursl − without-td/ursl"
        assert row[7] == Number(2.0, 1.0, 3, signed=True) and str(row[7]) == "+2.0 ± 1.0 (n=3)"
        assert row[8] == (0, 1, 2)
        assert (None if row[9] is None else row[9].value) == (None if theirs is None else pytest.approx(theirs))
    (row,) = claims_table(findings([HELPS], {}), {}).rows
    assert row[4] == "T4, seeds 0-2" and row[5] is row[7] is row[9] is None


def test_decided_claims_come_first_and_then_tried_ones():
    random, high = BY_STATEMENT["random beats high confidence"], BY_STATEMENT["high confidence beats low"]
    records = [*pairs(random, [-1.0] * 3), *pairs(high, [1.0], schedule=SMOKE), *pairs(HELPS, [1.0])]
    first = sorted_findings({one.id: one for one in records}, trials=True)[:3]
    assert [(one.claim.statement, one.verdict.kind) for one in first] == [
        ("random beats high confidence", "refuted"), ("high confidence beats low", "tried"),
        ("L_sup helps", "undecided"),
    ]  # fmt: skip


def test_the_gate_over_time_is_a_mean_over_seeds_by_classes_seen():
    cell = cell_of("F1", "9000-9000/ursl")
    records = [record(cell, 0, 30.0, gates=(0.5, 0.7)), record(cell, 1, 30.0, gates=(0.6, None))]
    points = gate_points(records, "auroc_related")
    assert [(point.classes, point.number.value) for point in points] == [
        (1, pytest.approx(0.55)),
        (2, pytest.approx(0.7)),
    ]
    rows = gate_table("F1", (), records).rows
    assert [row[0] for row in rows] == [1, 2]
    assert list(map(str, rows[0][1:])) == ["0.550 ± 0.071 (n=2)", "0.305 ± 0.078 (n=2)"] and rows[1][1].n == 1
    assert gate_table("F1", (), []).rows == [(None, None, None)]


def test_the_drawing_is_xml_with_a_point_for_every_step():
    drawn = ElementTree.fromstring(
        gate_svg("F1: <curves> & more", "n=1", [record(cell_of("F1", "9000-9000/ursl"), 0, 30.0)])
    )
    assert len(drawn.findall(".//{*}circle")) == 4 and len(drawn.findall(".//{*}polyline")) == 2
    assert drawn.find("{*}title").text == "F1: <curves> & more"


# ----- the command


@pytest.fixture
def on_disk(tmp_path, monkeypatch):
    """Write records that are consistent only as far as claims read them."""
    monkeypatch.setattr("osscl.runs.record.flaw_of", lambda record: "")

    def write(*records):
        for one in records:
            folder = tmp_path / "results" / one.made_by.date
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{one.id}.json").write_text(json.dumps(record_to_plain(one)))
        return tmp_path / "results"

    return write


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_summary_comes_first_and_blocks_fit_the_terminal(typed, on_disk, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    results = on_disk(*pairs(HELPS, [1.0, 2.0, 3.0]), *pairs(HELPS, [1.0], schedule=SHORT))
    code, shown, errors = typed("claims", "--results", results)
    lines, words = shown.splitlines(), " ".join(shown.split())
    assert (code, errors) == (0, "") and max(map(len, lines)) <= width and len(lines) < 110
    others = len(CLAIMS) - sum(bool(found(claim, *pairs(HELPS, [1.0]))[0].compared) for claim in CLAIMS)
    counts = f"{len(CLAIMS)} claims: 1 holds, {len(CLAIMS) - 1 - others} undecided, {others} without pairs."
    assert (
        lines[:2] == [counts, ""]
        and words.startswith(f"{counts} L_TD helps: holds at paper ")
        and "Based on 8 of 8 records." in words
    )
    assert "T4 all-losses/ursl − without-td/ursl: +2.0 ± 1.0 (n=3), seeds 0-2; paper's +2.0" in words
    assert "L_TD helps: undecided at short T4 all-losses/ursl − without-td/ursl: +1.0 (n=1), seed 0 needs T4" in words
    assert "rainbow is level with random: undecided, needs T15, seeds 0-2" in words
    assert all(claim.statement in words for claim in CLAIMS)
    for format in ("markdown", "latex"):
        assert counts in typed("claims", "--results", results, "--format", format)[1]


def test_the_summary_counts_each_claim_once_by_what_says_most():
    random, high = BY_STATEMENT["random beats high confidence"], BY_STATEMENT["high confidence beats low"]
    longer = replace(SHORT, name="longer", share=0.9)
    records = [
        *pairs(HELPS, [1.0, 2.0, 3.0]), *pairs(HELPS, [-1.0] * 3, schedule=SHORT),  # the paper's schedule decides
        *pairs(random, [1.0]), *pairs(random, [-1.0] * 3, schedule=SHORT),  # decided at the shorter one only
        *pairs(high, [1.0] * 3, schedule=SHORT), *pairs(high, [-1.0] * 3, schedule=longer),
    ]  # fmt: skip
    told = summary(findings([HELPS, random, high, BY_STATEMENT["rainbow is level with random"]], by_id(records)))
    assert told == "4 claims: 1 holds, 2 refuted, 1 without pairs."
    assert summary(findings([HELPS, random], by_id(reversed(records)))) == "2 claims: 1 holds, 1 refuted."
    assert summary(findings([HELPS], {})) == "1 claim: 1 without pairs."


def by_id(records):
    return {one.id: one for one in records}


@pytest.mark.parametrize("schedule", [None, "short", "smoke", "paper"])
def test_the_first_line_of_claims_fits_80_columns_and_adds_up(typed, monkeypatch, schedule):
    monkeypatch.setenv("COLUMNS", "80")
    results = Path(__file__).parents[2] / "results"
    asked = [] if schedule is None else ["--schedule", schedule]
    first, second, *_ = typed("claims", "--results", results, *asked)[1].splitlines()
    whole, *parts = map(int, re.findall(r"\d+", first))
    assert len(first) <= 80 and second == "" and first.endswith(".") and whole == len(CLAIMS) == sum(parts)


def test_every_row_of_claims_is_complete(typed, on_disk):
    claim = BY_STATEMENT["T-hat helps"]
    parts = [replace(claim, comparisons=(comparison,)) for comparison in claim.comparisons]
    results = on_disk(*pairs(parts[0], [1.0, 2.0, 3.0]), *pairs(parts[1], [-0.5]))
    shown = typed("claims", "--results", results, "--format", "csv")[1]
    of_it = [line for line in csv.DictReader(shown.splitlines()) if line["claim"] == "T-hat helps"]
    numbers = [(line["difference"], line["std"], line["n"], line["seeds"], line["paper_difference"]) for line in of_it]
    assert numbers == [("2", "1", "3", "0 1 2", "8.5"), ("-0.5", "", "1", "0", "5.9")]
    assert {(line["verdict"], line["schedule"], line["data"], line["needs"]) for line in of_it} == {
        ("undecided", "paper", "paper", "T5, seeds 1-2")
    }
    for format, start in (("markdown", "| T-hat helps | undecided |"), ("latex", "T-hat helps &")):
        lines = typed("claims", "--results", results, "--format", format)[1].splitlines()
        assert sum(line.startswith(start) for line in lines) == 2


def test_a_run_that_was_repeated_for_its_time_decides_a_claim_about_minutes(typed, on_disk):
    slower = first_comparison(BY_STATEMENT["BYOL is slower than SimCLR"])
    (comparison,) = slower.comparisons
    timed = [record(comparison.better, 0, 30.0, minutes=4.0), record(comparison.worse, 0, 30.0, minutes=1.0)]
    shared = [replace(one, made_by=replace(one.made_by, shared_device=True)) for one in timed]
    assert not found(slower, *shared)[0].compared
    later = [replace(one, made_by=replace(one.made_by, date="2026-02-02")) for one in timed]
    shown = typed("claims", "--results", on_disk(*shared, *later), "--format", "csv")[1]
    (line,) = [line for line in csv.DictReader(shown.splitlines()) if line["claim"] == slower.statement]
    assert (line["difference"], line["n"], line["quantity"]) == ("3", "1", "minutes")


# ----- beside the paper on a page


def test_a_page_shows_recorded_tables_values_and_claims_and_names_what_is_missing():
    shown = compare_with_paper([record(cell_of("F1", "9000-9000/ursl"), 0, 30.0)])  # a cell of T2, T4 and others too
    assert list(shown.tables) == ["paper"]
    titles = {table.title.partition(":")[0]: table for table in shown.tables["paper"]}
    assert {"T2", "T4", "F1"} <= set(titles) and not {"T1", "T3", "T15"} & set(titles)
    assert [(row[0], row[1].value) for row in titles["F1"].rows] == [(1, 0.5), (2, 0.7)]
    assert "Schedule paper, seed 0, n=1." in titles["F1"].notes
    assert [table.title[:3] for table in shown.values] == ["T7:", "T8:"]
    assert shown.claims and shown.summary.startswith(f"{len(CLAIMS)} claims: ")
    assert shown.notes == ("Not recorded: T1, T3, T9, T14, T15, T17, F2.",)
    nothing = compare_with_paper([])
    assert (nothing.tables, nothing.claims) == ({}, {})


@pytest.mark.parametrize("how", TRIED, ids=trial_name)
def test_a_page_of_trials_has_no_claims_and_says_why(how):
    tried = compare_with_paper(list(pairs(HELPS, [1.0] * 3, **how)))
    assert tried.tables and not tried.claims and not tried.values
    assert "The paper's claims are left out: " in tried.notes[-1]
    real = compare_with_paper([*pairs(HELPS, [1.0] * 3), *pairs(HELPS, [-9.0] * 3, **how)])
    assert real.claims["paper"].rows[0][1].kind == "holds" and " 1 holds, " in real.summary


@pytest.mark.parametrize(
    ("how", "why"), [*((how, "these runs are on") for how in TRIED), ({}, "none of these runs fills a cell")]
)
def test_a_page_of_runs_that_fill_no_cell_says_so(how, why):
    records = []
    for one in pairs(HELPS, [1.0], **how):
        spec = replace(one.spec, scenario=replace(one.spec.scenario, memory=777))
        records.append(replace(one, id=spec.id, spec=spec))
    shown = compare_with_paper(records)
    assert not shown.tables and shown.notes[0].startswith(f"The paper's tables and claims are left out: {why}")
