import sys
from pathlib import Path

import pytest

from osscl.data.cache import cache_dir, data_dir


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


def test_the_cache_is_where_it_is_named_else_where_xdg_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/osscl")
    monkeypatch.setenv("OSSCL_CACHE", "/mine")
    assert cache_dir() == Path("/mine")
    assert data_dir(None) == Path("/xdg/osscl/data")  # a cache may be thrown away, data moved with it would go too


@pytest.mark.parametrize(
    ("platform", "place"),
    [("linux", ".cache/osscl"), ("darwin", "Library/Caches/osscl"), ("win32", "AppData/Local/osscl")],
)
def test_every_platform_has_its_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, place: str):
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_dir() == tmp_path / place


def test_windows_is_asked_where_its_caches_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert cache_dir() == Path("/local/osscl")
