"""Known or unknown: the share of known images rejected is what was asked for, in the pile as outside it."""

import pytest
import torch
from torch import Tensor

from fitted import fitted_head, fitted_unknown
from osscl.learn.embedded import summarise
from osscl.learn.unknown import (
    Calibration,
    KnownScores,
    PileSums,
    Unknown,
    copies_in,
    marks_of,
    summarise_pile,
)

WIDTHS = (48,)
KINDS = torch.randn(10, 48, generator=torch.Generator().manual_seed(3))


def drawn(kinds: Tensor, seed: int) -> Tensor:
    noise = torch.randn(len(kinds), 48, generator=torch.Generator().manual_seed(seed))
    return KINDS[kinds] + 0.7 * noise


def kinds(first: int, last: int, each: int) -> Tensor:
    return torch.arange(first, last).repeat_interleave(each)


def fitted(labels: int = 15, pile: Tensor | None = None, seed: int = 0) -> Unknown:
    y = kinds(0, 4, labels)
    x = drawn(y, seed)
    head = fitted_head(summarise(x, y, [str(i) for i in range(4)], WIDTHS), x, y)
    return fitted_unknown(head, summarise_pile([] if pile is None else [pile], WIDTHS), x, y)


def test_about_the_requested_share_is_rejected():
    pile = drawn(kinds(0, 8, 10), 1)
    rejected = [
        fitted(pile=pile, seed=seed).rejects(drawn(kinds(0, 4, 200), 99), 0.05).float().mean() for seed in (0, 5, 6, 7)
    ]
    assert 0.02 < float(torch.stack(rejected).mean()) < 0.08


def test_few_labels_still_reject_something_and_little():
    found = [fitted(4, drawn(kinds(0, 8, 10), 1), seed) for seed in (0, 5, 6, 7)]
    known = torch.stack([one.rejects(drawn(kinds(0, 4, 200), 99)).float().mean() for one in found]).mean()
    unknown = torch.stack([one.rejects(drawn(kinds(4, 8, 50), 98)).float().mean() for one in found]).mean()
    assert known < 0.12 and unknown > 0.5


def test_rows_of_the_pile_score_like_rows_outside_it():
    inside = drawn(kinds(0, 8, 12), 1)
    outside = drawn(kinds(0, 8, 100), 2)
    model = fitted(pile=inside)
    for first, last in ((0, 4), (4, 8)):
        own = model.scores(inside[first * 12 : last * 12])[0]
        fresh = model.scores(outside[first * 100 : last * 100])[0]
        assert abs(float(own.mean() - fresh.mean())) < 0.35 * float(fresh.std())


def test_an_image_of_the_pile_is_recognised_up_to_rounding_and_counted():
    pile = drawn(kinds(0, 8, 10), 1)
    world = summarise_pile([pile, pile[:1]], WIDTHS)
    again = pile * (1 + 1e-7 * torch.randn(pile.shape, generator=torch.Generator().manual_seed(0)))
    assert copies_in(world, marks_of(again, WIDTHS)).tolist() == [2.0] + [1.0] * 79
    assert not copies_in(world, marks_of(drawn(kinds(0, 8, 10), 2), WIDTHS)).any()


def test_kinds_never_met_look_less_known():
    model = fitted(pile=drawn(kinds(0, 8, 10), 1))
    known, never = model.known_share(drawn(kinds(0, 4, 50), 5)), model.known_share(drawn(kinds(8, 10, 50), 6))
    assert known.median() > 0.3 and never.median() < 0.05
    assert float(known.min()) > 0 and float(known.max()) < 1


def in_two_steps(each: int, seed: int) -> Unknown:
    """Taught `each` classes, then as many more; rows of the first step are gone at the second."""
    y, names = kinds(0, 2 * each, 15), [str(i) for i in range(2 * each)]
    x, pile, first = drawn(y, seed), summarise_pile([drawn(kinds(0, 10, 10), 1)], WIDTHS), y < each
    one = summarise(x[first], y[first], names[:each], WIDTHS)
    head = fitted_head(one, x[first], y[first])
    before = fitted_unknown(head, pile, x[first], y[first]).calibration
    sums = one.joined(summarise(x[~first], y[~first] - each, names[each:], WIDTHS))
    head = fitted_head(sums, x[~first], y[~first], head.trials)
    return fitted_unknown(head, pile, x[~first], y[~first], before)


@pytest.mark.parametrize(("each", "most"), [(4, 0.08), (2, 0.15)])  # two classes say little of how scores have moved
def test_scores_of_an_earlier_step_are_carried_without_its_rows(each: int, most: float):
    found = [in_two_steps(each, seed) for seed in (0, 5, 6, 7)]
    assert len(found[0].calibration.names) == 2 * each and len(found[0].calibration.parts) == 30 * each
    rejected = [one.rejects(drawn(kinds(0, 2 * each, 100), 99)).float().mean() for one in found]
    assert 0.02 < float(torch.stack(rejected).mean()) < most


@pytest.mark.parametrize("rows", [0, 1, 3, 10])
def test_piles_smaller_than_the_embedding(rows: int):
    pile = drawn(kinds(0, 10, 1)[:rows], 4)
    model = fitted(pile=pile)
    assert model.known_share(drawn(kinds(0, 10, 2), 5)).isfinite().all()


def test_one_class_of_one_image_rejects_nothing():
    x, y = drawn(torch.zeros(1, dtype=torch.long), 0), torch.zeros(1, dtype=torch.long)
    head = fitted_head(summarise(x, y, ["0"], WIDTHS), x, y)
    model = fitted_unknown(head, summarise_pile([], WIDTHS), x, y)
    assert not model.rejects(drawn(kinds(0, 10, 2), 5)).any()


def test_one_class_without_a_pile_is_compared_with_nothing_else():
    x, y = drawn(torch.zeros(30, dtype=torch.long), 0), torch.zeros(30, dtype=torch.long)
    head = fitted_head(summarise(x, y, ["0"], WIDTHS), x, y)
    model = fitted_unknown(head, summarise_pile([], WIDTHS), x, y)
    own, other = drawn(torch.zeros(100, dtype=torch.long), 5), drawn(kinds(1, 10, 5), 6)
    assert float(model.rejects(own).float().mean()) < 0.2 and float(model.rejects(other).float().mean()) > 0.8


def test_calibration_and_world_survive_storing_renaming_and_removal():
    model = fitted(pile=drawn(kinds(0, 8, 3), 1))
    again = PileSums.from_state(model.world.state())
    assert torch.equal(again.scatters[0], model.world.scatters[0]) and torch.equal(again.marks, model.world.marks)
    kept: Calibration = model.calibration.renamed("3", "0").without("1")
    assert set(kept.owners.tolist()) == {0, 2} and len(kept.parts) == 45


@pytest.mark.parametrize("reject", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("count", [10, 200])  # Student's t, and the scores themselves
def test_the_threshold_is_where_the_share_of_known_rows_below_reaches_the_rejected_share(reject, count):
    known = KnownScores(torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64))
    below, above = known.share_below(known.threshold(reject) + torch.tensor([-1e-6, 1e-6])).tolist()
    assert below < reject <= above


def test_one_score_rejects_nothing():
    assert KnownScores(torch.zeros(1)).threshold(0.05) is None


@pytest.mark.parametrize("count", [10, 60, 5000])
def test_shares_are_even_over_known_rows_and_rise_with_every_score(count):
    scores = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    known = KnownScores(scores)
    fresh = torch.randn(4000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert float((known.share_below(fresh) < 0.05).double().mean()) == pytest.approx(0.05, abs=0.04)
    assert bool((known.share_below(torch.linspace(-6, 3, 200, dtype=torch.float64)).diff() > 0).all())
    assert len(known.compared) <= 1000


def test_earlier_scores_follow_those_of_this_step():
    """With many rows the two have nearly the same mean and spread; with one, hardly anything changes."""
    noise = torch.randn(61, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    owners, expected = torch.zeros(60, dtype=torch.long), torch.tensor([[3.0]], dtype=torch.float64)
    before = Calibration(("cat",), 2 * noise[:60] - 9, owners)
    now = Calibration(("cat",), noise[:60] + 1, owners)
    many = now.joined(before, expected, ("cat",)).parts[:60]
    assert abs(float(many.mean() - now.parts.mean())) < 1 and 0.9 < float(many.std() / now.parts.std()) < 1.1
    few = Calibration(("cat",), noise[60:] + 1, owners[:1]).joined(before, expected, ("cat",)).parts[:60]
    torch.testing.assert_close(few.std(), before.parts.std())
    assert abs(float(few.mean() + 9)) < 2.5


def test_a_broad_class_does_not_make_unknown_images_look_known():
    """Scores are compared over all classes: what is usual for a broad class is no reason to let an image in."""
    generator = torch.Generator().manual_seed(0)
    y = kinds(0, 4, 15)
    x = KINDS[y] + torch.where(y == 0, 1.4, 0.5)[:, None] * torch.randn(60, 48, generator=generator)
    head = fitted_head(summarise(x, y, [str(i) for i in range(4)], WIDTHS), x, y)
    model = fitted_unknown(head, summarise_pile([drawn(kinds(0, 8, 10), 1)], WIDTHS), x, y)
    new = drawn(kinds(4, 10, 50), 5)
    scores, nearest = model.scores(new)
    order = scores.argsort()
    assert bool((model.known_share(new)[order].diff() >= 0).all()) and 0 in nearest.tolist()
