import errno
import math
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from osscl import storage
from osscl.errors import DamagedFile, Locked, UnsupportedFile, UserError
from osscl.storage import (
    atomic_write,
    draft_folder,
    is_locked,
    locked,
    read_cached_state,
    read_newest_state,
    read_sealed,
    read_state,
    refuse_to_overwrite,
    remove_drafts,
    remove_state,
    set_aside,
    write_sealed,
    write_state,
    write_text,
)
from refusals import naming


def same(one: object, two: object) -> bool:
    """Equal at every depth, tensors by type, shape and bits."""
    if isinstance(one, Tensor):
        return isinstance(two, Tensor) and one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict):
        return isinstance(two, dict) and list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return isinstance(two, list) and len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and one == two


def names_in(folder: Path) -> list[str]:
    """All entries of a folder, hidden ones too."""
    return sorted(entry.name for entry in folder.iterdir())


CASES = int(os.environ.get("OSSCL_FUZZ_CASES", "100"))

STATE = {
    "numbers": {"done": 3, "loss": 0.1, "tiny": 5e-324, "big": 2**60, "far": math.inf},
    "words": ["a", "", "Ä/ö", None, True, [1, [2.5, None]]],
    "nothing": None,
    "empty": {"dict": {}, "list": [], "tensor": torch.empty(0), "rows": torch.empty(0, 3, 8, 8, dtype=torch.uint8)},
    "tensor": {"tensor": "a word, not a tensor", "dict": torch.arange(3)},
    "nets": {
        "conv.weight": torch.randn(4, 3, 3, 3).contiguous(memory_format=torch.channels_last),
        "scalar": torch.tensor(7),
        "bool": torch.tensor([True, False]),
        "half": torch.randn(5).bfloat16(),
        "transposed": torch.randn(3, 4).T,
        "expanded": torch.ones(1).expand(4),
        "parameter": torch.nn.Parameter(torch.randn(2)),
    },
    "moments": {str(i): {"step": torch.tensor(float(i)), "exp_avg": torch.randn(2, 2)} for i in range(3)},
    "list of tensors": [torch.tensor([1]), {"deep": torch.tensor([2])}],
}


# ----- nested state


@pytest.mark.parametrize(
    "state",
    [STATE, {"done": 3}, {"a/b": torch.tensor([1]), "a": {"b": torch.tensor([2])}, "": {"a/b": torch.tensor([3])}}],
    ids=["nested", "without tensors", "names with a slash"],
)
def test_state_is_read_as_written(tmp_path, state):
    write_state(tmp_path / "new" / "folder" / "state", state)
    assert same(read_state(tmp_path / "new" / "folder" / "state"), state)


def test_tuples_become_lists_and_keys_become_strings(tmp_path):
    write_state(tmp_path / "state", {1: (2, torch.tensor([3]))})
    assert same(read_state(tmp_path / "state"), {"1": [2, torch.tensor([3])]})


def test_tensors_that_share_memory_are_read_as_separate_ones(tmp_path):
    base = torch.arange(6.0)
    write_state(tmp_path / "state", {"a": base, "again": base, "part": base[1:4]})
    state = read_state(tmp_path / "state")
    assert same(state, {"a": base, "again": base, "part": base[1:4]})
    state["a"].zero_()
    assert same(state["again"], base)


def test_writing_again_replaces_the_file_and_not_what_was_read(tmp_path):
    write_state(tmp_path / "state", {"old": torch.arange(5)})
    first = read_state(tmp_path / "state")
    write_state(tmp_path / "state", {"new": torch.ones(1)})
    assert first["old"].tolist() == [0, 1, 2, 3, 4]
    assert list(read_state(tmp_path / "state")) == ["new"]
    assert names_in(tmp_path) == ["state.safetensors"]


def test_without_tensors_only_the_header_is_read(tmp_path):
    write_state(tmp_path / "a", {"steps": [1, 2], "net": {"weight": torch.ones(3)}})
    assert read_state(tmp_path / "a", tensors=False) == {"steps": [1, 2], "net": {"weight": None}}


# ----- damage


def rewritten(path: Path, change) -> None:
    """Change the metadata of a state file."""
    with safe_open(str(path), framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
        metadata = dict(file.metadata())
    change(metadata)
    save_file(tensors, str(path), metadata=metadata)


def resigned(metadata: dict[str, str]) -> None:
    """Make the digest fit the other entries again, as whoever forges a file would."""
    metadata.pop("digest")
    metadata["digest"] = storage._digest_of_json(metadata)


def test_every_flipped_bit_is_found(tmp_path):
    write_state(tmp_path / "state", STATE)
    path = tmp_path / "state.safetensors"
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(CASES):
        place = rng.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1 :])
        try:  # an equal state: the padding of the header, or a name written with another escape
            assert same(read_state(path), STATE)
        except (DamagedFile, UnsupportedFile) as error:
            assert str(path) in str(error) and "\n" not in str(error)
    path.write_bytes(whole)
    assert same(read_state(path), STATE)


def test_a_truncated_file_is_damaged_wherever_it_is_cut(tmp_path):
    write_state(tmp_path / "state", STATE)
    path = tmp_path / "state.safetensors"
    whole = path.read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert read_state(path, damaged_as_none=True) is None
        for tensors in (True, False):
            with pytest.raises(DamagedFile):
                read_state(path, tensors=tensors)


@pytest.mark.parametrize("junk", [b"\0" * 64, b"\xff" * 64, b"not a state at all, but long enough to look like one"])
def test_a_file_of_something_else_is_damaged(tmp_path, junk):
    (tmp_path / "state.safetensors").write_bytes(junk)
    with pytest.raises(DamagedFile, match=naming(tmp_path / "state.safetensors")):
        read_state(tmp_path / "state")


@pytest.mark.parametrize(
    "skeleton",
    ["[]", "3", "null", '{"dict": []}', '{"dict": {"a": {"tensor": "no such"}}}', '{"a": 1}', '{"tensor": ["x"]}',
     '{"tensor": {}}', '{"dict": {"a": {"dict": null}}}', "[" * 100_000, "1" * 5000, "{", '{"tensor": "/x"}'],
)  # fmt: skip
def test_a_forged_file_with_a_valid_digest_is_damaged_if_it_is_not_a_state(tmp_path, skeleton):
    write_state(tmp_path / "state", {"x": torch.zeros(2)})
    rewritten(tmp_path / "state.safetensors", lambda metadata: [metadata.update(state=skeleton), resigned(metadata)])
    with pytest.raises(DamagedFile):
        read_state(tmp_path / "state")


def test_files_of_other_versions_and_programs_are_unsupported(tmp_path):
    path = tmp_path / "state.safetensors"
    save_file({"x": torch.zeros(2)}, str(path))
    for options in ({}, {"damaged_as_none": True}):
        with pytest.raises(UnsupportedFile, match=naming(path, "another program")):
            read_state(path, **options)
    write_state(path, {"x": 1})
    rewritten(path, lambda metadata: [metadata.pop(key) for key in ("format", "digest", "tensors")])
    with pytest.raises(UnsupportedFile, match=naming(path, "version before 0.2.0")):
        read_state(path)
    write_state(path, {"x": 1})
    rewritten(path, lambda metadata: [metadata.update(format="osscl state 9"), resigned(metadata)])
    with pytest.raises(UnsupportedFile, match=naming(path, "'osscl state 9'", "'osscl state 2'")):
        read_state(path)


def damage(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.unlink()  # a second name of the same file stays as it is
    path.write_bytes(whole)


def test_a_damaged_state_falls_back_to_the_one_before_it(tmp_path, caplog):
    path = tmp_path / "checkpoint.safetensors"
    for number in range(3):
        write_state(path, {"x": torch.full((3,), number)}, keep_previous=True)
    assert read_newest_state(path)["x"].tolist() == [2, 2, 2] and not caplog.records
    damage(path)
    assert read_newest_state(path)["x"].tolist() == [1, 1, 1]
    assert "checkpoint.safetensors is damaged" in caplog.text and "the previous checkpoint is used" in caplog.text
    assert names_in(tmp_path) == ["checkpoint.damaged", "checkpoint.safetensors"]
    damage(path)
    assert read_newest_state(path) is None
    assert names_in(tmp_path) == ["checkpoint.damaged", "checkpoint.damaged-2"]


def test_a_kill_between_keeping_the_previous_state_and_replacing_it_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.safetensors"
    for number in range(2):
        write_state(path, {"x": number}, keep_previous=True)

    def killed(draft: Path, target: Path) -> None:
        if target == path:
            raise KeyboardInterrupt
        os.replace(draft, target)  # noqa: PTH105 - Path.replace is what is patched

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_state(path, {"x": 2}, keep_previous=True)
    monkeypatch.undo()
    assert read_newest_state(path) == {"x": 1}
    remove_state(path)
    assert names_in(tmp_path) == []


def test_a_cache_entry_that_cannot_be_used_is_deleted(tmp_path, monkeypatch):
    path = tmp_path / "entry.safetensors"
    assert read_cached_state(path) is None
    write_state(path, {"x": torch.ones(2)})
    assert same(read_cached_state(path), {"x": torch.ones(2)})
    damage(path)
    assert read_cached_state(path) is None and not path.exists()
    save_file({"x": torch.zeros(2)}, str(path))
    assert read_cached_state(path) is None and not path.exists()
    path.mkdir()
    assert read_cached_state(path) is None


def test_a_missing_file_is_none(tmp_path):
    assert read_state(tmp_path / "nothing") is None
    assert read_state(tmp_path / "no" / "folder") is None


def test_a_file_that_cannot_be_opened_is_not_called_missing_or_damaged(tmp_path: Path) -> None:
    write_state(tmp_path / "state", {"done": 3})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match=naming(errno.EMFILE)):
            read_state(tmp_path / "state")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert read_state(tmp_path / "state") == {"done": 3}


def test_a_state_is_readable_by_others_if_the_umask_allows(tmp_path):
    before = os.umask(0o022)
    try:
        write_state(tmp_path / "state", {"x": torch.zeros(1)})
    finally:
        os.umask(before)
    assert (tmp_path / "state.safetensors").stat().st_mode & 0o777 == 0o644


# ----- atomic writes


def test_a_failed_write_keeps_the_old_content_and_leaves_no_draft(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "a.json"
    write_text(path, "old ä")
    with pytest.raises(RuntimeError), atomic_write(path) as draft:
        draft.write_text("half")
        assert path.read_text() == "old ä"
        raise RuntimeError
    assert path.read_text() == "old ä" and names_in(path.parent) == ["a.json"]

    write_state(tmp_path / "state", {"x": 1})
    with pytest.raises(TypeError):
        write_state(tmp_path / "state", {"x": object()})

    def half(tensors: dict[str, Tensor], file: str, metadata: dict[str, str]) -> None:
        Path(file).write_bytes(b"half of it")
        assert read_state(tmp_path / "state") == {"x": 1}
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, "save_file", half)
    with pytest.raises(KeyboardInterrupt):
        write_state(tmp_path / "state", {"x": 2})
    assert read_state(tmp_path / "state") == {"x": 1}
    assert names_in(tmp_path) == ["folder", "state.safetensors"]


def test_a_full_disk_is_an_os_error_of_a_state_and_a_user_error_of_a_text(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=naming(os.strerror(errno.EFBIG))):
            write_state(tmp_path / "state", {"x": torch.zeros(1000)})
        with pytest.raises(UserError, match=naming(tmp_path / "text", os.strerror(errno.EFBIG))):
            write_text(tmp_path / "text", "x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a pipe"])
def test_only_regular_files_are_replaced(tmp_path, kind):
    path = tmp_path / "there.safetensors"
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to(tmp_path / "pipe") if kind == "link to a pipe" else (tmp_path / "pipe").rename(path)
    before = path.lstat(), names_in(tmp_path)
    for write in (lambda: write_text(path, "x"), lambda: write_state(path, {"x": 1})):
        with pytest.raises(UserError, match=naming(path, "regular")):
            write()
    assert (path.lstat(), names_in(tmp_path)) == before


def test_existing_files_and_dangling_links_are_not_overwritten(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(UserError, match=naming(tmp_path / "link.json")):
        refuse_to_overwrite(tmp_path / "link.json")
    refuse_to_overwrite(tmp_path / "free.json")


def test_a_draft_folder_is_renamed_by_its_user_or_removed(tmp_path):
    with draft_folder(tmp_path / "data") as draft:
        (draft / "file").write_text("x")
        draft.rename(tmp_path / "data")
    with pytest.raises(RuntimeError), draft_folder(tmp_path / "data") as draft:
        (draft / "file").write_text("y")
        raise RuntimeError
    assert names_in(tmp_path) == ["data"] and (tmp_path / "data" / "file").read_text() == "x"


def test_files_set_aside_never_replace_each_other(tmp_path):
    for content in "abc":
        (tmp_path / "checkpoint.safetensors").write_text(content)
        set_aside(tmp_path / "checkpoint.safetensors", "damaged")
    assert names_in(tmp_path) == [f"checkpoint.damaged{end}" for end in ("", "-2", "-3")]
    (tmp_path / "checkpoint.damaged").unlink()
    for content in "de":
        (tmp_path / "checkpoint.safetensors").write_text(content)
        set_aside(tmp_path / "checkpoint.safetensors", "damaged")
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {f"checkpoint.damaged{end}": text for end, text in zip(("", "-2", "-3", "-4"), "dbce", strict=True)}


# ----- drafts of killed writers


def killed_while(folder: Path, work: str) -> None:
    """Run `work` in a process that is killed at the end of it."""
    code = f"import os, signal\nfrom pathlib import Path\nfrom osscl import storage\nfolder = Path({str(folder)!r})\n"
    done = subprocess.run([sys.executable, "-c", f"{code}{work}\n"], check=False)
    assert done.returncode == -signal.SIGKILL


KILL = "os.kill(os.getpid(), signal.SIGKILL)"
USERS = (".notes.2024.txt", ".spec.json", ".tmpXy12Zz", "draft", ".draft", ".a.draft", ".a.0a1b2c3d.draft.txt")


def test_the_next_lock_removes_all_drafts_and_nothing_of_the_user(tmp_path):
    killed_while(tmp_path, f"with storage.atomic_write(folder / 'a') as d:\n    d.write_text('x')\n    {KILL}")
    killed_while(tmp_path, f"with storage.draft_folder(folder / 'b') as d:\n    (d / 'c').write_text('x')\n    {KILL}")
    save = "storage.save_file = lambda *_, **__: " + KILL
    killed_while(tmp_path, f"{save}\nstorage.write_state(folder / 'state', {{'x': 1}})")
    assert len(names_in(tmp_path)) == 4
    for name in USERS:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".folder.2024").mkdir()
    with locked(tmp_path):
        assert names_in(tmp_path) == sorted([*USERS, ".folder.2024", ".lock"])


def test_in_a_shared_folder_only_old_drafts_are_removed(tmp_path):
    new, old = tmp_path / ".a.0a1b2c3d.draft", tmp_path / ".b.0a1b2c3d.draft"
    for draft in (new, old):
        draft.write_text("x")
    hours_ago = time.time() - 2 * storage.ABANDONED
    os.utime(old, (hours_ago, hours_ago))
    write_state(tmp_path / "state", {"x": 1})
    assert names_in(tmp_path) == [new.name, "state.safetensors"]
    remove_drafts(tmp_path / "missing")


def test_the_next_draft_folder_removes_those_of_killed_writers_and_no_other(tmp_path):
    work = f"with storage.draft_folder(folder / 'sorted') as d:\n    (d / 'a.png').write_text('x')\n    {KILL}"
    killed_while(tmp_path, work)
    (left,) = names_in(tmp_path)
    with draft_folder(tmp_path / "sorted") as first, draft_folder(tmp_path / "sorted") as second:
        assert first.is_dir() and second.is_dir() and left not in names_in(tmp_path)
        with draft_folder(tmp_path / "other"):
            assert first.is_dir()
    assert names_in(tmp_path) == []


def test_an_old_draft_of_the_same_file_is_removed(tmp_path):
    drafts = [tmp_path / f".{name}.0a1b2c3d.draft" for name in ("stream.json", "other.json")]
    for draft in drafts:
        draft.write_text("x")
        os.utime(draft, (1, 1))
    write_text(tmp_path / "stream.json", "{}")
    assert names_in(tmp_path) == [drafts[1].name, "stream.json"]


# ----- sealed documents


def test_a_sealed_document_is_read_as_it_was_written(tmp_path):
    content = {"labels": [{"id": "a1", "name": "Käse \u2028", "share": 0.1}], "none": None}
    write_sealed(tmp_path / "a.json", content)
    assert read_sealed(tmp_path / "a.json") == content
    with pytest.raises(FileNotFoundError):
        read_sealed(tmp_path / "b.json")


def test_no_flipped_bit_of_a_sealed_document_goes_unnoticed(tmp_path):
    write_sealed(tmp_path / "a.json", [{"name": "blue", "id": 7}])
    whole = (tmp_path / "a.json").read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            (tmp_path / "a.json").write_bytes(damaged)
            with pytest.raises(DamagedFile, match=naming(tmp_path / "a.json")):
                read_sealed(tmp_path / "a.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"content": 1}', '{"content": 1, "digest": "00"}', "[" * 10**5])
def test_a_document_without_its_digest_is_damaged(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DamagedFile):
        read_sealed(tmp_path / "a.json")


# ----- locks


def test_a_lock_excludes_others_until_it_is_released(tmp_path):
    folder = tmp_path / "new" / "run"
    assert not is_locked(folder)
    with locked(folder):
        assert is_locked(folder)
        with pytest.raises(Locked, match=naming(folder)), locked(folder):
            pass
    assert not is_locked(folder) and names_in(folder) == [".lock"]
    with pytest.raises(RuntimeError), locked(folder):
        raise RuntimeError
    with locked(folder):
        pass


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    killed_while(tmp_path, f"with storage.locked(folder):\n    {KILL}")
    assert (tmp_path / ".lock").exists() and not is_locked(tmp_path)
    with locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_locked_is_reported_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(UserError, match=naming(tmp_path / "file" / "run", os.strerror(errno.ENOTDIR))),
        locked(tmp_path / "file" / "run"),
    ):
        pass

    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(FileLock, "_acquire", no_locks)
    with pytest.raises(UserError, match=naming(tmp_path, "No locks available")), locked(tmp_path):
        pass
    (tmp_path / ".lock").touch()
    assert not is_locked(tmp_path)
