"""Tables 4 to 6 and 9 to 18 of the paper and its two figures of the gate."""

from collections.abc import Mapping
from dataclasses import replace

from osscl.experiments.cells import Cell, Measure, Published, Table, with_plus
from osscl.experiments.published import ABLATION, SELECTION
from osscl.stream.scenario import ScenarioSpec

Pair = tuple[float, float]
Changes = tuple[str, ...]

INFERRED = "P and |M| are not stated; inferred from the cell that another table has too"
ONLY_SUPERVISED = (
    "only-supervised is Co2L's cell of T2; beside it URSL with an empty U_t, which the paper does not have"
)


def variants(values: Mapping[str, tuple[Pair, Changes]], scenario: ScenarioSpec = ABLATION) -> tuple[Cell, ...]:
    """One scenario, a row for each change of URSL."""
    cells = [Cell(row, "ursl", scenario, "ursl", changes, Published(*pair)) for row, (pair, changes) in values.items()]
    return with_plus(cells)


def worlds(values: Mapping[str, tuple[Pair, ScenarioSpec]]) -> tuple[Cell, ...]:
    """URSL as it stands, a row for each scenario."""
    cells = [Cell(row, "ursl", scenario, "ursl", (), Published(*pair)) for row, (pair, scenario) in values.items()]
    return with_plus(cells)


def amounts(related: int, unrelated: int) -> ScenarioSpec:
    """The ablations' scenario with other numbers of unlabelled images a step."""
    return replace(ABLATION, related=related, unrelated=unrelated)


def regime(name: str, **fields: object) -> ScenarioSpec:
    """The ablations' scenario with another choice of what appears when; numbers of images as the regime has them."""
    return replace(ABLATION, regime=name, related=None, unrelated=None, **fields)  # type: ignore[arg-type]


ONLY_LABELS = (
    Cell("only-supervised", "co2l", ABLATION, "co2l", published=Published(15.9, 0.2)),
    Cell("only-supervised", "ursl", regime("only_supervised"), "ursl"),
)

T4 = Table("T4", "what each loss is for", variants({
    "without-sup": ((25.7, 0.2), ("learner.sup=0",)),
    "without-td": ((28.4, 0.7), ("learner.gamma=0",)),
    "without-kd": ((28.9, 0.4), ("learner.lam=0",)),
    "only-sup": ((19.1, 0.9), ("learner.gamma=0", "learner.lam=0")),
    "only-kd": ((28.2, 0.9), ("learner.sup=0", "learner.gamma=0")),
    "all-losses": ((30.4, 0.2), ()),
}), ("a row drops loss terms alone; the sets that the gate makes stay as they are",))  # fmt: skip

T5 = Table("T5", "what segregation is for", variants({
    "variant1": ((20.7, 1.2), ("gate.pseudo=none", "gate.guide=all")),
    "variant2": ((24.5, 0.4), ("gate.pseudo=none",)),
    "variant3": ((29.2, 0.5), ("gate.guide=all",)),
    "variant4": ((30.4, 0.2), ()),
}), (
    "T-hat for L_sup and L_TD in variants 3 and 4, U-hat for L_KD in variants 2 and 4, else all of U_t",
    "T-hat holds rows of past classes alone, for the text says that pseudo-labels are not used directly",
), ("the paper's text compares other pairs than those in which T-hat differs, which are 1-3 and 2-4",))  # fmt: skip


def minutes(row: str, column: str, measure: Measure, published: float) -> Cell:
    return Cell(row, column, ABLATION, row, (), Published(published), measure)


T6 = Table("T6", "minutes a task, lower is better", with_plus((
    minutes("co2l-j", "task", "minutes", 12),
    minutes("co2l-p", "pretraining", "pretraining", 63),
    minutes("co2l-p", "task", "learner", 6.5),
    minutes("gd", "task", "minutes", 8.5),
    minutes("dm", "task", "minutes", 14.5),
    minutes("ursl", "reference", "later reference", 15.75),
    minutes("ursl", "learner", "learner", 12),
)), ("the reference's minutes are those of a step after the first",), (
    "the paper's minutes are those of one RTX 3080 Ti; ours are those of the device that is named",
    "the caption says a task, the text an epoch: the caption is right, by the ratio of 63 to 15.75",
    "a step after the first is 100 epochs of the reference in the paper",
))  # fmt: skip

T9 = Table("T9", "unlabelled images of classes to come, or of past ones, alone", (
    *ONLY_LABELS,
    *worlds({
        "after": ((19.1, 0.8), regime("after", peripheral=())),
        "before": ((20.0, 0.1), regime("before", peripheral=())),
    }),
), (
    "after: classes of this step and later ones; before: of earlier ones, and at the first step of this one",
    ONLY_SUPERVISED,
), (
    "the caption names cifar10 as peripheral, the text says that nothing is unrelated: there is no peripheral set",
    "U_t holds at most 9000 images, fewer where fewer are there",
), short="only classes to come, or past")  # fmt: skip

T10 = Table("T10", "unlabelled images that are all related, or all unrelated", (
    *ONLY_LABELS,
    *worlds({
        "only-unrelated": ((19.6, 0.5), regime("only_unrelated")),
        "only-related": ((29.4, 0.5), regime("only_related")),
        "osscl": ((30.4, 0.2), ABLATION),
    }),
), (ONLY_SUPERVISED,), ("sizes are not stated: 0-9000 and 9000-0, by the trend of T12",),
    short="only related or unrelated images")  # fmt: skip

T11 = Table("T11", "a part of the main classes in each U_t", (
    *ONLY_LABELS,
    *worlds({
        "25-percent": ((24.9, 0.6), regime("non_iid", class_share=0.25)),
        "50-percent": ((27.4, 0.7), regime("non_iid", class_share=0.5)),
        "osscl": ((30.4, 0.2), ABLATION),
    }),
), (
    "classes are drawn anew at each step, from all of the main set; the related images are of them",
    ONLY_SUPERVISED,
), short="a part of the main classes")  # fmt: skip

T12 = Table("T12", "numbers of related and unrelated images a step", worlds({
    "1000-9000": ((21.0, 1.1), amounts(1000, 9000)),
    "4500-4500": ((26.8, 0.5), amounts(4500, 4500)),
    "4500-9000": ((27.0, 0.6), amounts(4500, 9000)),
    "9000-4500": ((30.0, 0.7), amounts(9000, 4500)),
    "9000-9000": ((30.4, 0.2), amounts(9000, 9000)),
}), short="amounts of unlabelled images")  # fmt: skip

T13 = Table("T13", "several peripheral sets", worlds({
    row: (pair, replace(ABLATION, peripheral=peripheral)) for row, pair, peripheral in (
        ("cifar10", (30.4, 0.2), ("cifar10",)),
        ("tinyimagenet", (30.4, 0.6), ("cifar10", "tinyimagenet")),
        ("caltech256", (31.4, 0.3), ("cifar10", "caltech256")),
        ("both", (31.6, 0.7), ("cifar10", "tinyimagenet", "caltech256")),
    )
}), ("a row adds its set to the first row's",), (
    "9000 images of each set a step",
    "the text adds them to T_t; U_t is meant",
    INFERRED,
))  # fmt: skip


def networks(reference: str, learner: str) -> Changes:
    nets = f"reference.net.backbone={reference}", f"learner.net.backbone={learner}"
    return ("reference.batch=128", "learner.batch=128", *nets)


T14 = Table("T14", "other networks, batches of 128", (
    *variants({
        "resnet18-resnet18": ((31.2, 1.0), networks("resnet18", "resnet18")),
        "resnet34-resnet18": ((31.4, 0.6), networks("resnet34", "resnet18")),
        "resnet18-wrn-40-2": ((30.7, 0.5), networks("resnet18", "wrn-40-2")),
        "resnet50-wrn-28-10": ((31.1, 0.2), networks("resnet50", "wrn-28-10")),
    }),
    Cell("resnet18-resnet18", "ursl-plus", ABLATION, "ursl-plus", networks("resnet18", "resnet18")),
), ("a row names reference and learner",), (
    "at batch 128 the paper's URSL is 31.2 ± 1.0, at 512 30.4 ± 0.2: its differences are within that noise",
    INFERRED,
))  # fmt: skip

T15 = Table("T15", "which images the memory keeps", variants({
    "low-confidence": ((67.9, 0.9), ("memory.policy=low",)),
    "high-confidence": ((69.7, 1.0), ("memory.policy=high",)),
    "rainbow": ((72.5, 0.6), ("memory.policy=rainbow",)),
    "random": ((72.8, 0.9), ()),
}, SELECTION), ("confidence is not defined: cosine to the prototype of the image's own class",), (
    "the caption says cifar100 among cifar10; 72.8 ± 0.9 is the cell of T1 with cifar10 among cifar100, which is run",
))  # fmt: skip

T16 = Table("T16", "a reference trained before the first step, then frozen", variants({
    "continual": ((30.4, 0.2), ()),
    "pretrained": ((31.3, 0.7), ("reference.pretrained=true",)),
}), ("it is trained on the whole of both pools",), ("its epochs are not stated: 400", INFERRED),
    short="a pre-trained reference")  # fmt: skip


def self_supervision(id: str, scenario: ScenarioSpec, simclr: Pair, byol: Pair, times: tuple[int, int]) -> Table:
    """SimCLR and BYOL: final accuracy, and minutes of the reference over all steps."""
    ways = {"simclr": (simclr, ()), "byol": (byol, ("reference.ssl=byol",))}
    cells = list(variants(ways, scenario))
    for (row, (_, changes)), time in zip(ways.items(), times, strict=True):
        cells.append(Cell(row, "minutes", scenario, "ursl", changes, Published(time), "reference"))
    collapsed = "BYOL collapsed in our studies of references, with the optimiser of ursl and with four others"
    notes = ("minutes are those of the reference over all steps", collapsed)
    setting = f", {scenario.main} among {scenario.peripheral[0]}"
    short = f"SimCLR and BYOL on {scenario.main}"
    return Table(id, "SimCLR and BYOL", tuple(cells), notes, (INFERRED,), setting, short)


T17 = self_supervision(
    "T17", replace(SELECTION, peripheral=("tinyimagenet",)), (72.8, 0.6), (73.1, 1.0), (136, 258)
)  # fmt: skip
T18 = self_supervision("T18", ABLATION, (30.4, 0.2), (32.3, 0.8), (219, 445))

NO_NUMBERS = "the paper draws the curves and prints no numbers; it says that both rise with the number of seen classes"


def over_time(id: str, images: int) -> Table:
    """The gate, with as many related images as unrelated ones."""
    cell = Cell(f"{images}-{images}", "ursl", amounts(images, images), "ursl")
    setting = f", {images} related and {images} unrelated images"
    short = f"the gate over time, {images} + {images}"
    title = "AUROC and precision of the gate over time"
    return Table(id, title, (cell,), of_paper=(NO_NUMBERS,), setting=setting, short=short)


F1, F2 = over_time("F1", 9000), over_time("F2", 4500)
