"""Random generators by name: one seed fans out, so that new draws in one place do not change those in another."""

import hashlib

import torch
from torch import Generator


def seeded(seed: int, *names: str | int, device: torch.device | str = "cpu") -> Generator:
    """The generator of one purpose: `seeded(0, "draw", t)`. The same names always give the same numbers."""
    digest = hashlib.blake2b(repr((seed, *names)).encode(), digest_size=8).digest()
    return Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)
