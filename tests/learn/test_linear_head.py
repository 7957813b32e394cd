"""Ridge and SGD heads against brute-force solutions; classes count equally; the encoder is left alone."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.data.images import Labeled, concat
from osscl.errors import SpecError
from osscl.learn import linear_head
from osscl.learn.linear_head import (
    SCALES,
    HeadConfig,
    HeadFit,
    calibrated_scale,
    class_sums,
    class_weights,
    fit_head,
    rank_in_class,
    weighted_ridge,
)
from osscl.seeding import seeded
from osscl.vision.augment import Augmentation
from osscl.vision.encoder import Encoder, EncoderConfig, ImageFormat, new_encoder
from refusals import naming

FORMAT = ImageFormat(1, 8, (0.5,), (0.3,))
STILL = Augmentation(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, jitter=0.0, grey=0.0)
CROPS = Augmentation(scale=(0.6, 1.0), flip=0.0, jitter=0.0, grey=0.0)


def test_class_weights_make_classes_count_equally():
    columns = torch.tensor([0, 0, 0, 1, 2, 2])
    assert torch.allclose(torch.bincount(columns) * class_weights(columns, 3), torch.full((3,), 2.0))
    assert class_weights(torch.tensor([0] * 99 + [1]), 2, smoothing=1, most=10).tolist() == pytest.approx([0.51, 10.0])


def test_class_sums_and_ranks_by_hand():
    z = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    assert class_sums(z, torch.tensor([1, 0, 1]), 3).tolist() == [[0, 2], [4, 1], [0, 0]]
    assert rank_in_class(torch.tensor([0, 0, 0, 1, 2, 2]), 3).tolist() == [0, 1, 2, 0, 0, 1]


def encoder() -> Encoder:
    made = new_encoder(EncoderConfig("small", dim=8), FORMAT, seeded(0, "init"), torch.device("cpu"), torch.float32)
    return made.learning(True)


def stripes(counts: dict[int, int], seed: int = 0) -> Labeled:
    """Class c is a bright row c on dark noise: separable."""
    labels = torch.cat([torch.full((n,), c) for c, n in counts.items()])
    images = torch.randint(0, 90, (len(labels), 1, 8, 8), generator=seeded(seed, "noise")).to(torch.uint8)
    images[torch.arange(len(labels)), 0, labels % 8] = 230
    return Labeled(images, labels)


def fit(config: HeadConfig, data: Labeled, classes: list[int], augmentation: Augmentation = STILL, **more):
    task = HeadFit(encoder(), data, classes, augmentation, more.pop("seed", 0), ("head",), **more)
    return fit_head(config, task), task.encoder


def features(net: Encoder, images: Tensor) -> Tensor:
    with torch.no_grad():
        return net.eval().features(images)


def brute_ridge(x: np.ndarray, targets: np.ndarray, k: int, penalty: float) -> np.ndarray:
    """Class-balanced least squares with a penalty on all but the intercept (the last row), as one tall problem."""
    d, y = x.shape[1], np.eye(k)[targets]
    root = np.sqrt([len(x) / k / (targets == c).sum() for c in targets])[:, None]
    tall = np.block([[root * x, root], [math.sqrt(penalty) * np.eye(d), np.zeros((d, 1))]])
    return np.linalg.lstsq(tall, np.vstack([root * y, np.zeros((d, k))]), rcond=None)[0]


@pytest.mark.parametrize("k", [3, 4], ids=["all classes present", "a class without rows"])
def test_weighted_ridge_is_the_class_balanced_brute_force_solution(k):
    x = torch.randn(40, 7, generator=seeded(0, "x"), dtype=torch.float64)
    targets = torch.cat([torch.full((n,), c) for c, n in ((0, 4), (1, 25), (k - 1, 11))])
    weight, bias = weighted_ridge(x, targets, k, penalty=2.0)
    solution = brute_ridge(x.numpy(), targets.numpy(), k, 2.0)
    np.testing.assert_allclose(weight.numpy(), solution[:-1].T, atol=1e-6)
    np.testing.assert_allclose(bias.numpy(), solution[-1], atol=1e-6)


@pytest.mark.parametrize("copies", [0, 2])
@pytest.mark.parametrize("classes", [[3, 0, 5], [5, 3, 0]])
@pytest.mark.parametrize("pseudo", [None, {3: 6, 5: 7}], ids=["labels", "pseudo-labels once, without copies"])
def test_the_ridge_head_is_ridge_regression_on_centred_unit_features_times_a_scale(copies, classes, pseudo):
    data, more = stripes({0: 4, 3: 25, 5: 11}), stripes(pseudo, seed=1) if pseudo else None
    head, net = fit(HeadConfig("ridge", penalty=2.0, copies=copies), data, classes, pseudo_labeled=more)
    raw, labels = features(net, data.images).repeat(copies + 1, 1), data.labels.repeat(copies + 1)  # copies are equal
    if more is not None:
        raw, labels = torch.cat((raw, features(net, more.images))), torch.cat((labels, more.labels))
    x = raw.double().numpy() - raw.double().numpy().mean(0)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    solution = brute_ridge(x, np.array([classes.index(c) for c in labels.tolist()]), 3, 2.0)
    assert head.scale in SCALES
    np.testing.assert_allclose(head(raw).numpy() / head.scale, x @ solution[:-1] + solution[-1], atol=5e-4)


def test_the_scale_is_the_best_one_for_held_out_rows():
    x = F.normalize(torch.randn(60, 5, generator=seeded(0, "x"), dtype=torch.float64), dim=1)
    targets = (x[:, :3] + 0.3 * torch.randn(60, 3, generator=seeded(0, "noise"), dtype=torch.float64)).argmax(1)
    held_out = torch.arange(60) % 2 == 1
    weight, bias = weighted_ridge(x[~held_out], targets[~held_out], 3, 1.0)
    losses = [F.cross_entropy(s * (x[held_out] @ weight.T + bias), targets[held_out]).item() for s in SCALES]
    assert calibrated_scale(x, targets, held_out, 3, 1.0) == SCALES[losses.index(min(losses))]
    assert min(losses) not in (losses[0], losses[-1])  # an inner candidate: a choice


def test_held_out_images_are_held_out_with_all_copies_never_a_whole_class_and_no_pseudo_labels(monkeypatch):
    asked = []
    monkeypatch.setattr(linear_head, "calibrated_scale", lambda x, y, held_out, *_: asked.append(held_out) or 1.0)
    data = stripes({5: 3, 0: 1, 2: 2}).rows(torch.tensor([0, 3, 1, 4, 2, 5]))  # labels 5, 0, 5, 2, 5, 2
    fit(HeadConfig("ridge", copies=2), data, [0, 2, 5], CROPS, pseudo_labeled=stripes({2: 4}))
    assert asked[0].tolist() == [False, False, True, False, False, True] * 3 + [False] * 4


def test_without_rows_to_hold_out_the_scale_is_one():
    data = stripes({0: 1, 2: 1, 5: 1})
    head, net = fit(HeadConfig("ridge", copies=0), data, [0, 2, 5])
    x = F.normalize(features(net, data.images) - head.center, dim=1).double()
    weight, bias = weighted_ridge(x, torch.arange(3), 3, HeadConfig().penalty)
    torch.testing.assert_close(head.weight, weight.float(), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(head.bias, bias.float(), atol=1e-6, rtol=1e-4)
    assert head(features(net, data.images)).argmax(1).tolist() == [0, 1, 2]


def test_the_ridge_head_uses_the_plain_images_and_different_augmented_copies():
    data = stripes({0: 10, 1: 10})
    task = HeadFit(encoder().eval(), data, [0, 1], CROPS, 0, ("head",))
    seen = [features(task.encoder, data.images), task.view(0), task.view(1)]
    assert not torch.allclose(seen[0], seen[1]) and not torch.allclose(seen[1], seen[2])
    head = fit_head(HeadConfig("ridge", copies=2), task)
    torch.testing.assert_close(head.center, torch.cat(seen).mean(0))


def test_sgd_treats_pseudo_labels_like_labels():
    data, pseudo = stripes({0: 8}), stripes({3: 8})
    apart, _ = fit(HeadConfig("sgd", epochs=3), data, [0, 3], pseudo_labeled=pseudo)
    together, _ = fit(HeadConfig("sgd", epochs=3), concat(data, pseudo), [0, 3])
    assert torch.equal(apart.weight, together.weight)


@pytest.mark.parametrize("config", [HeadConfig("ridge", copies=2), HeadConfig("sgd", epochs=40)], ids=["ridge", "sgd"])
@pytest.mark.parametrize("classes", [[0, 2, 5], [5, 0, 2], [2, 5, 0]])
def test_heads_separate_separable_classes_with_columns_in_the_order_of_the_classes(config, classes):
    head, net = fit(config, stripes({0: 20, 2: 20, 5: 20}), classes)
    test = stripes({0: 15, 2: 15, 5: 15}, seed=1)
    logits = head(features(net, test.images))
    assert logits.shape == (45, 3)
    assert (torch.tensor(classes)[logits.argmax(1)] == test.labels).float().mean().item() > 0.95


@pytest.mark.parametrize("config", [HeadConfig("ridge", copies=1), HeadConfig("sgd", epochs=3)], ids=["ridge", "sgd"])
def test_a_class_without_rows_has_a_column_and_is_never_predicted(config):
    head, net = fit(config, stripes({0: 20, 2: 20}), [7, 0, 2])
    logits = head(features(net, stripes({0: 10, 2: 10}, seed=1).images))
    assert logits.shape == (20, 3) and bool(logits.isfinite().all())
    assert 0 not in logits.argmax(1)


def test_the_sgd_head_draws_rare_classes_as_often_as_frequent_ones():
    """On constant features the best logits are the log of the class shares: equal, if drawn equally."""
    labels = torch.cat((torch.zeros(180, dtype=torch.long), torch.ones(20, dtype=torch.long)))
    blank = Labeled(torch.full((200, 1, 8, 8), 128, dtype=torch.uint8), labels)
    head, net = fit(HeadConfig("sgd", epochs=60, batch=50), blank, [0, 1])
    assert 0.4 < head(features(net, blank.images[:1])).softmax(1)[0, 1].item() < 0.6


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("solver", ["ridge", "sgd"])
def test_fitting_a_head_does_not_change_the_encoder(solver, training):
    net = encoder().train(training)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    task = HeadFit(net, stripes({0: 9, 1: 9}), [0, 1], CROPS, 0, ("head",))
    fit_head(HeadConfig(solver, epochs=2, copies=2), task)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert net.training is training
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("solver", ["ridge", "sgd"])
def test_a_head_depends_on_its_seed_and_not_on_the_global_generator(solver):
    config, data = HeadConfig(solver, epochs=3, copies=2), stripes({0: 9, 1: 9})
    torch.manual_seed(1)
    one, other = fit(config, data, [0, 1], CROPS)[0], fit(config, data, [0, 1], CROPS, seed=1)[0]
    torch.manual_seed(2)
    two = fit(config, data, [0, 1], CROPS)[0]
    assert torch.equal(one.weight, two.weight) and torch.equal(one.bias, two.bias)
    assert not torch.equal(one.weight, other.weight)


def test_a_cap_limits_epochs_and_copies():
    data = stripes({0: 9, 1: 9})
    capped = fit(HeadConfig("sgd", epochs=50), data, [0, 1], cap=2)[0]
    decayed_later = fit(HeadConfig("sgd", epochs=2), data, [0, 1])[0]
    assert not torch.allclose(capped.weight, fit(HeadConfig("sgd", epochs=50), data, [0, 1])[0].weight)
    assert capped.weight.norm() >= decayed_later.weight.norm() > 0
    ridge = [fit(HeadConfig("ridge", copies=n), data, [0, 1], CROPS, cap=m)[0] for n, m in ((9, 2), (2, None))]
    assert torch.equal(ridge[0].weight, ridge[1].weight)


@pytest.mark.parametrize(
    "wrong", [{"solver": "svm"}, {"epochs": 0}, {"batch": 0}, {"rate": 0.0}, {"penalty": 0.0}, {"copies": -1}]
)
def test_invalid_head_settings_are_refused_by_field(wrong):
    with pytest.raises(SpecError, match=naming(next(iter(wrong)))):
        HeadConfig(**wrong)
