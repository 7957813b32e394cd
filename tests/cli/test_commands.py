"""The command line: a mistake is one line and exit code 2, nothing of the user's is lost, and the rest works."""

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
from osscl.config import override
from osscl.data import benchmarks
from osscl.errors import Diverged
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


@pytest.fixture(autouse=True)
def quiet_world(monkeypatch, tmp_path_factory):
    """A cache of the tests' own, no data, and no question to git in each run."""
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("OSSCL_COMMIT", "here")
    monkeypatch.delenv("OSSCL_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture(scope="session", autouse=True)
def banks_read_once():
    """Making the digits and letters takes longer than most of these tests."""
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
    """Call the command and see it refuse: one line on stderr that has these words, and not a file changed."""

    def call(*args, words):
        before = contents(tmp_path)
        code, _, line = osscl(*args)
        assert code == 2
        assert line.startswith("osscl: ") and line.endswith("\n") and line.count("\n") == 1
        assert "Traceback" not in line
        for word in [words] if isinstance(words, str) else words:
            assert word in line
        assert contents(tmp_path) == before
        return line

    return call


@pytest.fixture(scope="session")
def finished(tmp_path_factory, banks_read_once):
    """The folder of one finished run."""
    out = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSSCL_CACHE", str(out / "cache"))
        patch.setenv("OSSCL_COMMIT", "here")
        patch.setattr(sys, "argv", ["osscl", *DIGITS, "--out", str(out / "runs")])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0
    (folder,) = (out / "runs").iterdir()
    return folder


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run that a test may spoil; beside it nothing."""
    return shutil.copytree(finished, tmp_path / "runs" / finished.name)


def id_of(shown):
    return next(line.removeprefix("# id: ") for line in shown.splitlines() if line.startswith("# id: "))


# ----- mistakes in what is typed


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["bogus"], ["No such command 'bogus'", "allowed: demo, run"]),
        (["data", "bogus"], ["No such command 'bogus'", "list, fetch"]),
        (["--bogus"], ["No such option", "osscl --help"]),
        (["run"], "name an experiment"),
        (["run", "digit"], ["unknown experiment 'digit'", "did you mean 'digits'?"]),
        (["run", ""], "unknown experiment ''"),
        (["run", "digits", "--memory", "20", "--set", "scenario.memory=10"], ["--set scenario.memory", "--memory"]),
        (["run", "digits", "--labeled", ".1", "--set", "scenario.labeled_fraction=.2"], "--labeled say the same"),
        (["stream", "digits", "--set", "learner.gamma=1"], "leave --set learner.gamma=1 out"),
        (["tune", "digits", "--search", "learner.lam="], ["a search is written", "'learner.lam='"]),
        (["report", "nowhere"], "no file or folder nowhere"),
        (["run", "digits", "more"], "unexpected extra argument"),
        (["list", "more"], "unexpected extra argument"),
        (["run", "digits", "--data"], "requires an argument"),
        (["run", "digits", "--method", "ursll"], ["unknown method", "did you mean 'ursl'?"]),
        (["run", "digits", "--method", ""], "unknown method ''"),
        (["run", "digits", "--schedule", "long"], ["unknown schedule 'long'", "paper, short, smoke"]),
        (["run", "digits", "--schedule", ""], "unknown schedule ''"),
        (["run", "digits", "--main", "mnist"], ["unknown data set 'mnist'", "allowed: digits"]),
        (["run", "digits", "--peripheral", "mnist"], "unknown data set 'mnist'"),
        (["run", "digits", "--peripheral", ""], "unknown data set ''"),
        (["run", "digits", "--peripheral", "letters,letters"], "free of repetitions"),
        (["run", "digits", "--peripheral", "digits"], "other sets than the main one"),
        (["run", "digits", "--regime", "wild"], ["unknown regime 'wild'", "only_supervised"]),
        (["run", "digits", "--device", "tpu"], ["unknown device 'tpu'", "auto, cpu, cuda"]),
        (["run", "digits", "--device", ""], "unknown device ''"),
        (["run", "digits", "--device", "cpu:7"], "unknown device 'cpu:7'"),
        (["run", "digits", "--device", "cuda:-1"], "unknown device 'cuda:-1'"),
        (["run", "digits", "--device", "cuda:99"], ["'cuda:99' is not there", "CUDA devices found"]),
        (["run", "digits", "--labeled", "0"], "labeled_fraction must be in (0, 1], got 0.0"),
        (["run", "digits", "--labeled", "1.5"], "labeled_fraction must be in (0, 1]"),
        (["run", "digits", "--labeled", "nan"], "labeled_fraction must be in (0, 1]"),
        (["run", "digits", "--labeled", "many"], "'--labeled'"),
        (["run", "digits", "--labels-per-class", "0"], "labels_per_class must be positive"),
        (["run", "digits", "--labels-per-class", "1.5"], "'--labels-per-class'"),
        (["run", "digits", "--labeled", "0.1", "--labels-per-class", "3"], "give one of"),
        (["run", "digits", "--memory", "5"], "at least the 10 classes, got 5"),
        (["run", "digits", "--memory", "-1"], "memory must be 0 (none) or"),
        (["run", "digits", "--memory", "9" * 30], "memory must be below 2^63"),
        (["run", "digits", "--validation", "1"], "validation_share must be in [0, 1)"),
        (["run", "digits", "--validation", "nan"], "validation_share must be in [0, 1)"),
        (["run", "digits", "--seed", "-1"], "--seed takes one whole number from 0 on"),
        (["run", "digits", "--seed", "0-2"], "as in --seeds 0-2"),
        (["stream", "digits", "--seed", "x"], "--seed takes one whole number from 0 on\n"),
        (["run", "digits", "--seed", "9" * 30], "seed must be 0 or more, and below 2^63"),
        (["run", "digits", "--seed", "1", "--seeds", "2"], "not both"),
        (["run", "digits", "--max-minutes", "-1"], "'--max-minutes'"),
        (["run", "digits", "--max-minutes", "nan"], "'--max-minutes'"),
        (["stream", "bogus"], "unknown experiment 'bogus'"),
        (["stream"], "name an experiment"),
        (["runs", "nowhere"], ["no folder nowhere", "--out"]),
        (["predict"], ["Missing argument", "osscl predict --help"]),
        (["predict", "nowhere"], "no model in nowhere"),
        (["predict", "nowhere", "--sample", "0"], "'--sample'"),
        (["data", "fetch"], "Missing argument"),
        (["data", "fetch", "digits", "mnist"], "unknown data set 'mnist'"),
        (["demo", "--seed", "-1"], "--seed takes one whole number from 0 on"),
        (["demo", "--seed", "9" * 30], "below 2^63"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_what_is_typed_wrong_is_told_in_one_line(refused, args, words):
    refused(*args, words=words)


@pytest.mark.parametrize("seeds", ["", "x", "3-1", "0-", "-1", "0,,2", "0-2,", "²", "1.5", "9" * 30])
def test_seeds_that_are_none(refused, seeds):
    refused(*DIGITS, "--seeds", seeds, words="seeds must be written as 0-2 or 0,3,5")


def test_too_many_seeds(refused):
    refused(*DIGITS, "--seeds", "0-99999999999", words="at most 1000 seeds")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("learner.gamma", "written field=value"),
        ("", "written field=value"),
        ("=3", "unknown field ''"),
        ("learner=3", "learner must be a mapping of fields, got 3"),
        ("learner.gama=1", ["unknown field 'learner.gama'", "did you mean 'gamma'?"]),
        ("lerner.gamma=1", "did you mean 'learner'?"),
        ("learner.gamma.x=1", "is not a group of fields"),
        ("learner.gamma=-1", "learner: gamma must be 0 or more, got -1.0"),
        ("learner.gamma=nan", "learner.gamma must be finite, got nan"),
        ("learner.gamma=.inf", "learner.gamma must be finite, got inf"),
        ("learner.gamma=1e400", "learner.gamma must be finite"),
        ("learner.gamma=much", "learner.gamma must be of type float, got 'much'"),
        ("learner.gamma=", "must be of type float, got None"),
        ("learner.gamma=[1]", "must be of type float"),
        ("learner.gamma=true", "must be of type float"),
        ("learner.gamma=!!python/object:os.system", "cannot read the value"),
        ("learner.epochs=1.5", "learner.epochs must be of type int"),
        ("learner.epochs=.nan", "learner.epochs must be of type int"),
        ("learner.epochs=" + "9" * 30, "learner.epochs must be below 2^63"),
        ("learner.max_updates_per_epoch=0", "max_updates_per_epoch must be positive, or null"),
        ("learner.base_temperature=0", "base_temperature must be positive, or null"),
        ("learner.start=sideways", ["unknown start 'sideways'", "random, reference"]),
        ("learner.net.backbone=vgg", ["unknown backbone 'vgg'", "resnet18"]),
        ("learner.net.dim=99999999999", "dim must be in [1, 65536]"),
        ("reference.predictor=0", "predictor must be in [1, 65536]"),
        ("reference.epochs_first=0", "reference: epochs_first must be positive, got 0"),
        ("gate.eta=[1]", "gate.eta must have 2 entries"),
        ("gate.eta=[-.inf, 0]", "gate.eta[0] must be finite"),
        ("gate.prototype_views=99999999", "prototype_views must be in [0, 1000]"),
        ("head.copies=99999999", "copies must be in [0, 1000]"),
        ("head.momentum=2", "momentum must be in [0, 1)"),
        ("memory.policy=best", "unknown policy 'best'"),
        ("scenario.main=mnist", "unknown data set 'mnist'"),
        ("scenario.peripheral=[mnist]", "unknown data set 'mnist'"),
        ("scenario.classes_per_step=[0]", "classes_per_step must be positive"),
        ("schedule.name=../../elsewhere", "name must be letters, digits"),
        ("schedule.row_cap=0", "row_cap must be positive"),
        ("schedule.share=.inf", "schedule.share must be finite"),
        ("seed=3", "seed has a flag of its own: --seed"),
        ("stream=x", "stream has a flag of its own: --stream"),
        ("method=3", "method has a flag of its own: --method"),
    ],
)
def test_a_change_that_cannot_be_is_refused(refused, change, words):
    refused(*DIGITS, "--set", change, words=words)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--labels-per-class", "9999"], ["labels_per_class", "134 training images", "must be 1 to 134"]),
        (["--validation", "0.999"], "held out"),
        (["--validation", "0.001"], "nothing of digits is held out"),
        (["--set", "scenario.related=99999"], ["related must be at most the", "got 99999"]),
        (["--set", "scenario.unrelated=99999"], ["unrelated must be at most the", "rows of letters"]),
        (["--set", "scenario.classes_per_step=[11]"], "at most 10 classes"),
        (["--peripheral", "cifar10"], ["cifar10 not found", "osscl data fetch cifar10"]),
    ],
)
def test_more_than_the_data_has_is_refused(refused, tmp_path, args, words):
    refused(*DIGITS, *args, "--data", tmp_path, words=words)
    refused("stream", "digits", *args, "--data", tmp_path, "--out", tmp_path / "stream.json", words=words)


THREE_UPDATES = [*TINY, "--set", "schedule.max_updates=3"]


@pytest.mark.parametrize("part", ["reference", "learner"])
def test_training_that_diverges_ends_in_a_line(osscl, part):
    code, _, line = osscl("run", "digits", *THREE_UPDATES, "--set", f"{part}.optimiser.rate=1e30")
    assert code == 2 and line.count("\n") == 1
    assert f"training diverged at step 1: the loss of {part} is nan after" in line


def test_a_loss_is_looked_at_now_and_then():
    def told(update, loss):
        refuse_divergent_loss(Progress("learner", update, 10_000, 0, torch.tensor(loss)), 0)

    for update, loss in ((200, 1.0), (199, math.nan), (10_000, 1.0)):
        told(update, loss)
    for update in (200, 400, 10_000):
        with pytest.raises(Diverged, match=f"nan after {update} updates"):
            told(update, math.nan)


@pytest.mark.parametrize("updates", [1, 3])
def test_a_network_that_diverged_is_not_kept_for_others(osscl, tmp_path, monkeypatch, updates):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    command = ["run", "digits", *THREE_UPDATES, "--set", f"schedule.max_updates={updates}"]
    diverging = ["--set", "reference.optimiser.rate=1e30", "--set", "reference.optimiser.warmup=0"]
    assert osscl(*command, *diverging)[0] == 2
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    assert osscl(*command)[0] == 0
    assert list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_run_that_diverged_begins_again(tmp_path):
    spec = make_spec(experiment("digits"), configuration("labels-only"), SMOKE, 0)
    spec = replace(spec, method=override(spec.method, ["learner.optimiser.rate=1e30"]))
    for names in ({"checkpoint.diverged"}, {"checkpoint.diverged", "checkpoint.diverged-2"}):
        with pytest.raises(Diverged):
            run(spec, Options(tmp_path, device="cpu", save_every=0))
        assert {path.name for path in (tmp_path / spec.id).glob("checkpoint*")} == names


# ----- mistakes in files


@pytest.fixture
def spec(osscl):
    """A spec as --dry-run shows it."""
    return yaml.safe_load(osscl(*DIGITS, "--method", "labels-only", "--dry-run")[1])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "a spec is a mapping"),
        (b"[1, 2]", "a spec is a mapping"),
        (b"hello", "a spec is a mapping"),
        (b"\x00\x01\x02", "neither YAML nor JSON"),
        (b"\xff\xfe\x80", "neither YAML nor JSON"),
        (b"a: [", "neither YAML nor JSON"),
        (b"[" * 3000, "neither YAML nor JSON"),
    ],
)
def test_a_file_that_is_no_spec(refused, tmp_path, content, words):
    (tmp_path / "spec.yaml").write_bytes(content)
    refused("run", "--spec", "spec.yaml", words=["spec.yaml", words])


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("bogus", 3, "unknown field 'bogus'"),
        ("scenario.bogus", 3, "unknown field 'scenario.bogus'"),
        ("scenario", None, "scenario must be a mapping"),
        ("scenario.main", "mnist", "unknown data set 'mnist'"),
        ("scenario.peripheral", "letters", "scenario.peripheral must be a list"),
        ("method", {}, "unknown method type 'None'"),
        ("method.type", "magic", "unknown method type 'magic'"),
        ("method.type", ["ursl"], "unknown method type"),
        ("method.learner.gamma", "a", "method.learner.gamma must be of type float"),
        ("method.learner.gamma", float("inf"), "method.learner.gamma must be finite"),
        ("method.learner.epochs", 0, "method.learner: epochs must be positive"),
        ("schedule", "long", "unknown schedule 'long'"),
        ("schedule.name", "../../elsewhere", "name must be letters"),
        ("seed", "a", "seed must be of type int"),
        ("seed", -1, "seed must be 0 or more"),
    ],
)
def test_a_spec_file_with_a_mistake(refused, spec, tmp_path, path, value, words):
    *groups, last = path.split(".")
    group = spec
    for name in groups:
        group = group[name]
    group[last] = value
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    refused("run", "--spec", "spec.yaml", words=["spec.yaml: ", words])


def test_a_spec_file_that_lacks_a_field(refused, spec, tmp_path):
    del spec["scenario"]["main"]
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    refused("run", "--spec", "spec.yaml", words="scenario lacks main")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["digits"], "leave the experiment out"),
        (["--method", "ursl"], "leave --method out"),
        (["--schedule", "smoke"], "leave --schedule out"),
        (["--labels-per-class", "3"], "leave --labels-per-class out"),
        (["--set", "learner.gamma=1"], "leave --set out"),
    ],
)
def test_a_spec_file_says_it_all(refused, spec, tmp_path, flags, words):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    refused("run", *flags, "--spec", "spec.yaml", words=words)


def test_a_spec_or_stream_that_is_not_there(refused, tmp_path):
    refused("run", "--spec", "nowhere", words="cannot read nowhere")
    refused("run", "--spec", tmp_path, words="Is a directory")
    refused("run", "--stream", "nowhere", words="no stream file at nowhere")
    refused("run", "--stream", tmp_path, words="Is a directory")


@pytest.fixture(scope="session")
def stream_text(tmp_path_factory, banks_read_once):
    path = tmp_path_factory.mktemp("stream") / "stream.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["osscl", "stream", "digits", "--out", str(path)])
        with pytest.raises(SystemExit):
            main()
    return path.read_text()


def changed(**changes):
    return lambda stream: stream | changes


def changed_step(**changes):
    def change(stream):
        stream["steps"][1] |= changes
        return stream

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed(format="osscl stream 9"), "'osscl stream 9', not 'osscl stream 1'"),
        (changed(content={"digits": "abc", "letters": "abc"}), "the stream was made from abc"),
        (changed(content={}), "does not say what digits"),
        (changed(content=3), "content must be of type dict"),
        (changed(seed="a"), "seed must be of type int"),
        (changed(seed=True), "seed must be of type int"),
        (changed(seed=-1), "seed must be 0 or more"),
        (changed(steps=3), "steps must be of type list"),
        (changed(steps=[]), "its steps are not those of its scenario"),
        (changed(steps=[3]), "step 1 of the stream is damaged"),
        (changed(validation="x"), "validation must be of type bool"),
        (changed(held_out=[]), "no held-out rows"),
        (changed(held_out=[[1]]), "whole numbers are wanted"),
        (changed(held_out=[99999]), "does not have"),
        (changed_step(labeled=[]), "step 2 of the stream is damaged"),
        (changed_step(labeled=[99999]), "step 2 of the stream is damaged"),
        (changed_step(labeled=[1.5]), "whole numbers are wanted"),
        (changed_step(new_classes=[99]), "its labels are not those of its new classes"),
        (changed_step(new_classes=["a"]), "whole numbers are wanted"),
        (changed_step(unlabeled=[[1]], sources=[0]), "whole numbers are wanted"),
        (changed_step(asked="x"), "whole numbers are wanted"),
    ],
)
def test_a_damaged_stream_is_refused(refused, stream_text, tmp_path, change, words):
    (tmp_path / "stream.json").write_text(json.dumps(change(json.loads(stream_text))))
    refused("run", *TINY, "--stream", "stream.json", words=words)


@pytest.mark.parametrize("text", ["", "[]", '"x"', "{}", "{", "[" * 5000])
def test_a_file_that_is_no_stream(refused, tmp_path, text):
    (tmp_path / "stream.json").write_text(text)
    refused("run", *TINY, "--stream", "stream.json", words="stream.json cannot be read as a stream")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["digits"], "leave the experiment out"),
        (["--seed", "0"], "leave --seed out"),
        (["--memory", "30"], "leave --memory out"),
        (["--set", "scenario.related=9"], "leave --set scenario.related out"),
    ],
)
def test_a_stream_brings_scenario_and_seed(refused, stream_text, tmp_path, flags, words):
    (tmp_path / "stream.json").write_text(stream_text)
    refused("run", *TINY, *flags, "--stream", "stream.json", words=words)


def test_data_that_is_missing_is_told_before_anything_is_shown_or_run(osscl, tmp_path):
    for command in (["run", "cifar100-p05", *TINY], ["table", "T2", "--seeds", "0", "--schedule", "smoke"]):
        code, shown, line = osscl(*command, "--data", "nowhere")
        assert code == 2 and shown == "" and "cifar100 not found" in line
    (tmp_path / "here" / "cifar-100-python").mkdir(parents=True)
    code, shown, line = osscl("run", "cifar100-p05", *TINY, "--data", "here")
    assert code == 2 and shown == "" and "cifar10 not found" in line  # of the peripheral set, too


def test_data_that_is_missing_or_damaged(refused, tmp_path):
    cifar = ["run", "cifar100-p05", *TINY]
    (tmp_path / "file").write_text("no folder")
    for folder in ("nowhere", "file", "."):
        refused(*cifar, "--data", folder, words=["cifar100 not found", "osscl data fetch cifar100"])
    inside = tmp_path / "cifar-100-python"
    inside.mkdir()
    (tmp_path / "cifar-10-batches-py").mkdir()
    refused(*cifar, "--data", tmp_path, words="meta is missing")
    for name in ("meta", "train", "test"):
        (inside / name).write_bytes(b"damaged")
    refused(*cifar, "--data", tmp_path, words="meta is damaged or cut short")
    refused("data", "fetch", "cifar10", "--data", "file", words="name another folder")
    (tmp_path / "cifar-10-batches-py").rmdir()
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"no archive")
    refused("data", "fetch", "cifar10", "--data", tmp_path, words="not the official archive")


def test_an_output_folder_that_cannot_be(refused, tmp_path):
    (tmp_path / "file").write_text("mine")
    refused(*DIGITS, "--out", "file", words="cannot write to the output folder file")
    refused(*DIGITS, "--out", "/proc", words="cannot write to the output folder /proc")
    refused(*DIGITS, "--out", "x" * 300, words="File name too long")
    refused("stream", "digits", "--out", "/proc/stream.json", words="cannot write /proc/stream.json")
    refused("stream", "digits", "--out", "file", words="nothing is overwritten")
    refused("demo", "--smallest", "--out", "file", words="cannot write to the output folder")


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b"\xff", b'{"format": "osscl record 1"}', b"[" * 5000])
def test_a_damaged_record_is_told_and_left_alone(refused, osscl, copied, damage):
    (copied / f"{copied.name}.json").write_bytes(damage)
    refused(*DIGITS, words="cannot be read as a record")
    code, shown, line = osscl("runs")
    assert code == 0 and copied.name not in shown and line.startswith("skipped: ") and line.count("\n") == 1


def test_a_damaged_checkpoint_is_kept_and_the_run_begins_again(osscl, tmp_path, caplog):
    command = [*DIGITS, "--method", "labels-only", "--max-minutes", "0"]
    assert osscl(*command)[0] == 3
    (checkpoint,) = tmp_path.rglob("checkpoint.safetensors")
    checkpoint.write_bytes(b"damaged")
    assert osscl(*command)[0] == 3
    assert "damaged checkpoint, kept as" in caplog.text
    assert checkpoint.with_suffix(".damaged").read_bytes() == b"damaged"


def test_a_checkpoint_that_cannot_be_read_just_now_is_left_alone(osscl, tmp_path, monkeypatch):
    command = [*DIGITS, "--method", "labels-only"]
    assert osscl(*command, "--max-minutes", "0")[0] == 3
    (checkpoint,) = tmp_path.rglob("checkpoint.safetensors")
    before = checkpoint.read_bytes()

    def too_many_files(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(stored, "safe_open", too_many_files)
        with pytest.raises(OSError, match="Too many"):
            run(read_spec_of(checkpoint.parent), Options(tmp_path / "runs", device="cpu"))
    assert checkpoint.read_bytes() == before and not checkpoint.with_suffix(".damaged").exists()


def read_spec_of(folder):
    return spec_from_plain(json.loads((folder / "spec.json").read_text()))


def test_minutes_bound_all_seeds_together(osscl, tmp_path):
    assert osscl(*DIGITS, "--method", "labels-only", "--seeds", "0-3", "--max-minutes", "0")[0] == 3
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_a_run_that_shared_its_device_once_says_so_whatever_came_after(osscl, tmp_path):
    command = [*DIGITS, "--method", "labels-only"]
    assert osscl(*command, "--shared-device", "--max-minutes", "0")[0] == 3
    assert osscl(*command)[0] == 0
    (record,), _ = read_records(tmp_path / "runs")
    assert record.made_by.shared_device and record.made_by.sessions == 2
    (seconds,) = [line for line in osscl(*command)[1].splitlines() if "seconds" in line]
    assert seconds.rstrip().endswith("—")
    assert "—" in osscl("runs")[1]  # in place of its minutes


def test_a_run_that_other_code_went_on_with_names_both(osscl, tmp_path, monkeypatch):
    command = [*DIGITS, "--method", "labels-only"]
    for commit in ("first", "second", "second"):
        monkeypatch.setenv("OSSCL_COMMIT", commit)
        assert osscl(*command, "--max-minutes", "0")[0] == 3
    monkeypatch.setenv("OSSCL_COMMIT", "third")
    assert osscl(*command)[0] == 0
    (record,), _ = read_records(tmp_path / "runs")
    assert record.made_by.commit == "third" and [part.commit for part in record.made_by.earlier] == ["first", "second"]
    elsewhere = replace(record.made_by, earlier=(replace(record.made_by.earlier[0], device="another"),))
    moved = replace(record, made_by=elsewhere)
    assert minutes(record) is not None and minutes(moved) is None
    assert measured(record, "learner") is not None and measured(moved, "learner") is None
    assert osscl("report", "runs", "--out", "page.html")[0] == 0
    assert "first on CPU" in (tmp_path / "page.html").read_text()


def test_a_part_that_says_nothing_of_itself_is_not_taken_for_the_last(osscl, tmp_path):
    command = [*DIGITS, "--method", "labels-only"]
    assert osscl(*command, "--max-minutes", "0")[0] == 3
    (checkpoint,) = (tmp_path / "runs").glob("*/checkpoint.safetensors")
    state = read_state(checkpoint)
    del state["carried_out"]
    write_state(checkpoint, state)
    assert osscl(*command)[0] == 0
    (record,), _ = read_records(tmp_path / "runs")
    assert record.made_by.earlier[0].commit == "unknown" and not record.made_by.timed


def test_a_run_that_one_code_carried_out_names_it_once(osscl, tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_COMMIT", "only")
    command = [*DIGITS, "--method", "labels-only"]
    assert osscl(*command, "--max-minutes", "0")[0] == 3 and osscl(*command)[0] == 0
    (record,), _ = read_records(tmp_path / "runs")
    assert record.made_by.commit == "only" and record.made_by.earlier == () and record.made_by.sessions == 2


@pytest.mark.parametrize("begun_only", [False, True])
def test_a_reference_from_a_shared_device_makes_no_time(begun_only, osscl, tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    if begun_only:  # the device is shared until the first good moment, inside the reference
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


def test_a_checkpoint_of_another_version_is_told_and_left_alone(refused, osscl, tmp_path):
    command = [*DIGITS, "--method", "labels-only"]
    assert osscl(*command, "--max-minutes", "0")[0] == 3
    (checkpoint,) = tmp_path.rglob("checkpoint.safetensors")
    state = read_state(checkpoint)
    del state["method"]["learner"]
    write_state(checkpoint, state)
    refused(*command, words=["of another version", "move it away to begin again"])


def test_what_looks_known_goes_by_a_threshold_that_can_be_moved(refused, osscl, copied, tmp_path):
    def known(*args):
        code, shown, _ = osscl("predict", copied, *args)
        assert code == 0
        return [int(count) for count in re.findall(r"(\d+) look known", shown)]

    assert known("--threshold", "-1") == [400, 400] and known("--threshold", "1") == [0, 0]
    assert known() == known("--threshold", str(load(copied, "cpu").threshold))
    refused("predict", copied, "--threshold", "nan", words="--threshold must be a number")
    assert osscl(*DIGITS, "--method", "labels-only", "--out", tmp_path / "other")[0] == 0
    (other,) = (tmp_path / "other").iterdir()
    refused("predict", other, "--threshold", "0", words="does not tell")


def test_predict_asks_about_classes_that_were_learned(osscl, tmp_path):
    assert osscl(*DIGITS, "--method", "labels-only", "--set", "scenario.classes_per_step=[2, 2]")[0] == 0
    (folder,) = (tmp_path / "runs").iterdir()
    code, shown, _ = osscl("predict", folder)
    learned = set(load(folder).classes)
    told = re.findall(r"digits test [0-9]+\W+(\w+)", shown)
    assert code == 0 and told and set(told) <= learned


def test_predict_says_that_there_is_nothing_to_show(osscl, refused, copied, monkeypatch):
    from osscl.cli import model

    bank = model._bank("digits", None)
    monkeypatch.setattr(model, "_bank", lambda name, data: replace(bank, test=bank.test.rows(torch.arange(0))))
    refused("predict", copied, words=["digits has no test images", "give image files"])


def test_predict_says_what_it_cannot_read(refused, copied, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    refused("predict", copied, "text.png", words="text.png cannot be read as an image")
    refused("predict", copied, "nowhere.png", words=["nowhere.png cannot be read", "No such file"])
    refused("predict", copied, "text.png", "nowhere.png", words=["text.png cannot be read", ", and 1 more"])
    (tmp_path / "empty").mkdir()
    refused("predict", copied, "empty", words="empty holds no images")
    refused("predict", copied, "--format", "xml", words="allowed: table, csv, json")
    refused("predict", copied, "--device", "tpu", words="unknown device 'tpu'")
    refused("predict", copied.parent, words="no model in")
    state = read_state(copied / "model")
    write_state(copied / "model", {**state, "method": {}})
    refused("predict", copied, words="of another version")
    (copied / "model.safetensors").write_bytes(b"damaged")
    refused("predict", copied, words="model.safetensors is damaged")


# ----- what works


def test_a_run_leaves_a_record_and_is_not_run_again(osscl, copied):
    record = copied / f"{copied.name}.json"
    before = record.read_bytes()
    code, shown, errors = osscl(*DIGITS)
    assert (code, errors) == (0, "")
    assert "finished before" in shown and id_of(shown) == copied.name and "forgetting" in shown
    assert "scenario:" not in shown and "scenario:" in osscl(*DIGITS, "--dry-run")[1]
    assert record.read_bytes() == before and json.loads(before)["id"] == copied.name


def test_runs_lists_them_and_how_to_go_on(osscl, copied, tmp_path):
    begun = tmp_path / "runs" / "begun here"
    begun.mkdir()
    (begun / "spec.json").write_text("{}")
    (tmp_path / "runs" / "other.json").write_text('{"of": "another program"}')
    code, shown, skipped = osscl("runs")
    assert code == 0 and copied.name in shown and "unfinished" in shown and skipped.count("skipped: ") == 1
    assert "osscl run --spec 'runs/begun here/spec.json' --out runs" in shown and "cannot be read" in shown


def test_runs_of_some_schedules(osscl, refused, copied, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no runs in empty" in osscl("runs", "empty", "--schedule", "paper")[1]
    osscl(*DIGITS, "--method", "labels-only", "--max-minutes", "0", "--set", "schedule.name=mine")
    both, mine = osscl("runs", "--schedule", "mine, tiny")[1], osscl("runs", "--schedule", "mine")[1]
    assert copied.name in both and "labels-only, mine" in both
    assert copied.name not in mine and "labels-only, mine" in mine and "go on: " in mine
    assert osscl("runs", "--schedule", "mine", "--markdown")[1] == osscl("runs", "empty", "--markdown")[1]
    assert "tiny" in osscl("runs", "--schedule", "tiny", "--markdown")[1]
    refused("runs", "--schedule", "tin", words="unknown schedule 'tin'; did you mean 'tiny'? allowed: mine, tiny")


def test_runs_says_what_is_unfinished_and_what_is_at_work(osscl, tmp_path):
    osscl(*DIGITS, "--method", "labels-only", "--max-minutes", "0")
    (folder,) = (tmp_path / "runs").iterdir()
    shown = osscl("runs")[1]
    assert "digits / letters, 3 labels, M=30: labels-only, tiny, seed 0" in shown and "unfinished" in shown
    with occupied(folder):
        shown = osscl("runs")[1]
        assert "at work" in shown and "unfinished" not in shown and "go on" not in shown
    assert "go on" in osscl("runs")[1]


def test_a_method_elsewhere_goes_on_from_python(osscl, tmp_path):
    osscl(*DIGITS, "--method", "labels-only", "--max-minutes", "0")
    (file,) = (tmp_path / "runs").glob("*/spec.json")
    spec = json.loads(file.read_text())
    file.write_text(json.dumps({**spec, "method": {"type": "replay", "rate": 0.1}}))
    shown = osscl("runs")[1]
    assert "replay, tiny, seed 0" in shown and "go on: from Python, osscl.run(spec, method=...)" in shown


def test_runs_says_where_there_are_none(osscl, tmp_path):
    (tmp_path / "empty").mkdir()
    assert osscl("runs", "empty")[:2] == (0, "no runs in empty\n")


def test_a_narrow_terminal_folds_and_cuts_nothing(osscl, copied, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    _, shown, _ = osscl("runs")
    cells = "".join(line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│"))
    assert cells.endswith(copied.name) and "…" not in cells


def test_predict_takes_images_of_any_size_and_mode(osscl, finished, tmp_path):
    names = []
    for mode, size in (("L", (8, 8)), ("RGB", (40, 9)), ("RGBA", (3, 30)), ("P", (16, 16)), ("1", (1, 1))):
        names.append(f"{mode}.png")
        Image.new(mode, size).save(tmp_path / names[-1])
    code, shown, errors = osscl("predict", finished, *names)
    assert (code, errors) == (0, "") and all(name in shown for name in names)
    assert "truth" not in shown and "looks known" in shown
    assert re.search(r"an image looks known where its score is above -?\d\.\d{3}; --threshold", shown)


def test_predict_takes_folders_and_leaves_out_what_it_cannot_read(osscl, finished, tmp_path):
    (tmp_path / "photos").mkdir()
    for name in ("b.png", "a.webp", "c.txt"):
        Image.new("L", (9, 9)).save(tmp_path / "photos" / name, "png")
    (tmp_path / "photos" / "damaged.jpg").write_text("no image")
    (tmp_path / "photos" / "album.png").mkdir()
    Image.new("L", (9, 9)).save(tmp_path / "photos" / "album.png" / "inside.png")
    (tmp_path / "empty").mkdir()
    code, shown, errors = osscl("predict", finished, "empty", "photos", "--format", "csv")
    assert code == 2 and errors.splitlines()[0] == "skipped: empty holds no images"
    assert errors.splitlines()[1].startswith("skipped: photos/damaged.jpg cannot be read") and errors.count("\n") == 2
    header, first, below, last = shown.splitlines()
    assert header == "image,class,probability,score,looks_known"
    files = "photos/a.webp,", "photos/album.png/inside.png,", "photos/b.png,"
    assert all(row.startswith(file) for row, file in zip((first, below, last), files, strict=True))


def test_predict_tells_programs_the_same(osscl, finished, tmp_path):
    Image.new("L", (9, 9), 90).save(tmp_path / "one.png")
    (told,) = json.loads(osscl("predict", finished, "one.png", "--format", "json")[1])
    model = load(finished, "cpu")
    found = model.predict(model.read([tmp_path / "one.png"]))
    assert torch.equal(model.read(str(tmp_path / "one.png")), model.read([tmp_path / "one.png"]))
    assert told["class"] == found.names[0] and told["looks_known"] is bool(found.known[0])
    assert told["probability"] == pytest.approx(float(found.probabilities[0]), abs=1e-6)
    rows = json.loads(osscl("predict", finished, "--sample", "4", "--format", "json")[1])
    assert len(rows) == 4 and set(rows[0]) == {"image", "truth", "class", "probability", "score", "looks_known"}


def test_predict_without_images_shows_held_out_rows(osscl, finished):
    code, shown, errors = osscl("predict", finished, "--sample", "4")
    assert (code, errors) == (0, "") and "truth" in shown
    assert shown.count("digits test") == 3 and shown.count("letters test") == 1
    assert "of 400 test images of digits: " in shown and "look known" in shown
    assert "of 400 test images of letters: " in shown and shown.count("named right") == 1


def test_a_stream_from_a_file_is_the_same_run(osscl, copied, tmp_path):
    code, shown, _ = osscl("stream", "digits", "--out", "stream.json")
    assert code == 0 and "written to stream.json" in shown
    assert id_of(osscl("run", *TINY, "--stream", "stream.json")[1]) == copied.name
    stream = json.loads((tmp_path / "stream.json").read_text())
    stream["steps"][0]["labeled"].reverse()
    (tmp_path / "other.json").write_text(json.dumps(stream))
    other = osscl("run", *TINY, "--stream", "other.json", "--dry-run")[1]
    assert id_of(other) != copied.name and yaml.safe_load(other)["stream"] is not None


def test_a_run_from_a_stream_goes_on_from_its_spec_and_that_stream(osscl, refused, stream_text, tmp_path):
    stream = json.loads(stream_text)
    stream["steps"][0]["labeled"].reverse()
    (tmp_path / "stream.json").write_text(json.dumps(stream))
    tiny = ["--method", "labels-only", *TINY]
    assert osscl("run", *tiny, "--stream", "stream.json", "--max-minutes", "0")[0] == 3
    (spec,) = tmp_path.rglob("spec.json")
    assert f"osscl run --spec {spec.relative_to(tmp_path)} --stream FILE --out runs" in osscl("runs")[1]
    refused("run", "--spec", spec, words="give that file with --stream")
    code, shown, _ = osscl("run", "--spec", spec, "--stream", "stream.json")
    assert code == 0 and id_of(shown) == spec.parent.name


def test_a_dry_run_writes_nothing_and_every_change_has_an_id_of_its_own(osscl, tmp_path):
    shown = [
        osscl(*DIGITS, "--dry-run", *more)[1]
        for more in ([], ["--set", "learner.gamma=0.3"], ["--set", "method.learner.gamma=0.4"], ["--seed", "1"])
    ]
    assert len({id_of(one) for one in shown}) == 4 and not list(tmp_path.iterdir())
    assert yaml.safe_load(shown[1])["method"]["learner"]["gamma"] == 0.3


def test_a_shown_spec_is_a_spec_file(osscl, tmp_path):
    shown = osscl(*DIGITS, "--seed", "2", "--dry-run")[1]
    (tmp_path / "spec.yaml").write_text(shown)
    assert id_of(osscl("run", "--spec", "spec.yaml", "--dry-run")[1]) == id_of(shown)


def test_several_seeds_are_several_runs(osscl, tmp_path):
    code, shown, errors = osscl(*DIGITS, "--method", "labels-only", "--seeds", "0-1")
    assert (code, errors) == (0, "") and shown.count("# id: ") == 2
    records = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/*-s*.json")]
    assert sorted(record["spec"]["seed"] for record in records) == [0, 1]


def test_out_of_time_a_run_stops_and_the_same_command_goes_on(osscl, tmp_path):
    command = [*DIGITS, "--method", "labels-only"]
    code, _, line = osscl(*command, "--max-minutes", "0")
    assert code == 3 and line == "osscl: stopped; the same command goes on from here\n"
    assert not list(tmp_path.rglob("*-s0-*.json")) and list(tmp_path.rglob("checkpoint.safetensors"))
    assert osscl(*command)[0] == 0
    (record,) = tmp_path.rglob("*-s0-*.json")
    assert json.loads(record.read_text())["made_by"]["sessions"] == 2


def test_lists_and_version(osscl):
    code, shown, errors = osscl("list")
    assert (code, errors) == (0, "") and "digits" in shown and "ursl-plus" in shown
    code, shown, errors = osscl("data", "list")
    assert (code, errors) == (0, "") and "tiny-imagenet-200" in shown
    assert osscl("data", "fetch", "digits") == (0, "digits is embedded: nothing to fetch\n", "")
    assert osscl("--version")[1].startswith("osscl ")


def test_without_a_command_there_is_help(osscl):
    for args in ([], ["data"]):
        code, shown, errors = osscl(*args)
        assert (code, errors) == (0, "") and shown.startswith("Usage: ") and shown.count("\n") > 5


def test_our_own_bugs_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["osscl", "list"])
    monkeypatch.setattr("osscl.runs.spec.EXPERIMENTS", None)
    with pytest.raises(AttributeError):
        main()


@pytest.mark.parametrize(
    ("called", "words"), [("/somewhere/osscl/__main__.py", "python -m osscl"), ("/somewhere/bin/osscl", "bin/osscl")]
)
def test_the_demo_names_a_command_that_can_be_typed(monkeypatch, called, words):
    from osscl.cli.demo import program

    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert " ".join(program()).endswith(words) and "__main__" not in " ".join(program())


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_too_little_memory_is_told_in_one_line(refused, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr("osscl.runs.run.build_stream", fails)
    refused(*DIGITS, words=["memory ran out", "--set learner.batch"])


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory: you tried")]
)
def test_too_little_memory_for_a_model_is_no_other_version_of_it(refused, osscl, copied, monkeypatch, error):
    def fails(*_, **__):
        raise error

    command = [*DIGITS, "--method", "labels-only", "--out", copied.parent / "begun"]
    assert osscl(*command, "--max-minutes", "0")[0] == 3
    monkeypatch.setattr("osscl.methods.ursl.Ursl.load_state", fails)
    line = refused("predict", copied, words="memory ran out")
    assert "--set" not in line  # it has no such flag
    refused(*command, words="memory ran out")


# ----- in a process of its own


def test_help_needs_no_torch():
    code = "import sys, osscl.cli; assert not {'torch', 'numpy', 'yaml', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_terminal_of_ascii_and_a_pipe_that_closes(copied):
    folder = copied.parent.parent
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*OSSCL, "data", "list"], cwd=folder, env=ascii_only, capture_output=True)
    assert done.returncode == 0 and not done.stderr and done.stdout.isascii()
    listing = subprocess.Popen([*OSSCL, "list"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
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
    assert process.returncode == 3
    assert line == "osscl: stopped; the same command goes on from here\n"
    assert list(tmp_path.glob("runs/*/checkpoint.safetensors"))
