"""A headless Chromium, controlled over a pipe: opens a page at a width, reports console errors, takes a screenshot."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 60.0  # seconds for one answer, on a busy machine
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--no-first-run", "--disable-extensions", "--disable-background-networking"]  # fmt: skip


class Browser:
    """One browser with one page in it. The devtools protocol: JSON messages, each ended by a zero byte."""

    def __init__(self, profile):
        to_browser, self.writes = os.pipe()
        self.reads, from_browser = os.pipe()
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        flags = [*FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", command, PROGRAM, *flags], pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.rest, self.errors, self.session = 0, b"", [], None
        targets = self.ask("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(PATIENCE)
        os.close(self.writes)
        os.close(self.reads)

    def ask(self, method, **params):
        """Send a command and wait for its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.writes, json.dumps(message).encode() + b"\0")
        while (answer := self.next_message()).get("id") != self.number:
            pass
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def next_message(self):
        until = time.monotonic() + PATIENCE
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.reads], [], [], max(0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            received = os.read(self.reads, 1 << 20)
            assert received, "the browser has ended"
            self.rest += received
        line, _, self.rest = self.rest.partition(b"\0")
        message = json.loads(line)
        self.note_errors(message.get("method"), message.get("params", {}))
        return message

    def note_errors(self, method, params):
        """What a person would see in red in the console, and every request that leaves the file."""
        if method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(str([arg.get("value") for arg in params["args"]]))
        if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
            ("file:", "data:", "about:")
        ):
            self.errors.append(f"asks for {params['request']['url']}")

    def open(self, path, width, height=900, dark=False, view=""):
        """The page as a person has it on a screen of this size; `view`: the part of the address after #."""
        self.errors.clear()
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url="about:blank")  # or another view of the same page would not be loaded again
        self.ask("Page.navigate", url=path.resolve().as_uri() + (f"#{view}" if view else ""))
        self.wait("location.protocol === 'file:' && document.readyState === 'complete'")
        self.settle()

    def settle(self):
        """Wait until the page has drawn what it shows: two frames after the last script."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def wait(self, expression):
        until = time.monotonic() + PATIENCE
        while not self.evaluate(expression):
            assert time.monotonic() < until, expression
            time.sleep(0.05)

    def evaluate(self, expression):
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path, whole=True):
        """A PNG of the window, or of the whole page."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole, optimizeForSpeed=False)
        path.write_bytes(base64.b64decode(shot["data"]))
