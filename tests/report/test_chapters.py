"""What may stand together on the page, and the sentence that it opens with."""

from dataclasses import replace

import pytest

from osscl.config import override
from osscl.methods import CONFIGURATIONS
from osscl.methods.base import DEMO, PAPER, SHORT, SMOKE
from osscl.paper.tables import cell_of
from osscl.report.chapters import chapters_of, headline_table, opening, published_beside
from osscl.report.chapters import conclusion as sentences
from osscl.report.formats import value_text
from osscl.runs.spec import ForeignConfig, on_small_net


def only_chapter(*records):
    (chapter,) = chapters_of(records)
    return chapter


def conclusion(chapter):
    return " ".join(sentences(chapter)).replace("\N{NO-BREAK SPACE}", " ")


def at_schedule(record, schedule):
    return replace(record, spec=replace(record.spec, schedule=schedule))


def changed(record, *changes):
    spec = replace(record.spec, method=override(record.spec.method, changes))
    return replace(record, id=spec.id, configuration="ursl*", spec=spec)


def test_schedules_never_share_a_chapter(ursl):
    assert [len(chapter.entries) for chapter in chapters_of([ursl, at_schedule(ursl, SHORT)])] == [1, 1]


def test_test_and_validation_rows_never_share_a_chapter(ursl):
    scenario = replace(ursl.spec.scenario, validation_share=0.1)
    chosen = replace(ursl, spec=replace(ursl.spec, scenario=scenario), evaluated_on="validation")
    chapters = chapters_of([ursl, chosen])
    assert sorted(chapter.first.evaluated_on for chapter in chapters) == ["test", "validation"]
    assert any("10 % held out as validation rows" in chapter.setting for chapter in chapters)


def test_seeds_of_one_method_are_one_entry(ursl, at_seed):
    (entry,) = only_chapter(at_seed(ursl, 2), ursl, at_seed(ursl, 1)).entries
    assert list(entry.finals) == [0, 1, 2]


def test_a_chapter_says_how_long_each_method_is_trained(ursl):
    assert only_chapter(ursl).schedule_words == "paper (reference 400/100, learner 200 epochs)"
    shorter = changed(ursl, "learner.epochs=50")
    more = [changed(ursl, f"learner.gamma={gamma}") for gamma in (0.3, 0.4)]
    words = only_chapter(ursl, shorter, *more).schedule_words
    assert "learner.epochs=50: paper (reference 400/100, learner 50 epochs)" in words
    assert words.endswith("; others: paper (reference 400/100, learner 200 epochs)")


def test_unlabelled_images_are_as_many_as_were_used(ursl):
    assert only_chapter(ursl).facts.endswith(
        "9,000 unlabelled images of the main set and 9,000 of each other set per step"
    )
    steps = tuple(replace(step, unlabeled=512) for step in ursl.steps)
    smoke = at_schedule(replace(ursl, steps=steps), SMOKE)
    assert only_chapter(smoke).facts.endswith("; 512 unlabelled images per step, capped by the schedule")
    fewer = replace(ursl, steps=(replace(steps[0], unlabeled=100), *steps[1:]))
    assert only_chapter(fewer).facts.endswith("100 to 512 unlabelled images per step")


# ----- the paper's mark


@pytest.mark.parametrize("method", ["co2l", "gd", "dm", "gem", "icarl"])
def test_the_papers_number_is_shown_next_to_its_own_method(ursl, named, method):
    theirs = {"co2l": (58.3, 1.0), "gd": (48.1, 1.3), "dm": (59.6, 4.2)}.get(method)  # in the paper's Table 1
    assert only_chapter(named(ursl, method)).entries[0].published == theirs
    assert only_chapter(ursl).entries[0].published == (72.8, 0.9)


@pytest.mark.parametrize("schedule", [SHORT, SMOKE, DEMO, replace(PAPER, name="own", max_updates=3)])
def test_runs_of_another_schedule_have_no_mark_of_the_paper(ursl, schedule):
    chapter = only_chapter(at_schedule(ursl, schedule))
    assert chapter.entries[0].published is None and "the paper reports" not in conclusion(chapter)


def test_an_ablation_has_the_mark_that_a_table_has_and_no_other(ursl, named):
    ablation = replace(ursl, spec=cell_of("T4", "without-td/ursl").spec(PAPER, 0))
    assert only_chapter(ablation).entries[0].published == (28.4, 0.7)
    assert only_chapter(changed(ursl, "learner.gamma=0")).entries[0].published is None
    assert only_chapter(named(ursl, "labels-only")).entries[0].published is None


def test_ours_never_carries_the_papers_mark(ursl, named):
    assert only_chapter(named(ursl, "ursl-plus")).entries[0].published is None


# ----- the conclusion


def test_the_conclusion_says_what_was_found_by_how_much_and_how_certain_it_is(ursl, named, at_seed):
    rivals = [at_seed(named(ursl, "co2l"), seed, by=-2.0 - 0.1 * seed) for seed in range(3)]
    chapter = only_chapter(*(at_seed(ursl, seed) for seed in range(3)), *rivals)
    said = conclusion(chapter)
    assert said.startswith(
        f"On CIFAR-10 among CIFAR-100 with 10 % labels, URSL reaches a final accuracy of "
        f"{ursl.final:.1f} ± 0.0 % (n = 3 seeds), "
        f"2.1 points above the best competitor, Co2L ({ursl.final - 2.1:.1f} ± 0.1 %, n = 3); "
        "the paper reports 72.8 ± 0.9 % for URSL."
    )
    assert "The difference from Co2L has a 95 % interval of +1.9 to +2.3 (3 paired seeds)." in said
    assert "single runs" not in said


def test_an_ablation_is_not_called_a_competitor(ursl, named):
    said = conclusion(only_chapter(ursl, named(ursl, "labels-only", by=-1.0)))
    assert "1.0 points above labels alone (" in said and "competitor" not in said


def test_the_main_finding_is_one_sentence(ursl, named):
    first, *more = sentences(only_chapter(ursl, named(ursl, "dm"), named(ursl, "ursl-plus")))
    assert "URSL reaches a final accuracy of" in first and "competitor" in first and "the paper reports" in first
    assert len(more) == 3 and more[0] == "URSL uses our optimisers, projector and head."


def test_an_interval_that_includes_zero_is_mentioned(ursl, named, at_seed):
    rivals = [at_seed(named(ursl, "dm"), seed, by=by) for seed, by in enumerate((-3.0, 1.0, 1.0))]
    said = conclusion(only_chapter(*(at_seed(ursl, seed) for seed in range(3)), *rivals))
    assert (
        "The difference from DM is not significant at the 5 % level (95 % interval −5.4 to +6.1, 3 paired seeds)."
        in said
    )


def test_ours_is_distinguished_from_the_papers_algorithm_and_is_not_a_competitor(ursl, named):
    chapter = only_chapter(ursl, named(ursl, "ursl-plus", by=5.0))
    said = conclusion(chapter)
    assert "competitor" not in said and chapter.subject.name == "ursl"
    assert f"URSL-plus, our extension, reaches {ursl.final + 5:.1f} % (n = 1), 5.0 points above URSL." in said
    assert said.endswith("Single runs: variation between seeds is not measured.")


def test_without_ursl_the_best_method_is_compared_with_the_next(ursl, named):
    said = conclusion(only_chapter(named(ursl, "icarl", by=1.0), named(ursl, "gem")))
    assert "iCaRL reaches a final" in said and "1.0 points above the next best, GEM (" in said


def test_an_unusual_setting_and_another_schedule_are_named(ursl):
    scenario = replace(ursl.spec.scenario, related=4500)
    said = conclusion(only_chapter(at_schedule(replace(ursl, spec=replace(ursl.spec, scenario=scenario)), SHORT)))
    assert said.startswith(
        "On CIFAR-10 among CIFAR-100 with 10 % labels (4,500 unlabelled images of the main set) under the short "
        "schedule, URSL"
    )


def test_a_hardly_trained_method_at_a_short_schedule_is_not_a_competitor(ursl, named):
    def with_updates(record, updates):
        first, *rest = record.steps[0].phases
        phases = (replace(first, updates=updates), *(replace(phase, updates=0) for phase in rest))
        silent = [replace(step, phases=()) for step in record.steps[1:]]
        return replace(record, steps=(replace(record.steps[0], phases=phases), *silent))

    rows = with_updates(ursl, 1000), with_updates(named(ursl, "co2l", by=-20.0), 249)
    short = only_chapter(*(at_schedule(row, SHORT) for row in rows))
    assert short.competitor is None and "Co2L" not in conclusion(short)
    assert only_chapter(*rows).competitor is not None  # the paper's own schedule decides how long it is trained
    longer = only_chapter(at_schedule(rows[0], SHORT), at_schedule(with_updates(rows[1], 250), SHORT))
    assert longer.competitor is not None


def test_a_smoke_run_says_that_it_shows_little(ursl):
    assert "shows that the code runs, not how well" in conclusion(only_chapter(at_schedule(ursl, SMOKE)))
    assert "shows that the code runs" not in conclusion(only_chapter(ursl))


def test_the_page_opens_with_the_papers_schedule_and_the_most_methods(ursl, named):
    small = replace(ursl, spec=replace(ursl.spec, scenario=replace(ursl.spec.scenario, memory=300)))
    chapters = chapters_of(
        [at_schedule(ursl, SHORT), at_schedule(named(ursl, "dm"), SHORT), small, ursl, named(ursl, "gd")]
    )
    assert opening(chapters).first.spec.schedule == PAPER and len(opening(chapters).entries) == 2


def test_an_ablation_knows_the_full_method_it_was_made_from(ursl, named):
    ablation = changed(named(ursl, "ursl-plus"), "learner.gamma=0")
    chapter = only_chapter(ursl, named(ursl, "ursl-plus"), ablation, named(ursl, "dm"))
    found = {entry.name: chapter.base_of(entry) for entry in chapter.entries if not entry.configuration}
    ((base, changes),) = found.values()
    assert base.configuration == "ursl-plus" and changes == {"learner.gamma": "0"}
    assert CONFIGURATIONS["ursl-plus"] == base.first.spec.method


# ----- methods of other packages, and schedules that cut nothing


def foreign(record, fields, by=0.0):
    spec = replace(record.spec, method=ForeignConfig("rehearsal", fields))
    overall = tuple(value + by for value in record.overall)
    return replace(
        record, id=spec.id, configuration="rehearsal", spec=spec, overall=overall, final=overall[-1]
    )  # fmt: skip


def test_a_method_of_another_package_is_a_method_with_a_short_name(ursl):
    chapter = only_chapter(ursl, foreign(ursl, "{}", by=-1.0))
    assert [(entry.name, entry.configuration) for entry in chapter.entries][1] == ("rehearsal", "rehearsal")
    assert "1.0 points above the best competitor, rehearsal (" in conclusion(chapter)
    two = only_chapter(foreign(ursl, "{}"), foreign(ursl, '{"rate": 1}'))
    names = [entry.name for entry in two.entries]
    assert len(set(names)) == 2 and all(name.startswith("rehearsal ") for name in names)


@pytest.mark.parametrize(("schedule", "is_baseline"), [(PAPER, True), (DEMO, True), (SHORT, False), (SMOKE, False)])
def test_few_updates_rule_out_a_baseline_only_where_the_schedule_cuts_them(ursl, named, schedule, is_baseline):
    co2l = named(ursl, "co2l", by=-1.0)
    few = tuple(replace(step, phases=step.phases[:0]) for step in co2l.steps)
    chapter = only_chapter(at_schedule(ursl, schedule), at_schedule(replace(co2l, steps=few), schedule))
    assert (chapter.competitor is not None) == is_baseline


def test_seeds_are_paired_only_where_both_runs_met_the_same_data(ursl, named, at_seed):
    rivals = [at_seed(named(ursl, "co2l"), seed, by=-2.0 - 0.1 * seed) for seed in range(3)]
    rivals[0] = replace(rivals[0], content=dict.fromkeys(ursl.content, "other"))
    said = conclusion(only_chapter(*(at_seed(ursl, seed) for seed in range(3)), *rivals))
    assert "(2 paired seeds)" in said


def test_of_two_sizes_of_ursl_the_conclusion_is_about_the_schedules_own(ursl):
    spec = replace(ursl.spec, method=on_small_net(ursl.spec.method))
    small = replace(ursl, id=spec.id, spec=spec, final=ursl.final - 1.0)
    for records in ([ursl, small], [small, ursl]):
        chapter = only_chapter(*records)
        assert chapter.subject.first is ursl and "URSL reaches a final" in conclusion(chapter)
        assert {entry.name for entry in chapter.entries} == {"ursl", "ursl, small networks"}


# ----- the headline table: one row per setting and method, the paper's number beside its own method and schedule


def row_of(record):
    table = headline_table([record])
    return {column.name: value_text(value) for column, value in zip(table.columns, table.rows[0], strict=True)}


def test_schedules_never_share_a_row(ursl):
    short = replace(ursl, spec=replace(ursl.spec, schedule=SHORT))
    assert len(headline_table([ursl, short]).rows) == 2


def test_the_papers_number_is_shown_for_an_ablation_in_a_table(ursl):
    record = replace(ursl, spec=cell_of("T4", "without-td/ursl").spec(PAPER, 0))
    assert row_of(record)["paper %"] == "28.4 ± 0.7" and published_beside(record) == (28.4, 0.7)
    fewer = replace(ursl, spec=cell_of("T12", "1000-9000/ursl").spec(PAPER, 0))
    assert published_beside(fewer) == (21.0, 1.1)


def test_the_papers_number_next_to_ours_names_its_method(ursl, named):
    assert row_of(named(ursl, "ursl-plus"))["paper %"] == "72.8 ± 0.9 (URSL)"
    assert row_of(ursl)["paper %"] == "72.8 ± 0.9"


@pytest.mark.parametrize("schedule", [SHORT, SMOKE, DEMO, replace(PAPER, name="own", max_updates=3)])
def test_the_papers_number_is_not_shown_for_another_schedule(ursl, schedule):
    assert row_of(replace(ursl, spec=replace(ursl.spec, schedule=schedule)))["paper %"] == "—"


def test_missing_is_a_dash(ursl):
    blind = replace(ursl, forgetting=None, steps=tuple(replace(step, gate=None) for step in ursl.steps))
    assert row_of(blind)["forgetting"] == row_of(blind)["gate AUROC, first step"] == "—"
