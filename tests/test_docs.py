"""The code in docs/add-your-method.md runs, and adds a method to the package in two files."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import osscl
from osscl.methods import METHODS
from osscl.tools.battery import ENOUGH, accuracy, maker, toy_stream

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "add-your-method.md"


@pytest.fixture
def blocks():
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_example_is_complete_and_short(blocks):
    assert len(blocks) == 2
    assert len(blocks[0].splitlines()) <= 65
    assert all(len(line) <= 120 for line in blocks[0].splitlines())


@pytest.mark.skipif("rehearsal" in METHODS, reason="the example has been added to the package")
def test_the_page_runs_as_it_is(blocks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    page = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), page)
    record, spec = page["record"], page["spec"]
    assert record.id.startswith("rehearsal-digits-smoke-s0-")
    assert (tmp_path / "runs" / record.id / f"{record.id}.json").exists()
    assert capsys.readouterr().out == f"{record.final} {record.forgetting}\n"
    assert osscl.run(spec, method=page["Rehearsal"]) == record  # finished: read, not run again


def test_the_example_learns(blocks):
    page = {"__name__": "page"}
    exec(compile(blocks[0], PAGE.name, "exec"), page)
    stream = toy_stream()
    agent = maker(page["Rehearsal"], page["Rehearsal"].Config(), stream)(updates=ENOUGH)
    for t in range(len(stream)):
        agent.learn(stream.step(t))
    assert accuracy(agent, stream) > 0.8


USE = """
import sys, osscl
from osscl.cli import main
sys.argv = "osscl run digits --method rehearsal --schedule smoke --device cpu".split()
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
from osscl.report.naming import row_words
assert row_words("rehearsal").startswith("Rehearsal: cross-entropy"), row_words("rehearsal")
(folder,) = __import__("pathlib").Path("runs").iterdir()
model = osscl.load(folder)
print(folder.name, type(model.agent).__module__, len(model.classes))
"""


@pytest.mark.skipif("rehearsal" in METHODS, reason="the example has been added to the package")
def test_a_method_is_added_to_the_package_by_two_files(blocks, tmp_path):
    package = tmp_path / "osscl"
    shutil.copytree(ROOT / "src" / "osscl", package, ignore=shutil.ignore_patterns("__pycache__"))
    assert not any("\nclass Rehearsal:" in file.read_text() for file in package.rglob("*.py"))  # the name is free
    (package / "methods" / "rehearsal.py").write_text(blocks[0])
    table = package / "methods" / "__init__.py"
    text = table.read_text().replace(
        "METHODS: dict[str, Any] = {", 'METHODS: dict[str, Any] = {\n    "rehearsal": Rehearsal,'
    )
    table.write_text(
        text.replace(
            "\nfrom osscl.methods.ursl ", "\nfrom osscl.methods.rehearsal import Rehearsal\nfrom osscl.methods.ursl "
        )
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OSSCL_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    name, module, classes = done.stdout.split()[-3:]
    assert name.startswith("rehearsal-digits-smoke-s0-") and module == "osscl.methods.rehearsal" and classes == "10"


def test_no_page_has_the_marks_of_an_unfinished_merge():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    marked = [page.name for page in pages if re.search(r"^(<{7}|={7}|>{7})( |$)", page.read_text(), re.MULTILINE)]
    assert len(pages) > 20 and marked == []
