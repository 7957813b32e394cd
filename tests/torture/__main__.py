"""Run the attacks and print one row per attack: tried, survived (the right result), refused (one line), silent (a wrong
result) and tracebacks. Exits with 1 if there is a silent one or a traceback. Not collected by pytest."""

import argparse
import errno
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

from torture import documents, hostile, interruptions, served, stored
from torture.encoder import install
from torture.jobs import WRITERS, undisturbed
from torture.ledger import Attack, Ledger

# How often, and the share of the time that each may take.
COUNTS = {
    "kills": (500, 0.14),
    "kills-at-writes": (10_000, 0.2),
    "signals": (200, 0.06),
    "signals-at-writes": (300, 0.1),
    "full-disk": (10_000, 0.14),
    "read-only": (10_000, 0.14),
    "file-sizes": (10_000, 0.06),
    "serve": (50, 0.08),
    "flips": (2000, 0.04),
    "documents": (5000, 0.1),
    "pickles": (1000, 0.02),
    "images": (1000, 0.02),
}  # 10,000: every write of every job


def tortured(folder: Path, counts: dict[str, int], seed: int, seconds: float) -> Ledger:
    """All attacks that are wanted. What one leaves of its time, the next ones may use."""
    torch.set_num_threads(1)
    os.environ |= {"OSSCL_COMMIT": "torture", "OSSCL_CACHE": str(folder / "cache"), "COLUMNS": "200"}
    install()
    ledger, began = Ledger(), time.monotonic()
    bases = undisturbed(folder)
    writers = {name: bases[name] for name in WRITERS}
    polite = (signal.SIGINT, signal.SIGTERM)
    attacks = {
        "flips": stored.flips,
        "documents": documents.documents,
        "pickles": hostile.pickles,
        "images": hostile.images,
        "serve": served.kills_of_server,
        "kills": lambda it: interruptions.at_random_moments(it, bases, (signal.SIGKILL,), "SIGKILL"),
        "signals": lambda it: interruptions.at_random_moments(it, bases, polite, "SIGINT or SIGTERM"),
        "file-sizes": lambda it: interruptions.limited_sizes(it, writers),
        "full-disk": lambda it: interruptions.failing_writes(it, writers, errno.ENOSPC, "disk full"),
        "read-only": lambda it: interruptions.failing_writes(it, writers, errno.EROFS, "read-only"),
        "signals-at-writes": lambda it: interruptions.signals_at_writes(it, writers),
        "kills-at-writes": lambda it: interruptions.kills_at_writes(it, writers),
    }
    left = [name for name in attacks if counts[name]]
    while left:
        name = left[0]
        share = COUNTS[name][1] / sum(COUNTS[one][1] for one in left)
        until = time.monotonic() + share * (began + seconds - time.monotonic())
        place = folder / name
        place.mkdir()
        attacks[name](Attack(place, random.Random(f"{seed} {name}"), ledger, counts[name], until))
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        left = left[1:]
    return ledger


def command_line() -> None:
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=7200.0, help="at most, over all attacks")
    for name, (count, _) in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=None, metavar="N", help=f"by default {count}")
    parser.add_argument("--only", action="store_true", help="only the attacks that are given a number")
    asked = vars(parser.parse_args())
    given = {name: asked[name.replace("-", "_")] for name in COUNTS}
    default = {name: 0 if asked["only"] else count for name, (count, _) in COUNTS.items()}
    counts = {name: default[name] if n is None else n for name, n in given.items()}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = tortured(Path(folder), counts, asked["seed"], asked["seconds"])
    print(found.table())
    sys.exit(1 if found.bad else 0)


if __name__ == "__main__":
    command_line()
