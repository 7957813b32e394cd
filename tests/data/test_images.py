import numpy as np
import pytest
import torch

from osscl.data.images import (
    Decoded,
    ImageBank,
    Labeled,
    canonical,
    columns_of,
    concat,
    content_hash,
    in_canonical_order,
)
from refusals import naming


def random_rows(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, 3, 4, 4), dtype=np.uint8), rng.integers(0, 5, n)


def test_canonical_order_forgets_the_order_of_the_rows():
    images, labels = random_rows()
    shuffle = np.random.default_rng(1).permutation(len(labels))
    first, second = canonical(images, labels), canonical(images[shuffle], labels[shuffle])
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])


def test_canonical_order_is_by_label_and_keeps_every_pair():
    images, labels = random_rows()
    ordered_images, ordered_labels = canonical(images, labels)
    assert (np.diff(ordered_labels) >= 0).all()
    pairs = {(image.tobytes(), label) for image, label in zip(images, labels, strict=True)}
    assert pairs == {(image.tobytes(), label) for image, label in zip(ordered_images, ordered_labels, strict=True)}


def test_canonical_order_of_nothing_is_nothing():
    images, labels = canonical(np.empty((0, 3, 4, 4), np.uint8), np.empty(0, np.int64))
    assert images.shape == (0, 3, 4, 4)
    assert labels.shape == (0,)


def test_one_pixel_or_one_label_changes_the_content_hash():
    images, labels = random_rows()
    base = content_hash(Decoded(images, labels, images, labels, ()))
    other_images, other_labels = images.copy(), labels.copy()
    other_images[3, 0, 0, 0] ^= 1
    other_labels[3] += 1
    assert len(base) == 32
    assert content_hash(Decoded(other_images, labels, images, labels, ())) != base
    assert content_hash(Decoded(images, labels, images, other_labels, ())) != base


def test_moving_a_row_from_train_to_test_changes_the_content_hash():
    images, labels = random_rows()
    one = in_canonical_order(Decoded(images[:20], labels[:20], images[20:], labels[20:], ()))
    two = in_canonical_order(Decoded(images[:21], labels[:21], images[21:], labels[21:], ()))
    assert content_hash(one) != content_hash(two)


def test_a_label_becomes_its_place_among_the_classes():
    assert columns_of(torch.tensor([7, 0, 3, 7]), [3, 7, 0]).tolist() == [1, 2, 0, 1]
    assert columns_of(torch.empty(0, dtype=torch.long), []).tolist() == []


@pytest.mark.parametrize(("label", "classes"), [(3, []), (5, [0, 6]), (9, [0, 6])])
def test_a_label_of_another_class_is_refused(label, classes):
    with pytest.raises(ValueError, match=naming(label, classes)):
        columns_of(torch.tensor([*classes, label]), classes)


def test_rows_and_concat_keep_images_with_their_labels():
    labels = torch.arange(6)
    images = labels.to(torch.uint8)[:, None, None, None].expand(6, 1, 2, 2)
    whole = Labeled(images, labels)
    turned = concat(whole.rows(torch.tensor([4, 5])), whole.rows(torch.tensor([1])))
    assert len(turned) == 3
    assert turned.labels.tolist() == [4, 5, 1]
    assert turned.images[:, 0, 0, 0].tolist() == [4, 5, 1]


def test_a_bank_moves_whole():
    rows = Labeled(torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    bank = ImageBank("toy", rows, rows, ("a",), "00").to("meta")
    assert {part.device.type for part in (bank.train.images, bank.train.labels, bank.test.images)} == {"meta"}
    assert bank.name == "toy"
