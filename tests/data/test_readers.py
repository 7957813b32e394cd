import contextlib
import io
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from osscl.data import readers
from osscl.data.benchmarks import load_bank
from osscl.data.readers import PixelBudget, read_caltech256, read_tinyimagenet
from osscl.errors import DataError
from refusals import naming

CASES = int(os.environ.get("OSSCL_FUZZ_CASES", "100"))


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path, quality=95)


def plain(value: int, *shape: int) -> np.ndarray:
    return np.full(shape, value)


def write_tiny(folder: Path) -> Path:
    """Two classes, listed in the wrong order; one training image is grey."""
    folder.mkdir(parents=True)
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\tbullfrog\nn99\tnot here\n")
    save(folder / "train/n01/images/n01_0.JPEG", plain(40, 64, 64, 3))
    save(folder / "train/n01/images/n01_1.JPEG", plain(60, 64, 64))
    save(folder / "train/n02/images/n02_0.JPEG", plain(200, 64, 64, 3))
    save(folder / "val/images/val_0.JPEG", plain(210, 64, 64, 3))
    save(folder / "val/images/val_1.JPEG", plain(50, 64, 64, 3))
    (folder / "val/val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n")
    return folder


def test_tiny_imagenet_takes_class_numbers_from_sorted_names_and_tests_from_validation(tmp_path: Path):
    tiny = read_tinyimagenet(write_tiny(tmp_path / "tiny"))
    assert tiny.class_names == ("goldfish", "bullfrog")
    assert tiny.train_images.shape == (3, 3, 32, 32)
    assert [(int(image.mean()), label) for image, label in zip(tiny.train_images, tiny.train_labels, strict=True)] == [
        (40, 0),
        (60, 0),
        (200, 1),
    ]
    assert [(int(image.mean()), label) for image, label in zip(tiny.test_images, tiny.test_labels, strict=True)] == [
        (210, 1),
        (50, 0),
    ]


def test_tiny_imagenet_is_halved_by_the_mean_of_four_pixels(tmp_path: Path):
    folder = write_tiny(tmp_path / "tiny")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3))
    path = folder / "train/n02/images/n02_0.JPEG"
    save(path, noise)
    seen = np.asarray(Image.open(path)).astype(float)  # what JPEG left of the noise
    means = seen.reshape(32, 2, 32, 2, 3).mean((1, 3)).transpose(2, 0, 1)
    assert np.abs(read_tinyimagenet(folder).train_images[2] - means).max() <= 1  # Pillow rounds twice


@pytest.mark.parametrize("lost", ["wnids.txt", "words.txt", "val/val_annotations.txt", "val/images/val_1.JPEG"])
def test_a_missing_file_of_tiny_imagenet_is_named(tmp_path: Path, lost: str):
    folder = write_tiny(tmp_path / "tiny")
    (folder / lost).unlink()
    with pytest.raises(DataError) as caught:
        read_tinyimagenet(folder)
    assert str(folder / lost) in str(caught.value)


@pytest.mark.parametrize("line", ["val_0.JPEG\tn77\t0", "val_0.JPEG", "../val_0.JPEG\tn01", "a\0.JPEG\tn01"])
def test_a_wrong_annotation_is_quoted(tmp_path: Path, line: str):
    folder = write_tiny(tmp_path / "tiny")
    (folder / "val/val_annotations.txt").write_text(line + "\n")
    with pytest.raises(DataError, match=r"val_annotations\.txt.*JPEG"):
        read_tinyimagenet(folder)


@pytest.mark.parametrize("name", ["../n01", "n\0", "/etc", "n" * 5000 + "/x"])
def test_a_class_folder_outside_the_data_is_refused(tmp_path: Path, name: str):
    folder = write_tiny(tmp_path / "tiny")
    (folder / "wnids.txt").write_text(f"n01\n{name}\n")
    with pytest.raises(DataError, match=naming(folder / "wnids.txt", "n01443537")):
        read_tinyimagenet(folder)


def large_png(side: int) -> bytes:
    """A small file of a large, transparent picture."""
    with io.BytesIO() as file:
        Image.new("P", (side, side)).save(file, "PNG", transparency=0)
        return file.getvalue()


@pytest.mark.parametrize(
    "content", [b"", b"GIF89a", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"\xff\xd8\xff"]
)
def test_a_file_that_is_not_a_whole_jpeg_or_png_is_named(tmp_path: Path, content: bytes):
    folder = write_tiny(tmp_path / "tiny")
    path = folder / "train/n01/images/n01_1.JPEG"
    for damaged in (content, path.read_bytes()[:300]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=naming(path)) as caught:
            read_tinyimagenet(folder)
        assert "\n" not in str(caught.value)


def test_reading_a_pipe_does_not_block(tmp_path: Path):
    (tmp_path / "001.a").mkdir()
    os.mkfifo(tmp_path / "001.a" / "x.jpg")
    with pytest.raises(DataError, match=naming(tmp_path / "001.a" / "x.jpg")):
        read_caltech256(tmp_path)


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "001.a").mkdir()
    (tmp_path / "001.a" / "bomb.png").write_bytes(large_png(200))
    monkeypatch.setattr(readers, "PixelBudget", lambda: PixelBudget(200 * 200 - 1))
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(DataError, match=naming(tmp_path / "001.a" / "bomb.png", "39,999")):
        read_caltech256(tmp_path)


def test_pictures_are_decoded_at_once_only_within_the_budget():
    budget, at_once, most = PixelBudget(250), [0], []
    lock = threading.Lock()

    def decode(side: int) -> None:
        with budget.reserved(Image.new("L", (side, 10))):
            with lock:
                at_once[0] += side * 10
                most.append(at_once[0])
            time.sleep(0.001)
            with lock:
                at_once[0] -= side * 10

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decode, [10, 5, 12, 25, 1] * 10))
    assert 100 < max(most) <= 250 and budget.free == 250


def test_a_mutated_picture_is_an_image_or_a_data_error(tmp_path: Path):
    (tmp_path / "001.a").mkdir()
    path, rng = tmp_path / "001.a" / "x.png", random.Random(0)
    wholes = []
    for kind, mode in (("PNG", "RGBA"), ("PNG", "P"), ("JPEG", "RGB"), ("PNG", "I;16")):
        with io.BytesIO() as file:
            Image.new(mode, (40, 30)).save(file, kind)
            wholes.append(file.getvalue())
    for case in range(CASES):
        changed = bytearray(wholes[case % 4])
        for _ in range(rng.randint(1, 5)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        path.write_bytes(changed[: rng.choice((len(changed), rng.randrange(len(changed))))])
        with contextlib.suppress(DataError):
            assert read_caltech256(tmp_path).train_images.shape == (1, 3, 32, 32)


def test_caltech_reads_only_images_and_has_no_test_split(tmp_path: Path):
    save(tmp_path / "002.american-flag/002_0001.jpg", plain(90, 50, 80, 3))
    save(tmp_path / "001.ak47/001_0001.jpg", plain(30, 40, 40))
    save(tmp_path / "001.ak47/001_0002.JPG", plain(31, 40, 40, 3))
    (tmp_path / "001.ak47/RENAME2").write_text("not an image")
    (tmp_path / "001.ak47/._001_0001.jpg").write_text("what macOS leaves behind")
    (tmp_path / "001.ak47/greg").mkdir()
    (tmp_path / "note.txt").write_text("not a class")
    caltech = read_caltech256(tmp_path)
    assert caltech.class_names == ("ak47", "american-flag")
    assert caltech.train_labels.tolist() == [0, 0, 1]
    assert caltech.test_images.shape == (0, 3, 32, 32)


def test_a_large_image_is_averaged_not_sampled(tmp_path: Path):
    """Black and white stripes of one pixel: sampled pixels are black or white, their mean is grey."""
    stripes = plain(0, 64, 64, 3)
    stripes[:, ::2] = 255
    save(tmp_path / "001.a/stripes.png", stripes)
    assert set(np.unique(read_caltech256(tmp_path).train_images)) <= {127, 128}


def test_caltech_keeps_the_central_square(tmp_path: Path):
    wide = plain(0, 64, 192, 3)
    wide[:, 64:128] = 255
    save(tmp_path / "001.a/wide.png", wide)
    save(tmp_path / "001.a/xtall.png", wide.transpose(1, 0, 2))
    assert read_caltech256(tmp_path).train_images.min() == 255


def test_a_class_without_images_is_named(tmp_path: Path):
    (tmp_path / "001.a").mkdir()
    with pytest.raises(DataError, match=naming(tmp_path / "001.a")):
        read_caltech256(tmp_path)


def test_a_bank_without_test_images_survives_the_cache(tmp_path: Path):
    folder = tmp_path / "256_ObjectCategories"
    for k in range(257):
        save(folder / f"{k + 1:03d}.thing{k}/{k}.png", plain(k % 256, 4, 4, 3))
    first = load_bank("caltech256", tmp_path, tmp_path / "cache")
    second = load_bank("caltech256", tmp_path, tmp_path / "cache")
    assert len(second.train) == 257
    assert second.test.images.shape == (0, 3, 32, 32)
    assert torch.equal(first.train.images, second.train.images)
    assert first.content == second.content
