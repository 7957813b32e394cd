"""Make the screenshots of the documentation: `python docs/make_screenshots.py [NAME ...]`; all of them by default.

Names are report, sorted, serve-ask and serve-pile. Needs Chromium and `pip install "osscl[test-extras]"`; for all but
`report`, the encoder of `osscl[photos]` as well.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-background-networking"]
PATIENCE = 120_000  # ms
COLOURS = 128
AGENT = [  # as docs/own-images.md has it
    "demo --photos photos",
    "fit agent --labeled photos/week1 --unlabeled photos/pile",
    "update agent --labeled photos/week2 --unlabeled photos/pile",
]
SERVE = "serve agent --pile photos/pile --test photos/test --port 0"


@dataclass(frozen=True)
class Screenshot:
    """The commands that make a page, what is done on it, and its size."""

    commands: list[str]
    page: str  # a file, or a view of the page that `osscl serve` serves
    width: int
    height: int
    act: Callable[[Page, Path], None] = lambda page, folder: None


def ask(page: Page, folder: Path) -> None:
    """Ask about a fish, and about a kind that was never taught."""
    page.set_input_files("#files", [folder / "photos/test/fish/000.jpg", folder / "photos/test/umbrella/000.jpg"])
    page.locator(".answer .bars").nth(1).wait_for()


def leave_out(page: Page, folder: Path) -> None:
    """Name a group of unknown pictures, without the one that shows a tree."""
    page.locator(".sheet").first.click()
    page.locator(".tile label").filter(has_text="closest: tree").click()
    page.get_by_label("They show").fill("mushroom")
    page.get_by_label("They show").blur()
    while not page.evaluate("[...document.querySelectorAll('.tile img')].every((one) => one.complete)"):
        page.wait_for_timeout(50)


SCREENSHOTS = {
    "report": Screenshot(["report {root}/results --out report.html"], "report.html", 1200, 860),
    "sorted": Screenshot([*AGENT, "sort agent photos/pile --into sorted"], "sorted/index.html", 860, 700),
    "serve-ask": Screenshot([*AGENT, SERVE], "#ask", 1000, 1060, ask),
    "serve-pile": Screenshot([*AGENT, SERVE], "#pile", 1000, 910, leave_out),
}


@contextlib.contextmanager
def made(commands: list[str], folder: Path) -> Iterator[str]:
    """Run the commands in a folder; a server runs until the end of the block. The address to open relative to."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    server, address = None, folder.as_uri() + "/"
    for command in commands:
        words = [sys.executable, "-m", "osscl", *command.format(root=ROOT).split()]
        if command != SERVE:
            subprocess.run(words, cwd=folder, env=environment, check=True)
            continue
        server = subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        address = re.findall(r"http://\S+", server.stdout.readline())[0]
    try:
        yield address
    finally:
        if server is not None:
            server.terminate()
            server.wait()


def take(name: str) -> None:
    """The first screen of a page, in light colours."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        sys.exit(f"needs one of {', '.join(BROWSERS)}")
    asked, target = SCREENSHOTS[name], DOCS / f"{name}.png"
    with (
        tempfile.TemporaryDirectory() as folder,
        made(asked.commands, Path(folder)) as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        page = browser.new_page(
            viewport={"width": asked.width, "height": asked.height}, color_scheme="light", reduced_motion="reduce"
        )
        page.set_default_timeout(PATIENCE)
        page.goto(address + asked.page)
        asked.act(page, Path(folder))
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=target)
        browser.close()
    Image.open(target).convert("RGB").quantize(COLOURS).save(target, optimize=True)
    print(f"wrote docs/{name}.png")


def main(names: list[str]) -> None:
    if unknown := [name for name in names if name not in SCREENSHOTS]:
        sys.exit(f"no screenshot {unknown[0]}; allowed: {', '.join(SCREENSHOTS)}")
    for name in names or SCREENSHOTS:
        take(name)


if __name__ == "__main__":
    main(sys.argv[1:])
