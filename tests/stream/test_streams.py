from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from osscl.data.images import ImageBank, Labeled
from osscl.errors import DataError, SpecError
from osscl.stream.build import Step, StepRows, Stream, Truth, build_stream
from osscl.stream.scenario import ScenarioSpec
from refusals import naming

PER_CLASS, TEST_PER_CLASS, CLASSES = 40, 5, 6
FOREIGN = {"away": 100, "far": 200}  # a foreign row's pixel, whatever its class


def painted(labels: Tensor, value: Tensor) -> Labeled:
    """Images whose first pixel is `value` and whose second is the row number, to recognise them by."""
    images = torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8)
    images[:, 0, 0, 0] = value.to(torch.uint8)
    images[:, 0, 0, 1] = torch.arange(len(labels)).to(torch.uint8)
    return Labeled(images, labels)


def main_bank(per_class: int = PER_CLASS, classes: int = CLASSES) -> ImageBank:
    labels, test = torch.arange(classes).repeat(per_class), torch.arange(classes).repeat(TEST_PER_CLASS)
    names = tuple(f"class {c}" for c in range(classes))
    return ImageBank("home", painted(labels, labels), painted(test, test + 50), names, "home-content")


def foreign_bank(name: str, n: int = 60) -> ImageBank:
    part = painted(torch.zeros(n, dtype=torch.long), torch.full((n,), FOREIGN[name]))
    return ImageBank(name, part, part, ("thing",), f"{name}-content")


BANKS = {"home": main_bank(), "away": foreign_bank("away"), "far": foreign_bank("far")}
SPEC = ScenarioSpec(
    "home", ("away",), labeled_fraction=0.1, memory=6, classes_per_step=(2, 2, 2), related=30, unrelated=20
)


def stream_of(spec: ScenarioSpec = SPEC, seed: int = 0, row_cap: int | None = None, **changes) -> Stream:
    return build_stream(replace(spec, **changes), BANKS, seed, row_cap)


def pixels(images: Tensor) -> Tensor:
    return images[:, 0, 0, 0].long()


def row_pixels(images: Tensor) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in images[:, 0, 0, :2].tolist()]


def related_classes(stream: Stream, t: int) -> set[int]:
    """The main classes whose pixels appear in U_t."""
    return {value for value in pixels(stream.step(t).unlabeled).tolist() if value < CLASSES}


def introduced(stream: Stream, t: int) -> set[int]:
    return {c for rows in stream.steps[: t + 1] for c in rows.new_classes}


EVERY = set(range(CLASSES))


# ----- regimes


def before(stream: Stream, t: int) -> set[int]:
    """The classes of earlier steps, or of the first one at t = 0."""
    return introduced(stream, max(t - 1, 0))


def after(stream: Stream, t: int) -> set[int]:
    return EVERY - introduced(stream, t - 1) if t else EVERY


@pytest.mark.parametrize(
    ("changes", "classes", "foreign"),
    [
        ({"regime": "osscl"}, lambda *_: EVERY, 20),
        ({"regime": "only_supervised", "related": 0, "unrelated": 0}, lambda *_: set(), 0),
        ({"regime": "after", "unrelated": 0}, after, 0),
        ({"regime": "before", "unrelated": 0}, before, 0),
        ({"regime": "only_related", "unrelated": 0}, lambda *_: EVERY, 0),
        ({"regime": "only_unrelated", "related": 0}, lambda *_: set(), 20),
        ({"regime": "osscl", "unrelated": 0}, lambda *_: EVERY, 0),
    ],
)
def test_each_regime_shows_its_classes_and_foreign_images_at_every_step(changes, classes, foreign):
    stream = stream_of(**changes)
    for t in range(3):
        values = pixels(stream.step(t).unlabeled)
        assert related_classes(stream, t) == classes(stream, t)
        assert (values == FOREIGN["away"]).sum() == foreign
        assert set(values.tolist()) <= {*EVERY, FOREIGN["away"]}
        assert len(values) == len(stream.truth(t).labels) == stream.steps[t].asked


def test_before_can_skip_the_first_step():
    stream = stream_of(regime="before", unrelated=0, before_first="skip")
    assert stream.step(0).unlabeled.shape == (0, 1, 8, 8)
    assert stream.steps[0].asked == 30
    assert related_classes(stream, 1) == introduced(stream, 0)


@pytest.mark.parametrize(("share", "count"), [(0.5, 3), (0.01, 1), (0.34, 2), (1.0, 6)])
def test_non_iid_shows_a_share_of_all_classes_at_each_step(share, count):
    stream = stream_of(regime="non_iid", class_share=share)
    for t in range(3):
        assert len(related_classes(stream, t)) == count
        assert (pixels(stream.step(t).unlabeled) == FOREIGN["away"]).sum() == 20


def test_non_iid_draws_other_classes_at_each_step_and_seed():
    streams = [stream_of(regime="non_iid", class_share=0.34, seed=seed) for seed in range(4)]
    shown = {frozenset(related_classes(stream, t)) for stream in streams for t in range(3)}
    assert len(shown) > 4
    assert {c for classes in shown for c in classes} == EVERY


# ----- classes and labels


def test_every_class_appears_once_and_labelled_rows_are_of_the_new_classes():
    stream = stream_of()
    assert sorted(c for rows in stream.steps for c in rows.new_classes) == list(range(CLASSES))
    for t in range(3):
        step = stream.step(t)
        assert (step.index, len(step.new_classes)) == (t, 2)
        assert set(pixels(step.labeled.images).tolist()) == set(step.new_classes)
        assert torch.equal(pixels(step.labeled.images), step.labeled.labels)


@pytest.mark.parametrize(
    ("fraction", "per_class", "count"),
    [(0.1, None, 4), (0.25, None, 10), (0.0001, None, 1), (0.5, None, 20), (None, 1, 1), (None, 17, 17)],
)
def test_a_fraction_or_a_count_of_each_class_is_labelled(fraction, per_class, count):
    stream = stream_of(labeled_fraction=fraction, labels_per_class=per_class, related=10)
    for t in range(3):
        labels = pixels(stream.step(t).labeled.images)
        assert [int((labels == c).sum()) for c in stream.steps[t].new_classes] == [count, count]


def test_a_fraction_of_one_labels_every_row():
    stream = stream_of(labeled_fraction=1.0, related=0)
    assert sum(len(rows.labeled) for rows in stream.steps) == CLASSES * PER_CLASS
    assert len(stream.pool) == 0


def test_steps_can_have_different_numbers_of_classes():
    stream = stream_of(classes_per_step=(1, 3, 2))
    assert [len(rows.new_classes) for rows in stream.steps] == [1, 3, 2]
    assert [len(set(pixels(stream.step(t).labeled.images).tolist())) for t in range(3)] == [1, 3, 2]


def test_classes_outside_a_subset_appear_nowhere():
    stream = stream_of(classes_per_step=(2, 1), memory=3)
    chosen = introduced(stream, 1)
    assert len(chosen) == 3
    assert len(stream.held_out) == 3 * TEST_PER_CLASS
    for t in range(2):
        assert related_classes(stream, t) == chosen
        assert set(pixels(stream.evaluation(t).images).tolist()) == {c + 50 for c in stream.steps[t].new_classes}
    assert set(BANKS["home"].train.labels[stream.pool].tolist()) == chosen
    others = [introduced(stream_of(classes_per_step=(2, 1), memory=3, seed=seed), 1) for seed in range(1, 5)]
    assert any(other != chosen for other in others)


# ----- unlabelled rows


def test_each_peripheral_set_contributes_its_number_of_rows():
    stream = stream_of(peripheral=("away", "far"))
    for t in range(3):
        values = pixels(stream.step(t).unlabeled)
        assert [(values == FOREIGN[name]).sum().item() for name in ("away", "far")] == [20, 20]
        assert (values < CLASSES).sum() == 30
        assert stream.steps[t].asked == 70


def test_sources_are_shuffled_together():
    values = pixels(stream_of().step(0).unlabeled)
    foreign = (values == FOREIGN["away"]).nonzero().squeeze(1)
    assert foreign.min() < 15 and foreign.max() > 35
    changes = (values[1:] != values[:-1]).sum()
    assert changes > 25  # nor are classes in blocks


def test_labelled_rows_pool_and_validation_rows_are_disjoint_and_are_all_rows():
    stream = stream_of(validation_share=0.2)
    labeled = torch.cat([rows.labeled for rows in stream.steps])
    together = torch.cat((labeled, stream.pool, stream.held_out))
    assert sorted(together.tolist()) == list(range(CLASSES * PER_CLASS))


@pytest.mark.parametrize("validation_share", [0.0, 0.2])
def test_no_image_of_u_t_is_labelled_or_held_out_at_any_step(validation_share):
    stream = stream_of(validation_share=validation_share)
    labeled = {pair for t in range(3) for pair in row_pixels(stream.step(t).labeled.images)}
    held_out = {pair for t in range(3) for pair in row_pixels(stream.evaluation(t).images)}
    for t in range(3):
        unlabeled = set(row_pixels(stream.step(t).unlabeled))
        assert not unlabeled & labeled
        assert not unlabeled & held_out
        assert not labeled & held_out


def test_rows_are_drawn_once_within_a_step_and_independently_between_steps():
    stream = stream_of(related=200, unrelated=55)
    drawn = [row_pixels(stream.step(t).unlabeled) for t in range(3)]
    assert [len(set(pairs)) for pairs in drawn] == [255, 255, 255]
    for source in (0, 1):
        mine = [set(rows.unlabeled[rows.sources == source].tolist()) for rows in stream.steps]
        assert mine[0] & mine[1]  # 3 x 200 of 216 rows cannot be disjoint
        assert mine[0] != mine[1] != mine[2]


def test_a_peripheral_set_keeps_its_draws_when_another_joins():
    alone, joined = stream_of(), stream_of(peripheral=("far", "away"))
    for one, two in zip(alone.steps, joined.steps, strict=True):
        away, again, far = one.unlabeled[one.sources == 1], *(two.unlabeled[two.sources == k] for k in (2, 1))
        assert set(away.tolist()) == set(again.tolist()) != set(far.tolist())


@pytest.mark.parametrize("regime", ["osscl", "only_related", "non_iid"])
def test_requesting_more_related_rows_than_available_is_refused(regime):
    changes = {"unrelated": 0, "class_share": 0.5 if regime == "non_iid" else 1.0}
    available = 108 if regime == "non_iid" else 216
    assert len(stream_of(regime=regime, related=available, **changes).step(0).unlabeled) == available
    with pytest.raises(SpecError, match=naming("related", available, available + 1)):
        stream_of(regime=regime, related=available + 1, **changes)


@pytest.mark.parametrize("regime", ["osscl", "only_unrelated", "after"])
def test_requesting_more_unrelated_rows_than_available_is_refused(regime):
    related = 0 if regime == "only_unrelated" else 30
    assert len(stream_of(regime=regime, related=related, unrelated=60).steps[0].unlabeled) == related + 60
    with pytest.raises(SpecError, match=naming("unrelated", 60, "away", 61)):
        stream_of(regime=regime, related=related, unrelated=61)


@pytest.mark.parametrize(("regime", "available"), [("after", [100, 100, 72]), ("before", [72, 72, 100])])
def test_after_and_before_draw_what_is_available_and_record_the_request(regime, available):
    stream = stream_of(regime=regime, related=100, unrelated=0)
    assert [len(stream.step(t).unlabeled) for t in range(3)] == available
    assert [rows.asked for rows in stream.steps] == [100, 100, 100]


def test_peripheral_images_of_another_shape_are_refused():
    wide = Labeled(torch.zeros(60, 3, 8, 8, dtype=torch.uint8), torch.zeros(60, dtype=torch.long))
    banks = BANKS | {"away": ImageBank("away", wide, wide, ("thing",), "x")}
    with pytest.raises(DataError, match=naming("home", "away", (1, 8, 8), (3, 8, 8))):
        build_stream(SPEC, banks, 0)


def test_the_whole_pool_is_every_row_that_may_ever_be_drawn():
    stream = stream_of(peripheral=("away", "far"), validation_share=0.1)
    values = pixels(stream.whole_pool())
    assert (values < CLASSES).sum() == len(stream.pool) == CLASSES * (40 - 4 - 4)
    assert [(values == FOREIGN[name]).sum().item() for name in ("away", "far")] == [60, 60]
    assert (pixels(stream_of(unrelated=0).whole_pool()) < CLASSES).all()
    assert set(pixels(stream_of(related=0).whole_pool()).tolist()) == {FOREIGN["away"]}
    assert stream_of(related=0, unrelated=0).whole_pool().shape == (0, 1, 8, 8)


# ----- held-out rows


def test_without_a_validation_split_all_test_rows_of_the_classes_are_held_out():
    stream = stream_of()
    assert not stream.validation
    for t in range(3):
        part = stream.evaluation(t)
        assert len(part) == 2 * TEST_PER_CLASS
        assert torch.equal(pixels(part.images), part.labels + 50)  # 50 and up: pixels of the test part
        assert set(part.labels.tolist()) == set(stream.steps[t].new_classes)


def test_a_validation_split_is_taken_from_the_pool_and_keeps_the_labelled_rows():
    plain, held = stream_of(), stream_of(validation_share=0.2)
    for t in range(3):
        assert torch.equal(plain.steps[t].labeled, held.steps[t].labeled)
    assert set(held.held_out.tolist()) <= set(plain.pool.tolist())
    assert set(held.pool.tolist()) == set(plain.pool.tolist()) - set(held.held_out.tolist())
    assert torch.bincount(BANKS["home"].train.labels[held.held_out]).tolist() == [8] * CLASSES


def test_with_a_validation_split_no_test_row_is_used():
    stream = stream_of(validation_share=0.2)
    assert stream.validation
    for t in range(3):
        part = stream.evaluation(t)
        assert len(part) == 16
        assert torch.equal(pixels(part.images), part.labels)  # below 50: pixels of the training part


def test_if_all_rows_are_labelled_the_validation_split_is_taken_from_them():
    stream = stream_of(labeled_fraction=1.0, related=0, validation_share=0.2)
    assert [len(rows.labeled) for rows in stream.steps] == [64] * 3
    assert len(stream.held_out) == 48
    labeled = torch.cat([rows.labeled for rows in stream.steps])
    assert not set(labeled.tolist()) & set(stream.held_out.tolist())


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"labeled_fraction": 0.9, "validation_share": 0.2}, ["labeled_fraction", "class 0", 40, 8, 32, 36]),
        ({"labeled_fraction": 1.0, "validation_share": 0.999}, ["labeled_fraction", "class 0", 40]),
        ({"labeled_fraction": None, "labels_per_class": 41}, ["labels_per_class", "class 0", 40, 41]),
        ({"classes_per_step": (4, 3), "memory": 7}, ["classes_per_step", 6, 7]),
        ({"row_cap": 1}, ["row_cap=1"]),
    ],
)
def test_a_stream_that_cannot_be_built_says_which_field_to_change(changes, about):
    with pytest.raises(SpecError, match=naming(*about)):
        stream_of(**{"related": 0, **changes})


# ----- imbalance and caps


def test_imbalance_is_the_largest_class_over_the_smallest_with_an_exponential_between():
    stream = stream_of(imbalance=8.0, labeled_fraction=0.1, related=10)
    rows = torch.cat([*(rows.labeled for rows in stream.steps), stream.pool])
    counts = torch.bincount(BANKS["home"].train.labels[rows], minlength=CLASSES)
    assert sorted(counts.tolist()) == [round(40 * 8 ** -(k / 5)) for k in (5, 4, 3, 2, 1, 0)]
    labels = torch.bincount(BANKS["home"].train.labels[torch.cat([r.labeled for r in stream.steps])])
    assert labels.tolist() == [max(1, round(0.1 * n)) for n in counts.tolist()]


def test_which_class_is_the_largest_depends_on_the_seed():
    largest = set()
    for seed in range(6):
        stream = stream_of(imbalance=8.0, related=10, seed=seed)
        rows = torch.cat([*(rows.labeled for rows in stream.steps), stream.pool])
        largest.add(int(torch.bincount(BANKS["home"].train.labels[rows]).argmax()))
    assert len(largest) > 1


def test_a_row_cap_bounds_u_t_and_the_held_out_rows_and_nothing_else():
    full, capped = stream_of(), stream_of(row_cap=12)
    for t in range(3):
        assert len(capped.step(t).unlabeled) == 12
        assert torch.equal(capped.steps[t].unlabeled, full.steps[t].unlabeled[:12])
        assert torch.equal(capped.steps[t].sources, full.steps[t].sources[:12])
        assert torch.equal(capped.steps[t].labeled, full.steps[t].labeled)
        assert capped.steps[t].asked == 50
    assert len(capped.held_out) == 12
    assert set(capped.held_out.tolist()) < set(full.held_out.tolist())
    assert not torch.equal(capped.held_out, full.held_out[:12])  # a sample, not the first rows
    assert not torch.equal(capped.held_out, stream_of(row_cap=12, seed=1).held_out)


# ----- seeds


def rows_of(stream: Stream) -> list[list[int]]:
    steps = [(rows.labeled, rows.sources, rows.unlabeled, torch.tensor(rows.new_classes)) for rows in stream.steps]
    return [part.tolist() for step in steps for part in step] + [stream.held_out.tolist(), stream.pool.tolist()]


@pytest.mark.parametrize("regime", ["osscl", "after", "before", "non_iid"])
def test_the_stream_depends_on_the_seed_and_not_on_the_global_generator(regime):
    changes = {"regime": regime, "class_share": 0.5, "validation_share": 0.1}
    torch.manual_seed(1)
    one = stream_of(**changes)
    torch.manual_seed(2)
    assert rows_of(one) == rows_of(stream_of(**changes))


def test_another_seed_changes_class_order_labels_and_draws():
    one, two = stream_of(validation_share=0.1), stream_of(validation_share=0.1, seed=1)
    assert [rows.new_classes for rows in one.steps] != [rows.new_classes for rows in two.steps]
    labeled = [{row for rows in stream.steps for row in rows.labeled.tolist()} for stream in (one, two)]
    assert labeled[0] != labeled[1]
    assert set(one.held_out.tolist()) != set(two.held_out.tolist())
    for t in range(3):
        places = []  # of the rows drawn, in the pool: pools differ, so rows differ in any case
        for stream in (one, two):
            drawn = stream.steps[t].unlabeled[stream.steps[t].sources == 0]
            places.append(set(torch.searchsorted(stream.pool, drawn).tolist()))
        assert places[0] != places[1]
        foreign = [set(s.steps[t].unlabeled[s.steps[t].sources == 1].tolist()) for s in (one, two)]
        assert foreign[0] != foreign[1]


def test_labelled_rows_and_class_order_do_not_depend_on_the_unlabelled_data():
    one, two = stream_of(), stream_of(regime="after", related=7, unrelated=0, memory=0)
    for a, b in zip(one.steps, two.steps, strict=True):
        assert a.new_classes == b.new_classes
        assert torch.equal(a.labeled, b.labeled)


# ----- what a learner may know


def test_truth_distinguishes_seen_unseen_and_foreign_rows():
    stream = stream_of(peripheral=("away", "far"))
    for t in range(3):
        truth, values = stream.truth(t), pixels(stream.step(t).unlabeled)
        home = values < CLASSES
        assert torch.equal(truth.labels, torch.where(home, values, -1))
        assert torch.equal(truth.foreign, ~home)
        assert torch.equal(truth.related, home)
        assert truth.seen.tolist() == [value in introduced(stream, t) for value in values.tolist()]
        assert truth.unseen.tolist() == [value in EVERY - introduced(stream, t) for value in values.tolist()]
    assert not stream.truth(2).unseen.any()


def test_a_step_has_no_field_that_says_where_a_row_came_from():
    assert {field.name for field in fields(Step)} == {"index", "new_classes", "labeled", "unlabeled", "further"}
    step = stream_of().step(1)
    assert step.further is None  # only agents trained on own images get more labels of earlier classes
    assert isinstance(step.unlabeled, Tensor)  # images alone, no labels beside them
    assert step.unlabeled.dtype == torch.uint8
    hidden = {field.name for kind in (Truth, StepRows) for field in fields(kind)} - {f.name for f in fields(Step)}
    assert {"seen", "unseen", "foreign", "sources", "labels"} <= hidden


def test_a_step_is_a_copy_that_cannot_change_the_banks():
    stream = stream_of()
    step = stream.step(0)
    step.labeled.images.fill_(99)
    step.unlabeled.fill_(99)
    again = stream.step(0)
    assert torch.equal(pixels(again.labeled.images), again.labeled.labels)
    assert 99 not in pixels(again.unlabeled)


# ----- specs


@pytest.mark.parametrize(
    ("wrong", "about"),
    [
        ({"labeled_fraction": 0.0}, ["labeled_fraction", 0.0]),
        ({"labeled_fraction": 1.01}, ["labeled_fraction", 1.01]),
        ({"labeled_fraction": 0.1, "labels_per_class": 3}, ["labeled_fraction", "labels_per_class"]),
        ({"labeled_fraction": None}, ["labeled_fraction", "labels_per_class"]),
        ({"labels_per_class": 0, "labeled_fraction": None}, ["labels_per_class"]),
        ({"memory": 5}, ["memory", 6, 5]),
        ({"memory": -1}, ["memory", 6, -1]),
        ({"classes_per_step": ()}, ["classes_per_step"]),
        ({"classes_per_step": (2, 0)}, ["classes_per_step"]),
        ({"validation_share": 1.0}, ["validation_share"]),
        ({"validation_share": -0.1}, ["validation_share"]),
        ({"class_share": 0.0}, ["class_share"]),
        ({"class_share": 1.1}, ["class_share"]),
        ({"imbalance": 0.5}, ["imbalance"]),
        ({"related": -1}, ["related"]),
        ({"unrelated": -1}, ["unrelated"]),
        ({"peripheral": ("away", "away")}, ["peripheral"]),
        ({"peripheral": ("home",)}, ["peripheral"]),
        ({"before_first": "none"}, ["before_first", "'none'"]),
        ({"regime": "osccl"}, ["regime", "'osccl'", "'osscl'"]),
        ({"regime": "only_supervised", "unrelated": 0}, ["related", "only_supervised"]),
        ({"regime": "only_unrelated"}, ["related", "only_unrelated"]),
        ({"regime": "only_related"}, ["unrelated", "only_related"]),
    ],
)
def test_an_invalid_scenario_is_refused_by_field(wrong, about):
    with pytest.raises(SpecError, match=naming(*about)):
        replace(SPEC, **wrong)


def test_no_memory_and_a_slot_for_each_class_are_allowed():
    assert [replace(SPEC, memory=memory).memory for memory in (0, 6)] == [0, 6]


def test_an_unknown_data_set_gets_a_suggestion():
    with pytest.raises(SpecError, match=naming("cifar1000", "cifar100")):
        ScenarioSpec("cifar1000", labeled_fraction=0.1)


def test_defaults_come_from_the_data_set():
    spec = ScenarioSpec("cifar100", ("cifar10",), labeled_fraction=0.05, memory=500)
    assert (spec.classes_per_step, spec.related, spec.unrelated) == ((10,) * 10, 9000, 9000)
    assert (spec.steps, spec.classes) == (10, 100)
    uneven = ScenarioSpec("caltech256", labeled_fraction=0.1)
    assert uneven.classes_per_step == (16,) * 16 + (1,)
    assert ScenarioSpec("cifar100", ("cifar10",), labeled_fraction=0.05, regime="after").unrelated == 0
    assert ScenarioSpec("cifar100", labeled_fraction=1.0).related == 0
    nothing = ScenarioSpec("cifar100", ("cifar10",), labeled_fraction=0.1, regime="only_supervised")
    assert (nothing.related, nothing.unrelated) == (0, 0)


def test_natural_order_is_that_of_the_set_at_every_seed_and_leaves_labels_unchanged():
    for seed in (0, 1):
        natural, usual = stream_of(seed=seed, class_order="natural"), stream_of(seed=seed)
        order = [c for rows in natural.steps for c in rows.new_classes]
        assert order == sorted(order) != [c for rows in usual.steps for c in rows.new_classes]
        labeled = [sorted(row for rows in one.steps for row in rows.labeled.tolist()) for one in (natural, usual)]
        assert labeled[0] == labeled[1]
