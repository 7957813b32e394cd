"""Two yardsticks: a head on the reference alone, and plain training on labels, all at once in a stream of one step."""

from dataclasses import replace

import torch

from osscl.methods import CONFIGURATIONS, URSL
from osscl.runs.spec import on_small_net
from osscl.tools.battery import ENOUGH, TOY, accuracy, held_out, toy_stream
from osscl.vision.encoder import in_chunks
from toy_agents import PLUS, changed, learned, same, weights

REFERENCE, SUPERVISED = (on_small_net(CONFIGURATIONS[name]) for name in ("reference-only", "supervised"))


def test_the_reference_and_its_head_are_those_of_ursl(stream):
    assert CONFIGURATIONS["reference-only"].reference == URSL.reference
    alone, _ = learned(REFERENCE, stream)
    parts = ["start=random", "reference_weight=1", "pseudo_labels=false", "statistics=false"]
    beside, _ = learned(changed(*parts, config=PLUS), stream)
    assert same(weights(alone.reference.encoder), weights(beside.reference.encoder))
    images = held_out(stream).images
    ours = alone.head(in_chunks(alone.reference.encoder.features, images))
    assert torch.equal(alone.predict(images), ours)
    assert torch.equal(ours.argmax(1), beside.predict(images).argmax(1))


def test_a_stream_of_one_step_is_all_labels_at_once_and_above_the_same_labels_in_steps():
    once = toy_stream(replace(TOY, classes_per_step=(6,), memory=0))
    agent, reports = learned(SUPERVISED, once, steps=1, updates=ENOUGH)
    assert sorted(agent.classes) == list(range(6)) and len(reports) == 1
    stepwise, _ = learned(SUPERVISED, toy_stream(replace(TOY, memory=0)), updates=ENOUGH)
    assert accuracy(agent, once) > accuracy(stepwise, once) + 0.3
