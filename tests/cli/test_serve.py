"""`osscl serve` refuses in one line what it cannot serve."""

import socket

import pytest

from osscl.cli import serve


def test_without_its_packages_the_command_says_what_to_install(refuses, monkeypatch):
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    refuses("serve", "agent", words='pip install "osscl[serve]"')


def test_wrong_folders_and_tokens_are_refused(refuses, tmp_path):
    pytest.importorskip("fastapi", reason='needs "osscl[serve]"')
    refuses("serve", "nowhere", words="no agent in nowhere")
    refuses("serve", "nowhere", "--pile", "nowhere", words="nowhere is not a folder")
    refuses("serve", "nowhere", "--token", "short", words="8 letters and digits")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "agent" / "pictures").mkdir(parents=True)
    for option in ("--pile", "--test"):
        refuses("serve", "agent", option, "agent/pictures", words="must be outside the agent's folder")


def test_a_port_that_is_taken_is_a_user_error():
    pytest.importorskip("uvicorn", reason='needs "osscl[serve]"')
    from osscl.errors import UserError
    from osscl.serve.app import listening

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="try another --host or --port"):
            listening("127.0.0.1", taken.getsockname()[1])


def test_an_agent_trained_from_scratch_is_refused(refuses, typed, tmp_path):
    pytest.importorskip("fastapi", reason='needs "osscl[serve]"')
    from PIL import Image

    for c, color in enumerate(("red", "blue")):
        (tmp_path / "week" / color).mkdir(parents=True)
        for i in range(3):
            Image.new("L", (8, 8), 40 * c + i).save(tmp_path / "week" / color / f"{i}.png")
    options = ["--schedule", "smoke", "--size", "8", "--grey", "--device", "cpu", "--memory", "10"]
    assert typed("fit", "agent", "--labeled", "week", *options)[0] == 0
    refuses("serve", "agent", words="trained from scratch")
