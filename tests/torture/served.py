"""`osscl serve` is killed while it teaches: the server, the process that teaches, or both; then it starts again."""

import contextlib
import json
import os
import re
import shutil
import signal
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from osscl.agent.classifier import ContinualClassifier
from osscl.agent.embeddings import file_key
from osscl.serve.answers import NextLabel
from osscl.serve.decoding import Decoder
from osscl.serve.next_step import SERVE_FOLDER, LabelBook
from torture.jobs import FIT, Started, draw_photos, fingerprint, start, typed
from torture.ledger import Attack

PATIENCE = 120.0  # seconds, on a busy machine


def prepared(folder: Path) -> Path:
    """An agent with labels that wait to be taught: pictures of the pile, and an uploaded one."""
    place = folder / "to-teach"
    place.mkdir(parents=True)
    draw_photos(place)
    assert typed(place, *FIT)[0] == 0
    labels = LabelBook(place / "agent" / SERVE_FOLDER)
    for file in sorted((place / "pile").iterdir()):
        if int(file.stem) % 4 == 2:
            labels.add([NextLabel(file_key(file.read_bytes()).hex(), "blue", file.name, "pile")])
    content = next((place / "more" / "split").iterdir()).read_bytes()
    key = file_key(content).hex()
    labels.add([NextLabel(key, "split", "upload.png", "upload")], {key: content})
    return place


class Server:
    """`osscl serve` for the agent in a folder."""

    def __init__(self, place: Path) -> None:
        Decoder.start = lambda self: None  # nothing is uploaded, so no worker is needed
        words = ("serve", "agent", "--pile", "pile", "--test", "photos", "--port", "0", "--device", "cpu")
        self.process: Started = start(place, *words)
        self.log, self.code = "", None
        until = time.monotonic() + PATIENCE
        while not (found := re.search(r"http://\S+:\d+", self.log)):
            assert time.monotonic() < until and self.alive(), f"no server: {self.log}"
            time.sleep(0.02)
        self.url = found.group()

    def alive(self) -> bool:
        self.log += self.process.printed()
        if self.code is None and (ended := os.waitpid(self.process.pid, os.WNOHANG))[0]:
            self.code = os.waitstatus_to_exitcode(ended[1])
        return self.code is None

    def ask(self, path: str, body: object = None) -> dict:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return json.loads(error.read())

    def end(self, number: int) -> None:
        self.process.send(number)
        until = time.monotonic() + PATIENCE
        while self.alive() and time.monotonic() < until:
            time.sleep(0.01)
        os.close(self.process.pipe)


def teachers(agent: Path) -> list[int]:
    """Processes that teach this agent."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = place.read_bytes().split(b"\0")
            if b"osscl.serve.teach_process" in words and os.readlink(place.parent / "cwd") == str(agent.parent):  # noqa: PTH115
                found.append(int(place.parent.name))
    return found


def kill_teachers(agent: Path) -> None:
    for pid in teachers(agent):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def taught(server: Server) -> dict:
    """How the teaching ended; asked for again if the process that teaches was killed."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        now = server.ask("/api/teach")
        if now.get("state") in ("idle", "failed") and server.ask("/api/next")["labels"]:
            now = server.ask("/api/teach", {})
        if now.get("state") == "finished":
            return now
        time.sleep(0.05)
    raise TimeoutError(f"not taught: {now}")


def knowledge(agent: Path) -> object:
    made = ContinualClassifier.load(agent, "cpu")
    return fingerprint(made.entry()["knowledge"]), [step.content for step in made.history]


def kills_of_server(attack: Attack) -> None:
    """Kill at random moments, up to three times, then let the next server finish the step."""
    ready = prepared(attack.folder)
    whole = attack.folder / "taught"
    shutil.copytree(ready, whole)
    began = time.monotonic()
    expected = _taught_whole(whole)
    seconds = time.monotonic() - began
    done = 0
    while done < attack.count and time.monotonic() < attack.until:
        with tempfile.TemporaryDirectory(dir=attack.folder, ignore_cleanup_errors=True) as folder:
            place = Path(folder) / "place"
            shutil.copytree(ready, place)
            kind = attack.rng.choice(("server and teacher", "server", "teacher", "SIGTERM", "SIGINT"))
            times = attack.rng.randrange(1, 4)
            try:
                outcome, detail = _killed(attack, place, expected, kind, times, seconds)
            finally:
                kill_teachers(place / "agent")
            attack.ledger.add(f"serve while it teaches, {kind}", outcome, detail, times if outcome == "survived" else 1)
            done += times


def _taught_whole(place: Path) -> object:
    server = Server(place)
    server.ask("/api/teach", {})
    made = taught(server)
    server.end(signal.SIGTERM)
    return made["result"]["new_classes"], made["result"]["labeled"], knowledge(place / "agent")


def _killed(attack: Attack, place: Path, expected: object, kind: str, times: int, seconds: float) -> tuple[str, str]:
    agent = place / "agent"
    logs = []
    for _ in range(times):
        server = Server(place)
        server.ask("/api/teach", {})
        time.sleep(attack.rng.uniform(0, seconds))
        if kind in ("teacher", "server and teacher"):
            kill_teachers(agent)
        number = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}.get(kind, signal.SIGKILL)
        if kind != "teacher":
            server.end(number)
        else:
            server.ask("/api/teach")
            server.end(signal.SIGTERM)
        kill_teachers(agent) if kind == "server and teacher" else None
        logs.append(server.log)
    server = Server(place)
    try:
        made = taught(server) if server.ask("/api/next")["labels"] or _runs(server) else None
    except TimeoutError as error:
        return "silent", str(error)
    finally:
        server.end(signal.SIGTERM)
    logs.append(server.log)
    if "Traceback" in (told := "\n".join(logs)):
        return "traceback", told
    found = knowledge(agent)
    if found != expected[2]:
        return "silent", f"{kind} {times}: another agent: {found[1]} {made}"
    if made is not None and (made["result"]["new_classes"], made["result"]["labeled"]) not in (
        (expected[0], expected[1]),
    ):
        return "silent", f"{kind} {times}: another result: {made['result']}"
    own = agent / SERVE_FOLDER
    if (own / "step.json").exists() or [*(own / "uploads").iterdir()]:
        return "silent", f"{kind} {times}: left {[*own.rglob('*')]}"
    return "survived", ""


def _runs(server: Server) -> bool:
    return server.ask("/api/teach")["state"] == "running"
