"""Start, watch and stop the one step that may be taught at a time, across restarts of the server."""

import asyncio
import json
import secrets
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path

from osscl.agent.store import contents_of
from osscl.config import from_plain
from osscl.errors import UserError
from osscl.runs.model import read_entry
from osscl.serve.answers import NextLabel, RefusedRequest, TeachingState
from osscl.serve.next_step import SERVE_FOLDER, PendingStep, write_status
from osscl.storage import is_locked, read_sealed, write_text
from osscl.text import counted

SECONDS_BETWEEN_EVENTS = 0.2
SECONDS_BETWEEN_SIGNS = 10.0  # between keep-alive messages, while nothing changes
IDLE = TeachingState("idle")


class Teaching:
    """The teaching of one agent. The step is on disk before it starts, so that a killed server resumes it."""

    def __init__(self, folder: Path, pile: Path | None, test: Path | None, device: str = "auto") -> None:
        self.folder, self.own, self.device = folder, folder / SERVE_FOLDER, device
        self.pile, self.test = (None if path is None else str(path.resolve()) for path in (pile, test))
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.restarted = ""  # id of a step whose process was killed and started again

    def resume(self) -> None:
        """Resume a step that a killed server left unfinished; refuse one that was started with other folders."""
        step = PendingStep.read(self.own)
        if step is None:
            return
        if (step.pile or self.pile) != self.pile or (step.test or self.test) != self.test:
            asked = " ".join(
                f"--{name} {path}" for name, path in (("pile", step.pile), ("test", step.test)) if path is not None
            )
            raise UserError(f"a step of this agent was interrupted: start the server with {asked} to resume it")
        with self.lock:
            if not is_locked(self.own / "teaching"):
                self._launch(step)

    def start(self, labels: list[NextLabel], before: list[str]) -> TeachingState:
        """Store the step and start it; refused while another one runs."""
        if not labels:
            raise UserError("nothing to teach yet: name a group, or correct an answer")
        with self.lock:
            self._require_idle()
            if is_locked(self.folder):
                raise RefusedRequest(
                    409, "another program is teaching this agent: wait until it has finished", running=None
                )
            step = PendingStep(secrets.token_hex(8), tuple(labels), self.pile, self.test, tuple(before))
            step.forget(self.own)
            step.write(self.own)
            self._launch(step)
            return step.state

    def _launch(self, step: PendingStep) -> None:
        write_status(self.own, step.state)
        command = [sys.executable, "-m", "osscl.serve.teach_process", str(self.folder), self.device]
        with (self.own / "teach.log").open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def require_idle(self) -> None:
        """Refuse a change while a step is taught."""
        with self.lock:
            self._require_idle()

    def _require_idle(self) -> None:
        now = self._state()
        if now.state == "running":
            words = f"{counted(now.pictures, 'picture')} of {', '.join(now.classes)}"
            raise RefusedRequest(409, f"the agent is being taught {words}: wait, or stop it", running=asdict(now))

    def state(self) -> TeachingState:
        """The state of the running step, or how the last one ended."""
        with self.lock:
            return self._state()

    def _state(self) -> TeachingState:
        try:
            found = from_plain(TeachingState, read_sealed(self.own / "status.json"))
        except (OSError, ValueError, TypeError, KeyError, UserError):
            return IDLE
        if found.state != "running":
            return found
        if self.process is None and not is_locked(self.own / "teaching"):  # a process of an earlier server was killed
            if (step := PendingStep.read(self.own)) is None:
                return IDLE
            self._launch(step)
        if self.process is not None and self.process.poll() is not None:
            return self._ended()
        return replace(found, stopping=(self.own / "stop").exists())

    def _ended(self) -> TeachingState:
        """The state after the process has ended: the last one it wrote, or failed if it was killed. A process that was
        killed after saving a part of the step is started again."""
        assert self.process is not None
        found = from_plain(TeachingState, read_sealed(self.own / "status.json"))
        if found.state == "running" and (step := PendingStep.read(self.own)) is not None and self._is_restartable(step):
            self.restarted = step.id
            self._launch(step)
            return step.state
        if found.state == "running":
            why = "the teaching process ended unexpectedly; the labels are kept; see teach.log for details"
            found = replace(found, state="failed", phase="", error=why)
            write_status(self.own, found)
            if (step := PendingStep.read(self.own)) is not None:
                step.forget(self.own)
        return found

    def _is_restartable(self, step: PendingStep) -> bool:
        """Whether to start the step again: the agent has learned a part of it, whose labels would not be new in another
        step. Only once, so that a process that always fails is reported."""
        there = contents_of(read_entry(self.folder, tensors=False))
        return there != [*step.before] and self.restarted != step.id

    def stop(self) -> TeachingState:
        """Ask the step to stop: the agent stays as it was, and the labels are kept."""
        with self.lock:
            now = self._state()
            if now.state != "running":
                raise RefusedRequest(409, "nothing is being taught", running=None)
            write_text(self.own / "stop", "")
            return replace(now, stopping=True)

    def dismiss(self) -> TeachingState:
        """Clear the result of the last step."""
        with self.lock:
            self._require_idle()
            (self.own / "status.json").unlink(missing_ok=True)
            return IDLE

    def leave(self) -> None:
        """Stop the step together with the server; the next server resumes it."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events: the state whenever it changes, until nothing runs."""
        last, quiet = "", 0.0
        while True:
            now = self.state()
            text = json.dumps(asdict(now))
            if text != last:
                yield f"event: teaching\ndata: {text}\n\n"
                last, quiet = text, 0.0
            elif quiet >= SECONDS_BETWEEN_SIGNS:
                yield ": still there\n\n"
                quiet = 0.0
            if now.state != "running":
                return
            await asyncio.sleep(SECONDS_BETWEEN_EVENTS)
            quiet += SECONDS_BETWEEN_EVENTS
