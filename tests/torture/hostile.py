"""Hostile pickles and images: refused, or read as Python's pickle and Pillow read them."""

import contextlib
import io
import os
import pickle
import random
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from osscl.data.pickles import read_pickle
from osscl.data.pictures import read_photo
from osscl.data.readers import SIDE, read_caltech256
from torture.ledger import Attack

CORPUS = Path(__file__).parents[1] / "corpus"
ALLOWED = {"dtype", "ndarray", "_reconstruct", "_frombuffer", "scalar", "encode", "bytes"}


def bent(content: bytes, rng: random.Random) -> bytes:
    """Bytes with a few of them replaced, removed or added."""
    changed = bytearray(content)
    for _ in range(rng.randrange(1, 8)):
        at = rng.randrange(len(changed) + 1)
        changed[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(4))
    return bytes(changed)


# ----- pickles


def pickles(attack: Attack) -> None:
    """Those of the corpus and benign ones first, then mutated ones. No code may run, and nothing but data may come."""
    rows = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype=np.uint8)
    benign = {b"data": rows, b"labels": [0, 1], b"filenames": ["a", "b"], b"means": rows.astype("f4").T, b"x": 1.5}
    seeds = [pickle.dumps(benign, protocol) for protocol in (2, 3, 4, 5)]
    seeds += [file.read_bytes() for file in sorted(CORPUS.glob("*.pickle"))]
    file = attack.folder / "p"
    for i in attack.rounds():
        content = seeds[i] if i < len(seeds) else bent(attack.rng.choice(seeds), attack.rng)
        file.write_bytes(content)
        attack.ledger.judge(
            "hostile pickle", lambda: read_pickle(file), partial(is_what_python_reads, content), content
        )


class Restricted(pickle._Unpickler):
    """Python's own reader, which finds the functions of arrays only; the pure one allocates no memo in advance."""

    def find_class(self, module: str, name: str) -> object:
        if module.split(".")[0] not in ("numpy", "_codecs", "builtins") or name not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


def is_what_python_reads(content: bytes, value: object) -> bool:
    """In a process of its own, since NumPy's unpickling of a damaged dtype can crash."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 2)
            expected = Restricted(io.BytesIO(content), encoding="bytes").load()
            code = (
                0
                if same({key if isinstance(key, bytes) else key.encode(): v for key, v in expected.items()}, value)
                else 2
            )
        finally:
            os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return ended == 0 or (ended < 0 and isinstance(value, dict))  # a crash of the other reader says nothing about ours


def same(expected: object, found: object) -> bool:
    if isinstance(expected, np.ndarray | np.generic) or isinstance(found, np.ndarray | np.generic):
        a, b = np.asarray(expected), np.asarray(found)
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(expected) is not type(found):
        return False
    if isinstance(expected, dict):
        keys = {key if isinstance(key, bytes) else key.encode(): key for key in expected}
        return keys.keys() == found.keys() and all(same(expected[keys[key]], found[key]) for key in keys)
    if isinstance(expected, list | tuple):
        return len(expected) == len(found) and all(same(a, b) for a, b in zip(expected, found, strict=True))
    return expected == found or (expected != expected and found != found)


# ----- images


def images(attack: Attack) -> None:
    """Pictures of a data set and photographs: decoded as Pillow decodes them, or refused."""
    seeds = [file.read_bytes() for file in sorted(CORPUS.glob("*.img"))] + drawn_images()
    folder = attack.folder / "caltech" / "001.a"
    folder.mkdir(parents=True)
    file = folder / "001_0001.jpg"
    for i in attack.rounds():
        content = seeds[i] if i < len(seeds) else bent(attack.rng.choice(seeds), attack.rng)
        file.write_bytes(content)
        _judge(attack, "hostile image", lambda: read_caltech256(folder.parent).train_images[0], content, _benchmark)
        _judge(attack, "hostile photograph", lambda: np.asarray(read_photo(file, 64).image), content, _photograph)


def drawn_images() -> list[bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 4), dtype=np.uint8)
    turned = Image.Exif()
    turned[0x0112] = 6
    made = []
    for kind, channels, more in (
        ("PNG", 3, {}), ("PNG", 4, {}),
        ("JPEG", 3, {}), ("JPEG", 3, {"progressive": True}), ("JPEG", 3, {"exif": turned}),
    ):  # fmt: skip
        out = io.BytesIO()
        Image.fromarray(pixels[..., :channels]).save(out, kind, **more)
        made.append(out.getvalue())
    return made


def _judge(attack: Attack, title: str, read: Callable, content: bytes, decode: Callable[[bytes], np.ndarray]) -> None:
    printed = io.StringIO()

    def read_quietly() -> np.ndarray:
        with contextlib.redirect_stderr(printed):
            return read()

    def is_right(found: np.ndarray) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return not printed.getvalue() and np.array_equal(found, decode(content))

    attack.ledger.judge(title, read_quietly, is_right, (content[:100], printed))


def _benchmark(content: bytes) -> np.ndarray:
    """The central square at 32 pixels, channels first, by Pillow alone."""
    image = Image.open(io.BytesIO(content)).convert("RGB")
    return np.asarray(ImageOps.fit(image, (SIDE, SIDE), Image.Resampling.BOX)).transpose(2, 0, 1)


def _photograph(content: bytes) -> np.ndarray:
    """Upright, on white where it is transparent, by Pillow alone; small pictures keep their size."""
    image = Image.open(io.BytesIO(content))
    image.load()
    with contextlib.suppress(Exception):  # damaged metadata: the orientation is unknown
        image = ImageOps.exif_transpose(image)
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
    return np.asarray(image.convert("RGB"))
