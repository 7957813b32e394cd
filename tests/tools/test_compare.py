"""Differences over pairs of seeds, checked against scipy and by hand; and which runs are paired."""

import json
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from scipy import stats

from consistent_records import consistent
from osscl.errors import SpecError, UserError
from osscl.methods import CONFIGURATIONS
from osscl.methods.base import PAPER, SHORT
from osscl.report.chapters import runs_by_method
from osscl.report.naming import setting_words
from osscl.runs.index import read_records
from osscl.runs.record import record_to_plain
from osscl.tools.compare import PairedDifference, pair_by_seed, pair_by_setting, same_stream, sign_test
from refusals import naming

FIRST, SECOND = (30.1, 31.4, 29.7, 30.9), (28.0, 30.2, 30.0, 29.1)
RECORDS, _ = read_records(Path(__file__).parents[2] / "results/earlier")  # these do not change
BASE = next(record for record in RECORDS if record.spec.type == "ursl")
CHANGED = replace(BASE.spec.method, learner=replace(BASE.spec.method.learner, lam=0.9))


def difference(first, second):
    return PairedDifference(tuple(range(len(first))), tuple(first), tuple(second))


def made(seed, final, configuration="ursl", **changes):
    """A kept record with another seed and accuracy."""
    spec = replace(BASE.spec, seed=seed, **changes)
    return replace(BASE, spec=spec, id=spec.id, final=final, configuration=configuration)


def side(values, configuration="ursl", **changes):
    return [made(seed, value, configuration, **changes) for seed, value in enumerate(values)]


def finals(pairs):
    return pairs.difference(attrgetter("final")).values


def write(folder, *records):
    folder.mkdir(parents=True, exist_ok=True)
    for record in map(consistent, records):
        (folder / f"{record.id}.json").write_text(json.dumps(record_to_plain(record)))


# ----- numbers


@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_interval_and_t_test_are_those_of_scipy(confidence):
    found, theirs = difference(FIRST, SECOND), stats.ttest_rel(FIRST, SECOND)
    assert found.t_test == pytest.approx(theirs.pvalue)
    assert found.interval(confidence) == pytest.approx(tuple(theirs.confidence_interval(confidence)))
    low, high = difference(SECOND, FIRST).interval(confidence)
    assert found.interval(confidence) == pytest.approx((-high, -low))


def test_three_pairs_by_hand():
    # Differences 1, 2, 3: mean 2, sample deviation 1, standard error 1 / sqrt(3); t(2) has .975 at 4.302653.
    found = difference([3, 4, 5], [2, 2, 2])
    assert (found.mean, found.std, found.wins, found.losses, found.n) == (2, 1, 3, 0, 3)
    assert found.standard_error == pytest.approx(3**-0.5)
    assert found.interval()[1] - found.mean == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert found.sign_test() is None  # three wins out of three have probability 1/4


@pytest.mark.parametrize(
    ("wins", "losses", "level", "p"),
    [(6, 0, 0.05, 2 / 64), (0, 6, 0.05, 2 / 64), (6, 1, 0.05, 16 / 128), (5, 5, 0.05, 1.0), (5, 0, 0.1, 2 / 32),
     (5, 0, 0.05, None), (0, 0, 0.05, None)],
)  # fmt: skip
def test_the_sign_test_is_exact_and_none_where_no_outcome_reaches_the_level(wins, losses, level, p):
    assert sign_test(wins, losses, level) == (None if p is None else pytest.approx(p))


@pytest.mark.parametrize(("first", "second"), [([3.0], [2.0]), ([2.0, 3.0], [1.0, 2.0])])
def test_one_pair_or_equal_differences_have_no_interval(first, second):
    found = difference(first, second)
    assert (found.mean, found.interval(), found.t_test, found.sign_test()) == (1.0, None, None, None)


def test_rounding_of_single_precision_is_not_a_difference():
    """Two more of 445 images right in each pair, as stored in a record."""
    rates = torch.tensor([400, 398, 371, 369], dtype=torch.float32) / 445
    a, b, c, d = (100 * float(rate) for rate in rates)
    found = difference([a, c], [b, d])
    assert a - b != c - d and (found.interval(), found.t_test) == (None, None)
    tie = difference([a, a + 1e-6], [a, a])
    assert (tie.wins, tie.losses) == (0, 0)


# ----- which runs are paired


def test_records_are_paired_by_seed_in_any_order_and_pairs_without_a_value_are_left_out():
    (pairs,) = pair_by_setting(side([1, 2, 3])[::-1], side([5, 7], "co2l"))
    assert pairs.seeds == (0, 1) and finals(pairs) == (-4, -5)
    lacking = pair_by_seed([replace(made(0, 1), forgetting=None), made(1, 1)], side([1, 1]))
    assert lacking.difference(attrgetter("forgetting")).seeds == (1,)


@pytest.mark.parametrize(
    "change",
    [{"class_order": (1, 2)}, {"evaluated_on": "validation"}, {"evaluated_rows": 9}, {"content": {"cifar10": "x"}}],
)
def test_a_pair_shares_its_stream(change):
    one, other = made(0, 1), replace(made(0, 2), **change)
    assert same_stream(one, one) and not same_stream(one, other)
    assert pair_by_seed([one], [one]).seeds == (0,) and pair_by_seed([one], [other]).seeds == ()


def test_settings_are_compared_one_by_one_and_equal_memories_first():
    smaller = replace(BASE.spec.scenario, memory=100)
    for changes in ({"schedule": SHORT}, {"scenario": smaller}):
        found = pair_by_setting([*side([1, 2]), *side([3], **changes)], [*side([0, 0]), *side([0], **changes)])
        assert [finals(pairs) for pairs in found] == [(1, 2), (3,)]
    assert pair_by_setting(side([1, 2]), side([5, 7], scenario=smaller))[0].seeds == (0, 1)


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"spec": {"schedule": SHORT}}, ["short", "paper"]),
        ({"spec": {"scenario": replace(BASE.spec.scenario, related=10)}}, ["streams"]),
        ({"spec": {"stream": "abc"}}, ["streams"]),
        ({"content": {"cifar10": "other"}}, ["data"]),
        ({"evaluated_on": "validation"}, ["validation"]),
        ({"class_order": (1, 0)}, ["streams"]),
    ],
)
def test_other_schedules_streams_and_data_are_paired_on_request_only(changes, about):
    assert BASE.spec.schedule == PAPER
    fields = dict(changes)
    other = [replace(record, **fields) for record in side([5, 7], **fields.pop("spec", {}))]
    with pytest.raises(UserError, match=naming("--anyway", *about)):
        pair_by_setting(other, side([1, 2]))
    assert finals(pair_by_setting(other, side([1, 2]), anyway=True)[0]) == (4, 5)


def test_sides_without_a_common_seed_and_two_runs_of_one_seed_are_refused():
    with pytest.raises(UserError, match=naming("seed", "common")):
        pair_by_setting([made(0, 1)], [made(1, 1)])
    with pytest.raises(UserError, match=naming("seed", side([1])[0].id, side([2], method=CHANGED)[0].id)):
        pair_by_setting([*side([1]), *side([2], method=CHANGED)], side([1]))


# ----- the command


@pytest.fixture
def results(typed, tmp_path):
    folder = tmp_path / "results"
    write(folder / "A-one", *side([31.0, 32.0, 33.5], "A-one"))
    write(folder / "B-one", *side([30.0, 30.5, 31.0], "B-one", method=CHANGED))
    return folder


def test_names_folders_and_files_are_compared(typed, results, tmp_path):
    code, shown, _ = typed("compare", "A-one", "B-one", "--results", results)
    assert code == 0 and "+1.67" in shown and "0, 1, 2 (n=3)" in shown and "paper" in shown
    assert "— (3 of 3)" in shown and "needs at least 6 pairs" in shown
    assert typed("compare", results / "A-one", results / "B-one")[0] == 0
    first, second = (sorted((results / name).iterdir())[0] for name in ("A-one", "B-one"))
    code, shown, _ = typed("compare", first, second)
    assert code == 0 and "+1.00" in shown and "(n=1)" in shown
    assert typed("compare", "A-one", "B-one")[0] == 0  # names are looked up in ./results
    (results / "B-one").rename(tmp_path / "runs")  # and in ./runs
    for further in ([], ["--results", results / "A-one", "--out", tmp_path / "runs"]):
        code, shown, _ = typed("compare", "A-one", "B-one", *further)
        assert code == 0 and "0, 1, 2 (n=3)" in shown


def test_a_name_means_its_present_fields(typed, tmp_path):
    earlier = Path(__file__).parents[2] / "results" / "earlier"
    code, _, error = typed("compare", "ursl", "ursl-plus", "--results", earlier)
    assert code == 2 and "no records of 'ursl'" in error and "found: ursl, " in error
    ours, theirs = CONFIGURATIONS["ursl-plus"], CONFIGURATIONS["ursl"]
    sides = [*side([2, 2], "ursl*", method=ours)[:1], *side([2, 3], "ursl-plus", method=ours)[1:]]
    sides += side([1, 1], "ursl", method=theirs)
    write(tmp_path / "renamed", *sides)
    code, shown, _ = typed("compare", "ursl-plus", "ursl", "--results", tmp_path / "renamed")
    assert code == 0 and "0, 1 (n=2)" in shown and "+1.50" in shown
    assert [len(runs) for runs in runs_by_method(sides)] == [2, 2]


def test_a_changed_configuration_has_the_name_that_runs_shows(typed, tmp_path):
    usual = CONFIGURATIONS["ursl"]
    for gamma in (usual.learner.gamma, 1.0, 2.0):
        method = replace(usual, learner=replace(usual.learner, gamma=gamma))
        write(tmp_path, *side([1, 2], "ursl" if method == usual else "ursl*", method=method))
    code, shown, _ = typed("compare", "ursl", "ursl, learner.gamma=2", "--results", tmp_path)
    assert code == 0 and "0, 1 (n=2)" in shown
    code, _, error = typed("compare", "ursl", "ursl*", "--results", tmp_path)
    assert code == 2 and "several configurations" in error and "ursl, learner.gamma=1; ursl, learner.gamma=2" in error
    error = typed("compare", "ursl", "x", "--results", tmp_path)[2]
    assert "found: ursl; ursl, learner.gamma=1; ursl, learner.gamma=2" in error


def test_other_memories_settings_and_runs_without_a_partner_are_named(typed, tmp_path):
    fewer, short = replace(BASE.spec.scenario, memory=120), side([3], "A-one", schedule=SHORT)
    write(tmp_path / "A", *side([2, 2], "A-one"), *short)
    write(tmp_path / "B", *side([1, 1], "B-one", scenario=fewer))
    code, shown, _ = typed("compare", tmp_path / "A", tmp_path / "B")
    assert code == 0 and "M=200 for A, M=120 for B" in shown and f"Not paired: {short[0].id}" in shown
    other = replace(BASE.spec.scenario, peripheral=("tinyimagenet",))
    write(tmp_path / "C", *side([1, 1], "B-one", scenario=other))
    write(tmp_path / "D", *side([2, 2], "A-one"))
    shown = typed("compare", tmp_path / "D", tmp_path / "C", "--anyway")[1]
    assert f"A: {setting_words(BASE.spec.scenario)}; B: {setting_words(other)}" in " ".join(shown.split())


def test_too_few_differing_pairs_are_counted_and_the_folders_named(typed, tmp_path):
    write(tmp_path / "records", *side([2, 2, 2, 1, 1], "A-one"), *side([1, 1, 1, 1, 1], "B-one", method=CHANGED))
    shown = " ".join(typed("compare", "A-one", "B-one", "--results", tmp_path / "records")[1].split())
    assert "needs at least 6 pairs that differ; here, 3 of 5 differ, 2 ties (paper). The interval" in shown
    assert f"paired by seed; records in {tmp_path / 'records'} " in shown
    write(tmp_path / "A", *side([2] * 6))
    write(tmp_path / "B", *side([1] * 6))
    shown = typed("compare", tmp_path / "A", tmp_path / "B")[1]
    assert "that differ. The interval" in shown and "records in" not in shown


def test_rows_are_grouped_by_setting_and_fit_80_columns(typed, results, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    fewer = replace(BASE.spec.scenario, memory=120)
    for name, method in (("A-one", BASE.spec.method), ("B-one", CHANGED)):
        for changes in ({"schedule": SHORT}, {"scenario": fewer, "schedule": replace(PAPER, name="a-first")}):
            write(results / name, *side([20.0, 21.0], name, method=method, **changes))
    alone = side([1] * 7, "A-one")[3:]
    write(results / "A-one", *alone)
    code, shown, _ = typed("compare", "A-one", "B-one", "--results", results)
    lines = shown.splitlines()
    headings = [line for line in lines if line.startswith(f"{BASE.spec.scenario.main} / ")]
    assert code == 0 and headings == sorted({setting_words(fewer), setting_words(BASE.spec.scenario)})
    assert [line.split()[0] for line in lines if "(n=" in line] == ["a-first", "paper", "short"]
    assert next(line for line in lines if line.startswith("paper")).endswith("— (3 of 3)")
    assert all(len(line) <= 80 or str(results) in line for line in lines)  # a path is as long as it is
    assert all(record.id in shown for record in alone)


def test_a_damaged_record_is_named_and_skipped(typed, results):
    (results / "A-one" / "broken.json").write_text("{")
    code, _, errors = typed("compare", "A-one", "B-one", "--results", results)
    assert code == 0 and errors.startswith("skipped: ") and "broken.json" in errors


@pytest.mark.parametrize(
    ("arguments", "error", "about"),
    [
        (["A-one", "C-one", "--results", "results"], UserError, ["'C-one'", "results", "ursl"]),
        (["A-one", "B-one", "--results", "nowhere"], UserError, "nowhere"),
        (["A-one", "B-one", "--results", "results", "--measure", "speed"], SpecError, ["measure", "speed"]),
        (["A-one", "B-one", "--results", "results", "--confidence", "95"], SpecError, ["confidence", "95.0"]),
        (["results", "results"], UserError, ["seed", BASE.id]),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(refuses, results, arguments, error, about):
    refuses("compare", *arguments, error=error, about=about)


def test_without_a_folder_of_records_a_name_is_refused(refuses):
    refuses("compare", "ursl", "co2l", error=UserError, about=["results", "runs", "--results"])
