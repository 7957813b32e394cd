"""The command line: a mistake is one line and exit code 2, no file of the user's is lost, and commands do their work."""

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

import pytest
import torch
import yaml
from PIL import Image

from osscl import storage as stored
from osscl.cli import main
from osscl.config import flat, override, plain
from osscl.data import benchmarks
from osscl.errors import Diverged
from osscl.methods import CONFIGURATIONS
from osscl.methods.base import SMOKE, Progress
from osscl.paper.score import measured
from osscl.report.tables import minutes
from osscl.runs.checkpoint import Options, occupied
from osscl.runs.evaluate import refuse_divergent_loss
from osscl.runs.model import load
from osscl.runs.record import read_records
from osscl.runs.run import run
from osscl.runs.spec import configuration, experiment, make_spec, spec_from_plain
from osscl.storage import read_state, write_state

OSSCL = [sys.executable, "-m", "osscl"]
TINY = ["--schedule", "smoke", *(f"--set=schedule.{field}" for field in ("name=tiny", "max_updates=1", "row_cap=64"))]
DIGITS = ["run", "digits", *TINY]
LABELS_ONLY = [*DIGITS, "--method", "labels-only"]
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
    """Call the command and expect a refusal: one line on stderr with these words, and no file changed."""

    def call(*args, words):
        before = contents(tmp_path)
        code, _, line = osscl(*args)
        assert code == 2
        assert line.startswith("osscl: ") and line.endswith("\n") and line.count("\n") == 1
        for word in [words] if isinstance(words, str) else words:
            assert word in line
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
    ("args", "line"),
    [
        (
            ["run", "digit"],
            "unknown experiment 'digit'; did you mean 'digits'? allowed: cifar100-p05, cifar100-p10, cifar10-p01, "
            "cifar10-p10, cifar100-full, cifar10-full, tinyimagenet-p05, tinyimagenet-p10, digits",
        ),
        (["run", "digits", "--labeled", "0"], "labeled_fraction must be in (0, 1], got 0.0"),
        (["run", "digits", "--memory", "5"], "memory must be 0 (none) or at least the 10 classes, got 5"),
        (["stream", "digits", "--seed", "x"], "--seed must be an integer of at least 0"),
        (["run", "digits", "--seed", "0-2"], "--seed must be an integer of at least 0; use --seeds for several, as in --seeds 0-2"),
        (["run", "digits", "--seeds", "3-1"], "seeds must be written as 0-2 or 0,3,5, got '3-1'"),
        (["run", "digits", "--memory", "20", "--set", "scenario.memory=10"], "--set scenario.memory and --memory set the same field: remove one of them"),
        (["runs", "nowhere"], "no folder nowhere; give the folder that --out named"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_wrong_and_what_is_allowed(refused, args, line):
    assert refused(*args, words=line) == f"osscl: {line}\n"


@pytest.mark.parametrize(
    ("named", "commands"),
    [
        ("No such command 'bogus'; allowed: demo", "bogus"),
        ("No such command 'bogus'; allowed: list, fetch", "data bogus"),
        ("--help", "--bogus | predict"),
        ("name an experiment", "run | stream"),
        ("unknown experiment", "run '' | stream bogus"),
        ("unexpected extra argument", "run digits more | list more"),
        ("requires an argument", "run digits --data"),
        ("Missing argument", "predict | data fetch"),
        ("unknown method", "run digits --method ursll | run digits --method ''"),
        ("unknown schedule", "run digits --schedule long | run digits --schedule ''"),
        ("unknown data set", "run digits --main mnist | run digits --peripheral mnist | run digits --peripheral ''"),
        ("unknown data set", "data fetch digits mnist"),
        ("peripheral", "run digits --peripheral letters,letters | run digits --peripheral digits"),
        ("unknown regime", "run digits --regime wild"),
        ("unknown device", "run digits --device tpu | run digits --device '' | run digits --device cpu:7"),
        ("cuda", "run digits --device cuda:-1 | run digits --device cuda:99"),
        ("labeled_fraction", "run digits --labeled 1.5 | run digits --labeled nan"),
        ("labeled_fraction", "run digits --labeled .1 --set scenario.labeled_fraction=.2"),
        ("labels_per_class", "run digits --labels-per-class 0 | run digits --labeled 0.1 --labels-per-class 3"),
        ("'--labeled'", "run digits --labeled many"),
        ("'--labels-per-class'", "run digits --labels-per-class 1.5"),
        ("memory", f"run digits --memory -1 | run digits --memory {'9' * 30}"),
        ("validation_share", "run digits --validation 1 | run digits --validation nan"),
        ("--seed", "run digits --seed -1 | run digits --seed 1 --seeds 2 | demo --seed -1"),
        ("seed", f"run digits --seed {'9' * 30} | demo --seed {'9' * 30}"),
        ("seeds", "run digits --seeds '' | run digits --seeds x | run digits --seeds 0- | run digits --seeds -1"),
        ("seeds", "run digits --seeds 0,,2 | run digits --seeds 0-2, | run digits --seeds ² | run digits --seeds 1.5"),
        ("seeds", f"run digits --seeds {'9' * 30} | run digits --seeds 0-99999999999"),
        ("'--max-minutes'", "run digits --max-minutes -1 | run digits --max-minutes nan"),
        ("--set learner.gamma", "stream digits --set learner.gamma=1"),
        ("--full", "run digits --full"),
        ("learner.lam", "tune digits --search learner.lam="),
        ("nowhere", "report nowhere | predict nowhere"),
        ("'--sample'", "predict nowhere --sample 0"),
    ],
)  # fmt: skip
def test_a_mistake_on_the_command_line_is_named_in_one_line(refused, named, commands):
    for command in commands.split(" | "):
        refused(*(word.strip("'") for word in command.split()), words=named)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("learner.gamma", ["-1", "nan", ".inf", "1e400", "much", "", "[1]", "true", "!!python/object:os.system"]),
        ("learner.epochs", ["1.5", ".nan", "9" * 30]),
        ("learner.base_temperature", ["0"]),
        ("learner.start", ["sideways"]),
        ("learner.net.backbone", ["vgg"]),
        ("learner.net.dim", ["99999999999"]),
        ("learner", ["3"]),
        ("reference.predictor", ["0"]),
        ("reference.epochs_first", ["0"]),
        ("gate.eta", ["[1]", "[-.inf, 0]"]),
        ("gate.prototype_views", ["99999999"]),
        ("head.copies", ["99999999"]),
        ("head.momentum", ["2"]),
        ("memory.policy", ["best"]),
        ("scenario.classes_per_step", ["[0]"]),
        ("schedule.name", ["../../elsewhere"]),
        ("schedule.row_cap", ["0"]),
        ("schedule.share", [".inf"]),
        ("--seed", ["seed=3"]),
        ("--stream", ["stream=x"]),
        ("--method", ["method=3"]),
        ("unknown data set", ["scenario.main=mnist", "scenario.peripheral=[mnist]"]),
        ("field=value", ["learner.gamma", ""]),
        ("unknown field", ["=3", "learner.gama=1", "lerner.gamma=1"]),
        ("not a group", ["learner.gamma.x=1"]),
    ],
)
def test_an_impossible_change_is_refused_by_its_field(refused, field, values):
    is_field = "." in field or field == "learner"
    for value in values:
        change = f"{field}={value}" if is_field else value
        refused(*DIGITS, "--set", change, words=field.rpartition(".")[2] if is_field else field)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--labels-per-class", "9999"], ["labels_per_class", "134"]),
        (["--validation", "0.999"], "held out"),
        (["--validation", "0.001"], "held out"),
        (["--set", "scenario.related=99999"], ["related", "99999"]),
        (["--set", "scenario.unrelated=99999"], ["unrelated", "letters"]),
        (["--set", "scenario.classes_per_step=[11]"], "10 classes"),
        (["--peripheral", "cifar10"], ["cifar10", "osscl data fetch cifar10"]),
    ],
)
def test_more_than_the_data_has_is_refused(refused, tmp_path, args, words):
    refused(*DIGITS, *args, "--data", tmp_path, words=words)
    refused("stream", "digits", *args, "--data", tmp_path, "--out", tmp_path / "stream.json", words=words)


# ----- training that diverges


@pytest.mark.parametrize("part", ["reference", "learner"])
def test_training_that_diverges_ends_in_one_line(osscl, part):
    changes = "--set", "schedule.max_updates=3", "--set", f"{part}.optimiser.rate=1e30"
    code, _, line = osscl(*DIGITS, *changes)
    assert code == 2 and line.count("\n") == 1
    assert f"diverged at step 1: the loss of {part} is nan" in line


def test_a_loss_is_checked_every_200_updates_and_at_the_end():
    def check(update, loss):
        refuse_divergent_loss(Progress("learner", update, 10_000, 0, torch.tensor(loss)), 0)

    for update, loss in ((200, 1.0), (199, math.nan), (10_000, 1.0)):
        check(update, loss)
    for update in (200, 400, 10_000):
        with pytest.raises(Diverged, match=f"nan after {update} updates"):
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


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"hello", b"\x00\x01\x02", b"\xff\xfe\x80", b"a: [", b"[" * 3000])
def test_a_file_that_is_not_a_spec_is_refused(refused, tmp_path, content):
    (tmp_path / "spec.yaml").write_bytes(content)
    refused("run", "--spec", "spec.yaml", words="spec.yaml")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("bogus", [3]),
        ("scenario.bogus", [3]),
        ("scenario", [None]),
        ("scenario.main", ["mnist"]),
        ("scenario.peripheral", ["letters"]),
        ("method", [{}]),
        ("method.type", ["magic", ["ursl"]]),
        ("method.learner.gamma", ["a", float("inf")]),
        ("method.learner.epochs", [0]),
        ("schedule", ["long"]),
        ("schedule.name", ["../../elsewhere"]),
        ("seed", ["a", -1]),
    ],
)
def test_a_mistake_in_a_spec_file_is_named(refused, spec, tmp_path, field, values):
    *groups, last = field.split(".")
    named = {"main": "data set"}.get(last, last)
    for value in values:
        changed = group = json.loads(json.dumps(spec))
        for name in groups:
            group = group[name]
        group[last] = value
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(changed))
        refused("run", "--spec", "spec.yaml", words=["spec.yaml: ", named])
    del spec["scenario"]["main"]
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    refused("run", "--spec", "spec.yaml", words=["scenario", "main"])


@pytest.mark.parametrize(
    ("option", "flags"),
    [
        ("--spec", ["digits"]),
        ("--spec", ["--method", "ursl"]),
        ("--spec", ["--schedule", "smoke"]),
        ("--spec", ["--labels-per-class", "3"]),
        ("--spec", ["--set", "learner.gamma=1"]),
        ("--stream", ["digits"]),
        ("--stream", ["--seed", "0"]),
        ("--stream", ["--memory", "30"]),
        ("--stream", ["--set", "scenario.related=9"]),
    ],
)
def test_nothing_that_a_file_defines_may_be_given_beside_it(refused, spec, stream_text, tmp_path, option, flags):
    (tmp_path / "file").write_text(yaml.safe_dump(spec) if option == "--spec" else stream_text)
    named = "the experiment" if flags == ["digits"] else flags[0]
    refused("run", *flags, option, "file", words=[f"{option} defines", f"remove {named}"])


@pytest.mark.parametrize("option", ["--spec", "--stream"])
def test_a_missing_file_is_named(refused, tmp_path, option):
    refused("run", option, "nowhere", words="nowhere")
    refused("run", option, tmp_path, words="Is a directory")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("format", ["osscl stream 9"]),
        ("content", [{"digits": "abc", "letters": "abc"}, {}, 3]),
        ("seed", ["a", True, -1]),
        ("steps", [3, [], [3]]),
        ("validation", ["x"]),
        ("held_out", [[], [[1]], [99999]]),
        ("steps.labeled", [[], [99999], [1.5]]),
        ("steps.new_classes", [[99], ["a"]]),
        ("steps.unlabeled", [[[1]]]),
        ("steps.asked", ["x"]),
    ],
)
def test_a_damaged_stream_is_refused(refused, stream_text, tmp_path, field, values):
    name, _, of_step = field.partition(".")
    for value in values:
        stream = json.loads(stream_text)
        if of_step:
            stream["steps"][1][of_step] = value
        else:
            stream[name] = value
        (tmp_path / "stream.json").write_text(json.dumps(stream))
        refused("run", *TINY, "--stream", "stream.json", words=())


@pytest.mark.parametrize("text", ["", "[]", '"x"', "{}", "{", "[" * 5000])
def test_a_file_that_is_not_a_stream_is_refused(refused, tmp_path, text):
    (tmp_path / "stream.json").write_text(text)
    refused("run", *TINY, "--stream", "stream.json", words="stream.json")


def test_missing_data_is_reported_before_anything_is_shown_or_run(osscl, tmp_path):
    for command in (["run", "cifar100-p05", *TINY], ["table", "T2", "--seeds", "0", "--schedule", "smoke"]):
        code, shown, line = osscl(*command, "--data", "nowhere")
        assert code == 2 and shown == "" and "cifar100 " in line
    (tmp_path / "here" / "cifar-100-python").mkdir(parents=True)
    code, shown, line = osscl("run", "cifar100-p05", *TINY, "--data", "here")
    assert code == 2 and shown == "" and "cifar10 " in line  # the peripheral set too


def test_missing_or_damaged_data_is_named(refused, tmp_path):
    cifar = ["run", "cifar100-p05", *TINY]
    (tmp_path / "file").write_text("no folder")
    for folder in ("nowhere", "file", "."):
        refused(*cifar, "--data", folder, words="osscl data fetch cifar100")
    inside = tmp_path / "cifar-100-python"
    inside.mkdir()
    (tmp_path / "cifar-10-batches-py").mkdir()
    refused(*cifar, "--data", tmp_path, words="meta")
    for name in ("meta", "train", "test"):
        (inside / name).write_bytes(b"damaged")
    refused(*cifar, "--data", tmp_path, words=["meta", "damaged"])
    refused("data", "fetch", "cifar10", "--data", "file", words="--data")
    (tmp_path / "cifar-10-batches-py").rmdir()
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"no archive")
    refused("data", "fetch", "cifar10", "--data", tmp_path, words="not the official archive")


def test_an_output_folder_that_cannot_be_written_is_named(refused, tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in ("file", "/proc"):
        refused(*DIGITS, "--out", out, words=f"folder {out}")
    refused(*DIGITS, "--out", "x" * 300, words="File name too long")
    refused("stream", "digits", "--out", "/proc/stream.json", words="/proc/stream.json")
    refused("stream", "digits", "--out", "file", words="file")
    refused("demo", "--smallest", "--out", "file", words="folder file")


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b"\xff", b'{"format": "osscl record 1"}', b"[" * 5000])
def test_a_damaged_record_is_reported_and_left_alone(refused, osscl, copied, damage):
    (copied / f"{copied.name}.json").write_bytes(damage)
    refused(*DIGITS, words=f"{copied.name}.json")
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
    assert "damaged checkpoint" in caplog.text
    assert checkpoint.with_suffix(".damaged").read_bytes() == b"damaged"


def test_a_checkpoint_that_cannot_be_opened_is_left_alone(checkpoint, tmp_path, monkeypatch):
    before = checkpoint.read_bytes()
    spec = spec_from_plain(json.loads((checkpoint.parent / "spec.json").read_text()))
    with monkeypatch.context() as patch:
        patch.setattr(stored, "safe_open", raises(OSError(errno.EMFILE, "Too many open files")))
        with pytest.raises(OSError, match="Too many"):
            run(spec, Options(tmp_path / "runs", device="cpu"))
    assert checkpoint.read_bytes() == before and not checkpoint.with_suffix(".damaged").exists()


def test_a_checkpoint_of_another_version_is_reported_and_left_alone(refused, checkpoint):
    state = read_state(checkpoint)
    del state["method"]["learner"]
    write_state(checkpoint, state)
    refused(*LABELS_ONLY, words=[checkpoint.name, "version"])


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
    assert minutes(record) is not None and minutes(moved) is None
    assert measured(record, "learner") is not None and measured(moved, "learner") is None
    assert osscl("report", "runs", "--out", "page.html")[0] == 0
    assert "first on CPU" in (tmp_path / "page.html").read_text()


def test_a_resumed_run_on_one_commit_names_it_once(osscl, checkpoint, tmp_path):
    assert osscl(*LABELS_ONLY)[0] == 0
    made_by = only_record(tmp_path).made_by
    assert (made_by.commit, made_by.earlier, made_by.sessions) == ("here", (), 2)


def test_a_session_of_unknown_origin_makes_no_time(osscl, checkpoint, tmp_path):
    state = read_state(checkpoint)
    del state["carried_out"]
    write_state(checkpoint, state)
    assert osscl(*LABELS_ONLY)[0] == 0
    made_by = only_record(tmp_path).made_by
    assert made_by.earlier[0].commit == "unknown" and not made_by.timed


@pytest.mark.parametrize("stopped_early", [False, True])
def test_a_reference_from_a_shared_device_makes_no_time(stopped_early, osscl, tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    if stopped_early:  # the device is shared until the first checkpoint, inside the reference
        assert osscl(*DIGITS, "--shared-device", "--max-minutes", "0")[0] == 3
        assert osscl(*DIGITS)[0] == 0
    else:
        assert osscl(*DIGITS, "--shared-device")[0] == 0
    assert osscl(*DIGITS, "--method", "ursl-plus")[0] == 0
    records, _ = read_records(tmp_path / "runs")
    assert len(records) == 2 and all(record.made_by.shared_device for record in records)
    assert {phase.cached for record in records for phase in record.steps[0].phases} == {True, False}


def test_a_reference_from_another_device_makes_no_time(osscl, tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    assert osscl(*DIGITS)[0] == 0
    for kept in (tmp_path / "cache" / "references").glob("*.safetensors"):
        write_state(kept, {**read_state(kept), "device": "another"})
    assert osscl(*DIGITS, "--method", "ursl-plus")[0] == 0
    records, _ = read_records(tmp_path / "runs")
    assert {record.configuration: record.made_by.timed for record in records} == {"ursl": True, "ursl-plus": False}


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
    shown = yaml.safe_load(osscl("run", "digits", "--method", name, "--dry-run")[1])
    assert not list(tmp_path.iterdir())
    config = CONFIGURATIONS[name]
    method = {key: value for key, value in shown["method"].items() if key != "type"}
    fields, defaults = flat(plain(config)), flat(plain(type(config)()))
    assert method == {key: value for key, value in fields.items() if value != defaults[key]}
    changed = override(type(config)(), [f"{key}={json.dumps(value)}" for key, value in method.items()])
    assert plain(changed) == plain(config)
    assert (shown["schedule"], shown["seed"]) == ("paper", 0)
    assert shown["scenario"]["main"] == "digits" and "class_share" not in shown["scenario"]


def test_a_full_dry_run_is_a_spec_file(osscl, tmp_path):
    shown = osscl(*DIGITS, "--seed", "2", "--dry-run", "--full")[1]
    (tmp_path / "spec.yaml").write_text(shown)
    assert id_of(osscl("run", "--spec", "spec.yaml", "--dry-run")[1]) == id_of(shown)


def test_every_change_has_its_own_id(osscl):
    changes = [], ["--set", "learner.gamma=0.3"], ["--set", "method.learner.gamma=0.4"], ["--seed", "1"]
    shown = [osscl(*DIGITS, "--dry-run", *change)[1] for change in changes]
    assert len({id_of(one) for one in shown}) == 4
    assert yaml.safe_load(shown[1])["method"]["learner.gamma"] == 0.3


def test_a_stream_from_a_file_is_the_same_run(osscl, copied, stream_text, tmp_path):
    code, shown, _ = osscl("stream", "digits", "--out", "stream.json")
    assert code == 0 and "written to stream.json" in shown
    assert id_of(osscl("run", *TINY, "--stream", "stream.json")[1]) == copied.name


def test_a_run_on_an_edited_stream_resumes_from_its_spec_and_that_stream(
    osscl, refused, finished, stream_text, tmp_path
):
    stream = json.loads(stream_text)
    stream["steps"][0]["labeled"].reverse()
    (tmp_path / "stream.json").write_text(json.dumps(stream))
    shown = osscl("run", *TINY, "--stream", "stream.json", "--dry-run")[1]
    assert id_of(shown) != finished.name and yaml.safe_load(shown)["stream"] is not None
    command = ["run", "--method", "labels-only", *TINY, "--stream", "stream.json"]
    assert osscl(*command, "--max-minutes", "0")[0] == 3
    (spec,) = tmp_path.rglob("spec.json")
    assert f"osscl run --spec {spec.relative_to(tmp_path)} --stream FILE --out runs" in osscl("runs")[1]
    refused("run", "--spec", spec, words="--stream")
    code, shown, _ = osscl("run", "--spec", spec, "--stream", "stream.json")
    assert code == 0 and id_of(shown) == spec.parent.name


def test_several_seeds_are_several_runs(osscl, tmp_path):
    code, shown, errors = osscl(*LABELS_ONLY, "--seeds", "0-1")
    assert (code, errors) == (0, "") and shown.count("# id: ") == 2
    records, _ = read_records(tmp_path / "runs")
    assert sorted(record.spec.seed for record in records) == [0, 1]


def test_the_time_limit_holds_for_all_seeds_together_and_the_same_command_resumes(osscl, tmp_path):
    code, _, line = osscl(*LABELS_ONLY, "--seeds", "0-3", "--max-minutes", "0")
    assert code == 3 and line == STOPPED
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert not list(tmp_path.rglob("*-s0-*.json")) and list(tmp_path.rglob("checkpoint.safetensors"))
    assert osscl(*LABELS_ONLY)[0] == 0
    assert only_record(tmp_path).made_by.sessions == 2


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_too_little_memory_is_reported_in_one_line(refused, monkeypatch, error):
    monkeypatch.setattr("osscl.runs.run.build_stream", raises(error))
    refused(*DIGITS, words=["out of memory", "--set learner.batch"])


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory: you tried")]
)
def test_too_little_memory_for_a_model_is_not_taken_for_another_version(
    refused, copied, checkpoint, monkeypatch, error
):
    monkeypatch.setattr("osscl.methods.ursl.Ursl.load_state", raises(error))
    line = refused("predict", copied, words="out of memory")
    assert "--set" not in line  # predict has no such option
    refused(*LABELS_ONLY, words="out of memory")


# ----- runs and list


def test_runs_lists_finished_and_unfinished_runs(osscl, copied, tmp_path):
    begun = tmp_path / "runs" / "begun here"
    begun.mkdir()
    (begun / "spec.json").write_text("{}")
    (tmp_path / "runs" / "other.json").write_text('{"of": "another program"}')
    code, shown, skipped = osscl("runs")
    assert code == 0 and copied.name in shown and "unfinished" in shown and skipped.count("skipped: ") == 1
    assert "resume: osscl run --spec 'runs/begun here/spec.json' --out runs" in shown and "unreadable spec" in shown
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
    refused("runs", "--schedule", "tin", words="unknown schedule 'tin'; did you mean 'tiny'? allowed: mine, tiny")


def test_runs_tells_running_from_unfinished_runs(osscl, checkpoint):
    shown = osscl("runs")[1]
    assert "digits / letters, 3 labels, M=30: labels-only, tiny, seed 0" in shown and "unfinished" in shown
    with occupied(checkpoint.parent):
        shown = osscl("runs")[1]
        assert "running" in shown and "unfinished" not in shown and "resume" not in shown
    assert "resume: " in osscl("runs")[1]


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
    assert "\x1b" not in refused("runs", "no\x1b]0;title\x07where", words="no\\x1b]0;title\\x07where")
    Image.new("L", (9, 9)).save(tmp_path / "blue\x1b[34m.png")
    code, shown, errors = osscl("predict", finished, tmp_path / "blue\x1b[34m.png")
    assert code == 0 and "blue\\x1b[34m" in re.sub(r"\s|│", "", shown) and "\x1b" not in shown + errors


def test_the_list_starts_with_a_summary_and_fits_80_columns(osscl):
    code, shown, errors = osscl("list")
    assert (code, errors) == (0, "") and "digits" in shown and all(name in shown for name in CONFIGURATIONS)
    assert re.match(rf"\d+ experiments, {len(CONFIGURATIONS)} methods, .*\.\n", shown)
    assert max(map(len, shown.splitlines())) <= 80


def test_data_sets_are_listed_and_the_version_is_shown(osscl):
    code, shown, errors = osscl("data", "list")
    assert (code, errors) == (0, "") and "tiny-imagenet-200" in shown
    assert osscl("data", "fetch", "digits") == (0, "digits is built in: nothing to fetch\n", "")
    assert osscl("--version")[1] == "osscl 0.2.0\n"


# ----- predict


def test_the_threshold_of_known_images_can_be_set(refused, osscl, copied, tmp_path):
    def known(*args):
        code, shown, _ = osscl("predict", copied, *args)
        assert code == 0
        return [int(count) for count in re.findall(r"(\d+) look known", shown)]

    assert known("--threshold", "-1") == [400, 400] and known("--threshold", "1") == [0, 0]
    assert known() == known("--threshold", str(load(copied, "cpu").threshold))
    refused("predict", copied, "--threshold", "nan", words="--threshold")
    assert osscl(*LABELS_ONLY, "--out", tmp_path / "other")[0] == 0
    (other,) = (tmp_path / "other").iterdir()
    refused("predict", other, "--threshold", "0", words=())  # labels-only has no score


def test_predict_samples_learned_classes_only(osscl, tmp_path):
    assert osscl(*LABELS_ONLY, "--set", "scenario.classes_per_step=[2, 2]")[0] == 0
    (folder,) = (tmp_path / "runs").iterdir()
    code, shown, _ = osscl("predict", folder)
    truths = re.findall(r"digits test [0-9]+\W+(\w+)", shown)
    assert code == 0 and truths and set(truths) <= set(load(folder).classes)


def test_predict_without_images_samples_held_out_rows(osscl, refused, finished, monkeypatch):
    code, shown, errors = osscl("predict", finished, "--sample", "4")
    assert (code, errors) == (0, "") and "truth" in shown
    assert shown.count("digits test") == 3 and shown.count("letters test") == 1
    assert "of 400 test images of digits: " in shown and "look known" in shown
    assert "of 400 test images of letters: " in shown and shown.count("named right") == 1
    from osscl.cli import model

    bank = model._bank("digits", None)
    monkeypatch.setattr(model, "_bank", lambda name, data: replace(bank, test=bank.test.rows(torch.arange(0))))
    refused("predict", finished, words="digits has no test images")


def test_predict_names_what_it_cannot_read(refused, copied, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "empty").mkdir()
    refused("predict", copied, "text.png", words="text.png")
    refused("predict", copied, "nowhere.png", words=["nowhere.png", "No such file"])
    refused("predict", copied, "text.png", "nowhere.png", words=["text.png", "1 more"])
    refused("predict", copied, "empty", words="empty")
    refused("predict", copied, "--format", "xml", words="allowed: table, csv, json")
    refused("predict", copied, "--device", "tpu", words="unknown device 'tpu'")
    refused("predict", copied.parent, words="no model in")
    state = read_state(copied / "model")
    write_state(copied / "model", {**state, "method": {}})
    refused("predict", copied, words="version")
    (copied / "model.safetensors").write_bytes(b"damaged")
    refused("predict", copied, words=["model.safetensors", "damaged"])


def test_predict_takes_images_of_any_size_and_mode(osscl, finished, tmp_path):
    names = []
    for mode, size in (("L", (8, 8)), ("RGB", (40, 9)), ("RGBA", (3, 30)), ("P", (16, 16)), ("1", (1, 1))):
        names.append(f"{mode}.png")
        Image.new(mode, size).save(tmp_path / names[-1])
    code, shown, errors = osscl("predict", finished, *names)
    assert (code, errors) == (0, "") and all(name in shown for name in names)
    assert "truth" not in shown and "looks known" in shown
    assert re.search(r"-?\d\.\d{3}; --threshold", shown)


def test_predict_takes_folders_and_skips_what_it_cannot_read(osscl, finished, tmp_path):
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
    model = load(finished, "cpu")
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


def test_without_a_command_there_is_help(osscl):
    for args in ([], ["data"]):
        code, shown, errors = osscl(*args)
        assert (code, errors) == (0, "") and shown.startswith("Usage: ") and shown.count("\n") > 5


def test_every_command_is_in_one_panel_of_the_help(osscl):
    from osscl.cli import PANELS, app

    shown = osscl("--help")[1]
    names = [command.name for command in app.registered_commands] + [group.name for group in app.registered_groups]
    assert all(f"\n{panel}:\n" in shown for panel in PANELS) and max(map(len, shown.splitlines())) <= 80
    assert all(len(re.findall(rf"^  {name}  ", shown, flags=re.M)) == 1 for name in names)


def test_bugs_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["osscl", "list"])
    monkeypatch.setattr("osscl.runs.spec.EXPERIMENTS", None)
    with pytest.raises(TypeError):
        main()


def test_help_needs_neither_torch_nor_rich():
    code = "import sys, osscl.cli; assert not {'torch', 'numpy', 'yaml', 'sklearn', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_ascii_terminal_and_a_closed_pipe_are_no_errors(tmp_path):
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
