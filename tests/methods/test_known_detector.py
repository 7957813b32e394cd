"""What looks known: a score from Gaussians of classes and of everything unlabelled, and its threshold."""

import pytest
import torch

from osscl.learn.linear_head import no_missing_rows
from osscl.methods.class_statistics import ClassStatistics, summarize
from osscl.methods.known_detector import KNOWN, SOFTNESS, background_of, detector_of, known_threshold
from osscl.seeding import seeded


def normal(*shape, name="x"):
    return torch.randn(*shape, generator=seeded(0, name), dtype=torch.float64)


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
        detector = detector_of(
            summarize(x, targets, torch.tensor(counts), no_missing_rows(x, len(counts))), background_of(normal(9, 2))
        )
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


SLANTED = torch.tensor([[1.0, 0.9, 0], [0, 0.3, 0], [0, 0, 1]], dtype=torch.float64)


def test_a_background_with_all_directions_scores_like_the_full_one_and_keeps_its_threshold():
    statistics, background, x = two_classes(), background_of(normal(500, 3, name="world") @ SLANTED), normal(20, 3)
    full = detector_of(statistics, background).score(x)
    compact = background.compact(3, threshold=0.25)
    found = compact.detector(statistics)
    assert found.threshold == 0.25 and compact.directions.dtype == torch.float16
    torch.testing.assert_close(found.score(x), full, rtol=0, atol=0.02)
    assert (background.compact(0, 0.25).detector(statistics).score(x) - full).abs().max() > 0.02
