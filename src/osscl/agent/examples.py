"""Example pictures: small JPEGs of the labelled images that an agent keeps in memory, stored in its model file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from osscl.agent.embeddings import file_key, pixels_key
from osscl.data.pictures import decode_photo, hearing_warnings, read_content, square_jpeg
from osscl.errors import DataError

SIDE = 112  # pixels
NOTHING = b""  # in place of a picture that could not be read again
GetPicture = Callable[[], Path | Image.Image]
MakeExamples = Callable[[Sequence[int]], Sequence[bytes]]  # row numbers of a step -> JPEGs


@dataclass(frozen=True)
class Example:
    """A labelled image in memory."""

    name: str  # its class
    jpeg: bytes
    similarity: float  # cosine with the queried image; 1 without one


def no_examples(rows: Sequence[int]) -> list[bytes]:
    """An empty example for every row."""
    return [NOTHING for _ in rows]


def make_examples(pictures: Sequence[GetPicture], digests: Sequence[int]) -> list[bytes]:
    """A small JPEG of each picture; empty for a file whose content no longer has this digest."""
    with hearing_warnings(), ThreadPoolExecutor() as pool:
        return [*pool.map(_example, pictures, digests)]


def _example(get: GetPicture, digest: int) -> bytes:
    try:
        picture = get()
        if isinstance(picture, Image.Image):
            image = picture.convert("RGB")
            return small_jpeg(image) if digest_of_key(pixels_key(image)) == digest else NOTHING
        content = read_content(picture)
        if digest_of_key(file_key(content)) != digest:
            return NOTHING
        return small_jpeg(decode_photo(content, picture, SIDE).image)
    except DataError:
        return NOTHING


def small_jpeg(image: Image.Image) -> bytes:
    """An RGB picture as an example."""
    return square_jpeg(image, SIDE)


def digest_of_key(key: bytes) -> int:
    """A 64-bit hash of a picture's content."""
    return int.from_bytes(key[:8], "big", signed=True)


def pack_examples(jpegs: Iterable[bytes]) -> dict[str, Tensor]:
    """All bytes in one tensor, and where each picture ends."""
    parts = [*jpegs]
    ends = torch.tensor([0, *map(len, parts)], dtype=torch.long).cumsum(0)[1:]
    return {"bytes": torch.frombuffer(bytearray(b"".join(parts) or b"\0"), dtype=torch.uint8), "ends": ends}


def unpack_examples(state: Mapping[str, Any], count: int) -> tuple[bytes, ...]:
    """What `pack_examples` stored."""
    every, ends = state["bytes"].numpy().tobytes(), state["ends"].tolist()
    if len(ends) != count:
        raise ValueError(f"expected {count} pictures, found {len(ends)}")
    return tuple(every[start:end] for start, end in zip([0, *ends], ends, strict=False))
