"""Batches of row numbers. A batch depends only on its number, so a phase can resume at any of them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from osscl.seeding import seeded
from osscl.vision.augment import draws


@dataclass(frozen=True)
class Shuffled:
    """Endless batches of equal size over a pool, reshuffled at every pass.

    Deviation: a data loader ends a pass with a smaller batch. Here that batch is filled up with rows from the beginning
    of the same pass: no row occurs twice in a batch, and all batches have the same shape. `drop_last` leaves it out.
    """

    length: int  # rows of the pool
    size: int  # rows per batch; limited by the pool
    seed: int
    names: tuple[str | int, ...]  # the purpose, see `seeded`
    device: torch.device
    drop_last: bool = False

    @property
    def rows(self) -> int:
        return min(self.size, self.length)

    @property
    def per_epoch(self) -> int:
        return self.length // self.rows if self.drop_last else math.ceil(self.length / self.rows)

    def starting(self, number: int) -> Iterator[Tensor]:
        """Batch `number` and those after it, each (rows,)."""
        current, order = -1, torch.empty(0)
        while True:
            turn, batch = divmod(number, self.per_epoch)
            if turn != current:
                rng = seeded(self.seed, *self.names, "pass", turn, device=self.device)
                current, order = turn, torch.randperm(self.length, generator=rng, device=self.device)
            end = (batch + 1) * self.rows
            rows = order[batch * self.rows : end]
            yield rows if end <= self.length else torch.cat((rows, order[: end - self.length]))
            number += 1

    def with_draws(self, start: int, views: int = 2) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches from `start` on, each with the uniform random numbers of `views` views of its rows."""
        for number, rows in enumerate(self.starting(start), start):
            rng = seeded(self.seed, *self.names, "views", number, device=self.device)
            yield rows, draws(views * len(rows), rng)


def zip_pools(pools: Sequence[tuple[Shuffled, int]], start: int) -> Iterator[tuple[Tensor, ...]]:
    """Rows and random numbers of one batch of each pool, given with its number of views; empty pools are left out."""
    for parts in zip(*(pool.with_draws(start, views) for pool, views in pools if pool.length), strict=True):
        yield tuple(tensor for part in parts for tensor in part)
