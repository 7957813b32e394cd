"""Mutated documents: an accepted one must be read as what it says."""

import dataclasses
import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from osscl.agent.classifier import ContinualClassifier
from osscl.agent.hub_export import require_export
from osscl.cli.specs import spec_from_file
from osscl.config import plain
from osscl.runs.model import load_model, read_entry
from osscl.runs.record import read_record, record_to_plain
from osscl.runs.spec import spec_to_plain
from osscl.serve.folder import _read_index
from osscl.serve.next_step import LabelBook, PendingStep
from osscl.serve.teaching import IDLE, Teaching
from osscl.storage import DIGEST, read_state, seal, write_state
from torture.jobs import called
from torture.ledger import Attack
from torture.stored import stored_files

RESULTS = Path(__file__).parents[2] / "results"
WORDS = (None, True, -1, 0, 1e308, -0.5, 2**70, "", "\x1b[31m", "../..", [], {}, [[]], "nan", "a" * 5000, {"type": "x"})
TYPED = 20  # every so many documents are read by a command, too


@dataclass(frozen=True)
class Document:
    """A kind of document: examples, how one is written, how it is read, and how what was read is written down."""

    examples: Callable[[random.Random], object]
    file: Path
    read: Callable[[Path], object]  # as plain values
    seal: Callable[[object], object] = lambda data: data  # with the digest that the content would have
    command: tuple[str, ...] = ()
    meant: Callable[[object], object] = lambda given: given  # what a document says to its reader
    recovers: bool = False  # None is a right answer: the document is made again
    compared: bool = True


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
    if type(value) in (int, float) and rng.random() < 0.3:
        return rng.choice((value + 1, -value, value / 2, str(value)))
    return rng.choice(WORDS)


def disagreement(given: object, read: object, where: str = "") -> str:
    """Where what was read differs from what was given; None and left out fields mean a default."""
    if given is None:
        return ""
    if isinstance(given, dict) and isinstance(read, dict):
        differences = (disagreement(given[key], read.get(key, "left out"), f"{where}.{key}") for key in given)
        return next(filter(None, differences), "")
    if isinstance(given, list) and isinstance(read, list | tuple) and len(given) == len(read):
        pairs = enumerate(zip(given, read, strict=True))
        return next(filter(None, (disagreement(a, b, f"{where}[{i}]") for i, (a, b) in pairs)), "")
    if isinstance(given, str) and isinstance(read, float):
        same = float(given) == read  # YAML 1.1 reads 1e-3 as text
    elif isinstance(given, str) and isinstance(read, dict):
        same = read.get("name") == given  # a schedule by its name
    else:
        same = given == read and isinstance(given, bool) == isinstance(read, bool)
    return "" if same else f"{where}: {str(given)[:100]!r} was read as {str(read)[:100]!r}"


def documents_of(folder: Path) -> dict[str, Document]:
    records = [path for path in RESULTS.rglob("*.json") if path.parent.name not in ("bench", "studies")]
    kinds = stored_files(folder)
    work = folder / "documents"

    def record(rng: random.Random) -> dict:
        return json.loads(rng.choice(records).read_text())

    def sealed_record(data: object) -> object:
        """With the digest of its own content, or, as version 0.1 wrote it, with none."""
        if not isinstance(data, dict):
            return data
        content = {key: value for key, value in data.items() if key != "digest"}
        return {
            **content,
            "digest": hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest(),
        }

    found = {
        "spec": Document(
            lambda rng: record(rng)["spec"], work / "spec.json", lambda path: spec_to_plain(spec_from_file(path, {})),
            command=("run", "--dry-run", "--spec"),
        ),
        "record": Document(
            record, work / "record.json", lambda path: record_to_plain(read_record(path)), sealed_record,
            command=("report", "--format", "csv"),
        ),
    }  # fmt: skip
    return {**found, **_streams(kinds), **_of_serve(kinds), **_of_agents(kinds)}


def _streams(kinds) -> dict[str, Document]:
    file, read = kinds["stream"].file, kinds["stream"].read
    original = json.loads(file.read_text())
    return {"stream": Document(lambda rng: original, file, read, _resealed)}


def _resealed(data: object) -> object:
    """A document that names its own digest, with the right one."""
    if not isinstance(data, dict) or DIGEST not in data:
        return data
    return seal({key: value for key, value in data.items() if key != DIGEST})


def _of_serve(kinds) -> dict[str, Document]:
    own = kinds["served step"].file.parent
    labels = LabelBook(kinds["served labels"].file.parent)
    agent = own.parent
    store = ContinualClassifier.load(agent, "cpu").learner.store

    def status(path: Path) -> object:
        found = Teaching(agent, None, None)._state()
        return None if found == IDLE else {"content": dataclasses.asdict(found)}

    def listed(path: Path) -> object:
        found = _read_index(path, store.content_hash)
        return {"content": {"files": plain(found)}} if found else None

    made = {
        "served labels": (labels.file, lambda path: {"content": [*plain(labels.read()).values()]}, False),
        "served step": (own / "step.json", lambda path: {"content": plain(PendingStep.read(own))}, False),
        "served status": (own / "status.json", status, True),
        "served list of the pile": (own / "pile.json", listed, True),
    }
    return {
        name: Document(
            lambda rng, data=json.loads(file.read_text()): data, file, read, _resealed, recovers=recovers,
            compared=name != "served list of the pile", meant=_newest_labels if name == "served labels" else _same,
        )
        for name, (file, read, recovers) in made.items()
    }  # fmt: skip


def _same(given: object) -> object:
    return given


def _newest_labels(given: object) -> object:
    """A picture has one label, the newest."""
    if not isinstance(given, dict) or not isinstance(given.get("content"), list):
        return given
    return {"content": [*{row["id"]: row for row in given["content"]}.values()]}


def _of_agents(kinds) -> dict[str, Document]:
    """The JSON in the files of agents, models and exports, with the digest of the mutated content."""
    config = kinds["exported config.json"].file

    def exported(path: Path) -> object:
        require_export(path.parent, read_entry(path.parent, tensors=False))
        return json.loads(path.read_text())

    made = {"exported config": Document(lambda rng: json.loads(config.read_text()), config, exported)}
    for name, load in {
        "agent": lambda path: ContinualClassifier.load(path.parent, "cpu").entry(),
        "model": lambda path: load_model(path.parent, "cpu"),
    }.items():
        file = kinds[name].file
        state = read_state(file)
        made[f"{name} file"] = Document(lambda rng, state=state: state, file, load, compared=False)
    return made


def documents(attack: Attack) -> None:
    kinds = documents_of(attack.folder.parent)
    originals = {name: kind.file.read_bytes() for name, kind in kinds.items() if kind.file.exists()}
    names = [*kinds]
    names += ["spec", "record"] * (len(names) - 2)  # half of all
    for i in attack.rounds():
        name = names[i % len(names)]
        kind = kinds[name]
        data = kind.examples(attack.rng)
        for _ in range(attack.rng.randrange(1, 4)):
            data = mutated(data, attack.rng)
        if not _write(kind, data, attack.rng):
            continue
        _judge(attack, name, kind, typed=i % TYPED < 2)
        if name in originals:
            kind.file.write_bytes(originals[name])


def _write(kind: Document, data: object, rng: random.Random) -> bool:
    """Write a mutated document; False if it cannot be written as a file of this kind."""
    if kind.file.suffix == ".safetensors":
        if not isinstance(data, dict):
            return False
        write_state(kind.file, data)
        return True
    text = json.dumps(kind.seal(data) if rng.random() < 0.8 else data).encode()
    if rng.random() < 0.2 and len(text) > 1:
        at = rng.randrange(len(text))
        text = text[:at] + rng.randbytes(rng.randrange(4)) + text[at + rng.randrange(4) :]
    kind.file.write_bytes(text)
    return True


def _judge(attack: Attack, name: str, kind: Document, *, typed: bool) -> None:
    def is_right(value: object) -> bool:
        if (kind.recovers and value is None) or not kind.compared:
            return True
        text = kind.file.read_text()
        given = yaml.safe_load(text) if name == "spec" else json.loads(text)
        if isinstance(given, dict):
            given = {key: item for key, item in given.items() if key not in (DIGEST, "digest")}
        if wrong := disagreement(kind.meant(given), value):
            details.append(wrong)
        return not wrong

    text = kind.file.read_bytes()[:300] if kind.file.suffix != ".safetensors" else ""
    details: list[object] = [text]
    attack.ledger.judge(f"mutated {name}", lambda: kind.read(kind.file), is_right, details)
    if not (typed and kind.command):
        return
    code, out = called(*kind.command, kind.file)
    told = out.startswith(("osscl: ", "skipped: ")) and out.count("\n") <= 2
    if code not in (0, 2) or "\x1b" in out or (code == 2 and not told):
        attack.ledger.add(f"mutated {name}, typed", "traceback", f"{text!r} {out}")
    else:
        attack.ledger.add(f"mutated {name}, typed", "refused" if code == 2 else "survived")
