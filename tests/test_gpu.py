"""On a CUDA device: every method's captured updates are what the same updates are without capture."""

from dataclasses import replace

import pytest
import torch

from osscl import device as devices
from osscl.experiments.sizes import on_small_net
from osscl.experiments.toy import held_out, maker, toy_stream
from osscl.methods import CONFIGURATIONS, METHODS, learner, phases, reference
from osscl.methods import gem as gem_method
from osscl.methods.method import Runtime

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


class Called(devices.Replay):
    """Never captures."""

    def __init__(self, update, device, calls_before=0):
        super().__init__(update, torch.device("cpu"))


def predicted(name):
    stream = toy_stream()
    stream = replace(stream, banks={key: bank.to(torch.device("cuda")) for key, bank in stream.banks.items()})
    config = on_small_net(CONFIGURATIONS[name])
    make = replace(maker(METHODS[type(config)], config, stream), runtime=Runtime(torch.device("cuda")))
    agent = make(updates=8)
    for t in range(len(stream)):
        agent.learn(stream.step(t))
    return agent.predict(held_out(stream).images)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_captured_updates_are_the_updates(name, monkeypatch):
    captured = predicted(name)
    for module in (learner, reference, phases, gem_method):
        monkeypatch.setattr(module, "Replay", Called)
    called = predicted(name)
    assert captured.isfinite().all()
    assert torch.allclose(captured, called, rtol=1e-2, atol=1e-2), (captured - called).abs().max()
