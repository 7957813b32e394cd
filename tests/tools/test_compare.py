"""Differences over pairs of seeds, against scipy and by hand; and what may not be compared."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats

from osscl.errors import UserError
from osscl.methods import CONFIGURATIONS
from osscl.methods.base import PAPER, SHORT
from osscl.report.naming import setting_words
from osscl.report.tables import grouped
from osscl.runs.record import read_records, record_to_plain
from osscl.tools.compare import difference, paired, sign_test

FIRST, SECOND = [30.1, 31.4, 29.7, 30.9], [28.0, 30.2, 30.0, 29.1]
RECORDS, _ = read_records(Path(__file__).parents[2] / "results/earlier")  # these stay as they are
BASE = next(record for record in RECORDS if record.configuration == "ursl")


def made(seed, final, configuration="ursl", **changes):
    """A record like a kept one, of another seed and outcome."""
    spec = replace(BASE.spec, seed=seed, **changes)
    return replace(BASE, spec=spec, id=spec.id, final=final, configuration=configuration)


def side(values, configuration="ursl", **changes):
    return [made(seed, value, configuration, **changes) for seed, value in enumerate(values)]


# ----- numbers


def test_interval_and_t_test_are_scipys():
    found, theirs = difference(FIRST, SECOND), stats.ttest_rel(FIRST, SECOND)
    assert found.t_test == pytest.approx(theirs.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval(0.95)))
    narrower = difference(FIRST, SECOND, 0.8)
    assert (narrower.low, narrower.high) == pytest.approx(tuple(theirs.confidence_interval(0.8)))


def test_three_pairs_by_hand():
    # Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3); Student's t with 2 degrees has .975 at 4.302653.
    found = difference([3, 4, 5], [2, 2, 2])
    assert (found.mean, found.wins, found.losses, found.n) == (2, 3, 0, 3)
    assert found.high - found.mean == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert found.sign_test is None  # three wins of three happen one time in four


def test_the_other_way_round_is_the_same_with_another_sign():
    a, b = difference(FIRST, SECOND), difference(SECOND, FIRST)
    assert (a.mean, a.low, a.high) == pytest.approx((-b.mean, -b.high, -b.low))
    assert a.t_test == pytest.approx(b.t_test) and (a.wins, a.losses) == (b.losses, b.wins)


@pytest.mark.parametrize(("wins", "losses", "p"), [(6, 0, 2 / 64), (0, 6, 2 / 64), (6, 1, 16 / 128), (5, 5, 1.0)])
def test_the_sign_test_counts_coin_tosses(wins, losses, p):
    assert sign_test(wins, losses) == pytest.approx(p)


def test_the_sign_test_says_nothing_where_no_outcome_could():
    assert sign_test(5, 0) is None and sign_test(0, 0) is None
    assert sign_test(5, 0, level=0.1) == pytest.approx(2 / 32)


def test_one_pair_has_a_difference_and_nothing_else():
    found = difference([3.0], [2.0])
    assert (found.mean, found.low, found.t_test, found.sign_test) == (1.0, None, None, None)


def test_differences_that_are_all_the_same_have_no_interval():
    assert difference([2.0, 3.0], [1.0, 2.0]).low is None


def test_rounding_of_single_precision_is_no_difference():
    """Two more of 445 images right in each pair, as a record has it."""
    rates = torch.tensor([400, 398, 371, 369], dtype=torch.float32) / 445
    a, b, c, d = (100 * float(rate) for rate in rates)
    found = difference([a, c], [b, d])
    assert a - b != c - d and (found.low, found.t_test) == (None, None)
    tie = difference([a, a + 1e-6], [a, a])
    assert (tie.wins, tie.losses) == (0, 0)


# ----- what is paired


def test_records_are_paired_by_seed_whatever_their_order():
    (pairs,) = paired(side([1, 2, 3])[::-1], side([5, 7], "co2l"))
    assert pairs.seeds == (0, 1) and pairs.measured("final").differences == (-4, -5)


def test_settings_are_compared_one_by_one():
    both = [*side([1, 2]), *side([3], schedule=SHORT)]
    found = paired(both, [*side([0, 0]), *side([0], schedule=SHORT)])
    assert [pairs.measured("final").differences for pairs in found] == [(1, 2), (3,)]


def test_another_memory_is_no_other_stream():
    smaller = side([5, 7], scenario=replace(BASE.spec.scenario, memory=100))
    assert paired(side([1, 2]), smaller)[0].seeds == (0, 1)


def test_equal_memories_are_paired_where_there_are_any():
    smaller = replace(BASE.spec.scenario, memory=100)
    both = [*side([1, 2]), *side([3, 4], scenario=smaller)]
    found = paired(both, [*side([0, 0], scenario=smaller), *side([0, 0])])
    assert [pairs.measured("final").differences for pairs in found] == [(1, 2), (3, 4)]
    assert [{record.spec.scenario.memory for record in (*one.first, *one.second)} for one in found] == [{200}, {100}]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schedule": SHORT}, "schedules differ, short"),
        ({"scenario": replace(BASE.spec.scenario, related=10)}, "streams differ"),
        ({"stream": "abc"}, "streams differ"),
    ],
    ids=["schedule", "scenario", "file"],
)
def test_other_schedules_and_streams_are_refused_unless_told_to(changes, words):
    assert BASE.spec.schedule == PAPER
    other = side([5, 7], **changes)
    with pytest.raises(UserError, match=words):
        paired(other, side([1, 2]))
    (pairs,) = paired(other, side([1, 2]), anyway=True)
    assert pairs.measured("final").differences == (4, 5)


def test_other_data_rows_and_class_orders_are_refused():
    for changes, words in (
        ({"content": {"cifar10": "other"}}, "the data of"),
        ({"evaluated_on": "validation"}, "validation rows"),
        ({"class_order": (1, 0)}, "another stream"),
    ):
        other = [replace(record, **changes) for record in side([1, 2])]
        with pytest.raises(UserError, match=words):
            paired(side([1, 2]), other)
        assert paired(side([1, 2]), other, anyway=True)[0].seeds == (0, 1)


def test_sides_without_a_common_seed_are_refused():
    with pytest.raises(UserError, match="no seed in common"):
        paired([made(0, 1)], [made(1, 1)])


def test_two_runs_of_one_seed_on_a_side_are_refused():
    variant = replace(BASE.spec.method, learner=replace(BASE.spec.method.learner, lam=0.9))
    with pytest.raises(UserError, match="two runs of one seed"):
        paired([*side([1]), *side([2], method=variant)], side([1]))


def test_a_measure_that_a_record_lacks_is_none():
    (pairs,) = paired([replace(made(0, 1), forgetting=None)], [made(0, 1)])
    assert pairs.measured("forgetting") is None


# ----- as it is typed


@pytest.fixture
def results(typed, tmp_path):
    folder = tmp_path / "results"
    other = replace(BASE.spec.method, learner=replace(BASE.spec.method.learner, lam=0.9))
    for record in (*side([31.0, 32.0, 33.5], "A-one"), *side([30.0, 30.5, 31.0], "B-one", method=other)):
        where = folder / record.configuration
        where.mkdir(parents=True, exist_ok=True)
        (where / f"{record.id}.json").write_text(json.dumps(record_to_plain(record)))
    return folder


def test_names_folders_and_files_are_compared(typed, results):
    code, shown, _ = typed("compare", "A-one", "B-one", "--results", results)
    assert code == 0 and "+1.67" in shown and "0, 1, 2 (n=3)" in shown and "paper" in shown
    assert "— (3 of 3)" in shown and "needs 6 pairs" in shown
    assert typed("compare", results / "A-one", results / "B-one")[:2][0] == 0
    first, second = (sorted((results / name).iterdir())[0] for name in ("A-one", "B-one"))
    code, shown, _ = typed("compare", first, second)
    assert code == 0 and "+1.00" in shown and "(n=1)" in shown


def test_a_name_is_what_it_stands_for_now(typed):
    earlier = Path(__file__).parents[2] / "results" / "earlier"
    code, _, error = typed("compare", "ursl", "ursl-plus", "--results", earlier)
    assert code == 2 and "no records of 'ursl'" in error and "; ursl, " in error


def test_a_changed_configuration_goes_by_what_runs_shows(typed, tmp_path):
    usual = CONFIGURATIONS["ursl"]
    changed = [replace(usual, learner=replace(usual.learner, gamma=gamma)) for gamma in (1.0, 2.0)]
    for method in (usual, *changed):
        for record in side([1, 2], "ursl" if method is usual else "ursl*", method=method):
            (tmp_path / f"{record.id}.json").write_text(json.dumps(record_to_plain(record)))
    code, shown, _ = typed("compare", "ursl", "ursl, learner.gamma=2", "--results", tmp_path)
    assert code == 0 and "0, 1 (n=2)" in shown
    code, _, error = typed("compare", "ursl", "ursl*", "--results", tmp_path)
    assert code == 2 and "several configurations" in error and "ursl, learner.gamma=1; ursl, learner.gamma=2" in error
    error = typed("compare", "ursl", "x", "--results", tmp_path)[2]
    assert "there are: ursl; ursl, learner.gamma=1; ursl, learner.gamma=2" in error


def test_fields_say_what_a_run_is_whatever_it_was_called(typed, tmp_path):
    ours, theirs = CONFIGURATIONS["ursl-plus"], CONFIGURATIONS["ursl"]
    sides = [*side([2, 2], "ursl*", method=ours)[:1], *side([2, 3], "ursl-plus", method=ours)[1:]]
    sides += side([1, 1], "ursl", method=theirs)
    for record in sides:
        (tmp_path / f"{record.id}.json").write_text(json.dumps(record_to_plain(record)))
    code, shown, _ = typed("compare", "ursl-plus", "ursl", "--results", tmp_path)
    assert code == 0 and "0, 1 (n=2)" in shown and "+1.50" in shown
    assert [len(runs) for runs in grouped(sides)] == [2, 2]


def test_other_memories_and_runs_without_a_partner_are_told(typed, tmp_path):
    fewer, short = replace(BASE.spec.scenario, memory=120), side([3], "A-one", schedule=SHORT)
    for record in (*side([2, 2], "A-one"), *short, *side([1, 1], "B-one", scenario=fewer)):
        folder = tmp_path / record.configuration
        folder.mkdir(exist_ok=True)
        (folder / f"{record.id}.json").write_text(json.dumps(record_to_plain(record)))
    code, shown, _ = typed("compare", tmp_path / "A-one", tmp_path / "B-one")
    assert code == 0 and "M=200 of A, M=120 of B" in shown and f"Not paired: {short[0].id}" in shown


def test_settings_are_headings_and_rows_are_sorted_and_whole_at_80_columns(typed, results, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    other = replace(BASE.spec.method, learner=replace(BASE.spec.method.learner, lam=0.9))
    fewer = replace(BASE.spec.scenario, memory=120)
    for name, method in (("A-one", BASE.spec.method), ("B-one", other)):
        for changes in ({"schedule": SHORT}, {"scenario": fewer, "schedule": replace(PAPER, name="a-first")}):
            for record in side([20.0, 21.0], name, method=method, **changes):
                (results / name / f"{record.id}.json").write_text(json.dumps(record_to_plain(record)))
    code, shown, _ = typed("compare", "A-one", "B-one", "--results", results)
    lines = shown.splitlines()
    headings = [line for line in lines if line.startswith(f"{BASE.spec.scenario.main} / ")]
    assert code == 0 and headings == sorted({setting_words(fewer), setting_words(BASE.spec.scenario)})
    rows = [line.split()[0] for line in lines if "(n=" in line]
    assert rows == ["a-first", "paper", "short"]
    assert next(line for line in lines if line.startswith("paper")).endswith("— (3 of 3)")


def test_where_settings_differ_both_are_named(typed, tmp_path):
    other = replace(BASE.spec.scenario, peripheral=("tinyimagenet",))
    for record in (*side([2, 2], "A-one"), *side([1, 1], "B-one", scenario=other)):
        (tmp_path / record.configuration).mkdir(exist_ok=True)
        (tmp_path / record.configuration / f"{record.id}.json").write_text(json.dumps(record_to_plain(record)))
    code, shown, _ = typed("compare", tmp_path / "A-one", tmp_path / "B-one", "--anyway")
    assert code == 0 and f"\nA: {setting_words(BASE.spec.scenario)}; B: {setting_words(other)}\n" in shown


def test_words_around_the_rows_wrap_at_the_terminals_width(typed, results, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    alone = side([1, 1, 1, 1, 1, 1, 1], "A-one")[3:]
    for record in alone:
        (results / "A-one" / f"{record.id}.json").write_text(json.dumps(record_to_plain(record)))
    code, shown, _ = typed("compare", "A-one", "B-one", "--results", results, "--anyway")
    assert code == 0 and max(map(len, shown.splitlines())) <= 80
    assert all(record.id in shown for record in alone)


def test_names_are_looked_up_where_other_commands_read_records(typed, results, tmp_path):
    assert typed("compare", "A-one", "B-one")[0] == 0  # ./results
    (results / "B-one").rename(tmp_path / "runs")
    code, shown, _ = typed("compare", "A-one", "B-one")
    assert code == 0 and "0, 1, 2 (n=3)" in shown
    code, shown, _ = typed("compare", "A-one", "B-one", "--results", results / "A-one", "--out", tmp_path / "runs")
    assert code == 0 and "0, 1, 2 (n=3)" in shown


def test_without_a_folder_of_records_a_name_is_refused(refuses):
    refuses("compare", "ursl", "co2l", words="no folder results or runs to look a configuration up in")


def test_a_damaged_record_is_named_and_passed_over(typed, results):
    (results / "A-one" / "broken.json").write_text("{")
    code, _, told = typed("compare", "A-one", "B-one", "--results", results)
    assert code == 0 and told.startswith("skipped: ") and "broken.json" in told


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["A-one", "C-one", "--results", "results"], "no records of 'C-one' in results; there are: A-one; B-one"),
        (["A-one", "B-one", "--results", "nowhere"], "no folder nowhere"),
        (["A-one", "B-one", "--results", "results", "--measure", "speed"], "unknown measure 'speed'"),
        (["A-one", "B-one", "--results", "results", "--confidence", "95"], "confidence must be in (0, 1)"),
        (["results", "results"], "two runs of one seed"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(refuses, results, flags, words):
    refuses("compare", *flags, words=words)
