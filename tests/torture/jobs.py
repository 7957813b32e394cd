"""The commands that are interrupted, typed in processes forked from this one, and what they leave behind."""

import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from osscl.cli import main
from osscl.runs.record import read_record
from osscl.storage import is_draft, read_state
from torture.faults import count_writes

Words = tuple[object, ...]

METHODS = (
    "ursl", "ursl-plus-unlimited", "co2l", "co2l-j", "co2l-p", "gd", "dm", "gem", "icarl", "labels-only",
    "reference-only", "supervised",
)  # fmt: skip
TINY = (
    "--schedule", "smoke", "--set=schedule.name=tiny", "--set=schedule.max_updates=2", "--set=schedule.row_cap=64",
    "--set=scenario.classes_per_step=[2,2]",
)  # fmt: skip
SCRATCH = ("--encoder", "scratch", "--schedule", "smoke", "--size", "16")
FIT = ("fit", "agent", "--labeled", "photos", "--unlabeled", "pile")
UPDATE = ("update", "agent", "--labeled", "more", "--unlabeled", "pile")
CHANGING = ("history", "made_by", "date", "seconds", "log", "cached")  # fields that differ between equal results


def jobs() -> dict[str, tuple[Words, ...]]:
    """Commands by name, each list typed in a folder of its own."""
    made: dict[str, tuple[Words, ...]] = {name: (("run", "digits", "--method", name, *TINY),) for name in METHODS}
    made["ursl-plus, fit and update"] = (*((*words, *more) for words, more in (
        (FIT, ("--method", "ursl-plus", "--memory", "20", *SCRATCH)), (UPDATE, ()))),)  # fmt: skip
    made["scratch, fit and update"] = ((*FIT, "--method", "ursl", *SCRATCH), UPDATE)
    made["encoder, fit and update"] = (FIT, UPDATE)
    made["sort"] = (FIT, ("sort", "agent", "pile", "--into", "sorted"))
    made["export"] = ((*FIT, "--bundle"), ("export", "agent", "--format", "hub", "--out", "hub"))
    made["stream"] = (
        ("stream", "digits", "--out", "stream.json", "--set=scenario.classes_per_step=[2,2]"),
        ("run", "--stream", "stream.json", *TINY[:-1]),
    )
    made["table"] = (
        ("table", "T1", "--on", "demo", "--schedule", "smoke", "--seeds", "0", "--cells", "p10-cifar100/co2l"),
    )
    return made


# Jobs of which every write is attacked; the other methods write the same kinds of files.
WRITERS = (
    "ursl", "scratch, fit and update", "encoder, fit and update", "sort", "export", "stream", "table",
)  # fmt: skip
# What the second attempt says if the first one was killed after its work was done.
DONE = ("already exists", "already holds", "nothing new")


def draw_photos(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(36):
        kind = i % 4
        pixels = rng.integers(0, 90, (24, 24, 3), dtype=np.uint8)
        pixels[..., kind % 3] += 150
        pixels[: 12 * (kind == 3)] = 255 - pixels[: 12 * (kind == 3)]
        name = ("red", "green", "blue", "split")[kind]
        place = folder / "pile" if i >= 24 else folder / ("more" if name in ("blue", "split") else "photos") / name
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i}.png")


@contextlib.contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """A folder with the pictures, deleted afterwards."""
    place = Path(tempfile.mkdtemp(dir=folder))
    draw_photos(place)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


# ----- processes


@dataclass(frozen=True)
class Started:
    """A forked process, and a pipe with what it prints: unlike a file, it has no size that could be limited."""

    pid: int
    pipe: int

    def printed(self) -> str:
        """What it has printed since the last call."""
        parts = []
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.pipe, 2**16):
                parts.append(part)
        return b"".join(parts).decode(errors="replace")

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def finish(self) -> tuple[int, str]:
        """The exit code, negative if a signal ended the process, and what it printed."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        log = self.printed()
        os.close(self.pipe)
        return code, log


def start(folder: Path, *words: object, before: Callable[[], None] = lambda: None) -> Started:
    """Fork a process that types a command in a folder."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 2**20)
    os.set_blocking(reader, False)
    if pid := os.fork():
        os.close(writer)
        return Started(pid, reader)
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(writer, 1), os.dup2(writer, 2)
        os.close(reader), os.close(writer)
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), line_buffering=True)
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), line_buffering=True)
        os.environ["OSSCL_CACHE"] = str(folder / "cache")
        sys.argv = ["osscl", *map(str, words)]
        before()
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def typed(folder: Path, *words: object, before: Callable[[], None] = lambda: None) -> tuple[int, str]:
    return start(folder, *words, before=before).finish()


def called(*words: object) -> tuple[int, str]:
    """A command typed in this process: exit code and everything it printed."""
    out = io.StringIO()
    sys.argv = ["osscl", *map(str, words)]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main()
        except SystemExit as error:
            return error.code if isinstance(error.code, int) else 0, out.getvalue()
        except Exception:
            return 70, traceback.format_exc()
    return 0, out.getvalue()


# ----- results


@dataclass(frozen=True)
class Baseline:
    """An undisturbed job."""

    words: tuple[Words, ...]
    result: dict[str, object]
    seconds: tuple[float, ...]  # of each command
    writes: tuple[int, ...]  # of each command: how often it changed something on disk
    sizes: tuple[int, ...]  # of the files that it wrote


def undisturbed(folder: Path, wanted: list[str] | None = None) -> dict[str, Baseline]:
    """The undisturbed result of each job; in this process first, so that its copies have everything loaded."""
    found, here = {}, Path.cwd()
    for name, commands in jobs().items():
        if wanted is not None and name not in wanted:
            continue
        with fresh(folder) as place:
            os.chdir(place)
            os.environ["OSSCL_CACHE"] = str(place / "cache")
            told = [called(*words) for words in commands]
            os.chdir(here)
            assert not any(code for code, _ in told), f"{name}: {told}"
            first = result(place)
        with fresh(folder) as place:
            seconds, writes = [], []
            for words in commands:
                began, lines = time.monotonic(), folder / "writes"
                code, log = typed(place, *words, before=count_writes(place, lines))
                assert code == 0, f"{name}: {log}"
                seconds.append(time.monotonic() - began)
                writes.append(len(lines.read_text().splitlines()))
                lines.unlink()
            files = [path for path in place.rglob("*") if path.is_file()]
            drawn = {place / "photos", place / "more", place / "pile"}
            sizes = {path.stat().st_size for path in files if not drawn & {*path.parents}}
            found[name] = Baseline(commands, result(place), tuple(seconds), tuple(writes), tuple(sorted(sizes - {0})))
            assert found[name].result == first, f"{name} differs from one time to the next"
    return found


def result(folder: Path) -> dict[str, object]:
    """What a command leaves behind that must not depend on interruptions."""
    found: dict[str, object] = {}
    for file in sorted(folder.glob("runs/**/*-s?-*.json")):
        record = read_record(file)
        found[record.id] = record.accuracy, record.confusion, record.overall
        found[f"model of {record.id}"] = fingerprint(read_state(file.parent / "model"))
    for file in sorted([*folder.glob("agent/model.*"), *folder.glob("hub/**/*.safetensors")]):
        found[str(file.relative_to(folder))] = fingerprint(read_state(file))
    written = ("sorted/**/*", "stream.json", "agent/encoder/*", "hub/config.json")
    for file in sorted(file for pattern in written for file in folder.glob(pattern)):
        if file.is_file():
            found[str(file.relative_to(folder))] = hashlib.sha256(_without_place(file, folder)).hexdigest()
    return found


def _without_place(file: Path, folder: Path) -> bytes:
    return file.read_bytes().replace(os.fsencode(folder), b"").replace(os.fsencode(folder.name), b"")


def fingerprint(value: object) -> object:
    if isinstance(value, torch.Tensor):
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(value.dtype), tuple(value.shape), hashlib.sha256(raw).hexdigest()
    if isinstance(value, dict):
        return {key: fingerprint(item) for key, item in value.items() if key not in CHANGING}
    return [fingerprint(item) for item in value] if isinstance(value, list | tuple) else value


def litter(folder: Path) -> list[Path]:
    """Drafts that are left outside the cache, where they stay for an hour because others may write there."""
    found = [path for path in folder.rglob(".*") if is_draft(path)]
    return [path for path in found if folder / "cache" not in path.parents]


def let_time_pass(folder: Path) -> None:
    """Make drafts two hours old: those of files are removed by their age, since others may be writing them."""
    for draft in litter(folder):
        os.utime(draft, (time.time() - 7200,) * 2)


def resumes(folder: Path, words: Words) -> tuple[str, str]:
    """Type a command again without disturbance, two hours later: `survived`, or what is wrong."""
    let_time_pass(folder)
    code, log = typed(folder, *words)
    if code == 0 or (code == 2 and any(said in log for said in DONE) and log.count("\n") < 20):
        return "survived", ""
    return ("traceback" if "Traceback" in log else "silent"), f"does not resume, {code}: {log}"
