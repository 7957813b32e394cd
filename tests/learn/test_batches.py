"""Batches are functions of their number: every row once per pass, one shape, resumable anywhere."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from osscl.learn.batches import Shuffled, zip_pools
from osscl.vision.augment import DRAWS

CPU = torch.device("cpu")
POOLS = [(12, 4), (10, 4), (7, 5), (5, 5), (3, 8), (1, 1), (101, 7)]


def shuffled(pool: int, size: int, seed: int = 0, *names: str) -> Shuffled:
    return Shuffled(pool, size, seed, names or ("test",), CPU)


def batches(source: Shuffled, n: int, start: int = 0) -> list[Tensor]:
    return list(itertools.islice(source.starting(start), n))


@pytest.mark.parametrize(("pool", "size"), POOLS)
def test_a_pass_contains_every_row_and_fills_its_last_batch_from_its_own_beginning(pool, size):
    source = shuffled(pool, size)
    for start in (0, source.per_epoch, 5 * source.per_epoch):
        rows = torch.cat(batches(source, source.per_epoch, start))
        assert sorted(rows[:pool].tolist()) == list(range(pool))
        assert torch.equal(rows[pool:], rows[: len(rows) - pool])


@pytest.mark.parametrize(("pool", "size"), POOLS)
def test_batches_have_one_shape_and_no_row_twice(pool, size):
    for rows in batches(shuffled(pool, size), 60):
        assert len(set(rows.tolist())) == len(rows) == min(pool, size)


@pytest.mark.parametrize(("pool", "size"), POOLS)
def test_drop_last_leaves_only_full_batches(pool, size):
    source = replace(shuffled(pool, size), drop_last=True)
    assert source.per_epoch == pool // min(pool, size)
    rows = torch.cat(batches(source, source.per_epoch)).tolist()
    assert len(set(rows)) == len(rows) == source.per_epoch * source.rows
    assert torch.equal(batches(source, 1)[0], batches(shuffled(pool, size), 1)[0])


def test_over_many_passes_every_row_is_drawn_about_equally_often():
    counts = torch.bincount(torch.cat(batches(shuffled(10, 4), 3 * 400)))  # 400 passes of 12 rows
    assert counts.sum() == 4800
    assert counts.min() > 440 and counts.max() < 520


def test_passes_are_shuffled_differently():
    rows = torch.cat(batches(shuffled(20, 5), 12)).view(3, 20)
    assert len({tuple(order.tolist()) for order in rows} | {tuple(range(20))}) == 4


@pytest.mark.parametrize("start", [0, 1, 2, 3, 7, 50])
@pytest.mark.parametrize(("pool", "size"), [(10, 4), (12, 4), (3, 8)])
def test_starting_at_a_batch_gives_the_same_batches_as_iterating_to_it(pool, size, start):
    walked = batches(shuffled(pool, size), start + 5)[start:]
    assert all(map(torch.equal, walked, batches(shuffled(pool, size), 5, start)))


def test_a_pool_smaller_than_a_batch_shrinks_the_batch():
    source = shuffled(5, 512)
    assert (source.rows, source.per_epoch) == (5, 1)
    assert [sorted(rows.tolist()) for rows in batches(source, 3)] == [[0, 1, 2, 3, 4]] * 3


def test_an_epoch_is_as_many_batches_as_a_pass_needs():
    assert [shuffled(pool, 4).per_epoch for pool in (4, 5, 8, 9)] == [1, 2, 2, 3]


def test_batches_depend_on_seed_and_purpose():
    kinds = [shuffled(50, 50), shuffled(50, 50, 1), shuffled(50, 50, 0, "other")]
    assert len({tuple(batches(source, 1)[0].tolist()) for source in kinds}) == 3


@pytest.mark.parametrize("views", [1, 2])
def test_random_numbers_belong_to_the_batch_number_one_row_per_view(views):
    walked = list(itertools.islice(shuffled(10, 4).with_draws(0, views), 6))
    jumped = list(itertools.islice(shuffled(10, 4).with_draws(3, views), 3))
    for (rows, u), (rows_again, u_again) in zip(walked[3:], jumped, strict=True):
        assert torch.equal(rows, rows_again) and torch.equal(u, u_again)
    assert walked[0][1].shape == (4 * views, DRAWS)
    assert len({u.numpy().tobytes() for _, batch in walked for u in batch}) == 6 * 4 * views


def test_pools_side_by_side_yield_their_own_batches_and_empty_pools_nothing():
    one, other, empty = shuffled(10, 4, 0, "one"), shuffled(7, 5, 0, "other"), shuffled(0, 3)
    for rows, u, more, v in itertools.islice(zip_pools([(one, 2), (empty, 1), (other, 1)], 3), 1):
        assert all(map(torch.equal, (rows, u), next(one.with_draws(3, 2))))
        assert all(map(torch.equal, (more, v), next(other.with_draws(3, 1))))
