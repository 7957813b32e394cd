"""The state of a server: the agent, the pile, the test folder, the labels of the next step, and the teaching."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from osscl.agent.embeddings import file_key
from osscl.agent.photos import PhotoLearner
from osscl.data.folders import ReadProgress
from osscl.errors import DataError, UserError
from osscl.places import cache_dir
from osscl.serve.answers import (
    AgentState,
    GiveLabels,
    GoBack,
    Merge,
    NextLabel,
    NextLabels,
    PilePicture,
    PileState,
    RefusedRequest,
    Remove,
    Rename,
    SectionPage,
    TeachingState,
    TestState,
    class_name,
    shown_name,
)
from osscl.serve.decoding import MOST_BYTES, Decoder, decode_upload, jpeg_to_show
from osscl.serve.folder import FolderContents, read_folder, unchanged_content
from osscl.serve.next_step import SERVE_FOLDER, LabelBook, label_pile
from osscl.serve.served_agent import ServedAgent
from osscl.serve.teaching import Teaching
from osscl.serve.views import SortedPile, judged_pile, newest_sorted, sorted_pile, tested_folder
from osscl.storage import atomic_write
from osscl.text import printable

MOST_PROBLEMS = 20  # listed
PATIENCE = 0.5  # seconds that a request waits for work that may be done soon
T = TypeVar("T")
Pile = tuple[FolderContents, SortedPile]


@dataclass(frozen=True)
class WorkState(Generic[T]):
    """The progress of the work."""

    version: str = ""
    phase: str = ""
    done: int = 0
    of: int = 0
    value: T | None = None
    error: str = ""


class BackgroundWork(Generic[T]):
    """Work that takes longer than a request: a value for the newest requested version, computed by one thread."""

    def __init__(self, work: "Callable[[WorkReports[T]], T]") -> None:
        self.work = work
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.is_running, self.is_outdated = False, False  # outdated: requested again while it runs
        self.now: WorkState[T] = WorkState()
        self.last: T | None = None  # the value to show: of an earlier version, or unfinished, if there is no better one

    def state(self, version: str) -> WorkState[T]:
        """The state of the work for this version, which is started if necessary."""
        with self.lock:
            if self.now.version != version and not self.is_running:
                self.now = WorkState(version)
                self.thread = threading.Thread(target=self._run, args=(version,), daemon=True)
                self.thread.start()
                self.is_running = True
            return self.now if self.now.version == version else WorkState(version)

    def again(self) -> None:
        """Repeat the work when it is next requested; if it is running, after it has finished."""
        with self.lock:
            if self.is_running:
                self.is_outdated = True
            else:
                self.now = WorkState()

    def wait(self, seconds: float) -> None:
        """Wait at most this long for running work to finish."""
        if self.thread is not None:
            self.thread.join(seconds)

    def _run(self, version: str) -> None:
        try:
            self.last = self.work(WorkReports(self, version))
            self._finish(WorkState(version, value=self.last))
        except UserError as error:
            self._finish(WorkState(version, error=str(error)))
        except BaseException:
            self._finish(WorkState(version, error="an unexpected error occurred; see the terminal of `osscl serve`"))
            raise

    def _finish(self, end: WorkState[T]) -> None:
        with self.lock:
            self.now = WorkState() if self.is_outdated else end
            self.is_running, self.is_outdated = False, False


@dataclass(frozen=True)
class WorkReports(Generic[T]):
    """Reports of running work."""

    of: BackgroundWork[T]
    version: str

    def phase(self, name: str) -> ReadProgress:
        """A new phase, and a function that reports how far it is."""

        def count(done: int, of: int) -> None:
            self.of.now = WorkState(self.version, name, done, of)

        count(0, 0)
        return count

    def show(self, value: T) -> None:
        """A preliminary value."""
        self.of.last = value


class ServerState:
    """One agent, its folders, and the actions of the page on them."""

    def __init__(self, folder: Path, pile: Path | None, test: Path | None, device: str = "auto") -> None:
        for place in (pile, test):
            if place is not None and not place.is_dir():
                raise UserError(f"{place} is not a folder")
            if place is not None and place.resolve().is_relative_to(folder.resolve()):
                raise UserError(f"{place} must be outside the agent's folder {folder}: give a folder of pictures")
        self.folder, self.own, self.decoder = folder, folder / SERVE_FOLDER, Decoder()
        self.served = ServedAgent(folder, self.decoder, device)
        self.own.mkdir(exist_ok=True)
        self.pile_folder, self.test_folder = pile, test
        self.labels = LabelBook(self.own)
        self.teaching = Teaching(folder, pile, test, device)
        self.pile: BackgroundWork[Pile] = BackgroundWork(self._sort_pile)
        self.test: BackgroundWork[TestState] = BackgroundWork(self._run_test)
        self.teaching.resume()

    def open(self) -> None:
        """Start the work that the first request would otherwise wait for."""
        if self.pile_folder is not None:
            self.pile.state(self.served.agent().version)
        for work in (self.decoder.start, self.served.warm_up):
            threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        self.teaching.leave()
        self.decoder.close()

    # ----- the agent

    def agent_state(self) -> AgentState:
        agent = self.served.agent()
        settings = agent.learner.settings
        return AgentState(
            printable(self.folder.resolve().name), agent.version, self.served.classes(), self.served.history(),
            self.served.earlier(), settings.encoder, settings.memory, round(100 * settings.reject, 2),
            self.served.left_out(), self.pile_folder is not None, self.test_folder is not None,
            warnings_of(agent.learner),
        )  # fmt: skip

    def rename(self, given: Rename) -> AgentState:
        new = class_name(given.new)
        return self._edited(lambda: self.served.edit(lambda classifier: classifier.rename(given.old, new)))

    def merge(self, given: Merge) -> AgentState:
        return self._edited(lambda: self.served.edit(lambda classifier: classifier.merge(given.gone, given.into)))

    def remove(self, given: Remove) -> AgentState:
        return self._edited(lambda: self.served.edit(lambda classifier: classifier.remove(given.name)))

    def go_back(self, given: GoBack) -> AgentState:
        return self._edited(lambda: self.served.go_back(given.model))

    def _edited(self, change: Callable[[], None]) -> AgentState:
        self.teaching.require_idle()
        change()
        return self.agent_state()

    # ----- the pile

    def _sort_pile(self, reports: WorkReports[Pile]) -> Pile:
        assert self.pile_folder is not None
        agent, judged = self.served.agent(), None

        def show_part(contents: FolderContents, part: SortedPile) -> None:
            if self.pile.last is None or not self.pile.last[1].is_grouped:
                reports.show((contents, part))

        def show_earlier(contents: FolderContents) -> bool:
            """Show the pile as an earlier model sorted it; returns whether such a pile is shown."""
            earlier = newest_sorted(self.own) if self.pile.last is None else None
            found = None if earlier is None else earlier.among(contents)
            if found:
                reports.show((contents, found))
            return self.pile.last is not None and self.pile.last[1].is_grouped

        def show_early(contents: FolderContents) -> None:
            nonlocal judged
            if len(contents) and not show_earlier(contents):
                judged = judged_pile(agent, contents, judged, show=partial(show_part, contents))

        index, reading = self.own / "pile.json", reports.phase("reading")
        contents = read_folder(self.pile_folder, index, agent.learner, reading, as_read=show_early)
        if not len(contents):
            raise DataError(f"{self.pile_folder} contains no readable pictures")
        show_earlier(contents)
        show = partial(show_part, contents)
        return contents, sorted_pile(self.own, agent, contents, reports.phase("sorting"), show, judged)

    def pile_state(self) -> PileState:
        if self.pile_folder is None:
            return PileState("none")
        version = self.served.agent().version
        now = self.pile.state(version)
        if now.value is None and not now.error:
            self.pile.wait(PATIENCE)
            now = self.pile.state(version)
        if now.error:
            return PileState("failed", error=now.error)
        state: Any = "ready" if now.value is not None else now.phase or "reading"
        if (shown := now.value or self.pile.last) is None:
            return PileState(state, now.done, now.of)
        contents, made = shown
        problems = [printable(text) for text in contents.problems[:MOST_PROBLEMS]]
        sections = [made.section(id) for id in made.sections]
        return PileState(
            state, now.done, now.of, made.version, made.is_grouped, len(contents), sections, problems,
            len(contents.problems),
        )  # fmt: skip

    def _ready_pile(self) -> Pile:
        if self.pile_folder is None:
            raise RefusedRequest(404, "no pile is served: start the server with --pile DIR")
        self.pile.state(self.served.agent().version)
        if self.pile.last is None:
            raise RefusedRequest(404, "the pile is still being read")
        return self.pile.last  # as the previous model sorted it, until a newer one has done so

    def section(self, id: str, start: int, count: int) -> SectionPage:
        contents, made = self._ready_pile()
        if id not in made.sections:
            raise RefusedRequest(404, "there is no such section; the pile may have been sorted again")
        rows = made.sections[id].rows[start : start + count]
        keys = [made.keys[row] for row in rows]
        learned, waiting = self.served.agent().learned_as(keys), self.labels.read()
        pictures = [
            PilePicture(
                key, printable(contents.files[contents.places[key]]), made.classes[int(made.label[row])],
                round(float(made.probability[row]), 4), round(100 * float(made.score[row]), 1), was,
                waiting[key].name if key in waiting else None,
            )
            for row, key, was in zip(rows, keys, learned, strict=True)
        ]  # fmt: skip
        return SectionPage(made.section(id), made.version, start, pictures)

    def picture(self, key: str, *, large: bool) -> bytes:
        """A picture of the pile, or one that waits for the next step, as a JPEG."""
        cached = cache_dir() / "thumbnails" / key[:2] / f"{key}.jpg"
        path = self._path_of(key)
        if not large and cached.is_file():
            return cached.read_bytes()
        try:
            jpeg = self.decoder.run(jpeg_to_show, unchanged_content(path, key), path.name, large)
        except DataError:
            raise RefusedRequest(404, "the picture can no longer be read") from None
        if not large:
            with contextlib.suppress(OSError), atomic_write(cached) as draft:
                draft.write_bytes(jpeg)
        return jpeg

    def _path_of(self, key: str) -> Path:
        """The file of a picture: only of the pile, or of a label that waits."""
        waiting = self.labels.upload(key)
        if waiting.is_file() and not waiting.is_symlink():
            return waiting
        path = self._ready_pile()[0].path_of(key)
        if path is None:
            raise RefusedRequest(404, "there is no such picture")
        return path

    # ----- the next step

    def label(self, given: GiveLabels) -> NextLabels:
        contents, _ = self._ready_pile()
        files = {
            key: printable(contents.files[contents.places[key]]) for key in given.pictures if key in contents.places
        }
        self.labels.add(label_pile(self._new_name(given.name), given.pictures, files))
        return self.labels.shown()

    def _new_name(self, text: str) -> str:
        """A name to teach; refused if it differs from a class only in capitalization, which is a likely typo."""
        name = class_name(text)
        known = [*self.served.agent().classifier.class_names, *(one.name for one in self.labels.read().values())]
        if twin := next((one for one in known if one != name and one.casefold() == name.casefold()), None):
            raise UserError(f"{name} differs from {twin} only in capitalization: use {twin}, or another name")
        return name

    def label_uploads(self, name: str, uploads: list[tuple[str | None, bytes]]) -> NextLabels:
        """Keep uploaded pictures for the next step; one that cannot be read is refused."""
        name, found = self._new_name(name), dict[str, bytes]()
        labels = []
        for file, content in uploads:
            shown = shown_name(file)
            if len(content) > MOST_BYTES:
                raise RefusedRequest(413, f"{shown} is larger than {MOST_BYTES >> 20} MB")
            self.decoder.run(decode_upload, content, shown, 8)
            key = file_key(content).hex()
            found[key] = content
            labels.append(NextLabel(key, name, shown, "upload"))
        self.labels.add(labels, found)
        return self.labels.shown()

    def teach(self) -> TeachingState:
        contents = self.served.agent().classifier.contents
        return self.teaching.start([*self.labels.read().values()], contents)

    # ----- the test

    def _run_test(self, reports: WorkReports[TestState]) -> TestState:
        assert self.test_folder is not None
        return tested_folder(self.own, self.served.agent(), self.test_folder, reports.phase("reading"))

    def test_state(self) -> TestState:
        if self.test_folder is None:
            return TestState("none")
        version = self.served.agent().version
        now = self.test.state(version)
        if now.value is None and not now.error:
            self.test.wait(PATIENCE)
            now = self.test.state(version)
        if now.error:
            return TestState("failed", error=now.error)
        return now.value or TestState("reading", now.done, now.of)


def warnings_of(learner: PhotoLearner) -> list[str]:
    """Warnings about the pictures that the agent keeps."""
    assert learner.knowledge is not None
    if learner.settings.memory == 0:
        return ["This agent was made with --memory 0 and keeps no pictures, so it cannot show examples."]
    if not any(learner.knowledge.kept_examples):
        return ["This agent was saved before example pictures were kept; pictures taught from now on are shown."]
    return []
