"""The table command: every cell gets a record, nothing runs twice, and verdicts follow from the numbers."""

import csv
import json
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from consistent_records import consistent
from osscl.config import override
from osscl.data import benchmarks
from osscl.errors import Diverged, SpecError, UserError
from osscl.methods.base import DEMO, PAPER, SHORT, SMOKE
from osscl.paper.cells import Published, on_demo
from osscl.paper.plan import Timings, by_reference, known_records, runs_of, sharded, split_seconds
from osscl.paper.score import Outcome, measured, outcome, outcomes
from osscl.paper.tables import ALL_TABLES, FIGURES, LIMITS, TABLES, cell_of, chosen_rows, picked
from osscl.paper.verdict import Verdict
from osscl.report.formats import verdict_text
from osscl.report.paper_comparison import our_number, paper_table, published_number
from osscl.runs.checkpoint import Options
from osscl.runs.engine import reference_key, run_specs
from osscl.runs.record import record_to_plain
from osscl.storage import locked
from refusals import UsageError, refusal_of

RESULTS = Path(__file__).parents[2] / "results"
NO_SHARDS = ("", "0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3")
ON_DEMO = ["--on", "demo", "--schedule", "smoke", "--seeds", "0", "--device", "cpu"]


@pytest.fixture(scope="module", autouse=True)
def banks_read_once():
    """Drawing the digits and letters takes longer than a smoke run."""
    made, read = {}, benchmarks.load_bank

    def load_bank(name, data_dir, cache_dir=None):
        if name not in made:
            made[name] = read(name, data_dir, cache_dir)
        return made[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("osscl.runs.run.load_bank", load_bank)
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """One folder and one cache for all tables: shared cells are run once."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSSCL_CACHE", str(folder / "cache"))
        patch.setenv("OSSCL_COMMIT", "here")
        patch.setenv("COLUMNS", "160")
        patch.chdir(folder)
        yield folder


@pytest.fixture
def osscl(world, type_command):
    return type_command


@pytest.fixture
def refused(osscl):
    return refusal_of(osscl)


def records_of(folder):
    records, problems = known_records([folder])
    assert not problems
    return records


# ----- every table on the demo's data


@pytest.mark.parametrize("id", ALL_TABLES)
def test_every_cell_of_every_table_figure_and_limitation_gets_a_record(osscl, world, id):
    code, shown, errors = osscl("table", id, *ON_DEMO, "--out", world / "runs")
    assert (code, errors) == (0, "") and id in shown
    assert id in FIGURES or shown.count("(n=1)") == len(on_demo(ALL_TABLES[id]).cells)
    records = records_of(world / "runs") if (world / "runs").exists() else {}
    for one in outcomes(on_demo(ALL_TABLES[id]), records, SMOKE, [0]):
        assert len(one.records) == 1 and one.mean is not None, one.cell.name


def test_a_table_that_is_complete_runs_nothing_again(osscl, world, monkeypatch):
    osscl("table", "T12", *ON_DEMO, "--out", world / "runs")
    before = {path: path.stat().st_mtime_ns for path in (world / "runs").rglob("*.json")}
    monkeypatch.setattr("osscl.runs.run._train_and_evaluate", None)
    code, shown, _ = osscl("table", "T12", *ON_DEMO, "--out", world / "runs")
    assert code == 0 and "(n=1)" in shown
    assert {path: path.stat().st_mtime_ns for path in (world / "runs").rglob("*.json")} == before


def test_the_demos_scenarios_are_the_papers_on_a_smaller_scale():
    for id, table in {**TABLES, **FIGURES}.items():
        cells = [cell for cell in table.cells if cell.configuration != "ursl-plus"]  # a digit is smaller than a mean
        for cell, small in zip(cells, on_demo(table).cells, strict=True):
            theirs, ours = cell.scenario, small.scenario
            assert (ours.main, len(ours.peripheral)) == ("digits", len(theirs.peripheral)), id
            assert ours.related == round(theirs.related / 90) and ours.unrelated == round(theirs.unrelated / 90)
            labels = 1.0 if theirs.labeled_fraction == 1 else 6 if theirs.labeled_fraction == 0.1 else 3
            assert (ours.labels_per_class or ours.labeled_fraction) == labels
            assert ours.memory == (30 if labels == 3 else 40)
            assert small.published is None and ours.regime == theirs.regime
    backbones = {
        (spec.method.reference.net.backbone, spec.method.learner.net.backbone)
        for cell in on_demo(TABLES["T14"]).cells
        for spec in [cell.spec(SMOKE, 0)]
    }
    assert backbones == {
        ("small", "small"),
        ("small-deep", "small"),
        ("small", "small-wide"),
        ("small-deep", "small-wide"),
    }


# ----- references are shared


def trained(records):
    """The reference phases that were trained and not taken from the cache."""
    return [
        phase for r in records for s in r.steps for phase in s.phases if phase.name == "reference" and not phase.cached
    ]


def test_ablations_train_each_distinct_reference_once_per_seed(tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OSSCL_COMMIT", "here")
    tiny = replace(SMOKE, name="tiny", max_updates=1, row_cap=64)
    demo = {id: on_demo(TABLES[id]).cells for id in ("T4", "T5", "T15")}
    one_stream, policies = runs_of([*demo["T4"], *demo["T5"]], tiny, [0]), runs_of(demo["T15"], tiny, [0])
    assert len(one_stream) == 10 and len(policies) == 5
    options = Options(tmp_path / "runs", device="cpu")
    for specs in (one_stream, policies):
        assert len(trained(run_specs(specs, options))) == 5  # one per step of the stream, however many runs
    assert len(list((tmp_path / "cache" / "references").glob("*.safetensors"))) == 10


def test_runs_of_one_reference_are_known_before_they_run():
    both = [*TABLES["T4"].cells, *TABLES["T5"].cells]
    specs = runs_of(both, PAPER, [0, 1, 2])
    assert len(specs) == 33 and len({reference_key(spec) for spec in specs}) == 3
    assert [len(group) for group in by_reference(specs)] == [11, 11, 11]
    assert len({reference_key(spec) for spec in runs_of(TABLES["T15"].cells, PAPER, [0])}) == 1
    assert reference_key(cell_of("T2", "p05-cifar10/co2l").spec(PAPER, 0)) is None
    pretrained = cell_of("T2", "p05-cifar10/co2l-p").spec(PAPER, 0)
    assert reference_key(pretrained) == reference_key(cell_of("T2", "p05-cifar10/ursl").spec(PAPER, 0))


# ----- plans


def test_shards_are_disjoint_and_make_up_the_plan_and_keep_references_whole():
    specs = runs_of(TABLES["T12"].cells, SHORT, [0, 1])
    parts = [sharded(specs, (i, 3)) for i in (1, 2, 3)]
    ids = [spec.id for part in parts for spec in part]
    assert sorted(ids) == sorted(spec.id for spec in specs) and len(set(ids)) == len(ids)
    keys = [{reference_key(spec) for spec in part} for part in parts]
    assert not (keys[0] & keys[1] or keys[0] & keys[2] or keys[1] & keys[2])
    assert max(map(len, parts)) - min(map(len, parts)) <= 3  # runs of one reference


def test_a_plan_lists_each_run_once_however_many_cells_it_fills():
    specs = runs_of(TABLES["T6"].cells, PAPER, [0])
    assert len(specs) == len({spec.id for spec in specs}) <= 7
    main = [cell.spec(PAPER, 0) for cell in TABLES["T2"].cells]
    labels_alone = [
        cell.name for cell, spec in zip(TABLES["T2"].cells, main, strict=True) if cell.configuration == "co2l"
    ]
    assert len(labels_alone) == 5 and len({spec.id for spec in main}) == len(main) - 2


def test_expected_minutes_come_from_the_records_and_count_a_shared_reference_once(world, osscl):
    osscl("table", "T4", *ON_DEMO, "--out", world / "runs")
    cells = on_demo(TABLES["T4"]).cells
    made = {spec.id for spec in runs_of(cells, SMOKE, [0])}  # other tests write there too
    records = {id: record for id, record in records_of(world / "runs").items() if id in made}
    specs = runs_of(cells, SMOKE, [1])
    cost = Timings(records.values()).cost(specs)
    assert cost.references == 1 and cost.unknown == 0 and cost.seconds > 0
    alone = sum(Timings(records.values()).cost([spec]).seconds for spec in specs)
    assert cost.seconds < alone
    assert Timings([]).cost(specs).unknown == len(specs)
    shared = [replace(r, made_by=replace(r.made_by, shared_device=True, seconds=1e6)) for r in records.values()]
    assert Timings([*records.values(), *shared]).cost(specs).seconds == pytest.approx(cost.seconds)
    assert Timings(shared).cost(specs).seconds > cost.seconds  # better than none
    longer = [replace(spec, schedule=replace(SMOKE, name="longer", share=2.0)) for spec in specs]
    assert Timings(records.values()).cost(longer).seconds == pytest.approx(2 * cost.seconds)
    other = [replace(spec, schedule=DEMO) for spec in specs]
    others = [*other, *(replace(spec, method=override(spec.method, ["reference.ssl=byol"])) for spec in specs),
              *(replace(spec, scenario=replace(spec.scenario, labels_per_class=6)) for spec in specs)]  # fmt: skip
    assert Timings(records.values()).cost(others).unknown == len(others)
    fewer = [replace(spec, scenario=replace(spec.scenario, related=50, unrelated=50)) for spec in specs]
    assert alone > Timings(records.values()).cost(fewer).seconds and Timings(records.values()).cost(fewer).unknown == 0


@pytest.mark.parametrize("schedule", [PAPER, SHORT], ids=lambda schedule: schedule.name)
def test_more_records_do_not_make_an_estimate_worse(schedule):
    """On an H200: a few timed records, and many of other schedules and fields that shared their device."""
    records = records_of(RESULTS / "h200")
    usual, plus = (cell_of("T4", f"all-losses/{name}").spec(PAPER, 0).id for name in ("ursl", "ursl-plus-unlimited"))
    timed = [records[usual], records[plus]]
    assert all(record.made_by.timed for record in timed)
    specs = runs_of(TABLES["T4"].cells, schedule, [1])
    few, all_ = Timings(timed).cost(specs), Timings(records.values()).cost(specs)
    (reference, learner), (_, shorter) = map(split_seconds, timed)
    share = schedule.share
    assert few.seconds == pytest.approx(share * (reference + 6 * learner + 2 * shorter), rel=0.01)
    assert (all_.seconds, all_.unknown) == (pytest.approx(few.seconds, rel=0.15), 0)


def test_an_estimate_prefers_timed_runs_then_the_schedule_then_the_method():
    records = records_of(RESULTS / "h200")
    spec = cell_of("T4", "all-losses/ursl").spec(PAPER, 1)
    timed = records[cell_of("T4", "all-losses/ursl").spec(PAPER, 0).id]
    other = replace(timed, spec=replace(timed.spec, method=override(spec.method, ["learner.lam=0.3"])))
    short = replace(timed, spec=replace(timed.spec, schedule=SHORT))

    def taking(record, seconds, **changes):
        phases = tuple(replace(step, phases=()) for step in record.steps)
        return replace(record, steps=phases, made_by=replace(record.made_by, seconds=seconds, **changes))

    shared = taking(timed, 4000.0, shared_device=True)
    found = [shared, taking(short, 3000.0), taking(other, 2000.0), taking(timed, 1000.0)]  # the best last
    scaled = 3000.0 / SHORT.share
    for best, seconds in enumerate((4000.0, scaled, 2000.0, 1000.0), 1):
        assert Timings(found[:best]).cost([spec]).seconds == pytest.approx(seconds)


def test_a_dry_run_shows_plan_and_cost_and_writes_nothing(osscl, tmp_path):
    code, shown, errors = osscl("table", "T2", "--dry-run", "--seeds", "0-2", "--out", tmp_path / "runs")
    assert (code, errors) == (0, "") and "p05-cifar10/ursl" in shown and "to run" in shown
    assert "Expected minutes: unknown, no comparable run is recorded." in shown and not list(tmp_path.iterdir())
    parts = [osscl("table", "T2", "--dry-run", "--shard", f"{i}/2", "--out", tmp_path)[1] for i in (1, 2)]
    whole, *halves = (sum(line.endswith("to run") for line in text.splitlines() if ":" not in line)
                      for text in (shown, *parts))  # fmt: skip
    assert sum(halves) == whole > 40


@pytest.mark.parametrize("place", ["paper", "demo"])
def test_the_list_starts_with_a_summary_and_fits_80_columns(osscl, monkeypatch, place):
    monkeypatch.setenv("COLUMNS", "80")
    code, shown, _ = osscl("table", "list", "--on", place, "--results", RESULTS)
    lines = shown.splitlines()
    body = lines[lines.index(next(line for line in lines if line.startswith("──"))) + 1 :]
    rows = body[: body.index("")]
    assert code == 0 and re.match(r"23 tables, figures and limitations.*: \d+ of \d+ runs recorded\.", lines[0])
    assert [line.split()[0] for line in rows] == list(ALL_TABLES) and max(map(len, lines)) <= 80


def test_runs_without_a_comparable_record_are_counted_as_unknown(osscl):
    shown = osscl("table", "list", "--results", RESULTS, "--format", "csv")[1]
    lines = {line["id"]: line for line in csv.DictReader(shown.splitlines())}
    assert (lines["T3"]["minutes"], lines["T3"]["unknown"], lines["T3"]["runs"]) == ("", "102", "102")
    assert float(lines["T1"]["minutes"]) > 0 and int(lines["T1"]["unknown"]) > 0
    assert all(line["unknown"].isdecimal() for line in lines.values())


def test_one_run_is_singular_and_seconds_are_less_than_1_minute(osscl, one_record, tmp_path):
    _, record = one_record
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / f"{record.id}.json").write_text(json.dumps(record_to_plain(record)))
    command = ["table", "T16", *ON_DEMO[:-4], "--seeds", "1", "--cells", "continual/ursl", "--results", folder]
    shown = osscl(*command, "--out", tmp_path / "runs", "--dry-run")[1]
    assert ": 1 run, 1 to run\n" in shown and "Expected minutes: less than 1.\n" in shown
    command[command.index("--cells") + 1] = "continual/ursl,pretrained/ursl"
    shown = osscl(*command, "--out", tmp_path / "runs", "--dry-run")[1]
    assert (
        ": 2 runs, 2 to run\n" in shown and "less than 1; not included: 1 run without a comparable record.\n" in shown
    )


@pytest.mark.parametrize("width", [80, 100])
def test_ids_and_names_of_fields_stay_whole(osscl, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    for id in ("T1", "T6", "T14"):
        shown = osscl("table", id, "--dry-run")[1]
        for spec in runs_of(TABLES[id].cells, PAPER, [0, 1, 2]):
            assert spec.id in shown
    shown = osscl("table", "T8")[1]
    assert all(row[0] in shown for row in chosen_rows())


# ----- verdicts


@pytest.fixture
def one_record(osscl, world):
    osscl("table", "T16", *ON_DEMO, "--cells", "continual/ursl", "--out", world / "runs")
    cell = on_demo(picked(TABLES["T16"], "continual/ursl")).cells[0]
    return cell, records_of(world / "runs")[cell.spec(SMOKE, 0).id]


@pytest.mark.parametrize(
    ("finals", "published", "words"),
    [
        ([30.2, 30.2, 30.2], Published(30.4, 0.2), "reached"),
        ([30.1, 30.2, 30.2], Published(30.4, 0.2), "short by 0.2"),
        ([4.5, 4.5, 4.5], Published(4.54, 0.02), "short by 0.04"),
        ([50.1, 50.1, 50.1], Published(51.0, 11.9), "reached"),  # never more than a point below
        ([49.9, 49.9, 49.9], Published(51.0, 11.9), "short by 1.1"),
        ([40.0], Published(30.4, 0.2), "n = 1"),  # three seeds are needed
        ([40.0, 40.0], Published(30.4, 0.2), "n = 2"),
        ([20.0, 30.0], Published(30.4, 0.2), "n = 2, short by 5.4"),
        ([20.0], None, None),
        ([], Published(30.4, 0.2), "not run"),
    ],
)
def test_a_cell_is_reached_with_three_seeds_or_short_or_says_n(one_record, finals, published, words):
    cell, record = one_record
    cell = replace(cell, published=published, small=False)
    records = {cell.spec(PAPER, seed).id: replace(record, final=final) for seed, final in enumerate(finals)}
    found = outcome(cell, records, PAPER, [0, 1, 2])
    assert (None if found.verdict is None else verdict_text(found.verdict)) == words
    assert found.std == (pytest.approx(statistics.stdev(finals)) if len(finals) > 1 else None)


def test_other_schedules_get_neither_a_verdict_nor_the_papers_number_and_are_never_mixed_in(one_record):
    cell, record = one_record
    cell = replace(cell, published=Published(30.4, 0.2), small=False)
    records = {cell.spec(SHORT, 0).id: replace(record, final=99.0)}
    assert outcome(cell, records, SHORT, [0]).verdict is outcome(cell, {}, SHORT, [0]).verdict is None
    assert outcome(cell, records, PAPER, [0]).verdict == Verdict("not run")
    table = replace(TABLES["T16"], cells=(cell,))
    for schedule, shown in ((SHORT, False), (PAPER, True)):
        records = {cell.spec(schedule, 0).id: record}
        made = paper_table(table, records, schedule, [0]).shown()
        assert ("paper" in [column.name for column in made.columns]) == shown
        (ours,) = [row[2] for row in made.rows]
        assert (ours.published == 30.4) == shown


@pytest.mark.parametrize(("published", "kind"), [(1e9, "reached"), (0.0, "over")])
def test_fewer_minutes_are_better(one_record, published, kind):
    cell, record = one_record
    timed = replace(cell, published=Published(published), measure="reference", small=False)
    records = {timed.spec(PAPER, seed).id: record for seed in range(3)}
    assert outcome(timed, records, PAPER, range(3)).verdict.kind == kind


def test_a_run_that_shared_its_device_counts_for_accuracy_and_not_for_time(one_record):
    cell, record = one_record
    shared = replace(record, made_by=replace(record.made_by, shared_device=True))
    cell = replace(cell, published=Published(1e9), small=False)
    records = {cell.spec(PAPER, 0).id: shared}
    assert outcome(replace(cell, measure="minutes"), records, PAPER, [0]).verdict == Verdict("not timed")
    assert outcome(cell, records, PAPER, [0]).mean == record.final
    assert shared.minutes is None and record.minutes > 0


def test_minutes_are_sums_over_phases(one_record):
    _, record = one_record
    seconds = {}
    for step in record.steps:
        for phase in step.phases:
            seconds.setdefault(phase.name, []).append(phase.seconds)
    steps = len(record.steps)
    others = sum(sum(times) for name, times in seconds.items() if name != "reference")
    assert measured(record, "reference") == pytest.approx(sum(seconds["reference"]) / 60)
    assert measured(record, "later reference") == pytest.approx(sum(seconds["reference"][1:]) / 60 / (steps - 1))
    assert measured(record, "learner") == pytest.approx(others / 60 / steps)
    assert measured(record, "minutes") == pytest.approx((others + sum(seconds["reference"])) / 60 / steps)


def test_records_of_another_schedule_are_counted_and_left_out(osscl, world):
    osscl("table", "T16", *ON_DEMO, "--out", world / "runs")
    paper = ["--on", "demo", "--schedule", "paper", "--no-run", "--seeds", "0"]
    shown = osscl("table", "T16", *paper, "--out", world / "runs")[1]
    assert shown.count("not run") == 3 and "3 at smoke (--schedule smoke)" in shown


@pytest.mark.parametrize("format", ["markdown", "csv", "latex"])
def test_a_table_in_other_formats(osscl, format):
    code, shown, errors = osscl("table", "T4", "--no-run", "--format", format)
    assert (code, errors) == (0, "") and "without-sup" in shown and "25.7" in shown
    if format == "csv":
        assert all(line.count(",") == shown.splitlines()[0].count(",") for line in shown.splitlines())


def test_the_notes_name_the_recorded_or_else_the_requested_seeds(one_record):
    cell, record = one_record
    table = replace(picked(TABLES["T16"], "continual/ursl"), cells=(cell,))
    footers = {(): "requested: seeds 0-3", (1,): "seed 1", (0, 3): "seeds 0, 3", (0, 1): "seeds 0-1"}
    for seeds, told in footers.items():
        specs = [cell.spec(PAPER, seed) for seed in seeds]
        records = {spec.id: replace(record, spec=spec) for spec in specs}
        assert f"schedule paper, {told}" in paper_table(table, records, PAPER, range(4)).notes[0]


@pytest.mark.parametrize("id", [id for id, table in ALL_TABLES.items() if table.cells and id not in LIMITS])
def test_on_the_demos_data_neither_title_nor_notes_mention_the_papers(id):
    shown = paper_table(on_demo(ALL_TABLES[id]), {}, SHORT, [0])
    theirs = r"cifar|imagenet|caltech|\bP\b|\|M\||\d{3,} |\d\.\d|caption|paper's (table|text)"
    assert not re.search(theirs, f"{shown.title} {shown.notes}")
    assert shown.title.endswith(", on digits")


@pytest.mark.parametrize("id", ["T1", "T4", "T15", "L1", "L3", "F1", "F2"])
def test_on_the_demos_data_a_note_has_the_labels_and_memories_of_the_rows(id):
    table = on_demo(ALL_TABLES[id])
    (note,) = [note for note in table.all_notes if "memory of" in note]
    told = {(labels, memory) for labels, words in re.findall(r"(\d+|all) labels[^;]* memory of ([0-9or ]+)", note)
            for memory in words.strip().split(" or ")}  # fmt: skip
    worlds = [cell.scenario for cell in table.cells]
    assert told == {(str(world.labels_per_class or "all"), str(world.memory)) for world in worlds}
    assert ("rows" in note) == (len(table.cells) > 1)


@pytest.mark.parametrize("place", ["paper", "demo"])
def test_notes_below_a_figure_are_sentences(osscl, place):
    lines = osscl("table", "F1", "--no-run", "--on", place, "--format", "markdown")[1].splitlines()
    notes = lines[lines.index("", 2) + 1 :]
    assert len(notes) == 3 and all(re.match("[A-Z±]", line) and line.endswith(".") for line in notes)


def test_on_the_papers_data_title_and_notes_do():
    shown = paper_table(TABLES["T2"], {}, PAPER, [0])
    assert shown.title == "T2: methods on cifar100: P=0.05 |M|=500, P=0.1 |M|=1000"
    assert any(note.endswith("in its table DM is best at P=0.1 with tinyimagenet.") for note in shown.notes)


@pytest.mark.parametrize("width", [60, 90, 140])
@pytest.mark.parametrize("command", [("table", "T2"), ("table", "T15"), ("table", "F2"), ("claims",)])
def test_title_and_notes_wrap_at_the_terminals_width(osscl, monkeypatch, width, command):
    monkeypatch.setenv("COLUMNS", str(width))
    shown = osscl(*command, *(["--no-run"] if len(command) > 1 else []))[1]
    assert max(map(len, shown.splitlines())) <= width


# ----- wrong arguments and damaged files


@pytest.mark.parametrize(
    ("args", "error", "about"),
    [
        (["T19"], SpecError, ["table", "'T19'", "T1", "T2"]),
        ([""], SpecError, ["table", "''", "T1"]),
        (["F3"], SpecError, ["table", "'F3'", "F1", "F2", "L1", "L2", "L3"]),
        (["T4", "--svg", "x.svg"], SpecError, ["--svg", "F1", "F2", "T4"]),
        (["L1", "--cells", "x"], SpecError, ["L1", "'x'"]),
        (["F1", "--engine", "slurm"], SpecError, ["engine", "slurm", "local", "ray"]),
        (["T4", "--address", "head:1"], SpecError, ["--address", "--engine ray"]),
        ([], UsageError, "list|main|T1..T18|F1|F2|L1..L3"),
        (["lst"], SpecError, ["table", "'lst'", "'list'"]),
        (["T2", "--cells", "ursll"], SpecError, ["T2", "'ursll'", "p05-cifar10/ursl"]),
        (["T2", "--cells", ""], SpecError, ["T2", "''"]),
        (["T2", "--cells", "ursl,,"], SpecError, ["T2", "''"]),
        (["T2", "--seeds", "2-0"], SpecError, ["seeds", "'2-0'"]),
        (["T2", "--seeds", ""], SpecError, ["seeds", "''"]),
        (["T2", "--schedule", "long"], SpecError, ["schedule", "long"]),
        (["T2", "--on", "moon"], SpecError, ["moon", "paper", "demo"]),
        (["T2", "--format", "pdf"], SpecError, ["format", "pdf", "text", "markdown", "csv", "latex"]),
        (["T2", "--results", "nowhere"], UserError, "nowhere"),
        (["T2", "--device", "tpu"], SpecError, ["device", "tpu"]),
        *((["T2", "--shard", shard], SpecError, ["shard", repr(shard)]) for shard in NO_SHARDS),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)  # fmt: skip
def test_wrong_arguments_are_refused_in_one_line(refused, args, error, about):
    refused("table", *args, error=error, about=about)


@pytest.mark.parametrize("damage", [b"", b"{", b'{"format": "osscl record 1"}', b"\xff"])
def test_a_damaged_record_is_named_skipped_and_never_rewritten(osscl, tmp_path, damage):
    (spec,) = runs_of(on_demo(picked(TABLES["T16"], "continual/ursl")).cells, SMOKE, [0])
    file = tmp_path / "runs" / spec.id / f"{spec.id}.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(damage)
    code, shown, errors = osscl("table", "T16", *ON_DEMO, "--cells", "continual/ursl", "--out", tmp_path / "runs")
    assert code == 0 and "(n=" not in shown and "requested: seed 0" in shown
    assert errors.startswith("skipped: ") and str(file) in errors and errors.count("\n") == 1
    assert "move it away to run it again" in errors
    assert file.read_bytes() == damage and list(file.parent.iterdir()) == [file]


def test_the_run_of_a_damaged_record_in_results_is_not_repeated_elsewhere(osscl, tmp_path, monkeypatch):
    (spec,) = runs_of(on_demo(picked(TABLES["T16"], "continual/ursl")).cells, SMOKE, [0])
    results = tmp_path / "results"
    results.mkdir()
    (results / f"{spec.id}.json").write_text("{")
    monkeypatch.setattr("osscl.runs.run._train_and_evaluate", None)
    command = ["table", "T16", *ON_DEMO, "--cells", "continual/ursl", "--out", tmp_path / "runs", "--results", results]
    assert "damaged record" in osscl(*command, "--dry-run")[1]
    code, shown, errors = osscl(*command)
    assert code == 0 and "(n=" not in shown and errors.startswith("skipped: ")


@pytest.mark.parametrize("command", [("claims",), ("table", "T6", "--no-run"), ("table", "F1", "--no-run")])
def test_an_inconsistent_record_is_named_and_skipped(osscl, one_record, tmp_path, command):
    _, record = one_record
    (tmp_path / f"{record.id}.json").write_text(json.dumps({**record_to_plain(record), "steps": []}))
    code, _, errors = osscl(*command, "--results", tmp_path)
    assert code == 0 and errors.startswith("skipped: ") and "must each have 5 steps" in errors


def test_copies_of_a_record_count_once_and_a_different_one_of_its_id_is_named(osscl, one_record, tmp_path):
    _, record = one_record
    for place, kept in (("a", record), ("b", record)):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"{record.id}.json").write_text(json.dumps(record_to_plain(kept)))
    code, shown, errors = osscl("runs", tmp_path, "--markdown")
    assert (code, errors) == (0, "") and "(n=1)" in shown
    (tmp_path / "b" / f"{record.id}.json").write_text(
        json.dumps(record_to_plain(consistent(replace(record, final=1.0))))
    )
    _, shown, errors = osscl("runs", tmp_path, "--markdown")
    assert shown.count("(n=1)") == 1 and f"is another record of {record.id}" in errors


def test_the_first_of_two_records_of_one_run_counts(one_record, tmp_path):
    cell, record = one_record
    for place, final in (("results", 1.0), ("runs", 2.0)):
        (tmp_path / place).mkdir()
        kept = consistent(replace(record, final=final))
        (tmp_path / place / f"{record.id}.json").write_text(json.dumps(record_to_plain(kept)))
    records, problems = known_records([tmp_path / "results", tmp_path / "runs"])
    assert not problems and outcome(cell, records, SMOKE, [0]).mean == 1.0
    (told,) = known_records([tmp_path])[1]
    assert str(tmp_path / "runs") in told and "the first one counts" in told


def test_a_terminal_without_a_width_has_80_columns(osscl, monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    code, shown, _ = osscl("table", "T7")
    assert code == 0 and 0 < max(map(len, shown.splitlines())) <= 80


def test_a_run_recorded_in_results_is_not_repeated(osscl, world, tmp_path, monkeypatch):
    osscl("table", "T16", *ON_DEMO, "--out", world / "runs")
    monkeypatch.setattr("osscl.runs.run._train_and_evaluate", None)
    command = ["table", "T16", *ON_DEMO, "--out", tmp_path / "runs", "--results", world / "runs"]
    code, shown, _ = osscl(*command)
    assert code == 0 and shown.count("(n=1)") == 3 and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("cells", ["continual/ursl", "*"])
def test_a_locked_run_is_skipped_and_the_table_is_shown_without_it(osscl, tmp_path, cells):
    (spec,) = runs_of(on_demo(picked(TABLES["T16"], "continual/ursl")).cells, SMOKE, [0])
    command = ["table", "T16", *ON_DEMO, "--cells", cells, "--out", tmp_path / "runs"]
    runs = len(on_demo(picked(TABLES["T16"], cells)).cells)
    with locked(tmp_path / "runs" / spec.id):
        code, shown, errors = osscl(*command)
    assert code == 3 and shown.count("(n=1)") == runs - 1
    assert errors == "osscl: 1 run is locked by another process; run the same command again later\n"
    code, shown, _ = osscl(*command)
    assert code == 0 and shown.count("(n=1)") == runs


def test_a_run_that_diverges_fails_the_command_after_the_table_is_shown(osscl, tmp_path, monkeypatch):
    def diverging(spec, *args, **kwargs):
        raise Diverged("the loss is not finite")

    monkeypatch.setattr("osscl.runs.run._train_and_evaluate", diverging)
    code, shown, errors = osscl("table", "T16", *ON_DEMO, "--out", tmp_path / "runs")
    assert code == 2 and "T16: " in shown and "3 of 3 runs failed" in errors


@pytest.mark.parametrize(
    "command", [["table", "T16", "--cells", "continual/ursl"], ["table", "L3", "--cells", "memory-500/ursl"],
                ["table", "F1"]], ids=lambda command: command[1]
)  # fmt: skip
def test_tables_figures_and_limitations_can_write_scalars(osscl, refused, tmp_path, command):
    pytest.importorskip("tensorboard")
    refused(*command, *ON_DEMO, "--out", tmp_path, "--track", "wandb", error=SpecError, about="wandb")
    assert osscl(*command, *ON_DEMO, "--out", tmp_path, "--track", "tensorboard")[0] == 0
    (folder,) = tmp_path.glob("*/tensorboard")
    assert list(folder.iterdir())


# ----- minutes of runs that shared their device


@pytest.fixture
def shared(osscl, tmp_path):
    """T6 on the demo's data, run on a shared device: the command and its records."""
    command = ["table", "T6", *ON_DEMO, "--cells", "co2l-j,ursl", "--out", tmp_path / "runs"]
    assert osscl(*command, "--shared-device")[0] == 0
    return command, records_of(tmp_path / "runs")


def test_runs_that_shared_their_device_count_as_not_recorded_where_minutes_are_shown(osscl, shared, tmp_path):
    command, _ = shared
    shown = osscl(*command, "--dry-run")[1]
    assert "2 runs, 2 to run" in shown and shown.count("to time") == 2 and "to be repeated in" in shown
    assert "2 runs, 0 to run" in osscl(*command, "--dry-run", "--shared-device")[1]  # times would not count either
    listed = osscl("table", "list", *ON_DEMO[:6], "--out", tmp_path / "runs", "--format", "csv")[1]
    counts = {line["id"]: line["recorded"] for line in csv.DictReader(listed.splitlines())}
    assert counts["T6"] == "0" and counts["T4"] == "1"  # unchanged ursl, whose accuracy counts


def test_runs_without_a_valid_time_are_repeated_once_and_their_records_stay(osscl, shared, tmp_path, monkeypatch):
    command, records = shared
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*.json")}
    code, shown, errors = osscl(*command)
    assert (code, errors) == (0, "") and shown.count("(n=1)") == 3
    assert {path: path.read_bytes() for path in before} == before
    made = records_of(tmp_path / "runs" / "timed")
    assert set(made) == set(records) and all(record.made_by.timed for record in made.values())
    fresh = [phase for record in made.values() for step in record.steps for phase in step.phases]
    assert not any(
        phase.cached for phase in fresh
    )  # a reference from the cache may have been trained beside other work
    assert osscl("runs", tmp_path / "runs")[2] == ""  # two records of a run are no problem
    monkeypatch.setattr("osscl.runs.run._train_and_evaluate", None)
    code, shown, errors = osscl(*command)
    assert (code, errors) == (0, "") and shown.count("(n=1)") == 3
    assert "2 runs, 0 to run" in osscl(*command, "--dry-run")[1]


def test_accuracy_is_from_the_first_record_and_time_from_the_timed_one(shared, tmp_path):
    _, records = shared
    cell = on_demo(picked(TABLES["T6"], "ursl/learner")).cells[0]
    first = records[cell.spec(SMOKE, 0).id]
    later = consistent(replace(first, final=1.0, made_by=replace(first.made_by, shared_device=False)))
    for place, record in (("a", first), ("a/timed", later)):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"{record.id}.json").write_text(json.dumps(record_to_plain(record)))
    for folders in (["a"], ["a", "a/timed"], ["a/timed"]):
        known, problems = known_records([tmp_path / folder for folder in folders])
        assert not problems and outcome(cell, known, SMOKE, [0]).values
        final = outcome(replace(cell, measure="accuracy"), known, SMOKE, [0]).mean
        assert final == (1.0 if folders == ["a/timed"] else first.final)


@pytest.mark.parametrize("damage", ["{", None])
def test_a_second_record_without_a_time_is_named_and_its_run_not_repeated(osscl, shared, tmp_path, monkeypatch, damage):
    command, records = shared
    for id, record in records.items():
        text = json.dumps(record_to_plain(consistent(replace(record, final=1.0))))
        path = tmp_path / "runs" / "timed" / id / f"{id}.json"
        path.parent.mkdir(parents=True)
        path.write_text(text if damage is None else damage)
    monkeypatch.setattr("osscl.runs.run._train_and_evaluate", None)
    code, shown, errors = osscl(*command)
    assert code == 0 and "(n=1)" not in shown and errors.count("skipped: ") == 2
    assert ("is another record of" if damage is None else "move it away") in errors


# ----- stopped runs


def test_a_stopped_table_is_resumed_by_the_same_command(osscl, tmp_path):
    command = ["table", "T16", *ON_DEMO, "--out", tmp_path / "runs"]
    code, _, line = osscl(*command, "--max-minutes", "0")
    assert code == 3 and line == "osscl: Stopped. Run the same command again to resume.\n"
    assert "started" in osscl(*command, "--dry-run")[1]
    assert osscl(*command)[0] == 0
    sessions = [json.loads(path.read_text())["made_by"]["sessions"] for path in tmp_path.glob("runs/*/*-s0-*.json")]
    assert sorted(sessions) == [1, 1, 2]


# ----- figures, limitations, claims


def test_limitations_vary_one_thing_each():
    for id, field, values in (
        ("L1", "imbalance", {1, 10, 30}), ("L2", "unrelated", {9000, 900, 180}), ("L3", "memory", {500, 200, 100})
    ):  # fmt: skip
        cells = LIMITS[id].cells
        assert {getattr(cell.scenario, field) for cell in cells} == values
        assert {cell.configuration for cell in cells} == {"co2l", "ursl", "ursl-plus", "ursl-plus-unlimited"}
    assert {cell.scenario.memory for cell in on_demo(LIMITS["L3"]).cells} == {30, 12, 10}
    alone = {cell.spec(PAPER, 0).id for cell in LIMITS["L2"].cells if cell.configuration == "co2l"}
    assert len(alone) == 1  # it uses no unlabelled images


def test_a_figure_is_a_table_and_a_drawing_that_overwrites_nothing(osscl, refused, world, tmp_path):
    command = ["table", "F1", *ON_DEMO, "--out", world / "runs", "--svg", tmp_path / "f1.svg"]
    code, shown, _ = osscl(*command)
    assert code == 0 and "seen classes" in shown and "Schedule smoke, seed 0, n=1." in shown
    assert (tmp_path / "f1.svg").read_text().startswith("<svg ")
    refused(*command, error=UserError, about=tmp_path / "f1.svg")
    empty = ["table", "F1", *ON_DEMO, "--no-run", "--out", tmp_path / "none", "--svg", tmp_path / "other.svg"]
    refused(*empty, error=UserError, about=[tmp_path / "other.svg", "F1"])
    assert not (tmp_path / "other.svg").exists()


@pytest.mark.parametrize(
    ("args", "error", "about"),
    [
        (["--schedule", "long"], SpecError, ["schedule", "long"]),
        (["--results", "nowhere"], UserError, "nowhere"),
        (["--format", "pdf"], SpecError, ["format", "pdf"]),
    ],
)
def test_wrong_arguments_of_claims_are_refused_in_one_line(refused, args, error, about):
    refused("claims", *args, error=error, about=about)


@pytest.mark.parametrize("command", ["figure", "experiments"])
def test_old_commands_are_gone(refused, command):
    refused(command, "F1", error=SpecError, about=[f"'{command}'", "table"])


def test_claims_use_all_records(osscl, world):
    osscl("table", "T5", *ON_DEMO, "--out", world / "runs")
    for asked, words in (
        ([], 'undecided,,,"T5, seeds 0-2",,accuracy,,,0,'),
        (["--schedule", "smoke"], "tried,smoke on demo data,demo,,T5"),
    ):
        code, shown, errors = osscl("claims", *asked, "--out", world / "runs", "--format", "csv")
        assert (code, errors) == (0, "")
        line = next(line for line in shown.splitlines() if line.startswith("T-hat helps"))
        assert line.startswith(f"T-hat helps,{words}") and (",1,0," in line) == bool(asked)
    assert "smoke" not in osscl("claims", "--schedule", "paper", "--out", world / "runs", "--format", "csv")[1]
    told = " ".join(osscl("claims", "--schedule", "smoke", "--out", world / "runs")[1].split())
    assert re.match(r"\d+ claims: \d+ tried[;,.] ", told) and "holds" not in told and "decides nothing" in told


def test_a_note_is_shown_with_its_cells_only():
    of_co2l, of_gem = (picked(TABLES["T1"], name).all_notes for name in ("p01-tinyimagenet/co2l", "all-labels/gem"))
    assert any("Co2L uses no" in note for note in of_co2l) and not any("51.0" in note for note in of_co2l)
    assert [note.startswith("GEM's cells") for note in of_gem] == [True] and any(
        "51.0" in note for note in TABLES["T1"].all_notes
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [((12.34,), "12.3 min (n=1)"), ((0.004,), "0.004 min (n=1)"), ((0.1, 0.3), "0.2 ± 0.1 min (n=2)")],
)
def test_a_few_seconds_are_not_0_minutes(values, words):
    cell = next(cell for cell in TABLES["T6"].cells if cell.column == "learner")
    assert str(our_number(Outcome(cell, PAPER, (), values))) == words


@pytest.mark.parametrize(
    ("mean", "std", "measure", "words"),
    [(30.4, 0.2, "accuracy", "30.4 ± 0.2"), (51.0, 11.9, "accuracy", "51.0 ± 11.9"), (63, None, "minutes", "63 min"),
     (4.54, 0.02, "accuracy", "4.54 ± 0.02"), (15.75, None, "minutes", "15.75 min")],
)  # fmt: skip
def test_the_papers_numbers_keep_its_decimals(mean, std, measure, words):
    assert str(published_number(Published(mean, std), measure)) == words
