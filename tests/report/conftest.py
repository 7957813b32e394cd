"""Three recorded runs that stay as they are, and runs derived from them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from osscl.data.images import ImageBank, Labeled
from osscl.methods import CONFIGURATIONS
from osscl.runs.index import read_records

RESULTS = Path(__file__).parents[2] / "results"
KEPT = ("93df169921b7", "0c33d6e40a6d", "14bcaf241c7b")


@pytest.fixture(scope="session")
def kept():
    """Two runs on one stream and one on another."""
    records, problems = read_records(RESULTS / "earlier")
    assert not problems
    return [as_of_today(record) for record in records if record.id.rpartition("-")[2] in KEPT]


def as_of_today(record):
    """As if made by what the configuration's name stands for now."""
    name = record.configuration.removesuffix("*")
    spec = replace(record.spec, method=CONFIGURATIONS[name])
    return replace(record, id=spec.id, configuration=name, spec=spec)


@pytest.fixture(scope="session")
def ursl(kept):
    return next(record for record in kept if record.configuration == "ursl" and record.spec.scenario.main == "cifar10")


@pytest.fixture(scope="session")
def at_seed():
    """The same run at another seed, `by` points better."""

    def moved(record, seed, by=0.0):
        spec = replace(record.spec, seed=seed)
        overall = tuple(value + by for value in record.overall)
        return replace(record, id=spec.id, spec=spec, overall=overall, final=overall[-1])

    return moved


@pytest.fixture(scope="session")
def named():
    """The same run as if by another configuration, `by` points better."""

    def renamed(record, name, by=0.0):
        spec = replace(record.spec, method=CONFIGURATIONS[name])
        return replace(record, id=spec.id, configuration=name, spec=spec, final=record.final + by)

    return renamed


@pytest.fixture(scope="session")
def banks(ursl):
    """Noise in place of CIFAR: no picture is harder to compress."""
    rng = torch.Generator().manual_seed(0)
    made = {}
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        images = torch.randint(0, 256, (50000, 3, 32, 32), generator=rng, dtype=torch.uint8)
        rows = Labeled(images, torch.arange(50000) % classes)
        names = tuple(f"{name}-{c}" for c in range(classes))
        made[name] = ImageBank(name, rows, rows, names, ursl.content[name])
    return made
