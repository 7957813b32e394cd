"""Decode pictures in worker processes with limited memory: a hostile file can crash a worker, but not the server.

Workers do not need torch, so they start in a fraction of a second and are small.
"""

import contextlib
import resource
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from osscl.data.pictures import QUALITY, data_url, decode_photo, hearing_warnings, square_jpeg
from osscl.errors import DataError

MOST_BYTES = 64 * 2**20  # of an uploaded picture
MOST_PIXELS = 120_000_000  # of an uploaded picture
MOST_PICTURES = 50  # in one request
MEMORY = 3 * 2**29  # bytes that a worker may use beyond what its libraries take
SECONDS = 60.0  # for one picture
WORKERS = 2
SMALL, LARGE = 224, 1024  # pixels per side of pictures on the page
T = TypeVar("T")


@dataclass(frozen=True)
class DecodedUpload:
    """An uploaded picture, reduced in size for embedding, and its thumbnail."""

    size: tuple[int, int]
    pixels: bytes  # RGB
    thumbnail: str  # a data URL
    note: str | None

    @property
    def image(self) -> Image.Image:
        return Image.frombytes("RGB", self.size, self.pixels)


class Decoder:
    """Runs functions of this module in worker processes; a worker that dies or takes too long is replaced."""

    def __init__(self, memory: int = MEMORY, seconds: float = SECONDS) -> None:
        self.memory, self.seconds = memory, seconds
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """The function's result; a picture that breaks the worker is a DataError."""
        with self._lock:
            pool = self._pool = self._pool or self._new_pool()
        try:
            return pool.submit(function, *args).result(self.seconds)
        except BrokenProcessPool:
            reason = "it cannot be decoded within the memory limit"
        except TimeoutError:
            reason = "it takes too long to decode"
        self._drop(pool)
        raise DataError(f"the picture cannot be read: {reason}")

    def start(self) -> None:
        """Start a worker, so that the first picture does not wait for it."""
        with contextlib.suppress(DataError):  # closed meanwhile
            self.run(_ready)

    def close(self) -> None:
        if (pool := self._pool) is not None:
            self._drop(pool)
            pool.shutdown(wait=True)

    def _new_pool(self) -> ProcessPoolExecutor:
        context = get_context("forkserver")  # a clean process without threads is copied for each worker
        context.set_forkserver_preload([__name__])
        return ProcessPoolExecutor(WORKERS, context, limit_memory, (self.memory,))

    def _drop(self, pool: ProcessPoolExecutor) -> None:
        with self._lock:
            if self._pool is pool:
                self._pool = None
        for worker in [*(pool._processes or {}).values()]:
            worker.kill()
        pool.shutdown(wait=False, cancel_futures=True)


def limit_memory(more: int) -> None:
    """Limit this process to this many bytes of memory beyond what it already uses."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    most = pages * resource.getpagesize() + more
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _ready() -> bool:
    return True


def decode_upload(content: bytes, name: str, least: int) -> DecodedUpload:
    """Decode an uploaded picture to no less than `least` pixels per side."""
    _require_few_pixels(content, name)
    with hearing_warnings():
        found = decode_photo(content, Path(name), least)
    small = data_url(square_jpeg(found.image, SMALL))
    return DecodedUpload(found.image.size, found.image.tobytes(), small, found.note)


def _require_few_pixels(content: bytes, name: str) -> None:
    try:
        with Image.open(BytesIO(content)) as opened:
            pixels = opened.width * opened.height
    except Image.DecompressionBombError:
        pixels = MOST_PIXELS + 1
    except Exception:  # the decoder reports what is wrong
        return
    if pixels > MOST_PIXELS:
        raise DataError(f"{name} has more than {MOST_PIXELS:,} pixels")


def jpeg_to_show(content: bytes, name: str, large: bool) -> bytes:
    """A JPEG of an image file's content."""
    with hearing_warnings():
        image = decode_photo(content, Path(name), LARGE if large else SMALL).image
    if not large:
        return square_jpeg(image, SMALL)
    image.thumbnail((LARGE, LARGE))
    made = BytesIO()
    image.save(made, "JPEG", quality=QUALITY)
    return made.getvalue()
