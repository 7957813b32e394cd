"""A short form of `make torture`, see tests/torture.py."""

import os
import sys

import pytest

import torture


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_nothing_is_silently_wrong_and_nothing_is_a_traceback(tmp_path, monkeypatch):
    for name, value in {"OSSCL_CACHE": str(tmp_path / "cache"), "OSSCL_COMMIT": "here"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["osscl"])
    counts = {"kills": 2, "signals": 2, "writes": 2, "flips": 60, "documents": 20, "pickles": 60, "images": 30}
    seed = int(os.environ.get("OSSCL_TORTURE_SEED", "0"))
    found = torture.tortured(tmp_path, counts, seed, seconds=60, names=["labels-only"])
    assert not found.bad, "\n".join(found.bad[:5])
    assert {"bit flip, record", "hostile pickle", "mutated spec", "SIGKILL, labels-only"} <= {*found.counts}
