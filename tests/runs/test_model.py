"""Stored models that are refused, and what a refusal says."""

import pytest

from osscl.errors import DataError, reason_of
from osscl.runs.model import load_model
from osscl.storage import write_state
from refusals import naming


def test_a_file_in_place_of_a_run_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "run" / "model.safetensors").mkdir(parents=True)
    for place in ("file", "run"):
        with pytest.raises(DataError, match=naming(tmp_path / place / "model.safetensors")):
            load_model(tmp_path / place)


@pytest.mark.parametrize("spec", [3, "x", None, {"method": 3}, {"method": {"type": []}}, {}])
def test_a_model_that_names_no_method_is_refused_in_one_line(tmp_path, spec):
    write_state(tmp_path / "model", {"spec": spec})
    with pytest.raises(DataError):
        load_model(tmp_path)


def test_the_reason_of_a_refusal_fits_into_a_line():
    long = reason_of(RuntimeError("size mismatch for\n\tlayer " * 500))
    assert long.startswith("RuntimeError: size mismatch for layer size") and len(long) < 350 and "\n" not in long
