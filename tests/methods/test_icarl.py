"""iCaRL: nearest mean of exemplars, herded and truncated."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from osscl.learn.memory import herded
from osscl.methods.icarl import IcarlConfig
from osscl.tools.battery import TOY, held_out, toy_stream
from toy_agents import learned

ICARL = IcarlConfig("small")


def test_the_prediction_is_the_nearest_mean_of_exemplars(stream):
    agent, _ = learned(ICARL, stream)
    images, kept = held_out(stream).images, agent.memory.labeled
    features, stored = (F.normalize(agent.model.features(x), dim=1) for x in (images, kept.images))
    means = torch.stack([F.normalize(stored[kept.labels == c].mean(0), dim=0) for c in agent.classes])
    assert torch.equal(agent.predict(images).argmax(1), torch.cdist(features, means).argmin(1))


def test_exemplars_are_herded_and_dropped_from_the_end(stream):
    agent, _ = learned(ICARL, stream, steps=1, memory=6)
    first = {c: agent.memory.labeled.images[agent.memory.labeled.labels == c] for c in agent.classes}
    rows = stream.step(0).labeled
    for c, kept in first.items():
        mine = rows.images[rows.labels == c]
        features = F.normalize(agent.model.features(mine), dim=1)
        assert len(kept) == 3 and torch.equal(kept, mine[herded(features, 3)])
    agent.learn(stream.step(1))
    for c, kept in first.items():
        left = agent.memory.labeled.images[agent.memory.labeled.labels == c]
        assert 0 < len(left) < 3 and torch.equal(left, kept[: len(left)])


def test_without_a_memory_the_networks_outputs_predict():
    stream = toy_stream(replace(TOY, memory=0))
    agent, _ = learned(ICARL, stream)
    images = held_out(stream).images
    assert torch.equal(agent.predict(images), agent.model(images)) and agent.predict(images).shape[1] == 6
