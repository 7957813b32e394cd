"""Labels whose images are gone: class means and one covariance that follow the network; a detector built on them."""

import pytest
import torch

from osscl.learn.linear_head import no_missing_rows, weighted_ridge
from osscl.methods.class_statistics import (
    KNOWN,
    SOFTNESS,
    ClassStatistics,
    background_of,
    detector_of,
    known_threshold,
    summarize,
)
from osscl.seeding import seeded


def normal(*shape, name="x"):
    return torch.randn(*shape, generator=seeded(0, name), dtype=torch.float64)


def summary(x, targets, labels, missing=None):
    return summarize(x, targets, torch.tensor(labels), missing or no_missing_rows(x, len(labels)))


def of_one_spread(counts, d=5):
    """Rows of classes that have the same spread around their means."""
    about = normal(max(counts), d, name="about")
    parts = [normal(1, d, name=f"mean {c}") + about[:n] - about[:n].mean(0) for c, n in enumerate(counts)]
    return torch.cat(parts), torch.repeat_interleave(torch.tensor(counts))


def assert_same(one, other, **tolerance):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def test_statistics_are_the_class_means_and_the_mean_covariance():
    x, targets = normal(30, 4), torch.arange(30) % 3
    found, parts = summary(x, targets, [10, 10, 10]), [x[targets == c] for c in range(3)]
    torch.testing.assert_close(found.means, torch.stack([part.mean(0) for part in parts]))
    torch.testing.assert_close(found.spread, sum(part.T.cov(correction=0) for part in parts) / 3)


def test_missing_rows_count_as_if_they_were_available():
    """Every row of two classes occurs twice, and one of each pair goes missing; a third class is new."""
    x, targets = of_one_spread([7, 7, 9])
    old, new = targets < 2, targets == 2
    everything, of = torch.cat((x[old], x[old], x[new])), torch.cat((targets[old], targets[old], targets[new]))
    missing = summary(everything[of < 2], of[of < 2], [14, 14]).missing(torch.tensor([7, 7, 9]), views=1)
    assert missing.rows.tolist() == [7, 7, 0]
    assert_same(weighted_ridge(x, targets, 3, 2.0, missing), weighted_ridge(everything, of, 3, 2.0))
    after, whole = summary(x, targets, [14, 14, 9], missing), summary(everything, of, [14, 14, 9])
    assert_same((after.means, after.spread), (whole.means, whole.spread))


def test_a_mean_remains_that_of_all_labels_however_often_some_are_seen_again():
    x, targets = normal(20, 4), torch.arange(20) % 2
    kept = torch.arange(4)
    first = found = summary(x, targets, [10, 10])
    for _ in range(100):
        found = summary(x[kept], targets[kept], [10, 10], found.missing(torch.tensor([2, 2]), views=1))
    torch.testing.assert_close(found.means, first.means)
    assert found.labels.tolist() == [10, 10]


def test_a_class_with_all_images_available_is_where_they_are_now():
    x, targets = normal(20, 4), torch.arange(20) % 2
    before = summary(x, targets, [10, 10])
    after = summary(x + 3, targets, [10, 10], before.missing(torch.tensor([10, 10]), views=1))
    torch.testing.assert_close(after.means, before.means + 3)


def test_available_rows_are_not_missing():
    x, targets = of_one_spread([4, 4])
    found = summary(x, targets, [4, 4])
    missing = found.missing(torch.tensor([4, 4]), views=3)
    assert_same(weighted_ridge(x, targets, 2, 1.0, missing), weighted_ridge(x, targets, 2, 1.0))
    assert found.missing(torch.tensor([1, 4, 7]), views=3).rows.tolist() == [9, 0, 0]


def test_statistics_move_as_unlabelled_rows_move():
    before, turn, shift = normal(4000, 5), normal(5, 5, name="turn"), normal(5, name="shift")
    found = ClassStatistics(torch.tensor([3, 3]), normal(2, 5, name="means"), torch.eye(5, dtype=torch.float64))
    moved = found.moved(before, before @ turn + shift)
    torch.testing.assert_close(moved.means, found.means @ turn + shift, rtol=0, atol=1e-3)
    torch.testing.assert_close(moved.spread, turn.T @ turn, rtol=0, atol=1e-3)
    still = found.moved(before, before)
    assert_same((still.means, still.spread), (found.means, found.spread))


def test_directions_without_rows_do_not_move():
    before = torch.zeros(2, 3, dtype=torch.float64)
    before[0, 0], before[1, 0] = 1, -1
    found = ClassStatistics(torch.tensor([3]), torch.ones(1, 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
    moved = found.moved(before, 3 * before)
    assert 2.5 < moved.means[0, 0] < 3 and moved.means[0, 1:].tolist() == [1, 1]


def test_further_labels_join_the_mean_weighted_by_their_number():
    x, targets = normal(20, 4), torch.arange(20) % 2
    views = torch.cat((x[12:], x[12:]))  # each plain image and one copy of it
    joined = summary(x[:12], targets[:12], [6, 6]).joined(views, targets[12:], views=2)
    assert joined.labels.tolist() == [10, 10]
    torch.testing.assert_close(joined.means, summary(x, targets, [10, 10]).means)


# ----- the detector


def two_classes(labels=(5, 5)):
    means = torch.tensor([[1.0, 0, 0], [0, 1.0, 0]], dtype=torch.float64)
    return ClassStatistics(torch.tensor(labels), means, 0.01 * torch.eye(3, dtype=torch.float64))


def test_a_score_is_the_relative_mahalanobis_distance():
    statistics, world, x = two_classes((5, 10)), normal(500, 3, name="world"), normal(7, 3)
    soft = SOFTNESS * torch.eye(3, dtype=torch.float64)
    spread = statistics.spread * 20 / 17  # Bessel's correction, averaged over classes: 1 - (1/5 + 1/10) / 2
    within, around = (torch.linalg.inv(part + soft) for part in (spread, world.T.cov(correction=0)))

    def distance(offset, inverse):
        return torch.einsum("ni,ij,nj->n", offset, inverse, offset)

    to_means = [distance(x - mean, within) / (1 + 1 / n) for mean, n in zip(statistics.means, (5, 10), strict=True)]
    gain = (distance(x - world.mean(0), around) - torch.stack(to_means).amin(0)) / 3
    found = detector_of(statistics, background_of(world)).score(x)
    torch.testing.assert_close(found, (gain / (1 + gain.abs())).float())


@pytest.mark.parametrize(("labels", "second"), [((5, 5), "known"), ((5, 0), "unknown")])
def test_rows_near_a_class_with_labels_look_known_and_others_do_not(labels, second):
    found = detector_of(two_classes(labels), background_of(normal(500, 3, name="world")))
    near, other, far = found.score(torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]]))
    assert -1 < far < 0 < near < 1 and (other > 0) == (second == "known")


def test_bessels_correction_holds_for_classes_of_any_size():
    """The mean estimate over many draws of rows of unit variance."""
    counts, found = (100, 3, 3, 3), []
    for draw in range(300):
        x, targets = normal(sum(counts), 2, name=f"draw {draw}"), torch.repeat_interleave(torch.tensor(counts))
        detector = detector_of(summary(x, targets, counts), background_of(normal(9, 2)))
        found.append(float(torch.linalg.inv(detector.class_precision).diagonal().mean()) - SOFTNESS)
    assert sum(found) / len(found) == pytest.approx(1, abs=0.05)


def test_a_share_of_the_labelled_rows_is_above_the_threshold():
    scores = torch.linspace(-0.5, 0.5, 100)[torch.randperm(100, generator=seeded(0, "order"))]
    above = scores > known_threshold(scores, torch.zeros(100, dtype=torch.long))
    assert float(above.float().mean()) == pytest.approx(KNOWN, abs=0.01)


def test_classes_weigh_equally_in_the_threshold():
    targets = torch.repeat_interleave(torch.tensor([90, 10]))
    scores = torch.where(targets == 0, 0.0, 0.5)
    assert known_threshold(scores, targets) == 0
    few_below = torch.where(torch.arange(100) < 30, scores, 0.5)  # a third of the large class: a sixth of all
    assert known_threshold(few_below, targets) == 0.5
