import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from osscl.data import benchmarks
from osscl.data.benchmarks import DATASETS, EMBEDDED, READERS, dataset, load_bank
from osscl.data.cache import fingerprint
from osscl.data.images import Decoded
from osscl.errors import DataError, SpecError


def dump(path: Path, content: dict[bytes, Any], protocol: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=protocol))


def rows(n: int, classes: int, seed: int) -> tuple[np.ndarray, list[int]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 3072), dtype=np.uint8), rng.integers(0, classes, n).tolist()


def write_cifar10(data_dir: Path, protocol: int = 2, order: tuple[int, ...] = (1, 2, 3, 4, 5)) -> Path:
    """Five batches of twelve images, laid into the files in `order`, and one of tests."""
    folder = data_dir / "cifar-10-batches-py"
    for file, seed in zip(range(1, 6), order, strict=True):
        data, labels = rows(12, 10, seed)
        dump(folder / f"data_batch_{file}", {b"data": data, b"labels": labels}, protocol)
    data, labels = rows(7, 10, seed=9)
    dump(folder / "test_batch", {b"data": data, b"labels": labels}, protocol)
    dump(folder / "batches.meta", {b"label_names": [f"class {k}".encode() for k in range(10)]}, protocol)
    return folder


def write_cifar100(data_dir: Path) -> Path:
    folder = data_dir / "cifar-100-python"
    for split, seed in (("train", 0), ("test", 1)):
        data, labels = rows(20, 100, seed)
        dump(folder / split, {b"data": data, b"fine_labels": labels, b"coarse_labels": [0] * 20}, protocol=4)
    dump(folder / "meta", {b"fine_label_names": [f"class {k}".encode() for k in range(100)]})
    return folder


def forbidden(folder: Path) -> Decoded:
    raise AssertionError("the source was read again")


def test_every_data_set_has_a_consistent_spec_and_one_way_to_be_loaded():
    for name, spec in DATASETS.items():
        assert spec.name == name
        assert len(spec.mean) == len(spec.std) == spec.channels
        assert (name in EMBEDDED) == (spec.layout is None) == (spec.archive is None)
        assert (name in EMBEDDED) != (name in READERS)


def test_an_unknown_data_set_is_answered_with_the_nearest_name():
    with pytest.raises(SpecError, match="did you mean 'cifar10'"):
        dataset("cifra10")


def test_cifar10_comes_as_tensors_channel_first_with_all_rows(tmp_path: Path):
    write_cifar10(tmp_path)
    bank = load_bank("cifar10", tmp_path)
    assert bank.train.images.shape == (60, 3, 32, 32)
    assert bank.train.images.dtype == torch.uint8
    assert bank.train.labels.dtype == torch.int64
    assert len(bank.test) == 7
    assert bank.class_names[3] == "class 3"
    data, labels = rows(7, 10, seed=9)
    pairs = {(image.numpy().tobytes(), int(y)) for image, y in zip(bank.test.images, bank.test.labels, strict=True)}
    assert pairs == {(row.tobytes(), y) for row, y in zip(data, labels, strict=True)}


def test_cifar100_is_read_with_its_fine_labels(tmp_path: Path):
    write_cifar100(tmp_path)
    bank = load_bank("cifar100", tmp_path)
    assert sorted(bank.train.labels.tolist()) == sorted(rows(20, 100, seed=0)[1])
    assert len(bank.class_names) == 100


def test_batches_in_another_order_and_protocol_are_the_same_bank(tmp_path: Path):
    write_cifar10(tmp_path / "a", protocol=2)
    write_cifar10(tmp_path / "b", protocol=4, order=(3, 1, 5, 2, 4))
    one, two = load_bank("cifar10", tmp_path / "a"), load_bank("cifar10", tmp_path / "b")
    assert torch.equal(one.train.images, two.train.images)
    assert torch.equal(one.train.labels, two.train.labels)
    assert one.content == two.content


def test_a_missing_data_set_says_what_was_looked_for_where_and_how_to_get_it(tmp_path: Path):
    with pytest.raises(DataError) as caught:
        load_bank("cifar100", tmp_path)
    for part in ("cifar-100-python", str(tmp_path), "osscl data fetch cifar100"):
        assert part in str(caught.value)


def test_a_missing_batch_is_named(tmp_path: Path):
    missing = write_cifar10(tmp_path) / "data_batch_4"
    missing.unlink()
    with pytest.raises(DataError, match="data_batch_4 is missing"):
        load_bank("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({b"data": np.zeros((2, 3071), np.uint8), b"labels": [0, 1]}, "rows of 3072 uint8, found uint8"),
        ({b"data": np.zeros((2, 3072), np.float32), b"labels": [0, 1]}, "rows of 3072 uint8, found float32"),
        ({b"data": [0] * 3072, b"labels": [0]}, "found list"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]}, "numbers from 0 to 9"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, "1"]}, "numbers from 0 to 9"),
        ({b"data": np.zeros((2, 3072), np.uint8)}, "numbers from 0 to 9"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}, "found 1 for 2"),
        ({}, "found NoneType"),
    ],
)
def test_a_batch_of_the_wrong_form_is_named_with_what_was_expected(tmp_path: Path, content: Any, expected: str):
    dump(write_cifar10(tmp_path) / "data_batch_2", content)
    with pytest.raises(DataError, match=expected) as caught:
        load_bank("cifar10", tmp_path)
    assert "data_batch_2" in str(caught.value)


def test_too_few_classes_are_noticed(tmp_path: Path):
    folder = write_cifar100(tmp_path)
    dump(folder / "meta", {b"fine_label_names": [b"only"] * 101})
    with pytest.raises(DataError, match="has 101 classes: expected 100"):
        load_bank("cifar100", tmp_path)


def test_the_second_load_does_not_read_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_cifar10(tmp_path)
    first = load_bank("cifar10", tmp_path, tmp_path / "cache")
    monkeypatch.setitem(benchmarks.READERS, "cifar10", forbidden)
    second = load_bank("cifar10", tmp_path, tmp_path / "cache")
    assert second.content == first.content
    assert second.class_names == first.class_names
    assert torch.equal(second.train.images, first.train.images)
    assert torch.equal(second.test.labels, first.test.labels)


def test_a_loaded_bank_can_be_changed_without_changing_the_cache(tmp_path: Path):
    write_cifar10(tmp_path)
    load_bank("cifar10", tmp_path, tmp_path / "cache")
    load_bank("cifar10", tmp_path, tmp_path / "cache").train.images.zero_()
    assert load_bank("cifar10", tmp_path, tmp_path / "cache").train.images.any()


def test_a_changed_source_file_is_decoded_again(tmp_path: Path):
    folder = write_cifar10(tmp_path)
    before = load_bank("cifar10", tmp_path, tmp_path / "cache")
    data, labels = rows(12, 10, seed=77)
    dump(folder / "data_batch_1", {b"data": data, b"labels": labels})
    os.utime(folder / "data_batch_1", ns=(1, 1))
    assert load_bank("cifar10", tmp_path, tmp_path / "cache").content != before.content


def test_links_that_lead_nowhere_or_back_are_passed_over(tmp_path: Path):
    folder, other = tmp_path / "set", tmp_path / "other"
    for place in (folder, other):
        place.mkdir()
        (place / "file").write_text("x")
    plain = fingerprint(folder)
    (folder / "lost").symlink_to(tmp_path / "nowhere")
    (folder / "back").symlink_to(folder)
    assert fingerprint(folder) == plain
    (folder / "there").symlink_to(other)  # a part of a set may lie elsewhere
    linked = fingerprint(folder)
    (other / "file").write_text("xy")
    assert len({plain, linked, fingerprint(folder)}) == 3


def test_a_fingerprint_tells_names_sizes_and_times_apart(tmp_path: Path):
    def prints(name: str, text: str, time: int) -> str:
        folder = tmp_path / f"{name}-{text}-{time}" / "below"
        folder.mkdir(parents=True)
        (folder / name).write_text(text)
        os.utime(folder / name, ns=(time, time))
        return fingerprint(folder.parent)

    first = prints("a", "x", 1)
    assert len({first, prints("b", "x", 1), prints("a", "xy", 1), prints("a", "x", 2)}) == 4
    assert prints("a", "y", 1) == first  # another content of one size and time is not seen


@pytest.mark.parametrize("file", ["meta.json", "train_images.npy", "test_labels.npy"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch):
    write_cifar10(tmp_path)
    first = load_bank("cifar10", tmp_path, tmp_path / "cache")
    (place,) = (tmp_path / "cache" / "decoded").iterdir()
    (place / file).write_bytes((place / file).read_bytes()[:40])
    assert load_bank("cifar10", tmp_path, tmp_path / "cache").content == first.content
    monkeypatch.setitem(benchmarks.READERS, "cifar10", forbidden)
    assert torch.equal(load_bank("cifar10", tmp_path, tmp_path / "cache").train.images, first.train.images)


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path):
    write_cifar10(tmp_path)
    (tmp_path / "file").write_text("a file where a folder should be")
    bank = load_bank("cifar10", tmp_path, tmp_path / "file" / "cache")
    assert bank.content == load_bank("cifar10", tmp_path).content


def test_two_loads_at_once_leave_one_whole_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_cifar10(tmp_path)
    read = READERS["cifar10"]

    def overtaken(folder: Path) -> Decoded:
        """While this load reads, another one starts and ends."""
        monkeypatch.setitem(benchmarks.READERS, "cifar10", read)
        load_bank("cifar10", tmp_path, tmp_path / "cache")
        return read(folder)

    monkeypatch.setitem(benchmarks.READERS, "cifar10", overtaken)
    bank = load_bank("cifar10", tmp_path, tmp_path / "cache")
    assert len(list((tmp_path / "cache" / "decoded").iterdir())) == 1
    monkeypatch.setitem(benchmarks.READERS, "cifar10", forbidden)
    assert load_bank("cifar10", tmp_path, tmp_path / "cache").content == bank.content
