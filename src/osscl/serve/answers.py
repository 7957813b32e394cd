"""Dataclasses that the endpoints of `osscl serve` take and return; the OpenAPI description is generated from them."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from osscl.errors import UserError
from osscl.text import printable

LONGEST_CLASS_NAME = 100  # characters
PictureId = Annotated[str, Field(pattern="^[0-9a-f]{32}$", description="The hash of a picture's content.")]
ClassName = Annotated[str, Field(min_length=1, max_length=LONGEST_CLASS_NAME)]


class RefusedRequest(Exception):
    """A request that is refused with a status, a sentence, and possibly further fields."""

    def __init__(self, status: int, sentence: str, **more: Any) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.more = status, sentence, more


def class_name(text: str) -> str:
    """A valid class name, without surplus spaces; only printable characters are allowed."""
    name = " ".join(text.split())
    if not name or not name.isprintable() or len(name) > LONGEST_CLASS_NAME:
        raise UserError(f"a class name must have 1 to {LONGEST_CLASS_NAME} characters, all of them printable")
    if name.startswith("group-") and name.removeprefix("group-").isdigit():
        raise UserError(f"{name} is the number of a group, not a class name: choose another name")
    return name


def shown_name(file: str | None) -> str:
    """The name of an uploaded file, safe to display."""
    last = (file or "").replace("\\", "/").rpartition("/")[2]
    return printable(last)[:200] or "picture"


@dataclass(frozen=True)
class Error:
    """Why a request was refused."""

    error: str  # one sentence


@dataclass(frozen=True)
class Busy:
    """Why a request has to wait."""

    error: str
    running: dict[str, Any] | None = None  # the teaching in progress


@dataclass(frozen=True)
class Guess:
    """A class and its probability."""

    name: str
    probability: float


@dataclass(frozen=True)
class NearestExample:
    """A labelled picture in memory that looks similar."""

    name: str
    picture: str  # address
    similarity: float  # cosine of the embeddings


@dataclass(frozen=True)
class Answer:
    """What the agent says about a picture."""

    id: str
    file: str
    known: bool
    known_percent: float  # share of known pictures that look less known
    top: list[Guess]
    nearest: list[NearestExample]
    learned_as: str | None  # the class it was taught as
    thumbnail: str  # a data URL
    note: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class LearnedClass:
    """A class of the agent."""

    name: str
    pictures: int  # labelled ones learned
    since: int | None  # step
    examples: list[str]  # addresses


@dataclass(frozen=True)
class Accuracy:
    """Accuracy in percent and that of the nearest class mean, on n pictures."""

    agent: float
    class_means: float
    n: int


@dataclass(frozen=True)
class HistoryStep:
    """One row of the agent's history."""

    number: int
    what: str
    labeled: int
    unlabeled: int
    looked_known: int | None
    left_out: Accuracy | None
    date: str
    is_edit: bool


@dataclass(frozen=True)
class EarlierModel:
    """A model to go back to."""

    name: str
    steps: int
    what: str  # its last step
    classes: list[str]


@dataclass(frozen=True)
class AgentState:
    """Everything that the page shows about the agent."""

    name: str
    version: str  # changes with the model
    classes: list[LearnedClass]
    history: list[HistoryStep]
    earlier: list[EarlierModel]
    encoder: str
    memory: int
    reject_percent: float
    left_out: Accuracy | None
    has_pile: bool
    has_test: bool
    warnings: list[str]


@dataclass(frozen=True)
class PileSection:
    """Pictures of the pile that look like one class, or like each other."""

    id: str
    kind: Literal["known", "group"]
    name: str
    count: int
    first: list[str]  # ids of the first pictures


@dataclass(frozen=True)
class PileState:
    """The state of the pile; while it is read and sorted, the result of an earlier model or what is known so far."""

    state: Literal["none", "reading", "sorting", "ready", "failed"]
    done: int = 0
    of: int = 0
    version: str = ""  # of the model that sorted it
    is_grouped: bool = True  # else unknown pictures are in one section until all have been sorted
    pictures: int = 0
    sections: list[PileSection] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0
    error: str = ""


@dataclass(frozen=True)
class PilePicture:
    """A picture of the pile."""

    id: str
    file: str
    name: str  # the most probable class
    probability: float
    known_percent: float
    learned_as: str | None
    label: str | None  # in the next step


@dataclass(frozen=True)
class SectionPage:
    """Some pictures of a section."""

    section: PileSection
    version: str  # of the model that sorted it
    start: int
    pictures: list[PilePicture]


@dataclass(frozen=True)
class NextLabel:
    """A picture of the next step."""

    id: str
    name: str
    file: str
    source: Literal["pile", "upload"]


@dataclass(frozen=True)
class NextLabels:
    """What the next step will teach."""

    labels: list[NextLabel]
    classes: dict[str, int]  # pictures of each


@dataclass(frozen=True)
class GiveLabels:
    """Label pictures of the pile."""

    name: ClassName
    pictures: Annotated[list[PictureId], Field(min_length=1, max_length=20_000)]


@dataclass(frozen=True)
class DropLabels:
    """Take pictures out of the next step; all of them if none is named."""

    pictures: Annotated[list[PictureId] | None, Field(max_length=20_000)] = None


@dataclass(frozen=True)
class Rename:
    """Give a class another name."""

    old: ClassName
    new: ClassName


@dataclass(frozen=True)
class Merge:
    """Merge a class into another one."""

    gone: ClassName
    into: ClassName


@dataclass(frozen=True)
class Remove:
    """Remove a class."""

    name: ClassName


@dataclass(frozen=True)
class GoBack:
    """Return to an earlier model."""

    model: Annotated[str, Field(min_length=1, max_length=100)]


@dataclass(frozen=True)
class ChangedAnswer:
    """A picture of the pile whose answer changed with a step; None means unknown."""

    id: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class StepResult:
    """What a step changed."""

    new_classes: list[str]
    further_classes: list[str]
    labeled: int
    relabeled: int
    left_out_before: Accuracy | None
    left_out_after: Accuracy | None
    test_before: Accuracy | None
    test_after: Accuracy | None
    pile: int  # pictures compared
    changed: int
    changes: list[ChangedAnswer]  # the first of them
    notes: list[str]


@dataclass(frozen=True)
class TeachingState:
    """The step that is being taught, or the last one."""

    state: Literal["idle", "running", "finished", "stopped", "failed"]
    step: str = ""  # id
    phase: str = ""
    done: int = 0
    of: int = 0
    pictures: int = 0
    classes: list[str] = field(default_factory=list)
    stopping: bool = False
    result: StepResult | None = None
    error: str = ""


@dataclass(frozen=True)
class TestedClass:
    """A class of the test folder."""

    name: str
    learned: bool
    n: int
    right_percent: float | None
    known_percent: float


@dataclass(frozen=True)
class TestState:
    """Accuracy and confusion on the test folder."""

    state: Literal["none", "reading", "ready", "failed"]
    done: int = 0
    of: int = 0
    accuracy: Accuracy | None = None
    auroc: float | None = None
    others: int = 0  # pictures of classes that were not learned
    others_known_percent: float | None = None
    learned_pictures: int = 0  # test pictures that were also taught
    classes: list[TestedClass] = field(default_factory=list)
    predicted: list[str] = field(default_factory=list)  # columns of the confusion
    confusion: list[list[int]] = field(default_factory=list)  # a row for each of `classes`
    error: str = ""
