import pytest
import torch
from torch import Tensor, nn

from osscl.errors import SpecError
from osscl.seeding import seeded
from osscl.vision.encoder import (
    Encoder,
    EncoderConfig,
    ImageFormat,
    eval_mode,
    frozen_copy,
    in_chunks,
    new_encoder,
)

FORMAT = ImageFormat(3, 8, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
SMALL = EncoderConfig("small", dim=16)
CPU = torch.device("cpu")


def encoder(seed: int = 0, config: EncoderConfig = SMALL) -> Encoder:
    return new_encoder(config, FORMAT, seeded(seed, "init"), CPU, torch.float32)


def images(n: int = 12, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, 8, 8), generator=rng).to(torch.uint8)


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


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
def test_embeddings_are_unit_rows(training):
    z = encoder().train(training)(images())
    assert z.shape == (12, 16)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(12))


def test_embeddings_are_projections_put_on_the_sphere_and_projections_are_of_features():
    net = encoder().eval()
    x = images()
    raw = net.project(x)
    assert not torch.allclose(raw.norm(dim=1), torch.ones(12))
    torch.testing.assert_close(net(x), raw / raw.norm(dim=1, keepdim=True))
    torch.testing.assert_close(raw, net.projector(net.features(x)))
    assert net.features(x).shape == (12, net.width)


def test_bytes_and_floats_in_the_unit_interval_are_the_same_image():
    net = encoder().eval()
    assert torch.equal(net(images()), net(images().float() / 255))


def test_the_normaliser_is_the_formats():
    net = encoder().eval()
    shifted = ImageFormat(3, 8, (0.0,) * 3, (1.0,) * 3)
    bare = new_encoder(SMALL, shifted, seeded(0, "init"), CPU, torch.float32).eval()
    x = images().float() / 255
    by_hand = (x - torch.tensor(FORMAT.mean).view(1, 3, 1, 1)) / torch.tensor(FORMAT.std).view(1, 3, 1, 1)
    torch.testing.assert_close(net(x), bare(by_hand))
    assert not torch.allclose(net(x), bare(x))


@pytest.mark.parametrize("on", [True, False])
def test_a_network_learns_or_does_not_mode_and_gradients_together(on):
    net = encoder().learning(not on).learning(on)
    assert all(module.training is on for module in net.modules())
    assert all(p.requires_grad is on for p in net.parameters())
    assert net(images()).requires_grad is on


def test_a_new_network_does_not_learn_until_it_is_told_to():
    assert not encoder().training
    assert not encoder()(images()).requires_grad


def test_a_teacher_stays_as_it_was_while_its_original_learns():
    net = trained_a_little(encoder())
    teacher = frozen_copy(net)
    before, seen = weights(teacher), teacher(images())
    trained_a_little(net)
    assert same(weights(teacher), before)  # buffers of the norms included
    assert torch.equal(teacher(images()), seen)
    assert not torch.allclose(net.eval()(images()), seen)


@pytest.mark.parametrize("batch_statistics", [False, True])
def test_looking_at_images_does_not_change_a_teacher(batch_statistics):
    teacher = frozen_copy(trained_a_little(encoder()), batch_statistics=batch_statistics)
    before = weights(teacher)
    first = teacher(images())
    teacher(images(seed=5))
    assert same(weights(teacher), before)
    assert torch.equal(teacher(images()), first)
    assert not first.requires_grad
    assert not any(p.requires_grad for p in teacher.parameters())


def test_making_a_teacher_leaves_the_original_training_and_with_its_buffers():
    net = trained_a_little(encoder())
    before = weights(net)
    frozen_copy(net, batch_statistics=True)
    assert net.training
    assert all(p.requires_grad for p in net.parameters())
    assert same(weights(net), before)


def test_a_teacher_of_batch_statistics_sees_what_the_network_in_training_sees():
    config = EncoderConfig("small", dim=16, projector_norm=True)
    net = trained_a_little(encoder(config=config))
    teacher = frozen_copy(net, batch_statistics=True)
    torch.testing.assert_close(teacher(images()), net.train()(images()).detach())
    together = teacher(torch.cat((images(), images(seed=1))))[:12]
    assert not torch.allclose(together, teacher(images()), atol=1e-3)  # the neighbours matter


def test_a_teacher_of_running_statistics_sees_each_image_alone():
    teacher = frozen_copy(trained_a_little(encoder()))
    torch.testing.assert_close(teacher(torch.cat((images(), images(seed=1))))[:12], teacher(images()))


def test_a_new_encoder_depends_on_its_generator_alone():
    one = weights(encoder())
    torch.manual_seed(99)
    torch.rand(7)
    assert same(one, weights(encoder()))
    assert not same(one, weights(encoder(1)))


def test_a_new_encoder_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    encoder()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_projector_has_the_widths_that_the_config_names():
    width = encoder().width
    shapes = [tuple(p.shape) for p in encoder().projector.parameters()]
    assert shapes == [(width, width), (width,), (16, width), (16,)]
    wide = encoder(config=EncoderConfig("small", hidden=10, dim=5, projector_norm=True)).projector
    assert [type(layer) for layer in wide] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert wide[0].out_features == 10 and wide[-1].out_features == 5


def test_the_normaliser_is_no_part_of_the_weights():
    assert not {"mean", "std"} & set(encoder().state_dict())


@pytest.mark.parametrize("chunk", [1, 5, 12, 100])
def test_chunks_make_what_one_pass_makes(chunk):
    net = encoder().learning(True).eval()
    whole = net(images()).detach()
    parts = in_chunks(net, images(), chunk=chunk)
    torch.testing.assert_close(parts, whole)
    assert not parts.requires_grad


def test_chunks_cut_all_inputs_alike_and_keep_their_order():
    a, b = torch.arange(11.0)[:, None], torch.arange(11.0, 22.0)[:, None]
    sizes = []

    def both(x: Tensor, y: Tensor) -> Tensor:
        sizes.append((len(x), len(y)))
        return x * y

    assert torch.equal(in_chunks(both, a, b, chunk=4), a * b)
    assert sizes == [(4, 4), (4, 4), (3, 3)]


def test_no_images_make_no_rows_of_the_right_width():
    assert in_chunks(encoder().eval(), images(0)).shape == (0, 16)


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_mode_ends_with_the_block_even_by_an_error(training):
    net = encoder().train(training)
    with eval_mode(net):
        assert not any(module.training for module in net.modules())
    assert all(module.training is training for module in net.modules())
    with pytest.raises(ZeroDivisionError), eval_mode(net):
        _ = 1 / 0
    assert all(module.training is training for module in net.modules())


def test_an_unknown_backbone_names_the_nearest():
    with pytest.raises(SpecError, match="did you mean 'resnet18'"):
        EncoderConfig("resnet19")


@pytest.mark.parametrize("wrong", [{"dim": 0}, {"hidden": -1}])
def test_a_network_without_width_is_refused(wrong):
    with pytest.raises(SpecError, match=next(iter(wrong))):
        EncoderConfig(**wrong)


def test_an_image_size_that_cannot_be_halved_three_times_is_refused():
    with pytest.raises(SpecError, match="divisible by 8"):
        ImageFormat(3, 28, (0.5,) * 3, (0.5,) * 3)
