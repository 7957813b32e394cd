"""Every cell compared with an independent transcription of the paper: its numbers and the setting of its run."""

from pathlib import Path

import pytest
import yaml

from osscl.config import flat, plain
from osscl.methods.base import PAPER
from osscl.paper.cells import Published
from osscl.paper.tables import CHOSEN, FIGURES, TABLES, chosen_rows, published_of, search_rows
from osscl.runs.spec import configuration
from osscl.tools.tune import PAPER_SPACE

PAGE = yaml.safe_load((Path(__file__).parents[1] / "paper_results.yaml").read_text())
PRINTED = {table["id"]: table for table in PAGE["tables"]}
NAMES = {"Co2L": "co2l", "Co2L-j": "co2l-j", "Co2L-p": "co2l-p", "GD": "gd", "DM": "dm", "URSL": "ursl",
         "GEM": "gem", "iCaRL": "icarl"}  # fmt: skip
# Methods with hyperparameters of their own, facts of each one's page: 200 epochs of co2l, gd and dm in all, 50 of gem
# and icarl, batches of their own.
SIZES = {
    "co2l": {"learner.net.backbone": "resnet18", "learner.epochs": 200, "learner.batch": 512},
    "gd": {"backbone": "resnet18", "epochs_teacher": 200, "epochs": 180, "epochs_balance": 20, "batch": 64},
    "dm": {"backbone": "resnet18", "epochs": 180, "epochs_balance": 20, "epochs_novelty": 90, "batch": 64,
           "unlabeled_batch": 128},
    "gem": {"backbone": "resnet18", "epochs": 50, "batch": 32},
    "gem-joint": {"backbone": "resnet18", "epochs": 50, "batch": 32},
    "icarl": {"backbone": "resnet18", "epochs": 50, "batch": 32},
}  # fmt: skip
EVERY = [(table.id, cell) for table in (*TABLES.values(), *FIGURES.values()) for cell in table.cells]


def named(id, name):
    (cell,) = [cell for table, cell in EVERY if table == id and cell.name == name]
    return cell


def numbers(cell):
    return [cell.published.mean, cell.published.std]


def expect(cell, main, peripheral, share, memory, related=9000, unrelated=9000):
    """The scenario of a cell's run, field by field."""
    scenario = cell.spec(PAPER, 0).scenario
    assert (scenario.main, scenario.peripheral) == (main, tuple(peripheral))
    assert (scenario.labeled_fraction, scenario.labels_per_class, scenario.memory) == (share, None, memory)
    assert (scenario.related, scenario.unrelated) == (related, unrelated)
    tasks = PAGE["meta"]["tasks"][{"cifar10": "CIFAR10", "cifar100": "CIFAR100", "tinyimagenet": "TinyImageNet"}[main]]
    assert scenario.classes_per_step == (tasks["classes_per_task"],) * tasks["T"]
    assert (scenario.validation_share, scenario.imbalance) == (0, 1)


def expect_ablation(cell, related=9000, unrelated=9000, peripheral=("cifar10",)):
    expect(cell, "cifar100", peripheral, 0.05, 500, related, unrelated)


def expect_values(id, values, changes=None, **scenario):
    """Compare the cells of one column with the transcription: numbers, scenario and changes of `ursl`."""
    assert len([cell for table, cell in EVERY if table == id and cell.published]) == len(values)
    for row, pair in values.items():
        cell = named(id, f"{row}/ursl")
        assert numbers(cell) == pair
        expect_ablation(cell, **scenario)
        assert difference(cell) == (changes or {}).get(row, {})


def difference(cell):
    """The fields in which a cell's method differs from `ursl`."""
    ours, base = flat(plain(cell.spec(PAPER, 0).method)), flat(plain(configuration("ursl")))
    return {field: value for field, value in ours.items() if value != base[field]}


@pytest.mark.parametrize("id", ["T1", "T2", "T3"])
def test_the_main_tables_are_the_papers(id):
    page, seen = PRINTED[id], 0
    main = page["main"].lower()
    for row in page["rows"]:
        peripheral = row["peripheral"].lower()
        for column in page["columns"]:
            cell = named(id, f"p{round(100 * row['P']):02d}-{peripheral}/{NAMES[column]}")
            assert numbers(cell) == row[column] and cell.configuration == NAMES[column]
            world = page["rows"][0]["peripheral"].lower() if column == "Co2L" else peripheral
            expect(cell, main, [world], row["P"], row["M"])
            seen += 1
    everything = page["fully_supervised"]
    for column in ("Co2L", "GEM", "iCaRL"):
        cell = named(id, f"all-labels/{NAMES[column]}")
        assert numbers(cell) == everything[column]
        expect(cell, main, [], 1, everything["M"], 0, 0)
        seen += 1
    assert seen == len([cell for table, cell in EVERY if table == id and cell.published])


def test_the_loss_ablation_is_the_papers():
    zero = {"sup": {"learner.sup": 0}, "td": {"learner.gamma": 0}, "kd": {"learner.lam": 0}}
    changes = {f"without-{loss}": change for loss, change in zero.items()}
    changes |= {"only-sup": zero["td"] | zero["kd"], "only-kd": zero["sup"] | zero["td"]}
    renamed = {"URSL": "all-losses"}
    values = {renamed.get(k, k.lower().replace("wo_", "without-").replace("_", "-")): v
              for k, v in PRINTED["T4"]["values"].items()}  # fmt: skip
    expect_values("T4", values, changes)


def test_the_segregation_ablation_is_the_papers():
    values = PRINTED["T5"]["values"]
    changes = {}
    for row, printed in values.items():
        changes[row] = {} if "That" in printed["sup_and_TD_data"] else {"gate.pseudo": "none"}
        changes[row] |= {} if "Uhat" in printed["KD_data"] else {"gate.guide": "all"}
    expect_values("T5", {row: printed["acc"] for row, printed in values.items()}, changes)


def test_the_table_of_minutes_is_the_papers():
    cells = {
        "Co2L-j": "co2l-j/task",
        "Co2L-p_pretrain_once": "co2l-p/pretraining",
        "Co2L-p_task": "co2l-p/task",
        "GD": "gd/task",
        "DM": "dm/task",
        "URSL_reference": "ursl/reference",
        "URSL_learner": "ursl/learner",
    }
    for key, minutes in PRINTED["T6"]["minutes"].items():
        cell = named("T6", cells[key])
        assert numbers(cell) == [minutes, None] and cell.measure != "accuracy"
        assert cell.configuration == cell.row
        expect_ablation(cell)
    assert len(cells) == len([cell for table, cell in EVERY if table == "T6" and cell.published])


def test_the_search_space_is_the_papers():
    page = PRINTED["T7"]["search_space"]
    fields = {"E_S": "learner.epochs", "E_T1": "reference.epochs_first", "E_T_gt1": "reference.epochs_later",
              "tau": "reference.tau", "lambda": "learner.lam", "initial_lr": "reference.optimiser.rate",
              "eta_id_pl": "gate.eta"}  # fmt: skip
    for key, field in fields.items():
        assert yaml.safe_load(PAPER_SPACE[field]) == page[key]
    assert len(yaml.safe_load(PAPER_SPACE["reference.optimiser.kind"])) == len(page["optimizer"])
    tied = {field: other for field, other in PAPER_SPACE.items() if other in PAPER_SPACE}
    assert tied["learner.gamma"] == "learner.lam" and len(PAPER_SPACE) - len(tied) == len(page)
    shown = dict(search_rows())
    assert shown["learner.lam"] == "0.05, 0.2, 0.4" and shown["learner.gamma"] == "as learner.lam"
    assert set(shown) == set(PAPER_SPACE) <= set(flat(plain(configuration("ursl")))) | {"gate.eta"}


def test_the_chosen_values_are_the_papers_and_as_printed_has_them_all():
    page = PRINTED["T8"]["chosen"]
    names = {"E_S": ["learner.epochs"], "E_T1": ["reference.epochs_first"], "E_T_gt1": ["reference.epochs_later"],
             "batch_size": ["learner.batch", "reference.batch"], "tau": ["learner.tau", "reference.tau"],
             "tau_teacher": ["learner.tau_teacher"], "tau_student": ["learner.tau_student"],
             "lambda": ["learner.lam"], "gamma": ["learner.gamma"],
             "initial_lr": ["learner.optimiser.rate", "reference.optimiser.rate"],
             "min_lr": ["learner.optimiser.min_rate", "reference.optimiser.min_rate"]}  # fmt: skip
    assert {field: page[key] for key, fields in names.items() for field in fields}.items() <= CHOSEN.items()
    assert CHOSEN["gate.eta"] == (page["eta_id"], page["eta_pl"]) and CHOSEN["learner.optimiser.kind"] == "adam"
    printed = flat(plain(configuration("ursl-as-printed")))
    assert all(printed[field] == plain(value) for field, value in CHOSEN.items())
    shown = {field: values for field, *values in chosen_rows()}
    assert shown["learner.gamma"] == ["0.2", "0.2", "0.2", "0.2"]
    assert shown["reference.net.projector_norm"] == ["—", "False", "True", "True"]
    assert shown["start"] == ["—", "—", "—", "reference"] and set(CHOSEN) <= set(shown)


def test_after_and_before_have_no_unrelated_images():
    page = PRINTED["T9"]["values"]
    for row in ("after", "before"):
        cell = named("T9", f"{row}/ursl")
        assert numbers(cell) == page[row] and cell.scenario.regime == row
        expect_ablation(cell, 9000, 0, ())


@pytest.mark.parametrize("id", ["T9", "T10", "T11"])
def test_only_supervised_is_co2ls_cell(id):
    cell = named(id, "only-supervised/co2l")
    assert numbers(cell) == PRINTED[id]["values"]["only_supervised"]
    assert cell.spec(PAPER, 1).id == named("T2", "p05-cifar10/co2l").spec(PAPER, 1).id
    empty = named(id, "only-supervised/ursl")
    assert empty.published is None and (empty.scenario.related, empty.scenario.unrelated) == (0, 0)


def test_related_or_unrelated_images_only_and_parts_of_the_classes():
    sizes = {"only_unrelated": (0, 9000), "only_related": (9000, 0), "OSSCL": (9000, 9000)}
    for key, size in sizes.items():
        cell = named("T10", f"{key.lower().replace('_', '-')}/ursl")
        assert numbers(cell) == PRINTED["T10"]["values"][key]
        expect_ablation(cell, *size)
    for row, share in (("25", 0.25), ("50", 0.5)):
        cell = named("T11", f"{row}-percent/ursl")
        assert numbers(cell) == PRINTED["T11"]["values"][f"noniid_{row}pct"]
        assert (cell.scenario.regime, cell.scenario.class_share) == ("non_iid", share)
        expect_ablation(cell)
    assert numbers(named("T11", "osscl/ursl")) == PRINTED["T11"]["values"]["OSSCL"]


def test_the_amounts_are_the_papers():
    for row, pair in PRINTED["T12"]["values"].items():
        cell = named("T12", f"{row}/ursl")
        assert numbers(cell) == pair
        expect_ablation(cell, *map(int, row.split("-")))


def test_several_peripheral_sets_are_the_papers():
    rows = ("cifar10", "tinyimagenet", "caltech256", "both")
    for row, printed in zip(rows, PRINTED["T13"]["rows"], strict=True):
        cell = named("T13", f"{row}/ursl")
        assert numbers(cell) == printed["acc"]
        expect_ablation(cell, peripheral=[name.lower() for name in printed["U"] if name != "CIFAR100"])


def test_the_networks_are_the_papers():
    names = {"ResNet-18": "resnet18", "ResNet-34": "resnet34", "ResNet-50": "resnet50",
             "WideResNet-40-2": "wrn-40-2", "WideResNet-28-10": "wrn-28-10"}  # fmt: skip
    for printed in PRINTED["T14"]["rows"]:
        reference, learner = names[printed["reference"]], names[printed["learner"]]
        cell = named("T14", f"{reference}-{learner}/ursl")
        assert numbers(cell) == printed["acc"]
        expect_ablation(cell)
        method = cell.spec(PAPER, 0).method
        assert (method.reference.net.backbone, method.learner.net.backbone) == (reference, learner)
        assert method.reference.batch == method.learner.batch == PRINTED["T14"]["batch_size"]


def test_the_memory_policies_are_run_in_the_setting_of_their_numbers():
    used = PRINTED["T15"]["config_used"]
    policies = {"low_confidence": "low", "high_confidence": "high", "rainbow": "rainbow", "random": "random"}
    for key, pair in PRINTED["T15"]["values"].items():
        cell = named("T15", f"{key.replace('_', '-')}/ursl")
        assert numbers(cell) == pair
        expect(cell, used["main"].lower(), [used["peripheral"].lower()], used["P"], used["M"])
        assert cell.spec(PAPER, 0).method.memory.policy == policies[key]


def test_pretraining_is_the_papers():
    expect_values(
        "T16",
        {"continual": PRINTED["T16"]["values"]["URSL"], "pretrained": PRINTED["T16"]["values"]["URSL_with_pretrain"]},
        {"pretrained": {"reference.pretrained": True}},
    )


@pytest.mark.parametrize("id", ["T17", "T18"])
def test_self_supervision_is_the_papers_in_accuracy_and_minutes(id):
    for printed in PRINTED[id]["rows"]:
        row = printed["ssl"].lower()
        cell, time = named(id, f"{row}/ursl"), named(id, f"{row}/minutes")
        assert numbers(cell) == printed["acc"] and numbers(time) == [printed["minutes"], None]
        assert cell.spec(PAPER, 0) == time.spec(PAPER, 0) and time.measure == "reference"
        assert cell.spec(PAPER, 0).method.reference.ssl == row
        page = PRINTED[id]
        expect(cell, page["main"].lower(), [page["peripheral"].lower()], page["P"], page["M"])


def test_the_figures_are_the_papers():
    for id, printed in zip(("F1", "F2"), PAGE["figures_without_numbers"], strict=True):
        (cell,) = FIGURES[id].cells
        expect_ablation(cell, printed["related"], printed["unrelated"])
        assert cell.configuration == "ursl" and cell.published is None


OURS = ("ursl-plus", "ursl-plus-unlimited")
OF_THE_PAPER = [(id, cell) for id, cell in EVERY if cell.configuration not in SIZES]
OF_COMPETITORS = [(id, cell) for id, cell in EVERY if cell.configuration in SIZES]


def test_every_cell_is_compared_with_some_papers_hyperparameters():
    assert (len(OF_THE_PAPER), len(OF_COMPETITORS), len(EVERY)) == (167, 53, 220)


@pytest.mark.parametrize(("id", "cell"), OF_THE_PAPER, ids=lambda value: getattr(value, "name", value))
def test_hyperparameters_are_the_papers_except_optimiser_and_head(id, cell):
    allowed = {change.partition("=")[0] for change in cell.changes}
    if cell.configuration in OURS:
        allowed |= {"learner.epochs"}  # ours
    if cell.configuration in ("co2l-j", "co2l-p"):
        allowed |= {"learner.lam"}  # of one it weighs NT-Xent, the other has no such loss
    ours = flat(plain(cell.spec(PAPER, 0).method))
    held = [field for field in CHOSEN if field not in allowed and field in ours and ".optimiser." not in field]
    assert len(held) >= 5
    for field in held:
        assert ours[field] == plain(CHOSEN[field]), f"{id} {cell.name}: {field}"


@pytest.mark.parametrize(("id", "cell"), OF_COMPETITORS, ids=lambda value: getattr(value, "name", value))
def test_competitors_train_as_long_as_their_papers_say_on_the_papers_network(id, cell):
    changed = dict(change.split("=") for change in cell.changes)
    ours = flat(plain(cell.spec(PAPER, 0).method))
    for field, value in SIZES[cell.configuration].items():
        assert str(ours[field]) == changed.get(field, str(value)), f"{id} {cell.name}: {field}"


@pytest.mark.parametrize(("id", "rate", "epochs"), [("T1", 0.1, 50), ("T2", 0.3, 50), ("T3", 0.03, 100)])
def test_icarl_has_the_rate_that_suits_each_main_set(id, rate, epochs):
    method = named(id, "all-labels/icarl").spec(PAPER, 0).method
    assert (method.optimiser.rate, method.optimiser.min_rate, method.epochs) == (rate, rate, epochs)


def test_ursl_plus_follows_every_cell_of_unchanged_ursl_without_a_published_number():
    for id, cell in EVERY:
        if cell.configuration == "ursl" and not cell.changes and cell.measure == "accuracy" and cell.published:
            for ours in OURS:
                twin = named(id, f"{cell.row}/{ours}")
                assert twin.scenario == cell.scenario and twin.published is None
    assert all(cell.published is None for _, cell in EVERY if cell.configuration in OURS)


def test_every_number_of_the_page_is_carried():
    """125 pairs of mean and std, and 11 numbers of minutes."""
    pairs = [cell for _, cell in EVERY if cell.published and cell.published.std is not None]
    minutes = [cell for _, cell in EVERY if cell.published and cell.published.std is None]
    assert (len(pairs), len(minutes)) == (125, 11)


def test_names_are_unique_and_a_scenario_finds_its_number():
    assert len({(id, cell.name) for id, cell in EVERY}) == len(EVERY)
    ursl = configuration("ursl")
    assert published_of(named("T2", "p10-cifar10/ursl").scenario, ursl) == Published(37.5, 0.4)
    assert published_of(named("T10", "only-supervised/ursl").scenario, ursl) is None


def test_a_published_number_is_found_for_the_run_of_its_cell_only():
    cell = named("T2", "all-labels/icarl")
    assert published_of(cell.scenario, cell.spec(PAPER, 0).method) == Published(34.4, 0.8)
    assert published_of(cell.scenario, configuration("icarl")) is None  # another rate than the cell's


@pytest.mark.parametrize(
    ("table", "cell", "theirs"),
    [
        ("T4", "without-sup/ursl", (25.7, 0.2)),
        ("T5", "variant2/ursl", (24.5, 0.4)),
        ("T10", "only-unrelated/ursl", (19.6, 0.5)),
        ("T11", "25-percent/ursl", (24.9, 0.6)),
        ("T12", "1000-9000/ursl", (21.0, 1.1)),
        ("T15", "rainbow/ursl", (72.5, 0.6)),
        ("T18", "byol/ursl", (32.3, 0.8)),
    ],
)
def test_an_ablation_finds_its_number_and_minutes_are_not_accuracies(table, cell, theirs):
    found = named(table, cell)
    assert published_of(found.scenario, found.spec(PAPER, 0).method) == Published(*theirs)
    elsewhere = named("T2", "p10-cifar10/ursl").scenario
    if found.changes:
        assert published_of(elsewhere, found.spec(PAPER, 0).method) is None


def test_tables_that_share_a_cell_agree_on_its_number_except_where_the_paper_does_not():
    """One setting of T3 is printed twice, as 15.1 and 15.0."""
    numbers = {}
    for _, cell in EVERY:
        if cell.published is not None and cell.measure == "accuracy":
            numbers.setdefault(cell.spec(PAPER, 0).id, set()).add((cell.published.mean, cell.published.std))
    assert [shared for shared in numbers.values() if len(shared) > 1] == [{(15.1, 0.7), (15.0, 0.7)}]
