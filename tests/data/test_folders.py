"""Image files: one folder per class, unlabelled piles, and files that cannot be read."""

import errno
import os

import numpy as np
import pytest
import torch
from PIL import Image

from osscl.data.folders import _picture, load_folder, load_pictures, read_images, read_picture
from osscl.errors import DataError
from osscl.vision.encoder import ImageFormat
from refusals import naming


def picture(path, colour=(200, 30, 30), size=(40, 30)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


@pytest.fixture
def labeled(tmp_path):
    tmp_path = tmp_path / "week"
    picture(tmp_path / "dog" / "b.png", (0, 0, 250))
    picture(tmp_path / "cat" / "z.jpg")
    picture(tmp_path / "cat" / "a.png", (0, 250, 0))
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    picture(tmp_path / ".cache" / "x.png")
    return tmp_path


def test_a_folder_is_a_class(labeled):
    found = load_folder(labeled, size=16)
    assert found.labels == ("cat", "cat", "dog") and [file.name for file in found.files] == ["a.png", "z.jpg", "b.png"]
    assert found.images.shape == (3, 3, 16, 16) and len(found) == 3
    assert found.images[0, :, 8, 8].tolist() == [0, 250, 0] and found.images[2, :, 8, 8].tolist() == [0, 0, 250]


def test_grey_images_have_one_channel(labeled):
    assert load_folder(labeled, size=8, channels=1).images.shape == (3, 1, 8, 8)


def test_unreadable_files_are_reported_and_skipped(labeled):
    (labeled / "cat" / "broken.jpg").write_bytes(b"no image")
    picture(labeled / "loose.png")
    found = load_folder(labeled)
    assert found.labels == ("cat", "cat", "dog")
    assert "loose.png: not in a class folder" in found.problems[0] and "broken.jpg" in found.problems[-1]


def test_other_files_and_nested_folders_are_reported(labeled):
    """Phones may save photographs in formats that Pillow does not open."""
    for name in ("1.raw", "2.RAW"):
        (labeled / "dog" / name).write_bytes(b"a photograph")
    picture(labeled / "dog" / "puppies" / "a.png")
    notes = load_folder(labeled).problems
    assert notes[0] == f"{labeled / 'cat'}: 1 .txt file not read"
    assert notes[1] == f"{labeled / 'dog' / 'puppies'}: folders inside a class folder are not read"
    assert notes[2] == f"{labeled / 'dog'}: 2 .raw files not read"
    assert load_pictures(labeled).problems == (
        f"{labeled}: 1 .txt file not read",
        f"{labeled}: 2 .raw files not read",
    )


def test_a_class_without_an_image_is_an_error(labeled):
    (labeled / "bird").mkdir()
    with pytest.raises(DataError, match=naming(labeled / "bird")):
        load_folder(labeled)
    (labeled / "bird" / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match=naming(labeled / "bird", labeled / "bird" / "a.png")):
        load_folder(labeled)


def test_a_folder_above_the_class_folders_is_refused(labeled):
    with pytest.raises(DataError, match=naming(labeled.parent, "folders")):
        load_folder(labeled.parent)
    for file in (labeled / "dog").iterdir():
        file.unlink()
    (labeled / "dog" / "1.raw").write_bytes(b"a photograph")
    with pytest.raises(DataError, match=naming(labeled / "dog", ".raw")):
        load_folder(labeled)


def test_links_that_are_not_followed_are_reported(labeled):
    (labeled / "linked").symlink_to(labeled / "dog")
    (labeled / "broken.png").symlink_to(labeled / "nowhere.png")
    notes = [words for words in load_pictures(labeled).problems if "not followed" in words]
    assert len(notes) == 2


def test_a_folder_without_folders_is_an_error(tmp_path):
    picture(tmp_path / "a.png")
    with pytest.raises(DataError, match=naming(tmp_path, "class")):
        load_folder(tmp_path)
    with pytest.raises(DataError, match=naming(tmp_path / "nowhere", os.strerror(errno.ENOENT))):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match=naming(tmp_path / "a.png", os.strerror(errno.ENOTDIR))):
        load_folder(tmp_path / "a.png")


def test_a_pile_is_everything_below_a_folder(labeled):
    found = load_pictures(labeled, size=8)
    assert [file.name for file in found.files] == ["a.png", "z.jpg", "b.png"] and found.labels == ()
    both = load_pictures([labeled / "dog", labeled / "cat" / "z.jpg"], size=8)
    assert [file.name for file in both.files] == ["b.png", "z.jpg"]
    assert len(load_pictures([labeled, labeled / "dog"], size=8)) == 3  # no file twice


def test_a_pile_without_images_is_an_error(tmp_path):
    with pytest.raises(DataError, match=naming(tmp_path, "images")):
        load_pictures(tmp_path)
    broken = [tmp_path / name for name in ("a.png", "b.png")]
    for file in broken:
        file.write_bytes(b"")
    with pytest.raises(DataError, match=naming(broken[0], 2)):
        load_pictures(broken)
    with pytest.raises(DataError, match=naming(broken[0])):
        load_pictures(broken[0])
    good = picture(tmp_path / "good.png")
    assert [len(load_pictures([*broken, good])), len(load_pictures([*broken, good]).problems)] == [1, 2]


def test_a_large_photograph_is_decoded_small_and_looks_the_same(tmp_path):
    """A JPEG decoded at a quarter of its size is what all of it is after the same filter, within a few levels."""
    y, x = torch.meshgrid(torch.arange(960), torch.arange(1280), indexing="ij")
    waves = torch.stack([(127 + 120 * torch.sin(x / (40 + 10 * c) + y / 70)) for c in range(3)], -1).to(torch.uint8)
    Image.fromarray(waves.numpy()).save(tmp_path / "large.jpg", quality=95)
    Image.open(tmp_path / "large.jpg").save(tmp_path / "same.png")
    assert _picture(tmp_path / "large.jpg", "RGB", 32).size == (320, 240)
    (small, whole) = (read_picture(tmp_path / name, 32, 3).float() for name in ("large.jpg", "same.png"))
    assert (small - whole).abs().mean() < 3 and (small - whole).abs().max() < 8  # of 255


# ----- how an image is read


RGB_8, GREY_8 = ImageFormat(3, 8, (0.5,) * 3, (0.5,) * 3), ImageFormat(1, 8, (0.5,), (0.5,))


def saved(path, pixels, mode=None, **kwargs):
    Image.fromarray(np.asarray(pixels), mode).save(path, **kwargs)
    return path


def test_an_image_is_turned_upright(tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[0, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    plain, turned = saved(tmp_path / "a.png", pixels), saved(tmp_path / "b.png", pixels, exif=exif)
    one, other = read_images([plain, turned], RGB_8)
    assert torch.equal(other, one.flip(1, 2)) and not torch.equal(one, other)


def test_transparent_pixels_are_white(tmp_path):
    clear = np.zeros((8, 8, 4), np.uint8)
    clear[0, 0, 3] = 255  # one black pixel
    (image,) = read_images([saved(tmp_path / "clear.png", clear)], GREY_8)
    assert image[0, 0, 0] == 0 and image.sum() == 63 * 255


def test_more_than_eight_bits_are_refused(tmp_path):
    deep = saved(tmp_path / "deep.png", np.full((4, 4), 1000, np.uint16))
    with pytest.raises(DataError, match=naming(deep, 8)):
        read_images([deep], GREY_8)


def test_the_central_square_is_averaged(tmp_path):
    wide = np.zeros((16, 32, 3), np.uint8)
    wide[:, 8:24:2] = 200
    assert set(read_images([saved(tmp_path / "wide.png", wide)], RGB_8).unique().tolist()) == {100}
