"""Kills, flipped bits, mutated documents, hostile pickles and images, failing writes: `make torture`.

Prints one row per attack: tried, survived (the right result), refused (one line), silent (a wrong result) and
tracebacks. Exits with 1 if there is a silent one or a traceback. Not collected by pytest."""

import argparse
import contextlib
import errno
import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from osscl.cli import main
from osscl.data import cache
from osscl.data.images import Decoded
from osscl.data.pickles import read_pickle
from osscl.data.readers import read_caltech256
from osscl.errors import UserError
from osscl.runs.record import read_record, record_to_plain
from osscl.runs.run import run  # noqa: F401 - imported before the forks
from osscl.storage import read_cached_state, read_state

ROOT = Path(__file__).parents[1]
CORPUS = Path(__file__).parent / "corpus"
METHODS = ("ursl", "ursl-plus-unlimited", "co2l", "gd", "dm", "gem", "icarl", "labels-only")
TINY = ("--schedule", "smoke", *(f"--set=schedule.{field}" for field in ("name=tiny", "max_updates=2", "row_cap=64")))
COUNTS = {
    "kills": 500,
    "signals": 100,
    "writes": 200,
    "flips": 2000,
    "documents": 5000,
    "pickles": 1000,
    "images": 1000,
}
WORDS = (None, True, -1, 0, 1e308, -0.5, 2**70, "", "\x1b[31m", "../..", [], {}, [[]], "nan", "a" * 5000, {"type": "x"})


class Ledger:
    """Outcomes by attack, and the first few of the bad ones."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter] = {}
        self.bad: list[str] = []

    def add(self, attack: str, outcome: str, detail: object = "") -> None:
        self.counts.setdefault(attack, Counter())[outcome] += 1
        if outcome in ("silent", "traceback"):
            self.bad.append(f"{attack}: {outcome}: {str(detail)[-1500:]}")

    def table(self) -> str:
        rows = ["| attack | tried | survived | refused | silent | tracebacks |", "|---|--:|--:|--:|--:|--:|"]
        for attack, n in self.counts.items():
            cells = n.total(), n["survived"], n["refused"], n["silent"], n["traceback"]
            rows.append(f"| {attack} | {' | '.join(map(str, cells))} |")
        return "\n".join(rows)


# ----- commands in child processes


def start(folder: Path, *words: object, before=lambda: None) -> int:
    """Fork a process that types a command in a folder; its output goes to a file there."""
    if pid := os.fork():
        return pid
    code = 70
    try:
        os.chdir(folder)
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1), os.dup2(log, 2)
        sys.stdout, sys.stderr = io.TextIOWrapper(io.FileIO(1, "w")), io.TextIOWrapper(io.FileIO(2, "w"))
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


def finish(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def typed(folder: Path, *words: object, before=lambda: None) -> tuple[int, str]:
    code = finish(start(folder, *words, before=before))
    return code, (folder / "log.txt").read_text(errors="replace") if (folder / "log.txt").exists() else ""


def result(folder: Path) -> object:
    """What a command leaves behind that must not depend on interruptions."""
    found = {}
    for file in sorted(folder.glob("runs/**/*-s?-*.json")):
        record = read_record(file)
        found[record.id] = record.accuracy, record.confusion, record.overall
    for file in sorted(folder.glob("agent/model.safetensors")):
        state = read_state(file)
        state = {key: value for key, value in state.items() if key not in ("history", "made_by", "date", "seconds")}
        found["agent"] = fingerprint(state)
    return found


def fingerprint(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {
            key: fingerprint(item) for key, item in value.items() if key not in ("seconds", "date", "log", "history")
        }
    return [fingerprint(item) for item in value] if isinstance(value, list | tuple) else value


def photos(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name, colour in {"red": 0, "green": 1, "blue": 2}.items():
        for i in range(8):
            pixels = rng.integers(0, 90, (16, 16, 3), dtype=np.uint8)
            pixels[..., colour] += 150
            target = folder / ("more" if name == "blue" else "photos") / name
            target.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(target / f"{i}.png")


def jobs() -> dict[str, list[tuple[object, ...]]]:
    """Commands by name; those of an agent come one after another."""
    made = {method: [("run", "digits", "--method", method, *TINY)] for method in METHODS}
    learn = ("--encoder", "scratch", "--method", "ursl", "--schedule", "smoke", "--size", "16")
    made["fit and update"] = [("fit", "agent", "--labeled", "photos", *learn), ("update", "agent", "--labeled", "more")]
    made["table"] = [
        ("table", "T1", "--on", "demo", "--schedule", "smoke", "--seeds", "0", "--cells", "p10-cifar100/co2l")
    ]
    return made


def baselines(folder: Path, names) -> dict[str, tuple[object, float]]:
    """The undisturbed result of each job, and its seconds."""
    found = {}
    for name in names:
        place = folder / f"base-{name.replace(' ', '-')}"
        place.mkdir()
        photos(place)
        began = time.monotonic()
        codes = [typed(place, *words) for words in jobs()[name]]
        if any(code for code, _ in codes) or not (made := result(place)):
            print(f"left out: {name}: {codes[-1][1][-300:]}", file=sys.stderr)
            continue
        found[name] = made, time.monotonic() - began
    return found


def interrupted(folder: Path, rng: random.Random, name: str, expected, seconds: float, numbers) -> tuple[str, str, int]:
    """Interrupt a job at random moments, up to three times, then let it finish: outcome, detail, interruptions."""
    place, done = Path(tempfile.mkdtemp(dir=folder)), 0
    photos(place)
    try:
        for words in jobs()[name]:
            for _ in range(3):
                pid = start(place, *words)
                time.sleep(rng.uniform(0, seconds))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, rng.choice(numbers))
                code, log = finish(pid), (place / "log.txt").read_text() if (place / "log.txt").exists() else ""
                done += 1
                if "Traceback" in log:
                    return "traceback", f"{name} {code}: {log}", done
                if code == 0:
                    break
            code, log = typed(place, *words)
            again = code == 2 and name == "fit and update" and any(w in log for w in ("exists", "already"))
            if code and not again:
                return ("traceback" if "Traceback" in log else "silent"), f"{name} does not resume, {code}: {log}", done
        if result(place) != expected:
            return "silent", f"{name}: another result", done
        litter = [path for path in place.rglob("*.draft") if path.is_file()]
        return ("survived", "", done) if not litter else ("silent", f"{name}: litter {litter}", done)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def kills(folder, rng, ledger, count, until, base, numbers=(signal.SIGKILL,), attack="SIGKILL") -> None:
    done = 0
    while done < count and time.monotonic() < until and base:
        name = rng.choice([*base])
        outcome, detail, times = interrupted(folder, rng, name, *base[name], numbers)
        for _ in range(times - 1):
            ledger.add(f"{attack}, {name}", "survived")
        ledger.add(f"{attack}, {name}", outcome, detail)
        done += times


def failing_writes(folder, rng, ledger, count, until, base) -> None:
    """A disk that is full or read-only from the n-th write on, or a limit on the size of files; then it works again."""
    for _ in range(count):
        if time.monotonic() > until or not base:
            return
        name, kind = rng.choice([*base]), rng.choice(("disk full", "read-only", "file too large"))
        place = Path(tempfile.mkdtemp(dir=folder))
        photos(place)
        at, limit = rng.randrange(40), rng.randrange(100, 300_000)

        def before(kind=kind, at=at, limit=limit) -> None:
            if kind == "file too large":
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                return
            left = [at]

            def hook(event, args) -> None:
                writes = event in ("os.rename", "os.mkdir", "os.link") or (
                    event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
                )
                if writes and not str(args[0]).startswith(("/dev", "/proc")):
                    left[0] -= 1
                    if left[0] < 0:
                        number = errno.ENOSPC if kind == "disk full" else errno.EROFS
                        raise OSError(number, os.strerror(number), str(args[0]))

            sys.addaudithook(hook)

        outcome, detail = "survived", ""
        for words in jobs()[name]:
            code, log = typed(place, *words, before=before)
            if code == 2 and "Traceback" not in log:
                outcome = "refused"
            elif code:
                outcome, detail = "traceback", f"{name} {kind} {at} {limit} {code}: {log}"
                break
            code, log = typed(place, *words)
            if code and "exists" not in log:
                outcome, detail = "silent", f"{name} after {kind} does not resume, {code}: {log}"
                break
        if outcome in ("survived", "refused") and result(place) != base[name][0]:
            outcome, detail = "silent", f"{name} after {kind}: another result"
        ledger.add(f"{kind}", outcome, detail)
        shutil.rmtree(place, ignore_errors=True)


# ----- files read in this process


def judged(ledger: Ledger, attack: str, read, is_right) -> None:
    """Read something damaged: right, refused, wrong or a traceback."""
    try:
        value = read()
    except UserError as error:
        one_line = "\n" not in str(error)
        ledger.add(attack, "refused" if one_line else "traceback", error)
    except Exception:
        ledger.add(attack, "traceback", traceback.format_exc())
    else:
        ledger.add(attack, "survived" if is_right(value) else "silent", attack)


def stored(folder: Path) -> dict[str, tuple[Path, object]]:
    """One stored file of each kind, and how it is read."""
    place = folder / "stored"
    place.mkdir()
    photos(place)
    typed(place, "run", "digits", *TINY)
    typed(place, "run", "digits", "--seed", "1", "--max-minutes", "0", *TINY)
    typed(place, *jobs()["fit and update"][0])
    kinds = {}
    for name, pattern in {
        "model": "runs/*/model.safetensors", "checkpoint": "runs/*/checkpoint.safetensors",
        "cached reference": "cache/references/**/*.safetensors", "agent": "agent/model.safetensors",
    }.items():  # fmt: skip
        if found := sorted(place.glob(pattern)):
            kinds[name] = found[0], read_cached_state if "cached" in name else read_state
    record = next(place.glob("runs/*/*-s0-*.json"))
    kinds["record"] = record, read_record
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8), np.arange(20) % 2
    cache.store_decoded(place / "decoded", Decoded(images, labels, images, labels, ("a", "b")), "content")
    for file in sorted((place / "decoded").iterdir()):
        kinds[f"decoded {file.name}"] = file, lambda path: cache.load_decoded(path.parent)
    return kinds


def comparable(value: object) -> object:
    if isinstance(value, tuple) and value and isinstance(value[0], Decoded):
        return [getattr(value[0], name).tobytes() for name in cache.ARRAYS], value[0].class_names, value[1]
    return record_to_plain(value) if hasattr(value, "class_order") else fingerprint(value)


def flips(folder, rng, ledger, count, until) -> None:
    began = time.monotonic()
    kinds = {name: (file, read, comparable(read(file))) for name, (file, read) in stored(folder).items()}
    until += time.monotonic() - began
    for _ in range(count):
        if time.monotonic() > until:
            return
        name = rng.choice([*kinds])
        file, read, right = kinds[name]
        content = file.read_bytes()
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        judged(ledger, f"bit flip, {name}", lambda: read(file), lambda v: v is None or comparable(v) == right)  # noqa: B023
        file.write_bytes(content)


def mutated(value: object, rng: random.Random) -> object:
    """A JSON value with one part replaced, removed, repeated or moved."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice([*value])
        how = rng.random()
        if how < 0.05:
            return {k: v for k, v in value.items() if k != key}
        if how < 0.1:
            return {**value, rng.choice(("unknown", "type", "\x1b[2J")): rng.choice(WORDS)}
        return {**value, key: mutated(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        i = rng.randrange(len(value))
        return rng.choice(([*value[:i], mutated(value[i], rng), *value[i + 1 :]], value[:i], [*value, value[i]]))
    return rng.choice(WORDS)


def called(*words: object) -> tuple[object, str]:
    """A command typed in this process: exit code and everything it printed."""
    out = io.StringIO()
    sys.argv = ["osscl", *map(str, words)]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main()
        except SystemExit as error:
            return error.code, out.getvalue()
        except Exception:
            return 70, traceback.format_exc()
    return 0, out.getvalue()


def documents(folder, rng, ledger, count, until) -> None:
    """Mutated specs and records, whole documents and bytes of them, as commands read them."""
    records = [path for path in (ROOT / "results").rglob("*.json") if path.parent.name not in ("bench", "studies")]
    place = folder / "documents"
    place.mkdir()
    for i in range(count):
        if time.monotonic() > until:
            return
        data = json.loads(rng.choice(records).read_text())
        is_spec = i % 2 == 0
        data, file = (data["spec"], place / "spec.json") if is_spec else (data, place / "r.json")
        for _ in range(rng.randrange(1, 4)):
            data = mutated(data, rng)
        text = json.dumps(data).encode()
        if rng.random() < 0.2 and len(text) > 1:
            at = rng.randrange(len(text))
            text = text[:at] + rng.randbytes(rng.randrange(4)) + text[at + rng.randrange(4) :]
        file.write_bytes(text)
        words = ("run", "--spec", file, "--dry-run") if is_spec else ("report", file, "--format", "csv")
        code, out = called(*words)
        attack = f"mutated {'spec' if is_spec else 'record'}"
        if code == 2 and out.startswith(("osscl: ", "skipped: ")) and out.count("\n") <= 2 and "\x1b" not in out:
            ledger.add(attack, "refused")
        else:
            bad = code not in (0, 2) or "Traceback" in out or "\x1b" in out or (code == 2)
            ledger.add(attack, "traceback" if bad else "survived", f"{text[:300]!r} {out}")


def pickles(folder, rng, ledger, count, until) -> None:
    """Mutated and random pickles; those of the corpus first. No code may run, and nothing else than data may come."""
    good = pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1], b"filenames": ["a", "b"]}, 2)
    seeds = [good, *(file.read_bytes() for file in sorted(CORPUS.glob("*.pickle")))]
    file = folder / "p"
    for i in range(count):
        if time.monotonic() > until:
            return
        content = bytearray(seeds[i] if i < len(seeds) else rng.choice(seeds))
        for _ in range(rng.randrange(1, 8) if i >= len(seeds) else 0):
            at = rng.randrange(len(content) + 1)
            content[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(4))
        file.write_bytes(content)
        judged(ledger, "hostile pickle", lambda: read_pickle(file), lambda value: isinstance(value, dict))


def images(folder, rng, ledger, count, until) -> None:
    """Mutated pictures of a data set: decoded to the right size, or refused."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    seeds = [file.read_bytes() for file in sorted(CORPUS.glob("*.img"))]
    for kind in ("PNG", "JPEG"):
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, kind)
        seeds.append(out.getvalue())
    place = folder / "caltech" / "001.a"
    place.mkdir(parents=True)
    for i in range(count):
        if time.monotonic() > until:
            return
        content = bytearray(seeds[i] if i < len(seeds) else rng.choice(seeds))
        for _ in range(rng.randrange(1, 8) if i >= len(seeds) else 0):
            at = rng.randrange(len(content) + 1)
            content[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(4))
        for name in ("001_0001.jpg", "001_0002.jpg"):
            (place / name).write_bytes(content)
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed):
            judged(
                ledger, "hostile image", lambda: read_caltech256(place.parent),
                lambda found: found.train_images.shape[1:] in ((32, 32, 3), (3, 32, 32)),
            )  # fmt: skip
        if printed.getvalue():
            ledger.add("hostile image", "traceback", f"printed {printed.getvalue()}")


def tortured(folder: Path, counts: dict[str, int], seed: int, seconds: float, names=None) -> Ledger:
    """All attacks; each kind may use an equal share of the seconds."""
    torch.set_num_threads(1)
    os.environ["OSSCL_COMMIT"] = "torture"
    ledger, parts = Ledger(), len(counts)
    rng = random.Random(seed)
    base = baselines(folder, names or jobs()) if counts["kills"] or counts["signals"] or counts["writes"] else {}
    attacks = {
        "flips": flips, "documents": documents, "pickles": pickles, "images": images,
        "kills": lambda *args: kills(*args, base),
        "signals": lambda *args: kills(*args, base, (signal.SIGINT, signal.SIGTERM), "SIGINT or SIGTERM"),
        "writes": lambda *args: failing_writes(*args, base),
    }  # fmt: skip
    for name, attack in attacks.items():
        if counts[name]:
            attack(folder, random.Random(rng.random()), ledger, counts[name], time.monotonic() + seconds / parts)
    return ledger


def command_line() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="at most, over all attacks")
    for name, count in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    asked = vars(parser.parse_args())
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OSSCL_CACHE"] = str(Path(folder) / "cache")
        found = tortured(Path(folder), {name: asked[name] for name in COUNTS}, asked["seed"], asked["seconds"])
    print(found.table())
    print("\n".join(found.bad[:20]), file=sys.stderr)
    sys.exit(1 if found.bad else 0)


if __name__ == "__main__":
    command_line()
