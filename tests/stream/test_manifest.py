import json
from dataclasses import replace

import pytest
import torch

from osscl.data.images import ImageBank, Labeled
from osscl.errors import DataError, SpecError
from osscl.stream.build import build_stream
from osscl.stream.manifest import from_manifest, read_manifest, rows_digest, to_manifest
from osscl.stream.scenario import ScenarioSpec
from osscl.stream.step import Stream


def bank(name: str, first: int, classes: int, per_class: int) -> ImageBank:
    """Every image is one of its kind: pixel 0 is the set, pixel 1 the row, pixel 2 the split."""
    parts = []
    for split in (0, 1):
        labels = torch.arange(classes).repeat(per_class)
        images = torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8)
        images[:, 0, 0, 0], images[:, 0, 0, 1], images[:, 0, 0, 2] = first, torch.arange(len(labels)), split
        parts.append(Labeled(images, labels))
    return ImageBank(name, *parts, tuple(map(str, range(classes))), f"{name}-content")


BANKS = {"home": bank("home", 0, 4, 20), "away": bank("away", 1, 2, 15), "far": bank("far", 2, 2, 15)}
SPEC = ScenarioSpec(
    "home", ("away", "far"), labeled_fraction=0.2, memory=4, classes_per_step=(2, 2), related=20, unrelated=10,
    validation_share=0.1,
)  # fmt: skip


def stream(seed: int = 0, **changes) -> Stream:
    return build_stream(replace(SPEC, **changes), BANKS, seed)


def manifest(seed: int = 0, **changes) -> dict:
    """As it comes back from a file."""
    return json.loads(json.dumps(to_manifest(stream(seed, **changes))))


def test_a_stream_comes_back_from_its_file_step_by_step(tmp_path):
    made = stream()
    path = tmp_path / "stream.json"
    path.write_text(json.dumps(to_manifest(made)))
    again = from_manifest(read_manifest(path), BANKS)
    assert (again.spec, again.seed, again.validation, len(again)) == (made.spec, made.seed, made.validation, 2)
    for t in range(2):
        one, two = made.step(t), again.step(t)
        assert (one.index, one.new_classes) == (two.index, two.new_classes)
        assert torch.equal(one.labeled.images, two.labeled.images)
        assert torch.equal(one.labeled.labels, two.labeled.labels)
        assert torch.equal(one.unlabeled, two.unlabeled)
        assert torch.equal(made.truth(t).labels, again.truth(t).labels)
        assert torch.equal(made.truth(t).seen, again.truth(t).seen)
        assert torch.equal(made.evaluation(t).images, again.evaluation(t).images)
        assert made.steps[t].asked == again.steps[t].asked
    assert torch.equal(made.whole_pool(), again.whole_pool())


def test_a_manifest_of_a_manifest_is_the_same():
    assert json.loads(json.dumps(to_manifest(from_manifest(manifest(), BANKS)))) == manifest()


def test_a_step_without_unlabelled_rows_comes_back():
    made = manifest(regime="before", before_first="skip", unrelated=0)
    again = from_manifest(made, BANKS)
    assert again.step(0).unlabeled.shape == (0, 1, 8, 8)
    assert len(again.step(1).unlabeled) == 20


def test_rows_edited_by_hand_are_shown():
    edited = manifest()
    own = edited["pool"][0]
    edited["steps"][0]["unlabeled"] = [3, own]
    edited["steps"][0]["sources"] = [2, 0]
    step = from_manifest(edited, BANKS).step(0)
    assert step.unlabeled[:, 0, 0, :2].tolist() == [[2, 3], [0, own]]


def test_rows_stay_apart():
    """What a file may not do: train on what it holds out, label what it pools, show a row twice."""
    assert manifest()["validation"]
    for change, words in (
        (lambda one: one["held_out"].append(one["pool"][0]), "trains on rows that it holds out"),
        (lambda one: one["pool"].append(one["steps"][0]["labeled"][0]), "labels a row twice, or pools it too"),
        (lambda one: one["steps"][0]["labeled"].append(one["steps"][0]["labeled"][0]), "labels a row twice"),
        (lambda one: one.update(validation=False), "is not as its scenario says"),
    ):
        broken = manifest()
        change(broken)
        with pytest.raises(DataError, match=words):
            from_manifest(broken, BANKS)
    broken = manifest()
    for key in ("unlabeled", "sources"):
        broken["steps"][1][key].append(broken["steps"][1][key][0])
    with pytest.raises(DataError, match="step 2 of the stream is damaged: a row comes twice"):
        from_manifest(broken, BANKS)


def test_other_data_is_refused_by_its_hash():
    other = BANKS | {"away": replace(BANKS["away"], content="something else")}
    with pytest.raises(DataError, match="away here has the content something else"):
        from_manifest(manifest(), other)


def test_a_set_that_is_not_there_is_named():
    with pytest.raises(DataError, match="made from far"):
        from_manifest(manifest(), {name: BANKS[name] for name in ("home", "away")})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "osscl str', "cannot be read as a stream"),
        ("", "cannot be read as a stream"),
        ("[1, 2]", "cannot be read as a stream"),
        ('{"seed": 1}', "cannot be read as a stream"),
        ('{"format": "osscl stream 99"}', "'osscl stream 99', not 'osscl stream 1'"),
        ('{"format": "osscl stream 1", "seed": 0}', "content, held_out, pool, scenario, steps, validation missing"),
    ],
)
def test_a_file_that_is_no_stream_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "stream.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_manifest(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "stream.json").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(DataError, match="cannot be read"):
        read_manifest(tmp_path / "stream.json")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no stream file at .*nowhere\.json"):
        read_manifest(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [("unlabeled", 80), ("unlabeled", -1), ("labeled", 80), ("labeled", -1), ("sources", 3), ("sources", -1)],
)
def test_rows_that_the_data_does_not_have_are_refused(key, value):
    broken = manifest()
    own = broken["steps"][1]["sources"].index(0)
    broken["steps"][1][key][own if key == "unlabeled" else 0] = value
    with pytest.raises(DataError, match="step 2 of the stream is damaged"):
        from_manifest(broken, BANKS)


def test_rows_are_held_against_the_set_that_they_are_of():
    broken = manifest()
    broken["steps"][0]["unlabeled"][broken["steps"][0]["sources"].index(2)] = 30  # home has 80 rows, far has 30
    with pytest.raises(DataError, match="rows that far does not have"):
        from_manifest(broken, BANKS)


@pytest.mark.parametrize("key", ["held_out", "pool"])
@pytest.mark.parametrize("value", [80, -1, "x"])
def test_held_out_rows_and_the_pool_are_checked_too(key, value):
    broken = manifest()
    broken[key][0] = value
    with pytest.raises(DataError, match="damaged"):
        from_manifest(broken, BANKS)


@pytest.mark.parametrize(
    "entry", [{"labeled": "x"}, {"unlabeled": [1, 2]}, {"sources": None}, {"unlabeled": [2**70]}, {"new_classes": 3}]
)
def test_a_damaged_step_is_named(entry):
    broken = manifest()
    broken["steps"][1] |= entry
    with pytest.raises(DataError, match="step 2 of the stream is damaged"):
        from_manifest(broken, BANKS)


def test_labels_are_those_of_a_steps_own_new_classes():
    swapped, twice, late = manifest(), manifest(), manifest()
    swapped["steps"][1]["labeled"], swapped["steps"][0]["labeled"] = (swapped["steps"][t]["labeled"] for t in (0, 1))
    twice["steps"][1] |= {key: twice["steps"][0][key] for key in ("new_classes", "labeled")}
    with pytest.raises(DataError, match="step 1 of the stream is damaged: its labels are not those"):
        from_manifest(swapped, BANKS)
    with pytest.raises(DataError, match="step 2 of the stream is damaged: its labels are not those"):
        from_manifest(twice, BANKS)
    late["held_out"] = []
    with pytest.raises(DataError, match="a step has no held-out rows"):
        from_manifest(late, BANKS)


def test_a_step_that_lacks_a_field_is_named():
    broken = manifest()
    del broken["steps"][0]["asked"]
    with pytest.raises(DataError, match="step 1 of the stream is damaged"):
        from_manifest(broken, BANKS)


def test_a_spec_that_cannot_be_is_refused_by_field():
    broken = manifest()
    broken["scenario"]["memry"] = 3
    with pytest.raises(SpecError, match=r"scenario\.memry.*did you mean 'memory'"):
        from_manifest(broken, BANKS)


def test_equal_rows_have_one_digest():
    assert rows_digest(to_manifest(stream())) == rows_digest(manifest())
    again = to_manifest(from_manifest(manifest(), BANKS))
    assert rows_digest(again) == rows_digest(manifest())


def test_the_digest_follows_the_rows_and_not_the_words_of_the_spec():
    said_otherwise = manifest()
    said_otherwise["scenario"]["memory"] = 0
    assert rows_digest(said_otherwise) == rows_digest(manifest())


@pytest.mark.parametrize("key", ["labeled", "unlabeled", "sources", "new_classes"])
def test_another_order_inside_a_step_is_another_digest(key):
    other = manifest()
    other["steps"][1][key].reverse()
    assert rows_digest(other) != rows_digest(manifest())


def test_other_rows_have_other_digests():
    digests = {rows_digest(manifest()), rows_digest(manifest(seed=1)), rows_digest(manifest(related=19))}
    held_out, content, swapped, on_test, pool = (manifest() for _ in range(5))
    pool["pool"].pop()  # a reference may be trained on it
    held_out["held_out"].pop()
    content["content"]["home"] = "other pixels"
    swapped["scenario"]["peripheral"].reverse()  # the same numbers now name rows of other sets
    on_test["validation"] = False  # and here rows of the other split
    digests |= {rows_digest(other) for other in (held_out, content, swapped, on_test, pool)}
    assert len(digests) == 8
