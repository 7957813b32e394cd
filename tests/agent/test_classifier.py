"""An agent of one's own images: it learns step by step, goes on to the same bits, and loses nothing."""

import copy
from dataclasses import fields

import numpy as np
import pytest
import torch

import osscl
from osscl.agent.classifier import ContinualClassifier
from osscl.agent.store import go_back, is_interrupted
from osscl.agent.inputs import channel_statistics, checked
from osscl.config import override
from osscl.data.benchmarks import load_bank
from osscl.errors import DataError, Diverged, SpecError, Stopped, UserError
from osscl.learn.linear_head import HeadConfig
from osscl.methods import CONFIGURATIONS, METHODS
from osscl.methods.base import Runtime, Schedule
from osscl.runs.checkpoint import Options, Unwatched
from osscl.storage import read_state, write_state
from osscl.tools.battery import difference

STEPS = (("zero", "one"), ("two", "three"))
LEARNERS = [name for name, config in CONFIGURATIONS.items() if not getattr(config, "wants_whole_pool", False)]


@pytest.fixture(scope="module")
def digits():
    return load_bank("digits")


@pytest.fixture(scope="module")
def lessons(digits):
    """Two steps: labels of two digits each, and a pile of digits and letters."""
    letters = load_bank("letters").train.images
    found = []
    for t, names in enumerate(STEPS):
        rows = torch.cat([(digits.train.labels == 2 * t + i).nonzero().squeeze(1)[:6] for i in range(len(names))])
        pile = torch.cat((digits.train.images[100 + 150 * t : 250 + 150 * t], letters[150 * t : 150 + 150 * t]))
        found.append((digits.train.images[rows], [name for name in names for _ in range(6)], pile))
    return found


def agent(method="ursl-plus", **fields):
    return ContinualClassifier(method, "smoke", memory=20, augmentation="glyphs", device="cpu", **fields)


def quick():
    """Enough to learn two digits in a few seconds."""
    changes = ["reference.epochs_first=4", "reference.epochs_later=2", "learner.min_updates=25"]
    return ContinualClassifier("ursl-plus", "demo", changes=changes, memory=20, augmentation="glyphs", device="cpu")


def test_it_learns_forgets_little_and_tells_what_it_knows(digits, lessons):
    made = quick().fit(*lessons[0])
    assert made.class_names == ["one", "zero"]
    made.update(*lessons[1])
    assert made.class_names == ["one", "zero", "three", "two"]
    names = ["zero", "one", "two", "three"]
    rows = (digits.test.labels < 4).nonzero().squeeze(1)
    found = made.predict(digits.test.images[rows])
    right = [name == names[c] for name, c in zip(found.names, digits.test.labels[rows].tolist(), strict=True)]
    assert sum(right) / len(right) > 0.7  # chance is a quarter
    assert found.scores is not None and found.known is not None and 0 < found.known.float().mean() < 1
    first, second = made.history
    assert first.classes == ("one", "zero") and (first.labeled, first.unlabeled) == (12, 300)
    assert first.let_in is not None and second.seconds > 0 and first.content != second.content


@pytest.mark.parametrize("name", LEARNERS)
def test_every_method_can_be_one(name, lessons):
    """It is what the method makes of the same steps, to the bit."""
    made = agent(name).fit(*lessons[0]).update(*lessons[1])
    alone = METHODS[type(made.recipe.method)](made.recipe.method, made.setting, Runtime())
    known = []
    for t, lesson in enumerate(lessons):
        arrived = checked(*lesson)
        alone.learn(arrived.as_step(t, known, made.recipe.schedule.row_cap, torch.device("cpu")))
        known += arrived.classes
    found = made.predict(lessons[0][0])
    assert torch.equal(found.probabilities, alone.predict(lessons[0][0]).softmax(1).max(1).values)
    assert known == made.class_names and len(made.history) == 2


def test_one_class_and_no_unlabelled_image_will_do(lessons):
    images, _, _ = lessons[0]
    made = agent().fit(images[:6], ["zero"] * 6)
    assert set(made.predict(images).names) == {"zero"}
    made.update(images[6:], ["one"] * 6)
    assert made.class_names == ["zero", "one"] and made.history[0].unlabeled == 0


def test_what_is_saved_says_the_same(lessons, tmp_path):
    made = agent().fit(*lessons[0])
    made.save(tmp_path / "agent")
    again, model = ContinualClassifier.load(tmp_path / "agent", "cpu"), osscl.load(tmp_path / "agent", "cpu")
    for one in (again, model):
        assert difference(vars(one.predict(lessons[1][2])), vars(made.predict(lessons[1][2]))) is None
    made.update(*lessons[1])
    again.update(*lessons[1])
    assert difference(without_times(again), without_times(made)) is None


def without_times(made):
    """The agent's state but for its seconds and dates, which no two agents share."""
    state = dict(made.entry()["method"])
    state.pop("log", None)
    if "phases" in state:
        state["phases"] = {key: value for key, value in state["phases"].items() if key != "log"}
    return state


class StopAfter:
    """Tells the keeper to stop at a moment of a phase."""

    def __init__(self, phase):
        self.phase, self.keeper = phase, None

    def progress(self, t, steps, where):
        if self.phase in (None, where.phase) and where.update == 2:
            self.keeper.told_to_stop = True

    def stepped(self, *_):
        pass


def interrupted(folder, made, lesson, phase="learner"):
    """A step that is stopped politely in the middle of a phase; the agent as it was loaded again."""
    watcher = StopAfter(phase)
    with pytest.raises(Stopped), made.living_in(folder, Options(watcher=watcher)):
        watcher.keeper = made.keep.__self__  # the keeper that it is bound to
        (made.update if made.history else made.fit)(*lesson)
    return ContinualClassifier.load(folder, "cpu")


@pytest.mark.parametrize("method", ["ursl-plus", "gd"])
@pytest.mark.parametrize("step", [0, 1])
def test_an_interrupted_step_goes_on_to_the_same_bits(lessons, tmp_path, step, method):
    whole = agent(method).fit(*lessons[0])
    made = agent(method)
    if step:
        whole.update(*lessons[1])
        made.fit(*lessons[0]).save(tmp_path)
        made = ContinualClassifier.load(tmp_path, "cpu")
    again = interrupted(tmp_path, made, lessons[step], "learner" if method == "ursl-plus" else None)
    assert (tmp_path / "checkpoint.safetensors").exists() and (tmp_path / "model.safetensors").exists() == bool(step)
    assert again.begun is not None and len(again.history) == step
    with pytest.raises(UserError, match="a step was interrupted"):
        again.predict(lessons[0][0])
    with again.living_in(tmp_path):
        (again.update if step else again.fit)(*lessons[step])
    assert difference(without_times(again), without_times(whole)) is None
    assert not (tmp_path / "checkpoint.safetensors").exists()
    assert difference(read_state(tmp_path / "model")["method"]["memory"], whole.entry()["method"]["memory"]) is None


def test_an_interrupted_reference_goes_on_to_the_same_bits(lessons, tmp_path):
    whole = agent().fit(*lessons[0])
    again = interrupted(tmp_path, agent(), lessons[0], "reference")
    with again.living_in(tmp_path):
        again.fit(*lessons[0])
    assert difference(without_times(again), without_times(whole)) is None


def test_other_images_do_not_take_the_place_of_a_step_that_was_interrupted(lessons, tmp_path):
    again = interrupted(tmp_path, agent(), lessons[0])
    with pytest.raises(UserError, match="give its images again to resume, or move its checkpoint away"):
        again.fit(*lessons[1])
    agent().fit(*lessons[0]).save(tmp_path / "other")
    again = interrupted(tmp_path / "other", ContinualClassifier.load(tmp_path / "other", "cpu"), lessons[1])
    images, labels, _ = lessons[1]
    with pytest.raises(UserError, match="give its images again to resume"):
        again.update(images, labels)
    finished = ContinualClassifier.load(tmp_path / "other", "cpu", finished=True)
    assert len(finished.predict(images).names) == len(images)


class Fails:
    """Raises in the middle of a phase."""

    def __init__(self, error):
        self.error = error

    def progress(self, t, steps, where):
        if where.phase == "learner" and where.update == 2:
            raise self.error

    def stepped(self, *_):
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Diverged("nan"), MemoryError()])
def test_a_call_that_fails_leaves_the_agent_as_it_was(lessons, error):
    whole, made = agent().fit(*lessons[0]), agent()
    made.watcher = Fails(error)
    with pytest.raises(type(error)):
        made.fit(*lessons[0])
    made.watcher = Unwatched()
    made.fit(*lessons[0])
    assert difference(without_times(made), without_times(whole)) is None
    made.watcher = Fails(error)
    for call in (made.update, made.fit):
        with pytest.raises(type(error)):
            call(*lessons[1])
        assert difference(without_times(made), without_times(whole)) is None and made.class_names == ["one", "zero"]
    made.watcher = Unwatched()
    assert difference(without_times(made.update(*lessons[1])), without_times(whole.update(*lessons[1]))) is None


def test_the_same_object_goes_on_at_home(lessons, tmp_path):
    """Ctrl-C in a notebook, and the same cell again."""
    whole = agent().fit(*lessons[0]).update(*lessons[1])
    made = agent().fit(*lessons[0])
    for moment in (2, 3):
        with pytest.raises(KeyboardInterrupt), made.living_in(tmp_path, Options(watcher=FailsAt(moment), save_every=0)):
            made.update(*lessons[1])
        assert len(made.history) == 1 and len(made.predict(lessons[0][0]).names) == 12
    with made.living_in(tmp_path):
        made.update(*lessons[1])
    assert difference(without_times(made), without_times(whole)) is None
    assert sorted(path.name for path in tmp_path.glob("[mc]*")) == ["model-1.safetensors", "model.safetensors"]


class FailsAt(Fails):
    """Raises at an update of the learner."""

    def __init__(self, moment):
        super().__init__(KeyboardInterrupt())
        self.moment = moment

    def progress(self, t, steps, where):
        if where.phase == "learner" and where.update == self.moment:
            raise self.error


def test_each_step_is_saved_as_it_is_through(lessons, tmp_path):
    made, further = agent(), (255 - lessons[1][0], ["four"] * 6 + ["five"] * 6)
    with made.living_in(tmp_path):
        made.fit(*lessons[0]).update(*lessons[1])
        with pytest.raises(UserError, match="has learned already: update teaches it more"):
            made.fit(*lessons[0])
    assert (tmp_path / "model-1.safetensors").exists() and len(ContinualClassifier.load(tmp_path, "cpu").history) == 2
    with pytest.raises(KeyboardInterrupt), made.living_in(tmp_path, Options(watcher=Fails(KeyboardInterrupt()))):
        made.update(*further)
    assert len(ContinualClassifier.load(tmp_path, "cpu").history) == 2
    with made.living_in(tmp_path):
        pass  # nothing learned, nothing changed
    copied = copy.deepcopy(made)
    with made.living_in(tmp_path):
        inside = copy.deepcopy(made)
    assert inside.home is None and inside.keep is None
    (tmp_path / "checkpoint.safetensors").unlink(missing_ok=True)
    inside.update(*further)
    assert not (tmp_path / "checkpoint.safetensors").exists()
    assert difference(without_times(copied), without_times(made)) is None


def test_a_checkpoint_that_comes_back_is_never_deleted(lessons, tmp_path):
    """Moved away to learn something else, and put back."""
    agent().fit(*lessons[0]).save(tmp_path)
    interrupted(tmp_path, ContinualClassifier.load(tmp_path, "cpu"), lessons[1])
    kept = (tmp_path / "checkpoint.safetensors").read_bytes()
    (tmp_path / "checkpoint.safetensors").unlink()
    made = ContinualClassifier.load(tmp_path, "cpu")
    with made.living_in(tmp_path):
        made.update(lessons[1][0], ["four"] * 12)
    (tmp_path / "checkpoint.safetensors").write_bytes(kept)
    assert not is_interrupted(tmp_path)
    made = ContinualClassifier.load(tmp_path, "cpu")
    with made.living_in(tmp_path):
        made.update(*lessons[1])
    assert (tmp_path / "checkpoint.given-up").read_bytes() == kept


def test_what_diverged_is_not_gone_on_with(lessons, tmp_path):
    made = agent()
    with pytest.raises(Diverged), made.living_in(tmp_path, Options(watcher=Fails(Diverged("nan")), save_every=0)):
        made.fit(*lessons[0])
    assert not (tmp_path / "checkpoint.safetensors").exists() and (tmp_path / "checkpoint.diverged").exists()
    assert made.keep is None


def test_models_of_earlier_steps_stay(lessons, tmp_path):
    made = agent().fit(*lessons[0])
    made.save(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    made.save(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    made.update(*lessons[1]).save(tmp_path)
    assert (tmp_path / "model-1.safetensors").read_bytes() == before
    assert len(ContinualClassifier.load(tmp_path, "cpu").history) == 2


def test_who_goes_back_loses_nothing(lessons, tmp_path):
    """Two ways on from one step: each has its models."""
    images, labels, _ = lessons[1]
    further = 255 - images, [f"{name} again" for name in labels]

    def taught(lesson):
        made = ContinualClassifier.load(tmp_path, "cpu")
        with made.living_in(tmp_path):
            made.update(*lesson)

    agent().fit(*lessons[0]).save(tmp_path)
    taught(lessons[1])
    taught(further)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("model*")}
    go_back(tmp_path, "model-1")
    assert (tmp_path / "model.safetensors").read_bytes() == before["model-1.safetensors"]
    assert (tmp_path / "model-3.safetensors").read_bytes() == before["model.safetensors"]
    taught((images, ["four"] * 6 + ["five"] * 6))
    taught(further)
    assert (tmp_path / "model-2.safetensors").read_bytes() == before["model-2.safetensors"]
    assert "five" in read_state(tmp_path / "model-2-2.safetensors")["class_names"]
    assert len(ContinualClassifier.load(tmp_path, "cpu").history) == 3
    with pytest.raises(UserError, match=r"unknown model 'model-9'; .*allowed: model-1, model-2, model-2-2, model-3"):
        go_back(tmp_path, "model-9")
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(DataError, match=r"is damaged: `osscl back .* model-3` takes an earlier one"):
        ContinualClassifier.load(tmp_path, "cpu")
    go_back(tmp_path, "model-2-2.safetensors")
    assert (tmp_path / "model.damaged").read_bytes() == b"cut"
    write_state(tmp_path / "model-7", {"history": []})
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(DataError, match=r"model-7\.safetensors is of another version"):
        go_back(tmp_path, "model-7")
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert "five" in ContinualClassifier.load(tmp_path, "cpu").class_names


@pytest.mark.parametrize("state", [{"history": 1}, {"history": [{"x": 1}]}, {"a": 1}, [1, 2]])
def test_files_of_something_else_are_told_in_a_line(tmp_path, state):
    write_state(tmp_path / "model", state)
    with pytest.raises(DataError, match=r"is of another (program|version)"):
        ContinualClassifier.load(tmp_path, "cpu")


def test_going_back_counts_more_than_the_middle_of_a_later_step(lessons, tmp_path):
    agent().fit(*lessons[0]).save(tmp_path)
    first = (tmp_path / "model.safetensors").read_bytes()
    made = ContinualClassifier.load(tmp_path, "cpu").update(*lessons[1])
    made.save(tmp_path)
    interrupted(tmp_path, made, (255 - lessons[1][0], ["four"] * 12))
    (tmp_path / "model.safetensors").write_bytes(first)
    back = ContinualClassifier.load(tmp_path, "cpu")
    assert back.begun is None and len(back.history) == 1
    with back.living_in(tmp_path):
        back.update(*lessons[1])
    assert (tmp_path / "checkpoint.given-up").exists()


def test_another_agent_is_never_overwritten(lessons, tmp_path):
    agent().fit(*lessons[0]).save(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="holds another agent, or one that has learned more; nothing is overwritten"):
        agent().fit(*lessons[1]).save(tmp_path)
    with pytest.raises(UserError, match="holds another agent"):
        agent(seed=1).fit(*lessons[0]).save(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_who_was_overtaken_by_another_process_is_told_before_the_work(lessons, tmp_path):
    agent().fit(*lessons[0]).save(tmp_path)
    slow = ContinualClassifier.load(tmp_path, "cpu")
    ContinualClassifier.load(tmp_path, "cpu").update(*lessons[1]).save(tmp_path)
    with pytest.raises(UserError, match="has learned more meanwhile: load it again"), slow.living_in(tmp_path):
        pytest.fail("it may not begin")


def test_an_agent_of_an_earlier_version_learns_on(lessons, tmp_path):
    """Fields that are younger than a file are filled in, and do not make another agent of it."""
    agent().fit(*lessons[0]).save(tmp_path)
    entry = read_state(tmp_path / "model")
    (younger,) = [field for field in fields(HeadConfig) if field.name == "carried"]
    assert younger.metadata
    del entry["spec"]["method"]["head"]["carried"]
    changed = override(CONFIGURATIONS["ursl-plus"], ["head.carried=false"])
    made = ContinualClassifier(changed, "smoke", memory=20, augmentation="glyphs", device="cpu").fit(*lessons[0])
    write_state(tmp_path / "old" / "model", {**made.entry(), "spec": entry["spec"]})
    again = ContinualClassifier.load(tmp_path / "old", "cpu")
    with again.living_in(tmp_path / "old"):
        again.update(*lessons[1])
    assert len(ContinualClassifier.load(tmp_path / "old", "cpu").history) == 2


def test_a_finished_step_counts_more_than_the_middle_of_it(lessons, tmp_path):
    """Killed between saving the model and removing the checkpoint."""
    interrupted(tmp_path, agent(), lessons[0])
    agent().fit(*lessons[0]).save(tmp_path)
    made = ContinualClassifier.load(tmp_path, "cpu")
    assert made.begun is None
    with made.living_in(tmp_path):
        made.update(*lessons[1])
    assert sorted(path.name for path in tmp_path.glob("checkpoint*")) == []


def test_a_damaged_checkpoint_is_told_and_kept(lessons, tmp_path):
    (tmp_path / "checkpoint.safetensors").write_bytes(b"cut")
    with pytest.raises(DataError, match=r"checkpoint\.safetensors is damaged: move it away to begin again"):
        ContinualClassifier.load(tmp_path, "cpu")
    agent().fit(*lessons[0]).save(tmp_path)
    made = ContinualClassifier.load(tmp_path, "cpu")
    with made.living_in(tmp_path):
        made.update(*lessons[1])
    assert (tmp_path / "checkpoint.damaged").read_bytes() == b"cut"


def test_testing_tells_right_from_wrong_and_known_from_unknown(lessons):
    made = agent().fit(*lessons[0])
    images, labels, _ = lessons[0]
    found = made.predict(images)
    tested = made.test(torch.cat((images, lessons[1][0])), [*labels, *lessons[1][1]])
    share = sum(a == b for a, b in zip(found.names, labels, strict=True)) / 12
    assert tested.accuracy == pytest.approx(share) == pytest.approx(made.score(images, labels))
    assert tested.learned.tolist() == [True] * 12 + [False] * 12 and tested.auroc is not None
    with pytest.raises(DataError, match="none of these labels"):
        made.score(*lessons[1][:2])
    with pytest.raises(DataError, match="a label for each image"):
        made.test(images, labels[:3])


@pytest.mark.parametrize(
    "labels", [np.repeat([3, 4], 6), torch.tensor([3, 4]).repeat_interleave(6), [3] * 6 + ["4"] * 6]
)
def test_labels_may_be_numbers_in_arrays(lessons, labels):
    images = lessons[0][0]
    assert agent().fit(np.asarray(images)[::-1], labels).class_names == ["3", "4"]
    with pytest.raises(DataError, match=r"a label is a word or a whole number, got 1\.5"):
        agent().fit(images, [1.5] * 12)


def test_images_of_one_colour_will_do(lessons):
    flat = torch.tensor([9, 9, 8, 8], dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 3, 8, 8)
    made = agent("labels-only").fit(flat, ["a", "a", "b", "b"])
    assert bool(made.predict(flat).probabilities.isfinite().all())


def test_channel_statistics_are_those_of_all_pixels():
    parts = [torch.randint(0, 256, (n, 3, 8, 8), dtype=torch.uint8) for n in (5, 0, 1030)]
    mean, std = channel_statistics(*parts)
    whole = torch.cat(parts).double() / 255
    assert mean == pytest.approx(whole.mean((0, 2, 3)).tolist())
    assert std == pytest.approx(whole.std((0, 2, 3), correction=0).tolist())


def test_a_config_is_sized_as_its_name_would_be():
    assert ContinualClassifier(CONFIGURATIONS["ursl"], "demo").recipe == ContinualClassifier("ursl", "demo").recipe
    changed = ContinualClassifier("ursl", "demo", changes=["learner.epochs=7"]).recipe.method
    assert changed.learner.epochs == 7 and changed.learner.net.backbone.startswith("small")


def test_fit_begins_anew(lessons):
    made = agent().fit(*lessons[0]).fit(*lessons[1])
    assert made.class_names == ["three", "two"] and len(made.history) == 1


def test_mistakes_are_told_in_a_line(lessons, tmp_path):
    images, labels, pile = lessons[0]
    made = agent()
    for call, words in (
        (lambda: made.update(images, labels), "fit comes before update"),
        (lambda: made.predict(images), "nothing is learned yet"),
        (
            lambda: made.fit(images.float(), labels),
            r"images must be uint8 \(n, 1 or 3, size, size\)",
        ),
        (lambda: made.fit(images[0], labels), "images must be uint8"),
        (lambda: made.fit(["a.png"], ["a"]), "images must be one tensor or array, got list"),
        (lambda: made.fit(None, ["a"]), "there is nothing to learn from"),
        (lambda: made.fit(images, None), "labels must be a list of them, got NoneType"),
        (lambda: ContinualClassifier("ursl", changes="learner.epochs=7"), "changes must be a list as"),
        (lambda: made.fit(images, [""] * 12), "a label is a word or a whole number, got ''"),
        (lambda: made.fit(images, labels[:-1]), "a label for each image is wanted, got 11 for 12"),
        (lambda: made.fit(images[:0], []), "there is nothing to learn from"),
        (lambda: made.fit(images[:0], [], pile), "the first step needs labelled images"),
        (lambda: made.fit(None, ["a"], pile), "a label for each image is wanted, got 1 for 0"),
        (lambda: made.fit(images, labels, pile[:, :, :4]), "unlabelled images must be uint8"),
        (lambda: made.fit(images[..., :5, :5], labels), "size must be divisible by 8"),
        (lambda: ContinualClassifier("urls"), "did you mean 'ursl'"),
        (lambda: ContinualClassifier("ursl", "shrt"), "unknown schedule"),
        (lambda: ContinualClassifier("ursl", memory=-1), "memory must be a whole number, 0 or more, got -1"),
        (lambda: ContinualClassifier("ursl", memory="3"), "memory must be a whole number"),
        (lambda: ContinualClassifier("ursl", seed=1.5), "seed must be 0 or more, and below 2"),
        (lambda: ContinualClassifier("ursl", Schedule("short", share=5.0)), "stands for another schedule"),
        (lambda: ContinualClassifier("ursl", 3), "schedule must be a name or a Schedule, got 3"),
        (lambda: ContinualClassifier("ursl", augmentation=3), "augmentation must be"),
        (lambda: ContinualClassifier("ursl", augmentation="glyph"), "unknown augmentation 'glyph'"),
        (lambda: ContinualClassifier(3), "method must be a name or a config of this package, got int"),
        (lambda: ContinualClassifier.load(tmp_path), "no agent in .*: `osscl fit` makes one"),
    ):
        with pytest.raises(UserError, match=words):
            call()
    made.fit(*lessons[0])
    for lesson in (lessons[0], (images, labels), ()):
        with pytest.raises(UserError, match="nothing"):
            made.update(*lesson)
    with pytest.raises(DataError, match="images must have 1 channels and 8 pixels a side as before"):
        made.update(images.repeat(1, 3, 1, 1), ["two"] * 12)
    with pytest.raises(UserError, match="at least the 14 classes, and is set at the first step, got 13"):
        small = ContinualClassifier("ursl", "smoke", memory=13, device="cpu").fit(images, labels)
        small.update(lessons[1][0], [f"class {i}" for i in range(12)])


def test_a_method_that_wants_everything_at_once_is_refused():
    pretrained = override(CONFIGURATIONS["ursl"], ["reference.pretrained=true"])
    with pytest.raises(SpecError, match="wants all unlabelled images before the first step"):
        ContinualClassifier(pretrained)


def test_a_run_is_no_agent(tmp_path):
    spec = osscl.make_spec("digits", "labels-only", "smoke", 0)
    osscl.run(spec, osscl.Options(out=tmp_path, device="cpu"))
    with pytest.raises(DataError, match="is of a run of `osscl run`, which learns no more"):
        ContinualClassifier.load(tmp_path / spec.id)


# ----- more of what is known, and steps without labels

ABLE = ("ursl-plus", "ursl", "co2l-j")  # they learn from unlabelled images alone
WITH_LABELS = ("co2l", "co2l-p", "labels-only", "icarl")  # they learn at a step without a new class
OTHERS = ("gd", "dm", "gem")


@pytest.fixture(scope="module")
def further(digits):
    """Other images of a digit that the first step brings."""
    rows = (digits.train.labels == 0).nonzero().squeeze(1)[6:10]
    return digits.train.images[rows], ["zero"] * 4


@pytest.mark.parametrize("method", LEARNERS)
def test_more_images_of_a_class_come_beside_new_ones(method, lessons, further):
    images, labels, pile = lessons[1]
    made = agent(method).fit(*lessons[0])
    made.update(torch.cat((images, further[0])), [*labels, *further[1]], pile)
    assert made.class_names == ["one", "zero", "three", "two"] and made.history[-1].further == ("zero",)
    kept = made.agent.memory.labeled
    assert kept.labels.bincount().tolist() == [5, 5, 5, 5]  # of 20
    pool = {row.numpy().tobytes() for row in torch.cat((lessons[0][0][:6], further[0]))}
    assert {row.numpy().tobytes() for row in kept.images[kept.labels == 1]} <= pool


@pytest.mark.parametrize("method", ABLE)
def test_a_step_may_bring_no_new_class(method, lessons, further):
    made = agent(method).fit(*lessons[0])
    before = made.predict(lessons[1][2])
    made.update(*further, lessons[1][2])
    made.update(unlabeled=lessons[0][2][:100])
    assert made.class_names == ["one", "zero"] and [step.labeled for step in made.history] == [12, 4, 0]
    assert not torch.equal(made.predict(lessons[1][2]).probabilities, before.probabilities)


@pytest.mark.parametrize("method", WITH_LABELS)
def test_a_method_that_looks_at_no_pile_learns_more_of_a_class_and_nothing_from_a_pile_alone(method, lessons, further):
    made = agent(method).fit(*lessons[0])
    before = made.predict(lessons[1][2])
    made.update(*further)
    assert not torch.equal(made.predict(lessons[1][2]).probabilities, before.probabilities)
    with pytest.raises(UserError, match="learns nothing from unlabelled images alone"):
        made.update(unlabeled=lessons[1][2])


@pytest.mark.parametrize("method", OTHERS)
def test_methods_whose_step_is_about_new_classes_say_so(method, lessons, further):
    made = agent(method).fit(*lessons[0])
    with pytest.raises(
        UserError, match=f"a step without a new class is nothing to {method}; it is to ursl, co2l, icarl"
    ):
        made.update(*further)
    with pytest.raises(UserError, match="a step without a new class"):
        made.update(unlabeled=lessons[1][2])


def test_more_labels_help(digits):
    """Three images of each of four digits, then twelve more of each: fewer mistakes."""
    rows = [(digits.train.labels == c).nonzero().squeeze(1) for c in range(4)]
    pile = load_bank("digits").train.images[300:600]
    few, more = (torch.cat([found[part] for found in rows]) for part in (slice(3), slice(3, 15)))
    names = [str(c) for c in range(4)]
    tests = (digits.test.labels < 4).nonzero().squeeze(1)
    asked = digits.test.images[tests], [str(c) for c in digits.test.labels[tests].tolist()]
    made = quick().fit(digits.train.images[few], [name for name in names for _ in range(3)], pile)
    before = made.score(*asked)
    made.update(digits.train.images[more], [name for name in names for _ in range(12)], pile[:150])
    assert made.score(*asked) > before


def test_an_image_that_was_learned_is_not_learned_again(lessons, further):
    images, labels, _ = lessons[0]
    made = agent().fit(*lessons[0])
    grown = torch.cat((images, further[0])), [*labels, *further[1]]
    made.update(*grown)
    last = made.history[-1]
    assert (last.labeled, last.repeated, last.further) == (4, 12, ("zero",))
    assert made.learned_as(torch.cat((images[:1], lessons[1][0][:1]))) == ["zero", None]
    for again in (grown, lessons[0]):
        with pytest.raises(UserError, match="nothing new: this very step"):
            made.update(*again)
    with pytest.raises(UserError, match="nothing new: all of these images were learned before"):
        made.update(images[:3], ["other"] * 3)  # the same pixels by another name


def test_hashes_of_what_was_learned_are_kept_and_no_image(lessons, tmp_path):
    made = agent().fit(*lessons[0])
    made.save(tmp_path)
    again = ContinualClassifier.load(tmp_path, "cpu")
    assert again.learned_as(lessons[0][0]) == lessons[0][1] and len(again.met.digests) == 12
    entry = made.entry()
    del entry["met"]  # as agents of an earlier version were saved; all 12 images are in M
    write_state(tmp_path / "model", entry)
    assert ContinualClassifier.load(tmp_path, "cpu").learned_as(lessons[0][0]) == lessons[0][1]


def test_one_picture_in_two_classes_is_a_question(lessons):
    images = lessons[0][0]
    with pytest.raises(DataError, match="images 0 and 2 are the same, labelled 'cat' and 'dog'"):
        agent().fit(images[[0, 1, 0]], ["cat", "dog", "dog"])


def test_a_step_of_further_images_goes_on_to_the_same_bits(lessons, further, tmp_path):
    lesson = (*further, lessons[1][2])
    whole = agent().fit(*lessons[0]).update(*lesson)
    made = agent().fit(*lessons[0])
    made.save(tmp_path)
    again = interrupted(tmp_path, ContinualClassifier.load(tmp_path, "cpu"), lesson)
    with again.living_in(tmp_path):
        again.update(*lesson)
    assert difference(without_times(again), without_times(whole)) is None


def test_without_labels_or_memory_there_is_nothing_to_learn_from(lessons):
    made = ContinualClassifier("ursl", "smoke", memory=0, augmentation="glyphs", device="cpu")
    with pytest.raises(DataError, match="the first step needs labelled images"):
        made.fit(None, (), lessons[0][2])
    made.fit(*lessons[0])
    with pytest.raises(UserError, match="memory 0 has no labels left"):
        made.update(unlabeled=lessons[1][2])
    with pytest.raises(UserError, match="the other classes would be forgotten"):
        made.update(255 - lessons[0][0][:2], ["zero"] * 2)
    with pytest.raises(UserError, match="a single unlabelled image is nothing to learn from"):
        agent().fit(*lessons[0]).update(unlabeled=lessons[1][2][:1])


def test_what_looks_known_stays_on_its_scale_at_a_step_without_a_new_class(lessons, further):
    """M of one image a class has let others go: none of those that stay can judge what has seen them."""
    made = ContinualClassifier("ursl-plus", "smoke", memory=2, augmentation="glyphs", device="cpu").fit(*lessons[0])
    before = made.model.threshold
    made.update(unlabeled=lessons[1][2])
    assert made.agent.heads.likeness is not None and made.model.threshold == before
    made.update(*further, lessons[0][2][:100])
    assert made.agent.heads.likeness is not None and made.model.threshold == before


def test_where_an_image_was_learned_is_asked_of_images_alone(lessons):
    made = agent().fit(*lessons[0])
    turned = lessons[0][0].transpose(2, 3).contiguous().transpose(2, 3)  # the same images, laid out otherwise
    assert made.learned_as(turned) == lessons[0][1]
    with pytest.raises(DataError, match="images must be uint8"):
        made.learned_as(turned.float())
