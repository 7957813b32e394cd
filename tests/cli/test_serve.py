"""`osscl serve` refuses in one line what it cannot serve."""

import socket

import pytest

from osscl.cli import serve
from osscl.errors import DataError, UserError
from refusals import naming


def test_without_its_packages_the_command_says_what_to_install(refuses, monkeypatch):
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    refuses("serve", "agent", error=UserError, about='pip install "osscl[serve]"')


def test_wrong_folders_and_tokens_are_refused(refuses, tmp_path):
    pytest.importorskip("fastapi", reason='needs "osscl[serve]"')
    refuses("serve", "nowhere", error=DataError, about="nowhere")
    refuses("serve", "nowhere", "--pile", "pile", error=UserError, about="pile")
    refuses("serve", "nowhere", "--token", "short", error=UserError, about="--token")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "agent" / "pictures").mkdir(parents=True)
    for option in ("--pile", "--test"):
        refuses("serve", "agent", option, "agent/pictures", error=UserError, about=["agent/pictures", "agent"])


def test_a_port_that_is_taken_is_a_user_error():
    pytest.importorskip("uvicorn", reason='needs "osscl[serve]"')
    from osscl.serve.app import listening

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=naming("127.0.0.1", port, "--host", "--port")):
            listening("127.0.0.1", port)


def test_an_agent_trained_from_scratch_is_refused(refuses, typed, tmp_path):
    pytest.importorskip("fastapi", reason='needs "osscl[serve]"')
    from PIL import Image

    for c, color in enumerate(("red", "blue")):
        (tmp_path / "week" / color).mkdir(parents=True)
        for i in range(3):
            Image.new("L", (8, 8), 40 * c + i).save(tmp_path / "week" / color / f"{i}.png")
    options = ["--schedule", "smoke", "--size", "8", "--grey", "--device", "cpu", "--memory", "10"]
    assert typed("fit", "agent", "--labeled", "week", *options)[0] == 0
    refuses("serve", "agent", error=UserError, about="scratch")
