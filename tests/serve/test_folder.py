"""Only pictures below the folder are read, each once, and none through a link that leads outside."""

import os
import shutil

import pytest

from osscl.errors import DataError
from osscl.serve.decoding import Decoder, decode_upload
from osscl.serve.folder import read_folder, unchanged_content
from refusals import naming
from serve.conftest import sorted_pile


@pytest.fixture
def learner(demo):
    from osscl.agent.classifier import ContinualClassifier

    return ContinualClassifier.load(demo / "agent", "cpu").learner


@pytest.fixture
def pile(photos, tmp_path):
    shutil.copytree(photos / "pile", tmp_path / "pile")
    return tmp_path / "pile"


def test_links_that_lead_outside_are_not_followed(learner, pile, photos, tmp_path):
    (pile / "outside.jpg").symlink_to(photos / "test" / "fish" / "000.jpg")
    (pile / "folder").symlink_to(photos / "test", target_is_directory=True)
    (pile / "loop.jpg").symlink_to(pile / "loop.jpg")
    (pile / "inside.jpg").symlink_to(sorted(pile.glob("0*.jpg"))[0])
    (pile / ".hidden.jpg").write_bytes((photos / "test" / "fish" / "001.jpg").read_bytes())
    found = read_folder(pile, tmp_path / "index.json", learner)
    assert len(found) == 82  # the inner link has the content of another picture
    assert not {"outside.jpg", "loop.jpg", ".hidden.jpg"} & {*found.files}


def test_a_file_that_becomes_a_link_is_no_longer_served(learner, pile, photos, tmp_path):
    found = read_folder(pile, tmp_path / "index.json", learner)
    assert found.path_of(found.keys[0]) == pile / found.files[0]
    (pile / found.files[0]).unlink()
    (pile / found.files[0]).symlink_to(photos / "test" / "fish" / "000.jpg")
    assert found.path_of(found.keys[0]) is None and found.path_of("0" * 32) is None
    (pile / found.files[1]).write_bytes((photos / "test" / "fish" / "000.jpg").read_bytes())
    with pytest.raises(DataError, match="changed"):
        unchanged_content(found.path_of(found.keys[1]), found.keys[1])


def test_a_changed_file_is_read_again_and_others_are_not(learner, pile, tmp_path, monkeypatch):
    (pile / "broken.jpg").write_bytes(b"no image")
    first = read_folder(pile, tmp_path / "index.json", learner)
    assert len(first) == 82 and len(first.problems) == 1
    asked = []
    monkeypatch.setattr(
        learner, "embed", lambda paths, *more, do=learner.embed: asked.extend(paths) or do(paths, *more)
    )
    assert read_folder(pile, tmp_path / "index.json", learner).keys == first.keys and asked == []
    changed = pile / first.files[3]
    changed.write_bytes((pile / first.files[4]).read_bytes())
    os.utime(changed, ns=(1, 1))
    again = read_folder(pile, tmp_path / "index.json", learner)
    assert asked == [changed] and len(again) == 81
    (tmp_path / "index.json").write_text("{damaged")
    assert read_folder(pile, tmp_path / "index.json", learner).keys == again.keys


def test_only_pictures_in_class_folders_of_a_labelled_folder_count(learner, photos, tmp_path):
    found = read_folder(photos / "test", tmp_path / "index.json", learner, labeled=True)
    assert len(found) == 64 and {*found.labels} == {path.name for path in (photos / "test").iterdir()}
    assert len(read_folder(photos, tmp_path / "other.json", learner, labeled=True)) == len([*photos.glob("*/*.jpg")])


def test_pictures_of_the_agent_folder_and_of_the_test_folder_are_not_in_the_pile(client, photos):
    from osscl.agent.embeddings import file_key

    sorted_pile(client)
    key = file_key((photos / "test" / "fish" / "000.jpg").read_bytes()).hex()
    assert client.get(f"/api/pictures/{key}/small").status_code == 404


# ----- decoding


def test_a_worker_with_too_little_memory_refuses_the_picture_and_the_next_one_works(photos):
    import io

    from PIL import Image

    small = (photos / "test" / "fish" / "000.jpg").read_bytes()
    large = io.BytesIO()
    Image.new("RGB", (9000, 9000)).save(large, "PNG")
    decoder = Decoder(memory=150 * 2**20)
    try:
        with pytest.raises(DataError, match=naming("large.png", "memory")):
            decoder.run(decode_upload, large.getvalue(), "large.png", 64)
        assert decoder.run(decode_upload, small, "small.jpg", 64).image.size == (120, 90)
    finally:
        decoder.close()


def test_a_worker_that_dies_or_hangs_is_replaced(photos):
    import time

    small = (photos / "test" / "fish" / "000.jpg").read_bytes()
    decoder = Decoder(seconds=60)
    try:
        with pytest.raises(DataError, match="decoded"):
            decoder.run(os._exit, 1)
        assert decoder.run(decode_upload, small, "small.jpg", 64).image.mode == "RGB"
        decoder.seconds = 0.2
        with pytest.raises(DataError, match="long"):
            decoder.run(time.sleep, 30)
        decoder.seconds = 60
        assert decoder.run(decode_upload, small, "small.jpg", 64).image.mode == "RGB"
    finally:
        decoder.close()
