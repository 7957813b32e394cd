"""`osscl fit`, `update` and `inspect`, typed: folders that arrive over time become an agent."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from osscl.data.benchmarks import load_bank


@pytest.fixture
def folders(tmp_path):
    """Two weeks of labelled digits, a pile, and some to be tested on."""
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


GREY = ["--schedule", "smoke", "--size", "8", "--grey", "--device", "cpu", "--memory", "20"]


def test_folders_that_arrive_over_time(typed, folders):
    place = folders / "agent"
    code, shown, _ = typed("fit", place, "--labeled", folders / "week1", "--unlabeled", folders / "pile", *GREY)
    assert code == 0 and "2 new classes; 8 labelled images, 40 unlabelled" in shown and "digit 0, digit 1" in shown
    code, shown, _ = typed("update", place, "--labeled", folders / "week2", "--device", "cpu")
    assert code == 0 and "digit 2, digit 3" in shown and "4 classes; ursl-plus, schedule smoke" in shown
    code, shown, _ = typed("inspect", place, "--on", folders / "test", "--device", "cpu")
    assert code == 0 and "digit 4 (not learned)" in shown
    assert (
        "16 images of classes learned: " in shown and "4 images of classes not learned: " in shown and "AUROC" in shown
    )
    code, shown, _ = typed("predict", place, folders / "test" / "digit 0", "--device", "cpu", "--format", "csv")
    assert code == 0 and len(shown.splitlines()) == 5
    assert sorted(path.name for path in place.glob("model*")) == ["model-1.safetensors", "model.safetensors"]


def test_a_growing_folder_brings_what_is_new_in_it(typed, folders):
    place, growing = folders / "agent", folders / "test"
    typed("fit", place, "--labeled", folders / "week1", *GREY)
    grey(folders / "pile" / "below" / "39.png", 9).save(growing / "digit 0" / "new.png")
    code, shown, told = typed("update", place, "--labeled", growing, "--device", "cpu")
    assert code == 0 and "3 new classes, more of digit 0; 13 labelled images, 0 unlabelled" in shown
    assert "left out: 8 images learned before\n" in told and "more of digit 0" in shown
    (growing / "digit 1" / "again.png").write_bytes((growing / "digit 1" / first(growing / "digit 1")).read_bytes())
    code, shown, _ = typed("update", place, "--labeled", growing, "--device", "cpu")
    assert code == 0 and "nothing new: all of this is learned already" in shown


def grey(path, by):
    """A picture like another one, a little brighter."""
    return Image.open(path).point(lambda value: min(255, value + by))


def first(folder):
    return sorted(path.name for path in folder.iterdir())[0]


def test_an_image_that_has_another_class_now_is_named(typed, folders):
    place, week = folders / "agent", folders / "week1"
    typed("fit", place, "--labeled", week, *GREY)
    moved = week / "digit 0" / first(week / "digit 0")
    moved = moved.rename(week / "digit 1" / "moved.png")
    code, _, told = typed("update", place, "--labeled", week, "--unlabeled", folders / "pile", "--device", "cpu")
    assert code == 0 and f"left out: {moved}: was learned as digit 0, which cannot be undone" in told


def test_one_picture_in_two_classes_is_refused_by_name(refuses, folders):
    week = folders / "week1"
    twin = week / "digit 1" / "twin.png"
    twin.write_bytes((week / "digit 0" / first(week / "digit 0")).read_bytes())
    refuses("fit", folders / "agent", "--labeled", week, *GREY, words=r"twin.png are the same picture in two classes")


def test_unlabelled_images_alone_make_a_step(typed, refuses, folders):
    place = folders / "agent"
    typed("fit", place, "--labeled", folders / "week1", *GREY)
    refuses("update", place, words="give --labeled, --unlabeled, or both")
    code, shown, _ = typed("update", place, "--unlabeled", folders / "pile", "--device", "cpu")
    assert code == 0 and "0 new classes; 0 labelled images, 40 unlabelled" in shown


def test_an_update_without_a_pile_says_what_it_costs(typed, folders):
    place = folders / "agent"
    typed("fit", place, "--labeled", folders / "week1", "--unlabeled", folders / "pile", *GREY)
    _, shown, _ = typed("update", place, "--labeled", folders / "week2", "--device", "cpu")
    assert "what is carried of earlier classes is dropped" in " ".join(shown.split())
    assert "—" in shown  # nothing was let in or kept out


def test_images_that_were_learned_from_are_no_test(typed, folders):
    place = folders / "agent"
    typed("fit", place, "--labeled", folders / "week1", *GREY)
    _, _, told = typed("inspect", place, "--on", folders / "test", "--device", "cpu")
    assert "8 of these 20 images were learned from: on those it is no test" in told


def test_wrong_calls_are_refused_and_change_nothing(typed, refuses, folders):
    place, week = folders / "agent", folders / "week1"
    refuses("update", place, "--labeled", week, words="no agent in")
    refuses("back", place, "model-1", words="no agent in")
    refuses("fit", place, "--labeled", folders / "pile" / "below", words="has no folders in it")
    refuses("fit", place, "--labeled", folders / "nowhere", words="cannot be read as a folder")
    refuses("fit", place, "--labeled", week, "--unlabeled", folders / "nowhere", words="nowhere does not exist")
    refuses("fit", place, "--labeled", week, "--size", "12", words="divisible by 8")
    refuses("fit", place, "--labeled", week, "--method", "urls", words="did you mean 'ursl'")
    refuses("fit", place, "--labeled", week, "--set", "learner.lamb=1", words="unknown field")
    refuses("fit", place, "--labeled", week, "--memory", "1", words="memory must be 0 or at least the 2 classes, got 1")
    refuses("fit", folders, "--labeled", week, words="holds other things")
    refuses("fit", week / "agent", "--labeled", week, words="would be taken for a class")
    refuses("fit", folders / "pile" / "below" / "0.png", "--labeled", week, words="is a file")
    assert not place.exists()
    typed("fit", place, "--labeled", week, *GREY)
    before = (place / "model.safetensors").read_bytes()
    refuses("fit", place, "--labeled", folders / "week2", *GREY, words="has learned already")
    refuses("predict", place, words="give images to look at")
    refuses("inspect", folders, words="no agent in")
    refuses("back", place, "model-1", words="unknown model 'model-1'; allowed: none there")
    assert (place / "model.safetensors").read_bytes() == before


def test_the_same_command_again_has_nothing_to_do(typed, folders):
    """A script that repeats a command until it succeeds comes to an end."""
    place = folders / "agent"
    for command in (
        ["fit", place, "--labeled", folders / "week1", *GREY],
        ["update", place, "--labeled", folders / "week2", "--device", "cpu"],
    ):
        assert typed(*command)[0] == 0
        before = (place / "model.safetensors").read_bytes()
        code, shown, _ = typed(*command)
        assert code == 0 and "nothing new: all of this is learned already" in shown
        assert (place / "model.safetensors").read_bytes() == before
    code, shown, _ = typed("inspect", place, "--device", "cpu")
    assert "earlier models, for `osscl back`: model-1" in shown and "interrupted" not in shown


def test_an_earlier_model_is_taken_again(typed, folders):
    place = folders / "agent"
    typed("fit", place, "--labeled", folders / "week1", *GREY)
    typed("update", place, "--labeled", folders / "week2", "--device", "cpu")
    code, shown, _ = typed("back", place, "model-1")
    assert code == 0 and "2 classes" in shown and (place / "model-2.safetensors").exists()
    assert "2 classes" in typed("inspect", place, "--device", "cpu")[1]


def test_names_are_told_in_one_line(typed, folders):
    (folders / "week1" / "digit 0" / "bad\nname.png").write_bytes(b"")
    _, _, told = typed("fit", folders / "agent", "--labeled", folders / "week1", *GREY)
    assert told.count("\n") == 1 and "bad?name.png" in told


def test_a_method_that_does_not_tell_says_nothing_of_what_it_knows(typed, folders):
    place = folders / "agent"
    typed("fit", place, "--labeled", folders / "week1", *GREY, "--method", "icarl")
    _, shown, _ = typed("inspect", place, "--on", folders / "test", "--device", "cpu")
    assert "% right" in shown and "look known" not in shown and "not learned: " not in shown


def test_a_step_in_the_middle_can_be_looked_at(typed, folders):
    place = folders / "agent"
    typed("fit", place, "--labeled", folders / "week1", *GREY)
    assert typed("update", place, "--labeled", folders / "week2", "--max-minutes", "0", "--device", "cpu")[0] == 3
    code, shown, _ = typed("inspect", place, "--on", folders / "test", "--device", "cpu")
    assert code == 0 and "a step was interrupted" in shown and "8 images of classes learned" in shown


def test_a_step_that_ran_out_of_time_goes_on(typed, refuses, folders):
    place = folders / "agent"
    code, _, told = typed("fit", place, "--labeled", folders / "week1", *GREY, "--max-minutes", "0")
    assert code == 3 and "same command" in told
    refuses("fit", place, "--labeled", folders / "week1", *GREY[:-1], "30", words="was begun with other settings")
    refuses("update", place, "--labeled", folders / "week2", words="`osscl fit` resumes it")
    code, shown, _ = typed("fit", place, "--labeled", folders / "week1", *GREY)
    assert code == 0 and "2 classes" in shown


def test_the_page_on_own_images_can_be_followed(typed, tmp_path):
    """Its Python and its commands, in their order, at the shortest schedule."""
    page = (Path(__file__).parents[2] / "docs" / "own-images.md").read_text(encoding="utf-8")
    page = page.replace("--schedule demo", "--schedule smoke --device cpu").replace('"demo"', '"smoke"')
    blocks = re.findall(r"```(python)?\n(.*?)```", page.partition("## Try it")[2], re.S)
    names = {}
    for kind, block in blocks:
        if kind:
            exec(compile(block, "own-images.md", "exec"), names)
        elif block.startswith("osscl"):
            for line in block.splitlines():
                assert typed(*shlex.split(line)[1:])[0] == 0, line
    assert (tmp_path / "agent" / "model-2.safetensors").exists() and (tmp_path / "agent-2").exists()


def test_classes_that_look_like_a_slip_are_told(typed, folders):
    week = folders / "week1"
    twin = week / "Digit  0"
    twin.mkdir()
    grey(week / "digit 0" / first(week / "digit 0"), 9).save(twin / "new.png")
    code, shown, _ = typed("fit", folders / "agent", "--labeled", week, *GREY)
    assert code == 0 and "a single image of Digit  0: what looks known is unsure there" in shown
    assert "'Digit  0' and 'digit 0' are learned as different classes" in shown


def test_an_agent_that_has_learned_nothing_says_so(typed, folders):
    place = folders / "agent"
    typed("fit", place, "--labeled", folders / "week1", *GREY, "--max-minutes", "0")
    code, shown, _ = typed("inspect", place, "--device", "cpu")
    assert code == 0 and "nothing is learned yet" in shown and "step  " not in shown


def test_predict_looks_below_a_folder(typed, folders):
    place = folders / "agent"
    typed("fit", place, "--labeled", folders / "week1", *GREY)
    code, shown, _ = typed("predict", place, folders / "test", "--device", "cpu", "--format", "csv")
    assert code == 0 and len(shown.splitlines()) == 1 + 20


def test_fit_begins_and_never_teaches_a_second_step(typed, refuses, folders):
    place, week = folders / "agent", folders / "week1"
    typed("fit", place, "--labeled", week, *GREY)
    refuses("fit", place, "--labeled", week, "--unlabeled", folders / "pile", *GREY, words="has learned already")
    grey(week / "digit 0" / first(week / "digit 0"), 9).save(week / "digit 0" / "new.png")
    refuses("fit", place, "--labeled", week, *GREY, words="has learned already: `osscl update` teaches it more")


def test_what_is_wrong_is_told_where_nothing_is_new_too(typed, folders):
    place, week = folders / "agent", folders / "week1"
    typed("fit", place, "--labeled", week, *GREY)
    (week / "digit 0" / "damaged.png").write_bytes(b"")
    moved = (week / "digit 0" / first(week / "digit 0")).rename(week / "digit 1" / "moved.png")
    code, shown, told = typed("update", place, "--labeled", week, "--device", "cpu")
    assert code == 0 and "nothing new" in shown and "damaged.png" in told and f"{moved}: was learned as digit 0" in told
