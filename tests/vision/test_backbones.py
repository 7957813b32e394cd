"""Backbones: sizes, shapes, initialisation, gradients."""

import pytest
import torch
from torch import nn

from osscl.vision.backbones import BACKBONES

PRINTED = {  # millions of parameters in the paper's table of architectures
    "resnet18": "11.1",
    "resnet34": "21.2",
    "resnet50": "23.5",
    "wrn-40-2": "2.24",
    "wrn-28-10": "36.48",
}
WIDTHS = {
    "resnet18": 512,
    "resnet34": 512,
    "resnet50": 2048,
    "wrn-40-2": 128,
    "wrn-28-10": 640,
    "small": 256,
    "small-wide": 512,
    "small-deep": 256,
}
LIGHT = ["resnet18", "wrn-40-2", "small"]


def millions(name: str) -> float:
    with torch.device("meta"):
        return sum(p.numel() for p in BACKBONES[name](3).parameters()) / 1e6


@pytest.mark.parametrize("name", PRINTED)
def test_sizes_are_the_papers_to_its_last_printed_digit(name: str):
    last_digit = 10.0 ** -len(PRINTED[name].split(".")[1])  # the paper cuts off rather than rounds: 11.17 is 11.1
    assert abs(millions(name) - float(PRINTED[name])) < last_digit


def test_resnet18_has_the_eleven_point_one_seven_million_of_the_32_px_stem():
    assert f"{millions('resnet18'):.2f}" == "11.17"


@pytest.mark.parametrize("size", [8, 40])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", BACKBONES)
def test_features_have_the_stated_width_at_every_image_size(name: str, channels: int, size: int):
    with torch.device("meta"):
        net = BACKBONES[name](channels)
        features = net(torch.empty(2, channels, size, size))
    assert features.shape == (2, net.width) == (2, WIDTHS[name])


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_resnets_first_shrink_the_image_in_their_second_stage(name: str):
    with torch.device("meta"):
        layers = BACKBONES[name](3).get_submodule("layers")
        sides = [32]
        x = torch.empty(1, 3, 32, 32)
        for layer in layers.children():
            x = layer(x)
            sides.append(x.shape[-1])
    assert sorted(set(sides), reverse=True) == [32, 16, 8, 4]
    assert not any(isinstance(module, nn.MaxPool2d) for module in layers.modules())


@pytest.mark.parametrize("name", LIGHT)
def test_convolutions_start_kaiming_normal_by_fan_out_and_norms_at_one_and_zero(name: str):
    for module in BACKBONES[name](3).modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert module.bias is None
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.2)
        if isinstance(module, nn.BatchNorm2d):
            assert module.weight.eq(1).all()
            assert module.bias.eq(0).all()


@pytest.mark.parametrize("name", LIGHT)
def test_every_parameter_gets_a_finite_gradient(name: str):
    net = BACKBONES[name](3)
    net(torch.rand(4, 3, 16, 16)).square().sum().backward()
    for parameter in net.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("name", LIGHT)
def test_in_eval_mode_features_do_not_depend_on_the_batch(name: str):
    net = BACKBONES[name](3).eval()
    x = torch.rand(3, 3, 16, 16)
    before = x.clone()
    with torch.no_grad():
        together, alone = net(x), net(x[:1])
    assert (together[:1] - alone).abs().max() < 1e-4 * alone.abs().max()
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", LIGHT)
def test_forward_traces_as_one_graph(name: str):
    net = BACKBONES[name](3).eval()
    traced = torch.compile(net, backend="eager", fullgraph=True)
    x = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(traced(x), net(x))
