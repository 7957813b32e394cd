"""How the bytes of a memory are split between images and statistics, in every cell of the main tables."""

import re
from pathlib import Path

import pytest
import torch

from osscl.methods import URSL_PLUS
from osscl.methods.byte_budget import HALF, BytePlan, approximate_covariance, compact_covariance, plan_bytes
from osscl.runs.spec import EXPERIMENTS
from osscl.seeding import seeded

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "ursl-plus.md"
WIDTH, IMAGE = 512, 3 * 32 * 32  # of a ResNet-18's features; bytes
MAIN = ("cifar10-p01", "cifar10-p10", "cifar100-p05", "cifar100-p10")


def plan(name, classes=None, share=URSL_PLUS.statistics_share, most=URSL_PLUS.statistics_rank):
    scenario = EXPERIMENTS[name]
    return plan_bytes(scenario.memory * IMAGE, IMAGE, share, classes or scenario.classes, (WIDTH, WIDTH), WIDTH, most)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.4, 0.6, 0.8])
@pytest.mark.parametrize("name", MAIN)
def test_statistics_and_images_fit_into_the_memory_of_every_main_cell_at_every_step(name, share):
    scenario = EXPERIMENTS[name]
    budget, sizes = scenario.memory * IMAGE, scenario.classes_per_step
    for t in range(len(sizes)):
        found = plan(name, sum(sizes[: t + 1]), share, most=WIDTH)
        assert found.statistics + found.images * IMAGE <= budget
        assert found.statistics + (found.images + 1) * IMAGE > budget  # nothing is wasted
    assert found.images >= scenario.classes or share > 0.6  # an image of every class is left


@pytest.mark.parametrize("name", MAIN)
def test_the_page_shows_how_the_default_splits_the_bytes(name):
    scenario, found = EXPERIMENTS[name], plan(name)
    shown = {
        line.split(" | ")[0].strip("| `"): line for line in PAGE.read_text().splitlines() if line.startswith("| `cif")
    }
    numbers = [int(n.replace(",", "")) for n in re.findall(r"[\d,]+", shown[name].partition(" | ")[2])]
    kept = found.statistics + found.images * IMAGE
    assert numbers == [scenario.memory, scenario.memory * IMAGE, found.rank, found.statistics, found.images, kept]


def test_more_classes_or_a_smaller_share_leave_fewer_directions():
    ranks = [plan("cifar100-p05", classes, most=WIDTH).rank for classes in (10, 50, 100)]
    assert ranks == sorted(ranks, reverse=True) and ranks[0] > ranks[-1]
    assert plan("cifar100-p05", share=0.2).rank < plan("cifar100-p05", share=0.6).rank
    assert plan("cifar100-p05").rank == 64 and plan("cifar100-p05", most=10).rank == 10


def test_means_are_kept_even_where_they_need_more_than_their_share():
    found = plan("cifar100-p05", share=0.01)
    assert found.rank == 0 and found.statistics > 0.01 * 500 * IMAGE and found.images < 500
    assert plan_bytes(1000, IMAGE, 0.5, 10, (WIDTH,), 0, 64) == BytePlan(0, HALF * 11 * WIDTH + 40, 0)


def test_directions_are_the_strongest_and_the_diagonal_holds_the_rest():
    basis = torch.linalg.qr(torch.randn(6, 6, generator=seeded(0, "basis"), dtype=torch.float64)).Q
    covariance = basis @ torch.diag(torch.tensor([9.0, 4, 1, 0.5, 0.1, 0]).double()) @ basis.T
    diagonal, directions = compact_covariance(covariance, 2)
    assert diagonal.dtype == directions.dtype == torch.float16 and directions.shape == (2, 6)
    torch.testing.assert_close(directions.double().norm(dim=1), torch.tensor([3.0, 2]).double(), rtol=1e-3, atol=0)
    errors = [float((approximate_covariance(covariance, rank) - covariance).norm()) for rank in (0, 1, 2, 6)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.02
