"""A byte budget for statistics of past data: half precision, covariances as a diagonal and a few directions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

HALF = 2  # bytes of a number in half precision
COUNT = 4  # bytes of a class's number of labels


@dataclass(frozen=True)
class BytePlan:
    """How the bytes of a memory are split between statistics and images."""

    rank: int  # directions of every covariance
    statistics: int  # bytes
    images: int  # a number of images


def plan_bytes(
    budget: int, image: int, share: float, classes: int, widths: Sequence[int], background: int, most: int
) -> BytePlan:  # fmt: skip
    """Directions that fit into `share` of `budget`, at `most` so many; images of `image` bytes fill what is left free.

    Each of the networks, of these `widths`, has a mean per class and one covariance; `background` is the width of the
    Gaussian of unlabelled rows, 0 without one. Means and diagonals are kept even where they need more than the share.
    """
    fixed = sum(HALF * (classes + 1) * width + COUNT * classes for width in widths) + HALF * 2 * background
    per_direction = HALF * (sum(widths) + background)
    rank = min(max(0, int(share * budget) - fixed) // per_direction, most, *widths)
    statistics = fixed + rank * per_direction
    return BytePlan(rank, statistics, max(0, budget - statistics) // image)


def compact_covariance(covariance: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The variances that the `rank` strongest directions leave over (d,), and those directions (rank, d), in half."""
    values, vectors = torch.linalg.eigh(covariance.double())
    strongest = values.argsort(descending=True)[:rank]
    directions = (vectors[:, strongest] * values[strongest].clamp(min=0).sqrt()).T
    rest = (covariance.diagonal() - directions.square().sum(0)).clamp(min=0)
    return rest.half(), directions.half().contiguous()


def expanded_covariance(diagonal: Tensor, directions: Tensor) -> Tensor:
    """The covariance (d, d) that a diagonal and directions stand for."""
    directions = directions.double()
    return directions.T @ directions + diagonal.double().diag()


def approximate_covariance(covariance: Tensor, rank: int) -> Tensor:
    """A covariance as it is after being kept with `rank` directions."""
    return expanded_covariance(*compact_covariance(covariance, rank))


def bytes_of(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
