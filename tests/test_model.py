"""An agent of one's own images: it learns step by step, goes on to the same bits, and loses nothing."""

import pytest
import torch

import osscl
from osscl.data.benchmarks import load_bank
from osscl.errors import DataError, SpecError, Stopped, UserError
from osscl.experiments.bits import difference
from osscl.experiments.checkpoint import Options
from osscl.experiments.sizes import sized
from osscl.frozen import override
from osscl.methods import CONFIGURATIONS
from osscl.methods.method import DEMO
from osscl.model import ContinualClassifier, living_in
from osscl.stored import read_state

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
    config = sized(CONFIGURATIONS["ursl-plus"], DEMO)
    changes = ["reference.epochs_first=4", "reference.epochs_later=2", "learner.min_updates=25"]
    return ContinualClassifier(override(config, changes), "demo", memory=20, augmentation="glyphs", device="cpu")


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
    made = agent(name).fit(*lessons[0]).update(*lessons[1])
    assert len(made.predict(lessons[0][0]).names) == 12 and len(made.history) == 2


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
    state = made.entry()["method"]
    return {key: value for key, value in state.items() if key != "log"}


class StopAfter:
    """Tells the keeper to stop at a moment of a phase."""

    def __init__(self, phase):
        self.phase, self.keeper = phase, None

    def progress(self, t, steps, where):
        if where.phase == self.phase and where.update == 2:
            self.keeper.told_to_stop = True

    def stepped(self, *_):
        pass


@pytest.mark.parametrize("phase", ["reference", "learner"])
@pytest.mark.parametrize("step", [0, 1])
def test_an_interrupted_step_goes_on_to_the_same_bits(lessons, tmp_path, phase, step):
    whole = agent().fit(*lessons[0])
    if step:
        whole.update(*lessons[1])
    folder, watcher = tmp_path / "agent", StopAfter(phase)
    made = agent()
    if step:
        made.fit(*lessons[0]).save(folder)
        made = ContinualClassifier.load(folder, "cpu")
    with pytest.raises(Stopped), living_in(folder, made, Options(watcher=watcher)):
        watcher.keeper = made.keeper
        (made.update if step else made.fit)(*lessons[step])
    assert (folder / "checkpoint.safetensors").exists() and (folder / "model.safetensors").exists() == bool(step)
    again = ContinualClassifier.load(folder, "cpu")
    assert again.begun is not None and len(again.history) == step
    with pytest.raises(UserError, match="a step was interrupted; give the same images again"):
        again.update(*lessons[1 - step])
    with pytest.raises(UserError, match="or a step was interrupted"):
        again.predict(lessons[0][0])
    with living_in(folder, again, Options()):
        (again.update if step else again.fit)(*lessons[step])
    assert difference(without_times(again), without_times(whole)) is None
    assert not (folder / "checkpoint.safetensors").exists()
    assert difference(read_state(folder / "model")["method"]["memory"], whole.entry()["method"]["memory"]) is None


def test_models_of_earlier_steps_stay(lessons, tmp_path):
    made = agent().fit(*lessons[0])
    made.save(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    made.save(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    made.update(*lessons[1]).save(tmp_path)
    assert (tmp_path / "model-1.safetensors").read_bytes() == before
    assert len(ContinualClassifier.load(tmp_path, "cpu").history) == 2


def test_another_agent_is_never_overwritten(lessons, tmp_path):
    agent().fit(*lessons[0]).save(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="holds another agent; nothing is overwritten"):
        agent().fit(*lessons[1]).save(tmp_path)
    with pytest.raises(UserError, match="holds another agent"):
        agent(seed=1).fit(*lessons[0]).save(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_finished_step_counts_more_than_the_middle_of_it(lessons, tmp_path):
    """Killed between saving the model and removing the checkpoint."""
    watcher, made = StopAfter("learner"), agent()
    with pytest.raises(Stopped), living_in(tmp_path, made, Options(watcher=watcher)):
        watcher.keeper = made.keeper
        made.fit(*lessons[0])
    agent().fit(*lessons[0]).save(tmp_path)
    assert ContinualClassifier.load(tmp_path, "cpu").begun is None


def test_a_damaged_checkpoint_is_kept_aside(lessons, tmp_path, caplog):
    agent().fit(*lessons[0]).save(tmp_path)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"cut")
    assert len(ContinualClassifier.load(tmp_path, "cpu").history) == 1
    assert (tmp_path / "checkpoint.damaged").read_bytes() == b"cut" and "damaged checkpoint" in caplog.text


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
        (lambda: made.fit(images, labels[:-1]), "a label for each image is wanted, got 11 for 12"),
        (lambda: made.fit(images[:0], []), "a label for each image is wanted, got 0 for 0"),
        (lambda: made.fit(images, labels, pile[:, :, :4]), "unlabelled images must be uint8"),
        (lambda: made.fit(images[..., :5, :5], labels), "size must be divisible by 8"),
        (lambda: ContinualClassifier("urls"), "did you mean 'ursl'"),
        (lambda: ContinualClassifier("ursl", "shrt"), "unknown schedule"),
        (lambda: ContinualClassifier("ursl", memory=-1), "memory and seed must be 0 or more"),
        (lambda: ContinualClassifier("ursl", augmentation="glyph"), "unknown augmentation 'glyph'"),
        (lambda: ContinualClassifier(3), "method must be a name or a config of this package, got int"),
        (lambda: ContinualClassifier.load(tmp_path), "no model in"),
    ):
        with pytest.raises(UserError, match=words):
            call()
    made.fit(*lessons[0])
    with pytest.raises(UserError, match="one, zero: learned already; a step brings new classes alone"):
        made.update(*lessons[0])
    with pytest.raises(DataError, match="images must have 1 channels and 8 pixels a side as before"):
        made.update(images.repeat(1, 3, 1, 1), ["two"] * 12)
    with pytest.raises(UserError, match="memory, set at the first step, must be 0 or at least the 14 classes: 13"):
        small = ContinualClassifier("ursl", "smoke", memory=13, device="cpu").fit(images, labels)
        small.update(images, [f"class {i}" for i in range(12)])


def test_a_method_that_wants_everything_at_once_is_refused():
    pretrained = override(CONFIGURATIONS["ursl"], ["reference.pretrained=true"])
    with pytest.raises(SpecError, match="wants all unlabelled images before the first step"):
        ContinualClassifier(pretrained)


def test_a_run_is_no_agent(tmp_path):
    spec = osscl.make_spec("digits", "labels-only", "smoke", 0)
    osscl.run(spec, osscl.Options(out=tmp_path, device="cpu"))
    with pytest.raises(DataError, match="holds a run of `osscl run`, which learns no more"):
        ContinualClassifier.load(tmp_path / spec.id)
