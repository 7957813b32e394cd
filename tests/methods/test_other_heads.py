"""Other heads on a trained network, as controls: ours on DM's and GD's features, and iCaRL without its stem's ReLU."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from osscl.learn.linear_head import OUR_HEAD, HeadFit, fit_head
from osscl.methods import CONFIGURATIONS
from osscl.methods.base import OtherHeads, Schedule
from osscl.methods.icarl import without_stem_relu
from osscl.runs.checkpoint import Options
from osscl.runs.evaluate import evaluate, evaluate_other_heads
from osscl.runs.record import read_record
from osscl.runs.run import run
from osscl.runs.spec import EXPERIMENTS, RunSpec, on_small_net
from osscl.tools.battery import held_out
from osscl.vision.encoder import in_chunks
from toy_agents import SMALL, agent_of, learned


@pytest.mark.parametrize("name", ["dm", "gd"])
def test_our_head_is_the_ridge_on_the_models_features_of_labels_and_memory(name, stream):
    agent, _ = learned(on_small_net(CONFIGURATIONS[name]), stream, steps=2)
    step, memory = stream.step(2), agent.memory.labeled
    agent.learn(step)
    labeled = type(memory)(
        torch.cat((step.labeled.images, memory.images)), torch.cat((step.labeled.labels, memory.labels))
    )
    fit = HeadFit(agent.model, labeled, agent.classes, agent.setting.augmentation, 0, ("ridge", 2), 3)
    images = held_out(stream).images
    expected = fit_head(OUR_HEAD, fit)(in_chunks(agent.model.features, images))
    torch.testing.assert_close(agent.other_heads()["our head"](images), expected)
    assert not torch.allclose(agent.predict(images), expected)


def test_icarl_without_its_stems_relu_differs_only_in_that_activation(stream):
    agent, _ = learned(on_small_net(CONFIGURATIONS["icarl"]), stream, updates=12)
    bare, images = without_stem_relu(agent.model), held_out(stream).images
    assert isinstance(agent.model.backbone.layers[2], nn.ReLU) and isinstance(bare.backbone.layers[2], nn.Identity)
    bare.backbone.layers[2] = nn.ReLU()
    torch.testing.assert_close(in_chunks(bare.features, images), in_chunks(agent.model.features, images))
    heads = agent.other_heads()
    for name, unit in (("no stem ReLU", True), ("no stem ReLU, raw features", False)):
        features = without_stem_relu(agent.model).features

        def embed(x, features=features, unit=unit):
            return F.normalize(features(x), dim=1) if unit else features(x)

        kept = agent.memory.labeled
        means = torch.stack([embed(kept.images[kept.labels == c]).mean(0) for c in agent.classes])
        nearest = torch.cdist(embed(images), means).argmin(1)
        assert (heads[name](images).argmax(1) == nearest).float().mean() > 0.95


def test_a_method_without_other_heads_has_none_to_evaluate(stream):
    agent = agent_of(SMALL, stream)
    assert not isinstance(agent, OtherHeads) and evaluate_other_heads(agent, stream) is None


class Swapped:
    """Predicts one class; its other head is the truth."""

    def __init__(self, stream):
        self.rows, self.classes = held_out(stream), [c for rows in stream.steps for c in rows.new_classes]

    def predict(self, images):
        return torch.zeros(len(images), len(self.classes))

    def other_heads(self):
        def truth(images):
            same = (self.rows.images[:, None] == images[None]).flatten(2).all(2)
            return F.one_hot(
                torch.tensor([self.classes.index(int(c)) for c in self.rows.labels[same.int().argmax(0)]]), 6
            )

        return {"truth": truth}


def test_other_heads_are_evaluated_on_all_classes_after_the_last_step(stream):
    agent = Swapped(stream)
    assert evaluate_other_heads(agent, stream) == {"truth": 100.0}
    assert evaluate(agent, stream, len(stream) - 1)[1] == pytest.approx(100 / 6, abs=0.1)


def test_a_record_has_the_accuracy_of_every_other_head(tmp_path):
    digits = replace(EXPERIMENTS["digits"], classes_per_step=(2, 2), related=48, unrelated=48)
    tiny = Schedule("tiny", max_updates=1, row_cap=96, small_net=True)
    spec = RunSpec(digits, on_small_net(CONFIGURATIONS["gd"]), tiny)
    record = run(spec, Options(tmp_path, device="cpu", share_references=False))
    assert set(record.other_heads) == {"our head"} and 0 <= record.other_heads["our head"] <= 100
    assert read_record(tmp_path / record.id / f"{record.id}.json").other_heads == record.other_heads
