"""The page of an agent: its classes, steps, accuracy compared with the baselines, and what it calls unknown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from markupsafe import Markup

from osscl import __version__
from osscl.agent.knowledge import Knowledge
from osscl.agent.store import LearnedStep, history_of
from osscl.data.pictures import data_url
from osscl.report.formats import Column, Number, ResultTable, environment, to_html
from osscl.report.page import page_part
from osscl.text import counted

PICTURES = 1_500_000  # bytes of JPEG on a page
PER_CLASS = 6
BINS = 30


@dataclass(frozen=True)
class ClassCard:
    """A class as the page shows it."""

    name: str
    facts: str
    pictures: tuple[str, ...]  # data URIs


def build_agent_page(entry: Mapping[str, Any], name: str) -> str:
    """The page of an agent's stored model; `name` is that of its folder."""
    history, classes = history_of(entry), [str(one) for one in entry["class_names"]]
    knowledge = Knowledge.from_state(entry["knowledge"]) if "knowledge" in entry else None
    return environment().get_template("agent.html").render(
        name=name,
        conclusion=agent_conclusion(history, classes, knowledge),
        cards=class_cards(classes, history, knowledge),
        without_pictures=why_no_pictures(knowledge),
        steps=Markup(to_html(step_table(history), "cards")),
        calibration=calibration_words(entry, knowledge),
        data=step_numbers([step for step in history if not step.edit]) | calibration_numbers(entry, knowledge),
        css=page_part("page.css"),
        charts=page_part("charts.js"),
        theme=page_part("theme.js"),
        version=__version__,
    )  # fmt: skip


def agent_conclusion(history: Sequence[LearnedStep], classes: Sequence[str], knowledge: Knowledge | None = None) -> str:
    """How much it knows, and how well it does on labelled images that were left out."""
    steps = [step for step in history if not step.edit]
    labeled = sum(step.labeled for step in steps) if knowledge is None else round(float(knowledge.sums.counts.sum()))
    learned = f"{counted(len(steps), 'step')} and {counted(labeled, 'labelled image')}"
    known = f"{counted(len(classes), 'class', 'classes')} after {learned}"
    choices = [step.measured for step in history if step.measured is not None]
    if not choices:
        return f"The agent knows {known}. Its accuracy was not measured; osscl inspect --on DIR measures it."
    last = choices[-1]
    gap = last.agent - last.class_means
    beside = f"{abs(gap):.1f} points {'above' if gap > 0 else 'below'}" if abs(gap) >= 0.05 else "level with"
    return (
        f"The agent knows {known}. It names {last.agent:.1f} % of {counted(last.tried, 'labelled image')} correctly "
        f"when each is left out, {beside} the nearest class mean ({last.class_means:.1f} %)."
    )


def class_cards(classes: Sequence[str], history: Sequence[LearnedStep], knowledge: Knowledge | None) -> list[ClassCard]:
    """Every class: the step it came with, its labelled images, and pictures of those in memory."""
    since = {name: i for i, step in reversed([*enumerate(history, start=1)]) for name in step.classes}
    counts: dict[str, int] = {}
    if knowledge is not None:
        counts = dict(zip(knowledge.sums.names, map(int, knowledge.sums.counts.tolist()), strict=True))
    pictures = example_pictures(knowledge)
    cards = []
    for name in classes:
        labeled = counted(counts[name], "labelled image") if name in counts else None
        step = f"since step {since[name]}" if name in since else None  # a renamed class came with none
        facts = ", ".join(word for word in (labeled, step) if word)
        cards.append(ClassCard(name, facts, tuple(map(data_url, pictures.get(name, ())))))
    return cards


def example_pictures(knowledge: Knowledge | None, budget: int = PICTURES) -> dict[str, list[bytes]]:
    """JPEGs by class: a first one of each, then a second, within the budget."""
    if knowledge is None:
        return {}
    waiting: dict[str, list[bytes]] = {}
    for name, jpeg in zip(knowledge.kept_labels, knowledge.kept_examples, strict=True):
        if jpeg:
            waiting.setdefault(name, []).append(jpeg)
    shown: dict[str, list[bytes]] = {}
    for place in range(PER_CLASS):
        for name, jpegs in waiting.items():
            if place < len(jpegs) and (budget := budget - len(jpegs[place])) >= 0:
                shown.setdefault(name, []).append(jpegs[place])
    return shown


def why_no_pictures(knowledge: Knowledge | None) -> str | None:
    """The reason why there are no pictures; None if there are."""
    if knowledge is None:
        return "Only agents with a pretrained encoder keep pictures; this one trains its own network."
    if not knowledge.kept_labels:
        return "This agent has no memory (--memory 0), so it keeps no pictures."
    if not any(knowledge.kept_examples):
        return "This agent was made by a version that did not keep pictures. Those of new labelled images will be kept."
    return None


def step_table(history: Sequence[LearnedStep]) -> ResultTable:
    """What each step added, and the accuracy on left-out images next to that of the baselines."""
    columns = (
        Column("step", "number"), Column("classes"), Column("labelled", "number"), Column("unlabelled", "number"),
        Column("look known", "number"), Column("agent %", "mean"), Column("class means %", "mean"),
        Column("discriminants %", "mean"), Column("seconds", "number"), Column("date"),
    )  # fmt: skip
    rows = []
    for i, step in enumerate(history, start=1):
        numbers = [None if value is None else Number(value) for value in step.accuracies]
        rows.append((i, step.words, *step.counts, *numbers, Number(step.seconds), step.minute))
    return ResultTable("Steps", columns, rows).without_empty_columns()


def calibration_words(entry: Mapping[str, Any], knowledge: Knowledge | None) -> str:
    if knowledge is None:
        return "This agent's threshold comes from its gate; the share of the pile that looks known is shown by step."
    reject = float(entry["settings"]["reject"])
    known = knowledge.unknown.known_scores()
    limit, scores = known.threshold(reject), len(known.scores)
    if limit is None:
        return "With fewer than two calibration scores no image is called unknown."
    below = int((known.scores < limit).sum())
    return (
        f"An image is called unknown when it scores lower than {100 * (1 - reject):g} % of known images. Of "
        f"{counted(scores, 'labelled image')}, each left out, {below} ({100 * below / scores:.1f} %) would be rejected."
    )


def calibration_numbers(entry: Mapping[str, Any], knowledge: Knowledge | None) -> dict[str, Any]:
    """A histogram of the scores of labelled images left out, and the threshold."""
    if knowledge is None:
        return {}
    known = knowledge.unknown.known_scores()
    limit = known.threshold(float(entry["settings"]["reject"]))
    if limit is None:
        return {}
    low, high = min(limit, float(known.scores.min())), max(limit, float(known.scores.max()))
    room = max(1e-6, 0.05 * (high - low))
    counts = torch.histc(known.scores, BINS, low - room, high + room).int().tolist()
    return {"scores": {"counts": counts, "interval": [low - room, high + room], "threshold": limit}}


def step_numbers(history: Sequence[LearnedStep]) -> dict[str, dict[str, list[float | None]]]:
    """What the page draws: accuracies in % and the share of the pile that looks known, by step."""
    names = "agent", "class means", "discriminants"
    accuracy = {name: [step.accuracies[i] for step in history] for i, name in enumerate(names)}
    known = [step.let_in / step.unlabeled if step.let_in is not None and step.unlabeled else None for step in history]
    drawn = {"accuracy": accuracy, "known": {"looks known": known}}
    return {
        name: some for name, some in drawn.items() if any(value is not None for line in some.values() for value in line)
    }
