"""Labels of the next step, kept in the agent's folder: pictures of the pile, and uploaded ones with their content."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock

from osscl.config import convert
from osscl.errors import UserError
from osscl.serve.answers import NextLabel, NextLabels, RefusedRequest, class_name
from osscl.storage import atomic_write, read_sealed, write_sealed

MOST_UPLOADS = 2000  # uploaded pictures that wait for the next step


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
        """Wait until no other thread or process changes the labels or the uploaded pictures."""
        self.own.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.own / ".labels.lock", fallback_to_soft=False)  # a new one, as each excludes all others
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
            raise UserError(f"{self.file} is damaged: move it away to start the next step afresh") from None

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
    name = class_name(name)
    if missing := [key for key in keys if key not in files]:
        raise RefusedRequest(404, f"no picture {missing[0]} in the pile: it may have been moved or changed")
    return [NextLabel(key, name, files[key], "pile") for key in dict.fromkeys(keys)]
