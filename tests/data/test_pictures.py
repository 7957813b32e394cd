"""Photographs as people have them: upright, in RGB, in bounded memory, or one line that says why not."""

import errno
import io
import os
import struct
import subprocess
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from osscl.data import pictures
from osscl.data.pictures import decode_photo, hearing_warnings, read_photo
from osscl.errors import DataError
from refusals import naming

CORNER = np.zeros((40, 60, 3), np.uint8)
CORNER[:10, :15] = 255  # white at the upper left


def saved(path, image, **options):
    image.save(path, **options)
    return path


def check_refused(path, *about):
    with pytest.raises(DataError, match=naming(path, *about)) as error:
        read_photo(path, 32)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", ["jpg", "png", "ppm", "tiff", "gif", "webp", "bmp"])
def test_every_format_gives_the_same_picture(tmp_path, suffix):
    picture = read_photo(saved(tmp_path / f"a.{suffix}", Image.fromarray(CORNER)), 32)
    assert picture.image.mode == "RGB" and picture.image.size == (60, 40) and picture.note is None
    assert np.abs(np.asarray(picture.image, np.int64) - CORNER).mean() < 3


@pytest.mark.parametrize("suffix", ["jpg", "png", "tiff", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright(tmp_path, suffix, orientation):
    turns = {2: [0], 3: [3], 4: [1], 5: [5], 6: [2], 7: [6], 8: [4]}  # the transposition that undoes itself in EXIF
    stored = Image.fromarray(CORNER)
    for turn in turns.get(orientation, []):
        stored = stored.transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = read_photo(saved(tmp_path / f"a.{suffix}", stored, exif=exif), 32).image
    assert picture.size == (60, 40)
    assert np.abs(np.asarray(picture, np.int64) - CORNER).mean() < 3


def test_heic_is_read_where_it_can_be(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    path = saved(tmp_path / "a.heic", Image.fromarray(CORNER), quality=95)
    assert np.abs(np.asarray(read_photo(path, 32).image, np.int64) - CORNER).mean() < 6


def test_heic_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "heif_opens", lambda: False)
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    check_refused(tmp_path / "a.heic", 'pip install "osscl[photos]"', "JPEG")


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_gray_of_16_bits_is_converted_with_a_note(tmp_path, suffix):
    ramp = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    picture = read_photo(saved(tmp_path / f"a.{suffix}", Image.fromarray(ramp)), 32)
    assert picture.note == "more than 8 bits per channel, converted to 8"
    assert np.array_equal(np.asarray(picture.image)[..., 0], ramp >> 8)


def png(wide, high, depth, rows):
    """An RGB PNG by its parts: Pillow writes neither 16 bits nor headers that lie."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", wide, high, depth, 2, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def test_color_of_16_bits_is_converted_with_a_note(tmp_path):
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in CORNER.astype(np.uint16) * 257)
    (tmp_path / "a.png").write_bytes(png(60, 40, 16, rows))
    picture = read_photo(tmp_path / "a.png", 32)
    assert picture.note is not None and np.array_equal(np.asarray(picture.image), CORNER)


@pytest.mark.parametrize("values", [np.linspace(-1, 3, 400, dtype=np.float32), np.arange(400, dtype=np.int32) * 10**6])
def test_values_of_32_bits_are_stretched(tmp_path, values):
    picture = read_photo(saved(tmp_path / "a.tiff", Image.fromarray(values.reshape(20, 20))), 32)
    read = np.asarray(picture.image)[..., 0]
    assert read.min() == 0 and read.max() == 255 and picture.note is not None


@pytest.mark.parametrize("size", [(7, 100), (100, 7), (1, 1)])
def test_a_picture_of_a_few_pixels_is_refused(tmp_path, size):
    check_refused(saved(tmp_path / "a.png", Image.new("RGB", size)), "{}x{}".format(*size), 8)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_areas_become_white(tmp_path, mode):
    clear = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    clear.paste((0, 0, 0, 255), (0, 0, 32, 64))
    path = saved(tmp_path / "a.png", clear if mode == "RGBA" else clear.convert(mode))
    assert np.asarray(read_photo(path, 64).image)[:, [0, 63]].reshape(-1, 6)[0].tolist() == [0] * 3 + [255] * 3


def test_large_pictures_are_returned_smaller_but_not_below_the_requested_size(tmp_path):
    big = Image.fromarray(CORNER).resize((1500, 1000))
    for name in ("a.jpg", "a.png"):
        picture = read_photo(saved(tmp_path / name, big), 100).image
        assert 100 <= min(picture.size) <= 250
        assert np.abs(np.asarray(picture.resize((60, 40)), np.int64) - CORNER).mean() < 8
    assert min(read_photo(tmp_path / "a.png", 999).image.size) >= 999


def test_bands_change_nothing(tmp_path, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 256, (301, 203, 4), dtype=np.uint8)
    path = saved(tmp_path / "a.png", Image.fromarray(noise))
    whole = read_photo(path, 50).image
    monkeypatch.setattr(pictures, "BAND", 1000)
    assert np.array_equal(np.asarray(read_photo(path, 50).image), np.asarray(whole))


def test_a_decompression_bomb_is_refused_by_its_header(tmp_path):
    (tmp_path / "a.png").write_bytes(png(60000, 60000, 8, bytes(1000)))
    check_refused(tmp_path / "a.png", "178,956,970")


def test_a_jpeg_that_is_shrunk_while_decoded_may_be_larger_than_others(tmp_path, monkeypatch):
    big = Image.fromarray(CORNER).resize((900, 600))
    paths = [saved(tmp_path / name, big) for name in ("a.jpg", "a.png")]
    progressive = saved(tmp_path / "b.jpg", big, progressive=True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200_000)
    assert min(read_photo(paths[0], 64).image.size) == 75
    check_refused(paths[1], "400,000")
    check_refused(progressive, "400,000")
    monkeypatch.setattr(pictures, "LARGEST_JPEG", 10)
    check_refused(paths[0], "400,000")


def test_a_large_transparent_picture_takes_little_more_than_itself(tmp_path):
    side = 6000  # 144 MB decoded
    path = saved(tmp_path / "a.png", Image.new("RGBA", (side, side), (9, 9, 9, 99)), compress_level=1)
    code = (
        "import resource, sys, pathlib; from osscl.data.pictures import read_photo;"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "before = peak(); read_photo(pathlib.Path(sys.argv[1]), 400); print((peak() - before) * 1024)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 1.35 * 4 * side * side


def test_damaged_files_are_refused_in_one_line(tmp_path):
    good = io.BytesIO()
    Image.fromarray(CORNER).resize((300, 300)).save(good, "JPEG")
    cases = {"cut.jpg": good.getvalue()[:900], "text.jpg": b"hello", "empty.jpg": b""}
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        check_refused(tmp_path / name, "damaged")
    check_refused(tmp_path / "none.jpg", os.strerror(errno.ENOENT))
    (tmp_path / "folder.jpg").mkdir()
    check_refused(tmp_path / "folder.jpg", "file")


def test_pillows_warnings_become_notes_of_their_own_picture(tmp_path, recwarn):
    odd = io.BytesIO()
    Image.new("P", (20, 20)).save(odd, "PNG", transparency=bytes(3))
    plain = io.BytesIO()
    Image.fromarray(CORNER).save(plain, "PNG")

    def warned(content):
        if content is odd:
            warnings.warn_explicit("odd\n  file", UserWarning, "PIL/Image.py", 1, module="PIL.Image")
        return pictures._heard.words

    with hearing_warnings(), ThreadPoolExecutor(4) as pool:
        decode = lambda content: (decode_photo(content.getvalue(), tmp_path, 32), warned(content))[1]  # noqa: E731
        found = list(pool.map(decode, [odd, plain] * 20))
    assert found[0::2] == [["odd file"]] * 20 and found[1::2] == [[]] * 20
    assert not recwarn.list


def test_limits_are_known_before_memory_is_taken(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.png", Image.new("RGB", (100, 100)))
    monkeypatch.setattr(pictures, "LARGEST_FILE", 10)
    check_refused(path, "MB")
