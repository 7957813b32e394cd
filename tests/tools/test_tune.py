"""A search uses validation rows only, prunes against other trials after the same step, resumes, and is shared."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from osscl.cli.tune import search_text, short_names, trial_words
from osscl.config import override
from osscl.errors import Diverged, SpecError, Stopped, UserError
from osscl.methods import AS_PRINTED, CONFIGURATIONS, URSL
from osscl.methods.base import SMOKE
from osscl.runs.checkpoint import Options
from osscl.runs.index import read_records
from osscl.runs.spec import EXPERIMENTS, configuration, make_spec, on_validation_rows
from osscl.storage import write_state
from osscl.tools import tune as tuning
from osscl.tools.tune import (
    PAPER_SPACE,
    Choice,
    Range,
    Search,
    Tied,
    TrialSummary,
    as_changes,
    best_trial,
    falls_behind,
    open_study,
    own_point,
    run_trials,
    space_of,
    trial_summaries,
    with_tied,
)
from refusals import UsageError, naming

TINY = replace(SMOKE, name="tiny", max_updates=1, row_cap=64)
SPEC = on_validation_rows(make_spec(EXPERIMENTS["digits"], URSL, TINY, 0))
LAMBDAS = space_of(["learner.lam=[.05, .2, .4]", "learner.gamma=learner.lam"], None, SPEC.method)
RATES = space_of(["learner.optimiser.rate=1e-4..1e-2:log"], None, SPEC.method)
TINIER = [f"--set=schedule.{change}" for change in ("name=tiny", "max_updates=1", "row_cap=64")]
SMALL = ["digits", "--schedule", "smoke", *TINIER]


# ----- spaces


def test_lists_ranges_and_ties_are_read_in_the_types_of_their_fields():
    written = ["learner.lam=[.05, 1]", "gate.eta=[[-4, -2], [-2, 0]]", "learner.optimiser.kind=[sgd, adam]",
               "learner.optimiser.rate=1e-4..1e-2:log", "learner.epochs=10..20", "learner.min_updates=1..9",
               "method.learner.gamma=method.learner.lam"]  # fmt: skip
    assert space_of(written, None, URSL) == (
        Choice("learner.lam", ("0.05", "1.0")),
        Choice("gate.eta", ("[-4.0, -2.0]", "[-2.0, 0.0]")),
        Choice("learner.optimiser.kind", ('"sgd"', '"adam"')),
        Range("learner.optimiser.rate", 1e-4, 1e-2, log=True),
        Range("learner.epochs", 10, 20),
        Range("learner.min_updates", 1, 9),
        Tied("learner.gamma", "learner.lam"),
    )


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("learner.lam", "a search must be"),
        ("learner.lambda=[1, 2]", "unknown field 'learner.lambda'"),
        ("lerner.lam=[1, 2]", "did you mean 'learner'"),
        ("learner.lam.x=[1]", "'lam' is not a group of fields"),
        ("learner.lam=[1, -2]", "lam must be 0 or more"),
        ("learner.lam=[a]", "must be of type float"),
        ("learner.lam=[]", "values must be a list"),
        ("learner.lam=[1", "cannot read the values"),
        ("learner.lam=0.1", "unknown field '0'"),
        ("learner.lam=learner.lamb", "unknown field 'learner.lamb'"),
        ("learner.lam=2..1", "low < high"),
        ("learner.lam=0..1:log", "0 < low < high"),
        ("learner.lam=0..1:exp", "low..high:log"),
        ("learner.optimiser.kind=1..2", "unknown kind"),
        ("reference.pretrained=0..1", "must be of type bool"),
        ("learner.gamma=learner.lam", "nothing to search"),
    ],
)
def test_an_impossible_space_is_refused_before_anything_runs(written, words):
    with pytest.raises(SpecError) as told:
        space_of([written], None, URSL)
    assert words in str(told.value)


def test_the_papers_space_is_its_table_7():
    table = {"E_S": ["learner.epochs", [100, 200]], "E_T1": ["reference.epochs_first", [200, 300, 400]],
             "E_T>1": ["reference.epochs_later", [100, 200]], "tau": ["reference.tau", [0.1, 0.5]],
             "lambda": ["learner.lam", [0.05, 0.2, 0.4]], "eta": ["gate.eta", [[-4, -2], [-2, 0], [-2, 2]]],
             "optimiser": ["reference.optimiser.kind", ["sgd", "adam"]],
             "rate": ["reference.optimiser.rate", [0.1, 0.01]]}  # fmt: skip
    space = space_of([], "paper", URSL)
    assert {d.field: [json.loads(v) for v in d.values] for d in space if isinstance(d, Choice)} == dict(table.values())
    assert {(d.field, d.to) for d in space if isinstance(d, Tied)} == {
        ("learner.gamma", "learner.lam"), ("learner.tau", "reference.tau"),
        ("learner.optimiser.kind", "reference.optimiser.kind"), ("learner.optimiser.rate", "reference.optimiser.rate"),
    }  # fmt: skip
    assert len(space) == len(PAPER_SPACE)


def test_the_papers_choice_is_in_its_own_space():
    point = own_point(space_of([], "paper", AS_PRINTED), AS_PRINTED)
    assert point is not None and point["gate.eta"] == "[-4.0, -2.0]" and point["learner.lam"] == "0.2"
    assert own_point(space_of([], "paper", URSL), URSL) is None  # its optimisers differ


def test_an_entry_given_with_a_named_space_overrides_it():
    space = space_of(["learner.lam=[1, 2]"], "paper", URSL)
    assert Choice("learner.lam", ("1.0", "2.0")) in space and len(space) == len(PAPER_SPACE)


def test_a_field_may_follow_another_if_only_both_together_are_valid():
    config = configuration("gem")  # a constant rate: min_rate equals rate
    space = space_of(["optimiser.rate=0.001..0.1:log", "optimiser.min_rate=optimiser.rate"], None, config)
    values = with_tied({"optimiser.rate": "0.002"}, space, config)
    made = override(config, as_changes(values))
    assert made.optimiser.rate == made.optimiser.min_rate == 0.002
    assert values == {"optimiser.rate": "0.002", "optimiser.min_rate": "0.002"}


def test_a_chain_of_ties_is_followed_to_its_end_and_a_circle_refused():
    written = ["learner.gamma=learner.lam", "learner.lam=reference.tau", "reference.tau=[0.1, 0.5]"]
    values = with_tied({"reference.tau": "0.5"}, space_of(written, None, URSL), URSL)
    config = override(URSL, as_changes(values))
    assert config.learner.gamma == config.learner.lam == config.reference.tau == 0.5
    with pytest.raises(SpecError, match=naming("learner.gamma", "itself")):
        space_of(["learner.gamma=learner.lam", "learner.lam=learner.gamma", "reference.tau=[0.1, 0.5]"], None, URSL)


def test_words_of_a_resumed_trial_count_steps_from_the_first():
    assert "pruned after step 4" in trial_words(TrialSummary(7, "pruned", {}, {3: 40.0}, None, ""), {})


def test_words_of_a_trial_quote_no_names_and_keep_what_names_contain():
    values = {"gate.eta": "[-2.0, 2.0]", "head.solver": '"a=b \\"c\\""', "learner.lam": "null"}
    trial = TrialSummary(7, "finished", values, {0: 40.0}, 40.0)
    shown = trial_words(trial, {"gate.eta": "eta", "head.solver": "solver", "learner.lam": "lam"})
    assert shown.endswith('eta=[-2.0,2.0] solver=a=b "c" lam=null')


def test_a_tied_field_follows():
    values = with_tied({"learner.lam": "0.4"}, LAMBDAS, URSL)
    assert override(URSL, as_changes(values)) == replace(URSL, learner=replace(URSL.learner, lam=0.4, gamma=0.4))
    assert as_changes(values) == ["learner.lam=0.4", "learner.gamma=0.4"]


def test_fields_of_other_methods_are_searched_by_name_too():
    config = CONFIGURATIONS["co2l"]
    assert space_of(["head.penalty=1..100:log"], None, config) == (Range("head.penalty", 1.0, 100.0, log=True),)


# ----- pruning


@pytest.mark.parametrize(
    ("value", "others", "least", "ends"),
    [(1, [2, 3, 4], 3, True), (3, [2, 3, 4], 3, False), (2.9, [2, 3, 4], 3, True), (1, [2, 3], 3, False)],
)
def test_a_trial_ends_below_the_median_of_enough_others(value, others, least, ends):
    assert falls_behind(value, others, least) is ends


# ----- searches, with runs that are made up


def search(folder, space=RATES, **fields):
    return Search(SPEC, space, folder, **fields)


@pytest.fixture
def played(monkeypatch):
    """Runs that tell of the given accuracies in place of learning; an exception in their place is raised there."""
    pytest.importorskip("optuna")
    scripts, began = [], []

    def run_one(spec, options):
        began.append(spec)
        overall = scripts.pop(0)
        for t, value in enumerate(overall):
            if isinstance(value, BaseException):
                raise value
            options.watcher.stepped(t, len(overall), value, SimpleNamespace(gate=None, unlabeled=0))
        return SimpleNamespace(overall=overall, final=overall[-1])

    monkeypatch.setattr(tuning, "run_one", run_one)
    return SimpleNamespace(scripts=scripts, began=began)


def states(plan):
    return [trial.state for trial in trial_summaries(open_study(plan))]


def test_a_trial_that_falls_behind_is_pruned_at_that_step(played, tmp_path):
    played.scripts[:] = [[90, 60, 50], [90, 70, 60], [95, 64, 99]]  # ahead of both at first: Optuna's rule would go on
    plan = search(tmp_path, prune_after=2)
    run_trials(plan, Options(), 3)
    found = trial_summaries(open_study(plan))
    assert [(trial.state, trial.by_step, trial.final) for trial in found] == [
        ("finished", {0: 90, 1: 60, 2: 50}, 50),
        ("finished", {0: 90, 1: 70, 2: 60}, 60),
        ("pruned", {0: 95, 1: 64}, None),
    ]  # fmt: skip
    assert best_trial(found) == found[1]


def test_a_pruned_trial_leaves_no_checkpoint(played, tmp_path, monkeypatch):
    run_one = tuning.run_one

    def checkpointed(spec, options):
        for _ in range(2):
            write_state(options.out / spec.id / "checkpoint", {}, keep_previous=True)
        return run_one(spec, options)

    monkeypatch.setattr(tuning, "run_one", checkpointed)
    played.scripts[:] = [[90, 80], [50, 40]]
    plan = search(tmp_path, prune_after=1)
    run_trials(plan, Options(), 2)
    assert states(plan) == ["finished", "pruned"]
    finished, pruned = (sorted(path.name for path in (tmp_path / "runs" / s.id).iterdir()) for s in played.began)
    assert finished == ["checkpoint-previous.safetensors", "checkpoint.safetensors"] and pruned == []


def test_no_trial_is_pruned_before_enough_are_finished(played, tmp_path):
    played.scripts[:] = [[90, 80], [50, 40], [10, 5]]
    plan = search(tmp_path, prune_after=3)
    run_trials(plan, Options(), 3)
    assert states(plan) == ["finished"] * 3


def test_the_configuration_itself_is_tried_first_where_the_space_holds_it(played, tmp_path):
    played.scripts[:] = [[1], [1]]
    run_trials(search(tmp_path), Options(), 2)
    assert played.began[0] == SPEC and played.began[1] != SPEC


def test_a_search_resumes_with_as_many_trials_as_are_missing(played, tmp_path):
    played.scripts[:] = [[1], [2], [3]]
    plan = search(tmp_path)
    run_trials(plan, Options(), 2)
    assert len(played.began) == 2
    run_trials(plan, Options(), 3)
    run_trials(plan, Options(), 3)
    assert len(played.began) == 3
    assert len({spec.id for spec in played.began}) == 3  # and does not draw its first points again


def test_a_search_that_was_cut_in_two_draws_what_it_would_have_drawn(played, tmp_path):
    played.scripts[:] = [[value] for value in (3, 1, 2, 3, 1, 2)]
    run_trials(search(tmp_path / "whole"), Options(), 3)
    run_trials(search(tmp_path / "cut"), Options(), 1)
    run_trials(search(tmp_path / "cut"), Options(), 3)
    assert played.began[:3] == played.began[3:]


def test_another_space_is_another_search(played, tmp_path):
    played.scripts[:] = [[1], [1]]
    run_trials(search(tmp_path), Options(), 1)
    run_trials(search(tmp_path, LAMBDAS), Options(), 1)
    assert len(played.began) == 2


def test_divergence_is_a_result_and_counts(played, tmp_path):
    played.scripts[:] = [[50, Diverged("training diverged at step 2")], [60, 60]]
    plan = search(tmp_path)
    run_trials(plan, Options(), 2)
    found = trial_summaries(open_study(plan))
    assert [(trial.state, trial.why) for trial in found] == [
        ("failed", "training diverged at step 2"), ("finished", "")
    ]  # fmt: skip


def test_values_that_are_not_admitted_together_are_a_failed_trial(played, tmp_path):
    space = space_of(["gate.eta=[[-4, -2], [-4, 0]]", "learner.min_updates=learner.epochs"], None, SPEC.method)
    space = (
        *space,
        Tied("gate.prototype_views", "reference.epochs_first"),
        Range("reference.epochs_first", 2000, 3000),
    )
    plan = search(tmp_path, space)
    run_trials(plan, Options(), 1)
    assert [trial.state for trial in trial_summaries(open_study(plan))] == ["failed"] and not played.began


@pytest.mark.parametrize("error", [Stopped(), UserError("no data"), KeyboardInterrupt(), ZeroDivisionError()])
def test_a_trial_that_was_stopped_is_repeated_with_the_same_values(played, tmp_path, error):
    played.scripts[:] = [[1], [50, error], [50, 60], [7]]
    plan = search(tmp_path)
    with pytest.raises(type(error)):
        run_trials(plan, Options(), 3)
    run_trials(plan, Options(), 3)
    assert played.began[1] == played.began[2] and states(plan) == ["finished"] * 3


@pytest.mark.parametrize("silence", [0.0, 2.5])
def test_optuna_retries_the_trial_of_a_worker_whose_heartbeat_stopped(played, tmp_path, monkeypatch, silence):
    monkeypatch.setattr(tuning, "HEARTBEAT", 1)
    monkeypatch.setattr(tuning, "GRACE", 1)
    plan = search(tmp_path)
    study = open_study(plan)
    lost = study.ask()
    lost.suggest_float("learner.optimiser.rate", 1e-4, 1e-2, log=True)
    study._storage.record_heartbeat(lost._trial_id)
    time.sleep(silence)
    played.scripts[:] = [[1]]
    run_trials(plan, Options(), 1)
    assert states(plan) == (["finished"] if silence else ["running"])
    assert played.began == ([SPEC] if silence else [])  # the first trial is the configuration itself


def test_a_point_that_was_pruned_is_not_run_again(played, tmp_path):
    space = space_of(["learner.tau=[0.1]"], None, SPEC.method)  # a space of one point
    played.scripts[:] = [[10, 5]]
    plan = search(tmp_path, space)
    study = open_study(plan)
    run_trials(plan, Options(), 1)
    first = study.get_trials()[0]
    study.add_trial(stored_as_pruned(first))
    run_trials(plan, Options(), 3)
    assert len(played.began) == 1 and states(plan) == ["finished", "pruned", "pruned"]


def stored_as_pruned(trial):
    import optuna

    return optuna.trial.create_trial(
        state=optuna.trial.TrialState.PRUNED, params=trial.params, distributions=trial.distributions,
        user_attrs=trial.user_attrs, intermediate_values={0: 10},
    )  # fmt: skip


def test_a_search_whose_time_is_up_stops(played, tmp_path):
    with pytest.raises(Stopped):
        run_trials(search(tmp_path), Options(), 1, seconds=0)


def test_test_rows_choose_nothing():
    with pytest.raises(SpecError, match=naming("validation_share")):
        Search(make_spec(EXPERIMENTS["digits"], URSL, TINY, 0), RATES, None)
    given = replace(SPEC, scenario=replace(SPEC.scenario, validation_share=0.3))
    assert on_validation_rows(given) == given and SPEC.scenario.validation_share == 0.1


# ----- searches, as they are typed


def test_a_search_on_the_demo_data_runs_resumes_and_names_its_best_trial(typed, tmp_path):
    pytest.importorskip("optuna")
    command = ["tune", *SMALL, "--search", "learner.lam=[.05,.2,.4]", "--search", "learner.gamma=learner.lam"]
    code, shown, _ = typed(*command, "--trials", 2)
    assert code == 0 and "validation rows (10 %" in shown and "schedule smoke" in shown
    code, shown, _ = typed(*command, "--trials", 3)
    records, problems = read_records(tmp_path / "tuning" / "runs")
    assert not problems and records and {record.evaluated_on for record in records} == {"validation"}
    assert all(record.spec.method.learner.gamma == record.spec.method.learner.lam for record in records)
    line = next(line for line in shown.splitlines() if line.startswith("best, trial"))
    words = line.partition(": ")[2].split()
    assert words[0] == "osscl" and "learner.gamma=0" in line
    code, shown, _ = typed(*words[1:], "--dry-run", "--full")
    assert code == 0 and "validation_share: 0.0" in shown


def test_trials_are_listed_best_first_by_what_was_searched():
    found = [
        TrialSummary(0, "finished", {"learner.lam": "0.05", "learner.gamma": "0.05"}, {0: 80.0, 1: 50.0}, 50.0),
        TrialSummary(1, "pruned", {"learner.lam": "0.2", "learner.gamma": "0.2"}, {0: 64.0}, None),
        TrialSummary(2, "finished", {"learner.lam": "0.4", "learner.gamma": "0.4"}, {0: 90.0, 1: 60.0}, 60.0),
        TrialSummary(3, "failed", {}, {}, None, "training diverged at step 1"),
    ]
    lines = search_text(found, Search(SPEC, LAMBDAS, None), 160).splitlines()[-4:]
    assert lines[:2] == ["trial 2  finished  60.0 %  lam=0.4", "trial 0  finished  50.0 %  lam=0.05"]
    assert lines[2] == "trial 1  pruned after step 1  64.0 %  lam=0.2"
    assert lines[3].startswith("trial 3  failed  — %") and lines[3].endswith("(training diverged at step 1)")


def test_a_trial_of_the_papers_space_takes_two_lines_of_a_narrow_terminal():
    plan = Search(SPEC, space_of([], "paper", SPEC.method), None)
    chosen = {d.field: d.values[-1] for d in plan.space if isinstance(d, Choice)}
    values = with_tied(chosen, plan.space, SPEC.method)
    page = search_text([TrialSummary(11, "finished", values, {0: 60.0}, 60.0)], plan, 80)
    trial = page[page.index("trial 11") :].splitlines()
    assert len(trial) == 2 and max(map(len, page.splitlines())) <= 80
    assert "eta=[-2.0,2.0]" in trial[0] + trial[1] and "kind=adam" in trial[1] and "gamma" not in page


def test_fields_with_the_same_ending_are_distinguished():
    written = ["learner.tau=[.1, .5]", "reference.tau=[.1, .5]", "learner.lam=[.1, .5]"]
    names = short_names(Search(SPEC, space_of(written, None, SPEC.method), None))
    assert [*names.values()] == ["learner.tau", "reference.tau", "lam"]


def test_two_workers_share_a_search(tmp_path):
    pytest.importorskip("optuna")
    command = [sys.executable, "-m", "osscl", "tune", *SMALL, "--search", "learner.optimiser.rate=1e-4..1e-2:log",
               "--trials", "4"]  # fmt: skip
    alone = {**os.environ, "OSSCL_CACHE": str(tmp_path / "cache"), "OSSCL_COMMIT": "here", "OMP_NUM_THREADS": "1"}
    told = {"cwd": tmp_path, "env": alone, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, **told) for _ in range(2)]
    shown = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert all(any(f"trial {n} (4 in total)  step 1/5" in page for page in shown) for n in range(4))
    assert not any(
        f"trial {n} (4 in total)  step 1/5" in shown[0] and f"trial {n} (4 in total)  step 1/5" in shown[1]
        for n in range(4)
    )
    assert len(list((tmp_path / "tuning" / "runs").glob("*/ursl-*.json"))) + shown[0].count("  pruned after step") >= 4


def test_the_trial_of_a_killed_worker_is_retried_and_no_run_is_repeated(tmp_path):
    pytest.importorskip("optuna")
    hasty = "import os\nfrom osscl.tools import tune\ntune.HEARTBEAT, tune.GRACE = 1, 2\n"
    deadly = "tune.TrialWatcher.stepped = lambda *_: os.kill(os.getpid(), 9)\n"  # in its first trial
    start = "from osscl.cli import main\nmain()"
    words = ["tune", *SMALL, "--search", "learner.optimiser.rate=1e-4..1e-2:log", "--trials", "4"]
    told = {"cwd": tmp_path, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    told["env"] = {**os.environ, "OSSCL_CACHE": str(tmp_path / "cache"), "OSSCL_COMMIT": "here", "OMP_NUM_THREADS": "1"}
    lost, other = (
        subprocess.Popen([sys.executable, "-c", code, *words], **told)
        for code in (hasty + deadly + start, hasty + start)
    )
    errors = [worker.communicate(timeout=120)[1] for worker in (lost, other)]
    assert (lost.returncode, other.returncode) == (-9, 0), errors
    time.sleep(3)  # the killed worker counts as lost now, if the other one ended before that
    subprocess.run([sys.executable, "-c", hasty + start, *words], **told, timeout=120, check=True)
    study = optuna_study(tmp_path / "tuning" / "trials.sqlite3")
    states = Counter(trial.state.name for trial in study.trials)
    assert states["COMPLETE"] + states["PRUNED"] == 4 and states["RUNNING"] == 0 and states["FAIL"] == 1
    (failed,) = (trial for trial in study.trials if trial.state.name == "FAIL")
    (again,) = (trial for trial in study.trials if trial.state.name != "FAIL" and trial.params == failed.params)
    assert again.user_attrs["run"] == failed.user_attrs["run"]
    runs = [trial.user_attrs["run"] for trial in study.trials if trial.state.name == "COMPLETE"]
    records, problems = read_records(tmp_path / "tuning" / "runs")
    assert not problems and {record.id for record in records} == {*runs} and len({*runs}) == len(runs)
    assert next(record for record in records if record.id == failed.user_attrs["run"]).made_by.sessions == 2


def optuna_study(file):
    import optuna

    storage = f"sqlite:///{file}"
    return optuna.load_study(study_name=optuna.get_all_study_names(storage)[0], storage=storage)


def test_a_search_from_a_file_ends_in_a_file(typed, tmp_path):
    pytest.importorskip("optuna")
    typed("run", *SMALL, "--seed", 3)
    (spec,) = (tmp_path / "runs").glob("*/spec.json")
    code, shown, _ = typed("tune", "--spec", spec, "--search", "learner.lam=[.05,.2]", "--trials", 1)
    assert code == 0 and "seed 3" in " ".join(shown.split())
    words = next(line for line in shown.splitlines() if line.startswith("best")).partition(": ")[2].split()
    code, shown, _ = typed(*words[1:], "--dry-run", "--full")
    assert code == 0 and "validation_share: 0.0" in shown and "seed: 3" in shown


def test_the_command_that_a_search_ends_with_has_its_seed(typed):
    pytest.importorskip("optuna")
    shown = typed("tune", *SMALL, "--seed", 5, "--search", "learner.lam=[.05,.2]", "--trials", 1)[1]
    assert "--seed 5" in next(line for line in " ".join(shown.split()).split("best, ")[1:])


@pytest.mark.parametrize(
    ("flags", "error", "about"),
    [
        (["--search", "learner.lambda=[1]"], SpecError, "learner.lambda"),
        (["--space", "mine"], SpecError, ["space", "mine", "paper"]),
        (["--method", "co2l"], SpecError, "--search"),
        (["--method", "gd", "--space", "paper"], SpecError, "'learner'"),
        (["--validation", "0"], SpecError, ["--validation", "0.0"]),
        (["--trials", "0"], UsageError, "--trials"),
        (["--device", "tpu"], SpecError, ["device", "tpu"]),
    ],
)
def test_a_search_that_makes_no_sense_is_refused_in_one_line(refuses, tmp_path, flags, error, about):
    refuses("tune", *SMALL, *flags, error=error, about=about)
    assert not (tmp_path / "tuning").exists()


def test_without_optuna_the_command_says_how_to_get_it(refuses, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    refuses("tune", *SMALL, error=UserError, about='pip install "osscl[tune]"')


def test_the_folder_of_a_search_may_have_any_name(typed, refuses, tmp_path):
    pytest.importorskip("optuna")
    search = ["tune", "digits", "--method", "gem", "--schedule", "smoke", "--search", "margin=[0,1]", "--trials", 1]
    folder = tmp_path / "what? a%41b"
    assert typed(*search, "--out", folder)[0] == 0
    assert list(folder.rglob("trials.sqlite3")) and [path.name for path in tmp_path.glob("what*")] == [folder.name]
    (tmp_path / "file").write_text("")
    refuses(*search, "--out", tmp_path / "file", error=UserError, about=tmp_path / "file")
    dates = "--search", "margin=[2020-01-01]"
    refuses(*search[:-4], *dates, "--out", tmp_path / "x", error=SpecError, about=["margin", "'[2020-01-01]'"])


def test_a_file_that_is_not_a_storage_is_named_and_left_alone(refuses, tmp_path):
    pytest.importorskip("optuna")
    file = tmp_path / "tuning" / "trials.sqlite3"
    file.parent.mkdir()
    file.write_text("not a database, but somebody's words\n" * 50)
    refuses("tune", *SMALL, error=UserError, about=[file.relative_to(tmp_path), "Optuna"])
    assert file.read_text().startswith("not a database")


def test_a_stopped_search_shows_what_it_has_and_can_be_resumed(typed):
    pytest.importorskip("optuna")
    code, shown, told = typed("tune", *SMALL, "--search", "learner.lam=[.05,.2]", "--max-minutes", "0")
    assert code == 3 and "to resume" in told and "trial" in shown
