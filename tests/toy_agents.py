"""Agents of any configuration on the battery's toy stream."""

from dataclasses import replace

import torch

from osscl.config import override
from osscl.methods import CONFIGURATIONS, URSL, method_class
from osscl.methods.base import Runtime
from osscl.runs.spec import on_small_net
from osscl.tools.battery import FEW, maker, toy_stream

SMALL = on_small_net(URSL)
PLUS = on_small_net(CONFIGURATIONS["ursl-plus-unlimited"])
ALL_PASS = "gate.eta=[-1e6, -1e6]"  # every unlabelled row passes the gate and is confident


def changed(*changes, config=SMALL):
    return override(config, changes)


def stream_for(config, stream):
    """A toy stream; with images and a memory that hold statistics, where a method keeps them there."""
    if getattr(config, "statistics_share", None) is None:
        return stream
    return toy_stream(replace(stream.spec, memory=3 * stream.spec.memory), size=32)


def agent_of(config, stream, updates=FEW, runtime=None, **setting):
    """A new agent for a toy stream."""
    make = maker(method_class(config), config, stream)
    return replace(make, setting=replace(make.setting, **setting), runtime=runtime or Runtime())(updates=updates)


def learned(config, stream, steps=3, **options):
    """An agent after some steps, and its reports."""
    agent = agent_of(config, stream, **options)
    return agent, [agent.learn(stream.step(t)) for t in range(steps)]


def weights(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.values(), other.values(), strict=True))
