"""Labels whose images are gone: class means and one covariance that follow the network, in full or compact."""

import re
from pathlib import Path

import pytest
import torch

from osscl.learn.linear_head import no_missing_rows, weighted_ridge
from osscl.methods import URSL_PLUS
from osscl.methods.class_statistics import (
    HALF,
    BytePlan,
    ClassStatistics,
    approximate_covariance,
    compact_covariance,
    plan_bytes,
    summarize,
)
from osscl.runs.spec import EXPERIMENTS
from osscl.seeding import seeded

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "ursl-plus.md"
WIDTH, IMAGE = 512, 3 * 32 * 32  # of a ResNet-18's features; bytes
MAIN = ("cifar10-p01", "cifar10-p10", "cifar100-p05", "cifar100-p10")


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


def plan(name, classes=None, share=URSL_PLUS.statistics_share, most=URSL_PLUS.statistics_rank):
    scenario = EXPERIMENTS[name]
    return plan_bytes(scenario.memory * IMAGE, IMAGE, share, classes or scenario.classes, (WIDTH, WIDTH), WIDTH, most)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.4, 0.6, 0.8])
@pytest.mark.parametrize("name", MAIN)
def test_statistics_and_images_fit_into_the_memory_of_every_main_cell_at_every_step(name, share):
    scenario = EXPERIMENTS[name]
    budget, sizes = scenario.memory * IMAGE, scenario.classes_per_step
    for t in range(len(sizes)):
        found = plan(name, sum(sizes[: t + 1]), share, most=WIDTH)
        assert found.statistics + found.images * IMAGE <= budget
        assert found.statistics + (found.images + 1) * IMAGE > budget  # nothing is wasted
        assert found.images >= sum(sizes[: t + 1])  # an image of every class is left


@pytest.mark.parametrize("name", MAIN)
def test_the_page_shows_how_the_default_splits_the_bytes(name):
    scenario, found = EXPERIMENTS[name], plan(name)
    shown = {
        line.split(" | ")[0].strip("| `"): line for line in PAGE.read_text().splitlines() if line.startswith("| `cif")
    }
    numbers = [int(n.replace(",", "")) for n in re.findall(r"[\d,]+", shown[name].partition(" | ")[2])]
    kept = found.statistics + found.images * IMAGE
    assert numbers == [scenario.memory, scenario.memory * IMAGE, found.rank, found.statistics, found.images, kept]


def test_more_classes_or_a_smaller_share_leave_fewer_directions():
    ranks = [plan("cifar100-p05", classes, most=WIDTH).rank for classes in (10, 50, 100)]
    assert ranks == sorted(ranks, reverse=True) and ranks[0] > ranks[-1]
    assert plan("cifar100-p05", share=0.2).rank < plan("cifar100-p05", share=0.6).rank
    assert plan("cifar100-p05").rank == 64 and plan("cifar100-p05", most=10).rank == 10


def test_means_are_kept_even_where_they_need_more_than_their_share():
    found = plan("cifar100-p05", share=0.01)
    assert found.rank == 0 and found.statistics > 0.01 * 500 * IMAGE and found.images < 500
    assert plan_bytes(1000, IMAGE, 0.5, 10, (WIDTH,), 0, 64) == BytePlan(0, HALF * 11 * WIDTH + 40, 0)


def test_directions_are_the_strongest_and_the_diagonal_holds_the_rest():
    basis = torch.linalg.qr(torch.randn(6, 6, generator=seeded(0, "basis"), dtype=torch.float64)).Q
    covariance = basis @ torch.diag(torch.tensor([9.0, 4, 1, 0.5, 0.1, 0]).double()) @ basis.T
    diagonal, directions = compact_covariance(covariance, 2)
    assert diagonal.dtype == directions.dtype == torch.float16 and directions.shape == (2, 6)
    torch.testing.assert_close(directions.double().norm(dim=1), torch.tensor([3.0, 2]).double(), rtol=1e-3, atol=0)
    errors = [float((approximate_covariance(covariance, rank) - covariance).norm()) for rank in (0, 1, 2, 6)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.02
