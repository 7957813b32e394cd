"""The report is a function of records: what it says is what they hold, and nothing in them can break it."""

import base64
import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from osscl.config import override
from osscl.data.images import ImageBank, Labeled
from osscl.methods import CONFIGURATIONS
from osscl.methods.base import DEMO, PAPER, SHORT, SMOKE
from osscl.metrics import drops
from osscl.paper.tables import cell_of
from osscl.report import thumbnails
from osscl.report.beside import Beside
from osscl.report.chapters import chapters_of
from osscl.report.confusion import by_step, confusion
from osscl.report.figures import accuracy_curves, accuracy_matrix, forgetting_curves
from osscl.report.formats import TableSection, as_csv, as_latex, as_markdown, as_text
from osscl.report.gate import gate_over_time, looks_known, pass_rates, score_histograms
from osscl.report.html import cell, prose, table, titled_table
from osscl.report.naming import method_name, setting_words
from osscl.report.page import build_page, plotly_js
from osscl.report.sections import unlabeled_words
from osscl.report.tables import beside, headline, paper_of
from osscl.report.timing import time_by_phase
from osscl.runs.record import KnownRecord, Session, flaw_of, read_records

RESULTS = Path(__file__).parents[2] / "results" / "earlier"
KEPT = ("93df169921b7", "0c33d6e40a6d", "14bcaf241c7b")
VILE = '</script><script>alert("x")</script>'


@pytest.fixture(scope="module")
def kept():
    """Three that stay as they are, whatever is recorded later: two on one stream, one on another."""
    records, problems = read_records(RESULTS)
    assert not problems
    return [as_of_today(record) for record in records if record.id.rpartition("-")[2] in KEPT]


def as_of_today(record):
    """As if made by what the configuration's name stands for now."""
    spec = replace(record.spec, method=CONFIGURATIONS[record.configuration])
    return replace(record, id=spec.id, spec=spec)


@pytest.fixture(scope="module")
def ursl(kept):
    return next(record for record in kept if record.configuration == "ursl" and record.spec.scenario.main == "cifar10")


def at_seed(record, seed, by=0.0):
    """The same run at another seed, `by` points better."""
    spec = replace(record.spec, seed=seed)
    overall = tuple(value + by for value in record.overall)
    return replace(record, id=spec.id, spec=spec, overall=overall, final=overall[-1])


def one_chapter(*records):
    (chapter,) = chapters_of(records)
    return chapter


def every_figure(records):
    for chapter in chapters_of(records):
        yield from (accuracy_curves(chapter), forgetting_curves(chapter), time_by_phase(chapter))
        for entry in chapter.entries:
            yield from (accuracy_matrix(chapter, entry), confusion(chapter, entry, None))
            yield from (draw(chapter, entry) for draw in (gate_over_time, pass_rates, score_histograms))


# ----- what may stand together


def test_two_schedules_never_share_a_chapter(ursl):
    short = replace(ursl, spec=replace(ursl.spec, schedule=SHORT))
    assert [len(chapter.entries) for chapter in chapters_of([ursl, short])] == [1, 1]
    assert len(headline([ursl, short]).rows) == 2


def test_test_and_validation_rows_never_share_a_chapter(ursl):
    scenario = replace(ursl.spec.scenario, validation_share=0.1)
    chosen = replace(ursl, spec=replace(ursl.spec, scenario=scenario), evaluated_on="validation")
    chapters = chapters_of([ursl, chosen])
    assert sorted(chapter.rows_words for chapter in chapters) == ["test rows", "validation rows"]
    assert any("10 % held out as validation rows" in chapter.words for chapter in chapters)


def test_a_chapter_says_how_long_each_method_is_trained(ursl):
    assert one_chapter(ursl).schedule_words == "paper (reference 400/100, learner 200 epochs)"
    shorter = replace(ursl, spec=replace(ursl.spec, method=override(ursl.spec.method, ["learner.epochs=50"])))
    words = one_chapter(ursl, shorter).schedule_words
    assert words.startswith("paper: ") and "ursl reference 400/100, learner 200 epochs" in words
    assert "learner.epochs=50 reference 400/100, learner 50 epochs" in words
    alike = [override(ursl.spec.method, [f"learner.gamma={gamma}"]) for gamma in (0.3, 0.4)]
    more = [replace(ursl, spec=replace(ursl.spec, method=method)) for method in alike]
    words = one_chapter(ursl, shorter, *more).schedule_words
    assert words.endswith("; the others reference 400/100, learner 200 epochs")


def test_seeds_of_one_method_are_one_entry_with_their_number(ursl):
    chapter = one_chapter(at_seed(ursl, 2), ursl, at_seed(ursl, 1))
    assert [entry.label for entry in chapter.entries] == ["ursl · seeds 0, 1, 2 (n=3)"]


def test_every_figure_names_schedule_rows_and_number_of_runs(kept):
    for figure in every_figure(kept):
        said = figure.caption + str(figure.table) + str(figure.plots)
        assert re.search(r"schedule (paper|short)", figure.caption), figure.title
        assert "n=1" in said and "band" not in figure.caption, figure.title
        gate = "gate" in figure.title or "threshold" in figure.title
        assert figure.caption.endswith("unlabelled rows U_t.") == gate == ("test rows" not in figure.caption)


def test_a_band_is_explained_where_there_is_one(ursl):
    chapter = one_chapter(ursl, at_seed(ursl, 1))
    for figure in (accuracy_curves(chapter), forgetting_curves(chapter), gate_over_time(chapter, chapter.entries[0])):
        assert "band: lowest to highest seed" in figure.caption


# ----- figures


def test_the_band_spans_the_seeds_and_the_line_is_their_mean(ursl):
    chapter = one_chapter(ursl, at_seed(ursl, 1, by=4.0))
    band, line, *_ = accuracy_curves(chapter).plots[0]["data"]
    steps = len(ursl.overall)
    assert band["y"][:steps] == pytest.approx(list(ursl.overall), abs=1e-3)
    assert band["y"][steps:][::-1] == pytest.approx([value + 4 for value in ursl.overall], abs=1e-3)
    assert line["y"] == pytest.approx([value + 2 for value in ursl.overall], abs=1e-3)


def test_one_seed_has_no_band(ursl):
    traces = accuracy_curves(one_chapter(ursl)).plots[0]["data"]
    assert not [trace for trace in traces if trace.get("fill")]


def test_the_papers_number_is_a_mark_of_its_own(ursl):
    mark = accuracy_curves(one_chapter(ursl)).plots[0]["data"][-1]
    assert (mark["name"], mark["y"]) == ("the paper's URSL", [72.8])
    other = replace(ursl, spec=replace(ursl.spec, scenario=replace(ursl.spec.scenario, memory=300)))
    assert all(trace["name"] != mark["name"] for trace in accuracy_curves(one_chapter(other)).plots[0]["data"])


@pytest.mark.parametrize("method", ["co2l", "gd", "dm", "gem", "icarl"])
def test_the_papers_number_stands_beside_its_own_method_alone(ursl, method):
    other = replace(ursl, configuration=method, spec=replace(ursl.spec, method=CONFIGURATIONS[method]))
    assert paper_of(ursl) == (72.8, 0.9) and paper_of(other) is None and one_chapter(other).paper is None
    assert one_chapter(other, ursl).paper == (72.8, 0.9)
    theirs = {"co2l": (58.3, 1.0), "gd": (48.1, 1.3), "dm": (59.6, 4.2)}.get(method)  # in the paper's Table 1
    assert beside(ursl) == (72.8, 0.9) and beside(other) == theirs
    assert ('class="bar marked"' in build_page([other])) == (theirs is not None)


@pytest.mark.parametrize("schedule", [PAPER, SHORT])
def test_the_papers_number_is_beside_an_ablation_that_a_table_has(ursl, schedule):
    cell = cell_of("T4", "without-td/ursl")
    record = replace(ursl, spec=cell.spec(schedule, 0))
    column = headline([record]).columns.index("the paper %")
    assert headline([record]).rows[0][column] == "28.4 ± 0.7" and beside(record) == (28.4, 0.7)
    assert paper_of(record) is None  # it is not URSL as it stands, whose mark a figure has
    fewer = replace(ursl, spec=cell_of("T12", "1000-9000/ursl").spec(schedule, 0))
    assert beside(fewer) == paper_of(fewer) == (21.0, 1.1)


def test_the_papers_number_is_not_beside_an_ablation_that_no_table_has(ursl):
    for config in (CONFIGURATIONS["labels-only"], override(CONFIGURATIONS["ursl"], ["learner.gamma=0"])):
        other = replace(ursl, spec=replace(ursl.spec, method=config))
        assert beside(other) is paper_of(other) is None
    plus = replace(ursl, spec=replace(ursl.spec, method=CONFIGURATIONS["ursl-plus"]))
    assert beside(plus) == (72.8, 0.9)
    column = headline([plus]).columns.index("the paper %")
    assert headline([plus]).rows[0][column] == "72.8 ± 0.9 (URSL)"  # whose it is, for it is not that of ours
    assert headline([ursl]).rows[0][column] == "72.8 ± 0.9"


def test_a_record_keeps_the_name_that_it_ran_under(ursl):
    config = override(CONFIGURATIONS["ursl-plus"], ["learner.epochs=200"])
    changed = replace(ursl, configuration="ursl-plus", spec=replace(ursl.spec, method=config))
    assert method_name(changed) == "ursl-plus, learner.epochs=200"


@pytest.mark.parametrize("schedule", [SMOKE, DEMO, replace(PAPER, name="own", max_updates=3)])
def test_the_papers_number_is_not_beside_a_run_that_only_tries(ursl, schedule):
    tried = replace(ursl, spec=replace(ursl.spec, schedule=schedule))
    row = dict(zip(headline([tried]).columns, headline([tried]).rows[0], strict=True))
    assert row["the paper %"] == "—" and one_chapter(tried).paper is None


def test_a_smoke_run_says_that_it_shows_little(ursl):
    smoke = replace(ursl, spec=replace(ursl.spec, schedule=SMOKE))
    assert "shows that things run, not how well" in build_page([smoke])
    assert "shows that things run" not in build_page([ursl])


def test_unlabelled_rows_are_as_many_as_were_used(ursl):
    assert unlabeled_words(ursl) == "9,000 rows of the main set and 9,000 of each other set a step, unlabelled"
    steps = tuple(replace(step, unlabeled=512) for step in ursl.steps)
    smoke = replace(ursl, spec=replace(ursl.spec, schedule=SMOKE), steps=steps)
    assert unlabeled_words(smoke) == "512 unlabelled rows a step, capped by the schedule"
    fewer = replace(ursl, steps=(replace(steps[0], unlabeled=100), *steps[1:]))
    assert unlabeled_words(fewer) == "100 to 512 unlabelled rows a step"


def test_points_lost_average_to_the_records_forgetting(kept):
    for record in kept:
        lost = drops(record.accuracy)
        assert sum(lost) / len(lost) == pytest.approx(record.forgetting)


def test_confusion_by_step_keeps_every_row(kept):
    for record in kept:
        small = by_step(record)
        assert len(small) == len(record.steps)
        assert sum(map(sum, small)) == sum(map(sum, record.confusion))


def test_many_classes_can_also_be_seen_by_step(kept):
    (large,) = [record for record in kept if record.spec.scenario.main == "cifar100"]
    chapter = one_chapter(large)
    figure = confusion(chapter, chapter.entries[0], None)
    assert figure.positions == ("by class", "by step")
    assert [len(plot["data"][0]["z"]) for plot in figure.plots] == [100, 10]


def test_both_thresholds_are_drawn_at_every_step(ursl):
    chapter = one_chapter(ursl)
    figure = score_histograms(chapter, chapter.entries[0])
    for step, plot in zip(ursl.steps, figure.plots, strict=True):
        assert [shape["x0"] for shape in plot["layout"]["shapes"]] == [step.gate.threshold, step.gate.pseudo_threshold]


def test_time_counts_a_cached_reference_as_it_cost(kept):
    first, second = [record for record in kept if record.spec.scenario.main == "cifar10"]
    assert {phase.cached for record in (first, second) for phase in record.steps[0].phases} == {True, False}
    bars = {trace["name"]: trace["x"] for trace in time_by_phase(one_chapter(first, second)).plots[0]["data"]}
    assert bars["reference"][0] == bars["reference"][1] > 0


def test_a_run_that_shared_its_device_has_no_bar(kept):
    first, second = [record for record in kept if record.spec.scenario.main == "cifar10"]
    shared = replace(second, made_by=replace(second.made_by, shared_device=True))
    figure = time_by_phase(one_chapter(first, shared))
    assert [len(trace["x"]) for trace in figure.plots[0]["data"]] == [1] * len(figure.keys)
    assert time_by_phase(one_chapter(shared)) is None


def test_runs_without_a_bar_are_counted_and_the_reason_is_told(kept):
    first, second = [record for record in kept if record.spec.scenario.main == "cifar10"]
    shared = replace(second, made_by=replace(second.made_by, shared_device=True))
    assert "Not timed" not in time_by_phase(one_chapter(first, second)).caption
    words = "Not timed: 1 with other work on the device, of 2 runs."
    assert time_by_phase(one_chapter(first, shared)).caption.endswith(words)
    part = Session("commit", "another", "2")
    moved = replace(first, made_by=replace(first.made_by, earlier=(part,)))
    page = build_page([moved, shared])
    assert "Time by phase</h3>" not in page
    words = "Not timed: 1 with other work on the device and 1 begun on another device, of 2 runs."
    assert f"<p class=note>Time by phase is not drawn. {words}</p>" in page


def test_a_bar_is_the_mean_of_the_runs_that_are_timed(ursl):
    other = at_seed(ursl, 1)
    shared = replace(other, made_by=replace(other.made_by, shared_device=True))
    figure = time_by_phase(one_chapter(ursl, shared))
    assert figure.table.rows == time_by_phase(one_chapter(ursl)).table.rows
    assert "ursl · seed 0 (n=1)" in figure.table.rows[0]


def test_plotly_accepts_every_figure(kept):
    go = pytest.importorskip("plotly.graph_objects")
    for figure in every_figure(kept):
        for plot in figure.plots:
            text = re.sub(r'"@[a-z]+(-\d)?(/[\d.]+)?"', '"#123456"', json.dumps(plot))
            go.Figure(**json.loads(text))  # refuses what it does not know


def test_what_looks_known_is_drawn_of_methods_that_tell(ursl):
    assert all(step.known is None for step in ursl.steps)  # a record of before
    telling = replace(
        ursl, steps=tuple(replace(step, known=KnownRecord(0.9, 0.4, 0.8, 0.1, 0.0)) for step in ursl.steps)
    )
    chapter = one_chapter(telling)
    figure = looks_known(chapter, chapter.entries[0])
    assert [key.name for key in figure.keys] == ["seen", "foreign", "AUROC seen / rest", "FPR95"]
    assert figure.table.rows[0] == ("1", "0.800", "0.100", "0.900", "0.400")
    assert "What looks known" in build_page([telling]) and "What looks known" not in build_page([ursl])
    assert figure.caption.endswith("test rows of the main set, foreign rows that no U_t holds.")


def test_a_figure_without_values_is_not_drawn(ursl):
    blind = replace(ursl, steps=tuple(replace(step, gate=None) for step in ursl.steps))
    page = build_page([blind])
    assert "How well the gate tells" not in page and "Accuracy matrix" in page


def test_a_threshold_beyond_all_scores_is_still_in_sight(ursl):
    step = ursl.steps[0]
    strict = replace(step, gate=replace(step.gate, threshold=-0.9, pseudo_threshold=1.4))
    chapter = one_chapter(replace(ursl, steps=(strict, *ursl.steps[1:])))
    low, high = score_histograms(chapter, chapter.entries[0]).plots[0]["layout"]["xaxis"]["range"]
    assert low < -0.9 and high > 1.4


# ----- names


def test_a_changed_method_is_named_by_what_was_changed(ursl):
    method = replace(ursl.spec.method, learner=replace(ursl.spec.method.learner, gamma=0.0))
    changed = replace(ursl, configuration="ursl*", spec=replace(ursl.spec, method=method))
    assert method_name(changed) == "ursl, learner.gamma=0"
    assert method_name(ursl) == "ursl"


def test_settings_that_differ_in_any_field_differ_in_words(ursl):
    usual = ursl.spec.scenario
    others = [replace(usual, **{field: value}) for field, value in
              {"related": 4500, "imbalance": 10.0, "regime": "non_iid", "validation_share": 0.1}.items()]  # fmt: skip
    assert len({setting_words(scenario) for scenario in [usual, *others]}) == 5


# ----- tables


TABLE = TableSection("T̂ & U", ("a|b", "50 %"), [("x_1", "—"), ("72.8 ± 0.9", "Û, T̂ → {γ}")], "a note")


def test_markdown_keeps_its_columns():
    lines = as_markdown(TABLE).splitlines()
    assert lines[:2] == ["| a\\|b | 50 % |", "|---|---|"]
    assert len(lines) == 4


def test_csv_reads_back():
    assert list(csv.reader(io.StringIO(as_csv(TABLE)))) == [list(TABLE.columns), *map(list, TABLE.rows)]


def test_latex_makes_its_own_signs_harmless():
    text = as_latex(TABLE)
    assert r"x\_1 & --- \\" in text and r"72.8 $\pm$ 0.9 & $\hat U$, $\hat T$ $\to$ \{$\gamma$\} \\" in text
    assert text.startswith(r"\begin{tabular}{ll}")


def test_several_tables_are_told_apart_by_their_titles():
    assert as_text([TABLE, TABLE], "markdown").count("## T̂ & U") == 2
    assert "##" not in as_text([TABLE], "markdown")


def test_a_verdict_has_a_sign_beside_its_colour():
    assert "✓" in cell("reached") and "✗" in cell("short by 1.2") and "○" in cell("undecided (n=1)")
    assert "badge" not in cell("72.8 ± 0.9")


def test_further_sections_reach_the_page(ursl):
    further = Beside(tables=[TableSection("T2 <b>", ("cell", "verdict"), [("5 %", "reached")] * 3, "n=3")])
    page = build_page([ursl], beside=further)
    assert "T2 &lt;b&gt;" in page and 'class="badge good"' in page and "Beside the paper" in page
    assert "Beside the paper" not in build_page([ursl])


def test_cells_without_a_number_of_ours_are_folded_away_and_counted():
    rows = [("p05", "36.6 (n=1)", "30.4"), ("p10", "—", "37.5"), ("all", "—", "35.1")]
    page = titled_table(TableSection("T", ("row", "ours", "paper"), rows))
    shown, folded = page.split("<details>")
    assert "p05" in shown and "p10" not in shown and "p10" in folded and "all" in folded
    assert "2 of 3 cells without a number of ours" in folded
    assert "<details>" not in titled_table(TableSection("T", ("row", "ours", "paper"), rows[:1]))
    assert "<details>" not in titled_table(TableSection("T", ("row", "paper"), [("p05", "—")]))


@pytest.mark.parametrize(
    ("ours", "paper", "drawn"),
    [
        ("27.3 (n=1)", "30.4 ± 0.2", '<span class="bar marked" style="--ours:27.3%;--paper:30.4%"></span>'),
        ("36.6 ± 0.4 (n=3)", "—", '<span class="bar" style="--ours:36.6%"></span>'),
        ("0.7 min (n=1)", "15.75 min", None),
        ("11.4 ± 0.2 min (n=3)", "63 min", None),
        ("—", "30.4 ± 0.2", None),
    ],
)
def test_an_accuracy_beside_the_papers_is_a_bar(ours, paper, drawn):
    page = table(TableSection("T", ("row", "ours", "paper"), [("p05", ours, paper)]))
    assert drawn in page if drawn else 'class="bar' not in page


def test_claims_without_a_pair_are_folded_away_whole():
    rows = [("L_sup helps", "undecided", "+6.5 (n=1)"), ("", "needs T4", "—"), ("BYOL", "undecided", "—")]
    shown, folded = titled_table(TableSection("Claims", ("claim", "verdict", "difference"), rows)).split("<details>")
    assert "needs T4" in shown and "BYOL" not in shown and "BYOL" in folded
    assert "1 of 2 claims of which no pair of runs is recorded" in folded


def test_a_claim_counts_once_however_many_schedules_speak_of_it():
    rows = [("L_sup helps", "holds", "+1"), ("L_sup helps", "undecided", "+2"), ("BYOL", "undecided", "—")]
    page = titled_table(TableSection("Claims", ("claim", "verdict", "difference"), rows))
    assert "1 of 2 claims of which no pair of runs is recorded" in page


def test_cells_of_one_row_count_each():
    rows = [("p05", "ursl", "—"), ("p05", "co2l", "—"), ("p05", "gd", "9.1")]
    assert "2 of 3 cells" in titled_table(TableSection("T", ("row", "column", "ours"), rows))


def test_what_a_claim_needs_is_a_line_of_its_comparison_and_no_row_of_dashes():
    columns = ("claim", "verdict", "comparison", "difference")
    rows = [
        ("T-hat", "undecided (1 of 2)", "T5 3 − 1", "+9.1"),
        ("", "", "T5 4 − 2", "+1.2"),
        ("", "", "needs T5", "—"),
    ]
    page = table(TableSection("Claims", columns, rows))
    assert page.count("<tr") == 3 and "—" not in page and ">(1 of 2)</span>" in page
    assert '<th scope="row" rowspan="2">T-hat</th><td data-label="verdict" rowspan="2">' in page
    assert '<tr class=more><td data-label="comparison">T5 4 − 2<span class=further>needs T5</span></td>' in page


def test_columns_without_a_word_are_left_out_of_what_is_folded_away():
    rows = [("L_sup helps", "undecided", "short", "+6.5 (n=1)"), ("BYOL", "undecided", "—", "—")]
    folded = titled_table(TableSection("Claims", ("claim", "verdict", "schedule", "difference"), rows)).split(
        "<details>"
    )
    assert "schedule" in folded[0] and "schedule" not in folded[1] and "difference" not in folded[1]


def test_tables_with_hardly_a_number_of_ours_are_lines_to_be_opened(ursl):
    def told(title, *ours):
        return TableSection(title, ("row", "ours"), [(f"row {i}", value) for i, value in enumerate(ours)])

    tables = [told("T4", "27.3", "25.2", "20.8"), told("T5", "27.3", "37.0", "—")]
    page = build_page([ursl], beside=Beside(tables))
    assert "<h3>T4</h3>" in page and "<h3>T5</h3>" not in page
    assert "<summary>T5: 2 of 3 cells</summary>" in page
    assert "numbers of ours</h3>" not in build_page([ursl], beside=Beside(tables[:1]))


def test_a_page_of_many_settings_folds_the_insides_away(ursl):
    scenarios = [replace(ursl.spec.scenario, memory=memory) for memory in (10, 20, 30)]
    settings = [replace(ursl, spec=replace(ursl.spec, scenario=scenario)) for scenario in scenarios]
    assert build_page(settings[:2]).count('<details class="inside">') == 0
    assert build_page(settings).count('<details class="inside">') == 3


def test_a_table_can_be_scrolled_by_keyboard():
    assert 'tabindex="0" role="region" aria-label="T̂ &amp; U"' in table(TABLE)


def test_symbols_are_set_low_and_words_left_alone():
    assert prose("τ_id, SL_t−1, learner_batch") == "<i>τ</i><sub>id</sub>, <i>SL</i><sub>t−1</sub>, learner_batch"


# ----- the page


def test_the_page_needs_nothing_but_itself(ursl):
    page = build_page([ursl]).replace(plotly_js(), "")
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", page)
    assert "@import" not in page


def test_nothing_in_a_record_can_break_out_of_its_place(ursl):
    vile = replace(ursl, configuration=VILE, made_by=replace(ursl.made_by, command=f"osscl {VILE} \udc80", device=VILE))
    page = build_page([vile])
    assert 'alert("x")' not in page and "alert(&quot;x&quot;)" in page
    page.encode()  # no half characters either


def test_missing_is_a_dash(ursl):
    blind = replace(ursl, forgetting=None, steps=tuple(replace(step, gate=None) for step in ursl.steps))
    row = dict(zip(headline([blind]).columns, headline([blind]).rows[0], strict=True))
    assert row["forgetting"] == row["gate AUROC, first → last step"] == "—"


def test_each_run_says_how_it_was_made(kept):
    page = build_page(kept)
    for record in kept:
        assert record.made_by.command in page and record.made_by.commit in page and record.id in page


def test_the_same_records_make_the_same_page(kept):
    assert build_page(kept) == build_page(list(reversed(kept)))


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: replace(record, overall=record.overall[:-1]),
        lambda record: replace(record, accuracy=record.accuracy[::-1]),
        lambda record: replace(record, confusion=record.confusion[1:]),
        lambda record: replace(record, class_order=record.class_order[1:]),
    ],
)
def test_a_record_that_does_not_fit_together_is_told(ursl, damage):
    assert flaw_of(ursl) == ""
    assert flaw_of(damage(ursl))


# ----- pictures


@pytest.fixture(scope="module")
def banks(ursl):
    """Noise in place of CIFAR: no picture is harder to compress."""
    rng = torch.Generator().manual_seed(0)
    made = {}
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        images = torch.randint(0, 256, (50000, 3, 32, 32), generator=rng, dtype=torch.uint8)
        rows = Labeled(images, torch.arange(50000) % classes)
        names = tuple(f"{name}-{c}" for c in range(classes))
        made[name] = ImageBank(name, rows, rows, names, ursl.content[name])
    return made


def with_own_pictures(run, seed):
    """The same run at another seed, whose unlabelled rows are others."""
    shift = 100 * seed

    def moved(side):
        return tuple((name, (row + shift) % 50000) for name, row in side)

    steps = tuple(
        replace(s, gate=replace(s.gate, let_in=moved(s.gate.let_in), kept_out=moved(s.gate.kept_out)))
        for s in run.steps
    )
    return replace(at_seed(run, seed), steps=steps)


def shown_steps(strip):
    return [row.step for row in strip.rows if any(tile.sprite for tile in row.tiles)]


def test_all_pictures_together_stay_within_half_a_megabyte(ursl, banks):
    pictures = thumbnails.strips_of([with_own_pictures(ursl, seed) for seed in range(12)], banks)
    assert 400_000 < sum(len(sprite.uri) for sprite in pictures.sprites) <= 500_000
    assert len(pictures.strips) == 12 and all(strip.rows for strip in pictures.strips.values())


def test_a_picture_that_several_runs_show_is_stored_once(ursl, banks):
    (one,) = thumbnails.strips_of([ursl], banks).sprites
    pictures = thumbnails.strips_of([at_seed(ursl, seed) for seed in range(40)], banks)
    assert pictures.sprites == (one,)
    assert all(shown_steps(strip) == list(range(len(ursl.steps))) for strip in pictures.strips.values())


def test_where_room_is_scarce_the_papers_schedule_and_named_methods_come_first(ursl, banks):
    short = replace(ursl, spec=replace(ursl.spec, schedule=SHORT))
    ablation = replace(ursl, spec=replace(ursl.spec, method=override(ursl.spec.method, ["learner.gamma=0"])))
    runs = [with_own_pictures(run, seed) for seed, run in enumerate([short, ablation, ursl])]
    assert [run.spec.seed for run in sorted(runs, key=thumbnails.importance)] == [2, 1, 0]
    for budget, steps in ((25_000, [0, 0, 3]), (45_000, [0, 3, 3]), (65_000, [3, 3, 3]), (10**9, [5, 5, 5])):
        pictures = thumbnails.strips_of(runs, banks, budget)
        assert [len(shown_steps(pictures.strips[run.id])) for run in runs] == steps
        assert [pictures.strips[run.id].left_out for run in runs] == [not some for some in steps]


def test_pictures_of_different_sizes_lie_in_different_sprites(ursl, banks):
    small = banks["cifar100"]
    grey = replace(small, train=Labeled(small.train.images[:, :1, :16, :16], small.train.labels))
    pictures = thumbnails.strips_of([ursl], {**banks, "cifar100": grey})
    assert {sprite.uri[:15] for sprite in pictures.sprites} == {"data:image/jpeg", "data:image/png;"}


def test_a_picture_is_the_row_that_the_record_names(ursl, banks):
    from PIL import Image

    pictures = thumbnails.strips_of([ursl], banks, budget=10**9)
    first, step = pictures.strips[ursl.id].rows[0], ursl.steps[0]
    (sprite,) = pictures.sprites
    sheet = torch.tensor(np.array(Image.open(io.BytesIO(base64.b64decode(sprite.uri.partition(",")[2])))))
    for tile, (name, row) in zip(first.let_in, step.gate.let_in, strict=True):
        label = int(banks[name].train.labels[row])
        seen = label in step.new_classes
        kind = "foreign" if name != "cifar10" else "seen" if seen else "unseen"
        assert (tile.kind, tile.words) == (kind, f"{name}-{label} ({kind}; {name}, row {row})")
        down, across = divmod(tile.place, sprite.across)
        drawn = sheet[32 * down : 32 * down + 32, 32 * across : 32 * across + 32].permute(2, 0, 1).float()
        distance = [(drawn - banks[name].train.images[other].float()).abs().mean() for other in (row, row + 1)]
        assert distance[0] < distance[1] - 10  # as far as a JPEG of noise can be itself
    assert sprite.uri.startswith("data:image/jpeg;base64,") and len(pictures.strips[ursl.id].tiles) == 80


def test_without_the_data_one_line_says_how_to_see_the_pictures(ursl, banks):
    bare, whole = build_page([ursl]), build_page([ursl], banks)
    assert bare.count("--data DIR") == 1 and "card strip" not in bare
    assert "--data DIR" not in whole and "card strip" in whole


def test_other_data_under_the_same_name_gives_no_pictures(ursl, banks):
    other = {name: replace(bank, content="other") for name, bank in banks.items()}
    pictures = thumbnails.strips_of([ursl], other)
    strip = pictures.strips[ursl.id]
    assert pictures.sprites == () and all(tile.sprite is None for tile in strip.tiles) and strip.without_data
    assert {tile.kind for row in strip.rows for tile in row.let_in} == {"main", "foreign"}
