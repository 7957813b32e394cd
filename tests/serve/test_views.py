"""The pile opens with what is known, and only what is new is judged."""

import os
import shutil
import subprocess
import sys
import threading

import pytest
import torch

from serve.conftest import SRC, sorted_pile, wait_for


@pytest.fixture
def held(monkeypatch):
    """An event that grouping waits for, once the pictures have been judged."""
    from osscl.serve import views

    go_on = threading.Event()
    monkeypatch.setattr(views, "group_unknown", lambda *given, do=views.group_unknown: go_on.wait(60) and do(*given))
    yield go_on
    go_on.set()


def judged_state(client):
    """The pile once all of its pictures have been judged and it is not ready."""

    def look():
        pile = client.get("/api/pile").json()
        return pile if pile["state"] == "sorting" and pile["done"] == pile["of"] > 0 else None

    return wait_for(look)


def test_a_pile_is_shown_before_it_is_grouped(client, held):
    pile = judged_state(client)
    assert not pile["is_grouped"] and pile["pictures"] == 82
    assert sum(one["count"] for one in pile["sections"]) == 82
    names = {one["name"] for one in pile["sections"]}
    assert "Not grouped yet" in names and "fish" in names
    assert client.get(f"/api/pictures/{pile['sections'][0]['first'][0]}/small").status_code == 200
    held.set()
    assert "Group 1" in {one["name"] for one in sorted_pile(client)["sections"]}


def test_a_pile_is_shown_while_it_is_read(agent, photos, monkeypatch):
    from osscl.agent.photos import PhotoLearner
    from osscl.serve import folder
    from osscl.serve.server_state import ServerState

    go_on, parts = threading.Event(), []

    def embed(learner, files, *more, do=PhotoLearner.embed):
        parts.append(len(files))
        assert len(parts) < 3 or go_on.wait(60)
        return do(learner, files, *more)

    monkeypatch.setattr(folder, "FIRST_PART", 10)
    monkeypatch.setattr(PhotoLearner, "embed", embed)
    made = ServerState(agent, photos / "pile", None, "cpu")
    try:
        shown = wait_for(lambda: (lambda pile: pile if pile.pictures == 30 else None)(made.pile_state()))
        assert shown.state == "reading" and (shown.done, shown.of) == (30, 82) and not shown.is_grouped
        assert sum(one.count for one in shown.sections) == 30
        go_on.set()
        ready = wait_for(lambda: (lambda pile: pile if pile.state == "ready" else None)(made.pile_state()))
        assert ready.pictures == sum(one.count for one in ready.sections) == 82 and parts == [10, 20, 40, 12]
    finally:
        go_on.set()
        made.close()


def test_a_pile_that_another_model_sorted_is_shown_at_once(client, agent, photos, held):
    from osscl.agent.classifier import ContinualClassifier
    from osscl.serve.server_state import ServerState

    held.set()
    before = sorted_pile(client)
    held.clear()
    made = ContinualClassifier.load(agent, "cpu")
    made.rename("fish", "trout")
    made.save(agent)
    later = ServerState(agent, photos / "pile", None, "cpu")
    try:
        shown = wait_for(lambda: (lambda pile: pile if pile.sections else None)(later.pile_state()))
        assert shown.state in ("reading", "sorting") and shown.version == before["version"] and shown.is_grouped
        assert [(one.name, one.count) for one in shown.sections] == [
            (one["name"], one["count"]) for one in before["sections"]
        ]
        held.set()
        ready = wait_for(lambda: (lambda pile: pile if pile.state == "ready" else None)(later.pile_state()))
        assert ready.version != shown.version and "trout" in {one.name for one in ready.sections}
    finally:
        later.close()


def test_only_new_pictures_are_judged_and_pictures_that_are_gone_are_left_out(agent, photos, tmp_path, monkeypatch):
    from osscl.serve import views
    from osscl.serve.folder import read_folder
    from osscl.serve.served_agent import LoadedAgent

    pile, own = tmp_path / "pile", tmp_path / "own"
    shutil.copytree(photos / "pile", pile)
    own.mkdir()
    loaded = LoadedAgent.read(agent, "cpu")
    views.sorted_pile(own, loaded, read_folder(pile, own / "pile.json", loaded.learner))
    sorted(pile.glob("*.jpg"))[0].unlink()
    shutil.copyfile(photos / "test" / "umbrella" / "000.jpg", pile / "new.jpg")
    judged = []
    monkeypatch.setattr(views, "_judge", lambda *given, do=views._judge: judged.extend(given[2].tolist()) or do(*given))
    contents = read_folder(pile, own / "pile.json", loaded.learner)
    again = views.sorted_pile(own, loaded, contents)
    assert judged == [contents.files.index("new.jpg")] and again.keys == contents.keys
    fresh = views.sorted_pile(tmp_path, loaded, contents)
    assert again.group.equal(fresh.group) and again.score.allclose(fresh.score) and again.known.equal(fresh.known)


def test_a_section_of_a_class_with_the_name_of_a_group_is_the_class():
    from osscl.serve.views import SortedPile

    known, scores = torch.tensor([True, True, False]), torch.tensor([0.2, 0.9, 0.1])
    label, group = torch.tensor([0, 0, 1]), torch.tensor([-1, -1, 0])
    pile = SortedPile("version", ("group-1", "class-0"), ("a", "b", "c"), label, scores, scores, known, group)
    shown = [pile.section(id) for id in pile.sections]
    assert [(one.kind, one.name, one.first) for one in shown] == [
        ("group", "Group 1", ["c"]), ("known", "group-1", ["b", "a"])
    ]  # fmt: skip
    assert pile.ungrouped.section(shown[0].id).name == "Not grouped yet"


def test_workers_that_decode_do_without_torch():
    program = "import sys, osscl.serve.decoding; sys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(SRC)}
    assert subprocess.run([sys.executable, "-c", program], check=False, env=environment).returncode == 0
