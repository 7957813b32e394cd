import math
import os
import resource
from pathlib import Path

import pytest
import torch
from torch import Tensor

from osscl import storage as stored
from osscl.errors import UserError
from osscl.storage import aside, read_state, write_state, write_text


def same(one: object, two: object) -> bool:
    """Equal all the way down, tensors by type, shape and bits."""
    if isinstance(one, Tensor):
        return isinstance(two, Tensor) and one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict):
        return isinstance(two, dict) and list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return isinstance(two, list) and len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and one == two


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
        "turned": torch.randn(3, 4).T,
        "spread": torch.ones(1).expand(4),
        "learned": torch.nn.Parameter(torch.randn(2)),
    },
    "moments": {str(i): {"step": torch.tensor(float(i)), "exp_avg": torch.randn(2, 2)} for i in range(3)},
    "list of tensors": [torch.tensor([1]), {"deep": torch.tensor([2])}],
}


def test_nested_state_comes_back_whole(tmp_path):
    write_state(tmp_path / "state", STATE)
    assert same(read_state(tmp_path / "state"), STATE)


def test_a_channels_last_tensor_comes_back_with_the_same_values(tmp_path):
    weight = torch.arange(72.0).view(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    write_state(tmp_path / "state", {"w": weight})
    assert torch.equal(read_state(tmp_path / "state")["w"], weight)


def test_tensors_that_share_memory_come_back_each_on_its_own(tmp_path):
    base = torch.arange(6.0)
    write_state(tmp_path / "state", {"a": base, "again": base, "part": base[1:4]})
    state = read_state(tmp_path / "state")
    assert same(state, {"a": base, "again": base, "part": base[1:4]})
    state["a"].zero_()
    assert same(state["again"], base)


def test_names_with_a_slash_do_not_mix_tensors_up(tmp_path):
    state = {"a/b": torch.tensor([1]), "a": {"b": torch.tensor([2])}, "": {"a/b": torch.tensor([3])}}
    write_state(tmp_path / "state", state)
    assert same(read_state(tmp_path / "state"), state)


def test_tuples_come_back_as_lists_and_keys_as_words(tmp_path):
    write_state(tmp_path / "state", {1: (2, torch.tensor([3]))})
    assert same(read_state(tmp_path / "state"), {"1": [2, torch.tensor([3])]})


def test_a_state_without_tensors_comes_back(tmp_path):
    write_state(tmp_path / "state", {"done": 3})
    assert read_state(tmp_path / "state") == {"done": 3}


def test_what_was_read_does_not_hang_on_the_file(tmp_path):
    write_state(tmp_path / "state", {"x": torch.arange(5)})
    first = read_state(tmp_path / "state")
    write_state(tmp_path / "state", {"x": torch.zeros(5)})
    assert first["x"].tolist() == [0, 1, 2, 3, 4]


def test_writing_again_replaces_the_whole_state(tmp_path):
    write_state(tmp_path / "state", {"old": torch.zeros(100)})
    write_state(tmp_path / "state", {"new": torch.ones(1)})
    assert list(read_state(tmp_path / "state")) == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]


def test_folders_are_made_on_the_way(tmp_path):
    write_state(tmp_path / "a" / "b" / "state", {"x": 1})
    assert read_state(tmp_path / "a" / "b" / "state") == {"x": 1}


def test_no_file_is_no_state(tmp_path):
    assert read_state(tmp_path / "nothing") is None
    assert read_state(tmp_path / "no" / "folder") is None


def test_a_truncated_file_is_no_state_wherever_it_is_cut(tmp_path):
    write_state(tmp_path / "state", STATE)
    path = tmp_path / "state.safetensors"
    whole = path.read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert read_state(tmp_path / "state") is None


@pytest.mark.parametrize("junk", [b"\0" * 64, b"\xff" * 64, b"not a state at all, but long enough to look like one"])
def test_a_file_of_something_else_is_no_state(tmp_path, junk):
    (tmp_path / "state.safetensors").write_bytes(junk)
    assert read_state(tmp_path / "state") is None


def test_a_damaged_header_is_no_state(tmp_path):
    write_state(tmp_path / "state", STATE)
    path = tmp_path / "state.safetensors"
    data = bytearray(path.read_bytes())
    data[8:40] = b"#" * 32
    path.write_bytes(data)
    assert read_state(tmp_path / "state") is None


def test_tensors_that_this_package_did_not_write_are_no_state(tmp_path):
    stored.save_file({"x": torch.zeros(2)}, str(tmp_path / "state.safetensors"))
    assert read_state(tmp_path / "state") is None


def test_an_interrupted_write_leaves_the_old_state_and_no_litter(tmp_path, monkeypatch):
    write_state(tmp_path / "state", {"x": torch.arange(3)})
    before = (tmp_path / "state.safetensors").read_bytes()

    def half(tensors: dict[str, Tensor], path: str, metadata: dict[str, str]) -> None:
        Path(path).write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(stored, "save_file", half)
    with pytest.raises(KeyboardInterrupt):
        write_state(tmp_path / "state", {"x": torch.arange(4)})
    assert (tmp_path / "state.safetensors").read_bytes() == before
    assert os.listdir(tmp_path) == ["state.safetensors"]  # noqa: PTH208 - hidden files too


def test_the_old_state_is_there_until_the_new_one_is_whole(tmp_path, monkeypatch):
    write_state(tmp_path / "state", {"x": 1})
    save, seen = stored.save_file, []

    def watched(*args: object, **kwargs: object) -> None:
        save(*args, **kwargs)
        seen.append(read_state(tmp_path / "state"))

    monkeypatch.setattr(stored, "save_file", watched)
    write_state(tmp_path / "state", {"x": 2})
    assert seen == [{"x": 1}]
    assert read_state(tmp_path / "state") == {"x": 2}


def test_a_state_that_cannot_be_written_leaves_the_old_one(tmp_path):
    write_state(tmp_path / "state", {"x": 1})
    with pytest.raises(TypeError):
        write_state(tmp_path / "state", {"x": object()})
    assert read_state(tmp_path / "state") == {"x": 1}


def test_a_text_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "folder" / "a.json"
    write_text(path, "old ä")
    assert path.read_text() == "old ä"
    with pytest.raises(RuntimeError), aside(path) as draft:
        draft.write_text("half")
        assert path.read_text() == "old ä"
        raise RuntimeError
    assert path.read_text() == "old ä"
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_file_that_cannot_be_opened_just_now_is_not_called_damaged(tmp_path: Path) -> None:
    write_state(tmp_path / "state", {"done": 3})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            read_state(tmp_path / "state")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert read_state(tmp_path / "state") == {"done": 3}


def test_others_may_read_a_state_where_the_umask_lets_them(tmp_path):
    before = os.umask(0o022)
    try:
        write_state(tmp_path / "state", {"x": torch.zeros(1)})
    finally:
        os.umask(before)
    assert (tmp_path / "state.safetensors").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a pipe"])
def test_what_is_no_regular_file_is_never_replaced(tmp_path, kind):
    path = tmp_path / "there.safetensors"
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to(tmp_path / "pipe") if kind == "link to a pipe" else (tmp_path / "pipe").rename(path)
    before = path.lstat()
    for write in (lambda: write_text(path, "x"), lambda: write_state(path, {"x": 1})):
        with pytest.raises(UserError, match="no regular file"):
            write()
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert len(list(tmp_path.iterdir())) == (2 if kind == "link to a pipe" else 1)


def test_a_link_that_leads_nowhere_is_not_replaced(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(UserError, match="exists"):
        stored.refuse_to_overwrite(tmp_path / "link.json")


def test_a_state_can_be_looked_at_without_its_tensors(tmp_path):
    write_state(tmp_path / "a", {"steps": [1, 2], "net": {"weight": torch.ones(3)}})
    assert read_state(tmp_path / "a", tensors=False) == {"steps": [1, 2], "net": {"weight": None}}
    whole = (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "a.safetensors").write_bytes(whole[:-1])
    assert read_state(tmp_path / "a", tensors=False) is None
