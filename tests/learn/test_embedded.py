"""Heads on fixed embeddings: sums add up, rows left out have no part, the average is what it says it is."""

import pytest
import torch
from torch import Tensor

from fitted import fitted_head
from osscl.errors import OTHER_VERSION
from osscl.learn.embedded import (
    DISCRIMINANTS,
    MEANS,
    Candidate,
    ClassSums,
    EmbeddingHead,
    Spread,
    Trials,
    candidates,
    distances,
    leave_out,
    left_out_distances,
    split_layers,
    summarise,
    try_candidates,
    without_noise,
)

BASELINES = MEANS, DISCRIMINANTS
WIDTHS = (10, 6)
NAMES = ("ant", "bee", "cat", "dog")


def drawn(rows: int, seed: int, spread: float = 0.6) -> tuple[Tensor, Tensor]:
    """Rows about fixed means of four classes, and their classes."""
    means = torch.randn(4, sum(WIDTHS), generator=torch.Generator().manual_seed(7))
    y = torch.arange(4).repeat_interleave(rows)
    noise = torch.randn(len(y), sum(WIDTHS), generator=torch.Generator().manual_seed(seed))
    return means[y] + spread * noise, y


def two_steps(x: Tensor, y: Tensor) -> ClassSums:
    first, second = y < 2, y >= 2
    one = summarise(x[first], y[first], NAMES[:2], WIDTHS)
    return one.joined(summarise(x[second], y[second] - 2, NAMES[2:], WIDTHS))


def assert_same(a: ClassSums, b: ClassSums) -> None:
    assert a.names == b.names and a.degrees == b.degrees
    torch.testing.assert_close(a.counts, b.counts)
    for left, right in zip(a.means + a.scatters, b.means + b.scatters, strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)


def test_sums_of_two_steps_are_those_of_one():
    x, y = drawn(8, 0)
    assert_same(two_steps(x, y), summarise(x, y, NAMES, WIDTHS))


def test_more_rows_of_an_old_class_add_up():
    x, y = drawn(8, 0)
    half = torch.arange(len(y)) % 2 == 0
    both = summarise(x[half], y[half], NAMES, WIDTHS).joined(summarise(x[~half], y[~half], NAMES, WIDTHS))
    assert_same(both, summarise(x, y, NAMES, WIDTHS))


def test_order_of_classes_does_not_matter():
    x, y = drawn(8, 0)
    turned = summarise(x, 3 - y, NAMES[::-1], WIDTHS)
    a, b = fitted_head(summarise(x, y, NAMES, WIDTHS), x, y), fitted_head(turned, x, 3 - y)
    assert [(v.way, v.temperature) for v in a.voices] == [(v.way, v.temperature) for v in b.voices]
    torch.testing.assert_close(a.predict_proba(x), b.predict_proba(x).flip(1))


@pytest.mark.parametrize("shrinkage", [0.1, 0.6])
def test_left_out_distances_are_those_of_a_fit_without_the_row(shrinkage: float):
    x, y = drawn(5, 1)
    sums = summarise(x, y, NAMES, WIDTHS)
    spread = Spread.of(sums.scatters[0], sums.degrees)
    part = split_layers(x, WIDTHS)[0]
    left = leave_out(sums, x, y)
    assert left.copies.tolist() == [1] * len(y)
    found = left_out_distances(left, 0, sums.counts, sums.means[0], spread, shrinkage)
    for row in (0, 7, 19):
        kept = torch.arange(len(y)) != row
        less = summarise(x[kept], y[kept], NAMES, WIDTHS)
        fresh = Spread.of(less.scatters[0], less.degrees)
        expected = distances(part[[row]], less.means[0], fresh, shrinkage)[0]
        torch.testing.assert_close(found[row], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shrinkage", [0.1, 0.9])
def test_copies_are_left_out_together(shrinkage: float):
    x, y = drawn(5, 1)
    x, y = torch.cat((x, x[:3], x[:3], x[7:8])), torch.cat((y, y[:3], y[:3], y[7:8]))  # thrice, twice, else once
    sums = summarise(x, y, NAMES, WIDTHS)
    left = leave_out(sums, x, y)
    assert left.copies[[0, 1, 2, 7, 19, 20, -1]].tolist() == [3, 3, 3, 2, 1, 3, 2]
    spread, part = Spread.of(sums.scatters[0], sums.degrees), split_layers(x, WIDTHS)[0]
    found = left_out_distances(left, 0, sums.counts, sums.means[0], spread, shrinkage)
    for row in (0, 7, 19):
        kept = (x != x[row]).any(1)
        less = summarise(x[kept], y[kept], NAMES, WIDTHS)
        expected = distances(part[[row]], less.means[0], Spread.of(less.scatters[0], less.degrees), shrinkage)[0]
        torch.testing.assert_close(found[row], expected, rtol=1e-3, atol=1e-3)


def test_near_copies_say_nothing_about_how_well_a_class_is_known():
    x, y = drawn(6, 1, spread=1.5)
    noise = torch.randn(4, *x.shape, generator=torch.Generator().manual_seed(5))
    burst, labels = torch.cat([x, *(x + 0.02 * noise)]), y.repeat(5)
    once = fitted_head(summarise(x, y, NAMES, WIDTHS), x, y).right()
    again = fitted_head(summarise(burst, labels, NAMES, WIDTHS), burst, labels).right()
    assert once < 0.99 and again == pytest.approx(once, abs=0.1)


def test_the_head_is_the_weighted_geometric_mean_of_calibrated_candidates():
    x, y = drawn(6, 0, spread=1.5)
    head = fitted_head(summarise(x, y, NAMES, WIDTHS), x, y)
    assert sum(voice.weight for voice in head.voices) == pytest.approx(1)
    each = [v.weight * (v.temperature * head.logits(x, v.way)).log_softmax(1) for v in head.voices]
    torch.testing.assert_close(torch.stack(each).sum(0).softmax(1), head.predict_proba(x))


def test_linear_logits_of_discriminants_are_distances_up_to_a_term_that_classes_share():
    x, y = drawn(6, 0)
    sums = summarise(x, y, NAMES, WIDTHS)
    head = fitted_head(sums, x, y)
    apart = -0.5 * distances(split_layers(x, WIDTHS)[1], sums.means[1], sums.spread(1), 0.6)
    torch.testing.assert_close(head.logits(x, Candidate(1, 0.6)).log_softmax(1), apart.log_softmax(1))


def test_candidates_weigh_by_their_loss_on_left_out_rows():
    x, y = drawn(10, 0, spread=1.5)
    x[:, WIDTHS[0] :] = torch.randn(len(x), WIDTHS[1], generator=torch.Generator().manual_seed(3))  # says nothing
    head = fitted_head(summarise(x, y, NAMES, WIDTHS), x, y)
    loss = dict(zip(candidates(2), head.trials.loss.min(1).values.tolist(), strict=True))
    losses = [loss[voice.way] for voice in head.voices]
    assert losses == sorted(losses) and head.voices[0].way.layer == 0
    assert sum(voice.weight for voice in head.voices if voice.way.layer == 1) < 0.1


def test_the_average_is_right_about_as_often_as_the_better_baseline_or_more():
    better = []
    for seed in range(8):
        x, y = drawn(6, seed, spread=1.5)
        test, truth = drawn(50, 100 + seed, spread=1.5)
        head = fitted_head(summarise(x, y, NAMES, WIDTHS), x, y)
        right = [float((head.logits(test, way).argmax(1) == truth).float().mean()) for way in (None, *BASELINES)]
        better.append(right[0] - max(right[1:]))
    assert sum(better) / len(better) > 0


def test_a_class_with_few_rows_is_not_lost_next_to_a_large_one():
    """The mean of two rows is off, which makes everything seem far from it; the distance is corrected for that."""
    found: dict[str, list[float]] = {"discriminants": [], "corrected": []}
    for seed in range(6):
        x, y = drawn(40, seed, spread=1.2)
        few = torch.cat([(y == c).nonzero().squeeze(1)[: 40 if c == 0 else 2] for c in range(len(NAMES))])
        sums = summarise(x[few], y[few], NAMES, WIDTHS)
        spreads = [Spread.of(scatter, sums.degrees) for scatter in sums.scatters]
        test, truth = drawn(50, 100 + seed, spread=1.2)
        small = truth > 0
        plain = distances(split_layers(test, WIDTHS)[0], sums.means[0], spreads[0], 0.9)
        less = without_noise(plain, sums.counts, spreads[0], 0.9)
        for name, apart in (("discriminants", plain), ("corrected", less)):
            found[name].append(float((apart.argmin(1) == truth)[small].float().mean()))
    assert sum(found["corrected"]) > sum(found["discriminants"]) + 0.3


def test_noise_in_a_mean_adds_to_distances_what_is_taken_away():
    x, y = drawn(400, 0)
    sums = summarise(x, y, NAMES, WIDTHS)
    spread, rows = Spread.of(sums.scatters[0], sums.degrees), split_layers(x, WIDTHS)[0]
    exact, rough = [], []
    for own in (rows[y == c] for c in range(len(NAMES))):
        exact.append(distances(own, own.mean(0, keepdim=True), spread, 0.9).mean())
        pairs = (own[[i, -i - 1]].mean(0, keepdim=True) for i in range(100))
        rough += [distances(own, pair, spread, 0.9).mean() for pair in pairs]
    wanted, apart = torch.stack(exact).mean(), torch.stack(rough)
    corrected = without_noise(apart[:, None], torch.tensor([2.0]), spread, 0.9).mean()
    assert abs(float(corrected - wanted)) < 0.1 * float(apart.mean() - wanted)


def test_in_trials_small_classes_count_as_much_as_large_ones():
    logits = torch.tensor([[2.0, 0.0]] * 8 + [[2.0, 0.0]] * 2)
    y = torch.tensor([0] * 8 + [1] * 2)
    way = candidates(1)[0]
    sharp = try_candidates({way: logits}, y).loss[0]
    even = try_candidates({way: torch.tensor([[2.0, 0.0], [2.0, 0.0]])}, torch.tensor([0, 1]))
    assert int(sharp.argmin()) == 0 == int(even.loss[0].argmin())  # half of the classes are wrong: trust nothing
    assert int(try_candidates({way: logits[:8]}, y[:8]).loss[0].argmin()) > 5


def test_trials_of_an_earlier_step_count_without_its_rows():
    x, y = drawn(8, 0)
    first = fitted_head(summarise(x[:16], y[:16], NAMES[:2], WIDTHS), x[:16], y[:16])
    sums = two_steps(x, y)
    head = fitted_head(sums, x[16:], y[16:], first.trials)
    assert head.trials.rows == 32
    assert (head.logits(x).argmax(1) == y).float().mean() > 0.9


def test_probabilities_of_a_head_without_mistakes_are_not_certainty():
    x, y = drawn(5, 0, spread=0.05)
    highest = fitted_head(summarise(x, y, NAMES, WIDTHS), x, y).predict_proba(x).max(1).values
    assert highest.min() > 0.5


def test_merged_classes_are_as_if_labelled_so():
    x, y = drawn(8, 0)
    merged = summarise(x, y, NAMES, WIDTHS).merged("dog", "ant")
    assert_same(merged, summarise(x, y % 3, NAMES[:3], WIDTHS))


def test_removed_class_is_no_longer_predicted_and_a_renamed_one_is():
    x, y = drawn(8, 0)
    sums = summarise(x, y, NAMES, WIDTHS).without("bee").renamed("cat", "lion")
    assert sums.names == ("ant", "lion", "dog") and sums.degrees == 21
    with pytest.raises(ValueError, match="exists"):
        sums.renamed("ant", "dog")


def test_stored_sums_are_the_same_bits():
    x, y = drawn(8, 0)
    sums = summarise(x, y, NAMES, WIDTHS)
    again = ClassSums.from_state(sums.names, sums.state())
    assert all(torch.equal(a, b) for a, b in zip(sums.scatters + sums.means, again.scatters + again.means, strict=True))
    assert torch.equal(fitted_head(sums, x, y).logits(x), fitted_head(again, x, y).logits(x))


def finite(head: EmbeddingHead, x: Tensor) -> bool:
    return bool(head.predict_proba(x).isfinite().all())


def test_a_class_of_one_image_identical_images_and_one_class_only():
    x, _ = drawn(4, 0)
    lone = torch.cat((x[:4], x[12:13])), torch.tensor([0, 0, 0, 0, 1])
    same = x[:1].repeat(4, 1), torch.zeros(4, dtype=torch.long)
    single = x[:1], torch.zeros(1, dtype=torch.long)
    for rows, targets in (lone, same, single):
        names = NAMES[: int(targets.max()) + 1]
        assert finite(fitted_head(summarise(rows, targets, names, WIDTHS), rows, targets), x)
    two = torch.cat((x[:1].repeat(3, 1), x[5:6].repeat(3, 1))), torch.tensor([0, 0, 0, 1, 1, 1])
    head = fitted_head(summarise(*two, NAMES[:2], WIDTHS), *two)
    assert finite(head, x) and torch.equal(head.logits(two[0]).argmax(1), two[1])


@pytest.mark.parametrize(("part", "field"), [("trials", "rows"), ("trials", "averaged"), ("sums", "degrees")])
def test_stored_numbers_that_are_not_tensors_are_refused(part: str, field: str):
    x, y = drawn(5, 1)
    head = fitted_head(summarise(x, y, NAMES, WIDTHS), x, y)
    state = {**(head.trials if part == "trials" else head.sums).state(), field: 10**30}
    with pytest.raises(OTHER_VERSION):
        Trials.from_state(state) if part == "trials" else ClassSums.from_state(NAMES, state)
