"""Labels whose images are gone: class means and one covariance that follow the network, in full or compact."""

import torch

from osscl.learn.linear_head import no_missing_rows, weighted_ridge
from osscl.methods.class_statistics import ClassStatistics, summarize
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


# ----- within a byte budget


def test_compact_statistics_keep_counts_means_and_as_much_covariance_as_their_directions():
    x, targets = of_one_spread([40, 40], d=6)
    full = summary(x, targets, [40, 40])
    exact, rough = full.compact(6).expanded(), full.compact(1).expanded()
    for found in (exact, rough):
        assert found.labels.tolist() == [40, 40]
        torch.testing.assert_close(found.means, full.means, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(found.spread.diagonal(), full.spread.diagonal(), rtol=5e-3, atol=1e-3)
    torch.testing.assert_close(exact.spread, full.spread, rtol=0, atol=5e-3)
    assert (rough.spread - full.spread).norm() > 10 * (exact.spread - full.spread).norm()
