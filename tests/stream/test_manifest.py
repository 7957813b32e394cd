import contextlib
import json
import os
import random
from dataclasses import replace

import pytest
import torch

from osscl.data.images import ImageBank, Labeled
from osscl.errors import DamagedFile, DataError, SpecError
from osscl.stream.build import Stream, build_stream
from osscl.stream.manifest import from_manifest, read_manifest, rows_digest, to_manifest, write_manifest
from osscl.stream.scenario import ScenarioSpec
from refusals import naming


def bank(name: str, first: int, classes: int, per_class: int) -> ImageBank:
    """Every image is unique: pixel 0 is the set, pixel 1 the row, pixel 2 the split."""
    parts = []
    for split in (0, 1):
        labels = torch.arange(classes).repeat(per_class)
        images = torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8)
        images[:, 0, 0, 0], images[:, 0, 0, 1], images[:, 0, 0, 2] = first, torch.arange(len(labels)), split
        parts.append(Labeled(images, labels))
    return ImageBank(name, *parts, tuple(map(str, range(classes))), f"{name}-content")


CASES = int(os.environ.get("OSSCL_FUZZ_CASES", "100"))
BANKS = {"home": bank("home", 0, 4, 20), "away": bank("away", 1, 2, 15), "far": bank("far", 2, 2, 15)}
SPEC = ScenarioSpec(
    "home", ("away", "far"), labeled_fraction=0.2, memory=4, classes_per_step=(2, 2), related=20, unrelated=10,
    validation_share=0.1,
)  # fmt: skip


def stream(seed: int = 0, **changes) -> Stream:
    return build_stream(replace(SPEC, **changes), BANKS, seed)


def manifest(seed: int = 0, **changes) -> dict:
    """As read from a file."""
    return json.loads(json.dumps(to_manifest(stream(seed, **changes))))


def test_a_stream_is_read_as_it_was_written(tmp_path):
    made = stream()
    path = tmp_path / "stream.json"
    write_manifest(path, to_manifest(made))
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
    assert json.loads(json.dumps(to_manifest(again))) == manifest()


def test_no_flipped_bit_of_a_stream_file_goes_unnoticed(tmp_path):
    path = tmp_path / "stream.json"
    write_manifest(path, to_manifest(stream()))
    assert rows_digest(read_manifest(path)) == rows_digest(manifest())
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(DataError) as error:
            read_manifest(path)
        assert "\n" not in str(error.value)


def test_a_stream_edited_by_hand_says_how_to_use_it(tmp_path):
    path = tmp_path / "stream.json"
    write_manifest(path, to_manifest(stream()))
    edited = {**json.loads(path.read_text()), "seed": 5}
    path.write_text(json.dumps(edited))
    with pytest.raises(DamagedFile, match=naming(path, "'digest'")):
        read_manifest(path)
    del edited["digest"]
    path.write_text(json.dumps(edited))
    assert read_manifest(path)["seed"] == 5


def test_a_step_without_unlabelled_rows_is_kept():
    again = from_manifest(manifest(regime="before", before_first="skip", unrelated=0), BANKS)
    assert again.step(0).unlabeled.shape == (0, 1, 8, 8)
    assert len(again.step(1).unlabeled) == 20


def test_rows_edited_by_hand_are_used():
    edited = manifest()
    own = edited["pool"][0]
    edited["steps"][0]["unlabeled"] = [3, own]
    edited["steps"][0]["sources"] = [2, 0]
    step = from_manifest(edited, BANKS).step(0)
    assert step.unlabeled[:, 0, 0, :2].tolist() == [[2, 3], [0, own]]


def test_other_data_is_refused_by_name():
    other = BANKS | {"away": replace(BANKS["away"], content="something else")}
    with pytest.raises(DataError, match=naming("away", "something else", "'away-content'")):
        from_manifest(manifest(), other)
    with pytest.raises(DataError, match=naming("far")):
        from_manifest(manifest(), {name: BANKS[name] for name in ("home", "away")})


@pytest.mark.parametrize(
    ("content", "about"),
    [
        (b'{"format": "osscl str', ["column"]),  # where the JSON ends
        (b"", ["column"]),
        (b"\xff\xfe\x00\x81", ["0xff"]),
        (b"[" * 100_000, ["recursion"]),
        (b"[1, 2]", ["'osscl stream 1'"]),
        (b'{"seed": 1}', ["'osscl stream 1'"]),
        (b'{"format": "osscl stream 99"}', ["'osscl stream 99'", "'osscl stream 1'"]),
        (b'{"format": "osscl stream 1", "seed": 0}', ["content", "held_out", "pool", "scenario", "steps"]),
        (None, ["no"]),
    ],
)
def test_a_file_that_is_not_a_stream_is_refused_in_one_line(tmp_path, content, about):
    path = tmp_path / "stream.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=naming(path, *about)) as caught:
        read_manifest(path)
    assert "\n" not in str(caught.value)


def first_of(source: int):
    """The index of the first row of a set in step 2."""
    return manifest()["steps"][1]["sources"].index(source)


# Where the damage is, what is put there, and what the error names.
DAMAGES = [
    (("steps", 1, "unlabeled", first_of(0)), 80, "step 2"),
    (("steps", 1, "unlabeled", first_of(2)), 30, ["step 2", "far"]),  # home has 80, far has 30
    (("steps", 1, "unlabeled", 0), -1, "step 2"),
    (("steps", 1, "unlabeled"), [1, 2], "step 2"),
    (("steps", 1, "unlabeled"), [2**70], "step 2"),
    (("steps", 1, "labeled", 0), 80, "step 2"),
    (("steps", 1, "labeled", 0), -1, "step 2"),
    (("steps", 1, "labeled"), "x", "step 2"),
    (("steps", 1, "sources", 0), 3, "step 2"),
    (("steps", 1, "sources"), None, "step 2"),
    (("steps", 1, "new_classes"), 3, "step 2"),
    (("steps", 1, "asked"), "many", "step 2"),
    (("steps", 1), {}, "step 2"),
    (("steps", 1, "notes"), {}, ["step 2", "'notes'"]),
    (("steps", 0), [1], "step 1"),
    (("steps", 0), None, "step 1"),
    (("steps",), [], "stream"),
    (("held_out", 0), 80, ["pool", "home"]),
    (("held_out", 0), "x", "held-out"),
    (("held_out",), [], ["step", "held-out"]),
    (("held_out", 0), manifest()["pool"][0], "holds"),
    (("pool", 0), -1, ["pool", "home"]),
    (("pool", 0), 1.5, "pool"),
    (("pool", 0), manifest()["steps"][0]["labeled"][0], ["pool", "twice"]),
    (("steps", 0, "labeled", 0), manifest()["steps"][0]["labeled"][1], ["labelled", "twice"]),
    (("steps", 1, "unlabeled", slice(0, 2)), [5, 5], "step 2"),
    (("steps", 0, "labeled"), manifest()["steps"][1]["labeled"], ["step 1", "labels", "classes"]),
    (("steps", 1), manifest()["steps"][0], ["step 2", "labels", "classes"]),
    (("validation",), False, ["validation", "scenario"]),
    (("validation",), 1, ["stream.json", "validation", "bool"]),
    (("content",), {}, ["content", "home"]),
    (("content", "home"), [1], ["home", "home-content", "[1]"]),
    (("seed",), "x", ["stream.json", "seed", "int"]),
]


@pytest.mark.parametrize(("where", "value", "about"), DAMAGES)
def test_a_damaged_stream_is_refused_by_place(tmp_path, where, value, about):
    broken = manifest()
    part = broken
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    path = tmp_path / "stream.json"
    path.write_text(json.dumps(broken))
    with pytest.raises(DataError, match=naming(*[about] if isinstance(about, str) else about)):
        from_manifest(read_manifest(path), BANKS)


def test_a_mutated_stream_is_read_or_refused(tmp_path):
    rng, path = random.Random(0), tmp_path / "stream.json"
    odd = [None, True, -1, 10**30, 1.5, "x", [], {}, [[]], {"a": 1}, [None], "home", float("nan")]
    for _ in range(CASES):
        part = broken = manifest()
        while rng.random() < 0.8 and isinstance(part, dict | list) and part:
            key = rng.choice(list(part) if isinstance(part, dict) else range(len(part)))
            parent, part = part, part[key]
        if part is not broken:
            parent[key] = rng.choice(odd)
        path.write_text(json.dumps(broken))
        with contextlib.suppress(DataError, SpecError):
            assert len(from_manifest(read_manifest(path), BANKS)) == 2


def test_a_row_that_is_drawn_twice_in_a_step_is_refused():
    broken = manifest()
    for key in ("unlabeled", "sources"):
        broken["steps"][1][key].append(broken["steps"][1][key][0])
    with pytest.raises(DataError, match=naming("step 2", "twice")):
        from_manifest(broken, BANKS)


def test_an_invalid_scenario_is_refused_by_field():
    broken = manifest()
    broken["scenario"]["memry"] = 3
    with pytest.raises(SpecError, match=naming("'scenario.memry'", "memory")):
        from_manifest(broken, BANKS)


def test_the_digest_depends_on_the_rows_and_not_on_the_rest_of_the_spec():
    other = manifest()
    other["scenario"]["memory"] = 0
    digests = [rows_digest(to_manifest(stream())), rows_digest(manifest()), rows_digest(other)]
    assert len({*digests, rows_digest(to_manifest(from_manifest(manifest(), BANKS)))}) == 1


def test_other_rows_or_another_order_have_another_digest():
    others = [manifest(seed=1), manifest(related=19), *(manifest() for _ in range(9))]
    for other, key in zip(others[2:6], ("labeled", "unlabeled", "sources", "new_classes"), strict=True):
        other["steps"][1][key].reverse()
    pool, held_out, content, swapped, on_test = others[6:]
    pool["pool"].pop()  # a reference may be trained on it
    held_out["held_out"].pop()
    content["content"]["home"] = "other pixels"
    swapped["scenario"]["peripheral"].reverse()  # the same numbers now mean rows of other sets
    on_test["validation"] = False  # and here rows of the other split
    assert len({rows_digest(one) for one in (manifest(), *others)}) == 12
