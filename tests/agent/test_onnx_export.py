"""An exported file answers as its agent, says what it is, and appears only after it has been checked."""

import json
import os
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import osscl
from exportable import labelled, pictures, pile, small_agent, small_encoder, tiny_model
from osscl import __version__
from osscl.agent import onnx_export, onnx_model
from osscl.agent.classifier import ContinualClassifier
from osscl.agent.onnx_export import Agreement, export_onnx
from osscl.agent.onnx_model import OnnxModel
from osscl.data import folders
from osscl.errors import DataError, UserError
from refusals import naming

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An agent, its exported file, and what the check said."""
    place = tmp_path_factory.mktemp("exported")
    os.environ["OSSCL_CACHE"] = str(place / "cache")
    made = small_agent()
    return made, place / "agent.onnx", export_onnx(made.model, "a1b2", place / "agent.onnx")


def test_the_file_agrees_with_the_agent_on_200_pictures(exported):
    _, file, agreed = exported
    assert agreed.pictures == 200 and agreed.difference <= 1e-3 and agreed.decisions == 0
    assert [path.name for path in file.parent.iterdir() if path.suffix == ".onnx"] == ["agent.onnx"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_it_takes_any_number_of_pictures_and_answers_each_independently(exported):
    made, file, _ = exported
    model = OnnxModel(file)
    images = [image for c in range(5) for image in pictures(c, 9, seed=4)]
    squares = [model.description.preprocessing.apply(image) for image in images]
    expected, found = made.model.predict(squares), model.predict(images)
    assert found.names == expected.names and torch.equal(found.known, expected.known)
    torch.testing.assert_close(found.class_probabilities, expected.class_probabilities, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.scores, expected.scores, atol=1e-5, rtol=0)
    alone = model.predict(images[:1])
    torch.testing.assert_close(alone.class_probabilities, found.class_probabilities[:1], atol=1e-5, rtol=0)
    assert not bool(model.predict(images, reject=0.999999).known.any())


def test_its_metadata_say_what_it_is(exported):
    made, file, _ = exported
    found = {one.key: one.value for one in onnx.load(str(file)).metadata_props}
    assert json.loads(found["classes"]) == list(made.model.classes) and float(found["reject"]) == made.reject
    assert found["agent"] == "a1b2" and found["osscl"] == __version__ and found["encoder"] == "small"
    assert json.loads(found["preprocessing"]) == {"size": 45, "crop": True, "resample": 3}
    (given,) = onnx.load(str(file)).graph.input
    assert [d.dim_param or d.dim_value for d in given.type.tensor_type.shape.dim][1:] == [3, 45, 45]
    assert given.type.tensor_type.shape.dim[0].dim_param  # any number


def test_a_graph_with_different_answers_is_refused_and_leaves_no_file(exported, tmp_path, monkeypatch):
    made, file, _ = exported
    monkeypatch.setattr(onnx_export, "_write_graph", lambda model, about, draft: shutil.copyfile(file, draft))
    for wrong in (Agreement(200, 2e-3, 0), Agreement(200, 0.0, 1), Agreement(200, float("nan"), 0)):
        monkeypatch.setattr(onnx_export, "measure_agreement", lambda *_, wrong=wrong: wrong)
        with pytest.raises(UserError, match=naming(200, wrong.decisions)):
            export_onnx(made.model, "a", tmp_path / "out" / "agent.onnx")
        assert not any((tmp_path / "out").iterdir())


def test_the_check_sees_another_agent(exported):
    """The comparison can fail: against an agent that learned other kinds."""
    made, file, _ = exported
    other = small_agent(3, 4, 5)
    squares = [image.resize((45, 45)) for image in pile(4)]
    right, wrong = (onnx_export.measure_agreement(one.model, OnnxModel(file), squares) for one in (made, other))
    assert right.difference < 1e-5 and right.decisions == 0
    assert wrong.difference > 0.1 and wrong.decisions > 0


def test_given_pictures_are_checked_first(exported, tmp_path):
    for i, image in enumerate(pictures(0, 3)):
        image.save(tmp_path / f"{i}.png")
    files = folders.image_files(tmp_path)
    model = OnnxModel(exported[1])
    found = onnx_export._check_pictures(model, files)
    assert len(found) == 200
    expected = model.description.preprocessing.apply(Image.open(files[0]))
    assert np.array_equal(np.asarray(found[0]), np.asarray(expected))
    assert len(onnx_export._check_pictures(model, files * 100)) == 200


def test_existing_files_are_never_overwritten(exported, tmp_path):
    (tmp_path / "mine.onnx").write_text("mine")
    with pytest.raises(UserError, match=naming(tmp_path / "mine.onnx")):
        export_onnx(exported[0].model, "a", tmp_path / "mine.onnx")
    assert (tmp_path / "mine.onnx").read_text() == "mine"


def test_a_missing_package_is_named(exported, tmp_path, monkeypatch):
    import sys

    for name in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(UserError, match=naming(name, 'pip install "osscl[export]"')):
            export_onnx(exported[0].model, "a", tmp_path / "agent.onnx")
        monkeypatch.undo()
    assert not any(tmp_path.glob("*.onnx"))


@pytest.mark.parametrize("kind", ["vit", "dinov2", "siglip", "convnext"])
def test_encoders_in_hugging_face_layout_are_exported(kind, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(onnx_export, "CHECKED", 24)
    folder = tiny_model(tmp_path / "encoder", kind)
    made = ContinualClassifier(encoder=folder, device="cpu").fit(*labelled(0, 1, 2), pile())
    agreed = export_onnx(made.model, "a", tmp_path / "agent.onnx")
    assert agreed.difference <= 1e-3 and agreed.decisions == 0
    about = OnnxModel(tmp_path / "agent.onnx").description
    assert about.encoder == "encoder" and not about.preprocessing.crop  # no path of this machine
    images = pictures(1, 3, seed=8)
    squashed = [image.resize((40, 40), Image.Resampling.BILINEAR) for image in images]
    found = OnnxModel(tmp_path / "agent.onnx").predict(images)
    assert found.names == made.model.predict(squashed).names


@pytest.mark.parametrize("count", [1, 6, 7])  # none, 18 and 21 known scores: Student's t with odd and even degrees
def test_agents_with_few_labels_are_exported(count, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "CHECKED", 24)
    agreed = export_onnx(small_agent(count=count).model, "a", tmp_path / "agent.onnx")
    assert agreed.difference <= 1e-3 and agreed.decisions == 0


def test_an_agent_without_a_pile_is_exported(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "CHECKED", 24)
    made = ContinualClassifier(encoder=small_encoder(), device="cpu", views=6).fit(*labelled(0, 1, 2))
    agreed = export_onnx(made.model, "a", tmp_path / "agent.onnx")
    assert agreed.difference <= 1e-3 and agreed.decisions == 0


# ----- files that are not ours


def test_foreign_and_damaged_files_are_refused_in_one_line(exported, tmp_path):
    whole = exported[1].read_bytes()
    foreign = onnx.load(str(exported[1]))
    del foreign.metadata_props[:]
    onnx.save_model(foreign, str(tmp_path / "foreign.onnx"))
    other = onnx.load(str(exported[1]))
    next(one for one in other.metadata_props if one.key == "preprocessing").value = "{}"
    onnx.save_model(other, str(tmp_path / "other.onnx"))
    (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "text.onnx").write_text("no graph")
    for name, about in {
        "foreign": "`osscl export`", "other": "preprocessing", "cut": "InvalidProtobuf", "empty": "ONNX",
        "text": "InvalidProtobuf", "absent": "exist",
    }.items():  # fmt: skip
        with pytest.raises(DataError, match=naming(tmp_path / f"{name}.onnx", about)) as error:
            OnnxModel(tmp_path / f"{name}.onnx")
        assert "\n" not in str(error.value)


def test_no_flipped_bit_of_an_exported_file_goes_unnoticed(exported, tmp_path):
    whole, file = exported[1].read_bytes(), tmp_path / "agent.onnx"
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(whole), 60).tolist():
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(damaged)
        with pytest.raises(DataError) as error:
            OnnxModel(file)
        assert "\n" not in str(error.value)


def test_pictures_of_another_format_are_refused(exported):
    model = OnnxModel(exported[1])
    for images in (np.zeros((2, 3, 8, 8), np.uint8), np.zeros((2, 3, 45, 45)), torch.zeros(2, 1, 45, 45).byte()):
        with pytest.raises(DataError, match=naming("uint8", tuple(images.shape))):
            model.predict(images)
    with pytest.raises(DataError, match=naming("no")):
        model.predict([])


def test_unreadable_files_among_others_are_named(exported, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_model, "AT_A_TIME", 2)
    for i, image in enumerate(pictures(0, 5)):
        image.save(tmp_path / f"{i}.png")
    (tmp_path / "2.png").write_text("no image")
    model = OnnxModel(exported[1])
    files = sorted(Path(tmp_path).glob("*.png"))
    (found, kept), problems = model.predict_files(files)
    assert len(found.names) == 4 and [path.name for path in kept] == ["0.png", "1.png", "3.png", "4.png"]
    assert len(problems) == 1 and "2.png" in problems[0]
    assert model.predict_files([tmp_path / "2.png"])[0] is None


def test_agents_exports_and_runs_take_folders_of_images(exported, tmp_path):
    made, file, _ = exported
    (tmp_path / "new").mkdir()
    for i, picture in enumerate(pictures(0, 3)):
        picture.save(tmp_path / "new" / f"{i}.png")
    spec = osscl.make_spec("digits", "labels-only", "smoke", 0)
    osscl.run(spec, osscl.Options(out=tmp_path, device="cpu"), progress=False)
    files = sorted((tmp_path / "new").iterdir())
    for model in (made.model, OnnxModel(file), osscl.load(tmp_path / spec.id, "cpu")):
        names = model.predict(tmp_path / "new").names
        assert len(names) == 3 and names == model.predict([str(path) for path in files]).names
