"""The wording of the messages that users meet most often, whole. It is tested nowhere else.

Other tests of a refusal have its type and the names in it (see `refusals.py`), so rewording a message that is not here
changes no test.
"""

import pytest

from exportable import labelled, pictures, small_agent
from osscl.cli import serve
from osscl.data.folders import load_pictures
from osscl.device import naming_batches
from osscl.errors import DamagedFile, DataError, Diverged, Locked, OutOfMemory, UserError
from osscl.methods import CONFIGURATIONS
from osscl.methods.base import Progress
from osscl.runs.evaluate import refuse_divergent_loss
from osscl.runs.record import read_record
from osscl.runs.spec import EXPERIMENTS
from osscl.storage import locked, read_sealed, write_sealed

SMOKE = "--schedule smoke"
SEED = "--seed must be a non-negative integer"


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("run digit", "unknown experiment 'digit'; did you mean 'digits'? allowed: " + ", ".join(EXPERIMENTS)),
        (f"run digits {SMOKE} --method ursll",
         "unknown method 'ursll'; did you mean 'ursl'? allowed: " + ", ".join(CONFIGURATIONS)),
        (f"run digits {SMOKE} --set memory.polcy=low",
         "unknown field 'memory.polcy'; did you mean 'memory.policy'? allowed: policy"),
        (f"run digits {SMOKE} --set learner.gamma=-1", "learner: gamma must be 0 or more, got -1.0"),
        (f"run digits {SMOKE} --memory 5", "memory must be 0 (none) or at least the 10 classes, got 5"),
        ("run digits --labeled 0", "labeled_fraction must be in (0, 1], got 0.0"),
        ("stream digits --seed x", SEED),
        ("run digits --seed 0-2", f"{SEED}; use --seeds for several, as in --seeds 0-2"),
        ("run digits --seeds 3-1", "seeds must be written as 0-2 or 0,3,5, got '3-1'"),
        ("run digits --memory 20 --set scenario.memory=10",
         "--set scenario.memory and --memory set the same field: remove one of them"),
        (f"run cifar100-p05 {SMOKE} --data nowhere",
         "cifar100 not found: there is no folder cifar-100-python in nowhere; get it with: "
         "osscl data fetch cifar100 --data nowhere"),
        ("runs nowhere", "nowhere not found; give the folder used as --out"),
        ("stream digits --out mine", "mine already exists; choose another file"),
        ("update nowhere --labeled nowhere", "no agent in nowhere: `osscl fit` creates one"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_wrong_and_what_is_allowed(typed, tmp_path, command, line):
    (tmp_path / "mine").write_text("mine")
    assert typed(*command.split()) == (2, "", f"osscl: {line}\n")
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_missing_extra_package_is_named_with_the_command_that_installs_it(typed, monkeypatch):
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    assert typed("serve", "agent")[2] == 'osscl: osscl serve requires additional packages: pip install "osscl[serve]"\n'


def message(error, call, *args):
    """The message of the error, of exactly this type, that a call ends with."""
    with pytest.raises(error) as raised:
        call(*args)
    assert raised.type is error
    return str(raised.value)


def test_a_locked_folder(tmp_path):
    def lock():
        with locked(tmp_path):
            pass

    with locked(tmp_path):
        assert message(Locked, lock) == f"{tmp_path} is locked by another process"


def test_damaged_files(tmp_path):
    file = tmp_path / "a.json"
    write_sealed(file, ["blue"])
    file.write_text(file.read_text().replace("blue", "glue"))
    assert message(DamagedFile, read_sealed, file) == f"{file} is damaged: its content is not what was written"
    file.write_text("[]")
    expected = "expected the format 'osscl record 1'"
    assert message(DataError, read_record, file) == f"{file} cannot be read as a record: {expected}"
    (tmp_path / "a.png").write_text("no image")
    assert message(DataError, load_pictures, tmp_path / "a.png") == (
        f"{tmp_path / 'a.png'} cannot be read as an image: it is damaged or not an image"
    )


def test_steps_that_an_agent_cannot_learn():
    made = small_agent(0, 1, count=3)
    assert message(UserError, made.update, *labelled(0, 1, count=3)) == (
        "nothing new: all of these images have already been learned"
    )
    assert message(DataError, made.update, pictures(4, 1) * 2, ["a", "b"]) == (
        "images 0 and 1 are identical but labelled 'a' and 'b'"
    )


def test_training_that_fails():
    def exhaust():
        with naming_batches(CONFIGURATIONS["labels-only"]):
            raise MemoryError

    assert message(OutOfMemory, exhaust) == (
        "out of memory with learner.batch=512; the saved state is intact, so repeat the command when "
        "more memory is free, or start over with smaller batches: --set learner.batch=256"
    )
    assert message(Diverged, refuse_divergent_loss, Progress("learner", 200, 300, 0, float("nan")), 0) == (
        "training diverged at step 1: the loss of learner is nan after 200 updates; try a lower learning rate"
    )
