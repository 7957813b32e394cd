"""Batches as row numbers. Each is a function of its own number, so a phase can go on from any of them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from osscl.seeding import seeded
from osscl.vision.augment import draws


@dataclass(frozen=True)
class Shuffled:
    """Endless batches of one size over a pool, pass after pass, each pass in an order of its own.

    Deviation: a loader ends a pass with a smaller batch. Here that batch is filled up with rows from the beginning of
    the same pass: no row stands twice in a batch, and all batches have one shape. `drop_last` leaves it out.
    """

    pool: int
    size: int  # rows a batch; no more than the pool has
    seed: int
    names: tuple[str | int, ...]  # the purpose, see `seeded`
    device: torch.device
    drop_last: bool = False

    @property
    def rows(self) -> int:
        return min(self.size, self.pool)

    @property
    def per_epoch(self) -> int:
        return self.pool // self.rows if self.drop_last else math.ceil(self.pool / self.rows)

    def starting(self, number: int) -> Iterator[Tensor]:
        """Batch `number` and those after it, each (rows,)."""
        current, order = -1, torch.empty(0)
        while True:
            turn, batch = divmod(number, self.per_epoch)
            if turn != current:
                current, order = turn, self._order(turn)
            end = (batch + 1) * self.rows
            rows = order[batch * self.rows : end]
            yield rows if end <= self.pool else torch.cat((rows, order[: end - self.pool]))
            number += 1

    def expected(self, mask: Tensor) -> float:
        """How many rows of a batch `mask` (pool,) holds for, on average."""
        return float(mask.float().mean()) * self.rows

    def _order(self, turn: int) -> Tensor:
        rng = seeded(self.seed, *self.names, "pass", turn, device=self.device)
        return torch.randperm(self.pool, generator=rng, device=self.device)


@dataclass(frozen=True)
class Balanced:
    """Batches with an equal share from each of several stretches of the pool (`balanced_sources`)."""

    parts: tuple[Shuffled, ...]

    @classmethod
    def over(cls, sizes: Sequence[int], like: Shuffled) -> "Balanced":
        shares = len([n for n in sizes if n])
        share = max(1, like.rows // shares)
        return cls(
            tuple(Shuffled(n, share, like.seed, (*like.names, "part", i), like.device) for i, n in enumerate(sizes))
        )

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts if part.pool)

    def expected(self, mask: Tensor) -> float:
        """How many rows of a batch `mask` (pool,) holds for, on average."""
        pieces = mask.split([part.pool for part in self.parts])
        return sum(part.expected(piece) for part, piece in zip(self.parts, pieces, strict=True) if part.pool)

    def starting(self, number: int) -> Iterator[Tensor]:
        starts = [sum(part.pool for part in self.parts[:i]) for i in range(len(self.parts))]
        streams = [(start, part.starting(number)) for start, part in zip(starts, self.parts, strict=True) if part.pool]
        while True:
            yield torch.cat([start + next(rows) for start, rows in streams])


def with_draws(
    batches: Shuffled | Balanced,
    names: tuple[str | int, ...],
    seed: int,
    start: int,
    device: torch.device,
    views: int = 2,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches from `start` on, each with the uniform numbers of two views, or however many, of its rows."""
    for number, rows in enumerate(batches.starting(start), start):
        yield rows, draws(views * len(rows), seeded(seed, *names, "views", number, device=device))


def side_by_side(pools: Sequence[tuple[Shuffled, int]], start: int) -> Iterator[tuple[Tensor, ...]]:
    """Rows and uniform numbers of a batch of each pool, for so many views of its rows; empty pools are left out."""
    streams = [with_draws(p, p.names, p.seed, start, p.device, views) for p, views in pools if p.pool]
    for parts in zip(*streams, strict=True):
        yield tuple(tensor for part in parts for tensor in part)
