import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from osscl.data import cache
from osscl.data.cache import fingerprint, load_decoded, store_decoded
from osscl.data.images import Decoded, content_hash
from osscl.places import cache_dir, data_dir


@pytest.fixture(autouse=True)
def bare_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OSSCL_DATA", "OSSCL_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)


def test_the_flag_wins_over_the_environment_over_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert data_dir(None) == cache_dir() / "data"
    monkeypatch.setenv("OSSCL_DATA", "/env")
    assert data_dir(None) == Path("/env")
    assert data_dir(Path("/flag")) == Path("/flag")


def test_the_cache_is_set_by_its_variable_or_by_xdg(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/osscl")
    monkeypatch.setenv("OSSCL_CACHE", "/mine")
    assert cache_dir() == Path("/mine")
    assert data_dir(None) == Path("/xdg/osscl/data")  # data must survive the deletion of a cache


@pytest.mark.parametrize(
    ("platform", "place"),
    [("linux", ".cache/osscl"), ("darwin", "Library/Caches/osscl"), ("win32", "AppData/Local/osscl")],
)
def test_every_platform_has_its_own_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, place: str
):
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_dir() == tmp_path / place


def test_windows_names_its_cache_folder_in_a_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert cache_dir() == Path("/local/osscl")


# ----- the fingerprint of a folder


def test_broken_and_circular_links_and_pipes_are_skipped(tmp_path: Path):
    folder, other = tmp_path / "set", tmp_path / "other"
    for place in (folder, other):
        place.mkdir()
        (place / "file").write_text("x")
    plain = fingerprint(folder)
    (folder / "lost").symlink_to(tmp_path / "nowhere")
    (folder / "back").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    assert fingerprint(folder) == plain
    (folder / "there").symlink_to(other)  # a part of a data set may lie elsewhere
    linked = fingerprint(folder)
    (other / "file").write_text("xy")
    assert len({plain, linked, fingerprint(folder)}) == 3


def test_a_fingerprint_depends_on_names_sizes_times_and_sampled_bytes(tmp_path: Path):
    def prints(name: str, text: str, time: int) -> str:
        folder = tmp_path / f"{name}-{text[-5:]}-{time}-{len(text)}" / "below"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        os.utime(folder / name, ns=(time, time))
        return fingerprint(folder.parent)

    large = "x" * 10**6
    every = [("a", "x", 1), ("b", "x", 1), ("a", "xy", 1), ("a", "x", 2), ("a", "y", 1), ("a", large, 1)]
    every += [("a", f"y{large[1:]}", 1), ("a", f"{large[1:]}y", 1)]
    assert len({prints(*one) for one in every}) == len(every)


def test_only_some_files_of_a_large_folder_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for number in range(300):
        (tmp_path / f"{number}.jpg").write_text("x")
    opened = []
    monkeypatch.setattr(cache, "_sample", lambda path, size: opened.append(path) or b"")
    fingerprint(tmp_path)
    assert 32 <= len(opened) <= 64


# ----- decoded data sets


def decoded() -> Decoded:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (12, 3, 4, 4), dtype=np.uint8), np.arange(12) % 3
    return Decoded(images[:8], labels[:8], images[8:], labels[8:], ("a", "ä", "c"))


def test_any_flipped_bit_of_a_decoded_data_set_is_found(tmp_path: Path):
    one = decoded()
    store_decoded(tmp_path / "set", one, content_hash(one))
    rng = random.Random(0)
    for file in sorted((tmp_path / "set").iterdir()):
        whole = file.read_bytes()
        for place in rng.sample(range(len(whole)), 60):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1 :])
            found = load_decoded(tmp_path / "set")
            if found is not None:  # the same arrays: a space in a header may become another one
                assert found[1] == content_hash(one) and found[0].class_names == one.class_names
                assert np.array_equal(found[0].train_images, one.train_images)
                assert (found[0].train_images.dtype, found[0].test_labels.dtype) == (np.uint8, np.int64)
        file.write_bytes(whole)
    assert load_decoded(tmp_path / "set") is not None
