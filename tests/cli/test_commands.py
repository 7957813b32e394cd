"""The command line: a mistake is one line and exit code 2, nothing of the user's is lost, and commands work."""

import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from osscl import __version__
from osscl import storage as stored
from osscl.cli import main
from osscl.config import flat, override, plain
from osscl.data import benchmarks
from osscl.errors import DataError, Diverged, OutOfMemory, SpecError, UserError
from osscl.methods import CONFIGURATIONS
from osscl.methods.base import SMOKE, Progress
from osscl.paper.score import measured
from osscl.runs.checkpoint import Options
from osscl.runs.evaluate import refuse_divergent_loss
from osscl.runs.index import read_records
from osscl.runs.model import load_model
from osscl.runs.record import write_record
from osscl.runs.run import run
from osscl.runs.spec import configuration, experiment, make_spec, spec_from_plain
from osscl.storage import locked, read_state, write_state
from refusals import UsageError, check_refusal, naming, refusal_of

RESULTS = Path(__file__).parents[2] / "results"
OSSCL = [sys.executable, "-m", "osscl"]
TINY = ["--schedule", "smoke", *(f"--set=schedule.{field}" for field in ("name=tiny", "max_updates=1", "row_cap=64"))]
DIGITS = ["run", "digits", *TINY]
LABELS_ONLY = [*DIGITS, "--method", "labels-only"]
BIG = "9" * 30
STOPPED = "osscl: Stopped. Run the same command again to resume.\n"


@pytest.fixture(autouse=True)
def quiet_world(monkeypatch, tmp_path_factory):
    """A cache of the tests' own, no data, and no call of git in each run."""
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("OSSCL_COMMIT", "here")
    monkeypatch.delenv("OSSCL_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture(scope="session", autouse=True)
def banks_read_once():
    """Drawing the digits and letters takes longer than most of these tests."""
    made, read = {}, benchmarks.load_bank

    def load_bank(name, data_dir, cache_dir=None):
        if name not in ("digits", "letters"):
            return read(name, data_dir, cache_dir)
        if name not in made:
            made[name] = read(name, data_dir)
        return made[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("osscl.runs.run.load_bank", load_bank)
        patch.setattr(benchmarks, "load_bank", load_bank)
        yield


@pytest.fixture
def osscl(monkeypatch, type_command, tmp_path):
    """Call the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return type_command


def contents(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def refused(osscl, tmp_path):
    """Call the command and expect a refusal: one line on stderr, about these names, and no file changed."""

    refusal = refusal_of(osscl)

    def call(*args, error, about):
        before = contents(tmp_path)
        line = refusal(*args, error=error, about=about)
        assert contents(tmp_path) == before
        return line

    return call


def main_with(*args):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSSCL_COMMIT", "here")
        patch.setattr(sys, "argv", ["osscl", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0


@pytest.fixture(scope="session")
def finished(tmp_path_factory, banks_read_once):
    """The folder of one finished run."""
    out = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSSCL_CACHE", str(out / "cache"))
        main_with(*DIGITS, "--out", out / "runs")
    (folder,) = (out / "runs").iterdir()
    return folder


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run that a test may change, with nothing beside it."""
    return shutil.copytree(finished, tmp_path / "runs" / finished.name)


@pytest.fixture(scope="session")
def stream_text(tmp_path_factory, banks_read_once):
    path = tmp_path_factory.mktemp("stream") / "stream.json"
    main_with("stream", "digits", "--out", path)
    return path.read_text()


def id_of(shown):
    return next(line.removeprefix("# id: ") for line in shown.splitlines() if line.startswith("# id: "))


def raises(error):
    def fail(*_, **__):
        raise error

    return fail


# ----- mistakes on the command line


@pytest.mark.parametrize(
    ("error", "about", "commands"),
    [
        (SpecError, ("bogus", "demo", "list"), "bogus"),
        (SpecError, ("bogus", "list", "fetch"), "data bogus"),
        (UsageError, ("--bogus", "--help"), "--bogus"),
        (UsageError, ("MODEL", "--help"), "predict"),
        (UsageError, ("NAME", "--help"), "data fetch"),
        (SpecError, ("--main", "--memory"), "run | stream"),
        (SpecError, ("experiment", "''"), "run ''"),
        (SpecError, ("experiment", "'bogus'"), "stream bogus"),
        (UsageError, "more", "run digits more | list more"),
        (SpecError, "mnist", "data fetch digits mnist"),
        (UsageError, "--seed", "demo --seed -1 | stream digits --seed x"),
        (SpecError, ("seed", BIG), f"demo --seed {BIG}"),
        (SpecError, ("--set", "learner.gamma"), "stream digits --set learner.gamma=1"),
        (SpecError, "learner.lam", "tune digits --search learner.lam="),
        (UserError, "nowhere", "report nowhere | runs nowhere"),
        (DataError, "nowhere", "predict nowhere"),
        (UsageError, "--sample", "predict nowhere --sample 0"),
    ],
)
def test_a_mistake_in_a_command_is_named_in_one_line(refused, error, about, commands):
    for command in commands.split(" | "):
        refused(*(word.strip("'") for word in command.split()), error=error, about=about)


@pytest.mark.parametrize(
    ("option", "error", "about", "values"),
    [
        ("--data", UsageError, "--data", [None]),
        ("--method", SpecError, "method", ["ursll", ""]),
        ("--schedule", SpecError, "schedule", ["long", ""]),
        ("--main", SpecError, "mnist", ["mnist"]),
        ("--peripheral", SpecError, "mnist", ["mnist"]),
        ("--peripheral", SpecError, ("''", "digits"), [""]),
        ("--peripheral", SpecError, "peripheral", ["letters,letters", "digits"]),
        ("--regime", SpecError, "regime", ["wild"]),
        ("--device", SpecError, ("device", "cuda:N"), ["tpu", "", "cpu:7", "cuda:-1"]),
        ("--device", SpecError, ("cuda:99", "CUDA"), ["cuda:99"]),
        ("--labeled", SpecError, "labeled_fraction", ["1.5", "nan"]),
        ("--labeled", SpecError, ("scenario.labeled_fraction", "--labeled"), [".1 --set scenario.labeled_fraction=.2"]),
        ("--labeled", UsageError, "--labeled", ["many"]),
        ("--labels-per-class", SpecError, "labels_per_class", ["0", "3 --labeled 0.1"]),
        ("--labels-per-class", UsageError, "--labels-per-class", ["1.5"]),
        ("--memory", SpecError, "memory", ["5", "-1", BIG]),
        ("--memory", SpecError, ("scenario.memory", "--memory"), ["20 --set scenario.memory=10"]),
        ("--validation", SpecError, "validation_share", ["1", "nan"]),
        ("--seed", UsageError, ("--seed", "--seeds"), ["-1", "0-2"]),
        ("--seed", SpecError, ("--seed", "--seeds"), ["1 --seeds 2"]),
        ("--seed", SpecError, ("seed", BIG), [BIG]),
        ("--seeds", SpecError, "seeds", ["", "x", "0-", "-1", "0,,2", "0-2,", "3-1", "²", "1.5", BIG, "0-99999999999"]),
        ("--max-minutes", UsageError, "--max-minutes", ["-1", "nan"]),
        ("--full", SpecError, "--dry-run", [None]),
        ("--set", SpecError, "mnist", ["scenario.main=mnist", "scenario.peripheral=[mnist]"]),
        ("--set", SpecError, "field=value", ["learner.gamma", ""]),
        ("--set", SpecError, ("--set", "--seed"), ["seed=3"]),
        ("--set", SpecError, ("--set", "--stream"), ["stream=x"]),
        ("--set", SpecError, ("--set", "--method"), ["method=3"]),
    ],
)
def test_a_wrong_value_of_an_option_is_named(refused, option, error, about, values):
    for value in values:
        given = [] if value is None else value.split() or [""]
        refused("run", "digits", option, *given, error=error, about=about)


@pytest.mark.parametrize(
    "change",
    f"""learner.gamma=-1 learner.gamma=nan learner.gamma=.inf learner.gamma=1e400 learner.gamma= learner.gamma=[1]
    learner.gamma=!!python/object:os.system learner.gama=1 learner.gamma.x=1 learner.epochs=.nan learner.epochs={BIG}
    learner.net.backbone=vgg learner.net.dim=99999999999
    reference.predictor=0 reference.epochs_first=0 gate.eta=[-.inf,0] gate.prototype_views=99999999 head.momentum=2
    head.copies=99999999 memory.policy=best scenario.classes_per_step=[0] schedule.name=../../elsewhere
    schedule.row_cap=0 schedule.share=.inf""".split(),
)
def test_an_impossible_change_is_refused_by_its_field(refused, change):
    refused(*DIGITS, "--set", change, error=SpecError, about=change.partition("=")[0].rpartition(".")[2])


@pytest.mark.parametrize(
    ("method", "change", "about"),
    [
        ("ursl-plus", "start=sideways", ["start", "random", "reference"]),
        ("co2l", "base_temperature=0", ["base_temperature", "positive", "null"]),
        ("gd", "batch=0", ["batch", "positive"]),
    ],
)
def test_an_impossible_change_of_another_method_is_refused_with_what_is_allowed(refused, method, change, about):
    refused(*DIGITS, "--method", method, "--set", change, error=SpecError, about=about)


@pytest.mark.parametrize(
    ("args", "error", "about"),
    [
        ("--labels-per-class 9999", SpecError, ["labels_per_class", "134", "9999"]),
        ("--validation 0.999", SpecError, ["labels_per_class", "134", "3"]),
        ("--validation 0.001", SpecError, ["digits", "validation_share"]),
        ("--set scenario.related=99999", SpecError, ["related", "99999"]),
        ("--set scenario.unrelated=99999", SpecError, ["unrelated", "letters", "99999"]),
        ("--set scenario.classes_per_step=[11]", SpecError, ["classes_per_step", "10", "11"]),
        ("--peripheral cifar10", DataError, "osscl data fetch cifar10"),
    ],
)
def test_more_than_the_data_has_is_refused(refused, tmp_path, args, error, about):
    given = *args.split(), "--data", tmp_path
    refused(*DIGITS, *given, error=error, about=about)
    refused("stream", "digits", *given, "--out", tmp_path / "stream.json", error=error, about=about)


# ----- training that diverges


@pytest.mark.parametrize("part", ["reference", "learner"])
def test_training_that_diverges_ends_in_one_line(osscl, part):
    changes = "--set", "schedule.max_updates=3", "--set", f"{part}.optimiser.rate=1e30"
    code, _, line = osscl(*DIGITS, *changes)
    assert code == 2 and line.count("\n") == 1
    check_refusal(osscl.raised, line, Diverged, [part, "nan", "1"])


def test_a_loss_is_checked_every_200_updates_and_at_the_end():
    def check(update, loss):
        refuse_divergent_loss(Progress("learner", update, 10_000, 0, torch.tensor(loss)), 0)

    for update, loss in ((200, 1.0), (199, math.nan), (10_000, 1.0)):
        check(update, loss)
    for update in (200, 400, 10_000):
        with pytest.raises(Diverged, match=naming("learner", "nan", update)):
            check(update, math.nan)


@pytest.mark.parametrize("updates", [1, 3])
def test_a_diverged_network_is_not_cached(osscl, tmp_path, monkeypatch, updates):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    command = [*DIGITS, "--set", f"schedule.max_updates={updates}"]
    diverging = ["--set", "reference.optimiser.rate=1e30", "--set", "reference.optimiser.warmup=0"]
    assert osscl(*command, *diverging)[0] == 2
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    assert osscl(*command)[0] == 0
    assert list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_diverged_run_starts_over(tmp_path):
    spec = make_spec(experiment("digits"), configuration("labels-only"), SMOKE, 0)
    spec = replace(spec, method=override(spec.method, ["learner.optimiser.rate=1e30"]))
    for names in ({"checkpoint.diverged"}, {"checkpoint.diverged", "checkpoint.diverged-2"}):
        with pytest.raises(Diverged):
            run(spec, Options(tmp_path, device="cpu", save_every=0))
        assert {path.name for path in (tmp_path / spec.id).glob("checkpoint*")} == names


# ----- mistakes in files


@pytest.fixture
def spec(osscl):
    """A spec as `--dry-run --full` shows it."""
    return yaml.safe_load(osscl(*LABELS_ONLY, "--dry-run", "--full")[1])


@pytest.mark.parametrize("option", ["--spec", "--stream"])
@pytest.mark.parametrize(
    "content", [b"", b"[1, 2]", b"hello", b"{}", b"\x00\x01", b"\xff\xfe\x80", b"a: [", b"[" * 5000]
)
def test_a_file_that_holds_no_spec_or_stream_is_named(refused, tmp_path, option, content):
    error = SpecError if option == "--spec" else DataError
    (tmp_path / "file").write_bytes(content)
    refused("run", option, "file", error=error, about="file")
    refused("run", option, "nowhere", error=error, about="nowhere")
    refused("run", option, tmp_path, error=error, about=[tmp_path, os.strerror(errno.EISDIR)])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bogus", 3), ("scenario", None), ("scenario", {"peripheral": []}), ("scenario.peripheral", "letters"),
        ("method", {}), ("method.type", "magic"), ("method.type", ["ursl"]), ("method.learner.gamma", "a"),
        ("method.learner.gamma", float("inf")), ("schedule", "long"), ("schedule.name", "../../elsewhere"),
        ("seed", "a"), ("seed", -1),
    ],
)  # fmt: skip
def test_a_mistake_in_a_spec_file_is_named(refused, spec, tmp_path, field, value):
    *groups, last = field.split(".")
    group = spec
    for name in groups:
        group = group[name]
    group[last] = value
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    refused("run", "--spec", "spec.yaml", error=SpecError, about=["spec.yaml", last])


@pytest.mark.parametrize(
    ("option", "flags"),
    [
        ("--spec", ["digits", "--method ursl", "--schedule smoke", "--labels-per-class 3", "--set learner.gamma=1"]),
        ("--stream", ["digits", "--seed 0", "--memory 30", "--set scenario.related=9"]),
    ],
)
def test_options_that_a_file_defines_are_refused_together_with_it(refused, spec, stream_text, tmp_path, option, flags):
    (tmp_path / "file").write_text(yaml.safe_dump(spec) if option == "--spec" else stream_text)
    for flag in flags:
        named = "experiment" if flag == "digits" else flag.split()[0]
        refused("run", *flag.split(), option, "file", error=SpecError, about=[option, named])


def without_digest(stream_text):
    """A stream as somebody edits it: what it says about its own content is removed."""
    stream = json.loads(stream_text)
    del stream["digest"]
    return stream


@pytest.mark.parametrize(
    ("change", "about"),
    [
        ({"content": {}}, ["stream", "digits"]), ({"content": 3}, ["stream.json", "content"]),
        ({"seed": "a"}, ["stream.json", "seed"]), ({"seed": True}, ["stream.json", "seed"]), ({"seed": -1}, "seed"),
        ({"validation": "x"}, ["stream.json", "validation"]), ({"steps": 3}, ["stream.json", "steps"]),
        ({"steps": []}, ["stream", "steps"]), ({"steps": [3]}, "step 1"), ({"held_out": [[1]]}, ["held-out", "stream"]),
    ],
)  # fmt: skip
def test_a_damaged_stream_is_refused(refused, stream_text, tmp_path, change, about):
    (tmp_path / "stream.json").write_text(json.dumps(without_digest(stream_text) | change))
    error = SpecError if change == {"seed": -1} else DataError
    refused("run", *TINY, "--stream", "stream.json", error=error, about=about)


@pytest.mark.parametrize(
    "change", [{"labeled": [1.5]}, {"new_classes": [99]}, {"new_classes": ["a"]}, {"unlabeled": [[1]]}, {"asked": "x"}]
)
def test_a_damaged_step_of_a_stream_is_refused(refused, stream_text, tmp_path, change):
    stream = without_digest(stream_text)
    stream["steps"][1] |= change
    (tmp_path / "stream.json").write_text(json.dumps(stream))
    refused("run", *TINY, "--stream", "stream.json", error=DataError, about="step 2")


def test_missing_data_is_reported_before_anything_is_shown_or_run(osscl, refused, tmp_path):
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "half" / "cifar-100-python").mkdir(parents=True)  # the peripheral set is missing
    for folder, name in (("nowhere", "cifar100"), ("file", "cifar100"), ("half", "cifar10")):
        for command in (["run", "cifar100-p05", *TINY], ["table", "T2", "--seeds", "0", "--schedule", "smoke"]):
            refused(*command, "--data", folder, error=DataError, about=f"osscl data fetch {name} --data {folder}")
            assert osscl(*command, "--data", folder)[1] == ""
    refused("data", "fetch", "cifar10", "--data", "file", error=DataError, about=["file", "--data"])


def test_an_output_folder_that_cannot_be_written_is_named(refused, tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in ("file", "/proc"):
        refused(*DIGITS, "--out", out, error=UserError, about=["folder", out])
    refused(*DIGITS, "--out", "x" * 300, error=OSError, about=["x" * 300, os.strerror(errno.ENAMETOOLONG)])
    refused("stream", "digits", "--out", "/proc/stream.json", error=UserError, about="/proc/stream.json")
    refused("stream", "digits", "--out", "file", error=UserError, about="file")
    refused("demo", "--smallest", "--out", "file", error=UserError, about=["folder", "file"])


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b"\xff", b'{"format": "osscl record 1"}', b"[" * 5000])
def test_a_damaged_record_is_reported_and_left_alone(refused, osscl, copied, damage):
    (copied / f"{copied.name}.json").write_bytes(damage)
    refused(*DIGITS, error=DataError, about=f"{copied.name}.json")
    code, shown, line = osscl("runs")
    assert code == 0 and copied.name not in shown and line.startswith("skipped: ") and line.count("\n") == 1


@pytest.fixture
def checkpoint(osscl, tmp_path):
    """The checkpoint of a run of LABELS_ONLY that was stopped at once."""
    assert osscl(*LABELS_ONLY, "--max-minutes", "0")[0] == 3
    (path,) = tmp_path.rglob("checkpoint.safetensors")
    return path


def test_a_damaged_checkpoint_is_kept_and_the_run_starts_over(osscl, checkpoint, caplog):
    checkpoint.write_bytes(b"damaged")
    assert osscl(*LABELS_ONLY, "--max-minutes", "0")[0] == 3
    assert "checkpoint.safetensors is damaged" in caplog.text
    assert checkpoint.with_suffix(".damaged").read_bytes() == b"damaged"


def test_a_checkpoint_that_cannot_be_opened_is_left_alone(checkpoint, tmp_path, monkeypatch):
    before = checkpoint.read_bytes()
    spec = spec_from_plain(json.loads((checkpoint.parent / "spec.json").read_text()))
    with monkeypatch.context() as patch:
        patch.setattr(stored, "safe_open", raises(OSError(errno.EMFILE, "Too many open files")))
        with pytest.raises(OSError, match=naming(errno.EMFILE)):
            run(spec, Options(tmp_path / "runs", device="cpu"))
    assert checkpoint.read_bytes() == before and not checkpoint.with_suffix(".damaged").exists()


def test_a_checkpoint_of_another_version_is_reported_and_left_alone(refused, checkpoint):
    state = read_state(checkpoint)
    del state["method"]["learner"]
    write_state(checkpoint, state)
    refused(*LABELS_ONLY, error=DataError, about=[checkpoint.name, "learner"])


# ----- what a run records of its device, time and code


def only_record(folder):
    (record,), _ = read_records(folder / "runs")
    return record


def test_a_run_that_once_shared_its_device_shows_no_time(osscl, tmp_path):
    assert osscl(*LABELS_ONLY, "--shared-device", "--max-minutes", "0")[0] == 3
    assert osscl(*LABELS_ONLY)[0] == 0
    record = only_record(tmp_path)
    assert record.made_by.shared_device and record.made_by.sessions == 2
    (seconds,) = [line for line in osscl(*LABELS_ONLY)[1].splitlines() if "seconds" in line]
    assert seconds.rstrip().endswith("—")
    assert "—" in osscl("runs")[1]  # instead of its minutes


def test_a_run_records_every_commit_it_ran_on_once(osscl, tmp_path, monkeypatch):
    for commit in ("first", "second", "second"):
        monkeypatch.setenv("OSSCL_COMMIT", commit)
        assert osscl(*LABELS_ONLY, "--max-minutes", "0")[0] == 3
    monkeypatch.setenv("OSSCL_COMMIT", "third")
    assert osscl(*LABELS_ONLY)[0] == 0
    record = only_record(tmp_path)
    assert record.made_by.commit == "third" and [part.commit for part in record.made_by.earlier] == ["first", "second"]
    elsewhere = replace(record.made_by, earlier=(replace(record.made_by.earlier[0], device="another"),))
    moved = replace(record, made_by=elsewhere)
    assert record.minutes is not None and moved.minutes is None
    assert measured(record, "learner") is not None and measured(moved, "learner") is None
    assert osscl("report", "runs", "--out", "page.html")[0] == 0
    assert "first on CPU" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("stopped_early", [False, True])
def test_a_reference_trained_on_a_shared_device_has_no_valid_time(stopped_early, osscl, tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    if stopped_early:  # the device is shared until the first checkpoint, inside the reference
        assert osscl(*DIGITS, "--shared-device", "--max-minutes", "0")[0] == 3
        assert osscl(*DIGITS)[0] == 0
    else:
        assert osscl(*DIGITS, "--shared-device")[0] == 0
    assert osscl(*DIGITS, "--method", "ursl-plus-unlimited")[0] == 0
    records, _ = read_records(tmp_path / "runs")
    assert len(records) == 2 and all(record.made_by.shared_device for record in records)
    assert {phase.cached for record in records for phase in record.steps[0].phases} == {True, False}


def test_a_reference_trained_on_another_device_has_no_valid_time(osscl, tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    assert osscl(*DIGITS)[0] == 0
    for kept in (tmp_path / "cache" / "references").glob("*.safetensors"):
        write_state(kept, {**read_state(kept), "device": "another"})
    assert osscl(*DIGITS, "--method", "ursl-plus-unlimited")[0] == 0
    records, _ = read_records(tmp_path / "runs")
    assert {record.configuration: record.made_by.timed for record in records} == {
        "ursl": True,
        "ursl-plus-unlimited": False,
    }


# ----- run and stream


def test_a_finished_run_is_not_run_again(osscl, copied):
    record = copied / f"{copied.name}.json"
    before = record.read_bytes()
    code, shown, errors = osscl(*DIGITS)
    assert (code, errors) == (0, "")
    assert "This run is finished" in shown and id_of(shown) == copied.name and "forgetting" in shown
    assert "scenario:" not in shown and "scenario:" in osscl(*DIGITS, "--dry-run")[1]
    assert record.read_bytes() == before and json.loads(before)["id"] == copied.name


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_dry_run_shows_only_what_differs_from_the_methods_defaults(osscl, tmp_path, name):
    shown = yaml.safe_load(osscl("run", "digits", "--schedule", "paper", "--method", name, "--dry-run")[1])
    assert not list(tmp_path.iterdir())
    config = CONFIGURATIONS[name]
    method = {key: value for key, value in shown["method"].items() if key != "type"}
    fields, defaults = flat(plain(config)), flat(plain(type(config)()))
    assert method == {key: value for key, value in fields.items() if value != defaults[key]}
    changed = override(type(config)(), [f"{key}={json.dumps(value)}" for key, value in method.items()])
    assert plain(changed) == plain(config)
    assert (shown["schedule"], shown["seed"]) == ("paper", 0)
    assert shown["scenario"]["main"] == "digits" and "class_share" not in shown["scenario"]


def test_a_full_dry_run_is_a_spec_file_and_every_change_has_its_own_id(osscl, tmp_path):
    changes = [], ["--set", "learner.gamma=0.3"], ["--set", "method.learner.gamma=0.4"], ["--seed", "2"]
    shown = [osscl(*DIGITS, "--dry-run", "--full", *change)[1] for change in changes]
    assert len(set(map(id_of, shown))) == 4 and yaml.safe_load(shown[1])["method"]["learner"]["gamma"] == 0.3
    (tmp_path / "spec.yaml").write_text(shown[3])
    assert id_of(osscl("run", "--spec", "spec.yaml", "--dry-run")[1]) == id_of(shown[3])


def test_a_stream_from_a_file_is_the_same_run(osscl, copied, stream_text, tmp_path):
    code, shown, _ = osscl("stream", "digits", "--out", "stream.json")
    assert code == 0 and "written to stream.json" in shown
    assert id_of(osscl("run", *TINY, "--stream", "stream.json")[1]) == copied.name


def test_a_run_on_an_edited_stream_resumes_from_its_spec_and_that_stream(
    osscl, refused, finished, stream_text, tmp_path
):
    stream = without_digest(stream_text)
    stream["steps"][0]["labeled"].reverse()
    (tmp_path / "stream.json").write_text(json.dumps(stream))
    shown = osscl("run", *TINY, "--stream", "stream.json", "--dry-run")[1]
    assert id_of(shown) != finished.name and yaml.safe_load(shown)["stream"] is not None
    command = ["run", "--method", "labels-only", *TINY, "--stream", "stream.json"]
    assert osscl(*command, "--max-minutes", "0")[0] == 3
    (spec,) = tmp_path.rglob("spec.json")
    assert f"osscl run --spec {spec.relative_to(tmp_path)} --stream FILE --out runs" in osscl("runs")[1]
    refused("run", "--spec", spec, error=SpecError, about="--stream")
    code, shown, _ = osscl("run", "--spec", spec, "--stream", "stream.json")
    assert code == 0 and id_of(shown) == spec.parent.name


def test_several_seeds_are_several_runs(osscl, tmp_path):
    code, shown, errors = osscl(*LABELS_ONLY, "--seeds", "0-1")
    assert (code, errors) == (0, "") and shown.count("# id: ") == 2
    records, _ = read_records(tmp_path / "runs")
    assert sorted(record.spec.seed for record in records) == [0, 1]
    assert shown.count("scenario:") == 1 and "\nseeds: [0, 1]\n" in shown
    assert "labels-only on digits, seed 1 (2 of 2)  step 5/5" in shown
    one, other = (record.final for record in records)
    mean, spread = (one + other) / 2, abs(one - other) / math.sqrt(2)
    assert shown.splitlines()[-1] == f"final {mean:.1f} ± {spread:.1f} % (n = 2 seeds, schedule tiny)"
    assert "These runs are finished" in osscl(*LABELS_ONLY, "--seeds", "0-1")[1]


def test_a_dry_run_of_several_seeds_shows_the_spec_once_and_every_id(osscl):
    shown = osscl(*DIGITS, "--seeds", "0-2", "--dry-run")[1]
    ids = [id_of(osscl(*DIGITS, "--seed", str(seed), "--dry-run")[1]) for seed in range(3)]
    assert yaml.safe_load(shown)["seeds"] == [0, 1, 2]
    assert [line.removeprefix("# id: ") for line in shown.splitlines() if line.startswith("# id: ")] == ids


@pytest.mark.parametrize(("experiment", "schedule"), [("digits", "demo"), ("cifar10-p01", "paper")])
def test_a_run_without_a_schedule_has_the_one_that_suits_its_data(osscl, experiment, schedule):
    assert yaml.safe_load(osscl("run", experiment, "--dry-run")[1])["schedule"] == schedule
    assert yaml.safe_load(osscl("run", experiment, "--schedule", "short", "--dry-run")[1])["schedule"] == "short"


def test_tables_on_the_demos_data_have_its_schedule_and_its_cells(osscl, refused):
    assert "schedule demo" in osscl("table", "T4", "--on", "demo", "--dry-run")[1]
    assert "schedule short" in osscl("table", "T4", "--on", "demo", "--schedule", "short", "--dry-run")[1]
    assert "schedule paper" in osscl("table", "T4", "--dry-run")[1]
    refused("table", "T4", "--on", "demo", "--cells", "all-losses/ursl-plus", error=SpecError,
            about=["T4", "all-losses/ursl-plus", "without-sup/ursl"])  # fmt: skip


def test_the_time_limit_holds_for_all_seeds_together_and_the_same_command_resumes(osscl, tmp_path):
    code, _, line = osscl(*LABELS_ONLY, "--seeds", "0-3", "--max-minutes", "0")
    assert code == 3 and line == STOPPED
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert not list(tmp_path.rglob("*-s0-*.json")) and list(tmp_path.rglob("checkpoint.safetensors"))
    assert osscl(*LABELS_ONLY)[0] == 0
    made_by = only_record(tmp_path).made_by
    assert (made_by.commit, made_by.earlier, made_by.sessions) == ("here", (), 2)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_too_little_memory_is_reported_in_one_line(refused, monkeypatch, error):
    monkeypatch.setattr("osscl.runs.run.build_stream", raises(error))
    refused(*DIGITS, error=OutOfMemory, about=["reference.batch", "--set learner.batch=256"])


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory: you tried")]
)
def test_too_little_memory_for_a_model_is_not_taken_for_another_version(
    refused, copied, checkpoint, monkeypatch, error
):
    monkeypatch.setattr("osscl.methods.ursl.Ursl.load_state", raises(error))
    line = refused("predict", copied, error=MemoryError, about="memory")
    assert "--set" not in line  # predict has no such option
    refused(*LABELS_ONLY, error=OutOfMemory, about="learner.batch")


# ----- runs and list


def test_many_runs_are_listed_again_without_torch(osscl, tmp_path, monkeypatch):
    """The second list equals the first, follows every change of a file, and needs no record to be read."""
    monkeypatch.setattr("osscl.runs.kept.MANY", 3)
    known, _ = read_records(RESULTS / "demo")
    files = []
    for record in known[:4]:
        files.append(tmp_path / "many" / f"{record.id}.json")
        write_record(record, files[-1])
        os.utime(files[-1], (1, 1))
    first = osscl("runs", tmp_path / "many")
    with monkeypatch.context() as patched:
        patched.setattr("osscl.runs.index.read_files", None)
        assert osscl("runs", tmp_path / "many") == first
        assert osscl("runs", tmp_path / "many", "--schedule", "demo") == first
        assert osscl("runs", tmp_path / "many", "--schedule", "paper")[0] == 2
    files[0].unlink()
    code, shown, _ = osscl("runs", tmp_path / "many")
    assert code == 0 and known[0].id not in shown and known[1].id in shown
    files[1].write_text("{")
    code, shown, errors = osscl("runs", tmp_path / "many")
    assert known[1].id not in shown and errors.startswith("skipped: ")
    (tmp_path / "many" / "begun").mkdir()
    (tmp_path / "many" / "begun" / "spec.json").write_text("{")
    assert "damaged spec" in osscl("runs", tmp_path / "many")[1]


def test_listing_kept_runs_imports_no_torch(tmp_path):
    """In a process of its own, because this one has imported torch."""
    known, _ = read_records(RESULTS / "demo")
    for record in known[:3]:
        write_record(record, tmp_path / "many" / f"{record.id}.json")
        os.utime(tmp_path / "many" / f"{record.id}.json", (1, 1))
    code = (
        "import sys, osscl.cli, osscl.runs.kept\nosscl.runs.kept.MANY = 3\n"
        "sys.argv = ['osscl', 'runs', 'many']\n"
        "try: osscl.cli.main()\nexcept SystemExit: print('torch' in sys.modules)"
    )
    shown = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
            env={**os.environ, "OSSCL_CACHE": str(tmp_path / "cache")},
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert [text.splitlines()[-1] for text in shown] == ["True", "False"]
    assert shown[0].splitlines()[:-1] == shown[1].splitlines()[:-1]


def test_runs_lists_finished_and_unfinished_runs(osscl, copied, tmp_path):
    begun = tmp_path / "runs" / "begun here"
    begun.mkdir()
    (begun / "spec.json").write_text("{}")
    (tmp_path / "runs" / "other.json").write_text('{"of": "another program"}')
    code, shown, skipped = osscl("runs")
    assert code == 0 and copied.name in shown and "unfinished" in shown and skipped.count("skipped: ") == 1
    assert "resume: repeat the command that started it, since runs/begun here/spec.json is damaged" in shown
    (tmp_path / "empty").mkdir()
    assert osscl("runs", "empty")[:2] == (0, "no runs in empty\n")


def test_runs_can_be_chosen_by_schedule(osscl, refused, copied, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no runs in empty" in osscl("runs", "empty", "--schedule", "paper")[1]
    osscl(*LABELS_ONLY, "--max-minutes", "0", "--set", "schedule.name=mine")
    both, mine = osscl("runs", "--schedule", "mine, tiny")[1], osscl("runs", "--schedule", "mine")[1]
    assert copied.name in both and "labels-only, mine" in both
    assert copied.name not in mine and "labels-only, mine" in mine and "resume: " in mine
    assert osscl("runs", "--schedule", "mine", "--markdown")[1] == osscl("runs", "empty", "--markdown")[1]
    assert "tiny" in osscl("runs", "--schedule", "tiny", "--markdown")[1]
    refused("runs", "--schedule", "tin", error=SpecError, about=["tin", "mine", "tiny"])


def test_runs_distinguishes_running_from_unfinished_runs(osscl, checkpoint):
    shown = osscl("runs")[1]
    assert "digits / letters, 3 labels, M=30: labels-only, tiny, seed 0" in shown and "unfinished" in shown
    with locked(checkpoint.parent):
        shown = osscl("runs")[1]
        assert "running" in shown and "unfinished" not in shown and "resume" not in shown
    assert "resume: " in osscl("runs")[1]


def test_a_damaged_spec_is_neither_run_nor_kept(osscl, refused, checkpoint, tmp_path):
    file = checkpoint.with_name("spec.json")
    whole = file.read_text()
    file.write_text(whole.replace('"seed": 0', '"seed": 1'))
    shown = osscl("runs")[1]
    assert "damaged spec" in shown and "seed 1" not in shown and "osscl run --spec" not in shown
    refused("run", "--spec", file, error=SpecError, about=file)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "spec.json").write_text(file.read_text())  # a copy may be edited
    assert osscl("run", "--spec", tmp_path / "mine" / "spec.json", "--dry-run")[0] == 0
    assert osscl(*LABELS_ONLY)[0] == 0 and file.read_text() == whole


def test_a_method_from_outside_the_package_is_resumed_in_python(osscl, checkpoint):
    file = checkpoint.with_name("spec.json")
    spec = json.loads(file.read_text())
    file.write_text(json.dumps({**spec, "method": {"type": "replay", "rate": 0.1}}))
    shown = osscl("runs")[1]
    assert "replay, tiny, seed 0" in shown and "resume: in Python, osscl.run(spec, method=...)" in shown


def test_a_narrow_terminal_folds_and_cuts_nothing(osscl, copied, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    _, shown, _ = osscl("runs")
    cells = "".join(line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│"))
    assert cells.endswith(copied.name) and "…" not in cells


def test_escape_sequences_in_names_do_not_reach_the_terminal(osscl, refused, finished, tmp_path):
    runs = tmp_path / "runs\x1b[2J"
    (runs / "red\x1b[31m").mkdir(parents=True)
    (runs / "red\x1b[31m" / "spec.json").write_text("{}")
    (runs / "bad\x1b[2Jname.json").write_text("{")
    code, shown, skipped = osscl("runs", runs)
    assert code == 0 and "red\\x1b[31m" in shown and "\x1b" not in shown + skipped
    hostile, escaped = "no\x1b]0;title\x07where", "no\\x1b]0;title\\x07where"
    assert "\x1b" not in refused("runs", hostile, error=UserError, about=escaped)
    Image.new("L", (9, 9)).save(tmp_path / "blue\x1b[34m.png")
    code, shown, errors = osscl("predict", finished, tmp_path / "blue\x1b[34m.png")
    assert code == 0 and "blue\\x1b[34m" in re.sub(r"\s|│", "", shown) and "\x1b" not in shown + errors


def test_the_list_starts_with_a_summary_and_fits_80_columns(osscl):
    code, shown, errors = osscl("list")
    assert (code, errors) == (0, "") and "digits" in shown and all(name in shown for name in CONFIGURATIONS)
    assert re.match(rf"\d+ experiments, {len(CONFIGURATIONS)} methods, .*\.\n", shown)
    assert max(map(len, shown.splitlines())) <= 80


# ----- predict


def test_the_threshold_of_known_images_can_be_set(refused, osscl, copied, tmp_path):
    def known(*args):
        code, shown, _ = osscl("predict", copied, *args)
        assert code == 0
        return [int(count) for count in re.findall(r"(\d+) look known", shown)]

    assert known("--threshold", "-1") == [400, 400] and known("--threshold", "1") == [0, 0]
    assert known() == known("--threshold", str(load_model(copied, "cpu").threshold))
    refused("predict", copied, "--threshold", "nan", error=UserError, about="--threshold")
    assert osscl(*LABELS_ONLY, "--out", tmp_path / "other")[0] == 0
    (other,) = (tmp_path / "other").iterdir()
    refused("predict", other, "--threshold", "0", error=UserError, about=["--threshold", other])  # it has no score


def test_predict_samples_learned_classes_only(osscl, tmp_path):
    assert osscl(*LABELS_ONLY, "--set", "scenario.classes_per_step=[2, 2]")[0] == 0
    (folder,) = (tmp_path / "runs").iterdir()
    code, shown, _ = osscl("predict", folder)
    truths = re.findall(r"digits test [0-9]+\W+(\w+)", shown)
    assert code == 0 and truths and set(truths) <= set(load_model(folder).classes)


def test_predict_without_images_samples_held_out_rows(osscl, refused, finished, monkeypatch):
    code, shown, errors = osscl("predict", finished, "--sample", "4")
    assert (code, errors) == (0, "") and "truth" in shown
    assert shown.count("digits test") == 3 and shown.count("letters test") == 1
    assert "of 400 test images of digits: " in shown and "look known" in shown
    assert "of 400 test images of letters: " in shown and shown.count("correct") == 1
    from osscl.cli import predict

    bank = predict._bank("digits", None)
    monkeypatch.setattr(predict, "_bank", lambda name, data: replace(bank, test=bank.test.rows(torch.arange(0))))
    refused("predict", finished, error=UserError, about="digits")


def test_predict_names_unreadable_files(refused, copied, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "empty").mkdir()
    refused("predict", copied, "text.png", error=DataError, about="text.png")
    refused("predict", copied, "nowhere.png", error=DataError, about=["nowhere.png", os.strerror(errno.ENOENT)])
    refused("predict", copied, "text.png", "nowhere.png", error=DataError, about=["text.png", "1"])
    refused("predict", copied, "empty", error=DataError, about="empty")
    refused("predict", copied, "--format", "xml", error=SpecError, about=["xml", "table", "csv", "json"])
    refused("predict", copied, "--device", "tpu", error=SpecError, about=["device", "tpu"])
    refused("predict", copied.parent, error=DataError, about=copied.parent)
    state = read_state(copied / "model")
    write_state(copied / "model", {**state, "method": {}})
    refused("predict", copied, error=DataError, about=[copied, "classes"])
    (copied / "model.safetensors").write_bytes(b"damaged")
    refused("predict", copied, error=DataError, about=copied / "model.safetensors")


def test_predict_takes_images_of_any_size_and_mode(osscl, finished, tmp_path):
    names = []
    for mode, size in (("L", (8, 8)), ("RGB", (40, 9)), ("RGBA", (3, 30)), ("P", (16, 16)), ("1", (1, 1))):
        names.append(f"{mode}.png")
        Image.new(mode, size).save(tmp_path / names[-1])
    code, shown, errors = osscl("predict", finished, *names)
    assert (code, errors) == (0, "") and all(name in shown for name in names)
    assert "truth" not in shown and "looks known" in shown
    assert re.search(r"-?\d\.\d{3} \(--threshold\)", shown)


def test_predict_takes_folders_and_skips_unreadable_files(osscl, finished, tmp_path):
    (tmp_path / "photos").mkdir()
    for name in ("b.png", "a.webp", "c.txt"):
        Image.new("L", (9, 9)).save(tmp_path / "photos" / name, "png")
    (tmp_path / "photos" / "damaged.jpg").write_text("no image")
    (tmp_path / "photos" / "album.png").mkdir()
    Image.new("L", (9, 9)).save(tmp_path / "photos" / "album.png" / "inside.png")
    (tmp_path / "empty").mkdir()
    code, shown, errors = osscl("predict", finished, "empty", "photos", "--format", "csv")
    first, second = errors.splitlines()
    assert code == 2 and first.startswith("skipped: empty ") and second.startswith("skipped: photos/damaged.jpg ")
    header, *rows = shown.splitlines()
    assert header == "image,class,probability,score,looks_known"
    files = ["photos/a.webp", "photos/album.png/inside.png", "photos/b.png"]
    assert [row.partition(",")[0] for row in rows] == files


def test_predict_as_json_has_the_numbers_of_the_python_api(osscl, finished, tmp_path):
    Image.new("L", (9, 9), 90).save(tmp_path / "one.png")
    (row,) = json.loads(osscl("predict", finished, "one.png", "--format", "json")[1])
    model = load_model(finished, "cpu")
    found = model.predict(model.read([tmp_path / "one.png"]))
    assert torch.equal(model.read(str(tmp_path / "one.png")), model.read([tmp_path / "one.png"]))
    assert row["class"] == found.names[0] and row["looks_known"] is bool(found.known[0])
    assert row["probability"] == pytest.approx(float(found.probabilities[0]), abs=1e-6)
    rows = json.loads(osscl("predict", finished, "--sample", "4", "--format", "json")[1])
    assert len(rows) == 4 and set(rows[0]) == {"image", "truth", "class", "probability", "score", "looks_known"}


# ----- the program itself


@pytest.mark.parametrize(
    ("program", "words"), [("/somewhere/osscl/__main__.py", "python -m osscl"), ("/somewhere/bin/osscl", "bin/osscl")]
)
def test_the_demo_prints_a_command_that_works(monkeypatch, program, words):
    from osscl.cli import demo

    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert " ".join(demo.program()).endswith(words) and "__main__" not in " ".join(demo.program())


def test_the_help_has_every_command_in_one_panel(osscl):
    from osscl.cli import PANELS, app

    assert osscl("--version")[1] == f"osscl {__version__}\n"
    for args in ([], ["data"], ["--help"]):
        code, shown, errors = osscl(*args)
        assert (code, errors) == (0, "") and shown.startswith("Usage: ") and max(map(len, shown.splitlines())) <= 80
    names = [command.name for command in app.registered_commands] + [group.name for group in app.registered_groups]
    assert all(f"\n{panel}:\n" in shown for panel in PANELS)
    assert all(len(re.findall(rf"^  {name}  ", shown, flags=re.M)) == 1 for name in names)


def test_the_help_of_data_shows_whole_sentences(osscl, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = " ".join(osscl("data", "--help")[1].split())
    assert "expected folder." in shown and "an archive already in the folder is reused." in shown


def test_bugs_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["osscl", "list"])
    monkeypatch.setattr("osscl.runs.spec.EXPERIMENTS", None)
    with pytest.raises(TypeError):
        main()


def test_help_needs_neither_torch_nor_rich():
    code = "import sys, osscl.cli; assert not {'torch', 'numpy', 'yaml', 'sklearn', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_ascii_terminal_and_a_closed_pipe_are_not_errors(tmp_path):
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*OSSCL, "data", "list"], cwd=tmp_path, env=ascii_only, capture_output=True)
    assert done.returncode == 0 and not done.stderr and done.stdout.isascii()
    listing = subprocess.Popen([*OSSCL, "list"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    listing.stdout.close()
    assert listing.stderr.read() == b""
    listing.wait()


def test_an_interrupted_run_stops_cleanly(tmp_path):
    command = [*OSSCL, "run", "digits", "--method", "labels-only", "--schedule", "smoke"]
    command += ["--set", "schedule.name=long", "--set", "schedule.max_updates=10000"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with open(tmp_path / "shown", "w") as shown:  # noqa: PTH123 - a handle for the process
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=shown, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while "learner 1/" not in (tmp_path / "shown").read_text() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, line = process.communicate(timeout=60)
    assert process.returncode == 3 and line == STOPPED
    assert list(tmp_path.glob("runs/*/checkpoint.safetensors"))
