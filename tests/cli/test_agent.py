"""`osscl fit`, `update`, `inspect` and `back` on folders that arrive over time."""

import pytest
from PIL import Image

from osscl.data.benchmarks import load_bank
from osscl.errors import DataError, SpecError, UserError

GREY = ["--schedule", "smoke", "--size", "8", "--grey", "--device", "cpu", "--memory", "20"]
CPU = ["--device", "cpu"]


@pytest.fixture
def folders(tmp_path):
    """Three weeks of labelled digits, a pile, and test images."""
    digits = load_bank("digits")
    for t, classes in enumerate(((0, 1), (2, 3), (4,))):
        for c in classes:
            rows = (digits.train.labels == c).nonzero().squeeze(1)[:4].tolist()
            for part in (f"week{t + 1}", "test"):
                (tmp_path / part / f"digit {c}").mkdir(parents=True)
                for row in rows:
                    Image.fromarray(digits.train.images[row, 0].numpy()).save(
                        tmp_path / part / f"digit {c}" / f"{row}.png"
                    )
    (tmp_path / "pile" / "below").mkdir(parents=True)
    for row in range(40):
        Image.fromarray(digits.train.images[row, 0].numpy()).save(tmp_path / "pile" / "below" / f"{row}.png")
    return tmp_path


@pytest.fixture
def taught(typed, folders):
    """An agent's folder after its first week."""
    assert typed("fit", folders / "agent", "--labeled", folders / "week1", *GREY)[0] == 0
    return folders / "agent"


def brighter(path, by):
    return Image.open(path).point(lambda value: min(255, value + by))


def first(folder):
    return sorted(folder.iterdir())[0]


def test_an_agents_life(typed, folders):
    place = folders / "agent"
    code, shown, _ = typed("fit", place, "--labeled", folders / "week1", "--unlabeled", folders / "pile", *GREY)
    assert code == 0 and "2 new classes; 8 labelled images, 40 unlabelled" in shown and "digit 0, digit 1" in shown
    assert "only 40 unlabelled images for embeddings of" in " ".join(shown.split())
    code, shown, _ = typed("update", place, "--labeled", folders / "week2", *CPU)
    assert code == 0 and "digit 2, digit 3" in shown and "4 classes; ursl-plus-unlimited, schedule smoke" in shown
    assert "without unlabelled images the statistics of earlier classes are dropped" in " ".join(shown.split())
    assert "—" in shown  # no pile, so nothing passed the gate
    code, shown, errors = typed("inspect", place, "--on", folders / "test", *CPU)
    assert code == 0 and "digit 4 (not learned)" in shown and "AUROC" in shown
    assert "16 images of learned classes: " in shown and "4 images of other classes: " in shown
    assert "16 of these 20 images were used for training" in errors
    code, shown, _ = typed("predict", place, folders / "test", *CPU, "--format", "csv")
    assert code == 0 and len(shown.splitlines()) == 1 + 20  # folders are searched recursively
    assert sorted(path.name for path in place.glob("model*")) == ["model-1.safetensors", "model.safetensors"]
    code, shown, _ = typed("back", place, "model-1")
    assert code == 0 and "2 classes" in shown and (place / "model-2.safetensors").exists()
    assert "2 classes" in typed("inspect", place, *CPU)[1]


def test_only_new_images_of_a_growing_folder_are_learned(typed, folders, taught):
    growing = folders / "test"
    brighter(folders / "pile" / "below" / "39.png", 9).save(growing / "digit 0" / "new.png")
    code, shown, errors = typed("update", taught, "--labeled", growing, *CPU)
    assert code == 0 and "3 new classes, more images of digit 0; 13 labelled images, 0 unlabelled" in shown
    assert "skipped: 8 images already learned\n" in errors and "more of digit 0" in shown
    (growing / "digit 1" / "again.png").write_bytes(first(growing / "digit 1").read_bytes())
    code, shown, _ = typed("update", taught, "--labeled", growing, *CPU)
    assert code == 0 and "nothing new" in shown


def test_an_image_that_changed_its_class_is_named(typed, folders, taught):
    week = folders / "week1"
    moved = first(week / "digit 0").rename(week / "digit 1" / "moved.png")
    (week / "digit 0" / "damaged.png").write_bytes(b"")
    for pile, words in (((), "nothing new"), (("--unlabeled", folders / "pile"), "0 new classes")):
        code, shown, errors = typed("update", taught, "--labeled", week, *pile, *CPU)
        assert code == 0 and words in shown and "damaged.png" in errors
        assert f"skipped: {moved}: already learned as digit 0" in errors


def test_after_a_rename_the_same_step_is_nothing_new_and_a_second_name_is_refused(typed, refuses, folders, taught):
    assert typed("rename", taught, "digit 0", "zero")[0] == 0
    code, shown, _ = typed("update", taught, "--labeled", folders / "week1", *CPU)
    assert code == 0 and "nothing new" in shown
    (folders / "week1" / "digit 0").rename(folders / "week2" / "digit 0")
    saved = (taught / "model.safetensors").read_bytes()
    refuses("update", taught, "--labeled", folders / "week2", *CPU, error=UserError, about=["digit 0", "zero", "4"])
    assert (taught / "model.safetensors").read_bytes() == saved


def test_a_model_can_be_restored_by_its_number(typed, refuses, folders, taught):
    assert typed("rename", taught, "digit 0", "zero")[0] == 0
    refuses("back", taught, "7", error=SpecError, about=["model-7", "model-1"])
    code, shown, _ = typed("back", taught, "1")
    assert code == 0 and "restored model-1 of" in shown and "digit 0" in shown


def test_bundling_without_an_encoder_is_refused_before_training(refuses, folders):
    command = "fit", folders / "agent", "--labeled", folders / "week1", "--bundle", *GREY
    refuses(*command, error=UserError, about="--bundle")
    assert not (folders / "agent").exists()


def test_one_picture_in_two_classes_is_refused(refuses, folders):
    week = folders / "week1"
    one, other = first(week / "digit 0"), week / "digit 1" / "twin.png"
    other.write_bytes(one.read_bytes())
    refuses("fit", folders / "agent", "--labeled", week, *GREY, error=UserError, about=[one, other])


def test_a_step_may_have_unlabelled_images_only(typed, refuses, folders, taught):
    refuses("update", taught, error=UserError, about=["--labeled", "--unlabeled"])
    code, shown, _ = typed("update", taught, "--unlabeled", folders / "pile", *CPU)
    assert code == 0 and "0 new classes; 0 labelled images, 40 unlabelled" in shown


def test_wrong_calls_are_refused_and_change_nothing(typed, refuses, folders):
    place, week = folders / "agent", folders / "week1"
    below, nowhere = folders / "pile" / "below", folders / "nowhere"
    fit = "fit", place, "--labeled", week
    refuses("update", place, "--labeled", week, error=DataError, about=[place, "osscl fit"])
    refuses("back", place, "model-1", error=DataError, about=[place, "osscl fit"])
    refuses("fit", place, "--labeled", below, error=DataError, about=below)
    refuses("fit", place, "--labeled", nowhere, error=DataError, about=nowhere)
    refuses(*fit, "--unlabeled", nowhere, error=DataError, about=nowhere)
    refuses(*fit, "--size", "12", error=DataError, about=["size", "8", "12"])
    refuses(*fit, "--method", "urls", error=SpecError, about=["method", "urls"])
    refuses(*fit, "--set", "learner.lamb=1", error=SpecError, about="learner.lamb")
    refuses(*fit, "--memory", "1", "--encoder", "scratch", error=UserError, about=["memory", "2", "1"])
    refuses("fit", folders, "--labeled", week, error=UserError, about=[folders, "pile"])
    refuses("fit", week / "agent", "--labeled", week, error=UserError, about=[week / "agent", week])
    refuses("fit", below / "0.png", "--labeled", week, error=UserError, about=below / "0.png")
    assert not place.exists()
    typed("fit", place, "--labeled", week, *GREY)
    before = (place / "model.safetensors").read_bytes()
    refuses("fit", place, "--labeled", folders / "week2", *GREY, error=UserError, about=[place, "osscl update"])
    refuses("predict", place, error=DataError, about=[place, "images"])
    refuses("inspect", folders, error=DataError, about=folders)
    refuses("back", place, "model-1", error=SpecError, about="model-1")
    brighter(first(week / "digit 0"), 9).save(week / "digit 0" / "new.png")
    for pile in ((), ("--unlabeled", folders / "pile")):
        refuses(*fit, *pile, *GREY, error=UserError, about=[place, "osscl update"])
    assert (place / "model.safetensors").read_bytes() == before


def test_repeating_a_finished_command_does_nothing(typed, folders):
    """A script that repeats a command until it succeeds terminates."""
    place = folders / "agent"
    for command in (
        ["fit", place, "--labeled", folders / "week1", *GREY],
        ["update", place, "--labeled", folders / "week2", *CPU],
    ):
        assert typed(*command)[0] == 0
        before = (place / "model.safetensors").read_bytes()
        code, shown, _ = typed(*command)
        assert code == 0 and "nothing new: all of these images have already been learned" in shown
        assert (place / "model.safetensors").read_bytes() == before
    code, shown, _ = typed("inspect", place, *CPU)
    assert "other models (see `osscl back`): model-1" in shown and "interrupted" not in shown


def test_file_names_are_printed_in_one_line(typed, folders):
    (folders / "week1" / "digit 0" / "bad\nname.png").write_bytes(b"")
    _, _, errors = typed("fit", folders / "agent", "--labeled", folders / "week1", *GREY)
    assert errors.count("\n") == 1 and "bad\\nname.png" in errors


def test_methods_without_a_known_score_show_accuracy_only(typed, folders):
    place = folders / "agent"
    typed("fit", place, "--labeled", folders / "week1", *GREY, "--method", "icarl")
    _, shown, _ = typed("inspect", place, "--on", folders / "test", *CPU)
    assert "% correct" in shown and "% look known" not in shown and "other classes: " not in shown


def test_an_interrupted_first_step_resumes(typed, refuses, folders):
    place = folders / "agent"
    code, _, errors = typed("fit", place, "--labeled", folders / "week1", *GREY, "--max-minutes", "0")
    assert code == 3 and "same command" in errors
    code, shown, _ = typed("inspect", place, *CPU)
    assert code == 0 and "nothing learned yet" in shown and "step  " not in shown
    refuses("fit", place, "--labeled", folders / "week1", *GREY[:-1], "30", error=UserError, about=[place, "settings"])
    refuses("update", place, "--labeled", folders / "week2", error=UserError, about=[place, "`osscl fit`"])
    code, shown, _ = typed("fit", place, "--labeled", folders / "week1", *GREY)
    assert code == 0 and "2 classes" in shown


def test_an_agent_can_be_inspected_while_a_step_is_interrupted(typed, folders, taught):
    assert typed("update", taught, "--labeled", folders / "week2", "--max-minutes", "0", *CPU)[0] == 3
    code, shown, _ = typed("inspect", taught, "--on", folders / "test", *CPU)
    assert code == 0 and "a step was interrupted" in shown and "8 images of learned classes" in shown


def test_suspicious_class_names_are_reported(typed, folders):
    week = folders / "week1"
    twin = week / "Digit  0"
    twin.mkdir()
    brighter(first(week / "digit 0"), 9).save(twin / "new.png")
    code, shown, _ = typed("fit", folders / "agent", "--labeled", week, *GREY)
    assert code == 0 and "warning: only one labelled image of Digit  0" in shown
    assert "warning: 'Digit  0' and 'digit 0' are treated as different classes" in shown
