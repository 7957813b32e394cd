"""Where memory runs out in the middle of training, one line names the batches, and the run resumes to the same bits."""

import pytest
import torch

from osscl.config import flat, plain
from osscl.device import naming_batches
from osscl.errors import OutOfMemory
from osscl.learn.optimiser import Descent
from osscl.methods import CONFIGURATIONS
from osscl.runs.index import read_records
from osscl.storage import read_state

RUN = ("run", "digits", "--schedule", "smoke", "--device", "cpu", "--no-share-references")
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory: you tried to"),
    MemoryError(),
]


def counting(monkeypatch, fails_at=None, error=None):
    """Count the updates, of which one fails."""
    step, calls = Descent.step, []

    def call(*args, **kwargs):
        calls.append(1)
        if len(calls) == fails_at:
            raise error
        return step(*args, **kwargs)

    monkeypatch.setattr(Descent, "step", call)
    return calls


def result_of(folder):
    (record,), problems = read_records(folder)
    (model,) = folder.rglob("model.safetensors")
    assert not problems
    return record, read_state(model)


def tensors_in(state, name=""):
    """Every tensor of a nested state, by its place."""
    if isinstance(state, torch.Tensor):
        return {name: state}
    parts = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    return {place: one for key, part in parts for place, one in tensors_in(part, f"{name}/{key}").items()}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("method", "batches"), [("ursl", ["reference.batch", "learner.batch"]), ("icarl", ["batch"])])
def test_a_run_without_memory_names_its_batches_and_resumes(typed, tmp_path, monkeypatch, error, method, batches):
    words = *RUN, "--method", method
    with monkeypatch.context() as patched:
        updates = counting(patched)
        assert typed(*words, "--out", tmp_path / "calm")[0] == 0
    with monkeypatch.context() as patched:
        counting(patched, fails_at=max(2, round(0.7 * len(updates))), error=error)
        code, _, line = typed(*words, "--out", tmp_path / "short")
    assert code == 2 and line.startswith("osscl: out of memory with ") and line.count("\n") == 1
    assert all(f"{name}=" in line.partition(";")[0] and f"--set {name}=" in line for name in batches)
    (checkpoint,) = (tmp_path / "short").rglob("checkpoint.safetensors")
    assert read_state(checkpoint)
    with monkeypatch.context() as patched:
        left = counting(patched)
        assert typed(*words, "--out", tmp_path / "short")[0] == 0
    assert 0 < len(left) < len(updates)  # not from the beginning
    (calm, whole), (resumed, also) = result_of(tmp_path / "calm"), result_of(tmp_path / "short")
    assert (resumed.accuracy, resumed.confusion) == (calm.accuracy, calm.confusion) and resumed.made_by.sessions == 2
    trained, again = tensors_in(whole), tensors_in(also)
    assert len(trained) > 5 and trained.keys() == again.keys()
    assert all(torch.equal(trained[name], again[name]) for name in trained)


WITH_BATCHES = [name for name, config in CONFIGURATIONS.items() if any("batch" in key for key in flat(plain(config)))]


@pytest.mark.parametrize("name", WITH_BATCHES)
def test_the_batches_of_every_method_can_be_lowered(typed, name):
    with pytest.raises(OutOfMemory) as raised, naming_batches(CONFIGURATIONS[name]):
        raise MemoryError
    flags = str(raised.value).partition("smaller batches: ")[2].split()
    assert flags and typed("run", "cifar100-p05", "--method", name, *flags, "--dry-run")[0] == 0


def test_other_errors_are_raised_unchanged():
    with pytest.raises(RuntimeError, match="shapes"), naming_batches(CONFIGURATIONS["ursl"]):
        raise RuntimeError("shapes differ")
