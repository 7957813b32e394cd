import time

import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_score, roc_auc_score, roc_curve
from torch import Tensor

from osscl import metrics

MATRIX = ((90.0,), (70.0, 80.0), (75.0, 60.0, 50.0))


def scored(seed: int, m: int = 400, values: int = 30) -> tuple[Tensor, Tensor]:
    """Scores with many ties that lean towards the positive rows."""
    rng = torch.Generator().manual_seed(seed)
    positive = torch.rand(m, generator=rng) < 0.3
    scores = torch.randint(values, (m,), generator=rng) + 4 * positive
    return scores.float() / values, positive


def test_forgetting_counts_from_the_best_an_old_step_ever_was() -> None:
    assert metrics.forgetting(MATRIX) == pytest.approx(((90 - 75) + (80 - 60)) / 2)
    assert metrics.forgetting(((50.0,), (60.0, 0.0), (55.0, 0.0, 0.0))) == pytest.approx(2.5)


def test_forgetting_is_negative_when_old_steps_improve() -> None:
    assert metrics.forgetting(((50.0,), (60.0, 80.0))) == pytest.approx(-10)


def test_backward_transfer_counts_from_right_after_learning() -> None:
    assert metrics.backward_transfer(MATRIX) == pytest.approx(((75 - 90) + (60 - 80)) / 2)
    assert metrics.backward_transfer(((50.0,), (60.0, 80.0))) == pytest.approx(10)


def test_average_of_steps_gives_every_step_one_vote() -> None:
    assert metrics.average_of_steps((90.0, 75.0, 60.0)) == pytest.approx(75)


def test_one_step_leaves_the_measures_of_change_undefined() -> None:
    assert metrics.forgetting(((90.0,),)) is None
    assert metrics.backward_transfer(((90.0,),)) is None
    assert metrics.average_of_steps((90.0,)) is None


@pytest.mark.parametrize("seed", range(5))
def test_auroc_with_ties_is_scikit_learns(seed: int) -> None:
    scores, positive = scored(seed)
    assert metrics.auroc(scores, positive) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)


def test_auroc_of_a_constant_score_is_exactly_one_half() -> None:
    _, positive = scored(0)
    assert metrics.auroc(torch.zeros(400), positive) == 0.5


def test_auroc_depends_only_on_order() -> None:
    scores, positive = scored(0)
    assert metrics.auroc(scores.exp(), positive) == metrics.auroc(scores, positive)


def test_auroc_of_negated_scores_is_its_complement() -> None:
    scores, positive = scored(0)
    turned, straight = metrics.auroc(-scores, positive), metrics.auroc(scores, positive)
    assert turned is not None
    assert straight == pytest.approx(1 - turned)


def test_auroc_of_twenty_thousand_rows_is_fast() -> None:
    scores, positive = scored(0, m=20_000, values=15_000)
    start = time.perf_counter()
    assert metrics.auroc(scores, positive) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize("measure", [metrics.auroc, metrics.fpr_at_recall])
def test_measures_of_separation_need_two_sides_and_no_nan(measure: object) -> None:
    assert callable(measure)
    scores = torch.tensor([0.1, 0.2])
    assert measure(scores, torch.tensor([True, True])) is None
    assert measure(scores, torch.tensor([False, False])) is None
    assert measure(scores[:0], torch.tensor([], dtype=torch.bool)) is None
    assert measure(torch.tensor([float("nan"), 0.2]), torch.tensor([True, False])) is None


@pytest.mark.parametrize("recall", [0.07, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_fpr_at_recall_is_read_off_scikit_learns_curve(seed: int, recall: float) -> None:
    scores, positive = scored(seed)
    false, true, _ = roc_curve(positive, scores, drop_intermediate=False)
    assert metrics.fpr_at_recall(scores, positive, recall) == pytest.approx(false[(true >= recall).argmax()])


def test_fpr_at_recall_is_not_fooled_by_a_rounded_product() -> None:
    scores = torch.cat([torch.arange(100, 0, -1), torch.full((10,), 93.5)])  # seven positives lie above the negatives
    assert metrics.fpr_at_recall(scores, torch.arange(110) < 100, recall=0.07) == 0


def test_share_is_precision() -> None:
    scores, related = scored(0)
    passed = scores > 0.5
    assert metrics.share(related, of=passed) == pytest.approx(precision_score(related, passed))


def test_share_of_nothing_is_undefined_and_not_zero() -> None:
    assert metrics.share(torch.tensor([True, False]), of=torch.tensor([False, False])) is None
    assert metrics.share(torch.tensor([True, False]), of=torch.tensor([False, True])) == 0


def test_confusion_is_scikit_learns_also_for_classes_that_never_occur() -> None:
    rng = torch.Generator().manual_seed(0)
    truth, predicted = (torch.randint(6, (300,), generator=rng) for _ in range(2))
    expected = torch.from_numpy(confusion_matrix(truth, predicted, labels=list(range(8))))
    assert torch.equal(metrics.confusion(truth, predicted, 8), expected)


def test_the_spread_of_one_value_is_undefined_and_not_zero() -> None:
    assert metrics.sample_std([3.0]) is metrics.sample_std([]) is None
    assert metrics.sample_std([1.0, 3.0]) == pytest.approx(2**0.5)
