"""Teaching in the background: one at a time, stoppable, and resumed after a killed server with the same result."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from osscl.agent.classifier import ContinualClassifier
from osscl.errors import UserError
from osscl.serve import teach_process
from osscl.serve.next_step import SERVE_FOLDER, LabelBook, PendingStep
from osscl.serve.teach_process import teach_pending
from osscl.storage import is_locked
from osscl.tools.battery import difference
from refusals import naming
from serve.conftest import ended, group_of, teaching_processes, wait_for


def knowledge(folder):
    return ContinualClassifier.load(folder, "cpu").entry()["knowledge"]


def label_a_group(client):
    group = group_of(client)
    client.put("/api/next", json={"name": "balloon", "pictures": group})
    return group


def test_a_named_group_is_taught_and_the_page_shows_what_changed(client, agent, photos):
    group = label_a_group(client)
    fish = (photos / "test" / "umbrella" / "001.jpg").read_bytes()
    client.post("/api/next/upload", data={"name": "fish"}, files=[("files", ("x.jpg", fish))])
    assert client.post("/api/teach").status_code == 202
    second = client.post("/api/teach")
    assert second.status_code == 409 and "taught" in second.json()["error"]
    assert second.json()["running"]["classes"] == ["balloon", "fish"]
    for path, body in (("rename", {"old": "boat", "new": "x"}), ("remove", {"name": "boat"})):
        assert client.post(f"/api/classes/{path}", json=body).status_code == 409
    assert client.post("/api/back", json={"model": "model-1"}).status_code == 409
    events = client.get("/api/teach/events").text
    assert events.startswith("event: teaching\ndata: ") and '"state": "finished"' in events
    made = ended(client)["result"]
    assert made["new_classes"] == ["balloon"] and made["further_classes"] == ["fish"]
    assert made["labeled"] == len(group) + 1 and made["pile"] == 82
    assert made["changed"] >= len(group) - 2 and made["changes"][0]["before"] is None
    assert made["test_before"]["n"] == 40 and made["test_after"]["n"] == 48
    assert made["left_out_after"]["n"] == 50 + len(group) + 1 and made["left_out_after"]["class_means"] > 50
    assert "balloon" in [one["name"] for one in client.get("/api/agent").json()["classes"]]
    assert client.get("/api/next").json()["labels"] == [] and [*(agent / SERVE_FOLDER / "uploads").iterdir()] == []
    assert not (agent / SERVE_FOLDER / "step.json").exists() and client.post("/api/teach").status_code == 400
    assert client.post("/api/teach/dismiss").json()["state"] == "idle"


def test_a_step_can_be_stopped_and_the_labels_are_kept(client, agent):
    group, before = label_a_group(client), (agent / "model.safetensors").read_bytes()
    client.post("/api/teach")
    assert client.post("/api/teach/stop").json()["stopping"]
    assert ended(client)["state"] == "stopped"
    assert (agent / "model.safetensors").read_bytes() == before
    assert client.get("/api/next").json()["classes"] == {"balloon": len(group)}


def test_a_correction_of_a_taught_picture_relabels_it(client, agent, photos):
    path = photos / "week2" / "car" / "000.jpg"
    client.post("/api/next/upload", data={"name": "fish"}, files=[("files", ("car.jpg", path.read_bytes()))])
    client.post("/api/teach")
    made = ended(client)
    assert made["state"] == "finished" and made["result"]["relabeled"] == 1, made
    assert ContinualClassifier.load(agent, "cpu").learned_as([path]) == ["fish"]


def test_a_step_without_anything_new_ends_with_a_sentence(client, photos):
    path = photos / "week2" / "car" / "000.jpg"
    client.post("/api/next/upload", data={"name": "car"}, files=[("files", ("car.jpg", path.read_bytes()))])
    client.post("/api/teach")
    made = ended(client)
    assert made["state"] == "failed" and "new" in made["error"]


def test_a_teaching_process_that_is_killed_is_reported(client, agent):
    label_a_group(client)
    client.post("/api/teach")
    for process in wait_for(lambda: teaching_processes(agent)):
        os.kill(process, signal.SIGKILL)
    made = ended(client)
    assert made["state"] == "failed" and "labels" in made["error"]
    assert not (agent / SERVE_FOLDER / "step.json").exists() and client.get("/api/next").json()["labels"]


def test_a_killed_server_resumes_the_step_with_the_same_result(serve, agent, demo, tmp_path, client):
    group = label_a_group(client)
    whole = tmp_path / "whole"
    shutil.copytree(agent, whole)
    server = serve()
    assert server.ask("/api/teach", {})[0] == 202
    wait_for(lambda: "reading" in (agent / SERVE_FOLDER / "status.json").read_text() and teaching_processes(agent))
    server.kill()
    for process in teaching_processes(agent):
        os.kill(process, signal.SIGKILL)
    wait_for(lambda: not is_locked(agent / SERVE_FOLDER / "teaching"))
    assert (agent / SERVE_FOLDER / "step.json").exists() and len(ContinualClassifier.load(agent, "cpu").history) == 2
    server = serve()
    status = wait_for(lambda: (lambda now: now if now["state"] != "running" else None)(server.ask("/api/teach")[1]))
    assert status["state"] == "finished" and status["result"]["new_classes"] == ["balloon"], status
    labels = tuple(LabelBook(whole / SERVE_FOLDER).read().values())
    contents = tuple(step.content for step in ContinualClassifier.load(whole, "cpu").history)
    pile, test = (str((demo / "photos" / name).resolve()) for name in ("pile", "test"))
    PendingStep("whole", labels, pile, test, contents).write(whole / SERVE_FOLDER)
    teach_pending(whole, "cpu")
    assert difference(knowledge(agent), knowledge(whole)) is None and len(labels) == len(group)
    last = [ContinualClassifier.load(place, "cpu").history[-1].content for place in (agent, whole)]
    assert last[0] == last[1]


def test_a_step_killed_after_its_model_was_saved_is_finished_not_repeated(client, agent, photos, monkeypatch):
    label_a_group(client)
    ask_for_step(agent, photos / "pile")
    judged, calls = teach_process._judged, []

    def dies(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return judged(*args)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(teach_process, "_judged", dies)
        teach_pending(agent, "cpu")
    assert len(ContinualClassifier.load(agent, "cpu").history) == 3
    teach_pending(agent, "cpu")
    assert len(ContinualClassifier.load(agent, "cpu").history) == 3
    made = client.get("/api/teach").json()
    assert (
        made["state"] == "finished" and made["result"]["changed"] > 0 and client.get("/api/next").json()["labels"] == []
    )


def label_corrections(client, photos):
    """Label two pictures of cars, which were taught as such, as fish."""
    paths = [photos / "week2" / "car" / f"{number:03}.jpg" for number in range(2)]
    files = [("files", (path.name, path.read_bytes())) for path in paths]
    assert client.post("/api/next/upload", data={"name": "fish"}, files=files).status_code == 200
    return paths


def ask_for_step(agent, pile=None):
    """Store a step with all labels."""
    labels = tuple(LabelBook(agent / SERVE_FOLDER).read().values())
    contents = tuple(step.content for step in ContinualClassifier.load(agent, "cpu").history)
    PendingStep("x", labels, None if pile is None else str(pile), None, contents).write(agent / SERVE_FOLDER)


@pytest.mark.parametrize("corrected", [0, 1])
def test_a_step_killed_between_its_corrections_makes_the_others_when_resumed(
    client, agent, photos, tmp_path, monkeypatch, corrected
):
    label_a_group(client)
    paths = label_corrections(client, photos)
    ask_for_step(agent, photos / "pile")
    whole = tmp_path / "whole"
    shutil.copytree(agent, whole)
    relabel, calls = ContinualClassifier.relabel, []

    def dies(made, *given):
        if len(calls) == corrected:
            raise KeyboardInterrupt
        calls.append(given)
        return relabel(made, *given)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(ContinualClassifier, "relabel", dies)
        teach_pending(agent, "cpu")
    assert ContinualClassifier.load(agent, "cpu").learned_as(paths).count("fish") == corrected
    teach_pending(agent, "cpu")
    assert ContinualClassifier.load(agent, "cpu").learned_as(paths) == ["fish", "fish"]
    made = client.get("/api/teach").json()
    assert made["state"] == "finished" and made["result"]["relabeled"] == 2 and made["result"]["notes"] == [], made
    assert client.get("/api/next").json()["labels"] == []
    teach_pending(whole, "cpu")
    assert difference(knowledge(agent), knowledge(whole)) is None


def killed_after_saving(agent, pile, monkeypatch):
    """Teach a step until the agent is saved; the process that is returned has ended."""
    ask_for_step(agent, pile)
    judged = iter([teach_process._judged])
    with monkeypatch.context() as patched, pytest.raises(StopIteration):
        patched.setattr(teach_process, "_judged", lambda *given: next(judged)(*given))
        teach_pending(agent, "cpu")
    assert len(ContinualClassifier.load(agent, "cpu").history) == 3
    ended_process = subprocess.Popen([sys.executable, "-c", ""])
    ended_process.wait()
    return ended_process


def test_a_process_killed_after_it_saved_the_agent_is_started_again(client, server_state, agent, photos, monkeypatch):
    group = label_a_group(client)
    server_state.teaching.process = killed_after_saving(agent, photos / "pile", monkeypatch)
    made = ended(client)
    assert made["state"] == "finished" and made["result"]["labeled"] == len(group), made
    assert client.get("/api/next").json()["labels"] == []


def test_a_process_that_always_ends_is_started_again_once(client, server_state, agent, photos, monkeypatch):
    label_a_group(client)
    server_state.teaching.process, launched = killed_after_saving(agent, photos / "pile", monkeypatch), []
    monkeypatch.setattr(server_state.teaching, "_launch", launched.append)
    made = ended(client)
    assert made["state"] == "failed" and "ended" in made["error"] and len(launched) == 1, made
    assert client.get("/api/next").json()["labels"] and not (agent / SERVE_FOLDER / "step.json").exists()


def test_labels_are_taught_by_a_resumed_step_although_the_agent_was_changed_meanwhile(client, agent, photos):
    group = label_a_group(client)
    ask_for_step(agent, photos / "pile")
    ContinualClassifier.load(agent, "cpu").rename("boat", "ship").save(agent)
    teach_pending(agent, "cpu")
    made = client.get("/api/teach").json()
    assert made["state"] == "finished" and made["result"]["labeled"] == len(group), made


def test_a_step_killed_after_its_labels_were_forgotten_is_finished(client, agent, photos, monkeypatch):
    paths, write_status = label_corrections(client, photos), teach_process.write_status
    ask_for_step(agent)

    def dies(own, state):
        if state.state == "finished":
            raise KeyboardInterrupt
        write_status(own, state)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(teach_process, "write_status", dies)
        teach_pending(agent, "cpu")
    assert client.get("/api/next").json()["labels"] == [] and (agent / SERVE_FOLDER / "step.json").exists()
    teach_pending(agent, "cpu")
    made = client.get("/api/teach").json()
    assert made["state"] == "finished" and made["result"]["relabeled"] == 2, made
    assert ContinualClassifier.load(agent, "cpu").learned_as(paths) == ["fish", "fish"]


def test_a_server_with_another_pile_does_not_resume_the_step(agent, photos, tmp_path):
    from osscl.serve.server_state import ServerState

    (agent / SERVE_FOLDER).mkdir(exist_ok=True)
    PendingStep("x", (), str(tmp_path / "elsewhere"), None, ()).write(agent / SERVE_FOLDER)
    with pytest.raises(UserError, match=naming(f"--pile {tmp_path / 'elsewhere'}")):
        ServerState(agent, photos / "pile", None, "cpu")


def test_the_first_answer_comes_soon_after_the_start(serve, photos):
    """Loose, for busy machines; docs/own-images.md has what was measured."""
    server = serve()
    status, state = server.ask("/api/agent")
    assert status == 200 and len(state["classes"]) == 5
    assert time.monotonic() - server.started < 60


@pytest.mark.parametrize("name", ["labels.json", "step.json"])
def test_labels_with_a_flipped_bit_are_refused_not_taught(client, agent, name):
    label_a_group(client)
    labels = tuple(LabelBook(agent / SERVE_FOLDER).read().values())
    PendingStep("x", labels, None, None, ()).write(agent / SERVE_FOLDER)
    file = agent / SERVE_FOLDER / name
    file.write_bytes(file.read_bytes().replace(b"balloon", b"bamloon", 1))
    with pytest.raises(UserError, match=naming(file)):
        LabelBook(agent / SERVE_FOLDER).read() if name == "labels.json" else PendingStep.read(agent / SERVE_FOLDER)
