import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from osscl.data import benchmarks, cache
from osscl.data.benchmarks import DATASETS, EMBEDDED, READERS, Verified, dataset, load_bank, verify_dataset
from osscl.data.images import Decoded
from osscl.errors import DataError, SpecError
from refusals import naming


def dump(path: Path, content: dict[bytes, Any], protocol: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=protocol))


def rows(n: int, classes: int, seed: int) -> tuple[np.ndarray, list[int]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 3072), dtype=np.uint8), rng.integers(0, classes, n).tolist()


def write_cifar10(data_dir: Path, protocol: int = 2, order: tuple[int, ...] = (1, 2, 3, 4, 5)) -> Path:
    """Five batches of twelve images, written to the files in `order`, and a test batch."""
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


def test_an_unknown_data_set_gets_a_suggestion():
    with pytest.raises(SpecError, match=naming("cifra10", "cifar10")):
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


def test_a_missing_data_set_says_what_is_missing_where_and_how_to_get_it(tmp_path: Path):
    with pytest.raises(DataError) as caught:
        load_bank("cifar100", tmp_path)
    for part in ("cifar-100-python", str(tmp_path), "osscl data fetch cifar100"):
        assert part in str(caught.value)


def test_a_missing_batch_is_named(tmp_path: Path):
    missing = write_cifar10(tmp_path) / "data_batch_4"
    missing.unlink()
    with pytest.raises(DataError, match=naming(missing)):
        load_bank("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("content", "about"),
    [
        ({b"data": np.zeros((2, 3071), np.uint8), b"labels": [0, 1]}, ["'data'", "3072", "uint8", "(2, 3071)"]),
        ({b"data": np.zeros((2, 3072), np.float32), b"labels": [0, 1]}, ["'data'", "3072", "float32"]),
        ({b"data": [0] * 3072, b"labels": [0]}, ["'data'", "list"]),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]}, ["'labels'", "9"]),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, "1"]}, ["'labels'", "9"]),
        ({b"data": np.zeros((2, 3072), np.uint8)}, ["'labels'", "9"]),
        ({b"data": np.array(3, np.uint8), b"labels": [0]}, ["'data'", "3072", "uint8", "()"]),
        ({b"data": np.zeros((1, 3072, 1), np.uint8), b"labels": [0]}, ["'data'", "3072", "(1, 3072, 1)"]),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, [1]]}, ["'labels'", "9"]),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1 << 90]}, ["'labels'", "9"]),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}, ["label", "1", "2"]),
        ({}, ["'data'", "NoneType"]),
    ],
)
def test_a_batch_of_the_wrong_form_is_named_with_what_was_expected(tmp_path: Path, content: Any, about: list[str]):
    dump(write_cifar10(tmp_path) / "data_batch_2", content)
    with pytest.raises(DataError, match=naming("data_batch_2", *about)):
        load_bank("cifar10", tmp_path)


@pytest.mark.parametrize("names", [None, b"abc", [1] * 100, [b"\xff"] * 100, [None] * 100, [[b"a"]] * 100])
def test_odd_class_names_are_refused(tmp_path: Path, names: Any):
    dump(write_cifar100(tmp_path) / "meta", {b"fine_label_names": names})
    with pytest.raises(DataError, match=naming("meta", "'fine_label_names'")):
        load_bank("cifar100", tmp_path)


def test_a_wrong_number_of_classes_is_noticed(tmp_path: Path):
    folder = write_cifar100(tmp_path)
    dump(folder / "meta", {b"fine_label_names": [b"only"] * 101})
    with pytest.raises(DataError, match=naming(folder, 101, 100)):
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


@pytest.mark.parametrize(
    "file", ["meta.json", "train_images.npy", "train_labels.npy", "test_images.npy", "test_labels.npy"]
)
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_a_damaged_cache_is_rebuilt(tmp_path: Path, file: str, damage: str, monkeypatch: pytest.MonkeyPatch):
    write_cifar10(tmp_path)
    first = load_bank("cifar10", tmp_path, tmp_path / "cache")
    (place,) = (tmp_path / "cache" / "decoded").iterdir()
    whole = bytearray((place / file).read_bytes())
    whole[-3] ^= 4
    (place / file).write_bytes(whole if damage == "flip" else whole[:40])
    for _ in range(2):
        again = load_bank("cifar10", tmp_path, tmp_path / "cache")
        assert (again.content, again.class_names) == (first.content, first.class_names)
        assert torch.equal(again.train.images, first.train.images) and torch.equal(again.test.labels, first.test.labels)
        monkeypatch.setitem(benchmarks.READERS, "cifar10", forbidden)


def test_verify_reads_the_sources_whole_and_finds_a_changed_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write_cifar10(tmp_path)
    monkeypatch.setitem(DATASETS, "cifar10", replace(DATASETS["cifar10"], content=None))
    monkeypatch.setattr(cache, "_sample", lambda path, size: b"")  # none of the sampled bytes changes
    content = load_bank("cifar10", tmp_path, tmp_path / "cache").content
    assert verify_dataset("cifar10", tmp_path, tmp_path / "cache") == Verified("cifar10", content, None, content)
    batch = folder / "data_batch_3"
    times, whole = batch.stat().st_mtime_ns, bytearray(batch.read_bytes())
    whole[len(whole) // 2] ^= 1
    batch.write_bytes(whole)
    os.utime(batch, ns=(times, times))
    found = verify_dataset("cifar10", tmp_path, tmp_path / "cache")
    assert found.cached == content != found.content and "differs from its decoded copy" in str(found.problem)


def test_verify_compares_with_the_official_content(tmp_path: Path):
    write_cifar10(tmp_path)
    found = verify_dataset("cifar10", tmp_path, tmp_path / "cache")
    assert found.cached is None and "differs from the official data" in str(found.problem)
    assert verify_dataset("digits", tmp_path, tmp_path / "cache").problem is None


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path: Path):
    write_cifar10(tmp_path)
    (tmp_path / "file").write_text("a file where a folder should be")
    bank = load_bank("cifar10", tmp_path, tmp_path / "file" / "cache")
    assert bank.content == load_bank("cifar10", tmp_path).content


def test_two_loads_at_once_leave_one_whole_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_cifar10(tmp_path)
    read = READERS["cifar10"]

    def overtaken(folder: Path) -> Decoded:
        """Another load starts and ends while this one reads."""
        monkeypatch.setitem(benchmarks.READERS, "cifar10", read)
        load_bank("cifar10", tmp_path, tmp_path / "cache")
        return read(folder)

    monkeypatch.setitem(benchmarks.READERS, "cifar10", overtaken)
    bank = load_bank("cifar10", tmp_path, tmp_path / "cache")
    assert len(list((tmp_path / "cache" / "decoded").iterdir())) == 1
    monkeypatch.setitem(benchmarks.READERS, "cifar10", forbidden)
    assert load_bank("cifar10", tmp_path, tmp_path / "cache").content == bank.content


@pytest.mark.parametrize("name", ["digits", "letters"])
def test_an_embedded_set_is_made_once_and_again_if_its_copy_is_damaged(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    made = load_bank(name, tmp_path)
    first = load_bank(name, tmp_path, tmp_path / "cache")
    with monkeypatch.context() as patched:
        patched.setitem(EMBEDDED, name, None)  # must not be needed
        second = load_bank(name, tmp_path, tmp_path / "cache")
    assert first.content == second.content == made.content
    assert torch.equal(second.train.images, made.train.images) and torch.equal(second.test.labels, made.test.labels)
    (place,) = (tmp_path / "cache" / "decoded").iterdir()
    images = place / "train_images.npy"
    data = bytearray(images.read_bytes())
    data[-1] ^= 1
    images.write_bytes(data)
    third = load_bank(name, tmp_path, tmp_path / "cache")
    assert torch.equal(third.train.images, made.train.images)
    assert verify_dataset(name, tmp_path, tmp_path / "cache").problem is None


def test_other_libraries_make_an_embedded_set_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    load_bank("digits", tmp_path, tmp_path / "cache")
    monkeypatch.setattr(cache, "version", lambda name: "0.0")
    load_bank("digits", tmp_path, tmp_path / "cache")
    assert len(list((tmp_path / "cache" / "decoded").iterdir())) == 2
