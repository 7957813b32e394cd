"""The gate judged by hand, how images are read, and which specs and methods are allowed."""

from dataclasses import make_dataclass, replace

import numpy as np
import pytest
import torch
from PIL import Image

from osscl.data.folders import read_images
from osscl.errors import DataError, SpecError, reason_of
from osscl.methods import CONFIGURATIONS
from osscl.methods.base import SMOKE, GateReport
from osscl.methods.gem import Gem, GemConfig
from osscl.runs.evaluate import judge_gate
from osscl.runs.model import load_model
from osscl.runs.run import class_of, setting_of
from osscl.runs.spec import EXPERIMENTS, make_spec
from osscl.storage import write_state
from osscl.tools.battery import toy_stream
from osscl.vision.encoder import ImageFormat
from refusals import naming

COLOUR, GREY = ImageFormat(3, 8, (0.5,) * 3, (0.5,) * 3), ImageFormat(1, 8, (0.5,), (0.5,))


def test_the_gate_is_judged_against_the_true_classes_of_its_rows():
    stream = toy_stream()
    truth = stream.truth(0)
    seen, unseen, foreign = (kind.nonzero().squeeze(1) for kind in (truth.seen, truth.unseen, truth.foreign))
    assert len(seen) > 3 and len(unseen) > 3 and len(foreign) > 3
    scores = torch.full((len(truth.labels),), 0.1)
    scores[unseen], scores[seen] = 0.3, 0.5
    scores[foreign[0]] = 0.9  # one that is mistaken for a seen class
    passed = scores > 0.4
    right = truth.labels.clone()
    right[seen[0]] = -7
    found = judge_gate(GateReport(scores, passed, scores > 0.4, right, 0.4, 0.45, 5), truth, stream, 0)
    wrong = 1 / len(foreign)
    assert found.auroc_related == pytest.approx(1 - wrong)
    assert found.auroc_seen_foreign == pytest.approx(1 - wrong)
    assert found.auroc_seen == pytest.approx(1 - 1 / (len(foreign) + len(unseen)))
    assert found.precision == found.precision_seen == pytest.approx(len(seen) / (len(seen) + 1))
    assert (found.recall, found.passed, found.pseudo_labeled) == (1.0, len(seen) + 1, 5)
    assert found.fpr95 == pytest.approx(1 / (len(foreign) + len(unseen)))
    # OpenOOD: rejecting 95 % of unknown rows rejects no known one, unless the foreign row at 0.9 is among the 95 %.
    assert found.fpr95_unknown == (1.0 if 1 / (len(foreign) + len(unseen)) > 0.05 else 0.0)
    assert found.pass_rates == {"seen": 1.0, "unseen": 0.0, "foreign": pytest.approx(wrong)}
    assert found.pseudo_accuracy == pytest.approx(1 - 1 / len(seen))
    names = (stream.spec.main, *stream.spec.peripheral)
    rows = stream.steps[0]
    told = {(names[int(rows.sources[i])], int(rows.unlabeled[i])) for i in passed.nonzero().squeeze(1)}
    assert set(found.let_in) <= told and found.let_in and not set(found.kept_out) & told


# ----- images


def saved(path, pixels, mode=None, **kwargs):
    Image.fromarray(np.asarray(pixels), mode).save(path, **kwargs)
    return path


def test_an_image_is_turned_upright(tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[0, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    plain, turned = saved(tmp_path / "a.png", pixels), saved(tmp_path / "b.png", pixels, exif=exif)
    one, other = read_images([plain, turned], COLOUR)
    assert torch.equal(other, one.flip(1, 2)) and not torch.equal(one, other)


def test_transparent_pixels_are_white(tmp_path):
    clear = np.zeros((8, 8, 4), np.uint8)
    clear[0, 0, 3] = 255  # one black pixel
    (image,) = read_images([saved(tmp_path / "clear.png", clear)], GREY)
    assert image[0, 0, 0] == 0 and image.sum() == 63 * 255


def test_more_than_eight_bits_are_refused(tmp_path):
    deep = saved(tmp_path / "deep.png", np.full((4, 4), 1000, np.uint16))
    with pytest.raises(DataError, match=naming(deep, 8)):
        read_images([deep], GREY)


def test_the_central_square_is_averaged(tmp_path):
    wide = np.zeros((16, 32, 3), np.uint8)
    wide[:, 8:24:2] = 200
    assert set(read_images([saved(tmp_path / "wide.png", wide)], COLOUR).unique().tolist()) == {100}


def test_a_file_in_place_of_a_run_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "run" / "model.safetensors").mkdir(parents=True)
    for place in ("file", "run"):
        with pytest.raises(DataError, match=naming(tmp_path / place / "model.safetensors")):
            load_model(tmp_path / place)


@pytest.mark.parametrize("spec", [3, "x", None, {"method": 3}, {"method": {"type": []}}, {}])
def test_a_model_that_names_no_method_is_refused_in_one_line(tmp_path, spec):
    write_state(tmp_path / "model", {"spec": spec})
    with pytest.raises(DataError):
        load_model(tmp_path)


def test_the_reason_of_a_refusal_fits_into_a_line():
    long = reason_of(RuntimeError("size mismatch for\n\tlayer " * 500))
    assert long.startswith("RuntimeError: size mismatch for layer size") and len(long) < 350 and "\n" not in long


# ----- which method a spec may have


class Mine(Gem):
    pass


def test_a_users_method_does_not_take_a_config_of_the_package():
    spec = make_spec(EXPERIMENTS["digits"], CONFIGURATIONS["gem"], SMOKE, 0)
    assert class_of(spec, None) is class_of(spec, Gem) is Gem
    with pytest.raises(SpecError, match=naming("GemConfig")):
        class_of(spec, Mine)


def test_a_users_class_is_not_named_like_a_method_of_the_package():
    namesake = make_dataclass("Config", [], frozen=True)
    namesake.__qualname__ = "Icarl.Config"
    with pytest.raises(SpecError, match=naming("icarl", "Icarl.Config")):
        make_spec(EXPERIMENTS["digits"], namesake(), SMOKE, 0)


def test_a_spec_by_names_is_the_spec_of_what_they_name():
    assert make_spec("digits", "gem", "smoke", 0) == make_spec(EXPERIMENTS["digits"], CONFIGURATIONS["gem"], SMOKE, 0)


@pytest.mark.parametrize(
    ("change", "about"),
    [
        ({"method": "gem"}, ["method", "osscl.CONFIGURATIONS"]),
        ({"schedule": "smoke"}, ["schedule", "Schedule"]),
        ({"method": GemConfig}, ["method", "osscl.CONFIGURATIONS"]),
        ({"scenario": "digits"}, ["scenario", "ScenarioSpec"]),
        ({"seed": "0"}, ["seed", "'0'"]),
        ({"seed": True}, ["seed", "True"]),
    ],
)
def test_a_spec_of_the_wrong_kinds_is_refused(change, about):
    with pytest.raises(SpecError, match=naming(*about)):
        replace(make_spec(EXPERIMENTS["digits"], "gem", "smoke", 0), **change)


def test_a_single_name_is_not_taken_for_a_tuple_of_names():
    with pytest.raises(SpecError, match=naming("peripheral", "'letters'")):
        replace(EXPERIMENTS["digits"], peripheral="letters")


def test_the_seed_reaches_the_method():
    spec, stream = make_spec(EXPERIMENTS["digits"], CONFIGURATIONS["gem"], SMOKE, 3), toy_stream()
    assert setting_of(spec, stream).seed == 3
