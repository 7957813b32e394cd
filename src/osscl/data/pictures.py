"""Decode photographs for encoders: upright RGB in bounded memory, or a one-line error.

Processes that only decode import this module, so it does not import torch.
"""

import functools
import io
import math
import threading
import warnings
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from PIL.Image import Transpose
from PIL.JpegImagePlugin import JpegImageFile

from osscl.errors import DataError

SMALLEST = 8  # pixels per side
LARGEST_FILE = 2**29  # bytes; a file is read whole, see `read_content`
LARGEST_JPEG = 2**28  # pixels
LARGE = 2**25  # pixels; larger pictures are decoded one at a time, so that the memory of threads does not add up
BAND = 2**20  # pixels that are converted at a time
HEIF = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}  # brands of the format
UPRIGHT = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}  # by EXIF orientation
ORIENTATION = 0x0112
QUALITY = 80  # of JPEGs to show

_one_at_a_time = threading.Lock()
_heard = threading.local()  # Pillow's warnings about the picture that a thread is decoding


@dataclass(frozen=True)
class Picture:
    """A decoded picture, and what was changed or odd about its file."""

    image: Image.Image  # RGB
    note: str | None = None


def read_photo(path: Path, least: int) -> Picture:
    """Read an image file; pictures much larger than `least` pixels per side are returned smaller, but not below it."""
    with hearing_warnings():
        return decode_photo(read_content(path), path, least)


def read_content(path: Path) -> bytes:
    """The bytes of an image file. They are read once, so that what is hashed is what is decoded."""
    if path.exists() and not path.is_file():
        raise _refusal(path, "it is not a file")  # reading a pipe would block
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise _refusal(path, f"it is larger than {LARGEST_FILE >> 20} MB")
        return path.read_bytes()
    except OSError as error:
        raise _refusal(path, error.strerror or str(error)) from None


def decode_photo(content: bytes, path: Path, least: int) -> Picture:
    """Decode the content of an image file. Call it within `hearing_warnings`, which covers all threads."""
    _heard.words = []
    if content[4:8] == b"ftyp" and content[8:12] in HEIF and not heif_opens():
        raise _refusal(path, 'HEIC needs a plugin; pip install "osscl[photos]", or convert the file to JPEG')
    try:
        with _opened(content) as opened:
            if min(opened.size) < SMALLEST:
                raise _refusal(
                    path, f"it has {opened.width}x{opened.height} pixels; each side needs at least {SMALLEST}"
                )
            whole = opened.width * opened.height
            shrink_while_decoding(opened, least)  # from here on, `size` is what will be allocated
            if (whole if "progressive" in opened.info else opened.width * opened.height) > LARGE:
                with _one_at_a_time:
                    return _converted(opened, least)
            return _converted(opened, least)
    except DataError:
        raise
    except Image.DecompressionBombError:
        reason = f"it has more than {_most_pixels():,} pixels"
    except MemoryError:
        reason = "it does not fit into memory"
    except Exception as error:  # decoders of damaged files raise anything
        reason = getattr(error, "strerror", None) or "it is damaged or not an image"
    raise _refusal(path, reason)


@functools.cache
def heif_opens() -> bool:
    """Whether HEIC can be read; its plugin is registered with Pillow here, once."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def shrink_while_decoding(opened: Image.Image, least: int) -> None:
    """Decode a JPEG at a half, a quarter or an eighth of its size: six times faster for 12 megapixels."""
    share = least / max(1, min(opened.size))
    if share < 1:
        opened.draft(None, (math.ceil(opened.width * share), math.ceil(opened.height * share)))


def square_jpeg(image: Image.Image, side: int) -> bytes:
    """The central square of an RGB picture as a JPEG, the same bytes every time."""
    made = io.BytesIO()
    ImageOps.fit(image, (side, side)).save(made, "JPEG", quality=QUALITY)
    return made.getvalue()


def data_url(content: bytes, form: str = "jpeg") -> str:
    """A picture as an address that a page can contain."""
    return f"data:image/{form};base64,{b64encode(content).decode()}"


@contextmanager
def hearing_warnings() -> Iterator[None]:
    """Inside the block, Pillow's warnings are attached to the picture that caused them, in every thread."""

    def heard(message: Warning | str, *_: object, **__: object) -> None:
        if hasattr(_heard, "words"):
            _heard.words.append(" ".join(str(message).split()))

    with warnings.catch_warnings():
        warnings.filterwarnings("always", module=r"PIL(\.|$)")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # large photographs of the user are fine
        warnings.showwarning = heard  # catch_warnings restores the old one
        yield


def _opened(content: bytes) -> Image.Image:
    """An image of which only the header has been read; refused if it has too many pixels.

    JPEGs are shrunk while they are decoded, so those of 200 megapixels, as phones make them, are accepted here, unlike
    by `Image.open`. Progressive ones are not: all of their coefficients are kept in memory.
    """
    if not content.startswith(b"\xff\xd8\xff"):
        return Image.open(io.BytesIO(content))
    opened = JpegImageFile(io.BytesIO(content))
    most = _most_pixels() if "progressive" in opened.info else max(LARGEST_JPEG, _most_pixels())
    if opened.width * opened.height > most:
        raise Image.DecompressionBombError
    return opened


def _most_pixels() -> int:
    """The number of pixels at which Pillow refuses an image; it warns at half as many."""
    return 2 * (Image.MAX_IMAGE_PIXELS or LARGEST_JPEG)


def _converted(opened: Image.Image, least: int) -> Picture:
    """Upright RGB, on white where the picture is transparent."""
    sixteen = opened.mode[0] in "IF" or any(";16" in str(tile) for tile in getattr(opened, "tile", ()))
    opened.load()
    notes = ["more than 8 bits per channel, converted to 8"] if sixteen else []
    picture: Image.Image = _eight_bits(opened) if opened.mode[0] in "IF" else opened
    rgb = _flattened(picture, least)
    try:
        turn = UPRIGHT.get(opened.getexif().get(ORIENTATION, 1))  # after load(), which rotates TIFFs itself
    except Exception:  # readers of damaged metadata raise anything
        turn = None
        notes.append("damaged EXIF data, orientation unknown")
    heard: list[str] = _heard.words
    return Picture(rgb if turn is None else rgb.transpose(turn), "; ".join([*notes, *heard[:1]]) or None)


def _eight_bits(picture: Image.Image) -> Image.Image:
    """16-bit gray values by their upper half; 32-bit and float values scaled from minimum to maximum.

    Pillow's own conversion cuts them off at 255.
    """
    values = np.asarray(picture)
    if values.dtype.itemsize == 2:
        return Image.fromarray((values >> 8).astype(np.uint8))
    finite = np.nan_to_num(values.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(finite.min()), float(finite.max())
    if low >= 0 and high <= 65535 and values.dtype.kind == "i":
        low, high = 0.0, 65535.0 if high > 255 else 255.0
    return Image.fromarray(((finite - low) * (255 / ((high - low) or 1))).round().astype(np.uint8))


def _flattened(picture: Image.Image, least: int) -> Image.Image:
    """RGB on white, shrunk by a whole number while `least` is left; in bands, so that no second copy is needed."""
    shrink = max(1, min(picture.size) // least)
    clear = picture.has_transparency_data
    if shrink == 1 and not clear:
        return picture.convert("RGB")
    width, height = picture.size
    flat = Image.new("RGB", (-(-width // shrink), -(-height // shrink)))
    step = shrink * max(1, BAND // (width * shrink))
    for top in range(0, height, step):
        band = picture.crop((0, top, width, min(top + step, height)))
        if clear:
            seen = band.convert("RGBA")
            band = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
        band = band.convert("RGB")
        flat.paste(band.reduce(shrink) if shrink > 1 else band, (0, top // shrink))
    return flat


def _refusal(path: Path, reason: str) -> DataError:
    return DataError(f"{path} cannot be read as an image: {reason}")
