"""The process that teaches one step of `osscl serve`; starting it again resumes the step."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from osscl.agent.embeddings import Embedded
from osscl.errors import Stopped, UserError
from osscl.serve.answers import ChangedAnswer, NextLabel, StepResult, TestState
from osscl.serve.folder import FolderContents, is_inside, read_folder
from osscl.serve.next_step import SERVE_FOLDER, LabelBook, PendingStep, Reporter, write_status
from osscl.serve.served_agent import LoadedAgent, left_out_accuracy, version_of
from osscl.serve.views import SortedPile, read_sorted, sorted_pile, tested_folder
from osscl.storage import locked

MOST_CHANGES = 200  # pictures listed that changed their answer


def teach_pending(folder: Path, device: str = "auto") -> None:
    """Teach the step that is stored in the agent's folder."""
    own = folder / SERVE_FOLDER
    with locked(own / "teaching"):
        step = PendingStep.read(own)
        if step is None:
            return
        reporter = Reporter(own, step.state)
        try:
            result = _taught(folder, own, step, reporter, device)
        except Stopped:
            write_status(own, replace(reporter.state, state="stopped", phase="", stopping=False))
        except UserError as error:
            write_status(own, replace(reporter.state, state="failed", phase="", error=str(error)))
        else:
            LabelBook(own).forget([*step.labels])
            write_status(own, replace(reporter.state, state="finished", phase="", result=result))
        step.forget(own)


def _taught(folder: Path, own: Path, step: PendingStep, reporter: Reporter, device: str) -> StepResult:
    reporter.phase("reading the agent")
    agent = LoadedAgent.read(folder, device)
    pile = _read_pile(own, step, agent, reporter)
    is_resumed = agent.classifier.contents != [*step.before]
    before = _judged_before(own, step) if is_resumed else _judged(own, step, agent, pile, reporter)
    notes = _learn(folder, own, step, agent, pile, reporter)
    reporter.can_stop = False
    after_agent = LoadedAgent.read(folder, device)
    after = _judged(own, step, after_agent, pile, reporter)
    history = after_agent.classifier.history
    steps = [one for one in history[len(step.before) :] if not one.edit]
    changes = _changes(before[0], after[0])
    return StepResult(
        new_classes=[name for one in steps for name in one.classes],
        further_classes=[name for one in steps for name in one.further],
        labeled=sum(one.labeled for one in steps),
        relabeled=sum(bool(one.edit) for one in history[len(step.before) :]),
        left_out_before=left_out_accuracy(history[: len(step.before)]),
        left_out_after=left_out_accuracy(history),
        test_before=before[1].accuracy if before[1] is not None else None,
        test_after=after[1].accuracy if after[1] is not None else None,
        pile=len(after[0].keys) if before[0] is not None and after[0] is not None else 0,
        changed=len(changes),
        changes=changes[:MOST_CHANGES],
        notes=notes,
    )


Judged = tuple[SortedPile | None, TestState | None]


def _read_pile(own: Path, step: PendingStep, agent: LoadedAgent, reporter: Reporter) -> FolderContents | None:
    if step.pile is None:
        return None
    return read_folder(Path(step.pile), own / "pile.json", agent.learner, reporter.phase("reading the pile"))


def _judged(
    own: Path, step: PendingStep, agent: LoadedAgent, pile: FolderContents | None, reporter: Reporter
) -> Judged:
    """What a model says about the pile and the test folder."""
    test = None
    if step.test is not None:
        test = tested_folder(own, agent, Path(step.test), reporter.phase("testing"))
    if pile is None:
        return None, test
    return sorted_pile(own, agent, pile, reporter.phase("comparing answers")), test


def _judged_before(own: Path, step: PendingStep) -> Judged:
    """What the previous model predicted, if the process was killed after it had saved the new model."""
    return read_sorted(own / f"pile-{version_of([*step.before])}"), None


def _learn(
    folder: Path, own: Path, step: PendingStep, agent: LoadedAgent, pile: FolderContents | None, reporter: Reporter
) -> list[str]:
    """Learn the labelled pictures, and correct those that were learned as another class; returns notes.

    The agent may have been saved before the process was killed, and with only some of the corrections. What is left to
    do is therefore computed from what the agent has learned."""
    classifier, learner = agent.classifier, agent.learner
    done = [one.content for one in classifier.history[len(step.before) :]]
    files, labels, notes = _labelled_files(own, step, pile)
    if not files and done and _has_learned_any(agent, step):
        return notes  # killed after the labels were forgotten, and uploaded pictures with them
    if not files:
        raise UserError("none of the labelled pictures exists any longer")
    found = learner.embed(files, reporter.phase("reading labelled pictures"))
    notes += [one.reason for one in found.skipped]
    files, labels = [files[i] for i in found.indices], [labels[i] for i in found.indices]
    _require_unchanged(found, labels)
    names, learned = [one.name for one in labels], agent.learned_as([one.id for one in labels])
    given = learner.step(found, names, pile.found if pile is not None else _nothing(found))
    has_new = None in learned and given.content not in done
    wrong = [(file, name) for file, name, was in zip(files, names, learned, strict=True) if was not in (None, name)]
    if not has_new and not wrong:
        if not done:
            raise UserError("nothing new: all of these pictures have already been learned")
        return notes
    reporter.phase("learning")
    with classifier.saving_to(folder):
        if has_new:
            classifier.update_step(given)
        for file, name in wrong:
            classifier.relabel(file, name)
    return notes


def _has_learned_any(agent: LoadedAgent, step: PendingStep) -> bool:
    learned = agent.learned_as([one.id for one in step.labels])
    return any(one.name == was for one, was in zip(step.labels, learned, strict=True))


def _require_unchanged(found: Embedded, labels: Sequence[NextLabel]) -> None:
    for row, one in zip(found.rows, labels, strict=True):
        if found.store.key(int(row)).hex() != one.id:
            raise UserError(f"{one.file} has changed since it was labelled: label it again")


def _labelled_files(
    own: Path, step: PendingStep, pile: FolderContents | None
) -> tuple[list[Path], list[NextLabel], list[str]]:
    """The file of each label; labels whose picture is gone are listed in notes."""
    files, labels, notes = list[Path](), list[NextLabel](), list[str]()
    for one in step.labels:
        path = LabelBook(own).upload(one.id) if one.source == "upload" else pile.path_of(one.id) if pile else None
        if path is not None and path.is_file() and (one.source == "pile" or is_inside(own, path)):
            files.append(path)
            labels.append(one)
        else:
            notes.append(f"{one.file}: no longer exists")
    return files, labels, notes


def _nothing(found: Embedded) -> Embedded:
    return replace(found, indices=found.indices[:0], rows=found.rows[:0], skipped=(), notes=())


def _changes(before: SortedPile | None, after: SortedPile | None) -> list[ChangedAnswer]:
    """Pictures of the pile whose answer changed; a renamed or merged class does not occur in a step."""
    if before is None or after is None:
        return []
    place = {key: row for row, key in enumerate(before.keys)}
    pairs = [(key, before.answer(place[key]), after.answer(row)) for row, key in enumerate(after.keys) if key in place]
    return [ChangedAnswer(key, was, now) for key, was, now in pairs if was != now]


def main(arguments: Sequence[str]) -> None:
    folder, device = arguments
    teach_pending(Path(folder), device)


if __name__ == "__main__":
    main(sys.argv[1:])
