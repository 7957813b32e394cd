"""What the README says is so: its tree is the one on disk, its numbers are those of the records."""

import re
from pathlib import Path

from osscl.experiments.record import read_records
from osscl.report.tables import markdown

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def tree_in_the_readme():
    """Paths below src/osscl that the README's tree names, from its indentation."""
    block = re.search(r"```\nsrc/osscl/\n(.*?)```", README, re.DOTALL)
    assert block is not None, "the README has no tree"
    folder, paths = "", set()
    for line in block.group(1).splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        if depth == 1:
            folder = name if name.endswith("/") else ""
        if not name.endswith("/"):
            paths.add(folder + name)
    return paths


def test_the_tree_is_the_one_on_disk():
    source = ROOT / "src" / "osscl"
    empty = {path for path in source.rglob("__init__.py") if not path.read_text().strip()}
    files = [path for kind in ("py", "css", "js") for path in source.rglob(f"*.{kind}")]
    on_disk = {str(path.relative_to(source)) for path in files if path not in empty}
    assert tree_in_the_readme() == on_disk


def test_the_table_of_results_is_the_one_that_the_records_give():
    records, problems = read_records(ROOT / "results/h200")
    assert not problems
    begin, end = "<!-- results: osscl runs results/h200 --markdown -->\n", "<!-- end of results -->"
    assert README.split(begin)[1].split(end)[0].strip() == markdown(records).strip()


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
