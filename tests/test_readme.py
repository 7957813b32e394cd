"""The README and the docs: the source tree is the one on disk, numbers are those of the records, links work."""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest

from osscl.cli.show import comparison
from osscl.methods import CONFIGURATIONS, METHODS
from osscl.runs.index import read_records

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
RESULTS = (ROOT / "docs" / "results.md").read_text()


def tree_on_the_page():
    """Descriptions by path below src/osscl, from the indentation of the tree in docs/architecture.md."""
    block = re.search(r"```\nsrc/osscl/\n(.*?)```", ARCHITECTURE, re.DOTALL)
    assert block is not None, "docs/architecture.md has no tree"
    folder, found = "", {}
    for line in block.group(1).splitlines():
        name, _, words = line.strip().partition(" ")
        if len(line) - len(line.lstrip()) == 2:
            folder = name if name.endswith("/") else ""
        if not name.endswith("/"):
            found[folder + name] = words.strip()
    return found


def test_the_tree_is_the_one_on_disk_and_describes_modules_by_their_docstrings():
    source = ROOT / "src" / "osscl"
    files = [path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    described = {}
    for path in files:
        text = path.read_text() if path.suffix == ".py" else "-"
        if path.name != "py.typed" and text.strip():
            summary = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].rstrip(".") if text != "-" else None
            described[str(path.relative_to(source))] = summary
    shown = tree_on_the_page()
    assert set(shown) == set(described)
    for name, summary in described.items():
        assert summary is None or shown[name] == summary, f"{name} is described differently"


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 230


YARDSTICKS = {"reference-only", "supervised"}  # on one page
BLOCK = re.compile(r"<!-- results: osscl (.*?) -->\n(.*?)<!-- end of results -->", re.DOTALL)
BLOCKS = [(page, *found) for page in PAGES for found in BLOCK.findall(page.read_text())]


def test_there_are_results_on_the_pages():
    assert {page.name for page, *_ in BLOCKS} >= {"README.md", "gd.md", "ursl.md"}


@pytest.mark.parametrize(("page", "command", "shown"), BLOCKS, ids=lambda part: getattr(part, "name", None))
def test_results_on_a_page_are_what_their_command_prints(typed, tmp_path, page, command, shown):
    (tmp_path / "results").symlink_to(ROOT / "results")
    code, printed, errors = typed(*shlex.split(command))
    assert (code, errors) == (0, "")
    assert shown.strip() == printed.strip(), f"{page.name}: osscl {command} prints something else"


def test_the_table_of_speeds_is_the_newest_benchs():
    (name,) = re.findall(r"\[record\]\(../(results/bench/h200-[^)]+)\)", RESULTS)
    found = json.loads((ROOT / name).read_text())
    assert name == str(max((ROOT / "results/bench").glob("h200-*.json")).relative_to(ROOT))
    others = {key: rate for key, rate in found["against"].items() if "training" in key}
    told = [f"{found[key]:,.0f} views/s" for key in ("ceiling", "reference")]
    told += [f"{100 * found[key]:.1f} %" for key in ("reference_share", "learner_share")]
    told += [f"{found['learner_ms']:.1f} ms", f"{found['augmentation'] / 1e6:.1f} M views/s"]
    told += [f"{rate:,.0f} views/s | ours is {found['reference'] / rate:.1f} ×" for rate in others.values()]
    assert len(told) == 8 and all(words in RESULTS for words in told)


def test_the_methods_milliseconds_are_the_newest_benchs():
    (name,) = re.findall(r"\[record\]\(../(results/bench/methods-[^)]+)\)", RESULTS)
    assert name == str(max((ROOT / "results/bench").glob("methods-h200-*.json")).relative_to(ROOT))
    shown = re.findall(r"^\| `([a-z0-9-]+)`.* \| (\d+) \| ([0-9.]+) ms \| ([0-9.]+) × \|$", RESULTS, flags=re.M)
    found = json.loads((ROOT / name).read_text())["methods"]
    assert shown == [(m["name"], str(m["views"]), f"{m['milliseconds']:.1f}", f"{m['ratio']:.2f}") for m in found]


def test_links_lead_somewhere():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", page.read_text()):
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name} links to {target}, which is not there"
            heads = re.findall(r"^#+ (.*)$", there.read_text(), flags=re.M) if anchor else []
            assert not anchor or anchor in map(_anchor, heads), f"{page.name} links to {target}#{anchor}"


def _anchor(heading):
    """As Markdown pages are usually shown: lower case, no punctuation, a dash for a space."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_the_demos_table_is_what_its_records_say():
    records, _ = read_records(ROOT / "results" / "demo")
    names = {"labels-only": "labels only", "ursl": "URSL", "ursl-plus-unlimited": "URSL-plus unlimited"}
    first = {record.configuration: record for record in records if record.spec.seed == 0}
    shown, caption = comparison([(title, first[name]) for name, title in names.items()]).renderables
    columns = [[str(cell) for cell in column.cells] for column in shown.columns]
    block = README.partition("ends with this output")[2].partition("```")[2].partition("```")[0]
    for t in range(5):
        assert [column[t] for column in columns] in [re.split(r"\s{2,}", line.strip()) for line in block.splitlines()]
    forgetting = re.search(r"forgetting +(.*)", block)[1].split()
    assert forgetting == [f"{first[name].forgetting:.1f}" for name in names]
    said = str(caption).partition(" Seconds:")[0]
    assert "reference 30/10" in said and said in " ".join(block.split())


def test_every_method_has_its_page():
    pages = {page.stem for page in (ROOT / "docs" / "methods").glob("*.md")}
    assert pages >= set(METHODS) - YARDSTICKS
    assert all(f"`{name}`" in README for name in CONFIGURATIONS)
