"""The paper's tables and figures as data, each by its name, and the limitations that it states."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import yaml

from osscl.config import flat, plain
from osscl.errors import unknown
from osscl.methods.base import PAPER
from osscl.paper.cells import OUR_VARIANTS, Cell, Measure, Note, Published, Table, with_ours
from osscl.runs.spec import EXPERIMENTS, configuration
from osscl.stream.scenario import ScenarioSpec
from osscl.tools.tune import PAPER_SPACE

COLUMNS = ("co2l", "co2l-j", "co2l-p", "gd", "dm", "ursl")
SUPERVISED = ("co2l", "gem", "icarl")
ABLATION = EXPERIMENTS["cifar100-p05"]  # of T4 to T6, T9 to T14, T16, T18 and both figures
SELECTION = EXPERIMENTS["cifar10-p10"]  # of T15

Pair = tuple[float, float]  # mean and std
Row = tuple[float, int, str, Pair, Pair, Pair, Pair, Pair, Pair]  # P, |M|, peripheral set, then one pair per column

# The paper gives no hyperparameters for GEM and iCaRL. iCaRL's are Mammoth's for each main set, which reach its level.
ICARL: dict[str, tuple[str, ...]] = {
    "cifar10": (),
    "cifar100": ("optimiser.rate=0.3", "optimiser.min_rate=0.3"),
    "tinyimagenet": ("optimiser.rate=0.03", "optimiser.min_rate=0.03", "epochs=100"),
}

LABELS_ALONE = Note(
    "p*/co2l",
    "Co2L uses no unlabelled images: one run, on the first peripheral set, fills all rows that differ in that set",
)


def row_name(share: float, peripheral: str) -> str:
    """The name of a row, such as p05-cifar10."""
    return f"p{round(100 * share):02d}-{peripheral}"


def main_table(
    id: str,
    main: str,
    rows: tuple[Row, ...],
    supervised: tuple[int, Pair, Pair, Pair],
    of_paper: tuple[str | Note, ...],
) -> Table:
    """Methods side by side: four settings with few labels, then all labels and no unlabelled images."""
    cells = []
    for share, memory, peripheral, *pairs in rows:
        for column, pair in zip(COLUMNS, pairs, strict=True):
            world = rows[0][2] if column == "co2l" else peripheral
            scenario = ScenarioSpec(main, (world,), labeled_fraction=share, memory=memory)
            cells.append(Cell(row_name(share, peripheral), column, scenario, column, published=Published(*pair)))
    memory, *pairs = supervised
    everything = ScenarioSpec(main, labeled_fraction=1.0, memory=memory)
    for column, pair in zip(SUPERVISED, pairs, strict=True):
        changes = ICARL[main] if column == "icarl" else ()
        cells.append(Cell("all-labels", column, everything, column, changes, Published(*pair)))
    sizes = ", ".join(f"P={share:g} |M|={memory}" for share, memory in dict.fromkeys(row[:2] for row in rows))
    setting = f" on {main}: {sizes}"
    return Table(id, "methods", with_ours(cells), (LABELS_ALONE,), of_paper, setting, f"methods on {main}")


T1 = main_table(
    "T1", "cifar10",
    # P, |M|, peripheral,       co2l,        co2l-j,      co2l-p,      gd,          dm,          ursl
    (
        (0.01, 50, "cifar100", (26.5, 1.6), (36.0, 3.2), (46.6, 0.3), (24.0, 1.3), (30.1, 0.7), (58.2, 0.8)),
        (0.01, 50, "tinyimagenet", (26.5, 1.6), (33.0, 1.5), (42.7, 0.2), (24.3, 1.4), (29.7, 6.1), (51.0, 11.9)),
        (0.1, 200, "cifar100", (58.3, 1.0), (52.7, 1.6), (62.4, 0.1), (48.1, 1.3), (59.6, 4.2), (72.8, 0.9)),
        (0.1, 200, "tinyimagenet", (58.3, 1.0), (42.2, 2.1), (61.3, 0.3), (47.3, 1.4), (42.1, 9.4), (72.8, 0.6)),
    ),
    # |M|, co2l, gem, icarl
    (200, (69.5, 0.6), (29.2, 0.5), (49.9, 1.7)),
    (Note("p01-tinyimagenet/ursl", "51.0 ± 11.9: one of the paper's three runs probably failed"),),
)  # fmt: skip

T2 = main_table(
    "T2", "cifar100",
    (
        (0.05, 500, "cifar10", (15.9, 0.2), (20.4, 0.4), (21.0, 0.2), (11.8, 0.9), (24.2, 0.9), (30.4, 0.2)),
        (0.05, 500, "tinyimagenet", (15.9, 0.2), (16.9, 0.3), (21.5, 0.2), (11.5, 0.9), (28.1, 1.2), (30.5, 0.5)),
        (0.1, 1000, "cifar10", (25.1, 0.1), (26.9, 0.4), (28.3, 0.4), (16.7, 1.1), (33.6, 1.0), (37.5, 0.4)),
        (0.1, 1000, "tinyimagenet", (25.1, 0.1), (28.4, 1.4), (28.9, 0.3), (15.9, 0.2), (38.5, 0.7), (37.2, 0.3)),
    ),
    (1000, (35.1, 0.3), (22.4, 4.5), (34.4, 0.8)),
    (
        Note(
            "p10-tinyimagenet/dm",
            "the text says URSL is best in almost all settings; in its table DM is best at P=0.1 with tinyimagenet",
        ),
    ),
)  # fmt: skip

T3 = main_table(
    "T3", "tinyimagenet",
    (
        (0.05, 1000, "cifar10", (8.4, 0.1), (11.0, 0.1), (12.8, 0.2), (4.54, 0.02), (4.8, 0.1), (17.2, 0.1)),
        (0.05, 1000, "cifar100", (8.4, 0.1), (10.8, 0.8), (12.9, 0.1), (5.7, 0.4), (4.4, 0.5), (17.5, 0.2)),
        (0.1, 2000, "cifar10", (15.1, 0.7), (17.6, 0.6), (18.4, 0.2), (7.5, 0.2), (5.6, 0.2), (21.9, 0.2)),
        (0.1, 2000, "cifar100", (15.0, 0.7), (18.4, 0.7), (18.6, 0.1), (7.9, 0.1), (5.4, 0.4), (20.8, 1.0)),
    ),
    (2000, (22.5, 0.5), (17.4, 0.3), (18.2, 0.2)),
    (
        Note("p10-*/co2l", "Co2L at P=0.1 is printed as 15.1 and as 15.0 for the same setting"),
        "GD and DM keep their batch sizes of CIFAR; their repository halves them for images of 64 pixels",
    ),
)  # fmt: skip


Changes = tuple[str, ...]

INFERRED = "P and |M| are not stated; they are inferred from a cell that another table shares"
ONLY_SUPERVISED = "only-supervised: Co2L's cell of T2, and URSL with an empty U_t, which the paper does not have."


def variants(values: Mapping[str, tuple[Pair, Changes]], scenario: ScenarioSpec = ABLATION) -> tuple[Cell, ...]:
    """One scenario, one row per change of URSL."""
    cells = [Cell(row, "ursl", scenario, "ursl", changes, Published(*pair)) for row, (pair, changes) in values.items()]
    return with_ours(cells)


def scenarios(values: Mapping[str, tuple[Pair, ScenarioSpec]]) -> tuple[Cell, ...]:
    """Unchanged URSL, one row per scenario."""
    cells = [Cell(row, "ursl", scenario, "ursl", (), Published(*pair)) for row, (pair, scenario) in values.items()]
    return with_ours(cells)


def amounts(related: int, unrelated: int) -> ScenarioSpec:
    """The ablations' scenario with other numbers of unlabelled images per step."""
    return replace(ABLATION, related=related, unrelated=unrelated)


def regime(name: str, **fields: object) -> ScenarioSpec:
    """The ablations' scenario in another regime, with that regime's numbers of images."""
    return replace(ABLATION, regime=name, related=None, unrelated=None, **fields)  # type: ignore[arg-type]


ONLY_LABELS = (
    Cell("only-supervised", "co2l", ABLATION, "co2l", published=Published(15.9, 0.2)),
    Cell("only-supervised", "ursl", regime("only_supervised"), "ursl"),
)

T4 = Table("T4", "each loss left out", variants({
    "without-sup": ((25.7, 0.2), ("learner.sup=0",)),
    "without-td": ((28.4, 0.7), ("learner.gamma=0",)),
    "without-kd": ((28.9, 0.4), ("learner.lam=0",)),
    "only-sup": ((19.1, 0.9), ("learner.gamma=0", "learner.lam=0")),
    "only-kd": ((28.2, 0.9), ("learner.sup=0", "learner.gamma=0")),
    "all-losses": ((30.4, 0.2), ()),
}), ("rows leave out loss terms only; the gate's sets stay the same",))  # fmt: skip

T5 = Table("T5", "segregation left out", variants({
    "variant1": ((20.7, 1.2), ("gate.pseudo=none", "gate.guide=all")),
    "variant2": ((24.5, 0.4), ("gate.pseudo=none",)),
    "variant3": ((29.2, 0.5), ("gate.guide=all",)),
    "variant4": ((30.4, 0.2), ()),
}), (
    "T-hat for L_sup and L_TD in variants 3 and 4, U-hat for L_KD in variants 2 and 4, otherwise all of U_t",
    "T-hat holds rows of past classes only, because the text says that pseudo-labels are not used directly",
), ("T-hat differs between 1 and 3 and between 2 and 4; the paper's text compares other pairs",))  # fmt: skip


def minutes(row: str, column: str, measure: Measure, published: float) -> Cell:
    return Cell(row, column, ABLATION, row, (), Published(published), measure)


T6 = Table("T6", "minutes per task, lower is better", with_ours((
    minutes("co2l-j", "task", "minutes", 12),
    minutes("co2l-p", "pretraining", "pretraining", 63),
    minutes("co2l-p", "task", "learner", 6.5),
    minutes("gd", "task", "minutes", 8.5),
    minutes("dm", "task", "minutes", 14.5),
    minutes("ursl", "reference", "later reference", 15.75),
    minutes("ursl", "learner", "learner", 12),
)), ("the reference's minutes are per step after the first",), (
    "the paper's minutes are for one RTX 3080 Ti, ours for the device named above",
    "the caption says per task, the text per epoch; the ratio of 63 to 15.75 confirms the caption",
    "in the paper, a step after the first trains the reference for 100 epochs",
))  # fmt: skip

T9 = Table("T9", "unlabelled images of later classes only, or of earlier classes only", (
    *ONLY_LABELS,
    *scenarios({
        "after": ((19.1, 0.8), regime("after", peripheral=())),
        "before": ((20.0, 0.1), regime("before", peripheral=())),
    }),
), (
    "after: classes of this step and later ones; before: earlier classes, and at the first step its own",
    ONLY_SUPERVISED,
), (
    "the caption names cifar10 as peripheral, but the text says that no image is unrelated: no peripheral set is used",
    "U_t holds at most 9000 images",
), short="only later or earlier classes")  # fmt: skip

T10 = Table("T10", "unlabelled images that are all related or all unrelated", (
    *ONLY_LABELS,
    *scenarios({
        "only-unrelated": ((19.6, 0.5), regime("only_unrelated")),
        "only-related": ((29.4, 0.5), regime("only_related")),
        "osscl": ((30.4, 0.2), ABLATION),
    }),
), (ONLY_SUPERVISED,), ("the paper does not state the sizes; 0-9000 and 9000-0 fit the trend of T12",),
    short="only related or unrelated images")  # fmt: skip

T11 = Table("T11", "a part of the main classes in each U_t", (
    *ONLY_LABELS,
    *scenarios({
        "25-percent": ((24.9, 0.6), regime("non_iid", class_share=0.25)),
        "50-percent": ((27.4, 0.7), regime("non_iid", class_share=0.5)),
        "osscl": ((30.4, 0.2), ABLATION),
    }),
), (
    "at each step, classes are drawn from the whole main set, and the related images show these",
    ONLY_SUPERVISED,
), short="a part of the main classes")  # fmt: skip

T12 = Table("T12", "numbers of related and unrelated images per step", scenarios({
    "1000-9000": ((21.0, 1.1), amounts(1000, 9000)),
    "4500-4500": ((26.8, 0.5), amounts(4500, 4500)),
    "4500-9000": ((27.0, 0.6), amounts(4500, 9000)),
    "9000-4500": ((30.0, 0.7), amounts(9000, 4500)),
    "9000-9000": ((30.4, 0.2), amounts(9000, 9000)),
}), short="amounts of unlabelled images")  # fmt: skip

T13 = Table("T13", "several peripheral sets", scenarios({
    row: (pair, replace(ABLATION, peripheral=peripheral)) for row, pair, peripheral in (
        ("cifar10", (30.4, 0.2), ("cifar10",)),
        ("tinyimagenet", (30.4, 0.6), ("cifar10", "tinyimagenet")),
        ("caltech256", (31.4, 0.3), ("cifar10", "caltech256")),
        ("both", (31.6, 0.7), ("cifar10", "tinyimagenet", "caltech256")),
    )
}), ("each row adds its set to that of the first row",), (
    "9000 images of each set per step",
    "the text adds them to T_t, but means U_t",
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
    *(
        Cell("resnet18-resnet18", name, ABLATION, name, networks("resnet18", "resnet18"))
        for name in OUR_VARIANTS["ursl"]
    ),
), ("rows name the networks of reference and learner",), (
    "at batch 128 the paper's URSL is 31.2 ± 1.0, at 512 30.4 ± 0.2: its differences are within that noise",
    INFERRED,
))  # fmt: skip

T15 = Table("T15", "which images the memory keeps", variants({
    "low-confidence": ((67.9, 0.9), ("memory.policy=low",)),
    "high-confidence": ((69.7, 1.0), ("memory.policy=high",)),
    "rainbow": ((72.5, 0.6), ("memory.policy=rainbow",)),
    "random": ((72.8, 0.9), ()),
}, SELECTION), ("confidence, which the paper does not define, is the cosine to the prototype of the image's class",), (
    "the caption says cifar100 among cifar10, but 72.8 ± 0.9 is T1's cell of cifar10 among cifar100; that one is run",
))  # fmt: skip

T16 = Table("T16", "a reference that is trained before the first step and then frozen", variants({
    "continual": ((30.4, 0.2), ()),
    "pretrained": ((31.3, 0.7), ("reference.pretrained=true",)),
}), ("it is trained on all images of both pools",), ("its epochs are not stated; 400 are used", INFERRED),
    short="a pre-trained reference")  # fmt: skip


def self_supervision(id: str, scenario: ScenarioSpec, simclr: Pair, byol: Pair, times: tuple[int, int]) -> Table:
    """SimCLR and BYOL: final accuracy, and minutes of the reference over all steps."""
    ways = {"simclr": (simclr, ()), "byol": (byol, ("reference.ssl=byol",))}
    cells = list(variants(ways, scenario))
    for (row, (_, changes)), time in zip(ways.items(), times, strict=True):
        cells.append(Cell(row, "minutes", scenario, "ursl", changes, Published(time), "reference"))
    collapsed = "BYOL collapsed in our studies of references, with ursl's optimiser and with four others"
    notes = ("minutes are of the reference over all steps", collapsed)
    setting = f", {scenario.main} among {scenario.peripheral[0]}"
    short = f"SimCLR and BYOL on {scenario.main}"
    return Table(id, "SimCLR and BYOL", tuple(cells), notes, (INFERRED,), setting, short)


T17 = self_supervision(
    "T17", replace(SELECTION, peripheral=("tinyimagenet",)), (72.8, 0.6), (73.1, 1.0), (136, 258)
)  # fmt: skip
T18 = self_supervision("T18", ABLATION, (30.4, 0.2), (32.3, 0.8), (219, 445))

NO_NUMBERS = "the paper draws the curves without numbers, and says that both rise with the number of seen classes"


def gate_figure(id: str, images: int) -> Table:
    """The gate, with as many related images as unrelated ones."""
    cell = Cell(f"{images}-{images}", "ursl", amounts(images, images), "ursl")
    setting = f", {images} related and {images} unrelated images"
    short = f"the gate over time, {images} + {images}"
    title = "AUROC and precision of the gate over time"
    return Table(id, title, (cell,), of_paper=(NO_NUMBERS,), setting=setting, short=short)


F1, F2 = gate_figure("F1", 9000), gate_figure("F2", 4500)


WITH_CO2L = "Co2L, which learns from labels only, is run alongside URSL; the paper states these limits without numbers"


def limit(
    id: str, title: str, rows: Mapping[str, ScenarioSpec], notes: tuple[str, ...], of_paper: tuple[str, ...] = ()
) -> Table:
    """URSL and Co2L, one row per scenario, from the paper's own to the hardest."""
    usual = ABLATION.related, ABLATION.unrelated  # Co2L uses none: one run fills rows that differ in them
    cells = []
    for row, scenario in rows.items():
        cells.append(Cell(row, "co2l", replace(scenario, related=usual[0], unrelated=usual[1]), "co2l"))
        cells.append(Cell(row, "ursl", scenario, "ursl"))
    return Table(id, title, with_ours(cells), (*notes, WITH_CO2L), of_paper)


def _little(related: int) -> ScenarioSpec:
    return replace(ABLATION, related=related, unrelated=related)


L1 = limit("L1", "imbalanced classes", {
    "balanced": ABLATION,
    "10-to-1": replace(ABLATION, imbalance=10.0),
    "30-to-1": replace(ABLATION, imbalance=30.0),
}, (
    "ratio of training images of the largest class to the smallest, an exponential tail in random class order",
    "where labels are given per class, as on the demo's data, only the unlabelled images are imbalanced",
))  # fmt: skip

L2 = limit("L2", "little unlabelled data", {
    "9000-9000": _little(9000),
    "900-900": _little(900),
    "180-180": _little(180),
}, ("related and unrelated images per step; Co2L uses neither",))  # fmt: skip

L3 = limit("L3", "a very small memory", {
    "memory-500": ABLATION,
    "memory-200": replace(ABLATION, memory=200),
    "memory-100": replace(ABLATION, memory=100),
}, (), ("100 is one image per class at the end",))  # fmt: skip

LIMITS: Mapping[str, Table] = {"L1": L1, "L2": L2, "L3": L3}


# field: the value that the paper names
CHOSEN: Mapping[str, Any] = {
    "learner.epochs": 200,
    "reference.epochs_first": 400,
    "reference.epochs_later": 100,
    "reference.batch": 512,
    "learner.batch": 512,
    "reference.tau": 0.1,
    "learner.tau": 0.1,
    "learner.tau_teacher": 0.01,
    "learner.tau_student": 0.2,
    "learner.lam": 0.2,
    "learner.gamma": 0.2,
    "gate.eta": (-4.0, -2.0),
    "reference.optimiser.kind": "adam",
    "learner.optimiser.kind": "adam",
    "reference.optimiser.rate": 0.01,
    "learner.optimiser.rate": 0.01,
    "reference.optimiser.min_rate": 1e-4,
    "learner.optimiser.min_rate": 1e-4,
}

T7 = Table("T7", "the values that were tried", notes=(
    "gamma is not in the paper's table; its text gives both weights one value",
    "one tau, one optimiser and one rate serve both networks",
))  # fmt: skip
T8 = Table("T8", "the values that were chosen, and where our configurations differ", notes=(
    "the paper states neither the schedule, decay and warm-up of the optimisers nor the head's optimiser",
    "it does not state the shape of the projector either",
), short="the values that were chosen")  # fmt: skip
COMPARED = ("ursl-as-printed", "ursl", "ursl-plus")


def search_rows() -> list[tuple[str, str]]:
    """Fields, and the values tried or the field that they follow."""
    return [(field, f"as {text}" if text in PAPER_SPACE else _values(text)) for field, text in PAPER_SPACE.items()]


def _values(text: str) -> str:
    return ", ".join(_written(value) for value in yaml.safe_load(text))


def chosen_rows() -> list[tuple[str, ...]]:
    """Fields that the paper names or in which our configurations differ: its value and each of ours."""
    ours = [flat(plain(configuration(name))) for name in COMPARED]
    named = [field for field in ours[0] if field in CHOSEN]
    fields = dict.fromkeys(field for one in ours for field in one if field not in CHOSEN)
    differ = [field for field in fields if any(one.get(field) != ours[0].get(field) for one in ours)]
    return [(f, _written(CHOSEN.get(f)), *(_written(one.get(f)) for one in ours)) for f in (*named, *differ)]


def _written(value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, list | tuple):
        return f"({', '.join(_written(item) for item in value)})"
    return f"{value:g}" if isinstance(value, float) else str(value)


OUR_GEM = "GEM's cells run gem, the published method; gem-joint is ours: it normalises batch and memory together"
OURS = (
    "URSL's cells run ursl, the paper's algorithm with our optimisers, projector and head (T8). ursl-plus is our "
    "extension within the bytes of the memory; ursl-plus-unlimited stores more"
)


def _noted(table: Table) -> Table:
    """The table with a note on what runs in URSL's cells."""
    ours = Note("*", OURS, configurations="ursl*"), Note("*", OUR_GEM, configurations="gem*")
    return replace(table, notes=(*table.notes, *ours))


TABLES: Mapping[str, Table] = {
    table.id: _noted(table)
    for table in (T1, T2, T3, T4, T5, T6, T7, T8, T9, T10, T11, T12, T13, T14, T15, T16, T17, T18)
}
FIGURES: Mapping[str, Table] = {"F1": F1, "F2": F2}
ALL_TABLES: Mapping[str, Table] = {**TABLES, **FIGURES, **LIMITS}


def _main_cells() -> tuple[Cell, ...]:
    """The paper's main settings: our methods in each, and in the first everything that they are compared with."""
    cells = list[Cell]()
    settings = {"cifar100-p05": (T2, "p05-cifar10"), "cifar100-p10": (T2, "p10-cifar10"),
                "cifar10-p01": (T1, "p01-cifar100"), "cifar10-p10": (T1, "p10-cifar100")}  # fmt: skip
    for name, (table, row) in settings.items():
        found = [replace(cell, row=name) for cell in table.cells if cell.row == row]
        if cells:
            found = [cell for cell in found if cell.configuration.startswith("ursl")]
        for cell in found:
            cells.append(cell)
            if cell.configuration in ("dm", "gd"):
                control = f"{cell.column} + our head"
                cells.append(replace(cell, column=control, published=None, measure="our head"))
        yardstick = replace(found[-1], column="reference-only", configuration="reference-only", published=None)
        cells.append(yardstick)
    cells += [replace(cell, row="cifar10-full") for cell in T1.cells if cell.name == "all-labels/co2l"]
    natural = ScenarioSpec("cifar10", labeled_fraction=1.0, memory=200, class_order="natural")
    cells.append(Cell("cifar10-full", "co2l-authors", natural, "co2l-authors"))
    for main, classes in (("cifar10", 10), ("cifar100", 100)):
        at_once = ScenarioSpec(main, labeled_fraction=1.0, classes_per_step=(classes,))
        cells.append(Cell(f"{main}-full", "supervised", at_once, "supervised"))
    return tuple(cells)


MAIN = Table("main", "Main results", _main_cells(), (
    "kept: bytes of past data (images and statistics) after the last step; an image has 3,072 bytes",
    'dm and gd "+ our head": a ridge head on the same networks. reference-only: the same head on the reference alone.',
), (
    OURS,
    "co2l-authors uses the epochs, rates, head and class order of Co2L's code; its authors report 65.6.",
    "supervised is the same network trained on all labels at once, an upper bound",
    "in cifar100-p05, ursl-plus-unlimited keeps 5.0 MB of statistics and 4.6 MB for known/unknown decisions, "
    "in addition to the memory's 1.5 MB; records of earlier versions do not contain this count",
))  # fmt: skip


def table_named(name: str) -> Table:
    """The table, figure or limitation of this name, in upper or lower case; `main` is the table of main results."""
    if name.lower() == MAIN.id:
        return MAIN
    if name.upper() not in ALL_TABLES:
        raise unknown("table", name, ["list", MAIN.id, *ALL_TABLES])
    return ALL_TABLES[name.upper()]


def picked(table: Table, patterns: str | None) -> Table:
    """The table with the cells that match a comma-separated list of cells, rows or columns, with * and ?."""
    if patterns is None:
        return table
    chosen: set[str] = set()
    for pattern in (part.strip() for part in patterns.split(",")):
        found = [cell.name for cell in table.cells if _matches(cell, pattern)]
        if not found:
            raise unknown(f"cell of {table.id}", pattern, [cell.name for cell in table.cells])
        chosen.update(found)
    return replace(table, cells=tuple(cell for cell in table.cells if cell.name in chosen))


def _matches(cell: Cell, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (cell.name, cell.row, cell.column))


def cell_of(table: str, name: str) -> Cell:
    """The cell of this name in a table."""
    return next(cell for cell in ALL_TABLES[table].cells if cell.name == name)


def published_of(scenario: ScenarioSpec, method: object) -> Published | None:
    """The accuracy that the paper prints for a method config in a scenario; None if it has no such cell."""
    return next((theirs for known, theirs in _published_methods().get(scenario, ()) if known == method), None)


@functools.cache
def _published_methods() -> dict[ScenarioSpec, list[tuple[object, Published]]]:
    """Every accuracy that the paper prints, by scenario, in the order of the tables."""
    made: dict[ScenarioSpec, list[tuple[object, Published]]] = {}
    for table in TABLES.values():
        for cell in table.cells:
            if cell.published is not None and cell.measure == "accuracy":
                made.setdefault(cell.scenario, []).append((cell.spec(PAPER, 0).method, cell.published))
    return made
