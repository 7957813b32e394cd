"""ContinualClassifier: learns step by step, resumes to the same bits, and never loses or overwrites a model."""

import copy
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import osscl
from osscl.agent import store
from osscl.agent.classifier import ContinualClassifier, NotLearnedError, learner_from_entry
from osscl.agent.inputs import channel_statistics, check_pixels
from osscl.agent.store import is_interrupted
from osscl.config import override
from osscl.data.benchmarks import load_bank
from osscl.errors import DataError, Diverged, SpecError, Stopped, UserError
from osscl.methods import CONFIGURATIONS, method_class
from osscl.methods.base import Runtime, Schedule
from osscl.runs.checkpoint import Options, Unwatched
from osscl.storage import read_state, write_state
from osscl.tools.battery import difference
from refusals import naming

CLASSES = (("zero", "one"), ("two", "three"))
LEARNERS = [
    name
    for name, config in CONFIGURATIONS.items()
    if not getattr(config, "wants_whole_pool", False) and name != "ursl-plus"  # a digit is smaller than a class mean
]


@pytest.fixture(scope="module")
def digits():
    return load_bank("digits")


@pytest.fixture(scope="module")
def steps(digits):
    """Two steps: labels of two digits each, and a pile of digits and letters."""
    letters = load_bank("letters").train.images
    found = []
    for t, names in enumerate(CLASSES):
        rows = torch.cat([(digits.train.labels == 2 * t + i).nonzero().squeeze(1)[:6] for i in range(len(names))])
        pile = torch.cat((digits.train.images[100 + 150 * t : 250 + 150 * t], letters[150 * t : 150 + 150 * t]))
        found.append((digits.train.images[rows], [name for name in names for _ in range(6)], pile))
    return found


@pytest.fixture(scope="module")
def more_zeros(digits):
    """Other images of a digit of the first step."""
    rows = (digits.train.labels == 0).nonzero().squeeze(1)[6:10]
    return digits.train.images[rows], ["zero"] * 4


def agent(method="ursl-plus-unlimited", **fields):
    fields = {"memory": 20, "augmentation": "glyphs", "device": "cpu", **fields}
    return ContinualClassifier(method, "smoke", **fields)


def quick():
    """Enough to learn two digits in a few seconds."""
    changes = [
        "reference.min_updates=0",
        "reference.epochs_first=4",
        "reference.epochs_later=2",
        "learner.min_updates=25",
    ]
    return ContinualClassifier(
        "ursl-plus-unlimited", "demo", changes=changes, memory=20, augmentation="glyphs", device="cpu"
    )


def go_back(folder, name):
    store.go_back(folder, name, lambda entry: learner_from_entry(entry, torch.device("cpu")))


def load(folder):
    return ContinualClassifier.load(folder, "cpu")


def state_of(made):
    """The agent's state without seconds and dates."""
    state = dict(made.entry()["method"])
    state.pop("log", None)
    if "phases" in state:
        state["phases"] = {key: value for key, value in state["phases"].items() if key != "log"}
    return state


def assert_same(one, other):
    assert difference(state_of(one), state_of(other)) is None


class Interrupt:
    """A watcher that interrupts the second update of a phase (None: of any)."""

    def __init__(self, error=None, phase="learner", update=2):
        self.error, self.phase, self.update, self.checkpointer = error, phase, update, None

    def progress(self, t, steps, where):
        if self.phase in (None, where.phase) and where.update == self.update:
            if self.error is not None:
                raise self.error
            self.checkpointer.stop_requested = True

    def stepped(self, *_):
        pass


def interrupted(folder, made, step, phase="learner"):
    """Stop a step in the middle of a phase, and load the agent again."""
    watcher = Interrupt(phase=phase)
    with pytest.raises(Stopped), made.saving_to(folder, Options(watcher=watcher)):
        watcher.checkpointer = made.checkpointer
        (made.update if made.history else made.fit)(*step)
    return load(folder)


# ----- learning


def test_it_learns_forgets_little_and_detects_unknown_images(digits, steps):
    made = quick().fit(*steps[0])
    assert made.class_names == ["one", "zero"]
    made.update(*steps[1])
    assert made.class_names == ["one", "zero", "three", "two"]
    names = ["zero", "one", "two", "three"]
    rows = (digits.test.labels < 4).nonzero().squeeze(1)
    found = made.predict_detailed(digits.test.images[rows])
    right = [name == names[c] for name, c in zip(found.names, digits.test.labels[rows].tolist(), strict=True)]
    assert sum(right) / len(right) > 0.7  # chance is a quarter
    assert found.scores is not None and found.known is not None and 0 < found.known.float().mean() < 1
    first, second = made.history
    assert first.classes == ("one", "zero") and (first.labeled, first.unlabeled) == (12, 300)
    assert first.let_in is not None and second.seconds > 0 and first.content != second.content


@pytest.mark.parametrize("name", LEARNERS)
def test_every_method_learns_the_same_bits_as_on_its_own(name, steps):
    made = agent(name).fit(*steps[0]).update(*steps[1])
    recipe = made.learner.recipe
    alone = method_class(recipe.method)(recipe.method, made.learner.setting, Runtime())
    known = []
    for t, step in enumerate(steps):
        given = check_pixels(*step)
        alone.learn(given.as_step(t, known, recipe.schedule.row_cap, torch.device("cpu")))
        known += given.classes
    found = made.predict_detailed(steps[0][0])
    assert torch.equal(found.probabilities, alone.predict(steps[0][0]).softmax(1).max(1).values)
    assert known == made.class_names and len(made.history) == 2


def test_one_class_without_unlabelled_images_is_enough(steps):
    images = steps[0][0]
    made = agent().fit(images[:6], ["zero"] * 6)
    assert set(made.predict_detailed(images).names) == {"zero"}
    made.update(images[6:], ["one"] * 6)
    assert made.class_names == ["zero", "one"] and made.history[0].unlabeled == 0


@pytest.mark.parametrize("method", LEARNERS)
def test_more_images_of_a_known_class_join_the_memory(method, steps, more_zeros):
    images, labels, pile = steps[1]
    made = agent(method).fit(*steps[0])
    made.update(torch.cat((images, more_zeros[0])), [*labels, *more_zeros[1]], pile)
    assert made.class_names == ["one", "zero", "three", "two"] and made.history[-1].further == ("zero",)
    if not hasattr(made.learner.agent, "memory"):
        return  # a method may ignore them
    kept = made.learner.agent.memory.labeled
    assert kept.labels.bincount().tolist() == [5, 5, 5, 5]  # of 20
    pool = {row.numpy().tobytes() for row in torch.cat((steps[0][0][:6], more_zeros[0]))}
    assert {row.numpy().tobytes() for row in kept.images[kept.labels == 1]} <= pool


@pytest.mark.parametrize("method", ["ursl-plus-unlimited", "ursl", "co2l-j"])
def test_methods_that_use_the_pile_learn_without_a_new_class(method, steps, more_zeros):
    made = agent(method).fit(*steps[0])
    before = made.predict_detailed(steps[1][2])
    made.update(*more_zeros, steps[1][2])
    made.update(unlabeled=steps[0][2][:100])
    assert made.class_names == ["one", "zero"] and [step.labeled for step in made.history] == [12, 4, 0]
    assert not torch.equal(made.predict_detailed(steps[1][2]).probabilities, before.probabilities)


@pytest.mark.parametrize("method", ["co2l", "co2l-p", "labels-only", "icarl"])
def test_methods_that_ignore_the_pile_refuse_a_step_without_labels(method, steps, more_zeros):
    made = agent(method).fit(*steps[0])
    before = made.predict_detailed(steps[1][2])
    made.update(*more_zeros)
    assert not torch.equal(made.predict_detailed(steps[1][2]).probabilities, before.probabilities)
    with pytest.raises(UserError, match=naming("unlabelled")):
        made.update(unlabeled=steps[1][2])


@pytest.mark.parametrize("method", ["gd", "dm", "gem"])
def test_methods_that_need_a_new_class_refuse_steps_without_one(method, steps, more_zeros):
    made = agent(method).fit(*steps[0])
    for step in (more_zeros, (None, (), steps[1][2])):
        with pytest.raises(UserError, match=naming(method, "new")):
            made.update(*step)


def test_more_labels_help(digits):
    """Three images of each of four digits, then twelve more of each: fewer mistakes."""
    rows = [(digits.train.labels == c).nonzero().squeeze(1) for c in range(4)]
    pile = digits.train.images[300:600]
    few, more = (torch.cat([found[part] for found in rows]) for part in (slice(3), slice(3, 15)))
    names = [str(c) for c in range(4)]
    tests = (digits.test.labels < 4).nonzero().squeeze(1)
    asked = digits.test.images[tests], [str(c) for c in digits.test.labels[tests].tolist()]
    made = quick().fit(digits.train.images[few], [name for name in names for _ in range(3)], pile)
    before = made.score(*asked)
    made.update(digits.train.images[more], [name for name in names for _ in range(12)], pile[:150])
    assert made.score(*asked) > before


def test_an_image_is_learned_once(steps, more_zeros, tmp_path):
    """Pixels are recognised, also after loading and in another memory layout; only hashes of them are kept."""
    images, labels, _ = steps[0]
    made = agent().fit(*steps[0])
    grown = torch.cat((images, more_zeros[0])), [*labels, *more_zeros[1]]
    made.update(*grown)
    last = made.history[-1]
    assert (last.labeled, last.repeated, last.further) == (4, 12, ("zero",))
    for again in (grown, steps[0]):
        with pytest.raises(UserError, match=naming("new", "step")):
            made.update(*again)
    with pytest.raises(UserError, match=naming("new", "images")):
        made.update(images[:3], ["other"] * 3)
    made.save(tmp_path)
    made = load(tmp_path)
    turned = images.transpose(2, 3).contiguous().transpose(2, 3)
    assert made.learned_as(turned) == labels and len(made.learned_images.digests) == 16
    assert made.learned_as(steps[1][0][:1]) == [None]
    with pytest.raises(DataError, match=naming("uint8", "torch.float32")):
        made.learned_as(images.float())


def test_the_known_scale_stays_at_a_step_without_a_new_class(steps, more_zeros):
    """With one image per class in memory, no held-out image could calibrate a new scale."""
    made = agent(memory=2).fit(*steps[0])
    before = made.model.threshold
    for step in ((None, (), steps[1][2]), (*more_zeros, steps[0][2][:100])):
        made.update(*step)
        assert made.model.threshold == before is not None


def test_evaluation_counts_correct_and_known_images(steps):
    made = agent().fit(*steps[0])
    images, labels, _ = steps[0]
    found = made.predict_detailed(images)
    result = made.test(torch.cat((images, steps[1][0])), [*labels, *steps[1][1]])
    share = sum(a == b for a, b in zip(found.names, labels, strict=True)) / 12
    assert result.accuracy == pytest.approx(share) == pytest.approx(made.score(images, labels))
    assert result.learned.tolist() == [True] * 12 + [False] * 12 and result.auroc is not None
    with pytest.raises(DataError, match=naming("learned")):
        made.score(*steps[1][:2])
    with pytest.raises(DataError, match=naming(3, 12)):
        made.test(images, labels[:3])


@pytest.mark.parametrize(
    "labels", [np.repeat([3, 4], 6), torch.tensor([3, 4]).repeat_interleave(6), [3] * 6 + ["4"] * 6]
)
def test_labels_may_be_integers_in_arrays(steps, labels):
    assert agent().fit(np.asarray(steps[0][0])[::-1], labels).class_names == ["3", "4"]


def test_images_of_one_colour_work():
    flat = torch.tensor([9, 9, 8, 8], dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 3, 8, 8)
    made = agent("labels-only").fit(flat, ["a", "a", "b", "b"])
    assert bool(made.predict_detailed(flat).probabilities.isfinite().all())


def test_channel_statistics_cover_all_pixels():
    parts = [torch.randint(0, 256, (n, 3, 8, 8), dtype=torch.uint8) for n in (5, 0, 1030)]
    mean, std = channel_statistics(*parts)
    whole = torch.cat(parts).double() / 255
    assert mean == pytest.approx(whole.mean((0, 2, 3)).tolist())
    assert std == pytest.approx(whole.std((0, 2, 3), correction=0).tolist())


def test_a_config_is_sized_like_its_name():
    def scratch(method, **fields):
        return ContinualClassifier(method, "demo", **fields).learner.recipe

    assert scratch(CONFIGURATIONS["ursl"]) == scratch("ursl")
    changed = scratch("ursl", changes=["learner.epochs=7"]).method
    assert changed.learner.epochs == 7 and changed.learner.net.backbone.startswith("small")


def test_fit_starts_over(steps):
    made = agent().fit(*steps[0]).fit(*steps[1])
    assert made.class_names == ["three", "two"] and len(made.history) == 1


# ----- interruptions


@pytest.mark.parametrize(
    "method, step, phase",
    [
        ("ursl-plus-unlimited", 0, "learner"),
        ("ursl-plus-unlimited", 1, "learner"),
        ("ursl-plus-unlimited", 0, "reference"),
        ("ursl-plus-unlimited", "more", "learner"),
        ("gd", 0, None),
        ("gd", 1, None),
    ],
)
def test_an_interrupted_step_resumes_to_the_same_bits(steps, more_zeros, tmp_path, method, step, phase):
    given = (*more_zeros, steps[1][2]) if step == "more" else steps[step]
    whole, made = agent(method), agent(method)
    if step:
        whole.fit(*steps[0])
        made.fit(*steps[0]).save(tmp_path)
        made = load(tmp_path)
    (whole.update if step else whole.fit)(*given)
    again = interrupted(tmp_path, made, given, phase)
    assert (tmp_path / "checkpoint.safetensors").exists() and (tmp_path / "model.safetensors").exists() == bool(step)
    assert again.begun is not None and len(again.history) == bool(step)
    with pytest.raises(UserError, match=naming("finished=True")):
        again.predict_detailed(steps[0][0])
    with again.saving_to(tmp_path):
        (again.update if step else again.fit)(*given)
    assert_same(again, whole)
    assert not (tmp_path / "checkpoint.safetensors").exists()
    assert difference(read_state(tmp_path / "model")["method"]["memory"], whole.entry()["method"]["memory"]) is None


def test_other_images_do_not_replace_an_interrupted_step(steps, tmp_path):
    again = interrupted(tmp_path, agent(), steps[0])
    with pytest.raises(UserError, match=naming("interrupted", "checkpoint")):
        again.fit(*steps[1])
    agent().fit(*steps[0]).save(tmp_path / "other")
    again = interrupted(tmp_path / "other", load(tmp_path / "other"), steps[1])
    images, labels, _ = steps[1]
    with pytest.raises(UserError, match=naming("interrupted", "checkpoint")):
        again.update(images, labels)
    finished = ContinualClassifier.load(tmp_path / "other", "cpu", finished=True)
    assert len(finished.predict_detailed(images).names) == len(images)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Diverged("nan"), MemoryError()])
def test_a_failed_call_leaves_the_agent_unchanged(steps, error):
    whole, made = agent().fit(*steps[0]), agent()
    made.watcher = Interrupt(error)
    with pytest.raises(type(error)):
        made.fit(*steps[0])
    made.watcher = Unwatched()
    made.fit(*steps[0])
    assert_same(made, whole)
    made.watcher = Interrupt(error)
    for call in (made.update, made.fit):
        with pytest.raises(type(error)):
            call(*steps[1])
        assert_same(made, whole)
        assert made.class_names == ["one", "zero"]
    made.watcher = Unwatched()
    assert_same(made.update(*steps[1]), whole.update(*steps[1]))


def test_the_same_object_resumes_in_its_folder(steps, tmp_path):
    """Ctrl-C in a notebook, and the same cell again."""
    whole = agent().fit(*steps[0]).update(*steps[1])
    made = agent().fit(*steps[0])
    for update in (2, 3):
        watcher = Interrupt(KeyboardInterrupt(), update=update)
        with pytest.raises(KeyboardInterrupt), made.saving_to(tmp_path, Options(watcher=watcher, save_every=0)):
            made.update(*steps[1])
        assert len(made.history) == 1 and len(made.predict_detailed(steps[0][0]).names) == 12
    with made.saving_to(tmp_path):
        made.update(*steps[1])
    assert_same(made, whole)
    assert sorted(path.name for path in tmp_path.glob("[mc]*")) == ["model-1.safetensors", "model.safetensors"]


def test_diverged_steps_are_not_resumed(steps, tmp_path):
    made = agent()
    options = Options(watcher=Interrupt(Diverged("nan")), save_every=0)
    with pytest.raises(Diverged), made.saving_to(tmp_path, options):
        made.fit(*steps[0])
    assert not (tmp_path / "checkpoint.safetensors").exists() and (tmp_path / "checkpoint.diverged").exists()
    assert made.checkpointer is None


def test_a_checkpoint_put_back_later_is_set_aside(steps, tmp_path):
    agent().fit(*steps[0]).save(tmp_path)
    interrupted(tmp_path, load(tmp_path), steps[1])
    kept = (tmp_path / "checkpoint.safetensors").read_bytes()
    (tmp_path / "checkpoint.safetensors").unlink()
    made = load(tmp_path)
    with made.saving_to(tmp_path):
        made.update(steps[1][0], ["four"] * 12)
    (tmp_path / "checkpoint.safetensors").write_bytes(kept)
    assert not is_interrupted(tmp_path)
    made = load(tmp_path)
    with made.saving_to(tmp_path):
        made.update(*steps[1])
    assert (tmp_path / "checkpoint.given-up").read_bytes() == kept


def test_a_model_restored_by_hand_outranks_the_checkpoint_of_a_later_step(steps, tmp_path):
    agent().fit(*steps[0]).save(tmp_path)
    first = (tmp_path / "model.safetensors").read_bytes()
    made = load(tmp_path).update(*steps[1])
    made.save(tmp_path)
    interrupted(tmp_path, made, (255 - steps[1][0], ["four"] * 12))
    (tmp_path / "model.safetensors").write_bytes(first)
    back = load(tmp_path)
    assert back.begun is None and len(back.history) == 1
    with back.saving_to(tmp_path):
        back.update(*steps[1])
    assert (tmp_path / "checkpoint.given-up").exists()


def test_a_finished_step_outranks_its_checkpoint(steps, tmp_path):
    """Killed between saving the model and deleting the checkpoint."""
    interrupted(tmp_path, agent(), steps[0])
    agent().fit(*steps[0]).save(tmp_path)
    made = load(tmp_path)
    assert made.begun is None
    with made.saving_to(tmp_path):
        made.update(*steps[1])
    assert sorted(path.name for path in tmp_path.glob("checkpoint*")) == []


def test_a_damaged_checkpoint_is_reported_and_kept(steps, tmp_path):
    (tmp_path / "checkpoint.safetensors").write_bytes(b"cut")
    with pytest.raises(DataError, match=naming(tmp_path / "checkpoint.safetensors")):
        load(tmp_path)
    agent().fit(*steps[0]).save(tmp_path)
    made = load(tmp_path)
    with made.saving_to(tmp_path):
        made.update(*steps[1])
    assert (tmp_path / "checkpoint.damaged").read_bytes() == b"cut"


# ----- the folder


def test_a_saved_agent_predicts_and_learns_the_same(steps, tmp_path):
    made = agent().fit(*steps[0])
    made.save(tmp_path / "agent")
    again = load(tmp_path / "agent")
    for one in (again.model, osscl.load(tmp_path / "agent", "cpu")):
        assert difference(vars(one.predict(steps[1][2])), vars(made.predict_detailed(steps[1][2]))) is None
    assert_same(again.update(*steps[1]), made.update(*steps[1]))


def test_each_finished_step_is_saved_and_earlier_models_stay(steps, tmp_path):
    made, further = agent(), (255 - steps[1][0], ["four"] * 6 + ["five"] * 6)
    made.fit(*steps[0]).save(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    made.save(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    with made.saving_to(tmp_path):
        made.update(*steps[1])
        with pytest.raises(UserError, match=naming(tmp_path, "update")):
            made.fit(*steps[0])
    assert (tmp_path / "model-1.safetensors").read_bytes() == before and len(load(tmp_path).history) == 2
    interrupt = Options(watcher=Interrupt(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt), made.saving_to(tmp_path, interrupt):
        made.update(*further)
    assert len(load(tmp_path).history) == 2
    with made.saving_to(tmp_path):
        inside = copy.deepcopy(made)
    assert inside.folder is None and inside.checkpointer is None
    assert_same(copy.deepcopy(made), made)
    (tmp_path / "checkpoint.safetensors").unlink(missing_ok=True)
    inside.update(*further)
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_going_back_loses_nothing(steps, tmp_path):
    """Two continuations of one step: each keeps its models."""
    images, labels, _ = steps[1]
    further = 255 - images, [f"{name} again" for name in labels]

    def teach(step):
        made = load(tmp_path)
        with made.saving_to(tmp_path):
            made.update(*step)

    agent().fit(*steps[0]).save(tmp_path)
    teach(steps[1])
    teach(further)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("model*")}
    go_back(tmp_path, "model-1")
    assert (tmp_path / "model.safetensors").read_bytes() == before["model-1.safetensors"]
    assert (tmp_path / "model-3.safetensors").read_bytes() == before["model.safetensors"]
    teach((images, ["four"] * 6 + ["five"] * 6))
    teach(further)
    assert (tmp_path / "model-2.safetensors").read_bytes() == before["model-2.safetensors"]
    assert "five" in read_state(tmp_path / "model-2-2.safetensors")["class_names"]
    assert len(load(tmp_path).history) == 3
    with pytest.raises(UserError, match=naming("model-9", "model-1", "model-2", "model-2-2", "model-3")):
        go_back(tmp_path, "model-9")
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(DataError, match=naming(f"`osscl back {tmp_path} model-3`")):
        load(tmp_path)
    go_back(tmp_path, "model-2-2.safetensors")
    assert (tmp_path / "model.damaged").read_bytes() == b"cut"
    write_state(tmp_path / "model-7", {"format": 2, "history": []})
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(DataError, match=naming("model-7.safetensors", "KeyError")):
        go_back(tmp_path, "model-7")
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert "five" in load(tmp_path).class_names


@pytest.mark.parametrize("names", [True, "abc", None, [1], {"a": 1}])
def test_an_agent_whose_class_names_are_invalid_is_refused(steps, tmp_path, names):
    agent().fit(*steps[0]).save(tmp_path)
    write_state(tmp_path / "model", {**read_state(tmp_path / "model"), "class_names": names})
    with pytest.raises(DataError, match=naming("class_names")):
        load(tmp_path)


def test_another_agent_is_never_overwritten(steps, tmp_path):
    agent().fit(*steps[0]).save(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    for other, step in ((agent(), steps[1]), (agent(seed=1), steps[0])):
        with pytest.raises(UserError, match=naming(tmp_path / "model.safetensors")):
            other.fit(*step).save(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    slow = load(tmp_path)
    load(tmp_path).update(*steps[1]).save(tmp_path)
    with pytest.raises(UserError, match=naming(tmp_path, "since")), slow.saving_to(tmp_path):
        pytest.fail("refused before any work")


@pytest.mark.parametrize("state", [{"history": 1}, {"history": [{"x": 1}], "format": 2}, {"a": 1}, [1, 2]])
def test_files_of_other_programs_are_refused(tmp_path, state):
    write_state(tmp_path / "model", state)
    with pytest.raises(DataError):
        load(tmp_path)


def test_agents_of_another_version_are_refused_and_left_untouched(steps, tmp_path):
    write_state(tmp_path / "model", {**agent("labels-only").fit(*steps[0]).entry(), "format": 99})
    refused_untouched(tmp_path, steps, "format 99")


def test_agents_of_version_0_1_0_are_refused_and_left_untouched(steps, tmp_path):
    """Its files have a state, and neither a format nor a digest."""
    state = {"dict": {"spec": {"dict": {}}, "history": [], "agent": {"tensor": "/agent"}}}
    save_file({"/agent": torch.zeros(2)}, tmp_path / "model.safetensors", metadata={"state": json.dumps(state)})
    refused_untouched(tmp_path, steps, "version before 0.2.0")
    with pytest.raises(DataError, match=naming(tmp_path / "model.safetensors", "version before 0.2.0")):
        go_back(tmp_path, "1")


def refused_untouched(folder, steps, version):
    before = (folder / "model.safetensors").read_bytes()
    for call in (load, agent("labels-only").fit(*steps[0]).save):
        with pytest.raises(DataError, match=naming(folder / "model.safetensors", version)):
            call(folder)
    assert {path.name for path in folder.iterdir()} <= {"model.safetensors", ".lock"}
    assert (folder / "model.safetensors").read_bytes() == before


def test_a_run_is_not_an_agent(tmp_path):
    spec = osscl.make_spec("digits", "labels-only", "smoke", 0)
    osscl.run(spec, osscl.Options(out=tmp_path, device="cpu"))
    with pytest.raises(DataError, match=naming("`osscl run`", "osscl.load")):
        ContinualClassifier.load(tmp_path / spec.id)


# ----- mistakes


@pytest.mark.parametrize(
    "change, field",
    [
        ({"method": "urls"}, "urls"),
        ({"method": 3}, "method"),
        ({"method": override(CONFIGURATIONS["ursl"], ["reference.pretrained=true"])}, "method"),
        ({"schedule": "shrt"}, "schedule"),
        ({"schedule": Schedule("short", share=5.0)}, "schedule"),
        ({"schedule": 3}, "schedule"),
        ({"changes": "learner.epochs=7"}, "changes"),
        ({"memory": -1}, "memory"),
        ({"memory": "3"}, "memory"),
        ({"seed": 1.5}, "seed"),
        ({"augmentation": 3}, "augmentation"),
        ({"augmentation": "glyph"}, "augmentation"),
    ],
)
def test_wrong_settings_are_refused_before_images_are_read(change, field):
    made = ContinualClassifier(**{"method": "ursl", **change})
    with pytest.raises(SpecError, match=naming(field)):
        made.fit(["nowhere.jpg"], ["a"])


def test_wrong_first_steps_are_refused(steps, tmp_path):
    images, labels, pile = steps[0]
    for given in (
        (images.float(), labels), (images[0], labels), (["a.png"], ["a"]), (images[..., :5, :5], labels),
        (None, ["a"]), (images[:0], []), (images[:0], [], pile), (None, ["a"], pile), (None, (), pile),
        (images, None), (images, [""] * 12), (images, [1.5] * 12), (images, labels[:-1]),
        (images, labels, pile[:, :, :4]), (images[[0, 1, 0]], ["cat", "dog", "dog"]),
    ):  # fmt: skip
        with pytest.raises(DataError):
            agent().fit(*given)
    for call in (lambda: agent().update(images, labels), lambda: agent().predict_detailed(images)):
        with pytest.raises(NotLearnedError, match=naming("fit")):
            call()
    with pytest.raises(DataError, match=naming(tmp_path, "`osscl fit`")):
        load(tmp_path)


def test_wrong_later_steps_are_refused(steps):
    images, labels, pile = steps[0]
    made = agent().fit(*steps[0])
    for step in (steps[0], (images, labels), ()):
        with pytest.raises(UserError, match="nothing"):
            made.update(*step)
    with pytest.raises(DataError, match=naming(1, 8, (3, 8))):
        made.update(images.repeat(1, 3, 1, 1), ["two"] * 12)
    with pytest.raises(UserError, match=naming("one")):
        made.update(unlabeled=pile[:1])
    small = agent("ursl", memory=13).fit(images, labels)
    with pytest.raises(UserError, match=naming("memory", 14, 13)):
        small.update(steps[1][0], [f"class {i}" for i in range(12)])
    made = agent("ursl", memory=0).fit(*steps[0])
    for step in ((None, (), pile), (255 - images[:2], ["zero"] * 2), (255 - images[:2], ["zero"] * 2, pile)):
        with pytest.raises(UserError, match=naming("memory 0")):
            made.update(*step)
    made.update(255 - images, labels, pile)  # of all classes: nothing would be forgotten
    assert len(made.history) == 2


@pytest.mark.parametrize("schedule", ["demo", "short"])
def test_the_reference_of_a_small_pile_gets_enough_updates(schedule):
    recipe = ContinualClassifier("ursl", schedule, device="cpu").learner.recipe
    assert recipe.schedule.updates(30, 1, recipe.method.reference.min_updates) >= 400


# ----- changes of classes


@pytest.mark.parametrize("method", ["ursl", "ursl-plus-unlimited"])
def test_a_class_of_a_network_is_renamed_and_removed_and_back_undoes_it(method, steps, tmp_path):
    made = agent(method).fit(*steps[0]).update(*steps[1])
    made.save(tmp_path)
    pictures = torch.cat((steps[0][0], steps[1][0]))
    before = made.learner.agent.predict(pictures)
    made.rename("three", "drei").save(tmp_path)
    made.remove("one").save(tmp_path)
    assert made.class_names == ["zero", "drei", "two"] == list(made.model.predict(pictures).classes)
    torch.testing.assert_close(made.learner.agent.predict(pictures), before[:, 1:])  # "one" was the first column
    memory = made.learner.agent.memory.labeled
    assert not (memory.images[:, None] == steps[0][0][6:]).flatten(2).all(2).any()
    assert {*memory.labels.tolist()} == {0, 1, 2}
    assert made.learned_as(pictures[[0, 6, 12, 18]]) == ["zero", None, "two", "drei"]
    assert [step.edit for step in made.history[2:]] == ["renamed three to drei", "removed one"]
    assert_same(load(tmp_path), made)
    go_back(tmp_path, "model-2")
    assert load(tmp_path).class_names == ["one", "zero", "three", "two"]


def test_a_network_without_a_class_learns_it_again_and_resumes_to_the_same_bits(steps, tmp_path):
    made = agent("ursl-plus-unlimited").fit(*steps[0]).remove("one")
    again = steps[0][0], steps[0][1], steps[1][2]
    straight = copy.deepcopy(made).update(*again)
    assert straight.class_names == ["zero", "one"] and straight.history[-1].labeled == 6
    made.save(tmp_path)
    resumed = interrupted(tmp_path, load(tmp_path), again)
    with resumed.saving_to(tmp_path):
        resumed.update(*again)
    assert_same(resumed, straight)


def test_changes_that_a_network_does_not_support_are_refused_and_change_nothing(steps):
    made, other = agent("ursl").fit(*steps[0]), agent("gd").fit(*steps[0])
    before = copy.deepcopy(state_of(made))
    for change, about in (
        (lambda: made.merge("zero", "one"), ("merge", "encoder")),
        (lambda: made.relabel(steps[0][0][0], "one"), ("relabel", "encoder")),
        (lambda: made.remove("nine"), ("nine", "one", "zero")),
        (lambda: made.rename("nine", "ten"), ("nine", "one", "zero")),
        (lambda: other.remove("one"), ("gd", "ursl", "ursl-plus")),
        (lambda: agent("ursl").remove("one"), ("learned", "interrupted")),
        (lambda: agent("ursl").fit(steps[0][0][:6], ["zero"] * 6).remove("zero"), ("'zero'", "folder")),
    ):
        with pytest.raises(UserError, match=naming(*about)):
            change()
    assert difference(state_of(made), before) is None and len(made.history) == 1
    assert other.rename("one", "eins").class_names == ["eins", "zero"]
