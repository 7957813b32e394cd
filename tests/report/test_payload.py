"""The numbers behind the figures are those of the records."""

from dataclasses import replace
from statistics import mean

import pytest

from osscl.methods.base import SHORT, Schedule
from osscl.report.page import payload, unique_slugs
from osscl.runs.record import KnownRecord, Session


def rows_of(*records, banks=None):
    (chapter,) = payload(records, banks or {})["chapters"]
    return chapter["rows"]


def untimed(record):
    return replace(record, made_by=replace(record.made_by, shared_device=True))


def test_every_seed_has_its_own_numbers(ursl, at_seed):
    (row,) = rows_of(at_seed(ursl, 1, by=4.0), ursl)
    assert row["seeds"] == [0, 1] and row["final"] == pytest.approx([ursl.final, ursl.final + 4])
    assert row["overall"][0] == pytest.approx(list(ursl.overall), abs=0.01)


def test_points_lost_average_to_the_records_forgetting(kept):
    for record in kept:
        (row,) = rows_of(record)
        assert (
            mean(row["dropped"])
            == pytest.approx(record.forgetting, abs=0.01)
            == pytest.approx(row["forgetting"][0], abs=0.01)
        )


def test_confusion_and_the_sizes_of_the_steps_are_whole(kept):
    for record in kept:
        (row,) = rows_of(record)
        assert sum(row["met"]) == len(row["order"]) == len(row["confusion"])
        assert sum(map(sum, row["confusion"])) == record.evaluated_rows


def test_each_step_has_both_thresholds_and_its_sizes(ursl):
    (row,) = rows_of(ursl)
    for step, scores in zip(ursl.steps, row["scores"], strict=True):
        assert (scores["accept"], scores["pseudo"]) == pytest.approx(
            (step.gate.threshold, step.gate.pseudo_threshold), abs=1e-4
        )
        assert (scores["accepted"], scores["labeled"], scores["of"]) == (
            step.gate.passed,
            step.gate.pseudo_labeled,
            step.unlabeled,
        )


def test_time_counts_a_cached_reference_as_it_cost(kept):
    first, second = [record for record in kept if record.spec.scenario.main == "cifar10"]
    assert {phase.cached for record in (first, second) for phase in record.steps[0].phases} == {True, False}
    one, other = rows_of(first, second)
    assert one["phases"]["reference"] == other["phases"]["reference"] > 0


def test_only_runs_that_are_timed_count(ursl, at_seed):
    (row,) = rows_of(ursl, untimed(at_seed(ursl, 1)))
    (alone,) = rows_of(ursl)
    assert row["phases"] == alone["phases"] and row["minutes"] == alone["minutes"] and len(row["minutes"]) == 1
    moved = replace(ursl, made_by=replace(ursl.made_by, earlier=(Session("commit", "another", "2"),)))
    for record in (untimed(ursl), moved):
        assert rows_of(record)[0]["minutes"] == [] and rows_of(record)[0]["phases"] == {}


def test_readings_without_a_value_are_left_out(ursl):
    assert rows_of(ursl)[0]["known"] == {}  # the record is older than the reading
    telling = replace(
        ursl, steps=tuple(replace(step, known=KnownRecord(0.9, 0.4, 0.8, 0.1, 0.0)) for step in ursl.steps)
    )
    assert {name: runs[0][0] for name, runs in rows_of(telling)[0]["known"].items()} == {
        "Known: AUROC": 0.9, "Known: seen": 0.8, "Known: foreign": 0.1, "Known: FPR95": 0.4,
    }  # fmt: skip
    blind = replace(ursl, steps=tuple(replace(step, gate=None) for step in ursl.steps))
    (row,) = rows_of(blind)
    assert row["gate"] == {} and row["scores"] == [None] * len(ursl.steps) and row["strip"] is None


def test_an_ablation_names_its_base_and_its_changes(ursl, named):
    method = replace(ursl.spec.method, learner=replace(ursl.spec.method.learner, gamma=0.0))
    spec = replace(ursl.spec, method=method)
    rows = rows_of(ursl, replace(ursl, id=spec.id, configuration="ursl*", spec=spec, final=1.0))
    assert [(row["base"], row.get("changes")) for row in rows] == [(None, None), ("ursl", {"learner.gamma": "0"})]


def test_keys_of_chapters_and_rows_are_unique(kept, ursl):
    own = [replace(ursl, spec=replace(ursl.spec, schedule=Schedule("own", share=share))) for share in (0.1, 0.2)]
    chapters = payload([*kept, replace(ursl, spec=replace(ursl.spec, schedule=SHORT)), *own], {})["chapters"]
    assert len({(chapter["key"], chapter["schedule"]) for chapter in chapters}) == len(chapters) == 5
    for chapter in chapters:
        assert len({row["key"] for row in chapter["rows"]}) == len(chapter["rows"])


def test_students_t_reaches_as_far_as_the_seeds(ursl, at_seed):
    assert payload([ursl], {})["t95"] == [12.7062]
    assert payload([at_seed(ursl, seed) for seed in range(4)], {})["t95"] == [12.7062, 4.3027, 3.1824]


def test_slugs_are_unique_even_where_a_name_has_a_number():
    assert unique_slugs(["a", "A", "a 1", "", "?"]) == ["a", "a-1", "a-1-1", "row", "row-1"]


def test_accuracies_are_rounded_only_once_on_the_page(ursl):
    steps = len(ursl.overall)
    exact = replace(ursl, overall=(50.0499,) * steps)
    row = payload([exact], {})["chapters"][0]["rows"][0]
    assert row["overall"][0][0] == 50.0499  # 50.0 on the page; rounded to two digits, it would be 50.1
