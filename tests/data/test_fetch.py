"""Downloading data sets: verified, complete or not at all, and nothing outside of the data folder."""

import hashlib
import io
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from osscl.cli.data import app
from osscl.data import benchmarks
from osscl.data.benchmarks import DATASETS, Archive
from osscl.data.fetch import fetch
from osscl.errors import DataError, SpecError, UserError
from refusals import naming


def tar_of(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def offer(monkeypatch: pytest.MonkeyPatch, name: str, source: Path, url: str = "http://127.0.0.1:9/none") -> None:
    """Make `source` the archive of a data set, served at `url`; by default nothing listens there."""
    md5 = hashlib.md5(source.read_bytes()).hexdigest()
    spec = replace(DATASETS[name], archive=Archive(source.name, url, md5))
    monkeypatch.setitem(benchmarks.DATASETS, name, spec)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / "server").mkdir()
    return tar_of(tmp_path / "server" / "toy.tar.gz", {"cifar-10-batches-py/batches.meta": b"meta"})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "server"))) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_an_archive_is_downloaded_checked_and_extracted_once(tmp_path, archive, server, monkeypatch):
    pytest.importorskip("pooch")
    offer(monkeypatch, "cifar10", archive, f"{server}/toy.tar.gz")
    assert "is now in" in fetch("cifar10", tmp_path / "data")
    assert (tmp_path / "data/cifar-10-batches-py/batches.meta").read_bytes() == b"meta"
    archive.unlink()
    assert "is already in" in fetch("cifar10", tmp_path / "data")
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["cifar-10-batches-py", "toy.tar.gz"]


def test_a_download_with_another_checksum_is_refused_and_not_kept(tmp_path, archive, server, monkeypatch):
    pytest.importorskip("pooch")
    offer(monkeypatch, "cifar10", archive, f"{server}/toy.tar.gz")
    tar_of(archive, {"cifar-10-batches-py/batches.meta": b"other"})
    with pytest.raises(DataError, match=naming(f"{server}/toy.tar.gz", "md5")):
        fetch("cifar10", tmp_path / "data")
    assert not list((tmp_path / "data").iterdir())


def test_without_a_network_one_line_says_which_file_to_put_where(tmp_path, archive, monkeypatch):
    pytest.importorskip("pooch")
    offer(monkeypatch, "cifar10", archive)
    with pytest.raises(DataError) as caught:
        fetch("cifar10", tmp_path / "data")
    message = str(caught.value)
    for part in ("http://127.0.0.1:9/none", "toy.tar.gz", str(tmp_path / "data"), "run the same command again"):
        assert part in message
    assert "\n" not in message


def test_an_archive_in_the_folder_is_used_without_pooch_or_network(tmp_path, archive, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    offer(monkeypatch, "cifar10", archive)
    assert "is now in" in fetch("cifar10", archive.parent)


def test_a_wrong_archive_in_the_folder_is_named_and_left_alone(tmp_path, archive, monkeypatch):
    offer(monkeypatch, "cifar10", archive)
    archive.write_bytes(b"something else")
    with pytest.raises(DataError, match=naming(archive, "md5")):
        fetch("cifar10", archive.parent)
    assert archive.read_bytes() == b"something else"


def test_without_pooch_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(UserError, match=naming('pip install "osscl[fetch]"')):
        fetch("cifar10", tmp_path)


def test_a_zip_is_extracted_too(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "toy.zip", "w") as archive:
        archive.writestr("tiny-imagenet-200/wnids.txt", "n01")
    offer(monkeypatch, "tinyimagenet", tmp_path / "toy.zip")
    fetch("tinyimagenet", tmp_path)
    assert (tmp_path / "tiny-imagenet-200/wnids.txt").read_text() == "n01"


def test_a_zip_with_members_outside_its_folder_leaves_nothing(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "toy.zip", "w") as archive:
        archive.writestr("tiny-imagenet-200/wnids.txt", "n01")
        archive.writestr("../../out.txt", "gotcha")
    offer(monkeypatch, "tinyimagenet", tmp_path / "toy.zip")
    with pytest.raises(DataError, match=naming(tmp_path / "toy.zip", "../../out.txt")):
        fetch("tinyimagenet", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["toy.zip"]


@pytest.mark.parametrize("member", ["../out.txt", "cifar-10-batches-py/../../../out.txt"])
def test_a_tar_with_members_outside_its_folder_leaves_nothing(tmp_path, monkeypatch, member):
    (tmp_path / "data").mkdir()
    source = tar_of(tmp_path / "data" / "toy.tar.gz", {"cifar-10-batches-py/batches.meta": b"", member: b"gotcha"})
    offer(monkeypatch, "cifar10", source)
    with pytest.raises(DataError, match=naming(source, "out.txt")):
        fetch("cifar10", tmp_path / "data")
    assert [path.name for path in tmp_path.rglob("*")] == ["data", "toy.tar.gz"]


def test_an_archive_without_the_expected_folder_is_refused(tmp_path, monkeypatch):
    offer(monkeypatch, "cifar10", tar_of(tmp_path / "toy.tar.gz", {"elsewhere/batches.meta": b""}))
    with pytest.raises(DataError, match=naming(tmp_path / "toy.tar.gz", "cifar-10-batches-py")):
        fetch("cifar10", tmp_path)


def test_the_list_shows_every_set_and_which_are_present(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "cifar-100-python").mkdir()
    shown = CliRunner().invoke(app, ["list", "--data", str(tmp_path)])
    assert shown.exit_code == 0
    lines = {line.split()[1]: line for line in shown.output.splitlines() if len(line.split()) > 1}
    assert set(DATASETS) <= set(lines)
    assert " yes " in lines["cifar100"] and " no " in lines["cifar10"] and " built in " in lines["digits"]


def test_the_command_fetches_several_sets_and_checks_all_names_first(tmp_path):
    done = CliRunner().invoke(app, ["fetch", "digits", "letters", "--data", str(tmp_path)])
    assert done.output.splitlines() == [f"{name} is built in: nothing to fetch" for name in ("digits", "letters")]
    wrong = CliRunner().invoke(app, ["fetch", "digits", "ciphar10", "--data", str(tmp_path)])
    assert isinstance(wrong.exception, SpecError) and not wrong.output
