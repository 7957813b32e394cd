"""The endpoints of `osscl serve`: answers, the pile, labels, changes of classes; refusals are sentences."""

import io
import json
import os
import re
import threading
import urllib.request

import pytest
from PIL import Image

from refusals import naming
from serve.conftest import group_of, running, sorted_pile, wait_for

MOST_FUZZED = (
    32 if os.environ.get("OSSCL_FUZZ") is None else int(os.environ["OSSCL_FUZZ"])
)  # requests for each operation


def picture_bytes(color="red", size=(64, 48), form="PNG"):
    made = io.BytesIO()
    Image.new("RGB", size, color).save(made, form)
    return made.getvalue()


def predicted(client, *paths):
    files = [("files", (path.name, path.read_bytes())) for path in paths]
    answer = client.post("/api/predict", files=files)
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_photos_are_answered_with_top_classes_known_percent_and_nearest_examples(client, photos):
    fish, umbrella = predicted(client, photos / "test" / "fish" / "000.jpg", photos / "test" / "umbrella" / "000.jpg")
    assert fish["top"][0]["name"] == "fish" and fish["known"] and len(fish["top"]) == 5
    assert sum(one["probability"] for one in fish["top"]) == pytest.approx(1, abs=0.01)
    assert not umbrella["known"] and umbrella["known_percent"] < 5 < fish["known_percent"]
    assert [one["name"] for one in fish["nearest"]] == ["fish"] * 3
    example = client.get(fish["nearest"][0]["picture"])
    assert example.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(example.content)).size == (112, 112)
    assert fish["thumbnail"].startswith("data:image/jpeg;base64,") and fish["learned_as"] is None
    (taught,) = predicted(client, photos / "week2" / "fish" / "000.jpg")
    assert taught["learned_as"] == "fish"


def test_the_page_answers_as_the_command_line_does(client, photos, agent):
    from osscl.agent.classifier import ContinualClassifier

    path = photos / "test" / "boat" / "003.jpg"
    (found,) = predicted(client, path)
    expected = ContinualClassifier.load(agent, "cpu").predict_detailed([path])
    assert found["top"][0]["name"] == expected.names[0]
    assert found["known_percent"] == pytest.approx(100 * float(expected.scores[0]), abs=0.06)


def test_each_answer_is_sent_as_soon_as_it_is_ready(server_state, photos, monkeypatch):
    """The second answer is not started before the first one has arrived."""
    from osscl.serve.app import build_app
    from osscl.serve.guard import Access

    arrived, real, count = threading.Event(), server_state.served.answer, []

    def answer(content, file):
        count.append(file)
        assert len(count) == 1 or arrived.wait(30)
        return real(content, file)

    monkeypatch.setattr(server_state.served, "answer", answer)
    parts = [
        b'--b\r\nContent-Disposition: form-data; name="files"; filename="%d.png"\r\n\r\n%s\r\n' % (i, picture_bytes())
        for i in range(2)
    ]
    form = {"content-type": "multipart/form-data; boundary=b"}
    with running(build_app(server_state, Access("127.0.0.1"))) as url:
        request = urllib.request.Request(f"{url}/api/predict", b"".join(parts) + b"--b--\r\n", form)
        with urllib.request.urlopen(request, timeout=60) as lines:
            assert json.loads(lines.readline())["file"] == "0.png"
            arrived.set()
            assert json.loads(lines.readline())["file"] == "1.png"


def test_unreadable_files_are_answered_with_a_sentence(client):
    files = [
        ("files", ("<img src=x onerror=alert(1)>.png", b"not an image")),
        ("files", ("empty.jpg", b"")),
        ("files", ("../../etc/passwd", picture_bytes())),
        ("files", ("tiny.png", picture_bytes(size=(3, 3)))),
    ]
    answers = [json.loads(line) for line in client.post("/api/predict", files=files).text.splitlines()]
    assert re.search(naming("damaged"), answers[0]["error"]) and answers[0]["top"] == []
    assert answers[1]["error"] and answers[2]["error"] is None and answers[2]["file"] == "passwd"
    assert re.search(naming("tiny.png", "3x3", 8), answers[3]["error"])


def test_uploads_are_limited_in_number_bytes_and_pixels(client, monkeypatch):
    from osscl.serve import decoding, guard, served_agent

    many = client.post("/api/predict", files=[("files", ("a.png", b"x"))] * 51)
    assert (many.status_code in (400, 413) and "51" in many.json()["error"]) or "50" in many.json()["error"]
    monkeypatch.setattr(served_agent, "MOST_BYTES", 1000)
    (answer,) = [json.loads(client.post("/api/predict", files=[("files", ("a.bmp", picture_bytes(form="BMP")))]).text)]
    assert re.search(naming("a.bmp", "MB"), answer["error"])
    monkeypatch.setattr(served_agent, "MOST_BYTES", 2**26)
    large = picture_bytes(size=(12_001, 10_000))
    assert decoding.MOST_PIXELS < 12_001 * 10_000
    (answer,) = [json.loads(client.post("/api/predict", files=[("files", ("large.png", large))]).text)]
    assert re.search(naming("large.png", "120,000,000"), answer["error"])
    monkeypatch.setattr(guard, "MOST_UPLOADED", 2**20)
    refused = client.post("/api/predict", files=[("files", ("a.png", bytes(2**21)))])
    assert refused.status_code == 413 and "1 MB" in refused.json()["error"]

    def chunks():  # without a length
        yield b'--b\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n'
        yield from (bytes(2**18) for _ in range(8))

    refused = client.post("/api/predict", content=chunks(), headers={"content-type": "multipart/form-data; boundary=b"})
    assert refused.status_code == 413 and "1 MB" in refused.json()["error"]


def test_the_pile_is_sorted_into_groups_and_classes_with_pages_of_pictures(client):
    pile = sorted_pile(client)
    groups = [one for one in pile["sections"] if one["kind"] == "group"]
    known = [one for one in pile["sections"] if one["kind"] == "known"]
    assert pile["pictures"] == sum(one["count"] for one in pile["sections"]) == 82
    assert len(groups) == 2 and {one["name"] for one in known} == {"boat", "house", "tree", "car", "fish"}
    pages = [
        client.get(f"/api/pile/sections/{known[0]['id']}", params={"start": start, "count": 4}).json()["pictures"]
        for start in range(0, known[0]["count"], 4)
    ]
    ids = [one["id"] for page in pages for one in page]
    assert len({*ids}) == known[0]["count"] and ids[: len(known[0]["first"])] == known[0]["first"][: len(ids)]
    small, large = (client.get(f"/api/pictures/{ids[0]}/{size}") for size in ("small", "large"))
    assert Image.open(io.BytesIO(small.content)).size == (224, 224)
    assert Image.open(io.BytesIO(large.content)).size == (240, 180)
    assert "immutable" in small.headers["cache-control"]
    again = client.get(f"/api/pictures/{ids[0]}/small")
    assert again.content == small.content


def test_labels_wait_for_the_next_step_and_the_newest_counts(client, photos):
    group = group_of(client)
    told = client.put("/api/next", json={"name": "balloon", "pictures": group}).json()
    assert told["classes"] == {"balloon": len(group)}
    client.put("/api/next", json={"name": "hot  air", "pictures": group[:2]})
    pug = (photos / "test" / "umbrella" / "000.jpg").read_bytes()
    told = client.post("/api/next/upload", data={"name": "pug"}, files=[("files", ("pug.jpg", pug))]).json()
    assert told["classes"] == {"balloon": len(group) - 2, "hot air": 2, "pug": 1}
    page = client.get("/api/pile/sections/group-2", params={"count": 2}).json()
    assert page["pictures"][0]["label"] == "hot air"
    upload = next(one["id"] for one in told["labels"] if one["source"] == "upload")
    assert client.get(f"/api/pictures/{upload}/small").status_code == 200
    told = client.post("/api/next/drop", json={"pictures": [upload]}).json()
    assert "pug" not in told["classes"] and client.get(f"/api/pictures/{upload}/small").status_code == 404
    assert client.post("/api/next/drop", json={}).json() == {"labels": [], "classes": {}}


def test_classes_are_renamed_merged_and_forgotten_and_back_undoes_it(client):
    before = client.get("/api/agent").json()
    state = client.post("/api/classes/rename", json={"old": "boat", "new": "<b>ship</b>"}).json()
    assert state["classes"][0]["name"] == "<b>ship</b>" and len(state["classes"][0]["examples"]) == 8
    state = client.post("/api/classes/merge", json={"gone": "car", "into": "house"}).json()
    state = client.post("/api/classes/remove", json={"name": "tree"}).json()
    assert [(one["name"], one["pictures"]) for one in state["classes"]] == [
        ("<b>ship</b>", 10),
        ("house", 20),
        ("fish", 10),
    ]
    assert [one["what"] for one in state["history"]][2:] == [
        "renamed boat to <b>ship</b>",
        "merged car into house",
        "removed tree",
    ]
    assert [one["name"] for one in state["earlier"]] == ["model-1", "model-2", "model-3", "model-4"]
    state = client.post("/api/back", json={"model": "model-2"}).json()
    assert state["version"] == before["version"] and state["classes"] == before["classes"]
    assert [one["name"] for one in state["earlier"]] == ["model-1", "model-3", "model-4", "model-5"]
    assert state["left_out"]["n"] == 50 and state["left_out"]["agent"] >= state["left_out"]["class_means"]


def test_the_test_folder_gives_accuracy_class_means_and_confusion(client):
    test = wait_for(lambda: (lambda now: now if now["state"] == "ready" else None)(client.get("/api/test").json()))
    assert test["accuracy"]["n"] == 40 and test["accuracy"]["agent"] > 90 and test["accuracy"]["class_means"] > 80
    assert test["others"] == 24 and test["others_known_percent"] < 20 and test["auroc"] > 0.95
    assert [sum(row) for row in test["confusion"]] == [one["n"] for one in test["classes"]] == [8] * 8
    assert [one["right_percent"] is None for one in test["classes"]] == [False] * 5 + [True] * 3


@pytest.mark.parametrize(
    "method, path, body, status, about",
    [
        ("get", "/api/nowhere", None, 404, "page"),
        ("get", "/static/../app.py", None, 404, "page"),
        ("delete", "/api/agent", None, 405, "support"),
        ("get", "/api/examples/" + "0" * 32, None, 404, "example"),
        ("get", "/api/examples/..%2f..%2fmodel", None, 404, "page"),
        ("get", "/api/examples/xyz", None, 422, "id"),
        ("get", "/api/pictures/" + "0" * 32 + "/small", None, 404, "picture"),
        ("get", "/api/pictures/" + "0" * 32 + "/huge", None, 422, "size"),
        ("get", "/api/pile/sections/group-99", None, 404, "section"),
        ("put", "/api/next", {"name": "x", "pictures": ["0" * 32]}, 404, "picture"),
        ("put", "/api/next", {"name": "x", "pictures": ["../model"]}, 422, "pictures"),
        ("put", "/api/next", {"name": "group-3", "pictures": ["0" * 32]}, 400, "group-3"),
        ("put", "/api/next", {"name": "BOAT", "pictures": ["0" * 32]}, 400, ("BOAT", "boat")),
        ("put", "/api/next", {"name": "a\u202eb", "pictures": ["0" * 32]}, 400, "printable"),
        ("post", "/api/teach", None, 400, "teach"),
        ("post", "/api/teach/stop", None, 409, "taught"),
        ("post", "/api/classes/rename", {"old": "boat", "new": "car"}, 400, ("car", "merge")),
        ("post", "/api/classes/rename", {"old": "none", "new": "x"}, 400, ("class", "'none'")),
        ("post", "/api/classes/remove", {"name": "none"}, 400, ("class", "'none'")),
        ("post", "/api/classes/remove", {}, 422, "name"),
        ("post", "/api/back", {"model": "../../model-1"}, 400, "model-1"),
        ("post", "/api/predict", None, 422, "picture"),
    ],
)
def test_refusals_are_json_with_a_sentence(client, method, path, body, status, about):
    sorted_pile(client)
    answer = client.request(method, path, json=body) if body is not None else client.request(method, path)
    named = naming(*[about] if isinstance(about, str) else about)
    assert answer.status_code == status and re.search(named, answer.json()["error"]), answer.text
    assert "Traceback" not in answer.text and "\n" not in answer.json()["error"]


def test_a_bug_is_answered_without_its_traceback(server_state, monkeypatch):
    from starlette.testclient import TestClient

    from osscl.serve.app import build_app
    from osscl.serve.guard import Access

    monkeypatch.setattr(server_state, "agent_state", lambda: 1 / 0)
    app = build_app(server_state, Access("127.0.0.1"))
    answer = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False).get("/api/agent")
    assert answer.status_code == 500 and answer.json()["error"] and "division" not in answer.text


def test_an_agent_changed_by_another_process_is_read_again(client, agent):
    from osscl.agent.classifier import ContinualClassifier

    assert client.get("/api/agent").json()["classes"][0]["name"] == "boat"
    made = ContinualClassifier.load(agent, "cpu")
    made.rename("boat", "ship").save(agent)
    assert client.get("/api/agent").json()["classes"][0]["name"] == "ship"


def test_an_agent_without_kept_pictures_says_so(demo, photos, tmp_path):
    from osscl.agent.classifier import ContinualClassifier
    from osscl.serve.server_state import ServerState

    files = sorted((photos / "week1").rglob("*.jpg"))
    ContinualClassifier(views=1, memory=0, device="cpu").fit(files, [one.parent.name for one in files]).save(tmp_path)
    made = ServerState(tmp_path, None, None, "cpu")
    state = made.agent_state()
    assert "--memory 0" in state.warnings[0] and all(one.examples == [] for one in state.classes)
    answer = made.served.answer((photos / "test" / "tree" / "000.jpg").read_bytes(), "tree.jpg")
    made.close()
    assert answer.top[0].name == "tree" and answer.nearest == []
    assert made.pile_state().state == "none" and made.test_state().state == "none"


def test_300_requests_made_from_the_description_cause_no_server_error(server_state):
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings

    from osscl.serve.app import build_app
    from osscl.serve.guard import Access

    asked = []
    with running(build_app(server_state, Access("127.0.0.1"))) as url:
        wait_for(lambda: server_state.pile_state().state == "ready")
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        for operation in [one.ok() for one in schema.get_all_operations()]:

            @given(case=operation.as_strategy())
            @settings(
                max_examples=MOST_FUZZED, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
                suppress_health_check=[*HealthCheck],
            )  # fmt: skip
            def fuzz(case):
                answer = case.call()
                asked.append((case.method, case.path, answer.status_code))
                assert answer.status_code < 500, answer.text
                if answer.status_code >= 400:
                    assert isinstance(answer.json()["error"], str)

            fuzz()
    assert len(asked) >= 300, len(asked)
    assert len({path for _, path, status in asked if status < 300}) > 8
    assert len(server_state.agent_state().classes) == 5  # nothing was changed by accident
