"""Make the screenshots of the documentation: `python docs/make_screenshots.py [report] [sorted]`; both by default.

Needs Chromium and `pip install "osscl[test-extras]"`; for `sorted`, the encoder of `osscl[photos]` as well.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-background-networking"]
COLOURS = 128
REPORT = ["report {root}/results --out report.html"]
SORTED = [  # as docs/own-images.md has it
    "demo --photos photos",
    "fit agent --labeled photos/week1 --unlabeled photos/pile",
    "update agent --labeled photos/week2 --unlabeled photos/pile",
    "sort agent photos/pile --into sorted",
]
PICTURES = {  # commands, the page they make, width and height
    "report": (REPORT, "report.html", 1200, 860),
    "sorted": (SORTED, "sorted/index.html", 860, 700),
}


def take(page: Path, width: int, height: int, target: Path) -> None:
    """The first screen of a page, in light colours."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        sys.exit(f"needs one of {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        window = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        window.goto(page.as_uri())
        window.screenshot(path=target)
        browser.close()
    Image.open(target).convert("RGB").quantize(COLOURS).save(target, optimize=True)


def main(names: list[str]) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    for name in names or PICTURES:
        commands, page, width, height = PICTURES[name]
        with tempfile.TemporaryDirectory() as folder:
            for command in commands:
                words = [sys.executable, "-m", "osscl", *command.format(root=ROOT).split()]
                subprocess.run(words, cwd=folder, env=environment, check=True)
            take(Path(folder) / page, width, height, DOCS / f"{name}.png")
        print(f"wrote docs/{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
