"""Groups: planted ones are found without their number, for three rows and for many."""

import time

import pytest
import torch
from torch import Tensor

from fitted import fitted_head
from osscl.learn.embedded import summarise
from osscl.learn.grouping import comparable, group


def planted(groups: int, each: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(groups).repeat(each)
    return 3 * torch.randn(groups, 40, generator=rng)[y] + torch.randn(len(y), 40, generator=rng), y


@pytest.mark.parametrize("groups", [1, 2, 5, 12])
def test_planted_groups_are_found_without_their_number(groups: int):
    x, y = planted(groups, 20)
    found = group(x)
    assert int(found.max()) + 1 == groups
    assert all(len(found[y == k].unique()) == 1 for k in range(groups))


def test_a_number_that_is_given_is_kept_and_the_largest_group_comes_first():
    x, y = planted(4, 10)
    x = x[(y != 2) | (torch.arange(len(y)) < 8)]
    found = group(x, 4)
    sizes = found.bincount()
    assert len(sizes) == 4 and sizes.tolist() == sorted(sizes.tolist(), reverse=True)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 6])
def test_few_rows(rows: int):
    x = planted(3, 2)[0][:rows]
    assert len(group(x)) == rows
    assert len(group(x, 2)) == rows and len(group(x, 9)) == rows


def test_rows_that_are_all_the_same_are_one_group():
    assert not group(torch.ones(20, 8)).any()
    assert not group(torch.ones(20, 8), 3).any()


def test_many_rows_join_the_groups_of_a_sample():
    x, y = planted(6, 5000)
    start = time.perf_counter()
    found = group(x)
    assert time.perf_counter() - start < 10
    assert int(found.max()) == 5 and torch.equal(found, group(x))
    assert all((found[y == k] == found[y == k].mode().values).float().mean() > 0.99 for k in range(6))


def test_variation_within_known_classes_counts_little():
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(4).repeat_interleave(20)
    nuisance = torch.zeros(8).index_fill(0, torch.tensor([0]), 3.0)
    x = torch.randn(4, 8, generator=rng)[y] + 0.1 * torch.randn(80, 8, generator=rng)
    x = x + torch.randn(80, 1, generator=rng) * nuisance
    head = fitted_head(summarise(x, y, ["a", "b", "c", "d"], (8,)), x, y)
    spread = comparable(head, x).var(0) / comparable(head, x).var(0).sum()
    assert spread.max() < 0.9 and comparable(head, x).shape == (80, 8)
