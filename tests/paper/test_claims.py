"""Claims over recorded pairs: what holds, what is refuted, what too few seeds leave open."""

import csv
import json
from dataclasses import replace

import pytest

from osscl.methods.base import DEMO, PAPER, SHORT, SMOKE, PhaseReport, Schedule
from osscl.paper.claims import CLAIMS, Claim, Finding, compare, difference, findings, same_stream
from osscl.paper.stand_in import cell_on_demo
from osscl.paper.tables import ABLATION, cell_of
from osscl.report import verdicts
from osscl.report.beside import beside_paper
from osscl.report.curves import auroc, over_time, rows, svg
from osscl.runs.record import GateRecord, Provenance, RunRecord, StepRecord, record_to_plain

HELPS = Claim("L_TD helps", (compare("T4", "all-losses/ursl", "without-td/ursl"),))


def gate(value):
    """One whose numbers differ: no claim can take one for another."""
    nothing = dict.fromkeys(("seen", "unseen", "foreign"))
    squared = None if value is None else value**2
    return GateRecord(
        auroc_seen=None, auroc_related=value, auroc_seen_foreign=None, precision=squared, precision_seen=None,
        recall=None, fpr95=None, pass_rates=nothing, histograms={}, threshold=0.1, pseudo_threshold=0.2, passed=1,
        pseudo_labeled=1, pseudo_accuracy=None, let_in=(), kept_out=(),
    )  # fmt: skip


def record(cell, seed, final, schedule=PAPER, gates=(0.5, 0.7), minutes=1.0):
    """A record as the run of this cell would leave it, made up."""
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


def pairs(claim, differences, on=lambda cell: cell, **changes):
    """Records of one comparison, one pair a seed."""
    (comparison,) = claim.comparisons
    for seed, change in enumerate(differences):
        yield record(on(comparison.better), seed, 30.0 + change, **changes)
        yield record(on(comparison.worse), seed, 30.0, **changes)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([], "undecided"),
        ([5.0], "undecided"),
        ([5.0, 5.0], "undecided"),
        ([5.0, 5.0, 5.0], "holds"),
        ([5.0, 2.0, -1.0], "holds"),
        ([5.0, -1.0, -1.0], "undecided"),
        ([-0.02, 0.01, -0.01], "undecided"),
        ([-1.0, -1.0, 0.5], "refuted"),
        ([0.0, 0.0, 0.0], "refuted"),
    ],
)
def test_a_claim_holds_is_refuted_or_lacks_pairs(differences, verdict):
    (finding,) = found(HELPS, *pairs(HELPS, differences))
    assert finding.verdict == verdict
    assert [len(part.seeds) for part in finding.parts] == ([len(differences)] if differences else [])


def test_level_means_within_a_point_and_a_small_gain_within_two():
    level = next(claim for claim in CLAIMS if "level with random" in claim.statement)
    gain = next(claim for claim in CLAIMS if "pre-training" in claim.statement)
    for claim, differences in ((level, {-0.9: "holds", 0.9: "holds", 1.2: "refuted", -1.2: "refuted"}),
                               (level, {-1.0: "holds", 1.0: "holds"}),
                               (gain, {0.9: "holds", 2.0: "holds", 2.5: "refuted", -0.1: "refuted"})):  # fmt: skip
        for change, verdict in differences.items():
            assert found(claim, *pairs(claim, [change] * 3))[0].verdict == verdict
    for differences, verdict in (([0.5, 0.7, 1.5], "undecided"), ([-9.0, 9.0, 5.0], "undecided"),
                                 ([1.1, 2.0, 1.4], "refuted"), ([-0.2, 0.3, 0.8], "holds")):  # fmt: skip
        assert found(level, *pairs(level, differences))[0].verdict == verdict, differences


def test_seeds_that_do_not_agree_want_more_of_them():
    (finding,) = found(HELPS, *pairs(HELPS, [5.0, -1.0, -1.0]))
    assert finding.needed[1] == [3, 4, 5] and "seeds 3-5" in verdicts.rows([finding])[-1][3]


def test_a_claim_whose_recipe_is_not_settled_is_decided_by_nothing():
    byol = next(claim for claim in CLAIMS if claim.statement == "BYOL is better than SimCLR")
    parts = [replace(byol, comparisons=(comparison,)) for comparison in byol.comparisons]
    records = [one for part in parts for one in pairs(part, [-9.0] * 3)]
    (finding,) = found(byol, *records)
    assert finding.verdict == "undecided" and "a BYOL that does not collapse" in verdicts.rows([finding])[-1][3]


def test_pairs_share_schedule_and_each_schedule_is_a_finding_of_its_own():
    (comparison,) = HELPS.comparisons
    apart = [record(comparison.better, s, 40.0, PAPER) for s in range(3)]
    apart += [record(comparison.worse, s, 30.0, SHORT) for s in range(3)]
    assert not found(HELPS, *apart)[0].parts
    both = found(HELPS, *pairs(HELPS, [1.0] * 3), *pairs(HELPS, [-1.0] * 3, schedule=SHORT))
    assert {(one.schedule.name, one.verdict) for one in both} == {("paper", "holds"), ("short", "refuted")}


@pytest.mark.parametrize(
    "change",
    [{"class_order": (1, 2)}, {"evaluated_on": "validation"}, {"evaluated_rows": 9}, {"content": {"cifar100": "xyz"}}],
)
def test_pairs_share_their_stream(change):
    better, worse = pairs(HELPS, [1.0])
    assert same_stream(better, worse) and not same_stream(better, replace(worse, **change))
    assert not found(HELPS, better, replace(worse, **change))[0].parts


def test_one_comparison_against_it_refutes_a_claim_of_several_and_one_missing_leaves_it_open():
    claim = next(claim for claim in CLAIMS if claim.statement == "T-hat helps")
    cells = [[one.better, one.worse] for one in claim.comparisons]
    for_it = [record(cell, s, 30.0 + (cell is pair[0])) for pair in cells for cell in pair for s in range(3)]
    assert found(claim, *for_it)[0].verdict == "holds"
    assert found(claim, *for_it[:6])[0].verdict == "undecided"
    against = [record(cell, s, 30.0 - (cell is cells[1][0])) for cell in cells[1] for s in range(3)]
    assert found(claim, *for_it[:6], *against)[0].verdict == "refuted"


def test_slower_is_about_the_references_minutes_and_the_gate_about_last_and_first_step():
    cell = cell_of("F1", "9000-9000/ursl")
    slow, fast = record(cell, 0, 30.0, minutes=4.0), record(cell, 0, 30.0, minutes=1.0)
    assert difference(slow, fast, "minutes") == pytest.approx(3.0)
    assert difference(slow, slow, "auroc") == pytest.approx(0.7 - 0.5)
    assert difference(slow, slow, "precision") == pytest.approx(0.7**2 - 0.5**2)
    elsewhere = replace(fast, made_by=replace(fast.made_by, device="GPU"))
    assert difference(slow, elsewhere, "minutes") is None and difference(slow, elsewhere, "accuracy") == 0
    assert difference(replace(slow, steps=()), fast, "accuracy") == 0


def test_every_claim_of_the_paper_is_there():
    statements = " / ".join(claim.statement for claim in CLAIMS)
    for word in ("L_sup", "L_TD", "L_KD alone", "T-hat", "U-hat", "more related", "by Co2L", "empty U_t", "rainbow",
                 "random beats high", "high confidence beats low", "BYOL is better", "BYOL is slower", "pre-training",
                 "AUROC rises", "with all of them", "above gd", "above dm", "above co2l-j"):  # fmt: skip
        assert word in statements
    above = [claim for claim in CLAIMS if claim.statement.startswith("URSL is above")]
    assert [len(claim.comparisons) for claim in above] == [12, 12, 12, 12, 11]
    assert above[-1].statement == "URSL is above dm, but where the paper's own table has it ahead"
    quantities = {claim.statement: claim.quantity for claim in CLAIMS}
    assert quantities["the gate's precision rises over time"] == "precision"
    assert quantities["the gate's AUROC rises over time"] == "auroc"
    assert quantities["BYOL is slower than SimCLR"] == "minutes"


def test_labels_alone_are_what_unlabelled_images_are_held_against():
    against = [claim for claim in CLAIMS if "labels alone" in claim.statement]
    assert len(against) == 7
    for comparison in (comparison for claim in against for comparison in claim.comparisons):
        assert comparison.worse.row == "only-supervised" and comparison.better.scenario.regime != "only_supervised"


def test_the_papers_own_numbers_bear_its_claims_out():
    for claim in CLAIMS:
        for comparison in claim.comparisons:
            assert comparison.published is None or claim.fits(comparison.published), comparison.words


def test_a_schedule_of_ones_own_that_caps_something_is_a_trial_and_one_that_does_not_is_told_apart_by_its_share():
    for schedule in (Schedule("quick", max_updates=3), Schedule("few", row_cap=100), Schedule("tiny", small_net=True)):
        assert not found(HELPS, *pairs(HELPS, [5.0] * 3, schedule=schedule))[0].parts
    half, tenth = (list(pairs(HELPS, [5.0] * 3, schedule=Schedule("mine", share=share))) for share in (0.5, 0.1))
    assert {line[2] for line in verdicts.rows(found(HELPS, *half, *tenth))} == {
        "mine (0.5 of the epochs)", "mine (0.1 of the epochs)",
    }  # fmt: skip


def test_rows_show_differences_with_n_and_a_dash_where_nothing_is_recorded():
    shown = verdicts.rows(found(HELPS, *pairs(HELPS, [1.0, 2.0, 3.0])))
    assert shown == [
        ("L_TD helps", "holds", "paper", "T4 all-losses/ursl − without-td/ursl", "+2.0 ± 0.8 (n=3)", "0, 1, 2", "+2.0")
    ]
    assert verdicts.rows(found(HELPS)) == [("L_TD helps", "undecided", "—", "needs T4, seeds 0-2", *["—"] * 3)]
    assert verdicts.counts(found(HELPS)) == "0 holds, 0 refuted, 1 undecided"


def test_a_claim_that_several_schedules_speak_of_counts_once():
    once, thrice = list(pairs(HELPS, [1.0], schedule=SHORT)), list(pairs(HELPS, [1.0, 2.0, 3.0]))
    assert len(found(HELPS, *once, *thrice[:2])) == 2
    assert verdicts.counts(found(HELPS, *once, *thrice[:2])) == "0 holds, 0 refuted, 1 undecided"
    assert verdicts.counts(found(HELPS, *once, *thrice)) == "1 holds, 0 refuted, 0 undecided"
    refuting = list(pairs(HELPS, [-1.0] * 3, schedule=SHORT))
    assert verdicts.counts(found(HELPS, *refuting, *thrice)) == "1 holds, 0 refuted, 0 undecided"  # the longer tells


TRIED = [{"schedule": SMOKE}, {"schedule": DEMO}, {"on": cell_on_demo}, {"on": cell_on_demo, "schedule": SHORT}]


def named(how):
    """The same in every process, as tests that run side by side must be."""
    return " ".join(value.name if key == "schedule" else "on demo" for key, value in how.items())


@pytest.mark.parametrize("how", TRIED, ids=named)
@pytest.mark.parametrize("change", [5.0, -5.0])
def test_trials_are_left_out_and_where_asked_for_decide_nothing(how, change):
    records = list(pairs(HELPS, [change] * 3, **how))
    assert found(HELPS, *records) == [Finding(HELPS, None, None, (), HELPS.comparisons)]
    (finding,) = found(HELPS, *records, trials=True)
    assert finding.verdict == "tried" and [part.seeds for part in finding.parts] == [(0, 1, 2)]
    assert verdicts.counts([finding]) == "0 holds, 0 refuted, 0 undecided"
    assert [line[1] for line in verdicts.rows([finding])] == ["tried"]
    known = {one.id: one for one in records}
    left_out, told = verdicts.section(known), verdicts.section(known, trials=True)
    assert f"{len(CLAIMS)} undecided; over 0 records. Left out: 6" in left_out.note and "Tried: 6" in told.note
    assert not any("tried" in line for line in left_out.rows) and told.rows[0][:2] == ("L_TD helps", "tried")


def test_trials_do_not_change_what_other_records_decide():
    real, tried = list(pairs(HELPS, [1.0] * 3)), list(pairs(HELPS, [-9.0] * 3, schedule=SMOKE))
    assert found(HELPS, *real, *tried) == found(HELPS, *real)
    assert {one.verdict for one in found(HELPS, *real, *tried, trials=True)} == {"holds", "tried"}


def test_decided_claims_come_first_then_those_that_were_tried():
    claims = {claim.statement: claim for claim in CLAIMS}
    random, high = claims["random beats high confidence"], claims["high confidence beats low"]
    records = [*pairs(random, [-1.0] * 3), *pairs(high, [1.0], schedule=SMOKE), *pairs(HELPS, [1.0])]
    shown = verdicts.section({one.id: one for one in records}, trials=True).rows
    assert [line[:2] for line in shown[:3]] == [
        ("random beats high confidence", "refuted"),
        ("high confidence beats low", "tried"),
        ("L_sup helps", "undecided"),
    ]


@pytest.mark.parametrize(
    ("statement", "seeds", "needs"),
    [
        ("L_TD helps", [], "needs T4, seeds 0-2"),
        ("L_TD helps", [0], "needs T4, seeds 1-2"),
        ("L_TD helps", [1], "needs T4, seeds 0, 2"),
        ("L_TD helps", [0, 7], "needs T4, seed 1"),
        ("BYOL is better than SimCLR", [], "needs a BYOL that does not collapse, chosen on validation rows"),
        (
            "BYOL is slower than SimCLR",
            [],
            "needs T17, T18, seeds 0-2, timed on one kind of device with no other work on it",
        ),
        ("URSL is above gd", [], "needs T1, T2, T3, seeds 0-2"),
        ("URSL is above gd", [0, 1, 2], "needs T1, T2, T3, seeds 0-2"),
        ("the gate's AUROC rises over time", [0, 1, 2], "needs F2, seeds 0-2"),
    ],
)
def test_an_undecided_claim_says_what_would_decide_it(statement, seeds, needs):
    claim = next(claim for claim in CLAIMS if claim.statement == statement)
    first = claim.comparisons[0]
    records = [record(cell, seed, 30.0 + (cell is first.better))
               for seed in seeds for cell in (first.better, first.worse)]  # fmt: skip
    *compared, last = verdicts.rows(found(claim, *records))
    assert last[3:] == (needs, "—", "—", "—") and len(compared) == bool(seeds)


def test_the_gate_over_time_is_a_mean_over_seeds_by_classes_seen():
    cell = cell_of("F1", "9000-9000/ursl")
    records = [record(cell, 0, 30.0, gates=(0.5, 0.7)), record(cell, 1, 30.0, gates=(0.6, None))]
    points = over_time(records, auroc)
    assert [(point.classes, point.mean) for point in points] == [(1, pytest.approx(0.55)), (2, pytest.approx(0.7))]
    assert rows(records)[0][1] == "0.550 ± 0.050" and rows(records)[1][1] == "0.700"
    assert [line[-1] for line in rows(records)] == ["2", "1"]
    steps = tuple(replace(step, gate=replace(step.gate, precision=None)) for step in records[0].steps)
    assert [line[-1] for line in rows([replace(records[0], steps=steps), records[1]])] == ["2, 1", "1, 0"]
    assert rows([]) == []


def test_the_drawing_is_xml_with_a_point_for_every_step():
    from xml.etree import ElementTree

    drawn = ElementTree.fromstring(
        svg("F1: <curves> & more", "n=1", [record(cell_of("F1", "9000-9000/ursl"), 0, 30.0)])
    )
    assert len(drawn.findall(".//{*}circle")) == 4 and len(drawn.findall(".//{*}polyline")) == 2
    assert drawn.find("{*}title").text == "F1: <curves> & more"


# ----- as they are typed


@pytest.fixture
def on_disk(tmp_path, monkeypatch):
    """Records that fit together only as far as claims look at them."""
    monkeypatch.setattr("osscl.runs.record.flaw_of", lambda record: "")

    def write(*records):
        for one in records:
            folder = tmp_path / "results" / one.made_by.date
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{one.id}.json").write_text(json.dumps(record_to_plain(one)))
        return tmp_path / "results"

    return write


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_claim_is_a_block_with_no_word_broken(typed, on_disk, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    results = on_disk(*pairs(HELPS, [1.0, 2.0, 3.0]), *pairs(HELPS, [1.0], schedule=SHORT))
    code, shown, errors = typed("claims", "--results", results)
    lines = shown.splitlines()
    assert (code, errors) == (0, "") and lines[0] == "L_TD helps: holds at paper"
    assert max(map(len, lines)) <= width and len(lines) < 100
    words = " ".join(shown.split())
    assert "T4 all-losses/ursl − without-td/ursl: +2.0 ± 0.8 (n=3), seeds 0, 1, 2; paper's +2.0" in words
    assert "L_TD helps: undecided at short T4 all-losses/ursl − without-td/ursl: +1.0 (n=1), seed 0; " in words
    assert "rainbow is level with random: undecided, needs T15, seeds 0-2" in words
    for claim in CLAIMS:
        assert claim.statement in words


def test_claims_are_counted_once_however_many_schedules_have_pairs(typed, on_disk):
    results = on_disk(*pairs(HELPS, [1.0] * 3), *pairs(HELPS, [1.0], schedule=SHORT))
    others = len(CLAIMS) - sum(found(claim, *pairs(HELPS, [1.0]))[0].parts != () for claim in CLAIMS)
    for format in ("text", "markdown", "latex"):
        shown = " ".join(typed("claims", "--results", results, "--format", format)[1].split())
        counted = "at paper 1 holds, 0 refuted, 2 undecided; at short 0 holds, 0 refuted, 3 undecided"
        assert f"{len(CLAIMS)} claims: {counted}; {others} without a pair; over 8 records." in shown


def test_a_row_of_claims_can_be_read_without_those_above_it(typed, on_disk):
    claim = next(claim for claim in CLAIMS if claim.statement == "T-hat helps")
    parts = [replace(claim, comparisons=(comparison,)) for comparison in claim.comparisons]
    results = on_disk(*pairs(parts[0], [1.0, 2.0, 3.0]), *pairs(parts[1], [-0.5]))
    shown = typed("claims", "--results", results, "--format", "csv")[1]
    of_it = [line for line in csv.DictReader(shown.splitlines()) if line["claim"] == "T-hat helps"]
    numbers = [(line["difference"], line["std"], line["n"], line["seeds"], line["paper_difference"]) for line in of_it]
    assert numbers == [("2", "0.8165", "3", "0 1 2", "8.5"), ("-0.5", "", "1", "0", "5.9")]
    assert {(line["verdict"], line["schedule"], line["data"], line["needs"]) for line in of_it} == {
        ("undecided", "paper", "paper", "T5, seeds 1-2")
    }
    for format, start in (("markdown", "| T-hat helps | undecided (2 of 2 compared) |"), ("latex", "T-hat helps &")):
        lines = typed("claims", "--results", results, "--format", format)[1].splitlines()
        assert sum(line.startswith(start) for line in lines) == 2


def test_a_run_made_anew_for_its_time_decides_a_claim_about_minutes(typed, on_disk):
    slower = next(claim for claim in CLAIMS if claim.statement == "BYOL is slower than SimCLR")
    slower = replace(slower, comparisons=slower.comparisons[:1])
    (comparison,) = slower.comparisons
    timed = [record(comparison.better, 0, 30.0, minutes=4.0), record(comparison.worse, 0, 30.0, minutes=1.0)]
    shared = [replace(one, made_by=replace(one.made_by, shared_device=True)) for one in timed]
    assert not found(slower, *shared)[0].parts
    later = [replace(one, made_by=replace(one.made_by, date="2026-02-02")) for one in timed]
    shown = typed("claims", "--results", on_disk(*shared, *later), "--format", "csv")[1]
    (line,) = [line for line in csv.DictReader(shown.splitlines()) if line["claim"] == slower.statement]
    assert (line["difference"], line["n"], line["quantity"]) == ("3", "1", "minutes")


def sections_of(records):
    found = beside_paper(records)
    return [*found.tables, *found.claims]


def test_a_page_shows_the_tables_that_records_speak_of_and_the_claims():
    known = list(pairs(HELPS, [1.0]))
    titles = [section.title for section in sections_of(known)]
    assert titles[-1] == "Claims" and any(title.startswith("T4: ") for title in titles)
    assert all("schedule paper" in title for title in titles[:-1])
    assert not any(title.startswith(("T1:", "T3:", "T15:")) for title in titles)
    assert sections_of([]) == []


@pytest.mark.parametrize("how", TRIED, ids=named)
def test_a_page_of_trials_has_no_claims(how):
    sections = sections_of(list(pairs(HELPS, [1.0] * 3, **how)))
    assert sections and "Claims" not in [one.title for one in sections]
    real = [*pairs(HELPS, [1.0] * 3), *pairs(HELPS, [-9.0] * 3, **how)]
    claims = sections_of(real)[-1]
    assert claims.note.startswith(f"1 holds, 0 refuted, {len(CLAIMS) - 1} undecided") and claims.rows[0][1] == "holds"


def test_a_page_has_tables_of_values_figures_and_a_line_on_what_is_not_recorded():
    f1 = record(cell_of("F1", "9000-9000/ursl"), 0, 30.0)  # as well a cell of T2, T4 and more
    shown = beside_paper([f1])
    assert [table.title[:3] for table in shown.values] == ["T7:", "T8:"]
    (figure,) = shown.figures
    assert figure.title.startswith("F1: ") and "schedule paper" in figure.title and "seed 0, n=1" in figure.caption
    drawn = [trace["y"] for trace in figure.plots[0]["data"]]
    assert drawn == [[0.5, 0.7], [round(step.gate.precision, 4) for step in f1.steps]]
    assert figure.plots[0]["data"][0]["x"] == [1, 2]  # classes seen
    assert shown.note == "Not recorded: T1, T3, T9, T14, T15, T17, F2."


@pytest.mark.parametrize("how", TRIED, ids=named)
def test_a_page_of_trials_says_why_it_has_no_claims(how):
    tried = beside_paper(list(pairs(HELPS, [1.0], **how)))
    assert not tried.values and "The paper's claims are left out: " in tried.note
    only_data = [replace(one, spec=replace(one.spec, scenario=replace(one.spec.scenario, memory=777)))
                 for one in pairs(HELPS, [1.0], **how)]  # fmt: skip
    none = beside_paper([replace(one, id=one.spec.id) for one in only_data])
    assert not none.tables and none.note.startswith("The paper's tables and claims are left out: these runs are on")


def test_a_page_of_runs_that_no_table_has_says_so():
    (one, *_) = pairs(HELPS, [1.0])
    spec = replace(one.spec, scenario=replace(one.spec.scenario, memory=777))
    note = beside_paper([replace(one, id=spec.id, spec=spec)]).note
    assert note == "The paper's tables and claims are left out: none of these runs makes a cell of a table."


def test_claims_are_about_the_ablations_scenario():
    assert {comparison.better.scenario for comparison in HELPS.comparisons} == {ABLATION}
