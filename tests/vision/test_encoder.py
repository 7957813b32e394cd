"""Encoders, teachers and growing classifiers: outputs, modes, and independence of the global generator."""

import math

import pytest
import torch
from torch import Tensor, nn

from osscl.errors import SpecError
from osscl.seeding import seeded
from osscl.vision.encoder import (
    Classifier,
    Encoder,
    EncoderConfig,
    GrowingLinear,
    ImageFormat,
    eval_mode,
    frozen_copy,
    in_chunks,
    new_encoder,
)
from refusals import naming
from toy_agents import weights

FORMAT = ImageFormat(3, 8, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
SMALL = EncoderConfig("small", dim=16)
CPU = torch.device("cpu")


def encoder(seed: int = 0, config: EncoderConfig = SMALL) -> Encoder:
    return new_encoder(config, FORMAT, seeded(seed, "init"), CPU, torch.float32)


def images(n: int = 12, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, 8, 8), generator=rng).to(torch.uint8)


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def trained_a_little(net: Encoder) -> Encoder:
    optimiser = torch.optim.SGD(net.parameters(), 0.1)
    net.learning(True)
    for i in range(3):
        optimiser.zero_grad()
        (net(images(seed=i)) * torch.randn(12, 16, generator=seeded(i, "noise"))).sum().backward()
        optimiser.step()
    return net


@pytest.mark.parametrize("training", [True, False])
def test_embeddings_are_projected_features_on_the_unit_sphere(training):
    net, x = encoder().train(training), images()
    raw = net.projector(net.features(x))
    assert net.features(x).shape == (12, net.width) and raw.shape == (12, 16)
    torch.testing.assert_close(net(x), raw / raw.norm(dim=1, keepdim=True))


def test_bytes_and_unit_floats_are_the_same_image():
    net = encoder().eval()
    assert torch.equal(net(images()), net(images().float() / 255))


def test_inputs_are_normalised_by_the_image_format():
    net = encoder().eval()
    shifted = ImageFormat(3, 8, (0.0,) * 3, (1.0,) * 3)
    bare = new_encoder(SMALL, shifted, seeded(0, "init"), CPU, torch.float32).eval()
    x = images().float() / 255
    by_hand = (x - torch.tensor(FORMAT.mean).view(1, 3, 1, 1)) / torch.tensor(FORMAT.std).view(1, 3, 1, 1)
    torch.testing.assert_close(net(x), bare(by_hand))
    assert not torch.allclose(net(x), bare(x))


@pytest.mark.parametrize("on", [True, False])
def test_learning_switches_mode_and_gradients_together(on):
    assert not encoder().training and not encoder()(images()).requires_grad
    net = encoder().learning(not on).learning(on)
    assert all(module.training is on for module in net.modules())
    assert all(p.requires_grad is on for p in net.parameters())
    assert net(images()).requires_grad is on


def test_a_teacher_does_not_change_while_its_original_learns():
    net = trained_a_little(encoder())
    teacher = frozen_copy(net)
    before, seen = weights(teacher), teacher(images())
    trained_a_little(net)
    assert same(weights(teacher), before)  # buffers of the norms included
    assert torch.equal(teacher(images()), seen)
    assert not torch.allclose(net.eval()(images()), seen)


@pytest.mark.parametrize("batch_statistics", [False, True])
def test_a_forward_pass_does_not_change_a_teacher(batch_statistics):
    teacher = frozen_copy(trained_a_little(encoder()), batch_statistics=batch_statistics)
    before = weights(teacher)
    first = teacher(images())
    teacher(images(seed=5))
    assert same(weights(teacher), before)
    assert torch.equal(teacher(images()), first)
    assert not first.requires_grad
    assert not any(p.requires_grad for p in teacher.parameters())


def test_copying_a_teacher_does_not_change_the_original():
    net = trained_a_little(encoder())
    before = weights(net)
    frozen_copy(net, batch_statistics=True)
    assert net.training
    assert all(p.requires_grad for p in net.parameters())
    assert same(weights(net), before)


def test_a_teacher_with_batch_statistics_embeds_like_the_network_in_training():
    config = EncoderConfig("small", dim=16, projector_norm=True)
    net = trained_a_little(encoder(config=config))
    teacher = frozen_copy(net, batch_statistics=True)
    torch.testing.assert_close(teacher(images()), net.train()(images()).detach())
    together = teacher(torch.cat((images(), images(seed=1))))[:12]
    assert not torch.allclose(together, teacher(images()), atol=1e-3)  # the neighbours matter


def test_a_teacher_with_running_statistics_embeds_each_image_alone():
    teacher = frozen_copy(trained_a_little(encoder()))
    torch.testing.assert_close(teacher(torch.cat((images(), images(seed=1))))[:12], teacher(images()))


def test_a_new_encoder_depends_only_on_its_generator_and_leaves_the_global_one_alone():
    one = weights(encoder())
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert same(one, weights(encoder()))
    assert torch.equal(torch.get_rng_state(), before)
    assert not same(one, weights(encoder(1)))


def test_the_projector_has_the_configured_layers():
    width = encoder().width
    shapes = [tuple(p.shape) for p in encoder().projector.parameters()]
    assert shapes == [(width, width), (width,), (16, width), (16,)]
    wide = encoder(config=EncoderConfig("small", hidden=10, dim=5, projector_norm=True)).projector
    assert [type(layer) for layer in wide] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert wide[0].out_features == 10 and wide[-1].out_features == 5
    last = encoder(config=EncoderConfig("small", dim=5, output_norm=True)).projector[-1]
    assert isinstance(last, nn.BatchNorm1d) and last.num_features == 5
    assert not {"mean", "std"} & set(encoder().state_dict())  # the input's normalisation is not a weight


@pytest.mark.parametrize("chunk", [1, 5, 12, 100])
def test_chunks_equal_one_pass(chunk):
    net = encoder().learning(True).eval()
    whole = net(images()).detach()
    parts = in_chunks(net, images(), chunk=chunk)
    torch.testing.assert_close(parts, whole)
    assert not parts.requires_grad


def test_chunks_split_all_inputs_alike_in_order():
    a, b = torch.arange(11.0)[:, None], torch.arange(11.0, 22.0)[:, None]
    sizes = []

    def both(x: Tensor, y: Tensor) -> Tensor:
        sizes.append((len(x), len(y)))
        return x * y

    assert torch.equal(in_chunks(both, a, b, chunk=4), a * b)
    assert sizes == [(4, 4), (4, 4), (3, 3)]


def test_no_images_give_no_rows_of_the_right_width():
    assert in_chunks(encoder().eval(), images(0)).shape == (0, 16)


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_mode_ends_with_the_block_even_on_an_error(training):
    net = encoder().train(training)
    with eval_mode(net):
        assert not any(module.training for module in net.modules())
    assert all(module.training is training for module in net.modules())
    with pytest.raises(ZeroDivisionError), eval_mode(net):
        _ = 1 / 0
    assert all(module.training is training for module in net.modules())


def test_a_growing_layer_keeps_its_old_rows():
    head = GrowingLinear(5)
    head.grow(2, seeded(0, "a"))
    before = head.weight.clone(), head.bias.clone()
    head.grow(3, seeded(0, "b"))
    assert head(torch.zeros(4, 5)).shape == (4, 5)
    assert torch.equal(head.weight[:2], before[0]) and torch.equal(head.bias[:2], before[1])
    assert head.weight.abs().max() <= 1 / math.sqrt(5) and head.weight[2:].std() > 0.1


def test_a_classifier_loads_a_state_with_another_number_of_classes():
    small, large = (Classifier("small", FORMAT, torch.float32) for _ in range(2))
    large.head.grow(7, seeded(0, "a"))
    small.load(large.state_dict())
    assert torch.equal(small.eval()(images()), large.eval()(images()))


def test_invalid_networks_and_formats_are_refused():
    with pytest.raises(SpecError, match=naming("backbone", "resnet19")):
        EncoderConfig("resnet19")
    for wrong in ({"dim": 0}, {"hidden": -1}):
        with pytest.raises(SpecError, match=naming(next(iter(wrong)))):
            EncoderConfig(**wrong)
    with pytest.raises(SpecError, match=naming("size", 8, 28)):
        ImageFormat(3, 28, (0.5,) * 3, (0.5,) * 3)
