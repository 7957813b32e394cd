"""The next step, kept in the agent's folder: labels and uploaded pictures, the requested step, and its status."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock

from osscl.config import convert, from_plain
from osscl.data.folders import ReadProgress
from osscl.errors import Stopped, UserError
from osscl.serve.answers import NextLabel, NextLabels, RefusedRequest, TeachingState
from osscl.storage import atomic_write, read_sealed, write_sealed

SERVE_FOLDER = ".serve"  # of `osscl serve`, in an agent's folder
MOST_UPLOADS = 2000  # uploaded pictures that wait for the next step
SECONDS_BETWEEN_REPORTS = 0.1


class LabelBook:
    """The labels of the next step; a picture has one label, the newest. Threads and processes may change them."""

    def __init__(self, own: Path) -> None:
        self.own = own

    @property
    def file(self) -> Path:
        return self.own / "labels.json"

    def upload(self, key: str) -> Path:
        """Where the content of an uploaded picture is kept until it is taught."""
        return self.own / "uploads" / key

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other threads and processes from changing the labels and the uploaded pictures inside the block."""
        self.own.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.own / ".labels.lock", fallback_to_soft=False)  # new each time: excludes threads, too
        try:
            lock.acquire()
        except OSError as error:
            raise UserError(f"cannot lock {self.file}: {error.strerror}") from None
        try:
            yield
        finally:
            lock.release()

    def read(self) -> dict[str, NextLabel]:
        try:
            return {row.id: row for row in convert(list[NextLabel], read_sealed(self.file), "labels")}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, UserError):
            raise UserError(f"{self.file} is damaged: move it away to start the next step without labels") from None

    def shown(self) -> NextLabels:
        labels = [*self.read().values()]
        return NextLabels(labels, dict(sorted(Counter(one.name for one in labels).items())))

    def add(self, labels: list[NextLabel], contents: dict[str, bytes] | None = None) -> None:
        """Add or change labels; `contents` has the bytes of uploaded pictures."""
        with self._locked():
            there = self.read()
            uploads = {one.id for one in [*there.values(), *labels] if one.source == "upload"}
            if len(uploads) > MOST_UPLOADS:
                raise RefusedRequest(
                    413, f"at most {MOST_UPLOADS} uploaded pictures can wait for the next step: teach them first"
                )
            for key, content in (contents or {}).items():
                with atomic_write(self.upload(key)) as draft:
                    draft.write_bytes(content)
            self._write({**there, **{one.id: one for one in labels}})

    def drop(self, keys: list[str] | None) -> None:
        """Remove these labels, or all; labels that were changed meanwhile stay."""
        with self._locked():
            there = self.read()
            self._write({} if keys is None else {key: one for key, one in there.items() if key not in {*keys}})

    def forget(self, taught: list[NextLabel]) -> None:
        """Remove labels that were taught, unless they have been changed since."""
        with self._locked():
            self._write({key: one for key, one in self.read().items() if one not in taught})

    def _write(self, labels: dict[str, NextLabel]) -> None:
        write_sealed(self.file, [asdict(one) for one in labels.values()])
        folder = self.own / "uploads"
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in labels and not path.name.startswith("."):
                path.unlink(missing_ok=True)


def label_pile(name: str, keys: list[str], files: dict[str, str]) -> list[NextLabel]:
    """Labels of pictures of the pile; refused if one is not in it."""
    if missing := [key for key in keys if key not in files]:
        raise RefusedRequest(404, f"no picture {missing[0]} in the pile: it may have been moved or changed")
    return [NextLabel(key, name, files[key], "pile") for key in dict.fromkeys(keys)]


@dataclass(frozen=True)
class PendingStep:
    """A requested step, as stored before it starts."""

    id: str
    labels: tuple[NextLabel, ...]
    pile: str | None  # folder
    test: str | None  # folder
    before: tuple[str, ...]  # contents of the steps learned before

    def write(self, own: Path) -> None:
        write_sealed(own / "step.json", asdict(self))

    @classmethod
    def read(cls, own: Path) -> "PendingStep | None":
        """The step that is pending, if there is one."""
        try:
            return from_plain(cls, read_sealed(own / "step.json"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, UserError):
            raise UserError(f"{own / 'step.json'} is damaged: move it away; the labels are kept") from None

    def forget(self, own: Path) -> None:
        (own / "step.json").unlink(missing_ok=True)
        (own / "stop").unlink(missing_ok=True)

    @property
    def state(self) -> TeachingState:
        """The state in which the step starts."""
        classes = sorted({one.name for one in self.labels})
        return TeachingState("running", self.id, "starting", pictures=len(self.labels), classes=classes)


def write_status(own: Path, state: TeachingState) -> None:
    write_sealed(own / "status.json", asdict(state))


@dataclass
class Reporter:
    """Writes progress to the agent's folder, and stops the step on request."""

    own: Path
    state: TeachingState
    written: float = 0.0
    can_stop: bool = True  # until the new model is saved

    def phase(self, name: str) -> ReadProgress:
        """A new phase, and a function that reports how far it is."""
        self._write(replace(self.state, phase=name, done=0, of=0))

        def count(done: int, of: int) -> None:
            self.state = replace(self.state, done=done, of=of)
            if time.monotonic() - self.written > SECONDS_BETWEEN_REPORTS or done == of:
                self._write(self.state)

        return count

    def _write(self, state: TeachingState) -> None:
        if self.can_stop and (self.own / "stop").exists():
            raise Stopped
        self.state, self.written = state, time.monotonic()
        write_status(self.own, state)
