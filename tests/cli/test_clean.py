"""`osscl clean` frees caches and leftovers and nothing else; `osscl data verify`; too little memory in one line."""

import os
import resource
import subprocess
import sys

import pytest

from osscl.errors import SpecError, UserError
from osscl.storage import locked, write_state


@pytest.fixture
def leftovers(typed, tmp_path):
    """Files that may be deleted, those that `--models` adds, and those that may not be deleted."""
    run, agent = tmp_path / "runs" / "one", tmp_path / "runs" / "agent"
    free = [
        tmp_path / "cache/references/a.safetensors", tmp_path / "cache/decoded/b/meta.json", run / "checkpoint.damaged",
        run / "checkpoint.diverged-2", run / ".one.json.0123abcd.draft", agent / "checkpoint.given-up",
    ]  # fmt: skip
    kept = [
        run / "one.json", run / "spec.json", run / "checkpoint.safetensors", run / "model-notes.txt",
        tmp_path / "cache/other.txt", tmp_path / "runs/damaged.json",
    ]  # fmt: skip
    for file in free + kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x" * 1000)
    for name in ("model", "model-1", "model-2-2"):
        write_state(agent / name, {"a": 1})
    kept.append(agent / "model.safetensors")
    return free, [agent / "model-1.safetensors", agent / "model-2-2.safetensors"], kept


def test_clean_deletes_caches_and_leftovers_only(typed, leftovers, monkeypatch):
    free, models, kept = leftovers
    code, shown, _ = typed("clean", "--dry-run")
    assert code == 0 and "nothing was deleted" in shown and all(file.exists() for file in free + models + kept)
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115, PTH123
    assert typed("clean")[0] == 130 and all(file.exists() for file in free)  # nobody confirms
    assert typed("clean", "--yes")[0] == 0
    assert not any(file.exists() for file in free) and all(file.exists() for file in models + kept)
    assert typed("clean", "--yes", "--models")[0] == 0
    assert not any(file.exists() for file in models) and all(file.exists() for file in kept)
    assert typed("clean", "--yes")[1] == "Nothing to delete.\n"


def test_clean_leaves_folders_in_use_and_earlier_models_of_a_damaged_one(typed, leftovers, refuses):
    free, models, _ = leftovers
    newest = models[0].with_name("model.safetensors")
    newest.write_bytes(newest.read_bytes()[:-1])
    with locked(free[2].parent):
        free[4].touch()  # the lock has removed it
        assert typed("clean", "--yes", "--models")[0] == 0
    assert free[2].exists() and free[4].exists() and all(file.exists() for file in models)
    refuses("clean", "nowhere", error=UserError, about="nowhere")


def test_data_verify_names_what_it_read(typed, refuses):
    code, shown, _ = typed("data", "verify", "digits", "letters")
    assert code == 0 and shown.count("as expected") == 2
    refuses("data", "verify", "numbers", error=SpecError, about="numbers")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
@pytest.mark.parametrize("megabytes", [300, 450, 600])
def test_too_little_memory_for_torch_is_reported_in_one_line(megabytes):
    limit = megabytes * 2**20
    done = subprocess.run(
        [sys.executable, "-m", "osscl", "list"], capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert done.returncode in (0, 2), done.stderr
    assert done.returncode == 0 or (done.stderr.startswith("osscl: ") and done.stderr.count("\n") == 1)


@pytest.mark.parametrize("megabytes", [60, 120, 600, 800, 1000])
@pytest.mark.parametrize("words", [["report", "."], ["predict", "."], ["serve", "."], ["fit", "new", "--labeled", "."]])
def test_no_library_crashes_where_torch_does_not_fit(tmp_path, megabytes, words):
    """At 600 MB, NumPy and torch end in segmentation faults, aborts and messages of their own."""
    if words[0] == "serve":  # without its packages, it says so first
        pytest.importorskip("fastapi", reason='needs "osscl[serve]"')
        pytest.importorskip("uvicorn", reason='needs "osscl[serve]"')
    limit = megabytes * 2**20
    done = subprocess.run(
        [sys.executable, "-m", "osscl", *words], capture_output=True, text=True, timeout=60, cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert (
        done.returncode == 2 and done.stderr == "osscl: not enough memory to import PyTorch, which needs about 1 GB\n"
    )
