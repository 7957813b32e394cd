from pathlib import Path

import numpy as np
import pytest
import torch

from osscl.data import benchmarks, demo
from osscl.data.benchmarks import dataset, load_bank

NOWHERE = Path("nowhere")


@pytest.mark.parametrize("name", benchmarks.EMBEDDED)
def test_an_embedded_bank_is_the_same_at_every_call(name: str):
    one, two = load_bank(name, NOWHERE), load_bank(name, NOWHERE)
    assert one.content == two.content
    assert torch.equal(one.train.images, two.train.images)


@pytest.mark.parametrize("name", benchmarks.EMBEDDED)
def test_an_embedded_bank_is_what_its_spec_says(name: str):
    bank, spec = load_bank(name, NOWHERE), dataset(name)
    pixels = bank.train.images.float() / 255
    assert pixels.shape[1:] == (spec.channels, spec.size, spec.size)
    assert pixels.mean().item() == pytest.approx(spec.mean[0], abs=0.002)
    assert pixels.std().item() == pytest.approx(spec.std[0], abs=0.002)
    assert bank.train.labels.unique().tolist() == list(range(spec.classes))
    assert len(bank.class_names) == spec.classes


@pytest.mark.parametrize("name", benchmarks.EMBEDDED)
def test_a_quarter_of_every_class_is_held_out(name: str):
    bank = load_bank(name, NOWHERE)
    train, test = bank.train.labels.bincount(), bank.test.labels.bincount()
    assert torch.equal(test, (train + test) // 4)


def test_digits_are_all_of_scikit_learns():
    from sklearn.datasets import load_digits

    bank = load_bank("digits", NOWHERE)
    images = torch.cat([bank.train.images, bank.test.images])
    assert images.sum() == np.round(load_digits().images * 255 / 16).sum()
    assert len(images) == 1797


def test_no_test_letter_is_a_training_letter():
    bank = load_bank("letters", NOWHERE)
    train = {image.numpy().tobytes() for image in bank.train.images}
    assert not any(image.numpy().tobytes() in train for image in bank.test.images)


def test_letters_are_enough_for_an_open_world_and_none_is_a_twin_of_a_digit():
    assert not set(demo.LETTERS) & set("OoIlZzSsBbqg")
    assert len(load_bank("letters", NOWHERE).train) >= 1600


def test_letters_look_like_letters():
    """The nearest class mean names most of them: better than one in two of 22."""
    bank = load_bank("letters", NOWHERE)
    train, test = bank.train.images.flatten(1).float(), bank.test.images.flatten(1).float()
    means = torch.stack([train[bank.train.labels == k].mean(0) for k in range(len(bank.class_names))])
    assert (torch.cdist(test, means).argmin(1) == bank.test.labels).float().mean() > 0.5
