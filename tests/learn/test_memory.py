"""The memory stays within its budget, balanced, and selects images as its policy says."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from osscl.data.images import Labeled
from osscl.learn.memory import Memory, choose, herded, quotas
from osscl.seeding import seeded


@pytest.mark.parametrize("budget", [0, 3, 10, 11, 500])
@pytest.mark.parametrize("classes", [1, 2, 3, 7, 10])
def test_quotas_use_the_whole_budget_equally_with_the_remainder_for_the_newest(budget, classes):
    shares = quotas(budget, classes)
    assert sum(shares) == budget and len(shares) == classes
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares)


def test_quotas_of_the_papers_cifar100_memory():
    assert quotas(500, 30) == [16] * 10 + [17] * 20
    assert quotas(500, 90) == [5] * 40 + [6] * 50


def numbered(counts: dict[int, int], first: int = 0) -> Labeled:
    """Images whose pixel 0 is their number."""
    labels = torch.cat([torch.full((n,), c) for c, n in counts.items()])
    images = torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.arange(first, first + len(labels)).to(torch.uint8)
    return Labeled(images, labels)


def numbers(data: Labeled) -> list[tuple[int, int]]:
    return list(zip(data.labels.tolist(), data.images[:, 0, 0, 0].tolist(), strict=True))


def empty_memory(budget: int) -> Memory:
    return Memory(budget, Labeled(torch.empty(0, 1, 8, 8, dtype=torch.uint8), torch.empty(0, dtype=torch.long)))


def confidence(rows: Labeled) -> Tensor:
    """The higher its number, the less confident an image."""
    assert len(rows)
    return -rows.images[:, 0, 0, 0].float()


def test_memory_is_balanced_within_its_budget_and_keeps_images_with_their_labels():
    memory, seen = empty_memory(20), set()
    tasks = [(4, 1), (0, 3), (2, 5)]
    for t, task in enumerate(tasks):
        classes = [c for earlier in tasks[: t + 1] for c in earlier]
        new = numbered(dict.fromkeys(task, 30), 60 * t)
        seen |= set(numbers(new))
        memory.update(new, classes, seeded(0, "memory", t))
        counts = Counter(memory.labeled.labels.tolist())
        assert [counts[c] for c in classes] == quotas(20, len(classes))
        assert len(set(numbers(memory.labeled))) == 20 and set(numbers(memory.labeled)) <= seen


def test_a_class_contributes_at_most_what_it_has():
    memory = empty_memory(20)
    memory.update(numbered({0: 3, 1: 30}), [0, 1], seeded(0, "memory"))
    assert Counter(memory.labeled.labels.tolist()) == {0: 3, 1: 10}


@pytest.mark.parametrize("policy", ["random", "low", "high", "rainbow"])
def test_shrinking_keeps_only_images_that_were_stored(policy):
    memory = empty_memory(12)
    memory.update(numbered({0: 30, 1: 30}), [0, 1], seeded(0, "memory", 0), policy, confidence)
    before = set(numbers(memory.labeled))
    memory.update(numbered({2: 30, 3: 30}, 60), [0, 1, 2, 3], seeded(0, "memory", 1), policy, confidence)
    old = {(c, number) for c, number in numbers(memory.labeled) if c < 2}
    assert old < before
    assert len(old) == 6


@pytest.mark.parametrize(("policy", "expected"), [("low", {7, 8, 9}), ("high", {0, 1, 2}), ("rainbow", {9, 5, 0})])
def test_policies_select_by_confidence_within_each_class(policy, expected):
    memory = empty_memory(6)
    memory.update(numbered({0: 10, 1: 10}), [0, 1], seeded(0, "memory"), policy, confidence)
    kept = numbers(memory.labeled)
    assert {number for c, number in kept if c == 0} == expected == {number - 10 for c, number in kept if c == 1}


def test_choosing_by_hand():
    sure = torch.tensor([0.5, 0.1, 0.9, 0.3, 0.7])
    assert set(choose("low", 2, 5, sure, seeded(0)).tolist()) == {1, 3}
    assert set(choose("high", 2, 5, sure, seeded(0)).tolist()) == {2, 4}
    assert choose("rainbow", 1, 5, sure, seeded(0)).tolist() == [0]  # the median
    assert choose("rainbow", 2, 5, sure, seeded(0)).tolist() == [1, 2]  # ranks 0 and 4
    assert choose("rainbow", 3, 5, sure, seeded(0)).tolist() == [1, 0, 2]  # ranks 0, 2 and 4
    assert choose("rainbow", 4, 5, sure, seeded(0)).tolist() == [1, 3, 4, 2]  # ranks 0, 1.3, 2.7 and 4, rounded
    for policy in ("random", "low", "high", "rainbow"):
        assert choose(policy, 5, 5, sure, seeded(0)).tolist() == [0, 1, 2, 3, 4]
        assert choose(policy, 9, 5, sure, seeded(0)).tolist() == [0, 1, 2, 3, 4]
        assert len(choose(policy, 0, 5, sure, seeded(0))) == 0


def test_rainbow_keeps_the_mean_confidence_while_a_class_shrinks():
    sure = torch.arange(100.0)
    for k in (50, 33, 25, 20, 10, 5):
        sure = sure[choose("rainbow", k, len(sure), sure, seeded(0))]
    assert (float(sure.min()), float(sure.max())) == (0, 99)
    assert abs(float(sure.mean()) - 49.5) < 3


def test_random_choice_is_even_and_depends_on_the_seed():
    counts = Counter(row for seed in range(300) for row in choose("random", 3, 10, None, seeded(seed)).tolist())
    assert all(60 < counts[row] < 120 for row in range(10))
    assert choose("random", 3, 10, None, seeded(1)).tolist() == choose("random", 3, 10, None, seeded(1)).tolist()


@pytest.mark.parametrize("policy", ["random", "low", "rainbow"])
def test_a_budget_of_zero_keeps_nothing(policy):
    memory = empty_memory(0)
    memory.update(numbered({0: 5}), [0], seeded(0), policy, confidence)
    memory.update(numbered({1: 5}), [0, 1], seeded(0), policy, confidence)
    assert memory.labeled.images.shape == (0, 1, 8, 8)


def test_added_images_are_over_budget_until_the_next_update():
    memory = empty_memory(4)
    memory.update(numbered({0: 9, 1: 9}), [0, 1], seeded(0))
    memory.add(None)
    memory.add(numbered({0: 3}, 50))
    assert Counter(memory.labeled.labels.tolist()) == {0: 5, 1: 2}
    memory.update(numbered({2: 9}, 80), [0, 1, 2], seeded(1))
    assert Counter(memory.labeled.labels.tolist()) == {0: 1, 1: 1, 2: 2}


def test_without_leaves_out_classes():
    memory = empty_memory(9)
    memory.update(numbered({0: 5, 1: 5, 2: 5}), [0, 1, 2], seeded(0))
    assert Counter(memory.without([1]).labels.tolist()) == {0: 3, 2: 3}
    assert len(memory.without([0, 1, 2])) == 0
    assert len(memory.labeled) == 9


def test_herding_keeps_the_running_mean_nearest_to_the_mean():
    features = torch.randn(12, 3, generator=seeded(0, "features"))
    chosen: list[int] = []
    for _ in range(5):
        gaps = {
            i: float((features.mean(0) - features[[*chosen, i]].mean(0)).norm()) for i in range(12) if i not in chosen
        }
        chosen.append(min(gaps, key=gaps.get))
    assert herded(features, 5).tolist() == chosen
    assert sorted(herded(features, 50).tolist()) == list(range(12))
    assert herded(features, 0).tolist() == []
