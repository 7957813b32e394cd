"""Pages in a real Chromium, driven by Playwright: what a reader meets in its console, and what axe-core objects to."""

import shutil

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-dev-shm-usage"]
PATIENCE = 60_000  # ms for one answer, on a busy machine


class Window:
    """One window at a time; each page is opened as by a new reader, without anything stored."""

    def __init__(self, browser):
        self.browser, self.page, self.errors = browser, None, []

    def open(self, path, width, height=900, dark=False, view=""):
        """The page on a screen of this size; `view`: the part of the address after #."""
        if self.page is not None:
            self.page.context.close()
        self.errors = []
        context = self.browser.new_context(
            viewport={"width": width, "height": height},
            is_mobile=width < 600,
            color_scheme="dark" if dark else "light",
        )
        context.set_default_timeout(PATIENCE)
        self.page = context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._note_message)
        self.page.on("request", self._note_request)
        self.page.goto(path.resolve().as_uri() + (f"#{view}" if view else ""))
        self.settle()
        return self.page

    def _note_message(self, message):
        if message.type in ("error", "warning", "assert"):
            self.errors.append(message.text)

    def _note_request(self, request):
        if not request.url.startswith(("file:", "data:", "about:")):
            self.errors.append(f"asks for {request.url}")

    def evaluate(self, expression):
        return self.page.evaluate(expression)

    def wait(self, expression):
        self.page.wait_for_function(expression)

    def settle(self):
        """Wait until the page has drawn what it shows: two frames after the last script."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def barriers(self):
        """What axe-core calls serious or critical: rule, and where."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [
            f"{one['id']}: {node['target']} {node.get('failureSummary', '')}"
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]
